"""Writing generated rows part by part: svmlight text, .npz, and CSR groups and dense arrays in HDF5 and Zarr.

A part is ``(X, y)``: a CSR or dense matrix and the integer label of each row. Every writer but `write_npz` holds one
part, the labels and one int64 a row at a time. Each returns the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import h5py
import numpy as np
import scipy.sparse as sp
import zarr

CSR_CHUNK = 1 << 18
TEXT_ROWS = 2_000

Parts = Iterable[tuple[Any, np.ndarray]]


def write_svmlight(path: str, parts: Parts) -> np.ndarray:
    """Write one-based svmlight text with six significant digits; the label is the target."""
    labels = []
    with open(path, "w", encoding="ascii") as file:
        for X, y in parts:
            labels.append(y)
            for start in range(0, X.shape[0], TEXT_ROWS):
                rows = sp.csr_array(X[start : start + TEXT_ROWS])
                file.write(svmlight_text(rows, y[start : start + TEXT_ROWS]))
    return np.concatenate(labels)


def svmlight_text(X: sp.csr_array, y: np.ndarray) -> str:
    """Return the lines of some rows."""
    cells = np.empty(2 * X.nnz, object)
    cells[0::2] = X.indices + 1
    cells[1::2] = X.data
    ends = 2 * X.indptr
    return "".join(
        f"{label}{' %d:%.6g' * ((stop - start) // 2) % tuple(cells[start:stop])}\n"
        for label, start, stop in zip(y, ends[:-1], ends[1:], strict=True)
    )


def write_npz(path: str, parts: Parts) -> np.ndarray:
    """Write SciPy's uncompressed .npz; holds the whole matrix twice."""
    matrices, labels = zip(*parts, strict=True)
    sp.save_npz(path, sp.vstack(matrices, format="csr"), compressed=False)
    return np.concatenate(labels)


def write_csr(path: str, parts: Parts, n_features: int, *, kind: str) -> np.ndarray:
    """Write AnnData's CSR layout at the root of an HDF5 file (kind "h5") or a Zarr group (kind "zarr")."""
    if kind == "h5":
        with h5py.File(path, "w") as root:
            return _fill_csr(root, partial(root.create_dataset, maxshape=(None,)), parts, n_features)
    root = zarr.open_group(path, mode="w")
    return _fill_csr(root, root.create_array, parts, n_features)


def _fill_csr(root: Any, create: Callable[..., Any], parts: Parts, n_features: int) -> np.ndarray:
    data = create("data", shape=(0,), dtype="f4", chunks=(CSR_CHUNK,))
    indices = create("indices", shape=(0,), dtype="i4", chunks=(CSR_CHUNK,))
    labels, pointers, nnz = [], [np.zeros(1, np.int64)], 0
    for X, y in parts:
        labels.append(y)
        pointers.append(X.indptr[1:].astype(np.int64) + nnz)
        for stored, values in ((data, X.data), (indices, X.indices)):
            stored.resize((nnz + X.nnz,))
            stored[nnz : nnz + X.nnz] = values
        nnz += X.nnz
    indptr = np.concatenate(pointers)
    create("indptr", shape=indptr.shape, dtype="i8", chunks=(CSR_CHUNK,))[:] = indptr
    root.attrs["encoding-type"] = "csr_matrix"
    root.attrs["encoding-version"] = "0.1.0"
    root.attrs["shape"] = [len(indptr) - 1, n_features]
    return np.concatenate(labels)


def write_dense(path: str, parts: Parts, shape: tuple[int, int], chunk_rows: int, *, kind: str) -> np.ndarray:
    """Write a uint8 matrix: dataset ``X`` of an HDF5 file (kind "h5") or a Zarr array (kind "zarr")."""
    layout = {"shape": shape, "dtype": "u1", "chunks": (min(chunk_rows, shape[0]), shape[1])}
    if kind == "h5":
        with h5py.File(path, "w") as root:
            return _fill_dense(root.create_dataset("X", **layout), parts)
    return _fill_dense(zarr.create_array(path, overwrite=True, **layout), parts)


def _fill_dense(stored: Any, parts: Parts) -> np.ndarray:
    labels, start = [], 0
    for X, y in parts:
        labels.append(y)
        stored[start : start + len(X)] = X
        start += len(X)
    return np.concatenate(labels)
