"""Sketch stores: written in one pass, extended by rows or columns, with a check that new data fit the old.

`sources.sketch_store` reads stores. Nothing here clusters.
"""
