"""Dask arrays and frames as sources: one chunk per block, with the part of the graph that the block needs.

Nothing here starts or chooses a cluster.
"""
