"""The map of the clusters, figures, and the page of a report.

Plain values and arrays come in, figures and text go out. Nothing here knows sources, estimators or files; matplotlib is
imported only when something is drawn.
"""
