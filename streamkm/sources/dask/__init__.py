"""Dask arrays and data frames as sources whose chunks are blocks."""
