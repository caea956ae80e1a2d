"""Lloyd's algorithm on blocks: the loop, its stopping rule and its acceleration; and its steps on sampled rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import BlockLabels, Blocks
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock, HeldRows
from streamkm.cluster.in_memory import LocalBlocks, label_sums
from streamkm.cluster.rows import Block, densified, inertia_of, merged, row_d2
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.passes import Map, outputs
from streamkm.kernels.cluster import totals as kernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LloydResult:
    """The state of Lloyd's algorithm when it stopped."""

    centers: NDArray[np.float64]  # (k, m)
    inertia: float  # sum of squared distances of the last step's assignment to the centers that made it
    n_iter: int
    converged: bool  # whether the stopping rule ended it, not `max_iter`
    # tuple of float, inertia before each update; of an accelerated run, the lowest so far, about the clusters' own
    # means
    history: tuple[float, ...]
    # (k, m): of an accelerated run that may go on: the means that the best step left; `centers` are ahead of them
    means: NDArray[np.float64] | None = None
    pace: int = 0  # steps since the acceleration began anew
    # of an accelerated run with many centers: those that the last step found. The next step takes them over
    labels: BlockLabels | None = None


MOST_MOMENTUM = 0.8
"""Largest share of its last step by which an accelerated run extrapolates a mean."""

MOST_WAITING = 4
"""Rows considered together for each cluster that lost its own, if blocks have more."""

WINDOW = 2
"""Steps over which an accelerated run must lower the inertia by more than `tol`: single ones may be short."""


def lloyd(
    blocks: Blocks,
    start: NDArray[np.float64] | LloydResult,
    *,
    max_iter: int,
    tol: float,
    accelerated: bool = False,
    on_step: Callable[[LloydResult], None] | None = None,
    placed: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> LloydResult:
    """Run Lloyd's algorithm: O(n * m * k) a step for dense blocks, O(nnz * k) for sparse ones.

    A cluster that loses all its rows moves to the row farthest from its center. Fewer than k centers come back if the
    data have fewer distinct rows.

    `start`: centers, or a state to resume from. `tol`: stop when a step, or `WINDOW` accelerated ones, lower the
    inertia by no more than this share; 0: at the fixed point. `accelerated`: extrapolate every mean by a growing share
    of its last step, Nesterov's sequence up to `MOST_MOMENTUM`, which restarts at the best means when a step fails to
    lower the inertia. Fixed points are the same, reached in about half the steps, and further steps go lower.
    `on_step`: gets the state after every step. `placed`: maps centers (k, m) to allowed positions before rows are
    assigned, as directions in spherical k-means; a center without rows then stays.

    References: Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982). O'Donoghue and Candès,
    "Adaptive restart for accelerated gradient schemes", Found. Comput. Math. 15 (2015), section 3.2. Dhillon and Modha,
    "Concept decompositions for large sparse text data using clustering", Mach. Learn. 42 (2001), section 3 (spherical
    k-means).
    """
    if isinstance(start, LloydResult):
        state = start
    else:
        state = LloydResult(start if placed is None else placed(start), float("nan"), 0, False, ())
    while state.n_iter < max_iter and not state.converged:
        stage = f"{'lloyd' if placed is None else 'sphere'}-{state.n_iter + 1}"
        if accelerated:
            totals, labels = blocks.step(state.centers, state.labels, stage)
        else:
            totals, labels = blocks.totals(state.centers, stage), None
        means = totals.means(fallback=state.centers)
        inertia = inertia_of(totals, means if accelerated else state.centers, blocks.total_d2norm)
        empty = np.flatnonzero(totals.counts == 0)
        del totals  # as large as the centers
        if placed is not None:
            means, empty = placed(means), empty[:0]
        converged, ahead, pace = False, means, 0
        if len(empty):
            means = ahead = _refill(blocks, state.centers, means, empty)
            labels = None  # there may be fewer centers
        elif not accelerated and state.history:
            lowered = state.history[-1] - inertia
            converged = lowered <= tol * inertia if tol > 0 else np.array_equal(means, state.centers)
        elif state.means is not None and state.means.shape == means.shape:
            if inertia > state.inertia and state.pace > 0:  # too far: back to the best means
                means, ahead, inertia = state.means, state.means, state.inertia
            else:
                behind = state.history[-WINDOW:]
                converged = inertia == state.inertia or (len(behind) == WINDOW and behind[0] - inertia <= tol * inertia)
                pace = state.pace + 1
                ahead = np.empty_like(means)
                kernels.carried_on(means, state.means, min(MOST_MOMENTUM, pace / (pace + 3)), ahead)
        history = (*state.history, inertia)
        kept = means if accelerated else None
        state = LloydResult(ahead, inertia, len(history), converged, history, kept, pace, labels)
        if on_step is not None:
            on_step(state)
    return state if state.means is None else replace(state, centers=state.means)


def filled(blocks: Blocks, centers: NDArray[np.float64], n_clusters: int) -> NDArray[np.float64]:
    """Centers, completed to `n_clusters` by the rows farthest from them; fewer only if no other row is distinct."""
    places = np.arange(len(centers), n_clusters)
    if not len(places):
        return centers
    return _refill(blocks, centers, np.concatenate([centers, np.zeros((len(places), centers.shape[1]))]), places)


def _refill(
    blocks: Blocks, centers: NDArray[np.float64], updated: NDArray[np.float64], empty: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Move clusters without rows to the farthest rows; drop them if every row lies on its center."""
    farthest = FarthestRows(blocks.table(centers), len(empty))
    d2, rows = np.empty(0), np.empty((0, centers.shape[1]))
    for more_d2, more_rows in outputs(farthest, HeldRows(blocks.handles), blocks.executor, Stage("refill")):
        d2, rows = np.concatenate([d2, more_d2]), np.concatenate([rows, more_rows])
        if len(d2) > MOST_WAITING * len(empty):  # all blocks' rows would take more memory than the centers
            d2, rows = _farthest_distinct(d2, rows, len(empty))
    d2, rows = _farthest_distinct(d2, rows, len(empty))
    chosen = np.flatnonzero(d2 > 0)
    updated[empty[: len(chosen)]] = rows[chosen]
    logger.debug("%d clusters lost their rows; %d moved to the farthest rows", len(empty), len(chosen))
    return updated if len(chosen) == len(empty) else np.delete(updated, empty[len(chosen) :], axis=0)


def _farthest_distinct(
    d2: NDArray[np.float64], rows: NDArray[np.float64], n_wanted: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The farthest distinct rows, so that equal rows fill one cluster only."""
    order = np.argsort(-d2, kind="stable")
    _, first = np.unique(rows[order], axis=0, return_index=True)
    chosen = order[np.sort(first)][:n_wanted]
    return d2[chosen], rows[chosen]


@dataclass(frozen=True, slots=True)
class FarthestRows(Map[tuple[NDArray[np.float64], NDArray[np.float64]]]):
    """The distinct rows of each block farthest from their centers, dense, with their squared distances."""

    table: NearestCenters
    n_wanted: int  # rows of each block, at most

    def output(self, rows: HeldBlock) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Squared distances, and rows, the farthest first."""
        block, n_features = rows.block, self.table.centers.shape[1]
        X = merged(block.X)
        labels, _ = self.table.lowest(X)
        d2 = row_d2(X, labels, self.table)
        if len(block.weights):
            d2[block.weights == 0] = 0
        d2[d2 <= 1e-12 * np.maximum(block.d2norms, np.finfo(float).tiny)] = 0  # on its center, but for rounding
        # equal rows have equal distances to the center and to any other point: keep the first of each
        elsewhere = np.random.default_rng(0).normal(0, 1, (1, n_features))
        point = NearestCenters.build(elsewhere * np.sqrt(block.d2norms.mean() / elsewhere.size), np.float64)
        keys = row_d2(X, np.zeros(len(d2), np.int32), point)
        order = np.lexsort((keys, -d2))
        firsts = order[np.append(True, (np.diff(d2[order]) != 0) | (np.diff(keys[order]) != 0))]
        top = firsts[np.lexsort((firsts, -d2[firsts]))][: self.n_wanted]
        return d2[top], densified(X, top, n_features)


POLISH_STEPS = 10  # of Lloyd on a sample; more would fit the sample, not the data
POLISH_TOL = 1e-3


def original_centers(
    executor: Executor, sample: Sample, block: Block, centers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Means of the sampled original rows under the sketch's labels, and the sum of squares they explain.

    `block`: the sampled rows, sketched. `centers`: float64 (k, m), of the sketch. Returns means float64 (k, d), where a
    center without sampled rows becomes the row nearest to it; and the means' weighted squared norms: the rows' own less
    their squared distances to the means.
    """
    labels = LocalBlocks.of(executor, block).labels(centers, "polish")
    totals = label_sums(executor, sample.X, sample.weights, labels, len(centers), "polish")
    explained, fallback = totals.explained(), totals.sums  # no cluster is empty: the fallback is not read
    empty = np.flatnonzero(totals.counts == 0)
    if len(empty):
        fallback = np.zeros(totals.sums.shape)
        lonely = NearestCenters.build(centers[empty], block.X.dtype, around_origin=True)
        nearest = (lonely.scores(block.X) + block.d2norms[:, None]).argmin(axis=0)
        fallback[empty] = densified(sample.X, nearest, sample.X.shape[1])
    return totals.to_means(fallback), explained


def polish(
    executor: Executor,
    sample: Sample,
    centers: NDArray[np.float64],
    *,
    max_iter: int,
    tol: float,
    on_step: Callable[[LloydResult], None] | None = None,
    begun: LloydResult | float | None = None,
) -> LloydResult:
    """Run Lloyd's algorithm on the sampled original rows: in full if they are all rows, else for a few steps.

    `centers`: float64 (k, d). `begun`: an earlier state; or the sum of squares that `centers` explain as means of these
    rows: labelling was the first step.
    """
    blocks = LocalBlocks.of(executor, sample.original_block())
    if isinstance(begun, float):
        inertia = max(0.0, blocks.total_d2norm - begun)
        begun = LloydResult(centers, inertia, 1, False, (inertia,))
    if not sample.complete:
        max_iter, tol = min(max_iter, POLISH_STEPS), max(tol, POLISH_TOL)
    return lloyd(blocks, centers if begun is None else begun, max_iter=max_iter, tol=tol, on_step=on_step)
