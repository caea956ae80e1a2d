"""Dask arrays and data frames, and xarray's arrays over Dask, as sources whose chunks are blocks."""
