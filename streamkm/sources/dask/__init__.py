"""Dask arrays and data frames, and xarray's arrays over Dask, as sources.

A chunk is a block, with the part of the graph that the block needs. Nothing here starts or chooses a cluster.
"""
