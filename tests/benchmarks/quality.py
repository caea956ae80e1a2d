"""The one objective that all methods are judged by: squared distances to the exact means of their clusters.

Computed from labels in float64, in pieces, so that no copy of the data in float64 is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

PIECE_ROWS = 20_000


def pieces(data: Path) -> Iterator[Any]:
    """Yield the rows of .npz (CSR), .npy and Zarr (dense) or svmlight data, some at a time."""
    if data.suffix == ".npz":
        X = sp.csr_array(sp.load_npz(data))
        yield from (X[start : start + PIECE_ROWS] for start in range(0, X.shape[0], PIECE_ROWS))
    elif data.suffix in {".npy", ".zarr"}:
        if data.suffix == ".npy":
            array = np.load(data, mmap_mode="r")
        else:
            import zarr

            array = zarr.open_array(data, mode="r")
        yield from (array[start : start + PIECE_ROWS] for start in range(0, array.shape[0], PIECE_ROWS))
    else:
        from streamkm.sources import open_source

        yield from (rows.X for rows in open_source(data).stream(1 << 25))


def objective(data: Path, labels: np.ndarray) -> float:
    """Sum of squared distances of the rows to the exact means of their clusters, by the number of rows.

    ``sum |x|^2 - sum_c |S_c|^2 / n_c``, S_c the sum of the rows of cluster c.
    """
    labels = np.unique(np.asarray(labels), return_inverse=True)[1]
    counts = np.bincount(labels)
    sums: np.ndarray = np.zeros((len(counts), 0))
    total, first = 0.0, 0
    for X in pieces(data):
        if X.shape[1] > sums.shape[1]:  # svmlight text tells its width as it goes
            sums = np.pad(sums, ((0, 0), (0, X.shape[1] - sums.shape[1])))
        part = labels[first : first + X.shape[0]]
        first += X.shape[0]
        members = sp.csr_array((np.ones(len(part)), (part, np.arange(len(part)))), shape=(len(counts), len(part)))
        if sp.issparse(X):
            rows = X.astype(np.float64)
            total += float(rows.data @ rows.data)
            gathered = (members @ rows).tocoo()
            sums[gathered.coords[0], gathered.coords[1]] += gathered.data  # each pair once, after the product
        else:
            rows = X.astype(np.float64)
            total += float(np.einsum("ij,ij->", rows, rows))
            sums[:, : X.shape[1]] += members @ rows
    if first != len(labels):
        raise ValueError(f"{len(labels):,} labels for {first:,} rows of {data.name}")
    return (total - float(np.einsum("ij,ij,i->", sums, sums, 1 / counts))) / len(labels)
