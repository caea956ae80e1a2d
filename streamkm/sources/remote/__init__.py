"""Bytes behind URLs: ranges are fetched once, and an object that changes in between is an error.

This package alone uses fsspec. Nothing here knows a file format but Zarr's.
"""
