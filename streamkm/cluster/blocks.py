"""Rows in blocks, wherever they are held.

One step of Lloyd's algorithm on all blocks. The kernels do the work on a block. Sums are gathered in block order in a
fixed tree. Never sees a source or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.batches import Batch, add_batch
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.nearest import NearestCenters, step_labels
from streamkm.cluster.held_rows import HeldBlock, HeldRows
from streamkm.cluster.rows import add_rows
from streamkm.cluster.totals import Totals, absorb_totals
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine import Executor, Folded, Large
from streamkm.engine.passes import Pass, run
from streamkm.kernels.cluster.rows import add_csr_rows

MOST_LABEL_STEPS = 8
"""Steps in a row, each of which begins with the labels of the last one, where workers hold these. Dask keeps the calls
of all of them, and the centers that these were sent, to make labels again if a worker is lost."""

BLOCK_PLACES = 40
"""Bits of a row's number in a block that a worker may hold: how many rows came before is not known here."""


def added(
    totals: Totals | None,
    X: Matrix,
    weights: NDArray[np.float64],
    labels: NDArray[np.int32],
    table: NearestCenters,
    *,
    with_d2: bool = False,
) -> tuple[Totals, NDArray[np.float64]]:
    """Totals with labelled rows added, in the memory of `totals`, if there are some; squared distances (n,) if wanted.

    Without `with_d2` there are none (0,).
    """
    fresh, totals = totals is None, totals or Totals.unwritten(table)
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

    def table(self, centers: NDArray[np.float64]) -> NearestCenters:
        """Lay out centers (k, m) for these blocks."""
        return NearestCenters.build(centers, self.dtype)

    def totals(self, centers: NDArray[np.float64], stage: str = "lloyd") -> Totals:
        """Assign every row to its nearest center; gather sums and counts."""
        return run(LloydStep(self.table(centers)), HeldRows(self.handles), self.executor, Stage(stage))

    def step(
        self, centers: NDArray[np.float64], likely: BlockLabels | None, stage: str
    ) -> tuple[Totals, BlockLabels | None]:
        """As `totals`; of many centers, with the labels that were found.

        `centers`: float64 (k, m). `likely`: labels that are likely right, as of the last step. They only save time, and
        new ones take their places, as both would take twice the memory. Returns totals; labels: None where there are
        few centers, or rows are sparse or of float64.
        """
        if len(centers) < FEWEST_CENTERS or not self.dense or self.dtype == np.float64:
            return self.totals(centers, stage), None
        if likely is None or (likely.n_steps == MOST_LABEL_STEPS and not self.executor.joins_here):
            likely = BlockLabels([None] * len(self.handles))
        labels = BlockLabels(likely.handles, likely.n_steps + 1)
        rows = self.placed(labels.handles, "state" if 8 * centers.size > self._block_bytes else None)
        return run(LabelledStep(self.table(centers)), rows, self.executor, Stage(stage), sink=labels), labels

    def batch(self, table: NearestCenters, batch: Batch, stage: str, likely: BlockLabels | None = None) -> Totals:
        """Sums and counts of the rows of a batch, by their nearest centers; `d2` is the sum of their squared norms.

        `likely`: labels that are likely right; those of the batch are written. They only save time.
        """
        large: Large = "state" if 8 * table.centers.size * batch.n_batches > self._block_bytes else None
        rows = self.placed(None if likely is None else likely.handles, large)
        return run(BatchStep(table, batch), rows, self.executor, Stage(stage))

    def placed(self, labels: Sequence[NDArray[Any] | None] | None = None, takes_memory: Large = None) -> HeldRows:
        """Blocks, each with the place of its first row: for draws by places, and for sums over blocks.

        Neither places nor cuts depend on threads. Places are distinct, and those of a block are consecutive.

        `labels`: sequence of integers (n,) or None, for the rows of each block; see `HeldRows`. `takes_memory`:
        "state", "items" or None, see `Executor.fold`.
        """
        places = range(0, len(self.handles) << BLOCK_PLACES, 1 << BLOCK_PLACES)
        return HeldRows(self.handles, places, labels, takes_memory)

    @property
    def _block_bytes(self) -> int:
        """Bytes of a block of dense rows, about."""
        return self.n_rows * self.n_components * self.dtype.itemsize // max(1, len(self.handles))


@dataclass(frozen=True, slots=True)
class BlockPass(Pass[Totals | None, Any, Totals]):
    """What is gathered of blocks by their nearest centers."""

    table: NearestCenters

    def join(self, first: Totals | None, second: Totals | None) -> Totals:
        """Add up, in the memory of the first."""
        assert first is not None
        assert second is not None  # runs have blocks
        return absorb_totals(first, second)

    def finish(self, state: Totals | None) -> Totals:
        """The sums."""
        return Totals.zeros(*self.table.centers.shape) if state is None else state


class LloydStep(BlockPass):
    """A step of Lloyd's algorithm: sums and counts of the rows by their nearest centers."""

    def step(self, state: Totals | None, rows: HeldBlock) -> tuple[Totals, None]:
        """Add the rows of a block."""
        block = rows.block
        return added(state, block.X, block.weights, step_labels(block.X, self.table), self.table)[0], None


class LabelledStep(BlockPass):
    """As `LloydStep`, with the labels of dense rows of float32, for which likely ones may be given."""

    def step(self, state: Totals | None, rows: HeldBlock) -> tuple[Totals, NDArray[np.int32]]:
        """Add the rows of a block."""
        block = rows.block
        labels = self.table.lowest(block.X, rows.labels)[0]
        return added(state, block.X, block.weights, labels, self.table)[0], labels


@dataclass(frozen=True, slots=True)
class BatchStep(BlockPass):
    """Sums of the rows of a batch, and of their squared norms; likely labels of its rows are written."""

    batch: Batch

    def step(self, state: Totals | None, rows: HeldBlock) -> tuple[Totals, None]:
        """Add the rows of a block that are in the batch."""
        return add_batch(state, rows, self.table, self.batch), None


class BlockLabels:
    """A sink of the labels of each block, which stay where they were found and take the places of the likely ones.

    `handles`: of int32 labels of each block, or None before they are found. `n_steps`: steps that led to them, each
    from the labels of the last one.
    """

    held: ClassVar[bool] = True

    def __init__(self, handles: list[Any], n_steps: int = 0):
        self.handles, self.n_steps = handles, n_steps
        self._n_taken = 0

    def take(self, output: Any) -> None:
        """Take the handle of the next block's labels."""
        self.handles[self._n_taken] = output
        self._n_taken += 1

    def restore(self, n_items: int) -> bool:  # noqa: ARG002 - steps are saved as a whole
        """Steps are not saved block by block."""
        return False

    def save(self, name: str, folded: Folded[Any]) -> None:
        """Steps are not saved block by block."""


def merged(X: Matrix) -> Matrix:
    """The same rows with entries that repeat an index added up; as they are, where none does, and dense rows."""
    if isinstance(X, np.ndarray) or X.has_canonical_format:
        return X
    copy = X.copy()
    copy.sum_duplicates()
    return copy


def densified(X: Matrix, rows: NDArray[np.intp], n_components: int) -> NDArray[np.float64]:
    """Chosen rows as float64 (len(rows), n_components)."""
    if isinstance(X, np.ndarray):
        return X[rows].astype(np.float64)
    out = np.zeros((len(rows), n_components))
    add_csr_rows(X.indptr, X.indices, X.data, np.asarray(rows, np.int64), out)
    return out
