"""Clusterings of the same rows into ever more clusters, each grown from the one before.

The cluster that gains most by two centers instead of one is split, and a few steps of Lloyd's algorithm follow. Those
steps are lazy: a center is moved only once that pays, and rows are compared with the centers that moved, not with all.
Works on sampled rows, in one process.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import densified
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import NO_WEIGHTS, Block, add_rows, row_d2norms
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.kernels.cluster.totals import row_products, weighted_sum
from streamkm.kernels.seeding import splitting

logger = logging.getLogger(__name__)

PIECES = 8  # that the rows are cut into, for threads
STEPS = 3  # of Lloyd after a split or a round of swaps
MOVE_TOL = 1e-3  # a center stays where it is while moving it would gain no more than this share of a cluster's d2
GAIN_TOL = 0.1  # a split is looked for again once this share of a cluster's rows has come or gone
SPLIT_STEPS = 6
SPLIT_TRIALS = 2
MAX_FAILURES = 3  # rounds of swaps in a row that gave nothing
NEGLIGIBLE = 1e-9  # gain, as a share of the squared norms, that is rounding


@dataclass(slots=True)
class _State:
    """A clustering on its way; everything a failed round of swaps must put back.

    `scores` are squared distances to the own center less the squared norm of the row, in the dtype of the products;
    `centers` are those that made the labels, `moved` those that were moved since; `sums` and `counts` are exact for the
    labels. `halves` (k, 2, m) and `gains` are of the best known split of each cluster; `churn` is the weight of the
    rows that came or went since it was found, infinite where none is known.
    """

    labels: NDArray[np.int32]
    scores: NDArray[Any]
    centers: NDArray[np.float64]
    moved: NDArray[np.bool_]
    sums: NDArray[np.float64]
    counts: NDArray[np.float64]
    gains: NDArray[np.float64]
    halves: NDArray[np.float64]
    churn: NDArray[np.float64]

    def copy(self) -> _State:
        return _State(*(getattr(self, name).copy() for name in self.__slots__))


class Growing:
    """A clustering that grows.

    Parameters
    ----------
    executor : Executor
        Of this process.
    block : Block of n rows
        Dense rows around the origin. Entries of a CSR row may repeat an index.
    centers : float64 (k, m)
        Where to start.
    rng : Generator
        Of the rows that splits start from.
    """

    def __init__(
        self, executor: Executor, block: Block, centers: NDArray[np.float64], *, rng: np.random.Generator
    ) -> None:
        self._executor, self._block, self._rng = executor, block, rng
        cuts = np.unique(np.linspace(0, block.n_rows, PIECES + 1).astype(int))
        self._pieces = [(slice(start, stop), block.X[start:stop]) for start, stop in pairwise(cuts)]
        self._total_d2norm = block.total_d2norm()
        n_clusters, n_components = centers.shape
        self._state = _State(
            np.full(block.n_rows, -1, np.int32),
            np.full(block.n_rows, np.inf, block.X.dtype),
            centers.copy(),
            np.ones(n_clusters, np.bool_),
            np.zeros((n_clusters, n_components)),
            np.zeros(n_clusters),
            np.zeros(n_clusters),
            np.zeros((n_clusters, 2, n_components)),
            np.full(n_clusters, np.inf),
        )
        self.settle(2 * STEPS)

    @property
    def n_clusters(self) -> int:
        """Clusters, k."""
        return len(self._state.centers)

    @property
    def labels(self) -> NDArray[np.int32]:
        """Labels (n,); do not write to them."""
        return self._state.labels

    @property
    def inertia(self) -> float:
        """Sum of squared distances of the rows to the means of their clusters."""
        state = self._state
        return max(0.0, self._total_d2norm - float(np.sum(_squares(state.sums) / _at_least_some(state.counts))))

    def grow(self, n_clusters: int) -> None:
        """Split until there are `n_clusters`, or until nothing is left to split: fewer rows differ then.

        Where many clusters are missing, several are split at a time, an eighth of all at most.
        """
        tries = 0
        while self.n_clusters < n_clusters and tries < MAX_FAILURES:
            self._find_splits()
            state = self._state
            wanted = min(n_clusters - self.n_clusters, max(1, self.n_clusters // 8))
            best = np.argsort(-state.gains, kind="stable")[:wanted]
            best = best[state.gains[best] > NEGLIGIBLE * self._total_d2norm]
            if not len(best):
                tries += 1
                state.churn[:] = np.inf  # with other draws
                continue
            tries = 0
            k, n_new = self.n_clusters, len(best)
            self._state = _State(
                state.labels,
                state.scores,
                np.concatenate([state.centers, np.zeros((n_new, state.centers.shape[1]))]),
                np.concatenate([state.moved, np.zeros(n_new, np.bool_)]),
                np.concatenate([state.sums, np.zeros((n_new, state.sums.shape[1]))]),
                np.concatenate([state.counts, np.zeros(n_new)]),
                np.concatenate([state.gains, np.zeros(n_new)]),
                np.concatenate([state.halves, np.zeros((n_new, *state.halves.shape[1:]))]),
                np.concatenate([state.churn, np.zeros(n_new)]),
            )
            self._place(best, np.arange(k, k + n_new))
            self.settle(STEPS)

    def settle(self, max_steps: int) -> None:
        """Run lazy steps of Lloyd's algorithm until no center is worth moving, or so many."""
        for _ in range(max_steps):
            if not self._state.moved.any():
                break
            self._step()

    def search(self, max_rounds: int) -> None:
        """Swap: merge clusters that are hardly missed, split others instead; keep what lowers the inertia.

        See `streamkm.cluster.search.split_merge`.
        """
        n_swaps, failures = max(1, self.n_clusters // 8), 0
        for _ in range(max_rounds):
            if self.n_clusters < 3 or failures == MAX_FAILURES:
                break
            self._find_splits()
            splits, removed = self._swaps(n_swaps)
            if not len(splits):
                break
            before, inertia = self._state.copy(), self.inertia
            self._place(splits, removed)
            self.settle(STEPS)
            logger.debug("%d clusters, %d swaps: %.6g -> %.6g", self.n_clusters, len(splits), inertia, self.inertia)
            if self.inertia < inertia:
                failures = 0
            else:
                self._state = before
                self._state.churn[splits] = np.inf  # look for another split of these
                failures += 1
                n_swaps = max(1, len(splits) // 2)

    def _place(self, splits: NDArray[np.intp], others: NDArray[np.intp]) -> None:
        """Put one half of each split cluster in its own place and one in that of another."""
        state = self._state
        state.centers[splits], state.centers[others] = state.halves[splits, 0], state.halves[splits, 1]
        for places in (splits, others):
            state.moved[places] = True
            state.gains[places] = 0
            state.churn[places] = np.inf

    def _step(self) -> None:
        """Assign rows anew as far as moved centers may matter, then move the centers that are worth it."""
        state = self._state
        table = self._table(state.centers)
        positions = np.flatnonzero(state.moved)
        few = None if 3 * len(positions) > len(state.moved) else self._table(state.centers[positions])
        found = self._executor.each("grow", _nearest, self._pieces, state, table, few, positions)
        labels = np.concatenate([part for part, _ in found])
        state.scores = np.concatenate([part for _, part in found])
        changed = np.flatnonzero(labels != state.labels)
        before, after = state.labels[changed], labels[changed]
        rows, weights = self._block.X[changed], self._weights(changed)
        add_rows(rows, -weights, before, state.sums, state.counts)
        add_rows(rows, weights, after, state.sums, state.counts)
        for part, own in ((before[before >= 0], weights[before >= 0]), (after, weights)):
            state.churn += np.bincount(part, own, minlength=len(state.churn))
        state.labels = labels
        self._move_centers()

    def _move_centers(self) -> None:
        state = self._state
        state.counts[np.bincount(state.labels, minlength=len(state.counts)) == 0] = 0.0  # not what rounding left
        means = state.sums / _at_least_some(state.counts)[:, None]
        inertia = max(0.0, self._total_d2norm - float(weighted_sum(state.counts, _squares(means))))
        away = means - state.centers
        gains = state.counts * _squares(away)
        state.moved = gains > MOVE_TOL * inertia / len(gains)
        state.centers[state.moved] = means[state.moved]
        empty = np.flatnonzero(state.counts == 0)
        if len(empty):  # to the farthest rows
            d2 = state.scores + self._block.d2norms
            farthest = np.argsort(-d2, kind="stable")[: len(empty)]
            farthest = farthest[d2[farthest] > NEGLIGIBLE * self._block.d2norms[farthest]]
            state.centers[empty[: len(farthest)]] = densified(self._block.X, farthest, means.shape[1])
            state.moved[empty[: len(farthest)]] = True

    def _find_splits(self) -> None:
        """Look for the best split of every cluster whose known one is out of date."""
        state = self._state
        stale = np.flatnonzero(state.churn > GAIN_TOL * state.counts)
        order = np.argsort(state.labels, kind="stable")
        starts = np.searchsorted(state.labels[order], np.arange(self.n_clusters + 1))
        draws = self._rng.random((len(stale), SPLIT_TRIALS, 2))
        tasks = [(order[starts[c] : starts[c + 1]], draws[at]) for at, c in enumerate(stale.tolist())]
        d2 = np.maximum(state.scores + self._block.d2norms, 0.0)
        for c, (gain, halves) in zip(stale, self._executor.each("grow", _split, tasks, self._block, d2), strict=True):
            state.gains[c], state.halves[c] = gain, halves
        state.churn[stale] = 0

    def _swaps(self, n_swaps: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Clusters to split, and for each one to remove, such that the gain exceeds the cost; best first."""
        state = self._state
        table = self._table(state.centers)
        losses = np.concatenate(self._executor.each("grow", _losses, self._pieces, table))
        costs = np.bincount(state.labels, losses * self._weights(slice(None)), minlength=self.n_clusters)
        splits: list[int] = []
        removed: list[int] = []
        cheapest = np.argsort(costs, kind="stable").tolist()
        for split in np.argsort(-state.gains, kind="stable").tolist():
            busy = {*splits, *removed, split}
            other = next((c for c in cheapest if c not in busy), None)
            if len(splits) == n_swaps or other is None or state.gains[split] <= costs[other]:
                break
            if split not in removed:
                splits.append(split)
                removed.append(other)
        return np.array(splits, np.intp), np.array(removed, np.intp)

    def _weights(self, rows: NDArray[np.intp] | slice) -> NDArray[np.float64]:
        """Weights of some rows."""
        weights = self._block.weights
        return weights[rows] if len(weights) else np.ones(self._block.n_rows)[rows]

    def _table(self, centers: NDArray[np.float64]) -> NearestCenters:
        return NearestCenters.build(centers, self._block.X.dtype, around_origin=True)


def around_mean(block: Block) -> Block:
    """Dense rows less their mean: float32 distances between rows far from the origin would be noise.

    CSR rows as they are.
    """
    if not isinstance(block.X, np.ndarray):
        return block
    X = (block.X - block.X.mean(axis=0, dtype=np.float64)).astype(block.X.dtype)
    return Block(X, row_d2norms(X), block.weights)


def _nearest(
    piece: tuple[slice, Matrix],
    state: _State,
    table: NearestCenters,
    few: NearestCenters | None,
    positions: NDArray[np.intp],
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Labels and scores of a piece of rows.

    A row whose center did not move can only change to one that did; the others are compared with all.
    """
    rows, X = piece
    if few is None:
        labels, scores = table.lowest(X)
        return labels, scores
    near, scores, _ = few.nearest(X)
    before, own = state.labels[rows], state.scores[rows]
    labels = np.where(scores < own, positions[near], before).astype(np.int32)
    scores = np.minimum(scores, own)
    anew = np.flatnonzero(state.moved[before])
    if len(anew):
        labels[anew], scores[anew] = table.lowest(X[anew])
    return labels, scores


def _squares(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared norms of rows (k, m)."""
    out = np.empty(len(X))
    row_products(X, X, out)
    return out


def _losses(piece: tuple[slice, Matrix], table: NearestCenters) -> NDArray[np.float64]:
    """The increase of each row's squared distance at its second nearest center."""
    _, scores, seconds = table.nearest(piece[1])
    return seconds.astype(np.float64) - scores


def _split(
    task: tuple[NDArray[np.int64], NDArray[np.float64]], block: Block, d2: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """The best of a few 2-means of one cluster's rows: gain, and means of the halves (2, m).

    One seed is drawn by squared distance to the center, the other uniformly or by squared distance to the first, in
    turn.
    """
    rows, draws = task
    n_components = block.X.shape[1]
    weights = block.weights[rows] if len(block.weights) else NO_WEIGHTS
    best_gain, best = 0.0, np.zeros((2, n_components))
    mass = np.cumsum(_weighted(d2[rows], weights))
    if len(rows) < 2 or mass[-1] <= 0:
        return best_gain, best
    X = block.X[rows]
    everywhere = np.arange(len(rows))
    for trial, (far, other) in enumerate(draws):
        first = _drawn(mass, far)
        if trial % 2 == 0:
            second = int(other * len(rows))
        else:
            seed = NearestCenters.build(densified(X, np.array([first]), n_components), X.dtype, around_origin=True)
            away = np.maximum(seed.scores(X)[:, 0] + block.d2norms[rows], 0.0)
            away[first] = 0
            second = _drawn(np.cumsum(_weighted(away, weights)), other)
        if first == second:
            continue
        pair, halves = np.array([first, second]), np.zeros_like(best)
        if isinstance(X, np.ndarray):
            gain = splitting.split_dense(X, weights, everywhere, pair, SPLIT_STEPS, halves)
        else:
            gain = splitting.split_csr(X.indptr, X.indices, X.data, weights, everywhere, pair, SPLIT_STEPS, halves)
        if gain > best_gain:
            best_gain, best = gain, halves
    return best_gain, best


def _weighted(d2: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[Any]:
    return d2 * weights if len(weights) else d2


def _at_least_some(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts to divide by: 1 for clusters without rows."""
    return np.where(counts > 0, counts, 1.0)


def _drawn(mass: NDArray[np.float64], draw: float) -> int:
    """The place at which a share `draw` of the running total `mass` is reached."""
    return int(np.searchsorted(mass, draw * mass[-1], side="right").clip(0, len(mass) - 1))
