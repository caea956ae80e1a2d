"""One block in this process, worked on by its threads: for the row sample, whose sums may outweigh its rows.

Rows are labelled by pieces; sums are then gathered cluster by cluster in one shared array. A cluster's sum runs over
its rows in order, whatever the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Batch, BlockLabels, Blocks, labelled
from streamkm.cluster.centers.nearest import NearestCenters, step_labels
from streamkm.cluster.centers.neighbours import Neighbourhood
from streamkm.cluster.held_rows import HeldRows
from streamkm.cluster.rows import NO_NORMS, Block, Totals, batch_rows, row_d2, rows_by_label
from streamkm.core.matrix import Matrix, as_working, rows_between, working_dtype
from streamkm.engine import Executor, Large
from streamkm.engine.reduction import RUNS
from streamkm.kernels.cluster.label_order import add_csr, add_dense
from streamkm.kernels.cluster.totals import weighted_sum

ROW_PIECES = 2  # for each thread, which take the same time
CLUSTER_PIECES = 4  # for each thread, which do not
PIECE_ENTRIES = 1 << 15  # at least: handing less to another thread takes longer than doing it


@dataclass(frozen=True, slots=True)
class LocalBlocks(Blocks):
    """Blocks that are pieces of one, as many as its executor's threads want."""

    whole: Block

    @classmethod
    def of(cls, executor: Executor, block: Block) -> LocalBlocks:
        """Cut a block."""
        X, pieces = block.X, tuple(cut(block, count_pieces(executor, block.X, ROW_PIECES)))
        sums = block.total_weight(), block.total_d2norm(), block.largest_d2norm()
        return cls(executor, pieces, block.n_rows, X.shape[1], X.dtype, *sums, isinstance(X, np.ndarray), block)

    def placed(self, labels: Sequence[NDArray[Any] | None] | None = None, takes_memory: Large = None) -> HeldRows:
        """Pieces as in `Blocks.placed`, but cut by their entries alone; row ids count through all rows."""
        pieces = cut(self.whole, pieces_worth(entries_of(self.whole.X), RUNS))
        starts = list(accumulate((piece.n_rows for piece in pieces), initial=0))
        return HeldRows(pieces, starts[:-1], labels, takes_memory)

    def totals(self, centers: NDArray[np.float64], stage: str = "lloyd") -> Totals:
        """Assign every row to its nearest center; gather sums and counts."""
        labels = self.labels(centers, stage)
        return label_sums(self.executor, self.whole.X, self.whole.weights, labels, len(centers), stage)

    def batch(self, table: NearestCenters, batch: Batch, stage: str, likely: BlockLabels | None = None) -> Totals:
        """Run `Blocks.batch` on the rows of all pieces."""
        whole, rows = self.whole, batch.rows(0, self.n_rows)
        known = None if likely is None else likely.handles[0]

        def labels_of(some: NDArray[np.int64]) -> NDArray[np.int32]:
            parts = [np.empty(0, np.int32), *(labels for _, labels in labelled(whole, some, table, known))]
            return np.concatenate(parts)

        n_entries = entries_of(whole.X) * len(rows) // max(1, self.n_rows)
        pieces = np.array_split(rows, pieces_worth(n_entries, ROW_PIECES * self.executor.n_workers))
        found = self.executor.each(stage, labels_of, pieces)
        order, starts = rows_by_label(np.concatenate(found), table.n_clusters)
        totals = member_sums(self.executor, whole.X, whole.weights, (rows[order], starts), stage)
        weights = whole.weights[rows] if len(whole.weights) else whole.weights
        return replace(totals, d2=float(weighted_sum(weights, whole.d2norms[rows])))

    def _labelled_step(
        self, centers: NDArray[np.float64], likely: BlockLabels | None, stage: str
    ) -> tuple[Totals, BlockLabels]:
        labels = self.labels(centers, stage, None if likely is None else likely.handles[0])
        totals = label_sums(self.executor, self.whole.X, self.whole.weights, labels, len(centers), stage)
        return totals, BlockLabels([labels])

    def nearest_among(
        self, near: Neighbourhood, labels: NDArray[np.int32], stage: str
    ) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """Run `Neighbourhood.nearest` on all rows."""
        found = self.executor.each(stage, lambda task: near.nearest(*task), self._tasks(labels))
        joined, scores, seconds = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return joined, scores, seconds

    def _tasks(self, *arrays: NDArray[Any]) -> list[tuple[Any, ...]]:
        """Rows of each piece, with its parts of arrays of all rows (n,)."""
        cuts = pairwise(accumulate((piece.n_rows for piece in self.handles), initial=0))
        pairs = zip(self.handles, cuts, strict=True)
        return [(piece.X, *(array[start:stop] for array in arrays)) for piece, (start, stop) in pairs]

    def labels(
        self, centers: NDArray[np.float64], stage: str = "lloyd", likely: NDArray[np.int32] | None = None
    ) -> NDArray[np.int32]:
        """Nearest centers of all rows (n,), optionally from likely ones."""
        table, tasks = self.table(centers), self._tasks(*([] if likely is None else [likely]))
        found = self.executor.each(stage, lambda task: step_labels(task[0], table, *task[1:]), tasks)
        return np.concatenate(found)

    def score(self, table: NearestCenters, out: NDArray[Any], stage: str = "seed") -> None:
        """Run `NearestCenters.score` on all rows (n, p)."""
        self.executor.each(stage, lambda task: table.score(*task), self._tasks(out))


def nearest_in(
    executor: Executor, X: Matrix, table: NearestCenters, stage: str, gaps: NDArray[np.float64] | None = None
) -> NDArray[np.int32]:
    """Truly nearest centers of all rows (n,), by threads; `gaps` (n,) is written as by `NearestCenters.labels`."""
    cuts = np.unique(np.linspace(0, X.shape[0], count_pieces(executor, X, ROW_PIECES) + 1).astype(int))
    pieces = [
        (rows_between(X, start, stop), None if gaps is None else gaps[start:stop]) for start, stop in pairwise(cuts)
    ]
    return np.concatenate(executor.each(stage, lambda piece: table.labels(piece[0], gaps=piece[1]), pieces))


def label_sums(
    executor: Executor,
    X: Matrix,
    weights: NDArray[np.float64],
    labels: NDArray[np.int32],
    n_clusters: int,
    stage: str = "lloyd",
    to: tuple[NearestCenters, NDArray[np.float64]] | None = None,
) -> Totals:
    """Sums and counts of the rows of each label, by threads of this process.

    `X`: (n, m), dense of any real dtype or CSR. `weights`: float64 (n,) or (0,). `labels`: int32 (n,). `to`: centers
    and a float64 (n,) to write squared distances to them.
    """
    return member_sums(executor, X, weights, rows_by_label(labels, n_clusters), stage, to)


def member_sums(
    executor: Executor,
    X: Matrix,
    weights: NDArray[np.float64],
    members: tuple[NDArray[np.int64], NDArray[np.int64]],
    stage: str,
    to: tuple[NearestCenters, NDArray[np.float64]] | None = None,
) -> Totals:
    """Compute `label_sums` from rows in the order of their clusters, as of `rows_by_label`."""
    starts = members[1]
    n_clusters = len(starts) - 1
    # uninitialised; `_add` writes every cluster
    totals = Totals(np.empty((n_clusters, X.shape[1])), np.zeros(n_clusters))
    table, d2 = (None, np.empty(0)) if to is None else to
    cuts = cluster_cuts(starts, count_pieces(executor, X, CLUSTER_PIECES))
    executor.each(stage, _add, cuts, X, weights, members, totals, d2, table)
    return totals if to is None else replace(totals, d2=float(weighted_sum(weights, d2)))


def cluster_cuts(starts: NDArray[np.int64], n_pieces: int) -> list[tuple[int, int]]:
    """Pieces of the clusters with about as many rows each: first cluster and stop."""
    n_rows, n_clusters = int(starts[-1]), len(starts) - 1
    shares = np.searchsorted(starts, [n_rows * piece // n_pieces for piece in range(1, n_pieces)])
    return list(pairwise(sorted({0, *shares.tolist(), n_clusters})))


def count_pieces(executor: Executor, X: Matrix, n_each: int) -> int:
    """Number of pieces of work on rows: `n_each` a thread, or as many as are worth a thread.

    Results must not depend on the cut; sums over pieces use `LocalBlocks.placed`.
    """
    return pieces_worth(entries_of(X), n_each * executor.n_workers)


def entries_of(X: Matrix) -> int:
    """Number of entries that rows store."""
    return int(X.size if isinstance(X, np.ndarray) else X.nnz)


def pieces_worth(n_entries: int, most: int) -> int:
    """Number of pieces of `n_entries` that are worth a thread, up to `most`."""
    return max(1, min(most, n_entries // PIECE_ENTRIES))


def cut(block: Block, n_pieces: int) -> list[Block]:
    """Cut a block's rows into at most `n_pieces` consecutive pieces."""
    cuts = np.unique(np.linspace(0, block.n_rows, n_pieces + 1).astype(int))
    return [
        Block(rows_between(block.X, start, stop), block.d2norms[start:stop], block.weights[start:stop])
        for start, stop in pairwise(cuts)
    ]


def _add(
    clusters: tuple[int, int],
    X: Matrix,
    weights: NDArray[np.float64],
    members: tuple[NDArray[np.int64], NDArray[np.int64]],
    totals: Totals,
    d2: NDArray[np.float64],
    to: NearestCenters | None,
) -> None:
    (first, last), (order, starts) = clusters, members
    sums, counts = totals.sums, totals.counts
    if not isinstance(X, np.ndarray):
        part = starts[first : last + 1]
        centers, norms = (sums, NO_NORMS) if to is None else (to.centers, to.center_norms())
        data = as_working(X.data)
        add_csr(X.indptr, X.indices, data, weights, order, part, first, True, centers, norms, sums, counts, d2)
        return
    working, n_batch = X.dtype == working_dtype(X.dtype), batch_rows(X.shape[1])
    if working:
        add_dense(X, weights, order, starts[first : last + 1], first, True, sums, counts)
        if to is None:
            return
    else:  # rows are converted as they are needed
        sums[first:last] = 0
    for c in range(first, last):
        for start in range(starts[c], starts[c + 1], n_batch):
            rows = order[start : min(start + n_batch, starts[c + 1])]
            some, part = as_working(X[rows]), np.array([0, len(rows)])
            if to is not None:
                d2[rows] = row_d2(some, np.full(len(rows), c, np.int32), to)
            if not working:
                add_dense(
                    some, weights[rows] if len(weights) else weights, np.arange(len(rows)), part, c, False, sums, counts
                )
