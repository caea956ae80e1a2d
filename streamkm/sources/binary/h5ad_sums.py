"""Sums by cluster as an AnnData file: a row a cluster, sparse, written some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import h5py
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 24  # of dense sums that are made sparse at a time
_CHUNK = 1 << 16  # values of a storage chunk
_STRINGS = h5py.string_dtype("utf-8")


def write_sums(
    file: BinaryIO,
    sums: NDArray[np.float64],
    sizes: NDArray[np.int64],
    names: Sequence[str] | None,
    distances: sp.csr_array,
) -> None:
    """Write an AnnData file: X (k, d) in CSR float64, obs with the size of each cluster, var with names of features.

    `sizes` (k,): rows of each cluster. `names` (d,): of features; None numbers them. `distances` (k, k): from each
    center to the nearest others, which become ``obsp["distances"]``.
    """
    with h5py.File(file, "w") as root:
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        _write_matrix(root.create_group("X"), sums)
        clusters = [str(number) for number in range(len(sums))]
        _write_frame(root.create_group("obs"), clusters, {"size": sizes})
        _write_frame(root.create_group("var"), [str(j) for j in range(sums.shape[1])] if names is None else names, {})
        pairs = root.create_group("obsp")
        pairs.attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
        near = pairs.create_group("distances")
        near.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": distances.shape})
        for name in ("data", "indices", "indptr"):
            near.create_dataset(name, data=getattr(distances, name))


def most_bytes(sums: NDArray[np.float64]) -> int:
    """Bytes that the file takes at most, about."""
    return 16 * int(np.count_nonzero(sums)) + 64 * sum(sums.shape)


def _write_matrix(group: h5py.Group, sums: NDArray[np.float64]) -> None:
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": sums.shape})
    parts: dict[str, Any] = {
        name: group.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(_CHUNK,))
        for name, dtype in (("data", np.float64), ("indices", np.int64))
    }
    indptr = np.zeros(len(sums) + 1, np.int64)
    step = max(1, BLOCK_BYTES // (8 * sums.shape[1]))
    for start in range(0, len(sums), step):
        block = sp.csr_array(sums[start : start + step])
        done = int(indptr[start])
        for name, dataset in parts.items():
            dataset.resize((done + block.nnz,))
            dataset[done:] = getattr(block, name)
        indptr[start + 1 : start + 1 + block.shape[0]] = done + block.indptr[1:]
    group.create_dataset("indptr", data=indptr)


def _write_frame(group: h5py.Group, index: Sequence[str], columns: dict[str, NDArray[Any]]) -> None:
    group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
    group.attrs.create("column-order", list(columns), dtype=_STRINGS)
    names = group.create_dataset("_index", data=np.array(index, object), dtype=_STRINGS)
    names.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    for name, values in columns.items():
        column = group.create_dataset(name, data=values)
        column.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
