"""Bytes behind URLs by fsspec; an object that changes is noticed by the end of the pass that reads it.

This package alone uses fsspec. Nothing here knows a file format but Zarr's.
"""
