"""How results look: the map of the clusters, figures, and the page of a report.

Plain values and arrays come in, figures and text go out; no source, estimator or file is known here. matplotlib is
imported in `figures` alone, when something is drawn.
"""
