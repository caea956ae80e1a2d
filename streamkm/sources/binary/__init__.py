"""Readers of files of numbers: HDF5, Zarr, .npy and .npz, dense and CSR. Parses no text and knows no sketches."""
