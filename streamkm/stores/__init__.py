"""Sketch stores: written in one pass, extended by rows or columns, checked for what fits them.

Sketches, passes and Zarr come in; stores are read by `sources.sketch_store`. Nothing here clusters.
"""
