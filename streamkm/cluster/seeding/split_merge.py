"""Local search: moves a center from where its loss costs least to a cluster that deserves two.

Works on the sampled rows, in one process. Each round compares, for all clusters, the cost of removing a center (its
rows fall to their second nearest) with the gain of a split (2-means inside), swaps where that pays, and keeps the swaps
that a few Lloyd steps confirm. With too many centers, rows see only those near their last one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.centers.neighbours import Lists, Neighbourhood
from streamkm.cluster.in_memory import LocalBlocks, count_pieces, label_sums
from streamkm.cluster.lloyd import LloydResult, lloyd
from streamkm.cluster.rows import Block, Totals, drawn_rows, rows_by_label
from streamkm.engine import Executor
from streamkm.kernels.seeding import splitting

logger = logging.getLogger(__name__)

Splits: TypeAlias = dict[bytes, tuple[float, NDArray[np.float64]]]
"""Gains and halves of clusters by their rows."""
SPLIT_STEPS = 6  # of 2-means; the halves are tidied up by Lloyd steps on everything afterwards
SPLIT_TRIALS = 2
TASKS = 4  # for each thread, of clusters to split: they do not take the same time
LLOYD_STEPS = 3  # after a round of swaps, before it is judged


def split_merge(
    whole: Block,
    pieces: Blocks,
    start: LloydResult,
    *,
    max_rounds: int,
    rng: np.random.Generator,
    margin: float = 0.0,
) -> LloydResult:
    """Improve centers by swaps until none pays; the inertia does not rise.

    A round costs an assignment of all rows, ``SPLIT_TRIALS * SPLIT_STEPS`` products of every row with two centers, and
    the Lloyd steps. `whole`: all rows; dense ones around the origin. `pieces`: the same rows, cut for local threads.
    `start`: near a local optimum. `margin`: share of the inertia that a swap must gain beyond its cost, and a round in
    all.

    References: The exchange of centers by removal cost and gain follows Fränti and Kivijärvi, "Randomised local search
    algorithm for the clustering problem", Pattern Analysis & Applications 3 (2000), with both ends chosen by cost
    instead of at random.
    """
    best = lloyd(pieces, start.centers, max_iter=1, tol=0)
    n_swaps = max(1, len(best.centers) // 8)
    tried: set[tuple[int, int]] = set()
    known: Splits = {}
    for round_ in range(max_rounds):
        if len(best.centers) < 3:
            break
        least = margin * best.inertia
        labels, d2, costs = _removal_costs(pieces, best.centers)
        gains, halves = split_gains(pieces.executor, whole, labels, d2, len(best.centers), rng, known)
        swaps = swaps_of(gains, costs + least, n_swaps, tried)
        if not swaps:
            break
        changed = best.centers.copy()
        for split, removed in swaps:
            changed[split], changed[removed] = halves[split]
        result = lloyd(pieces, changed, max_iter=LLOYD_STEPS, tol=0)
        logger.debug("round %d: %d swaps, inertia %.6g -> %.6g", round_, len(swaps), best.inertia, result.inertia)
        if result.inertia < best.inertia - least and len(result.centers) == len(best.centers):
            best = result
            tried.clear()
        else:
            if len(swaps) == 1:
                tried.update(swaps)
            n_swaps = len(swaps) // 2 if len(swaps) > 1 else n_swaps
            if len(tried) >= MAX_FAILURES:
                break
    return best


MAX_FAILURES = 3  # single swaps in a row that promised a gain and gave none


def swaps_of(
    gains: NDArray[np.float64], costs: NDArray[np.float64], n_swaps: int, tried: set[tuple[int, int]]
) -> list[tuple[int, int]]:
    """At most `n_swaps` pairs (cluster to split, cluster to remove) whose gain exceeds the cost, best first.

    `gains`, `costs`: float64 (k,), of splitting and of removing each cluster. `tried`: pairs to leave out.
    """
    swaps: list[tuple[int, int]] = []
    busy: set[int] = set()
    removals = iter(np.argsort(costs, kind="stable").tolist())
    removed = next(removals)
    for split in np.argsort(-gains, kind="stable").tolist():
        while removed in busy or removed == split:
            removed = next(removals, -1)
            if removed < 0:
                return swaps
        if len(swaps) == n_swaps or gains[split] <= costs[removed]:
            break
        if split in busy or (split, removed) in tried:
            continue
        swaps.append((split, removed))
        busy.update((split, removed))
    return swaps


def _removal_costs(
    pieces: Blocks, centers: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Labels (n,), weighted squared distances (n,), and losses of each cluster's rows at their second centers (k,)."""
    table = pieces.executor.share(NearestCenters.build(centers, pieces.dtype, around_origin=True))
    found = pieces.executor.each("search", _losses, pieces.handles, table)
    labels, d2, losses = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return labels, d2, np.bincount(labels, losses, minlength=len(centers)).astype(np.float64)


def _losses(block: Block, table: NearestCenters) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    labels, scores, seconds = table.nearest(block.X)
    return labels, *_d2_and_losses(block, scores, seconds)


def _d2_and_losses(
    block: Block, scores: NDArray[Any], seconds: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weighted squared distances (n,), and how much larger those to the second centers are."""
    weights = block.weights if len(block.weights) else 1.0
    return np.maximum(scores + block.d2norms, 0.0) * weights, (seconds.astype(np.float64) - scores) * weights


def split_gains(
    executor: Executor,
    whole: Block,
    labels: NDArray[np.int32],
    d2: NDArray[np.float64],
    n_clusters: int,
    rng: np.random.Generator,
    known: Splits,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gain of splitting each cluster (k,) and the means of the halves (k, 2, m).

    A cluster with the same rows as a round before is looked up in `known`, which is then updated.
    """
    order, starts = rows_by_label(labels, n_clusters)
    draws = rng.random((n_clusters, SPLIT_TRIALS, 2))
    gains, halves = np.empty(n_clusters), np.empty((n_clusters, 2, whole.X.shape[1]))
    keys = [order[starts[c] : starts[c + 1]].tobytes() for c in range(n_clusters)]
    changed = []
    for c, key in enumerate(keys):
        if key in known:
            gains[c], halves[c] = known[key]
        else:
            changed.append(c)
    n_tasks = count_pieces(executor, whole.X, TASKS)
    tasks = [part for part in np.array_split(np.array(changed, np.int64), n_tasks) if len(part)]
    executor.each("search", split_some, tasks, whole, (order, starts), d2, draws, gains, halves)
    known.clear()
    known.update(zip(keys, zip(gains.tolist(), halves, strict=True), strict=True))
    return gains, halves


def split_some(
    clusters: NDArray[np.int64],
    whole: Block,
    members: tuple[NDArray[np.int64], NDArray[np.int64]],
    d2: NDArray[np.float64],
    draws: NDArray[np.float64],
    gains: NDArray[np.float64],
    halves: NDArray[np.float64],
) -> None:
    """Write gains and halves of some clusters: the best of a few 2-means of each, 0 if none was found."""
    X, (order, starts), found = whole.X, members, np.empty(halves.shape[1:])
    split = splitting.split_dense if isinstance(X, np.ndarray) else splitting.split_csr
    arrays = (np.ascontiguousarray(X),) if isinstance(X, np.ndarray) else (X.indptr, X.indices, X.data)
    for c in clusters:
        rows = order[starts[c] : starts[c + 1]]
        mass = d2[rows].cumsum()
        gains[c], halves[c] = 0.0, 0.0
        if len(rows) > 1 and mass[-1] > 0.0:
            for trial, draw in enumerate(draws[c]):
                seeds = _seeds(mass, draw, uniform=trial % 2 == 0)
                gain = split(*arrays, whole.weights, rows, seeds, SPLIT_STEPS, found)
                if gain > gains[c]:
                    gains[c], halves[c] = gain, found


def _seeds(mass: NDArray[np.float64], draw: NDArray[np.float64], *, uniform: bool) -> NDArray[np.int64]:
    """Two rows to start 2-means from: one drawn by squared distance, the other likewise or uniformly."""
    last = len(mass) - 1
    first, second = drawn_rows(mass, draw).tolist()
    if uniform:
        second = min(int(draw[1] * (last + 1)), last)
    return np.array([first, second if second != first else (first + 1) % (last + 1)])


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
    """Improve centers by swaps among neighbours until a round gains little. O(n * m * l) a round, l centers a row.

    `pieces`: the same rows. `start`: near a local optimum. `promise`: least estimated share of the objective that a
    round's swaps gain. The inertia does not rise.
    """
    labels = pieces.labels(start.centers) if start.labels is None else start.labels.handles[0]
    best = _stepped(pieces, start.centers, labels)
    n_swaps = max(1, len(best.centers) // SWAPPED)
    known: Splits = {}
    for round_ in range(MOST_ROUNDS):
        table = NearestCenters.build(best.centers, pieces.dtype, around_origin=True)
        near = Neighbourhood.of(table, best.lists, pieces.executor)
        found, scores, seconds = pieces.nearest_among(near, best.labels, "search")
        d2, losses = _d2_and_losses(whole, scores, seconds)
        costs = np.bincount(found, losses, minlength=len(best.centers)).astype(np.float64)
        gains, halves = split_gains(pieces.executor, whole, found, d2, len(best.centers), rng, known)
        swaps = swaps_of(gains, costs, n_swaps, set())
        promised = sum(float(gains[split] - costs[removed]) for split, removed in swaps)
        if len(swaps) * STILL_SWAPPED < len(best.centers) or promised < promise * best.inertia:
            break
        changed = best.centers.copy()
        for split, removed in swaps:
            changed[split], changed[removed] = halves[split]
        labels = _moved_on(pieces, near, found, np.array([removed for _, removed in swaps]))
        del near  # a step lays out lists of its own
        tried = _stepped(pieces, changed, labels)
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
    """Move the labels of removed clusters to the next center near their rows."""
    rows = np.flatnonzero(np.isin(labels, removed))
    if not len(rows):
        return labels
    out = labels.copy()
    X = np.asarray(pieces.whole.X)[rows]
    left = near.without(removed)
    cuts = np.array_split(np.arange(len(rows)), 2 * pieces.executor.n_workers)
    tasks = [(X[part], labels[rows[part]]) for part in cuts if len(part)]
    out[rows] = np.concatenate(pieces.executor.each("search", lambda task: left.nearest(*task)[0], tasks))
    return out


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
