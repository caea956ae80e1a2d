"""A map of clusters: places in the plane for some rows, or for the clusters themselves where these are many.

Two or three clusters lie on the plane of their means, where distances are true, and so do more where a plane shows
nearly all of what separates them, and no two of them on top of each other. Others do not fit on any plane: rows are
placed so that neighbours lie side by side, and only that is to be read from it. Arithmetic alone; nothing is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.blas import ONE_BLAS_THREAD

MOST_POINTS = 600
MOST_OF_ROWS = 90  # clusters of which rows are placed; of more, their means are
DIRECTIONS = 30
PERPLEXITY = 20.0
PLANE_SHARE = 0.9  # of the squared distances of the means from each other that a plane shows, to be shown itself,
NEAREST_SHARE = 0.5  # and of the distance of each mean from the one that lies nearest to it in the plane
STEPS, EXAGGERATED_STEPS, EXAGGERATION = 250, 80, 8.0
BISECTIONS = 30
LEAST_EXPONENT, LEAST_CHANCE = -80.0, 1e-9  # numbers too small for a processor's fast way are slow, and change nothing
EQUAL = 1e-12  # variance, as a part of the squares, that is rounding


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Places in the plane.

    Attributes
    ----------
    points : float64 (p, 2)
    labels : int32 (p,)
        The cluster of each.
    of_rows : bool
        Whether points are rows; else each is a cluster.
    by_neighbours : bool
        Whether points lie by their neighbours, and not by a projection.
    """

    points: NDArray[np.float64]
    labels: NDArray[np.int32]
    of_rows: bool
    by_neighbours: bool


def cluster_map(sample: Any, labels: NDArray[np.int32], sizes: NDArray[np.float64]) -> ClusterMap:
    """Place sampled rows, or the means of their clusters, in the plane. O(p^2) for p points, at most about 600.

    Parameters
    ----------
    sample : ndarray or csr_array (s, m)
        Not changed.
    labels : int32 (s,)
        -1: left out.
    sizes : float64 (k,)
        Of the clusters; the largest are placed where they are many.

    Returns
    -------
    ClusterMap
        The same for the same sample, but for rounding.

    References
    ----------
    van der Maaten and Hinton, "Visualizing data using t-SNE", J. Mach. Learn. Res. 9 (2008), algorithm 1.
    """
    with ONE_BLAS_THREAD:
        return _placed(sample, labels, sizes)


def _placed(sample: Any, labels: NDArray[np.int32], sizes: NDArray[np.float64]) -> ClusterMap:
    """See `cluster_map`."""
    valid = np.flatnonzero(labels >= 0)
    present, inverse, counts = np.unique(labels[valid], return_inverse=True, return_counts=True)
    if not len(valid):
        return ClusterMap(np.zeros((0, 2)), np.zeros(0, np.int32), True, False)
    X = _scaled(sample[valid])
    means = _means(X, inverse, counts)
    if len(present) > MOST_OF_ROWS:
        largest = np.sort(np.argsort(-sizes[present], kind="stable")[:MOST_POINTS])
        coordinates = _on_directions(means[largest], _directions(means, counts))
        return ClusterMap(_by_neighbours(coordinates), present[largest].astype(np.int32), False, True)
    rows = _drawn(inverse, counts)
    shown = present[inverse[rows]].astype(np.int32)
    directions = _directions(means, counts)
    coordinates = _on_directions(X[rows], directions)
    if len(present) > 3 and not _on_plane(means, counts, directions):
        return ClusterMap(_by_neighbours(coordinates), shown, True, True)
    if coordinates.shape[1] < 2:  # of what the means do not span, the main direction
        rest = _rest(X, inverse, means, directions)
        coordinates = np.column_stack([coordinates, _on_directions(X[rows], rest)])
    points = np.zeros((len(rows), 2))
    points[:, : coordinates.shape[1]] = coordinates[:, :2]
    return ClusterMap(points, shown, True, False)


def _scaled(X: Any) -> Any:
    """Rows in float64, their largest value 1: squares of large ones stay finite."""
    largest = float(abs(X).max()) if X.shape[0] and X.shape[1] else 0.0
    return X.astype(np.float64) / (largest or 1.0)


def _means(X: Any, inverse: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.float64]:
    members = sp.csr_array(
        (np.ones(len(inverse)), (inverse, np.arange(len(inverse)))), shape=(len(counts), len(inverse))
    )
    sums = members @ X
    return np.asarray(sums.toarray() if sp.issparse(sums) else sums) / counts[:, None]


def _directions(means: NDArray[np.float64], counts: NDArray[np.intp]) -> NDArray[np.float64]:
    """Principal directions of the clusters' means, weighted by their rows (m, q)."""
    weights = counts / counts.sum()
    away = means - weights @ means
    _, values, directions = np.linalg.svd(np.sqrt(weights)[:, None] * away, full_matrices=False)
    kept = values**2 > EQUAL * float((weights @ means**2).sum())
    return directions[kept][:DIRECTIONS].T


def _on_plane(means: NDArray[np.float64], counts: NDArray[np.intp], directions: NDArray[np.float64]) -> bool:
    """Whether the first two directions show nearly all of what separates the means, and keep any two apart."""
    away = means - counts @ means / counts.sum()
    plane = away @ directions[:, :2]
    shown, all_of_it = (float(counts @ (each**2).sum(axis=1)) for each in (plane, away))
    if shown < PLANE_SHARE * all_of_it:
        return False
    d2 = [np.square(each[:, None] - each).sum(axis=2) for each in (plane, away @ directions)]
    np.fill_diagonal(d2[0], np.inf)
    nearest = d2[0].argmin(axis=1)
    rows = np.arange(len(means))
    return bool((d2[0][rows, nearest] >= NEAREST_SHARE**2 * d2[1][rows, nearest]).all())


def _rest(
    X: Any, inverse: NDArray[np.intp], means: NDArray[np.float64], directions: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The direction, across `directions`, in which rows lie apart from the means of their clusters (m, at most 1)."""
    found = np.random.default_rng(0).normal(size=X.shape[1])
    counts = np.bincount(inverse)
    for _ in range(30):  # power iteration
        found -= directions @ (directions.T @ found)
        image = X @ found
        image -= (np.bincount(inverse, image) / counts)[inverse]
        found = X.T @ image - means.T @ np.bincount(inverse, image)
        size = float(np.linalg.norm(found))
        if size <= EQUAL:
            return np.zeros((X.shape[1], 0))
        found /= size
    found -= directions @ (directions.T @ found)
    return found[:, None]


def _on_directions(X: Any, directions: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(X @ directions)


def _drawn(inverse: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows to be shown, in order: of each cluster the first so many, by the square root of its rows, and a few."""
    shares = np.sqrt(counts) + 3
    wanted = np.minimum(counts, np.ceil(MOST_POINTS * shares / shares.sum()).astype(int))
    order = np.argsort(inverse, kind="stable")
    ranks = np.empty(len(inverse), int)
    ranks[order] = np.arange(len(inverse)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.flatnonzero(ranks < wanted[inverse])


def _by_neighbours(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places (n, 2) such that neighbours lie side by side: t-SNE, begun at the first two columns."""
    n_points = len(X)
    chances = _neighbour_chances(X, min(PERPLEXITY, (n_points - 1) / 3)).astype(np.float32)
    places = np.zeros((n_points, 2), np.float32)
    places[:, : min(2, X.shape[1])] = X[:, :2]
    places += np.random.default_rng(0).normal(size=places.shape).astype(np.float32) * 0.01 * (places.std() or 1.0)
    places *= 1e-2 / (places[:, 0].std() or 1.0)
    velocity, gains, rate = np.zeros_like(places), np.ones_like(places), max(50.0, n_points / EXAGGERATION / 4)
    kernel, pull = np.empty_like(chances), np.empty_like(chances)  # once: new memory costs more than the arithmetic
    exaggerated = chances * EXAGGERATION
    for step in range(STEPS):
        early = step < EXAGGERATED_STEPS
        squares = (places**2).sum(axis=1)
        np.matmul(2 * places, places.T, out=pull)
        np.add(squares[:, None], squares, out=kernel)
        kernel -= pull
        np.maximum(kernel, 0, out=kernel)
        kernel += 1
        np.reciprocal(kernel, out=kernel)
        np.fill_diagonal(kernel, 0)
        np.divide(kernel, kernel.sum(), out=pull)
        np.subtract(exaggerated if early else chances, pull, out=pull)
        pull *= kernel
        gradient = 4 * (pull.sum(axis=1)[:, None] * places - pull @ places)
        gains = np.where(gradient * velocity < 0, gains + 0.2, np.maximum(gains * 0.8, 0.01))
        velocity = (0.5 if early else 0.8) * velocity - rate * gains * gradient
        places = places + velocity
        places -= places.mean(axis=0)
    return places.astype(np.float64)


def _neighbour_chances(X: NDArray[np.float64], perplexity: float) -> NDArray[np.float64]:
    """Symmetric chances (n, n) to be neighbours, each row's with the same perplexity before; tiny ones are 0."""
    squares = (X**2).sum(axis=1)
    d2 = np.maximum(squares[:, None] + squares - 2 * X @ X.T, 0)
    itself = np.eye(len(X), dtype=bool)
    d2 -= np.where(itself, np.inf, d2).min(axis=1, keepdims=True)
    d2[itself] = 0
    precision = (len(X) - 1) / np.maximum(d2.sum(axis=1), np.finfo(float).tiny)
    low, high = np.zeros(len(X)), np.full(len(X), np.inf)
    for _ in range(BISECTIONS):
        chances = np.exp(np.maximum(-d2 * precision[:, None], LEAST_EXPONENT))
        chances[itself] = 0
        total = chances.sum(axis=1)
        entropy = np.log(total) + precision * np.einsum("ij,ij->i", chances, d2) / total
        wide = entropy > np.log(max(perplexity, 1.0))
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
        precision = np.where(np.isfinite(high), (low + high) / 2, np.minimum(precision * 2, 1e300))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[chances < LEAST_CHANCE] = 0
    return (chances + chances.T) / (2 * len(X))
