"""Readers of files of numbers: HDF5, Zarr, .npy and .npz, dense and CSR; clusters in the `obs` of .h5ad files.

Nothing here parses text or knows of sketches.
"""
