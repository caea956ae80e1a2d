"""The map of clusters, figures and report pages from plain values and arrays; matplotlib is imported only to draw."""
