"""What clustering sees: blocks of rows, and tables of centers laid out for the kernels.

A block is a sketched chunk with the squared norms of its rows. A `CenterTable` finds nearest centers for any rows,
dense or CSR, in the same way whatever rows come along: dense products are made in batches of one fixed shape, so that
a row's label never depends on its neighbours. May import kernels and below; never sees a source or a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.kernels import lloyd as kernels
from streamkm.kernels.lanes import LANES
from streamkm.kernels.totals import mean_row
from streamkm.matrices import Matrix, aligned_empty, as_working, working_dtype

NO_WEIGHTS = np.empty(0, np.float64)
TILED_BYTES = 1 << 23  # of a table: larger ones lie in tiles for sparse rows, which each fit the third-level cache
TILE_COLUMNS = 64
BATCH_ENTRIES = 1 << 18  # of the larger matrix in one dense product: about the second-level cache


@dataclass(frozen=True, slots=True)
class Block:
    """Sketched rows.

    Attributes
    ----------
    X : float32 or float64 ndarray (n, m), or csr_array (n, m) whose entries may repeat an index
    d2norms : float64 (n,)
        Squared norms of the rows.
    weights : float64 (n,) or (0,)
        Sample weights; empty where every row weighs 1.
    """

    X: Matrix
    d2norms: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def n_rows(self) -> int:
        """Rows."""
        return int(self.X.shape[0])

    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum()) if len(self.weights) else float(self.n_rows)

    def total_d2norm(self) -> float:
        """Weighted sum of the rows' squared norms."""
        return float(self.weights @ self.d2norms) if len(self.weights) else float(self.d2norms.sum())


@dataclass(frozen=True, slots=True)
class CenterTable:
    """Centers laid out for nearest-center kernels.

    With s the mean of the centers, ``x @ table + bias`` is ``||x - c||^2 - ||x - s||^2`` for every c:
    ``table = -2 (C - s)^T`` and ``bias = ||c - s||^2 + 2 s.(c - s)``. What is left out is the same for all centers of a
    row. Taking s out keeps float32 products small when the data lie far from the origin.

    Attributes
    ----------
    centers : float64 (k, m)
    table : float32 or float64 (m * p,)
        p is k, padded to whole vectors. Tiles of `width` columns, (m, width) one after the other, the last of what is
        left.
    width : int
        p, unless rows are sparse and the table is large.
    bias : same dtype (p,)
        Infinite where padded.
    """

    centers: NDArray[np.float64]
    table: NDArray[Any]
    width: int
    bias: NDArray[Any]

    @classmethod
    def build(
        cls, centers: NDArray[np.float64], dtype: Any, *, around_origin: bool = False, sparse: bool = False
    ) -> CenterTable:
        """Lay out centers.

        Parameters
        ----------
        centers : float64 (k, m)
        dtype : float32 or float64
            Of the products.
        around_origin : bool
            Take s = 0, so that scores are ``||x - c||^2 - ||x||^2``: for rows that lie around the origin.
        sparse : bool
            Whether the rows will be CSR: they read a few rows of a table, which should be near.
        """
        n_clusters, n_components = centers.shape
        padded = -(-n_clusters // LANES) * LANES
        given = np.ascontiguousarray(centers)
        shift = np.zeros(n_components)
        if not around_origin:
            mean_row(given, shift)
        table = aligned_empty((n_components * padded,), dtype)
        width = TILE_COLUMNS if sparse and table.nbytes > TILED_BYTES else padded
        exact = np.empty(n_clusters)
        laid = cls(centers, table, width, np.full(padded, np.inf, dtype))
        for columns, tile in laid.tiles():
            kernels.lay_out(given[columns], shift, tile, exact[columns])
        laid.bias[:n_clusters] = exact
        return laid

    def tiles(self) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield columns of the table and these columns (m, up to `width`)."""
        n_columns, n_components = len(self.bias), self.centers.shape[1]
        for first in range(0, n_columns, self.width):
            stop = min(first + self.width, n_columns)
            part = self.table[first * n_components : stop * n_components]
            yield slice(first, stop), part.reshape(n_components, stop - first)

    @property
    def n_clusters(self) -> int:
        """Clusters, k."""
        return self.centers.shape[0]

    def nearest(self, X: Matrix, *, seconds: bool = False) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """Find every row's nearest center.

        Parameters
        ----------
        X : ndarray (n, m) of any real dtype, or csr_array (n, at most m)
        seconds : bool
            Whether to find the score of the second nearest center too.

        Returns
        -------
        labels : int32 (n,)
        scores : (n,)
            Squared distance to the nearest center less ``||x - s||^2``.
        second_scores : (n,), or (0,) unless asked for
            The same for the second nearest; infinite where k is 1.
        """
        n_rows = X.shape[0]
        labels = np.empty(n_rows, np.int32)
        scores = np.empty(n_rows, self.table.dtype)
        second_scores = np.empty(n_rows if seconds else 0, self.table.dtype)
        if isinstance(X, np.ndarray):
            for start, batch, products in self.products(X):
                stop = min(start + len(batch), n_rows)
                kernels.nearest_dense(
                    products, self.bias, labels[start:stop], scores[start:stop], second_scores[start:stop]
                )
        else:
            data = X.data.astype(self.table.dtype, copy=False)
            table = (self.table, self.width, self.bias)
            kernels.nearest_csr(X.indptr, X.indices, data, *table, labels, scores, second_scores)
        return labels, scores, second_scores

    def scores(self, X: Matrix) -> NDArray[Any]:
        """Squared distances to all centers less ``||x - s||^2`` (n, k)."""
        out = np.empty((X.shape[0], len(self.bias)), self.table.dtype)
        self.score(X, out)
        return out[:, : self.n_clusters]

    def score(self, X: Matrix, out: NDArray[Any]) -> None:
        """Write `scores` into an array of the table's dtype (n, p)."""
        if isinstance(X, np.ndarray):
            for start, _, products in self.products(X):
                np.add(products[: len(out) - start], self.bias, out=out[start : start + len(products)])
        else:
            data = X.data.astype(self.table.dtype, copy=False)
            kernels.scores_csr(X.indptr, X.indices, data, self.table, self.width, self.bias, out)

    def products(self, X: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
        """Yield (first row, batch, ``batch @ table``); the last batch is filled up with zeros."""
        n_batch = batch_rows(self.centers.shape[1], len(self.bias))
        products = np.empty((n_batch, len(self.bias)), self.table.dtype)
        for start, batch in dense_batches(X, n_batch, self.table.dtype):
            for columns, tile in self.tiles():
                np.matmul(batch, tile, out=products[:, columns])
            yield start, batch, products


def batch_rows(n_components: int, n_columns: int) -> int:
    """Rows of one dense product: a function of the table's shape alone, so that every row is computed alike."""
    rows = BATCH_ENTRIES // max(n_components, n_columns)
    return max(256, min(4096, rows // 64 * 64))


def dense_batches(X: NDArray[Any], n_batch: int, dtype: Any) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, rows as a C-contiguous array of `dtype`), always `n_batch` of them; filled up with zeros."""
    ready = X.dtype == dtype and X.flags.c_contiguous
    buffer = None
    for start in range(0, X.shape[0], n_batch):
        rows = X[start : start + n_batch]
        if ready and len(rows) == n_batch:
            yield start, rows
            continue
        if buffer is None:
            buffer = np.zeros((n_batch, X.shape[1]), dtype)
        np.copyto(buffer[: len(rows)], rows)
        buffer[len(rows) :] = 0
        yield start, buffer


def row_d2norms(X: Matrix) -> NDArray[np.float64]:
    """Squared norms of rows in float64; CSR entries must not repeat an index."""
    out = np.empty(X.shape[0], np.float64)
    if isinstance(X, np.ndarray):
        n_batch = batch_rows(X.shape[1], 1)
        for start, batch in dense_batches(X, n_batch, working_dtype(X.dtype)):
            kernels.d2norms_dense(batch[: len(out) - start], out[start : start + n_batch])
    else:
        kernels.d2norms_csr(X.indptr, as_working(X.data), out)
    return out


def row_d2(X: Matrix, labels: NDArray[np.int32], centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distance of every row to the center of its label, in float64; 0 for label -1.

    Parameters
    ----------
    X : ndarray (n, m), or csr_array (n, at most m) with distinct indices in a row
    labels : int32 (n,)
    centers : float64 (k, m)
    """
    out = np.empty(X.shape[0], np.float64)
    if isinstance(X, np.ndarray):
        n_batch = batch_rows(X.shape[1], 1)
        for start, batch in dense_batches(X, n_batch, working_dtype(X.dtype)):
            kernels.d2_dense(batch, labels[start : start + n_batch], centers, out[start : start + n_batch])
    else:
        centers_d2 = np.einsum("ij,ij->i", centers, centers)
        kernels.d2_csr(X.indptr, X.indices, as_working(X.data), labels, centers, centers_d2, out)
    return out


def add_rows(
    X: Matrix,
    weights: NDArray[np.float64],
    labels: NDArray[np.int32],
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    *,
    fresh: bool = False,
) -> None:
    """Add rows to their clusters' `sums` (k, m) and `counts` (k,), both written; label -1 is left out.

    `fresh`: the sums begin here, whatever is in their memory.
    """
    if isinstance(X, np.ndarray):
        if fresh and not len(X):
            sums[:] = 0
        n_batch = batch_rows(X.shape[1], 1)
        for start, batch in dense_batches(X, n_batch, working_dtype(X.dtype)):
            stop = start + n_batch
            order, starts = rows_by_label(labels[start:stop], len(counts))
            kernels.add_dense(batch, weights[start:stop], order, starts, 0, fresh and start == 0, sums, counts)
    else:
        order, starts = rows_by_label(labels, len(counts))
        kernels.add_csr(X.indptr, X.indices, as_working(X.data), weights, order, starts, 0, fresh, sums, counts)


def assign_dense(
    X: NDArray[Any],
    weights: NDArray[np.float64],
    table: CenterTable,
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    *,
    fresh: bool,
    with_d2: bool,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """As `CenterTable.nearest`, `add_rows` and `row_d2`, to the bit, of dense rows that are turned to floats once.

    Parameters
    ----------
    X : ndarray (n, m) of any real dtype that the table's holds exactly
    fresh
        As of `add_rows`.
    with_d2 : bool

    Returns
    -------
    labels : int32 (n,)
    d2 : float64 (n,), or (0,) unless asked for
    """
    labels, scores = np.empty(len(X), np.int32), np.empty(len(X), table.table.dtype)
    d2 = np.empty(len(X) if with_d2 else 0)
    if fresh and not len(X):
        sums[:] = 0
    for start, batch, products in table.products(X):
        here = slice(start, min(start + len(batch), len(X)))
        kernels.nearest_dense(products, table.bias, labels[here], scores[here], scores[:0])
        order, starts = rows_by_label(labels[here], table.n_clusters)
        kernels.add_dense(batch, weights[here], order, starts, 0, fresh and start == 0, sums, counts)
        if with_d2:
            kernels.d2_dense(batch, labels[here], table.centers, d2[here])
    return labels, d2


def rows_by_label(labels: NDArray[np.int32], n_clusters: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows in the order of their labels (n,), and where those of each cluster start (k + 1,); label -1 is left out."""
    order, starts = np.empty(len(labels), np.int64), np.empty(n_clusters + 1, np.int64)
    kernels.order_by_label(labels, order, starts)
    return order, starts
