"""Initial centers: seeding, Lloyd and local search on rows that stand for all that are held.

Seeding decides quality, not iterations: a few cheap starts on rows that stand for all, each recombined with the best so
far and improved by swaps, beat many full starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import LloydResult, filled, lloyd
from streamkm.cluster.rows import Block
from streamkm.cluster.seeding.kmeans_plusplus import kmeans_plusplus, ls_plusplus, random_rows, recombined, seedings
from streamkm.cluster.seeding.search_set import (
    FEWEST_ROWS_PER_CLUSTER,
    SAMPLED,
    SearchRows,
    centered,
    drawn_set,
    is_many,
    prefix,
    rough_rows,
    search_rows,
    search_set,
)
from streamkm.cluster.seeding.split_merge import PROMISED, search_nearby, split_merge
from streamkm.cluster.seeding.two_level import search_portions, two_level_plusplus
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.engine.executor_choice import alone

FEW_CLUSTERS = 10  # which one start may miss, however it is searched
FEWEST_STARTS, MOST_STARTS = 4, 10  # of so few clusters, where rows are many
SMALL_ROWS = 100_000  # up to which rows are few: of more, the best of many starts on some says little about all
NEAR_BEST = 3e-4  # once a few starts in a row have not lowered the best by such a share, more are of no use
SPARSE_WORK = 4  # products of dense rows that take as long as one of sparse rows
START_WORK = 10**8  # products in one step of Lloyd of all starts together, at most, where rows are many
SEARCH_WORK = 2 * 10**8  # products in one step of Lloyd, up to which a start is cheap, where rows are few
START_STEPS, FIRST_STEP = 10, 1  # of Lloyd after seeding; where rows are too few for means to hold for others
BRIEF_STEPS = 3  # of many clusters, where epochs follow: enough to see which clusters should be swapped
START_TOL = 1e-3
SEARCH_ROUNDS = 40
DRAWN_TIMES = 4  # as many rows as a search draws, from which drawing them saves time
SWAPS_PER_CLUSTER = 4  # rows that LS++ draws, for each cluster


@dataclass(frozen=True, slots=True)
class Starts:
    """The number of starts, and when to stop."""

    least: int  # after `least` no more are made once the last few together have not lowered the best by 0.03 %
    most: int
    patience: int = 4  # how many these are

    def go_on(self, inertias: Sequence[float]) -> bool:
        """Whether to make one more after starts that ended with these inertias."""
        if len(inertias) < self.least or len(inertias) >= self.most:
            return len(inertias) < self.least
        return min(inertias[: -self.patience], default=np.inf) > min(inertias) * (1 + NEAR_BEST)


SEARCHES = Starts(5, 20)  # where rows are few and a start is cheap
SEARCHES_APART = Starts(5, 8)  # each on rows drawn for it, so that they differ
STARTS_APART = Starts(3, 12, patience=2)  # of each such search
# Likewise where epochs of moving averages follow, which find most of what few starts miss.
FEWER_SEARCHES, FEWER_APART = Starts(2, 10, patience=1), Starts(2, 6, patience=1)


@dataclass(frozen=True, slots=True)
class Streams:
    """The named random streams of one run."""

    seeding: np.random.Generator
    search: np.random.Generator


Draw = Callable[[np.random.Generator], NDArray[np.float64]]
"""Draws centers to start from in the space of a block (k, m)."""


def start_centers(
    executor: Executor,
    sampled: Block,
    n_clusters: int,
    *,
    init: str | Draw,
    n_init: int | str | Starts,
    streams: Streams,
    pool: SearchRows = SAMPLED,
) -> NDArray[np.float64]:
    """Find centers (at most k, m) on the rows that are held, or on rows drawn from all of them.

    Fewer than k centers come back only if there are fewer distinct rows. `sampled`: rows of `pool` in random order, at
    least k, so that every prefix is a sample too. `init`: "k-means++", the best of `n_init` greedy seedings, each with
    a few Lloyd steps, recombined with the best so far, then split-and-merge search; "k-means||", the best of `n_init`
    weighted seedings of rows drawn in rounds, each with a few Lloyd steps; "ls++", the best of `n_init` greedy
    seedings, each improved by LS++ and a few Lloyd steps; "random" or a function, the best of `n_init` drawings, each
    with a few Lloyd steps (a single one with one step below 40 rows a cluster). `n_init`: "auto" is 10 where nothing is
    searched. Up to 100,000 rows whose starts are cheap by `SEARCH_WORK`, it is 5 to 20, until four in a row have not
    lowered the best by 0.03 % (2 to 10 where epochs follow, until one has not); if all of more than 20,000 rows would
    be searched, see `_best_apart`. Else `START_WORK` limits it, up to 10: at least 4, and all of them, for up to 10
    clusters; for more, until one has not lowered the best so.
    """
    held = pool.blocks or LocalBlocks.of(executor, sampled)
    pool = replace(pool, n_rows=pool.n_rows or held.n_rows)
    asked: dict[str, Any] = {"init": init, "n_init": n_init, "streams": streams, "pool": pool}
    if init == "random" or not isinstance(init, str):
        searched = prefix(sampled, search_rows(n_clusters))
    elif pool.n_portions > 1 and pool.blocks is not None and is_many(n_clusters, sampled):

        def search(portion: Block, n_wanted: int) -> NDArray[np.float64]:
            return best_start(executor, portion, n_wanted, **asked)

        return filled(held, search_portions(sampled, n_clusters, pool, search, streams.search), n_clusters)
    else:
        searched = search_set(executor, sampled, pool, n_clusters, streams.search)
    if pool.on_worker and pool.blocks is not None and isinstance(init, str):
        asked["pool"] = replace(pool, blocks=None)
        found = alone(held.executor, "search", partial(_best, searched, n_clusters, asked))
    else:
        found = _best(searched, n_clusters, asked, executor)
    return filled(held, found, n_clusters)


def _best(
    rows: Block, n_clusters: int, asked: dict[str, Any], executor: Executor, _: Sequence[Any] = ()
) -> NDArray[np.float64]:
    """The best start (at most k, m)."""
    block, shift = centered(executor, rows)
    init = asked["init"]
    given = init if isinstance(init, str) else lambda rng: init(rng) - shift
    return best_start(executor, block, n_clusters, **asked | {"init": given}) + shift


def best_start(
    executor: Executor,
    block: Block,
    n_clusters: int,
    *,
    init: str | Draw,
    n_init: int | str | Starts,
    streams: Streams,
    pool: SearchRows,
) -> NDArray[np.float64]:
    """The best of several starts on rows around the origin, which stand for those of the pool; see `start_centers`."""
    drawn = init if not isinstance(init, str) else None
    pieces = LocalBlocks.of(executor, block)
    best, best_quality = None, (0, np.inf)
    inertias, seeded = list[float](), list[NDArray[np.float64]]()
    brief = pool.averaged and init == "k-means++" and is_many(n_clusters, block)  # epochs do the rest
    unsearched = init == "random" or drawn is not None
    starts = _starts(n_init, n_clusters, block, pool, unsearched=unsearched)
    n_drawn = search_rows(n_clusters) // 2
    is_large = init == "k-means++" and block.n_rows > DRAWN_TIMES * n_drawn
    if is_large and starts in (SEARCHES, FEWER_SEARCHES) and _shows_clusters(block, n_clusters):
        apart = SEARCHES_APART if starts == SEARCHES else FEWER_APART
        return _best_apart(executor, pieces, n_clusters, n_drawn, apart, streams)
    alone = unsearched and starts.most == 1  # it is compared with none
    n_steps = FIRST_STEP if alone and block.n_rows < FEWEST_ROWS_PER_CLUSTER * n_clusters else START_STEPS
    n_steps = BRIEF_STEPS if brief else n_steps
    while starts.go_on(inertias):
        if drawn is not None:
            centers = drawn(streams.seeding)
        elif init == "random":
            centers = random_rows(block, n_clusters, rng=streams.seeding)
        elif is_many(n_clusters, block):
            centers = two_level_plusplus(block, n_clusters, rng=streams.seeding, executor=executor)
        else:
            if not seeded:  # those that are made in any case at once, a thread each
                n_runs = max(1, min(starts.least - len(inertias), executor.n_workers))
                seeded = seedings(block, n_clusters, n_runs, rng=streams.seeding, executor=executor)
            centers = seeded.pop(0)
        if init == "ls++":
            centers = ls_plusplus(block, centers, n_steps=SWAPS_PER_CLUSTER * n_clusters, rng=streams.search)
        centers = filled(pieces, centers, n_clusters)
        result = lloyd(pieces, centers, accelerated=True, max_iter=n_steps, tol=START_TOL)
        if init == "k-means++":
            if best is not None and n_clusters < FEWEST_CENTERS:
                mixed = recombined(pieces, best, result.centers)
                mixed_result = lloyd(pieces, mixed, accelerated=True, max_iter=n_steps, tol=START_TOL)
                result = min(result, mixed_result, key=_by_quality)
            result = local_search(block, pieces, result, rng=streams.search, promise=PROMISED if brief else 0.0)
        if best is None or _by_quality(result) < best_quality:
            best, best_quality = result.centers, _by_quality(result)
        inertias.append(result.inertia)
    if best is None:
        raise ValueError(f"n_init={n_init}; needed: at least 1")
    return best


def _shows_clusters(block: Block, n_clusters: int) -> bool:
    """Whether the first rows, which guide drawing, have k distinct rows; else rows hardly tell clusters apart."""
    some = prefix(block, rough_rows(n_clusters))
    return len(kmeans_plusplus(some, n_clusters, rng=np.random.default_rng(0))) == n_clusters


def _best_apart(
    executor: Executor, pieces: LocalBlocks, n_clusters: int, n_drawn: int, searches: Starts, streams: Streams
) -> NDArray[np.float64]:
    """The best of independent searches, each on rows drawn for it, by a few steps on all rows.

    A search on all rows takes several times as long, and starts recombined with the best share its mistakes.
    """
    block, best, inertias = pieces.whole, None, list[float]()
    some, pool = prefix(block, rough_rows(n_clusters)), SearchRows(n_rows=block.n_rows)
    options: dict[str, Any] = {"init": "k-means++", "n_init": STARTS_APART, "streams": streams, "pool": pool}
    while best is None or searches.go_on(inertias):
        drawn = drawn_set(executor, some, pieces, n_clusters, n_drawn, streams.search)
        around, shift = centered(executor, drawn)
        centers = filled(pieces, best_start(executor, around, n_clusters, **options) + shift, n_clusters)
        result = lloyd(pieces, centers, accelerated=True, max_iter=START_STEPS, tol=START_TOL)
        best = result if best is None else min(best, result, key=_by_quality)
        inertias.append(result.inertia)
    return local_search(block, pieces, best, rng=streams.search).centers


def _by_quality(result: LloydResult) -> tuple[int, float]:
    """Sort key of results: more clusters first, for data that hardly differ; then the lower inertia."""
    return -len(result.centers), result.inertia


def local_search(
    block: Block, pieces: LocalBlocks, start: LloydResult, *, rng: np.random.Generator, promise: float = 0.0
) -> LloydResult:
    """Improve centers by swaps: among neighbours where there are many; see `split_merge` and `search_nearby`."""
    if is_many(len(start.centers), block):
        return search_nearby(block, pieces, start, rng=rng, promise=promise)
    return split_merge(block, pieces, start, max_rounds=SEARCH_ROUNDS, rng=rng)


def _starts(n_init: int | str | Starts, n_clusters: int, block: Block, pool: SearchRows, *, unsearched: bool) -> Starts:
    """Resolve `n_init` for a block that stands for the rows of a pool."""
    if isinstance(n_init, Starts):
        return n_init
    if n_init != "auto":
        return Starts(int(n_init), int(n_init))
    if unsearched:
        return Starts(MOST_STARTS, MOST_STARTS)
    entries = int(block.X.size) if isinstance(block.X, np.ndarray) else SPARSE_WORK * int(block.X.nnz)
    if (pool.n_rows or block.n_rows) <= SMALL_ROWS and entries * n_clusters <= SEARCH_WORK:
        return FEWER_SEARCHES if pool.averaged else SEARCHES
    few = n_clusters <= FEW_CLUSTERS
    most = max(FEWEST_STARTS if few else 1, min(MOST_STARTS, START_WORK // max(1, entries * n_clusters)))
    return Starts(most if few else min(2, most), most, patience=1)


def drawn_by(
    function: Callable[..., Any],
    rows: Matrix,
    n_clusters: int,
    placed: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Draw:
    """Draw centers by a user's function, as scikit-learn calls it: ``function(X, n_clusters, random_state=...)``.

    `rows`: sampled rows (s, d) for the function. `placed`: maps its centers (k, d) to the search's space (k, m).
    """

    def draw(rng: np.random.Generator) -> NDArray[np.float64]:
        state = np.random.RandomState(int(rng.integers(2**32)))  # what such functions expect
        given = function(rows, n_clusters, random_state=state)
        centers = np.array(given.toarray() if sp.issparse(given) else given, np.float64, order="C")
        check_centers(centers, n_clusters, rows.shape[1])
        return placed(centers)

    return draw


def check_centers(centers: NDArray[np.float64], n_clusters: int, n_features: int | None = None) -> None:
    """Refuse initial centers other than k of d finite features; raises InvalidParameterError."""
    width = "features" if n_features is None else f"features={n_features:,}"
    fits = centers.ndim == 2 and len(centers) == n_clusters and n_features in (None, centers.shape[1])
    if not fits:
        raise InvalidParameterError(f"init has shape {centers.shape}; needed: (n_clusters={n_clusters}, {width})")
    if not np.isfinite(centers).all():
        raise InvalidParameterError("init holds NaN or infinity; needed: finite centers")
