"""Places and colours for figures: clusters on a map, bands of a stream's clusters, and names beside each other.

Up to three clusters, and rows of two features, lie on the plane of the clusters' means, where distances are true.
Others do not fit on a plane: only neighbours on the map are meaningful. The means of many clusters are placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits

from streamkm.cluster.tracking.transition import Event, UpdateRows
from streamkm.core.process import ONE_BLAS_THREAD

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
MOST_BANDS = 30  # clusters with a band of their own in a river; all others are one grey band
REST = -1
SPREADING_STEPS = 1000
EQUAL = 1e-12  # variance, as a part of the squares, that is rounding


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Points in the plane."""

    points: NDArray[np.float64]  # (p, 2)
    labels: NDArray[np.int32]  # (p,): the cluster of each
    of_rows: bool  # whether points are rows; else each is a cluster
    by_neighbours: bool  # whether points lie by their neighbours, and not by a projection


def cluster_map(sample: Any, labels: NDArray[np.int32], sizes: NDArray[np.float64]) -> ClusterMap:
    """Place sampled rows, or the means of their clusters, in the plane. O(p^2) for p points, at most about 500.

    `sample` (s, m) is not changed; `labels` of -1 are left out; the largest of many `sizes` are placed.

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
    """Rows to be shown, in order: the first of each cluster, a few and more by the square root of its rows."""
    shares = np.sqrt(counts) + 3
    wanted = np.minimum(counts, np.ceil(MOST_POINTS * shares / shares.sum()).astype(int))
    order = np.argsort(owners, kind="stable")
    return np.sort(
        np.concatenate([each[:n] for each, n in zip(np.split(order, np.cumsum(counts)[:-1]), wanted, strict=True)])
    )


def _on_directions(X: Any, owners: NDArray[np.intp]) -> NDArray[np.float64]:
    """Places on the principal directions of the clusters' means (n, at least 2), then of rows about their means."""
    X = X if sp.issparse(X) else X - X.mean(axis=0)
    # products of rows cost the same for any number of features
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
    """Places (n, 2) of t-SNE, which keeps neighbours side by side, begun at the first two columns."""
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
    """Colours of clusters: those of `COLOURS` for the largest, grey for others."""
    found = [GREY] * np.size(sizes)
    for rank, cluster in enumerate(np.argsort(-np.asarray(sizes, np.float64), kind="stable")[: len(COLOURS)]):
        found[cluster] = COLOURS[rank]
    return found


def text_on(colour: str) -> str:
    """The colour of text on a background."""
    red, green, blue = bytes.fromhex(colour[1:])
    return DARK if 0.3 * red + 0.6 * green + 0.1 * blue > 110 else LIGHT


def band_shares(updates: Sequence[UpdateRows], lineage: Sequence[Event]) -> tuple[list[int], NDArray[np.float64]]:
    """Bands from bottom to top: ids, with `REST` last if needed, and their shares (bands, updates)."""
    everyone = _in_families(sorted({int(id_) for each in updates for id_ in each.ids}), lineage)
    where = {id_: place for place, id_ in enumerate(everyone)}
    shares = np.zeros((len(everyone), len(updates)))
    for number, each in enumerate(updates):
        total = float(each.rows.sum())
        shares[[where[int(id_)] for id_ in each.ids], number] = each.rows / total if total else 0.0
    largest = np.sort(np.argsort(-shares.max(axis=1), kind="stable")[:MOST_BANDS])
    largest = largest[shares[largest].any(axis=1)]
    ids, bands = [everyone[place] for place in largest], shares[largest]
    rest = np.delete(shares, largest, axis=0).sum(axis=0)
    return ([*ids, REST], np.vstack([bands, rest])) if rest.any() else (ids, bands)


def _in_families(ids: Sequence[int], lineage: Sequence[Event]) -> list[int]:
    """Ids with each cluster beside an earlier one that it was split from or joined."""
    beside: dict[int, int] = {}
    for event in lineage:
        if event.event in ("split", "joined") and event.other is not None:
            beside.setdefault(max(event.id, event.other), min(event.id, event.other))
    order: list[int] = []
    for id_ in ids:
        order.insert(order.index(beside[id_]) + 1 if beside.get(id_) in order else len(order), id_)
    return order


def apart(places: NDArray[np.float64], sizes: NDArray[np.float64], frame: tuple[float, ...]) -> NDArray[np.float64]:
    """Move boxes as little as possible, until none covers another and all are in a frame. O(n^2) a step.

    Middles `places` and `sizes` are float64 (n, 2); `frame`: left, bottom, right, top. Returns middles.
    """
    low, high = np.array(frame[:2]) + sizes / 2, np.array(frame[2:]) - sizes / 2
    at = np.clip(places, low, np.maximum(low, high))
    rows, columns = np.triu_indices(len(at), 1)
    needed = (sizes[rows] + sizes[columns]) / 2
    for _ in range(SPREADING_STEPS):
        away = at[columns] - at[rows]
        lacking = needed - np.abs(away)
        clash = np.flatnonzero((lacking > 0.01).all(axis=1))
        if not len(clash):
            break
        for pair in clash.tolist():
            axis = int(np.argmin(lacking[pair]))
            step = 0.6 * lacking[pair, axis] * (1 if away[pair, axis] >= 0 else -1)
            at[columns[pair], axis] += step
            at[rows[pair], axis] -= step
        at = np.clip(at, low, np.maximum(low, high))
    return at
