"""How results look: the map of the clusters, figures, and the page of a report.

Plain values and arrays come in, figures and text go out; no source, estimator or file is known here. matplotlib is
imported where something is drawn, when it is: `drawing`, `figures`, `map_panel`, `sweep_figure`.
"""
