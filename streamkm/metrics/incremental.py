"""Scores of clusterings of the same rows that follow each other: what did not change is not computed again.

From one clustering to the next, a few clusters are split or lose a few rows. Means, distances to them and distances
between them are kept for the clusters that stayed as they were; sums of the silhouette's distances move with the rows
that moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.distances import euclidean_distances
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.kernels.centers.scores import spread_csr, spread_dense
from streamkm.metrics.silhouette import SampledSilhouette, cluster_sums, row_silhouettes

TASKS = 16  # that the changed clusters are shared out in, for threads


@dataclass(frozen=True, slots=True)
class Scores:
    """How good a clustering of the rows is.

    Attributes
    ----------
    n_found : int
        Clusters with rows.
    inertia : float
        Weighted sum of squared distances of the rows to the means of their clusters.
    silhouette, silhouette_error : float
        Of the first rows, within themselves, and its standard error.
    calinski_harabasz, davies_bouldin : float
        Of all rows, by their weights. Like the silhouette NaN where they have no meaning, as for one cluster.
    """

    n_found: int
    inertia: float
    silhouette: float
    calinski_harabasz: float
    davies_bouldin: float
    silhouette_error: float


class Distances:
    """Distances between the first rows (s, s), which many clusterings are judged by.

    Parameters
    ----------
    X : ndarray or csr_array (n, d)
        float32 or float64.
    n_rows : int
        s; all rows if there are no more. Takes 4 s^2 bytes for float32 rows, 8 s^2 for others, twice that for a moment.
    """

    def __init__(self, X: Matrix, n_rows: int) -> None:
        self.values: NDArray[Any] = euclidean_distances(X[:n_rows]).astype(X.dtype)


class Rescoring:
    """Scores one clustering after the other.

    Parameters
    ----------
    executor : Executor
        Of this process.
    X : ndarray or csr_array (n, d)
        float32 or float64; CSR indices distinct within a row.
    distances : Distances
        Of its first rows.
    most_clusters : int
        K, the most clusters that there will be. Takes K * d numbers in the dtype of X, and K * s in float64.
    weights : float64 (n,) or (0,)
        Of the rows, in the mean 1; empty where every row weighs 1.

    Notes
    -----
    Means are kept in the dtype of X, so for float32 rows davies_bouldin is exact to some 1e-5; all else is gathered in
    float64.
    """

    def __init__(
        self,
        executor: Executor,
        X: Matrix,
        distances: Distances,
        most_clusters: int,
        weights: NDArray[np.float64] = NO_WEIGHTS,
    ) -> None:
        n_rows, n_features = X.shape
        self._executor, self._X, self._weights, self._between = executor, X, weights, distances.values
        self._shift = np.zeros(n_features)
        if isinstance(X, np.ndarray):
            self._shift = X.mean(axis=0, dtype=np.float64)  # means near the origin have exact distances
        self._labels = np.full(n_rows, -1, np.int32)
        self._means = np.zeros((most_clusters, n_features), X.dtype)
        self._d2, self._distances = np.zeros(most_clusters), np.zeros(most_clusters)
        self._products = np.zeros((most_clusters, most_clusters))
        self._sums = np.zeros((most_clusters, len(self._between)))
        whole = np.zeros(n_rows, np.int64)
        self._spread(whole, np.array([0]))
        self._total_d2 = float(self._d2[0])

    def score(self, labels: NDArray[np.int32]) -> Scores:
        """Score a clustering of all rows.

        Parameters
        ----------
        labels : int32 (n,)
            From 0 to K - 1.
        """
        changed_rows = np.flatnonzero(labels != self._labels)
        before, after = self._labels[changed_rows], labels[changed_rows]
        changed = np.unique(np.concatenate([before[before >= 0], after])).astype(np.int64)
        self._move_sums(changed_rows, labels)
        self._labels = labels.copy()
        counts = np.bincount(labels, self._weights if len(self._weights) else None, minlength=len(self._means))
        self._spread(labels, changed)
        self._multiply(changed)
        found = np.flatnonzero(counts)
        inertia = float(self._d2[found].sum())
        n_rows, judged = len(labels), labels[: len(self._between)]
        squares = np.diagonal(self._products)[found]
        d2 = squares[:, None] + squares - 2 * self._products[np.ix_(found, found)]
        np.fill_diagonal(d2, 0.0)
        k = int(labels.max()) + 1
        values = row_silhouettes(self._sums[:k], judged, np.bincount(judged, minlength=k))
        silhouette = SampledSilhouette.of(values, len(judged))
        return Scores(
            len(found),
            inertia,
            silhouette.mean,
            variance_ratio(n_rows, len(found), self._total_d2 - inertia, inertia),
            mean_overlap(n_rows, self._distances[found] / counts[found], np.sqrt(np.maximum(d2, 0.0))),
            silhouette.standard_error,
        )

    def _move_sums(self, changed_rows: NDArray[np.intp], labels: NDArray[np.int32]) -> None:
        """Bring the sums of distances to each cluster up to date."""
        n_judged = len(self._between)
        moved = changed_rows[changed_rows < n_judged]
        if 2 * len(moved) > n_judged:
            self._sums[:] = cluster_sums(self._between, labels[:n_judged], len(self._sums))
            return
        for row in moved.tolist():
            self._sums[self._labels[row]] -= self._between[row]
            self._sums[labels[row]] += self._between[row]

    def _spread(self, labels: NDArray[Any], clusters: NDArray[np.int64]) -> None:
        """Means and distances of these clusters."""
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], np.arange(len(self._means) + 1))
        out = (self._means, self._d2, self._distances)
        tasks = np.array_split(clusters, min(TASKS, max(1, len(clusters))))
        self._executor.each("score", _spread, tasks, self._X, self._weights, order, starts, out)

    def _multiply(self, clusters: NDArray[np.int64]) -> None:
        """Products of these means with all, about the mean of all rows."""
        k = int(max(self._labels.max(), clusters.max(initial=0))) + 1
        means = self._means[:k]
        if self._shift.any():
            means = means - self._shift.astype(means.dtype)
        tasks = np.array_split(clusters, min(TASKS, max(1, len(clusters))))
        for part, products in zip(tasks, self._executor.each("score", _products, tasks, means), strict=True):
            self._products[part, :k] = products
            self._products[:k, part] = products.T


def _spread(
    clusters: NDArray[np.int64],
    X: Matrix,
    weights: NDArray[np.float64],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    out: tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]],
) -> None:
    if isinstance(X, np.ndarray):
        spread_dense(X, weights, order, starts, clusters, *out)
    else:
        spread_csr(X.indptr, X.indices, X.data, weights, order, starts, clusters, *out)


def _products(clusters: NDArray[np.int64], means: NDArray[Any]) -> NDArray[Any]:
    # NumPy warned of invalid values now and then although means and products are finite: perhaps of the padding of
    # BLAS' buffers
    with np.errstate(invalid="ignore"):
        return means[clusters] @ means.T


def variance_ratio(n_rows: int, n_clusters: int, between: float, within: float) -> float:
    """Calinski and Harabasz's ratio from sums of squares; 1 where nothing lies within, NaN where it has no meaning."""
    if not 2 <= n_clusters < n_rows:
        return float("nan")
    return 1.0 if within == 0 else between * (n_rows - n_clusters) / (within * (n_clusters - 1))


def mean_overlap(n_rows: int, widths: NDArray[np.float64], distances: NDArray[Any]) -> float:
    """Davies and Bouldin's index from mean distances to the means (k,) and those between means (k, k); or NaN."""
    if not 2 <= len(widths) < n_rows:
        return float("nan")
    if np.allclose(widths, 0) or np.allclose(distances, 0):
        return 0.0
    apart = np.where(distances == 0, np.inf, distances)
    return float(np.mean(np.max((widths[:, None] + widths) / apart, axis=1)))
