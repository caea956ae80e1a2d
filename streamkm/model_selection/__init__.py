"""Which k and which sketch: sweeps over numbers of clusters, and how well sketches keep the objective.

Rows and ranges come in, tables of scores go out; nothing here draws.
"""
