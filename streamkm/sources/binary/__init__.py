"""Rows in files of numbers: HDF5, Zarr, .npy, .npz, dense and CSR; h5py and zarr come in here and nowhere else."""
