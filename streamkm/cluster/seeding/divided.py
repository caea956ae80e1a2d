"""A search for many centers that is divided among cells: the rows of a cell come to one worker, which searches alone.

Cells are found on a sample. Held rows travel once, from worker to worker, and only the centers of cells come to the
client. No step of the search sends a table of all centers. Never sees a source or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.moving_averages import Schedule, moving_averages
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms, rows_by_label
from streamkm.cluster.seeding.init import Streams, start_centers
from streamkm.cluster.seeding.search_set import centered
from streamkm.cluster.seeding.two_level import coarse_centers, measured, quotas_of
from streamkm.core.progress import Stage
from streamkm.engine import Executor, Folded, open_executor
from streamkm.engine.passes import Pass, run

FEWEST_CLUSTERS = 2048  # for which a search is divided
CELL_CENTERS = 512  # of a cell, about: with 256, borders between cells left 4,096 clusters 0.1 % worse
N_INIT = 2  # starts in a cell
MOST_STEPS = 10  # of Lloyd's algorithm on all rows, which mend the borders of cells


@dataclass(frozen=True, slots=True)
class CellSearch:
    """How cells are searched.

    Attributes
    ----------
    n_cells : int
    max_iter : int
        Steps of Lloyd's algorithm in a cell at most.
    tol : float
        Of these.
    seed : int
        Of all cells, below 2^64.
    schedule : Schedule or None
        Of epochs in each cell, as clusters of all rows would have.
    """

    n_cells: int
    max_iter: int
    tol: float
    seed: int
    schedule: Schedule | None


def n_cells_of(n_clusters: int) -> int:
    """How many cells the search for so many centers is divided among."""
    return max(1, n_clusters // CELL_CENTERS)


def search_cells(
    blocks: Blocks, sampled: Block, n_clusters: int, asked: CellSearch, *, here: Executor
) -> NDArray[np.float64]:
    """Find centers cell by cell; the same bits for any number of workers.

    Parameters
    ----------
    blocks : Blocks of n dense rows
    sampled : Block
        Some of these rows, in random order.
    n_clusters : int
        At most n.
    asked : CellSearch
    here : Executor
        Of this process.

    Returns
    -------
    centers : float64 (n_clusters, m)
        In the order of the cells. The first center is repeated where cells have fewer distinct rows than they should
        get centers: the next step of Lloyd's algorithm moves such centers.
    """
    around, shift = centered(here, sampled)
    coarse = coarse_centers(around, asked.n_cells, rng=np.random.default_rng(asked.seed), executor=here) + shift
    parts, table = SplitRows.Parts([]), NearestCenters.build(coarse, blocks.dtype, around_origin=True)
    sizes, shares = run(SplitRows(table), blocks.placed(), blocks.executor, Stage("split"), sink=parts)
    quotas = quotas_of(shares, sizes.astype(np.int64), n_clusters)
    cells = [[cell, int(quotas[cell]), *parts.of(cell)] for cell in np.flatnonzero(quotas).tolist()]
    found = blocks.executor.map("cells", _searched, cells, blocks.executor.share(asked), large=True)
    union = np.concatenate(list(found))
    return np.concatenate([union, np.repeat(union[:1], n_clusters - len(union), axis=0)])


@dataclass(frozen=True, slots=True)
class SplitRows(Pass[NDArray[np.float64], list[Block], NDArray[np.float64]]):
    """The rows of each block cell by cell; gathered: rows of each cell and its share of the objective (2, cells).

    Attributes
    ----------
    table : NearestCenters
        Of the cells.
    """

    table: NearestCenters

    def start(self) -> NDArray[np.float64]:
        """Cells without rows."""
        return np.zeros((2, self.table.n_clusters))

    def step(self, state: NDArray[np.float64], rows: HeldBlock) -> tuple[NDArray[np.float64], list[Block]]:
        """Split the rows of a block, in their order."""
        block, n_cells = rows.block, self.table.n_clusters
        labels, d2 = measured(block, self.table)
        order, starts = rows_by_label(labels, n_cells)
        state[0] += np.diff(starts)
        state[1] += np.bincount(labels, d2, minlength=n_cells)
        return state, [_picked(block, order[starts[cell] : starts[cell + 1]]) for cell in range(n_cells)]

    def join(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up."""
        first += second
        return first

    @dataclass(slots=True)
    class Parts:
        """A sink of the split rows of each block, which stay where they were split."""

        held: ClassVar[bool] = True
        handles: list[Any]

        def of(self, cell: int) -> list[Any]:
            """Handles of the rows of a cell, block by block."""
            return [handle[cell] for handle in self.handles]

        def take(self, output: Any) -> None:
            """Take the handle of the parts of the next block."""
            self.handles.append(output)

        def restore(self, n_items: int) -> bool:  # noqa: ARG002 - workers hold them
            """Split rows are not saved."""
            return False

        def save(self, name: str, folded: Folded[Any]) -> None:
            """Split rows are not saved."""


def _picked(block: Block, rows: NDArray[np.int64]) -> Block:
    """Some rows of a block."""
    weights = block.weights[rows] if len(block.weights) else NO_WEIGHTS
    return Block(block.X[rows], block.d2norms[rows], weights)


def _searched(item: list[Any], asked: CellSearch) -> NDArray[np.float64]:
    """Centers of a cell, by its number, how many it gets, and its rows in parts."""
    cell, n_wanted, *parts = item
    seeding, search, order = (np.random.default_rng([asked.seed, cell, stream]) for stream in range(3))
    X, weights = np.concatenate([part.X for part in parts]), np.concatenate([part.weights for part in parts])
    rows = order.permutation(len(X))
    X = X[rows]
    with open_executor(1) as here:
        around, shift = centered(here, Block(X, row_d2norms(X), weights[rows] if len(weights) else NO_WEIGHTS))
        pieces, streams = LocalBlocks.of(here, around), Streams(seeding, search)
        centers = start_centers(here, around, n_wanted, init="k-means++", n_init=N_INIT, streams=streams)
        if asked.schedule is not None:
            centers = moving_averages(pieces, centers, asked.schedule, seed=int(order.integers(2**63))).centers
        return lloyd(pieces, centers, max_iter=asked.max_iter, tol=asked.tol, accelerated=True).centers + shift
