"""The rows of each batch of an epoch, and the sums of a block over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.rows import Block, add_rows, batch_rows
from streamkm.cluster.totals import Totals
from streamkm.engine.passes import Pass
from streamkm.kernels.cluster.totals import weighted_sum

GOLDEN = 0.618033988749895  # about which share of a block two rows that follow each other in an epoch lie apart


@dataclass(frozen=True, slots=True)
class Batch:
    """One of the batches of an epoch; each row is in one of them."""

    number: int
    n_batches: int
    epoch: int
    seed: int  # below 2^64

    def rows(self, place: int, n_rows: int) -> NDArray[np.int64]:
        """Rows of a block in the batch, ascending.

        Rows that follow each other may be alike, so a batch takes them far apart: row ``a i + c`` modulo n is the i-th
        of an epoch, with c drawn by the seed, and a near the golden section of n, drawn too, without a common divisor.

        `place`: of the block's first row. `n_rows`: of the block.
        """
        first, last = (n_rows * bound // self.n_batches for bound in (self.number, self.number + 1))
        if last <= first:
            return np.empty(0, np.int64)
        start, way = _order(self.seed, self.epoch, place, n_rows)
        return np.sort((start + way * np.arange(first, last, dtype=np.int64)) % n_rows)


@lru_cache(maxsize=1 << 12)
def _order(seed: int, epoch: int, place: int, n_rows: int) -> tuple[int, int]:
    """The first row of an epoch, and how far the next one lies."""
    rng = np.random.default_rng([seed, epoch, place])
    start, way = int(rng.integers(n_rows)), int(n_rows * (GOLDEN + 0.1 * rng.random())) or 1
    while gcd(way, n_rows) > 1:
        way += 1
    return start, way


def rows_of(block: Block, rows: NDArray[np.int64]) -> Block:
    """Some rows of a block, copied."""
    return Block(block.X[rows], block.d2norms[rows], block.weights[rows] if len(block.weights) else block.weights)


@dataclass(frozen=True, slots=True)
class EvenRows(Pass[int, Block, int]):
    """Rows drawn evenly from each block, about one of `n_parts`; the result is their number."""

    n_parts: int
    seed: int  # below 2^64

    def start(self) -> int:
        """No rows."""
        return 0

    def step(self, state: int, rows: HeldBlock) -> tuple[int, Block]:
        """Copy those of one block: one of its `n_parts` batches, drawn, so that small blocks are not left out."""
        number = int(np.random.default_rng([self.seed, rows.place]).integers(self.n_parts))
        drawn = rows_of(rows.block, Batch(number, self.n_parts, 0, self.seed).rows(rows.place, rows.block.n_rows))
        return state + drawn.n_rows, drawn

    def join(self, first: int, second: int) -> int:
        """Add up."""
        return first + second


def add_batch(state: Totals | None, held: HeldBlock, table: NearestCenters, batch: Batch) -> Totals:
    """Add the rows of a block that belong to a batch to the sums of their nearest centers.

    `held`: with a place. If it has likely labels, those of the batch are written.
    """
    block = held.block
    rows = batch.rows(held.place, block.n_rows)
    totals = state or Totals(np.zeros(table.centers.shape), np.zeros(table.n_clusters))
    d2norms = 0.0
    for part, labels in labelled(block, rows, table, held.labels):
        add_rows(part.X, part.weights, labels, totals.sums, totals.counts)
        d2norms += float(weighted_sum(part.weights, part.d2norms))
    return Totals(totals.sums, totals.counts, totals.d2 + d2norms)


def labelled(
    block: Block, rows: NDArray[np.int64], table: NearestCenters, likely: NDArray[np.int32] | None
) -> Iterator[tuple[Block, NDArray[np.int32]]]:
    """Some rows of a block, a few at a time, and their nearest centers.

    `likely`: int32 (n,), likely labels of all rows, by which an index finds those of these, where the table knows the
    parts of one; those of these are written.
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
