"""Dask arrays and frames as sources by blocks, with the part of the graph that each block needs."""
