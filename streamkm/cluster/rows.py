"""Blocks of rows, and computations on rows: squared norms, squared distances, sums and means of clusters.

A block is a sketched chunk with the squared norms of its rows. Never sees a source or a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix, as_working, working_dtype
from streamkm.kernels.cluster import distances
from streamkm.kernels.cluster import totals as kernels
from streamkm.kernels.cluster.label_order import add_csr, add_csr_rows, add_dense, order_by_label
from streamkm.kernels.cluster.totals import weighted_sum
from streamkm.kernels.intrinsics.products import BLOCK_ROWS

NO_WEIGHTS = np.empty(0, np.float64)
BATCH_ENTRIES = 1 << 18  # of rows that are turned to floats at a time: about the second-level cache
SMALLEST = 2.0**-30  # size of numbers whose squares, and what is small beside them, float32 holds
NO_NORMS = np.empty((0, 2))
SMALLEST_NORM = 1e-30


class Centers(Protocol):
    """Centers (k, m), with the squared norms that distances of CSR rows need; `NearestCenters` has both."""

    @property
    def centers(self) -> NDArray[np.float64]:
        """The centers."""

    def center_norms(self) -> NDArray[np.float64]:
        """Squared norms of the centers (k, 2): float64 value and rounding error."""


@dataclass(frozen=True, slots=True)
class Block:
    """Sketched rows."""

    X: Matrix  # float32 or float64 ndarray (n, m), or csr_array (n, m) whose entries may repeat an index
    d2norms: NDArray[np.float64]  # (n,): squared norms of the rows
    weights: NDArray[np.float64]  # (n,) or (0,), sample weights; empty where every row weighs 1

    @property
    def n_rows(self) -> int:
        """Rows."""
        return int(self.X.shape[0])

    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weights.sum()) if len(self.weights) else float(self.n_rows)

    def total_d2norm(self) -> float:
        """Weighted sum of the rows' squared norms."""
        return float(weighted_sum(self.weights, self.d2norms))

    def largest_d2norm(self) -> float:
        """Largest of the rows' squared norms; 0 without rows."""
        return float(self.d2norms.max(initial=0.0))


def safe_scale(size: float) -> float:
    """A power of two that brings numbers of a size near 1; 1 if float32 easily holds their squares."""
    if size == 0 or not np.isfinite(size) or SMALLEST <= size <= 1 / SMALLEST:
        return 1.0
    return float(np.ldexp(1.0, -max(-1000, min(1000, int(np.frexp(size)[1])))))


def batch_rows(n_components: int) -> int:
    """Rows to convert at a time: about what the second-level cache holds."""
    rows = max(1, BATCH_ENTRIES // max(1, n_components))
    return rows if rows < BLOCK_ROWS else rows // BLOCK_ROWS * BLOCK_ROWS


def dense_batches(X: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (first row, rows as a C-contiguous array of their `working_dtype`), without copies if possible."""
    dtype = working_dtype(X.dtype)
    if X.dtype == dtype and X.flags.c_contiguous:
        if len(X):
            yield 0, X
        return
    n_batch = batch_rows(X.shape[1])
    for start in range(0, X.shape[0], n_batch):
        yield start, np.ascontiguousarray(X[start : start + n_batch], dtype)


def row_d2norms(X: Matrix) -> NDArray[np.float64]:
    """Squared norms of rows in float64; CSR entries must not repeat an index."""
    out = np.empty(X.shape[0], np.float64)
    if isinstance(X, np.ndarray):
        for start, batch in dense_batches(X):
            distances.d2norms_dense(batch, out[start : start + len(batch)])
    else:
        distances.d2norms_csr(X.indptr, as_working(X.data), out)
    return out


def row_d2(X: Matrix, labels: NDArray[np.int32], table: Centers) -> NDArray[np.float64]:
    """Squared distance of every row to its label's center, in float64; 0 for label -1. CSR indices must be distinct."""
    out = np.empty(X.shape[0], np.float64)
    if isinstance(X, np.ndarray):
        for start, batch in dense_batches(X):
            here = slice(start, start + len(batch))
            distances.d2_dense(batch, labels[here], table.centers, out[here])
    else:
        norms = table.center_norms()
        distances.d2_csr(X.indptr, X.indices, as_working(X.data), labels, table.centers, norms, out)
    return out


def add_rows(
    X: Matrix,
    weights: NDArray[np.float64],
    labels: NDArray[np.int32],
    sums: NDArray[np.float64],
    counts: NDArray[np.float64],
    *,
    fresh: bool = False,
    to: Centers | None = None,
) -> NDArray[np.float64]:
    """Add rows to their clusters' `sums` (k, m) and `counts` (k,), both written; label -1 is left out.

    `fresh`: overwrite the sums. `to`: centers for squared distances, which then are returned, float64 (n,), else (0,);
    every row has a label then.
    """
    d2 = np.empty(X.shape[0] if to is not None else 0)
    if isinstance(X, np.ndarray):
        if fresh and not len(X):
            sums[:] = 0
        for start, batch in dense_batches(X):
            here = slice(start, start + len(batch))
            order, starts = rows_by_label(labels[here], len(counts))
            add_dense(batch, weights[here], order, starts, 0, fresh and start == 0, sums, counts)
            if to is not None:
                distances.d2_dense(batch, labels[here], to.centers, d2[here])
        return d2
    order, starts = rows_by_label(labels, len(counts))
    centers, norms = (sums, NO_NORMS) if to is None else (to.centers, to.center_norms())
    data = as_working(X.data)
    add_csr(X.indptr, X.indices, data, weights, order, starts, 0, fresh, centers, norms, sums, counts, d2)
    return d2


def drawn_rows(mass: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.intp]:
    """The first rows whose running sums reach shares of the whole; the last row if rounding hides it."""
    return mass.searchsorted(shares * mass[-1]).clip(0, len(mass) - 1)


def rows_by_label(labels: NDArray[np.int32], n_clusters: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows in the order of their labels (n,), and starts of the clusters (k + 1,); label -1 is left out."""
    order, starts = np.empty(len(labels), np.int64), np.empty(n_clusters + 1, np.int64)
    order_by_label(labels, order, starts)
    return order, starts


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a step over rows: one addend of the reduction."""

    sums: NDArray[np.float64]  # (k, m): weighted sums of the rows of each cluster
    counts: NDArray[np.float64]  # (k,): their total weight
    d2: float = 0.0  # float64, weighted sum of squared distances to the centers, where the step computes it

    @classmethod
    def zeros(cls, n_clusters: int, n_components: int) -> Totals:
        """Start empty."""
        return cls(np.zeros((n_clusters, n_components)), np.zeros(n_clusters))

    def means(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cluster means (k, m); rows of `fallback` for clusters without weight."""
        out = np.empty_like(self.sums)
        kernels.means(self.sums, self.counts, fallback, out)
        return out

    def to_means(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute `means` in place of the sums: new memory costs more than the division."""
        if not self.sums.flags.writeable:  # as it came from a worker
            return self.means(fallback)
        kernels.means(self.sums, self.counts, fallback, self.sums)
        return self.sums

    def explained(self) -> float:
        """Sum of squares that the clusters' means explain; the rest of the rows' is squared distances to them."""
        return kernels.explained(self.sums, self.counts)


def absorb_totals(first: Totals, second: Totals) -> Totals:
    """Add up both, in the memory of the first: new memory costs more than the sums."""
    np.add(first.sums, second.sums, out=first.sums)
    return Totals(first.sums, first.counts + second.counts, first.d2 + second.d2)


def inertia_of(totals: Totals, centers: NDArray[np.float64], total_d2norm: float) -> float:
    """Sum of squared distances from sums alone: ``sum w |x|^2 - 2 sum c.S + sum n |c|^2``, float64, at least 0."""
    return max(0.0, total_d2norm + kernels.crossed(totals.sums, totals.counts, centers))


def merged(X: Matrix) -> Matrix:
    """Add up entries that repeat an index; dense rows and others without any come back as they are."""
    if isinstance(X, np.ndarray) or X.has_canonical_format:
        return X
    copy = X.copy()
    copy.sum_duplicates()
    return copy


def densified(X: Matrix, rows: NDArray[np.intp], n_components: int) -> NDArray[np.float64]:
    """Chosen rows as float64 (len(rows), n_components)."""
    if isinstance(X, np.ndarray):
        return X[rows].astype(np.float64)
    out = np.zeros((len(rows), n_components))
    add_csr_rows(X.indptr, X.indices, X.data, np.asarray(rows, np.int64), out)
    return out


def normalized(X: Matrix) -> Matrix:
    """Rows scaled to unit length, as floats; rows of zeros stay zeros."""
    norms = np.sqrt(row_d2norms(X))
    dtype = working_dtype(X.dtype)
    tiny = np.flatnonzero(norms < SMALLEST_NORM)
    if len(tiny):  # squares, or a factor in float32, would leave the range: a power of two first
        units = np.ones(len(norms))
        largest = np.abs(X[tiny]).max(axis=1)
        largest = largest if isinstance(X, np.ndarray) else largest.toarray().ravel()
        units[tiny] = [safe_scale(float(value)) for value in largest]
        X = _times(X, units, np.float64)
        norms[tiny] = np.sqrt(row_d2norms(X[tiny]))
    return _times(X, np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0), dtype)


def _times(X: Matrix, factors: NDArray[np.float64], dtype: Any) -> Matrix:
    """Rows times a factor each, computed and kept in a dtype."""
    if isinstance(X, np.ndarray):
        return (X.astype(dtype) * factors[:, None].astype(dtype)) if dtype != np.float64 else X * factors[:, None]
    data = X.data.astype(dtype) * np.repeat(factors, np.diff(X.indptr)).astype(dtype)
    return sp.csr_array((data, X.indices, X.indptr), shape=X.shape)
