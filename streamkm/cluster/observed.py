"""K-means with missing values: distances and means among the features that rows have.

References
----------
Chi, Chi and Baraniuk, "k-POD: a method for k-means clustering of missing data", The American Statistician 70 (2016).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.lloyd import LloydResult
from streamkm.core.matrix import as_working, working_dtype
from streamkm.engine import Executor
from streamkm.kernels.cluster import observed as kernels
from streamkm.kernels.cluster.totals import weighted_sum

BATCH_ENTRIES = 1 << 17  # distances that are held at a time
PIECE_ROWS = 4096  # of the sample that a thread labels at once


@dataclass(frozen=True, slots=True)
class ObservedCenters:
    """Centers for rows with missing values.

    Attributes
    ----------
    centers : float64 (k, d)
    transposed : float64 (d, k)
    """

    centers: NDArray[np.float64]
    transposed: NDArray[np.float64]

    @classmethod
    def of(cls, centers: NDArray[np.float64]) -> Self:
        """Lay out centers."""
        return cls(centers, np.ascontiguousarray(centers.T))

    @property
    def n_clusters(self) -> int:
        """K."""
        return len(self.centers)

    def d2(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Squared distances of rows (n, d) to all centers (n, k), among the features that a row has."""
        out = np.empty((len(X), self.n_clusters))
        kernels.observed_d2(np.ascontiguousarray(as_working(X)), self.transposed, out)
        return out

    def nearest(self, X: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Labels of rows and squared distances to their centers (n,); the first of centers that are equally near."""
        labels, nearest = np.empty(len(X), np.int32), np.empty(len(X))
        step = max(1, BATCH_ENTRIES // self.n_clusters)
        for start in range(0, len(X), step):
            d2 = self.d2(X[start : start + step])
            labels[start : start + step] = d2.argmin(axis=1)
            nearest[start : start + step] = d2.min(axis=1)
        return labels, nearest

    def labels(self, X: NDArray[Any]) -> NDArray[np.int32]:
        """Labels of rows (n,)."""
        return self.nearest(X)[0]


@dataclass(frozen=True, slots=True)
class ObservedTotals:
    """Sums over the values that rows have: one addend of the reduction.

    Attributes
    ----------
    sums, weights : float64 (k, d)
        Weighted sums of the values of each cluster and feature, and the total weight of these values.
    counts : float64 (k,)
        Total weight of the rows of each cluster.
    d2 : float
        Weighted sum of squared distances to the centers.
    """

    sums: NDArray[np.float64]
    weights: NDArray[np.float64]
    counts: NDArray[np.float64]
    d2: float = 0.0

    @classmethod
    def zeros(cls, n_clusters: int, n_features: int) -> Self:
        """Start empty."""
        shape = (n_clusters, n_features)
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(n_clusters))

    def added(
        self, X: NDArray[Any], labels: NDArray[np.int32], d2: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> Self:
        """With further rows, in the memory of these."""
        kernels.add_observed(np.ascontiguousarray(as_working(X)), labels, weights, self.sums, self.weights)
        given = weights if len(weights) else None
        counts = self.counts + np.bincount(labels, given, minlength=len(self.counts))
        return replace(self, counts=counts, d2=self.d2 + float(weighted_sum(weights, d2)))

    def absorb(self, other: Self) -> Self:
        """With those of further rows, in the memory of these."""
        np.add(self.sums, other.sums, out=self.sums)
        np.add(self.weights, other.weights, out=self.weights)
        return replace(self, counts=self.counts + other.counts, d2=self.d2 + other.d2)

    @property
    def missing(self) -> NDArray[np.float64]:
        """Share of the rows' weight that lacks each feature (d,)."""
        return 1.0 - self.weights.sum(axis=0) / self.counts.sum()

    @property
    def n_unseen(self) -> int:
        """How many features clusters with rows have no value of, added up."""
        return int(np.count_nonzero(self.weights[self.counts > 0] == 0))

    def means(self, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Means of the values of each cluster and feature (k, d).

        Where a cluster has no value, the mean of all rows stands; clusters without rows, and features that no row has,
        keep those of `centers`.
        """
        n_values = self.weights.sum(axis=0)
        whole = np.divide(self.sums.sum(axis=0), n_values, out=np.zeros(len(n_values)), where=n_values > 0)
        means = np.where((n_values > 0) & (self.counts > 0)[:, None], whole, centers)
        return np.divide(self.sums, self.weights, out=means, where=self.weights > 0)

    def gain(self, centers: NDArray[np.float64]) -> float:
        """By how much the objective falls when `centers`, whose it is, move to the means."""
        return float(np.sum(self.weights * (self.means(centers) - centers) ** 2))


def filled_with_means(X: NDArray[Any]) -> NDArray[Any]:
    """Rows with the means of their columns in place of NaN; 0 where a column has no value."""
    found = ~np.isnan(X)
    n_values = found.sum(axis=0)
    sums = np.where(found, X, 0).sum(axis=0, dtype=np.float64)
    means = np.divide(sums, n_values, out=np.zeros(len(sums)), where=n_values > 0)
    return np.where(found, X, means.astype(working_dtype(X.dtype)))


def observed_lloyd(
    executor: Executor,
    X: NDArray[Any],
    weights: NDArray[np.float64],
    centers: NDArray[np.float64],
    *,
    max_iter: int,
    tol: float,
) -> LloydResult:
    """Lloyd's algorithm on rows with missing values, in memory; each step lowers the objective. O(n * d * k) a step.

    Parameters
    ----------
    X : ndarray (n, d)
    weights : float64 (n,) or (0,)
    centers : float64 (k, d)
    max_iter : int
    tol : float
        It ends when a step lowers the objective by no more than this share of it.
    """
    pieces = [X[start : start + PIECE_ROWS] for start in range(0, len(X), PIECE_ROWS)]
    history: list[float] = []
    converged = False
    while len(history) < max_iter and not converged:
        found = executor.each("lloyd", _nearest, pieces, ObservedCenters.of(centers))
        labels, d2 = (np.concatenate(parts) for parts in zip(*found, strict=True))
        totals = ObservedTotals.zeros(*centers.shape).added(X, labels, d2, weights)
        converged = totals.gain(centers) <= tol * totals.d2
        history.append(totals.d2)
        centers = totals.means(centers)
    return LloydResult(centers, history[-1], len(history), converged, tuple(history))


def _nearest(X: NDArray[Any], table: ObservedCenters) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    return table.nearest(X)
