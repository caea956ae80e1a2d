"""Rows on which starts are searched: all that are held, or rows drawn from all of them.

Rows are drawn in rounds, as k-means|| does: by weight, and by squared distance to rough centers, which grow by each
round's draws. So the few rows far away are among them, which no uniform sample of that size holds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.rows import NO_WEIGHTS, Block, add_rows, merged, row_d2norms
from streamkm.cluster.seeding.draws import Drawn, DrawRule, combined
from streamkm.cluster.seeding.kmeans_plusplus import kmeans_plusplus
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.passes import Pass, run
from streamkm.kernels.cluster.totals import weighted_sum

ROUGH_ROWS_PER_CLUSTER, FEWEST_ROUGH_ROWS = 20, 2000  # that rough centers are seeded on
SEARCH_ROWS_PER_CLUSTER = 200  # with fewer, halves of clusters are noise; more make rounds slow, not better
SMALLEST_SEARCH_ROWS, LARGEST_SEARCH_ROWS = 10_000, 50_000
MANY_SEARCH_ROWS, FEWEST_ROWS_PER_CLUSTER = 65_536, 40  # likewise of many clusters, the more of both
ROWS_PER_CLUSTER = 50  # sampled and drawn after a pass: with fewer, means would fit these rows, and none is searched
# More would hardly see more, and seeding costs their square; of sparse rows, 256 left 600 clusters 0.1 % worse.
MOST_ROUGH_CENTERS, MOST_ROUGH_SPARSE = 256, 1024
SMALL_ENTRIES = 1 << 20  # of rows that are all searched
BATCH_ROWS = 1024  # that are in float64 at a time
MOST_ROUNDS = 3  # of drawing
# Times the mean squared distance from rough centers: where no row lies farther from the mean, a sample of the size
# that is searched will do; where none lies c times as far, one c times as large, which such a sample is drawn from.
FARTHEST = 4.0
SURPRISE = 1.1  # times the objective that was expected, from which a round has found what the one before did not see

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchRows:
    """The rows from which those for the search are drawn."""

    blocks: Blocks | None = None  # all rows that are held; None: no more than were sampled
    most: int | None = None  # rows that are drawn, at most, where memory has no room for as many as usual
    # portions of the rows that starts are searched on, one after the other, where memory has no room for all
    n_portions: int = 1
    n_rows: int | None = None  # rows of the data, which those that are held stand for; None: no more than are held
    # whether epochs of moving averages follow on all rows: the search for starts may then be brief
    averaged: bool = False
    # whether rows that were drawn from the blocks are searched by a worker of their cluster, and not here
    on_worker: bool = False


SAMPLED = SearchRows()


def search_rows(n_clusters: int, n_components: int | None = None, *, many: bool = False) -> int:
    """Number of rows for the search: more if they are narrow, and if starts are searched among neighbours (`many`)."""
    wanted = min(LARGEST_SEARCH_ROWS, max(SMALLEST_SEARCH_ROWS, SEARCH_ROWS_PER_CLUSTER * n_clusters))
    if many:
        wanted = max(MANY_SEARCH_ROWS, FEWEST_ROWS_PER_CLUSTER * n_clusters)
    narrow = 0 if n_components is None else SMALL_ENTRIES // max(1, n_components)
    return max(wanted, narrow, n_clusters)


def is_many(n_clusters: int, block: Block) -> bool:
    """Whether there are so many clusters that starts are found on two levels and searched among neighbours."""
    return n_clusters >= FEWEST_CENTERS and isinstance(block.X, np.ndarray)


def rough_rows(n_clusters: int) -> int:
    """Number of rows to seed rough centers on."""
    return max(FEWEST_ROUGH_ROWS, ROUGH_ROWS_PER_CLUSTER * n_clusters)


def prefix(block: Block, n_rows: int) -> Block:
    """The first rows of a block, all if it has no more."""
    return Block(rows_between(block.X, 0, n_rows), block.d2norms[:n_rows], block.weights[:n_rows])


def search_set(
    executor: Executor, sampled: Block, pool: SearchRows, n_clusters: int, rng: np.random.Generator
) -> Block:
    """Rows in random order that stand for all held rows: the sampled ones if they are all, else as of `drawn_set`.

    `sampled`: rows of `pool` in random order.
    """
    many = is_many(n_clusters, sampled)
    few = search_rows(n_clusters, sampled.X.shape[1], many=many)
    blocks = pool.blocks
    n_rows = sampled.n_rows if blocks is None else blocks.n_rows
    if n_rows <= min(few, sampled.n_rows):
        return sampled
    held = LocalBlocks.of(executor, sampled) if blocks is None else blocks
    size = min(search_rows(n_clusters, many=many), pool.most or n_rows)
    return drawn_set(executor, sampled, held, n_clusters, size, rng)


def drawn_set(
    executor: Executor, sampled: Block, held: Blocks, n_clusters: int, size: int, rng: np.random.Generator
) -> Block:
    """About `size` rows, or up to twice as many, in random order, that stand for all held rows, with unbiased weights.

    A pass over the blocks uses r rough centers, O(n * m * r) or O(nnz * r), with r at most k. While the objective
    exceeds the estimate for rough centers, another pass with r more centers draws half as many rows, up to
    `MOST_ROUNDS` passes. If no row is far away, the sampled rows alone suffice. `sampled`: some of `held`, in random
    order.
    """
    n_rows = held.n_rows
    many = is_many(n_clusters, sampled)
    most = MOST_ROUGH_SPARSE if sp.issparse(sampled.X) else MOST_ROUGH_CENTERS if many else n_clusters
    n_rough = min(n_clusters, most)
    rough, objective = _rough(executor, sampled, n_rough, held.total_weight, rng)
    if sampled.n_rows >= size and not len(sampled.weights):
        reach = _reach(sampled, held, objective)
        if reach <= FARTHEST:
            return prefix(sampled, size)
        if reach <= FARTHEST * sampled.n_rows / size:
            objective *= sampled.n_rows / held.n_rows
            held = LocalBlocks.of(executor, sampled)
    parts: list[Drawn] = []
    rules: list[DrawRule] = []
    tables: list[NearestCenters] = []
    for round_ in range(MOST_ROUNDS):
        rules.append(
            DrawRule.of(max(n_clusters, size >> round_), int(rng.integers(2**63)), held.total_weight, objective)
        )
        tables.append(NearestCenters.build(rough, held.dtype, around_origin=True))
        drawn, found = run(DrawRows(tables[-1], rules[-1]), held.placed(), held.executor, Stage("draw"))
        parts.append(drawn)
        if found <= SURPRISE * objective:
            break
        weighted = _block(drawn.X, rules[-1].unbiased(drawn))
        rough = np.concatenate([rough, seeded(executor, weighted, n_rough, rng)])
        table = NearestCenters.build(rough, held.dtype, around_origin=True)
        objective = float(weighted_sum(weighted.weights, squared_distances(weighted, table)))
    rows = [_block(part.X, NO_WEIGHTS) for part in parts]
    d2s = [np.concatenate([squared_distances(block, table) for block in rows]) for table in tables]
    joined = combined(rules, parts, d2s)
    del parts, rows
    order = rng.permutation(joined.n_rows)
    logger.debug("starts are searched on %d rows drawn from %d", joined.n_rows, n_rows)
    return _block(joined.X[order], joined.weights[order])


def _reach(sampled: Block, held: Blocks, objective: float) -> float:
    """Largest squared distance a row may have to the mean, over the mean one to rough centers.

    A group that a uniform sample of s rows misses has hardly more than a few times 1 / s of all rows, and its share of
    the objective is at most that times this. So distant rows need a larger sample.
    """
    mean, counts = np.empty((1, sampled.X.shape[1])), np.zeros(1)
    add_rows(sampled.X, NO_WEIGHTS, np.zeros(sampled.n_rows, np.int32), mean, counts, fresh=True)
    mean = mean[0] / sampled.n_rows
    farthest = np.sqrt(held.largest_d2norm) + np.sqrt(mean @ mean)
    return float(farthest * farthest) * held.n_rows / objective if objective > 0 else np.inf


@dataclass(frozen=True, slots=True)
class DrawRows(Pass[tuple[tuple[Drawn, ...], float], None, tuple[Drawn, float]]):
    """Draws rows by their squared distances to centers around the origin, and sums the objective of all rows."""

    table: NearestCenters
    rule: DrawRule

    def start(self) -> tuple[tuple[Drawn, ...], float]:
        """No rows."""
        return (), 0.0

    def step(
        self, state: tuple[tuple[Drawn, ...], float], rows: HeldBlock
    ) -> tuple[tuple[tuple[Drawn, ...], float], None]:
        """Draw from one block."""
        block = replace(rows.block, X=merged(rows.block.X))
        row_ids = rows.place + np.arange(block.n_rows, dtype=np.int64)
        d2 = squared_distances(block, self.table)
        drawn = self.rule.draw(block.X, row_ids, block.weights, d2)
        return self.join(state, ((drawn,), float(weighted_sum(block.weights, d2)))), None

    def join(
        self, first: tuple[tuple[Drawn, ...], float], second: tuple[tuple[Drawn, ...], float]
    ) -> tuple[tuple[Drawn, ...], float]:
        """Keep the lowest keys of both."""
        return self.rule.gather((*first[0], *second[0])), first[1] + second[1]

    def finish(self, state: tuple[tuple[Drawn, ...], float]) -> tuple[Drawn, float]:
        """The draw from all rows."""
        return self.rule.join(state[0]), state[1]


def squared_distances(block: Block, table: NearestCenters) -> NDArray[np.float64]:
    """Squared distances of rows around the origin to their nearest centers, as exact as products of the dtype."""
    return np.maximum(table.lowest(block.X)[1] + block.d2norms, 0.0)


def seeded(executor: Executor, block: Block, n_clusters: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Rows of a block as centers, by greedy k-means++ (at most k, m)."""
    around, shift = centered(executor, block)
    return kmeans_plusplus(around, min(n_clusters, block.n_rows), rng=rng, executor=executor) + shift


def centered(executor: Executor, block: Block) -> tuple[Block, NDArray[np.float64]]:
    """Dense rows less their mean, and the mean: float32 distances between rows far from the origin would be noise."""
    if sp.issparse(block.X):
        return block, np.zeros(block.X.shape[1])
    shift = block.X.mean(axis=0, dtype=np.float64)
    X, d2norms = np.empty_like(block.X), np.empty(block.n_rows)
    executor.each("search", _center, range(0, len(X), BATCH_ROWS), block.X, shift, X, d2norms)
    return replace(block, X=X, d2norms=d2norms), shift


def _center(
    start: int, rows: NDArray[Any], shift: NDArray[np.float64], X: NDArray[Any], d2norms: NDArray[np.float64]
) -> None:
    here = slice(start, start + BATCH_ROWS)
    X[here] = rows[here] - shift
    d2norms[here] = row_d2norms(X[here])


def _rough(
    executor: Executor, sampled: Block, n_clusters: int, total_weight: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], float]:
    """Centers by k-means++ on some of the sampled rows, and their approximate objective over all weight."""
    some = prefix(sampled, rough_rows(n_clusters))
    rough = seeded(executor, some, n_clusters, rng)
    d2 = squared_distances(some, NearestCenters.build(rough, some.X.dtype, around_origin=True))
    return rough, total_weight * float(weighted_sum(some.weights, d2)) / some.total_weight()


def _block(X: Matrix, weights: NDArray[np.float64]) -> Block:
    return Block(X, row_d2norms(X), weights)
