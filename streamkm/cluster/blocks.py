"""Blocks of rows, wherever they are held, and steps of Lloyd's algorithm on all of them.

Sums are gathered in block order in a fixed tree. Never sees a source or a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.nearest import NearestCenters, step_labels
from streamkm.cluster.held_rows import HeldBlock, HeldRows
from streamkm.cluster.rows import NO_WEIGHTS, Block, Totals, absorb_totals, add_rows, batch_rows
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine import Executor, Large
from streamkm.engine.passes import Pass, Sink, run
from streamkm.kernels.cluster.totals import weighted_sum

MOST_LABEL_STEPS = 8
"""Steps in a row that begin with labels held by workers. Dask keeps the calls of all of them and their centers, to make
labels again if a worker is lost."""

BLOCK_PLACES = 40
"""Bits of a row's number in a block that a worker may hold, where the rows before it are not counted."""


GOLDEN = 0.618033988749895  # about which share of a block two rows that follow each other in an epoch lie apart


@dataclass(frozen=True, slots=True)
class Batch:
    """One of the batches of an epoch; each row is in one of them."""

    number: int
    n_batches: int
    epoch: int
    seed: int  # below 2^64

    def rows(self, place: int, n_rows: int) -> NDArray[np.int64]:
        """Rows of a block in the batch, ascending; `place` is that of the block's first row.

        Neighbours may be alike, so a batch takes rows far apart: the i-th of an epoch is row ``a i + c`` modulo n, with
        c drawn by the seed, and a drawn near the golden section of n, coprime to n.
        """
        first, last = (n_rows * bound // self.n_batches for bound in (self.number, self.number + 1))
        if last <= first:
            return np.empty(0, np.int64)
        start, way = _order(self.seed, self.epoch, place, n_rows)
        return np.sort((start + way * np.arange(first, last, dtype=np.int64)) % n_rows)


@lru_cache(maxsize=1 << 12)
def _order(seed: int, epoch: int, place: int, n_rows: int) -> tuple[int, int]:
    """The first row of an epoch, and the distance to the next one."""
    rng = np.random.default_rng([seed, epoch, place])
    start, way = int(rng.integers(n_rows)), int(n_rows * (GOLDEN + 0.1 * rng.random())) or 1
    while gcd(way, n_rows) > 1:
        way += 1
    return start, way


def rows_of(block: Block, rows: NDArray[np.int64]) -> Block:
    """Some rows of a block, copied."""
    return Block(block.X[rows], block.d2norms[rows], block.weights[rows] if len(block.weights) else block.weights)


def drawn_evenly(rows: HeldBlock, n_parts: int, seed: int) -> Block:
    """One drawn batch of `n_parts` of a block, so that small blocks are not left out."""
    number = int(np.random.default_rng([seed, rows.place]).integers(n_parts))
    return rows_of(rows.block, Batch(number, n_parts, 0, seed).rows(rows.place, rows.block.n_rows))


@dataclass(frozen=True, slots=True)
class EvenRows(Pass[int, Block, int]):
    """Rows drawn evenly from each block, about one in `n_parts`; the result is their number."""

    n_parts: int
    seed: int  # below 2^64

    def start(self) -> int:
        """No rows."""
        return 0

    def step(self, state: int, rows: HeldBlock) -> tuple[int, Block]:
        """Copy one drawn batch of `n_parts` of a block."""
        drawn = drawn_evenly(rows, self.n_parts, self.seed)
        return state + drawn.n_rows, drawn

    def join(self, first: int, second: int) -> int:
        """Add up."""
        return first + second


def labelled(
    block: Block, rows: NDArray[np.int64], table: NearestCenters, likely: NDArray[np.int32] | None
) -> Iterator[tuple[Block, NDArray[np.int32]]]:
    """Yield some rows of a block, a few at a time, with their nearest centers.

    `likely`: int32 (n,), likely labels of all rows, by which an index, if its parts are known, finds the labels;
    updated.
    """
    if likely is not None and table.known is not None:
        table.index()
    X = block.X
    step = batch_rows(X.shape[1] if isinstance(X, np.ndarray) else X.nnz // max(1, block.n_rows))
    for first in range(0, len(rows), step):
        picked = rows[first : first + step]
        part = rows_of(block, picked)
        labels = table.lowest(part.X, None if likely is None else likely[picked])[0]
        if likely is not None:
            likely[picked] = labels
        yield part, labels


def added(
    totals: Totals | None,
    X: Matrix,
    weights: NDArray[np.float64],
    labels: NDArray[np.int32],
    table: NearestCenters,
    *,
    with_d2: bool = False,
) -> tuple[Totals, NDArray[np.float64]]:
    """Totals with labelled rows added, in the memory of `totals` if given; squared distances (n,), else (0,)."""
    fresh = totals is None
    totals = totals or Totals(np.empty(table.centers.shape), np.zeros(table.n_clusters))  # `fresh` clears the sums
    to = table if with_d2 else None
    return totals, add_rows(X, weights, labels, totals.sums, totals.counts, fresh=fresh, to=to)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks in order, held by an executor."""

    executor: Executor
    handles: Sequence[Any]  # blocks, where blocks were written, or futures of blocks
    n_rows: int  # over all blocks; `total_d2norm` is the weighted sum of squared norms
    n_components: int
    dtype: np.dtype[Any]  # of the products with centers: float32 or float64
    total_weight: float
    total_d2norm: float
    largest_d2norm: float  # largest squared norm of a row
    dense: bool  # whether rows are dense
    prices: NDArray[np.float64] = field(default_factory=lambda: NO_WEIGHTS, kw_only=True)  # (k,): see `even_sizes`

    def table(self, centers: NDArray[np.float64]) -> NearestCenters:
        """Lay out centers (k, m) for these blocks."""
        return NearestCenters.build(centers, self.dtype, prices=self.prices)

    def totals(self, centers: NDArray[np.float64], stage: str = "lloyd") -> Totals:
        """Assign every row to its nearest center; gather sums and counts."""
        return run(LloydStep(self.table(centers)), HeldRows(self.handles), self.executor, Stage(stage))

    def step(
        self, centers: NDArray[np.float64], likely: BlockLabels | None, stage: str
    ) -> tuple[Totals, BlockLabels | None]:
        """Compute `totals`; with many centers, also the labels found, for the next step.

        `likely`: labels of the last step, which save time and are overwritten. Labels are None for few centers, and for
        rows that are sparse or float64.
        """
        if len(centers) < FEWEST_CENTERS or not self.dense or self.dtype == np.float64:
            return self.totals(centers, stage), None
        return self._labelled_step(centers, likely, stage)

    def _labelled_step(
        self, centers: NDArray[np.float64], likely: BlockLabels | None, stage: str
    ) -> tuple[Totals, BlockLabels]:
        """Run `step` with many centers."""
        if likely is None or (likely.n_steps == MOST_LABEL_STEPS and not self.executor.joins_here):
            likely = BlockLabels([None] * len(self.handles))
        labels = BlockLabels(likely.handles, likely.n_steps + 1)
        rows = self.placed(labels.handles, "state" if 8 * centers.size > self._block_bytes else None)
        return run(LloydStep(self.table(centers), True), rows, self.executor, Stage(stage), sink=labels), labels

    def batch(self, table: NearestCenters, batch: Batch, stage: str, likely: BlockLabels | None = None) -> Totals:
        """Sums and counts of a batch's rows by their nearest centers; `d2` is the sum of their squared norms.

        `likely`: likely labels, which save time; those of the batch are overwritten.
        """
        large: Large = "state" if 8 * table.centers.size * batch.n_batches > self._block_bytes else None
        rows = self.placed(None if likely is None else likely.handles, large)
        return run(BatchStep(table, batch), rows, self.executor, Stage(stage))

    def placed(self, labels: Sequence[NDArray[Any] | None] | None = None, takes_memory: Large = None) -> HeldRows:
        """Blocks with the row ids of their first rows, for draws by place and sums over blocks.

        Places and cuts do not depend on threads. Places are distinct and consecutive in a block. `labels`,
        `takes_memory`: as of `HeldRows` and `Executor.fold`.
        """
        row_ids = range(0, len(self.handles) << BLOCK_PLACES, 1 << BLOCK_PLACES)
        return HeldRows(self.handles, row_ids, labels, takes_memory)

    @property
    def _block_bytes(self) -> int:
        """Approximate bytes of a block of dense rows."""
        return self.n_rows * self.n_components * self.dtype.itemsize // max(1, len(self.handles))


@dataclass(frozen=True, slots=True)
class BlockPass(Pass[Totals | None, Any, Totals]):
    """Totals of blocks by their nearest centers."""

    table: NearestCenters

    def join(self, first: Totals | None, second: Totals | None) -> Totals:
        """Add up, in the memory of the first."""
        assert first is not None
        assert second is not None  # runs have blocks
        return absorb_totals(first, second)

    def finish(self, state: Totals | None) -> Totals:
        """The sums."""
        return Totals.zeros(*self.table.centers.shape) if state is None else state


@dataclass(frozen=True, slots=True)
class LloydStep(BlockPass):
    """A step of Lloyd's algorithm: sums and counts of the rows by their nearest centers."""

    keeps_labels: bool = False

    def step(self, state: Totals | None, rows: HeldBlock) -> tuple[Totals, NDArray[np.int32] | None]:
        """Add the rows of a block."""
        block = rows.block
        labels = step_labels(block.X, self.table, rows.labels)
        totals, _ = added(state, block.X, block.weights, labels, self.table)
        return totals, labels if self.keeps_labels else None


@dataclass(frozen=True, slots=True)
class BatchStep(BlockPass):
    """Sums of a batch's rows and squared norms; the rows' likely labels are overwritten."""

    batch: Batch

    def step(self, state: Totals | None, rows: HeldBlock) -> tuple[Totals, None]:
        """Add the rows of a block that are in the batch."""
        block = rows.block
        totals = state or Totals.zeros(*self.table.centers.shape)
        picked, d2norms = self.batch.rows(rows.place, block.n_rows), 0.0
        for part, labels in labelled(block, picked, self.table, rows.labels):
            add_rows(part.X, part.weights, labels, totals.sums, totals.counts)
            d2norms += float(weighted_sum(part.weights, part.d2norms))
        return replace(totals, d2=totals.d2 + d2norms), None


class BlockLabels(Sink[Any]):
    """A sink of each block's labels, which stay where they were found and replace the likely ones.

    `handles`: int32 labels of each block, or None before they are found. `n_steps`: successive steps that led to them.
    """

    held: ClassVar[bool] = True

    def __init__(self, handles: list[Any], n_steps: int = 0):
        self.handles, self.n_steps = handles, n_steps
        self._n_taken = 0

    def take(self, output: Any) -> None:
        """Take the handle of the next block's labels."""
        self.handles[self._n_taken] = output
        self._n_taken += 1
