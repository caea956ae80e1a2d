"""A map of clusters: places in the plane for some rows, or for the clusters where these are many, and their colours.

Two or three clusters, and rows of two features, lie on the plane of the clusters' means, where distances are true.
Others do not fit on any plane: rows are placed so that neighbours lie side by side, and only that is to be read from
it. Nothing is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from streamkm.core.blas import ONE_BLAS_THREAD

# Okabe and Ito's colours, then others of other lightness: each two differ for every kind of colour vision
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5195", "#D8C800", "#782d00", "#00d8be",
    "#5a87ff", "#5a3c5a", "#691e96", "#964b3c", "#4bd287", "#78d2ff", "#78c3c3", "#5af096", "#2d4bc3", "#2d69e1",
)  # fmt: skip
GREY = "#9a9a9a"
DARK, LIGHT = "#111111", "#fefefe"  # text on a colour; pages replace neither
MOST_POINTS = 500
MOST_OF_ROWS = 90  # clusters of which rows are placed; of more, their means are
DIRECTIONS = 30
PERPLEXITY, EXAGGERATION, STEPS = 20.0, 1.5, 250  # of t-SNE; exaggerated throughout, groups are compact
WITHIN = 1e-3  # weight of directions within clusters, which fill the plane where the means do not
EQUAL = 1e-12  # variance, as a part of the squares, that is rounding


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Places in the plane."""

    points: NDArray[np.float64]  # (p, 2)
    labels: NDArray[np.int32]  # (p,): the cluster of each
    of_rows: bool  # whether points are rows; else each is a cluster
    by_neighbours: bool  # whether points lie by their neighbours, and not by a projection


def cluster_map(sample: Any, labels: NDArray[np.int32], sizes: NDArray[np.float64]) -> ClusterMap:
    """Places of sampled rows, or of the means of their clusters, in the plane. O(p^2) for p points, at most about 500.

    `sample`: ndarray or csr_array (s, m), not changed. `labels`: int32 (s,), -1: left out. `sizes`: float64 (k,); the
    largest clusters are placed where they are many.

    References: van der Maaten and Hinton, "Visualizing data using t-SNE", J. Mach. Learn. Res. 9 (2008). Bohm, Berens
    and Kobak, "Attraction-repulsion spectrum in neighbor embeddings", J. Mach. Learn. Res. 23 (2022), on exaggeration.
    """
    valid = np.flatnonzero(labels >= 0)
    present, owners, counts = np.unique(labels[valid], return_inverse=True, return_counts=True)
    if not len(valid):
        return ClusterMap(np.zeros((0, 2)), np.zeros(0, np.int32), True, False)
    X, of_rows = sample[valid], len(present) <= MOST_OF_ROWS
    X = X.astype(np.float64) / (float(abs(X).max() if X.shape[1] else 0.0) or 1.0)  # squares of large ones stay finite
    if of_rows:
        rows = _drawn(owners, counts)
        X, owners = X[rows], owners[rows]
    else:
        shares = sp.csr_array((1 / counts[owners], (owners, np.arange(len(owners)))))
        largest = np.sort(np.argsort(-sizes[present], kind="stable")[:MOST_POINTS])
        X, present, owners = (shares @ X)[largest], present[largest], np.arange(len(largest))
    by_neighbours = min(len(present) - 1, X.shape[1]) > 2
    with ONE_BLAS_THREAD:
        places = _on_directions(X, owners)
        places = _by_neighbours(places) if by_neighbours else places[:, :2]
    return ClusterMap(places, present[owners].astype(np.int32), of_rows, by_neighbours)


def _drawn(owners: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows to be shown, in order: of each cluster the first so many, by the square root of its rows, and a few."""
    shares = np.sqrt(counts) + 3
    wanted = np.minimum(counts, np.ceil(MOST_POINTS * shares / shares.sum()).astype(int))
    order = np.argsort(owners, kind="stable")
    return np.sort(
        np.concatenate([each[:n] for each, n in zip(np.split(order, np.cumsum(counts)[:-1]), wanted, strict=True)])
    )


def _on_directions(X: Any, owners: NDArray[np.intp]) -> NDArray[np.float64]:
    """Places on the principal directions of the clusters' means (n, at least 2), and then of rows about their means.

    By products of rows, which cost the same for any number of features.
    """
    X = X if sp.issparse(X) else X - X.mean(axis=0)
    products = np.asarray((X @ X.T).toarray() if sp.issparse(X) else X @ X.T)
    members = (owners[:, None] == np.arange(owners.max() + 1)).astype(np.float64)
    same, n = (members / members.sum(axis=0)) @ members.T, len(owners)
    weights = same - 1 / n + WITHIN * (np.eye(n) - same)
    values, vectors = np.linalg.eigh(weights @ products @ weights)
    n_wanted = max(2, min(members.shape[1] - 1, DIRECTIONS))
    scales = np.sqrt(np.maximum(values[::-1][:n_wanted], EQUAL * max(float(np.trace(products)), EQUAL)))
    found = products @ (weights @ vectors[:, ::-1][:, :n_wanted]) / scales
    return np.pad(found, ((0, 0), (0, max(0, 2 - found.shape[1]))))


def _by_neighbours(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places (n, 2) such that neighbours lie side by side: t-SNE, begun at the first two columns."""
    from sklearn.manifold import TSNE

    start = X[:, :2] - X[:, :2].mean(axis=0)
    start *= 1e-4 / (start[:, 0].std() or 1.0)
    made = TSNE(
        init=start.astype(np.float32), perplexity=min(PERPLEXITY, (len(X) - 1) / 3), early_exaggeration=EXAGGERATION,
        max_iter=STEPS, random_state=0,
    )  # fmt: skip
    with threadpool_limits(1, user_api="openmp"):  # the last bits of sums by threads vary
        return np.asarray(made.fit_transform(X), np.float64)


def cluster_colours(sizes: ArrayLike) -> list[str]:
    """Give each cluster its colour: those of `COLOURS` to the largest, grey to the others."""
    found = [GREY] * np.size(sizes)
    for rank, cluster in enumerate(np.argsort(-np.asarray(sizes, np.float64), kind="stable")[: len(COLOURS)]):
        found[cluster] = COLOURS[rank]
    return found


def text_on(colour: str) -> str:
    """The colour of text that is read on another one."""
    red, green, blue = bytes.fromhex(colour[1:])
    return DARK if 0.3 * red + 0.6 * green + 0.1 * blue > 110 else LIGHT
