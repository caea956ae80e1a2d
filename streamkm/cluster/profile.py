"""Distances of rows, and statistics of each cluster: silhouettes, typical rows and outliers.

Gathered during the assignment at O(1) a row. Sums follow the order of rows and states join in a fixed tree, for the
same bits with any number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.normalization import WHOLE, Normalization
from streamkm.cluster.rows import NO_WEIGHTS, row_d2norms
from streamkm.core.matrix import Matrix
from streamkm.kernels.cluster import profiles as kernels

ARRAYS = ("sums", "near_d2", "near_rows", "far_d2", "far_rows", "n_blank", "blank_d2")
MOST_EXAMPLES = 5
EXAMPLE_BYTES = 1 << 20  # of all lists of examples together, about
NO_ROWS = np.empty(0, np.int64)
BINS = 20  # of distances within reach, of equal width; one more for those beyond
BATCH_ENTRIES = 1 << 17  # of rows that are in float64 at a time


@dataclass(frozen=True, slots=True)
class Profile:
    """Statistics of the rows of each cluster, with r examples of each kind.

    References: Vendramin, Campello and Hruschka, "Relative clustering validity criteria", Stat. Anal. Data Min. 3
    (2010), section 2.1.7: the simplified silhouette, with distances to centers in place of mean distances to rows.
    """

    # (k, 2): weighted sums of the rows' distances to their center, and of their simplified silhouettes
    sums: NDArray[np.float64]
    # (k, r): squared distances of the rows nearest to their center, ascending; infinite where there are fewer
    near_d2: NDArray[np.float64]
    near_rows: NDArray[np.int64]  # (k, r): their numbers; -1 where there are fewer
    # (k, r): squared distances of the rows farthest from their center, negative, ascending; infinite where there are
    # fewer
    far_d2: NDArray[np.float64]
    far_rows: NDArray[np.int64]  # (k, r): their numbers; -1 where there are fewer
    n_blank: NDArray[np.int64]  # (k,): rows without any stored value, of sparse data: documents without a word
    # (k,): the largest squared distance of such rows, which are in no list; 0 where there are none, NaN where it is not
    # known
    blank_d2: NDArray[np.float64]

    @classmethod
    def empty(cls, n_clusters: int) -> Profile:
        """A profile of no rows."""
        shape = (n_clusters, n_examples(n_clusters))
        far, none = np.full(shape, np.inf), np.full(shape, -1, np.int64)
        lists = far, none, far.copy(), none.copy()
        return cls(np.zeros((n_clusters, 2)), *lists, np.zeros(n_clusters, np.int64), np.zeros(n_clusters))

    def add(
        self,
        labels: NDArray[np.int32],
        d2: NDArray[np.float64],
        gaps: NDArray[np.float64],
        *,
        weights: NDArray[np.float64] = NO_WEIGHTS,
        first_row: int = 0,
        kept: NDArray[np.int64] | None = None,
        X: Matrix | None = None,
    ) -> None:
        """Add rows, in place.

        `labels`: int32 (n,). `d2`: float64 (n,), squared distances to their centers. `gaps`: float64 (n,), excess of
        those to the second nearest centers; infinite if there are none. `weights`: float64 (n,) or (0,). `first_row`:
        number of the chunk's first row. `kept`: int64 (n,), rows of the chunk; None: all. `X`: the rows (n, d); sparse
        ones without values are counted, and are no examples.
        """
        kept = NO_ROWS if kept is None else kept
        lists = (self.near_d2, self.near_rows, self.far_d2, self.far_rows)
        blank = None if X is None or isinstance(X, np.ndarray) else X.indptr[1:] == X.indptr[:-1]
        if blank is None or not blank.any():
            kernels.add_rows(labels, d2, gaps, weights, first_row, kept, self.sums, *lists)
            return
        np.add(self.n_blank, np.bincount(labels[blank], minlength=len(self.n_blank)), out=self.n_blank)
        counted = blank & (weights > 0) if len(weights) else blank
        np.maximum.at(self.blank_d2, labels[counted], d2[counted])
        rows = kept if len(kept) else np.arange(len(labels))
        # the zero row is near to the mean of many directions, and says nothing
        unseen = Profile.empty(len(self.n_blank))
        ignored = unseen.near_d2, unseen.near_rows, unseen.far_d2, unseen.far_rows
        for part, into in ((~blank, lists), (blank, ignored)):
            of_part = weights[part] if len(weights) else weights
            kernels.add_rows(labels[part], d2[part], gaps[part], of_part, first_row, rows[part], self.sums, *into)

    def arrays(self) -> tuple[NDArray[np.float64] | NDArray[np.int64], ...]:
        """The arrays, in the order of `ARRAYS`."""
        return tuple(getattr(self, name) for name in ARRAYS)

    def weighted(self, factor: float) -> Profile:
        """The profile of the same rows with their weights times a factor."""
        return replace(self, sums=factor * self.sums)


def n_examples(n_clusters: int) -> int:
    """Examples of each kind for a cluster: 5, and fewer with very many clusters."""
    return max(1, min(MOST_EXAMPLES, EXAMPLE_BYTES // (32 * n_clusters)))


def profile_bytes(n_clusters: int) -> int:
    """Bytes of a profile."""
    return (32 + 32 * n_examples(n_clusters)) * n_clusters


def absorb_profile(first: Profile, second: Profile) -> Profile:
    """The profile of both sets of rows, the first in front, in the memory of the first."""
    if not all(array.flags.writeable for array in first.arrays()):  # as they came from a worker
        first = Profile(*(array.copy() for array in first.arrays()))  # type: ignore[arg-type]
    np.add(first.sums, second.sums, out=first.sums)
    np.add(first.n_blank, second.n_blank, out=first.n_blank)
    np.maximum(first.blank_d2, second.blank_d2, out=first.blank_d2)
    kernels.merge_lists(second.near_d2, second.near_rows, first.near_d2, first.near_rows)
    kernels.merge_lists(second.far_d2, second.far_rows, first.far_d2, first.far_rows)
    return first


def feature_deviations(X: Matrix) -> NDArray[np.float64]:
    """Standard deviations (d,) of features over rows (n, d), in float64. O(n * d), or O(nnz + d)."""
    n_rows, width = X.shape
    if isinstance(X, np.ndarray):
        mean, squares = X.mean(axis=0, dtype=np.float64), np.zeros(width)
        step = max(1, BATCH_ENTRIES // max(1, width))
        for start in range(0, n_rows, step):
            squares += np.square(X[start : start + step] - mean).sum(axis=0)
        return np.asarray(np.sqrt(squares / n_rows), np.float64)
    rows = sp.csr_array((X.data.astype(np.float64), X.indices, X.indptr), shape=X.shape)
    mean = np.bincount(rows.indices, rows.data, minlength=width) / n_rows
    away = np.bincount(rows.indices, (rows.data - mean[rows.indices]) ** 2, minlength=width)
    stored = np.bincount(rows.indices, minlength=width)
    return np.asarray(np.sqrt((away + (n_rows - stored) * mean**2) / n_rows), np.float64)


def euclidean_distances(X: Matrix, Y: Matrix | None = None) -> NDArray[np.float64]:
    """Distances (n, m) of rows to rows by float64 products and norms: short ones are as exact as long ones' squares.

    Rows far from the origin are moved to it first, against cancellation. CSR entries must not repeat an index. `Y`:
    None for X, with 0 from a row to itself. O(n m d); X and Y are copied unless float64.
    """
    others = X if Y is None else Y
    # sparse rows cannot be moved as far as dense ones
    alike = isinstance(X, np.ndarray) == isinstance(others, np.ndarray)
    normalization = Normalization.of(others, moves=True) if alike else WHOLE
    left = normalization.rows(X.astype(np.float64, copy=False))
    right = left if Y is None else normalization.rows(Y.astype(np.float64, copy=False))
    products = left @ right.T
    d2: NDArray[np.float64] = products if isinstance(products, np.ndarray) else products.toarray()
    d2 *= -2
    d2 += row_d2norms(left)[:, None]
    d2 += row_d2norms(right)
    np.maximum(d2, 0.0, out=d2)
    if Y is None:
        np.fill_diagonal(d2, 0.0)
    np.sqrt(d2, out=d2)
    d2 /= normalization.scale
    return d2


def distance_histogram(
    distances: NDArray[np.float64], reach: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Weights of rows by distance over reach: `BINS` equal bins from 0 to 1, and one for rows beyond.

    `distances`, `reach`: float64 (n,), to the nearest center and of its cluster; 0 is within a reach of 0. `weights`:
    float64 (n,).
    """
    ratios = np.divide(distances, reach, out=np.where(distances > 0, np.inf, 0.0), where=reach > 0)
    bins = np.where(ratios <= 1, np.minimum(ratios * BINS, BINS - 1), BINS).astype(np.int64)
    return np.bincount(bins, weights, minlength=BINS + 1).astype(np.float64)
