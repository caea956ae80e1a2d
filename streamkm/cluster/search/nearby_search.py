"""Split-and-merge among neighbours, where there are too many centers to compare all rows with all of them.

As `split_merge`, but rows look at the centers near their last one: what removing a center costs is what its rows lose
at the next of those. Works on the sampled rows, in one process.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.centers.neighbours import Lists, Neighbourhood
from streamkm.cluster.in_memory import LocalBlocks, label_sums
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.rows import Block
from streamkm.cluster.search.split_merge import Splits, split_gains, swaps_of
from streamkm.cluster.totals import Totals

logger = logging.getLogger(__name__)

MOST_ROUNDS = 8
SWAPPED = 8  # clusters for each one that is split at first
STILL_SWAPPED = 256  # and in a round that is worth it: Lloyd's algorithm gains as much on all rows
STEPS = 3  # of Lloyd's algorithm after a round, before it is judged
PROMISED = 5e-3  # share of the objective that swaps should promise, where epochs follow, which find what is less
WORTH = 5e-4  # share of the objective that a round should gain, at least, for another


@dataclass(frozen=True, slots=True)
class _State:
    """A partition and its means."""

    centers: NDArray[np.float64]  # (k, m): means of the clusters
    labels: NDArray[np.int32]  # (n,)
    inertia: float  # of the partition, about its means
    lists: Lists  # that were looked at


def search_nearby(
    whole: Block, pieces: LocalBlocks, start: LloydResult, *, rng: np.random.Generator, promise: float = 0.0
) -> LloydResult:
    """Improve centers by swaps until a round gains little.

    O(n * m * l) a round, with l the centers that a row is compared with.

    `pieces`: the same rows. `start`: near a local optimum. `promise`: float, default 0, share of the objective that a
    round's swaps should promise to gain, at least, for it to be made. Returns LloydResult: with an inertia not above
    that of the given one.
    """
    labels = pieces.labels(start.centers) if start.labels is None else start.labels.handles[0]
    best = _stepped(pieces, start.centers, labels)
    n_swaps = max(1, len(best.centers) // SWAPPED)
    known: Splits = {}
    for round_ in range(MOST_ROUNDS):
        table = NearestCenters.build(best.centers, pieces.dtype, around_origin=True)
        near = Neighbourhood.of(table, best.lists, pieces.executor)
        found, scores, seconds = pieces.nearest_among(near, best.labels, "search")
        weights = whole.weights if len(whole.weights) else 1.0
        d2 = np.maximum(scores + whole.d2norms, 0.0) * weights
        losses = (seconds.astype(np.float64) - scores) * weights
        costs = np.bincount(found, losses, minlength=len(best.centers)).astype(np.float64)
        gains, halves = split_gains(pieces.executor, whole, found, d2, len(best.centers), rng, known)
        swaps = swaps_of(gains, costs, n_swaps, set())
        promised = sum(float(gains[split] - costs[removed]) for split, removed in swaps)
        if len(swaps) * STILL_SWAPPED < len(best.centers) or promised < promise * best.inertia:
            break
        changed = best.centers.copy()
        for split, removed in swaps:
            changed[split], changed[removed] = halves[split]
        tried = _stepped(pieces, changed, _moved_on(pieces, near, found, np.array([removed for _, removed in swaps])))
        for _ in range(STEPS - 1):
            tried = _stepped(pieces, tried.centers, tried.labels, tried.lists)
        logger.debug("round %d: %d swaps, inertia %.6g -> %.6g", round_, len(swaps), best.inertia, tried.inertia)
        gained = best.inertia - tried.inertia
        if gained > 0:
            best = tried
        else:
            n_swaps = len(swaps) // 2
        if n_swaps < 1 or 0 <= gained <= WORTH * best.inertia:
            break
    return replace(start, centers=best.centers, inertia=best.inertia, means=None, labels=None)


def _moved_on(
    pieces: LocalBlocks, near: Neighbourhood, labels: NDArray[np.int32], removed: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Labels, those of removed clusters to the next center near their rows."""
    gone = np.zeros(len(near.columns), np.bool_)
    gone[removed] = True
    rows = np.flatnonzero(gone[labels])
    if not len(rows):
        return labels
    out = labels.copy()
    X = np.asarray(pieces.whole.X)[rows]
    left = near.without(removed)
    cuts = np.array_split(np.arange(len(rows)), 2 * pieces.executor.n_workers)
    tasks = [(X[part], labels[rows[part]]) for part in cuts if len(part)]
    out[rows] = np.concatenate([found for found, _, _ in pieces.executor.each("search", _nearest, tasks, left)])
    return out


def _nearest(
    task: tuple[NDArray[np.float32], NDArray[np.int32]], near: Neighbourhood
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    return near.nearest(*task)


def _stepped(
    pieces: LocalBlocks, centers: NDArray[np.float64], labels: NDArray[np.int32], lists: Lists | None = None
) -> _State:
    """One step of Lloyd's algorithm among neighbours."""
    near = Neighbourhood.of(pieces.table(centers), lists, pieces.executor)
    found = pieces.nearest_among(near, labels, "search")[0]
    whole = pieces.whole
    totals: Totals = label_sums(pieces.executor, whole.X, whole.weights, found, len(centers), "search")
    inertia = max(0.0, pieces.total_d2norm - totals.explained())
    return _State(totals.to_means(fallback=centers), found, inertia, near.lists)
