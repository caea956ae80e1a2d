"""Readers of files of numbers: HDF5, Zarr, .npy and .npz, dense and CSR.

Nothing here parses text or knows of sketches.
"""
