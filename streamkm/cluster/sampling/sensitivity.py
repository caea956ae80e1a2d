"""Importance of rows to k-means, by which coresets draw them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import add_rows, densified, merged, row_d2
from streamkm.core.matrix import Matrix
from streamkm.sketches.countsketch import CountSketch

ROUNDS = 4  # of drawing rough centers
CENTERS_PER_CLUSTER = 2
FEWEST_CENTERS = 32
WIDEST_SPARSE = 2048  # components in which distances of wider sparse rows are found

Importance = tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]


def sensitivity(
    X: Matrix, weights: NDArray[np.float64], n_clusters: int, draws: Callable[[int], NDArray[np.float64]]
) -> Importance:
    """Bounds of sensitivities: a row's largest share of the objective, for any k centers. O(nnz * k).

    With B rough centers, phi their weighted objective, W the weights' sum, and ``a = 16 (log2 k + 2)``, row x of the
    cluster b gets ``a d2(x) / phi + 2 a phi_b / (W_b phi) + 4 / W_b``: high for outliers, and for rows of spread or
    small clusters. `X`: float32 or float64 (n, m), CSR indices distinct in a row. `weights`: float64 (n,), positive.
    `draws`: from a round's number to uniform numbers in (0, 1), one a row. Returns importance float64 (n,), up to a
    common factor, weights included; labels int32 (n,) of the nearest rough centers; d2 float64 (n,) to them.

    References: Bachem, Lucic and Krause, "Practical coreset constructions for machine learning", arXiv:1703.06476
    (2017), algorithm 2.
    """
    labels, d2 = rough_clusters(X, weights, max(FEWEST_CENTERS, CENTERS_PER_CLUSTER * n_clusters), draws)
    n_centers = int(labels.max()) + 1
    sizes = np.bincount(labels, weights, n_centers)
    costs = np.bincount(labels, weights * d2, n_centers)
    total = float(costs.sum())
    factor = 16 * (np.log2(n_clusters) + 2)
    small = 4 / np.where(sizes > 0, sizes, 1.0)
    if total <= 0:
        return weights * small[labels], labels, d2
    spread = 2 * factor * costs / np.where(sizes > 0, sizes, 1.0) / total
    return weights * (factor * d2 / total + (spread + small)[labels]), labels, d2


def rough_clusters(
    X: Matrix, weights: NDArray[np.float64], n_centers: int, draws: Callable[[int], NDArray[np.float64]]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Nearest of about `n_centers` rough centers, and the squared distances (n,) to them.

    The first center is the mean. Each round draws rows as centers in proportion to weight times squared distance.

    References: Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012), algorithm 2.
    """
    labels = np.zeros(X.shape[0], np.int32)
    d2 = row_d2(X, labels, _mean(X, weights))
    n_found = 1
    for round_ in range(ROUNDS):
        mass = weights * d2
        total = float(mass.sum())
        if total <= 0:
            break
        picked = np.flatnonzero(draws(round_) * total < mass * (n_centers / ROUNDS))
        if not len(picked):
            continue
        centers = densified(X, picked, X.shape[1])
        table = NearestCenters.build(centers, X.dtype)
        new, _ = table.lowest(X)
        new_d2 = row_d2(X, new, table)
        closer = new_d2 < d2
        labels[closer] = new[closer] + n_found
        d2 = np.where(closer, new_d2, d2)
        n_found += len(picked)
    return labels, d2


def measurable(X: Matrix, seed: int) -> Matrix:
    """Rows in the form that distances are computed from: wide sparse ones sketched, others unchanged."""
    if isinstance(X, np.ndarray):
        return X
    if X.shape[1] > WIDEST_SPARSE:
        return merged(CountSketch(WIDEST_SPARSE, seed).apply(X))
    return X if X.has_canonical_format else merged(X)


def _mean(X: Matrix, weights: NDArray[np.float64]) -> NearestCenters:
    """The weighted mean of the rows, as the only center."""
    sums, counts = np.zeros((1, X.shape[1])), np.zeros(1)
    add_rows(X, weights, np.zeros(X.shape[0], np.int32), sums, counts)
    return NearestCenters.build(sums / counts, np.float64)
