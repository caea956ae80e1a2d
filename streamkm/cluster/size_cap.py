"""Clusters that are too large, split in parts of about equal weight. Rows are in memory; reads no source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import NO_WEIGHTS, add_rows, row_d2
from streamkm.cluster.spherical import Placing
from streamkm.cluster.totals import Totals
from streamkm.core.matrix import Matrix

FILL = 0.75  # of the cap that a part is to have: the halves of its means' bisector are not quite equal
STEPS = 4  # of two means in equal halves


@dataclass(frozen=True, slots=True)
class SizeCap:
    """How large clusters may be, and what keeping that cost.

    Attributes
    ----------
    rows : float
        At most, in a cluster, or their weight.
    n_clusters_before : int
        That were found, before some were split.
    inertia_before : float
        Of them.
    largest_before : float
        Rows of the largest of them.
    largest : float
        Of the clusters that are the result: more than `rows` where rows that are equal cannot be split.
    """

    rows: float
    n_clusters_before: int
    inertia_before: float
    largest_before: float
    largest: float


def cap_rows(max_cluster_size: float, total_weight: float, n_clusters: int) -> float:
    """Rows that a cluster may have: so many, of an int; of a float so many times the mean of the clusters."""
    if isinstance(max_cluster_size, int):
        return float(max_cluster_size)
    return max(1.0, max_cluster_size * total_weight / n_clusters)


def most_clusters(max_cluster_size: float, n_rows: float | None, n_clusters: int) -> int:
    """Clusters at most, with those that splitting adds: what memory is planned for.

    Parameters
    ----------
    n_rows : float or None
        Or their weight; None where neither is known.
    """
    if not isinstance(max_cluster_size, int):
        parts = n_clusters / (FILL * max_cluster_size)
    else:
        parts = n_clusters if n_rows is None else n_rows / (FILL * max_cluster_size)
    most = n_clusters + int(np.ceil(parts))
    return most if n_rows is None else max(n_clusters, min(most, int(n_rows)))


def n_parts(size: float, cap: float) -> int:
    """Parts that a cluster of a size above the cap is split in."""
    return max(2, int(np.ceil(size / (FILL * cap))))


def parts_of(X: Matrix, weights: NDArray[np.float64], n_wanted: int, placed: Placing) -> NDArray[np.float64]:
    """Centers of parts of about equal weight (at most n_wanted, d): halves of halves. O(log(p) * r * d).

    Parameters
    ----------
    X : ndarray or csr_array (r, d)
        Rows of one cluster.
    weights : float64 (r,) or (0,)
    n_wanted : int
    placed : callable
        What becomes of means.

    Returns
    -------
    centers : float64 (p, d)
        One only where all rows are equal. In the order of the halves; depends on rows and weights alone.
    """
    todo, done = [(np.arange(X.shape[0]), n_wanted)], []
    while todo:
        rows, wanted = todo.pop()
        part, heavy = X[rows], weights[rows] if len(weights) else weights
        mean = _mean(part, heavy)
        first = None if wanted < 2 else _half(part, heavy, mean, (wanted // 2) / wanted)
        if first is None:
            done.append(mean)
        else:
            todo += [(rows[~first], wanted - wanted // 2), (rows[first], wanted // 2)]
    return placed(np.concatenate(done))


def _half(X: Matrix, weights: NDArray[np.float64], mean: NDArray[np.float64], share: float) -> NDArray[np.bool_] | None:
    """Rows of the first of two parts, of about this share of the weight; None where all rows are equal.

    Two means, begun at the row farthest from the mean and at that farthest from it, each of which gets its share of the
    rows: those that lie most on its side.
    """
    far = int(np.argmax(_d2(X, mean)))
    one = _mean(X[[far]], NO_WEIGHTS)
    d2 = _d2(X, one)
    other = _mean(X[[int(np.argmax(d2))]], NO_WEIGHTS)
    if d2.max() <= 0:
        return None
    first = np.zeros(X.shape[0], np.bool_)
    for _ in range(STEPS):
        sides = _d2(X, one) - _d2(X, other)
        order = np.argsort(sides, kind="stable")
        carried = np.cumsum(weights[order]) if len(weights) else np.arange(1.0, len(order) + 1)
        n_first = int(np.searchsorted(carried, share * carried[-1], side="right"))
        n_first = min(max(n_first, 1), len(order) - 1)
        first = np.zeros(len(order), np.bool_)
        first[order[:n_first]] = True
        heavy = (weights[first], weights[~first]) if len(weights) else (NO_WEIGHTS, NO_WEIGHTS)
        one, other = _mean(X[first], heavy[0]), _mean(X[~first], heavy[1])
    return first


def _mean(X: Matrix, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of rows (1, d); of the rows as if they weighed alike where none has a weight."""
    totals = Totals.zeros(1, X.shape[1])
    if len(weights) and not weights.any():
        weights = NO_WEIGHTS
    add_rows(X, weights, np.zeros(X.shape[0], np.int32), totals.sums, totals.counts)
    return totals.means(fallback=np.zeros((1, X.shape[1])))


def _d2(X: Matrix, center: NDArray[np.float64]) -> NDArray[np.float64]:
    return row_d2(X, np.zeros(X.shape[0], np.int32), NearestCenters.build(center, np.float64))
