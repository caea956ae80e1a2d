"""Rows in blocks, wherever they are held.

One step of Lloyd's algorithm on all blocks, or on the rows near borders between clusters. The kernels do the work on a
block. Sums are gathered in block order in a fixed tree. Never sees a source or a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.batches import Batch, add_batch, rows_of
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.table import CenterTable
from streamkm.cluster.many_steps import Labels, LastStep, Told, chosen_step, near_borders, parted
from streamkm.cluster.rows import Block, add_rows, step_labels
from streamkm.cluster.spill import Held, loaded
from streamkm.cluster.totals import JOIN_TOTALS, Totals, join_totals
from streamkm.compute import Executor, Large, Listener
from streamkm.core.matrix import Matrix
from streamkm.kernels.cluster.rows import add_csr_rows

BLOCK_PLACES = 40
"""Bits of a row's number in a block that a worker may hold: how many rows came before is not known here."""

MOST_NEAR = 0.7
"""Share of a block's rows near borders, from which all rows are looked at."""


def assigned(
    totals: Totals | None,
    X: Matrix,
    weights: NDArray[np.float64],
    table: CenterTable,
    *,
    with_d2: bool,
    gaps: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.int32], Totals, NDArray[np.float64]]:
    """Find the nearest centers of rows and add the rows to the sums of their clusters, in the memory of `totals`.

    Parameters
    ----------
    totals : Totals or None
        None: sums begin with these rows.
    with_d2 : bool
        Squared distances are wanted, and labels that are the nearest centers in truth.
    gaps : float64 (n,), optional
        Written, where such labels are wanted; see `CenterTable.labels`.

    Returns
    -------
    labels : int32 (n,)
    totals : Totals
    d2 : float64 (n,), or (0,) unless asked for
        Squared distances to the nearest centers.
    """
    fresh, totals = totals is None, totals or Totals.unwritten(table)
    labels = table.labels(X, gaps=gaps) if with_d2 else step_labels(X, table)
    to = table if with_d2 else None
    return labels, totals, add_rows(X, weights, labels, totals.sums, totals.counts, fresh=fresh, to=to)


def assigned_far(
    totals: Totals | None,
    X: Matrix,
    weights: NDArray[np.float64],
    table: CenterTable,
    d2norms: NDArray[np.float64],
    told: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.int32], Totals, NDArray[np.float64]]:
    """As `assigned`, of CSR rows far from all centers: labels that are right in truth, but no exact distances.

    Parameters
    ----------
    d2norms : float64 (n,)
        Squared norms of the rows.
    told : two of float64 (n,)
        Written: gaps and squared distances, as `CenterTable.labels_and_lifted` tells them.

    Returns
    -------
    labels : int32 (n,)
    totals : Totals
    lifted : float64 (n,)
        As of `labels_and_lifted`.
    """
    fresh, totals = totals is None, totals or Totals.unwritten(table)
    labels, lifted = table.labels_and_lifted(X, d2norms, *told)
    add_rows(X, weights, labels, totals.sums, totals.counts, fresh=fresh)
    return labels, totals, lifted


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks in order, held by an executor.

    Attributes
    ----------
    handles : tuple
        Blocks, where blocks were written, or futures of blocks.
    n_rows, total_weight, total_d2norm : numbers
        Over all blocks; `total_d2norm` is the weighted sum of squared norms.
    largest_d2norm : float
        Largest squared norm of a row.
    n_components : int
    dtype : dtype
        Of the products with centers: float32 or float64.
    partable : bool
        Whether a run may look at some rows only: they are dense, and memory holds most of them once more.
    """

    executor: Executor
    handles: tuple[Any, ...]
    n_rows: int
    n_components: int
    dtype: np.dtype[Any]
    total_weight: float
    total_d2norm: float
    largest_d2norm: float
    partable: bool

    def table(self, centers: NDArray[np.float64]) -> CenterTable:
        """Lay out centers (k, m) for these blocks."""
        return CenterTable.build(centers, self.dtype)

    def totals(self, centers: NDArray[np.float64], stage: str = "lloyd") -> Totals:
        """Assign every row to its nearest center; gather sums and counts."""
        table = self.executor.share(self.table(centers))
        return self.executor.fold(stage, _step, JOIN_TOTALS, self.handles, len(self.handles), table)

    def step(
        self,
        centers: NDArray[np.float64],
        last: LastStep | None,
        stage: str,
        *,
        full: bool,
        reach: NDArray[np.float64] | None = None,
    ) -> tuple[Totals, LastStep | None]:
        """As `totals`; of many centers, among those near each row's last one, or of the rows near borders only.

        Parameters
        ----------
        last : LastStep, optional
            Of the last step: its labels are overwritten where the step finds others, as both would take twice the
            memory. None: all centers are looked at.
        full : bool
            Whether all rows look at all centers in any case.
        reach : float64 (k,), optional
            A step among neighbours tells by it which rows the next steps look at; see `many_steps.near_borders`.

        Returns
        -------
        totals : Totals
        last : LastStep, or None
            For the next step; None where there are few centers, or rows are sparse or of float64.
        """
        if len(centers) < FEWEST_CENTERS:
            return self.totals(centers, stage), None
        n_blocks, border = len(self.handles), None if last is None or full else last.border
        step, given, lists = chosen_step(self.table(centers), last, self.executor, full=full, reach=reach)
        labels: list[Any] = [None] * n_blocks if last is None else list(last.labels)
        rows: list[Any] = [None] * n_blocks if border is None else border.rows
        if last is not None:
            last.labels.clear()  # `labels` has them, until new ones come
        numbers = iter(range(n_blocks))

        def take(told: Told) -> None:
            number = next(numbers)
            labels[number], rows[number] = told

        items = ([handle, labels[number], rows[number]] for number, handle in enumerate(self.handles))
        large: Large = "state" if 8 * centers.size > self._block_bytes else None
        totals = self.executor.fold(
            stage, step, JOIN_TOTALS, items, n_blocks, self.executor.share(given), large=large, listener=Listener(take)
        )
        if any(part is None for part in labels):
            return totals, None
        if border is not None:
            return join_totals([border.rest, totals]), LastStep(labels, lists, border)
        if reach is not None and lists is not None:
            return parted(totals, labels, rows, lists)
        return totals, LastStep(labels, lists)

    def batch(self, table: CenterTable, batch: Batch, stage: str, likely: Labels | None = None) -> Totals:
        """Sums and counts of the rows of a batch, by their nearest centers; `d2` is the sum of their squared norms.

        Parameters
        ----------
        likely : list of int32 (n,), optional
            Labels of each block that are likely right; those of the batch are written. They only save time.
        """
        labels = likely if likely is not None and self.executor.joins_here else [None] * len(self.handles)
        items = [[*item, part] for item, part in zip(self.placed(), labels, strict=True)]
        large: Large = "state" if 8 * table.centers.size * batch.n_batches > self._block_bytes else None
        shared = self.executor.share((table, batch))
        return self.executor.fold(stage, add_batch, JOIN_TOTALS, items, len(items), shared, large=large)

    def placed(self) -> Iterator[list[Any]]:
        """Blocks, each after the place of its first row: for draws by places, and for sums over blocks.

        Neither places nor cuts depend on threads. Places are distinct, and those of a block are consecutive.
        """
        return ([number << BLOCK_PLACES, handle] for number, handle in enumerate(self.handles))

    @property
    def _block_bytes(self) -> int:
        """Bytes of a block of dense rows, about."""
        return self.n_rows * self.n_components * self.dtype.itemsize // max(1, len(self.handles))

    def parted(
        self, centers: NDArray[np.float64], reach: NDArray[np.float64], stage: str
    ) -> tuple[Totals, Parted | None]:
        """As `totals`; the rows near borders between clusters become blocks of their own.

        Parameters
        ----------
        reach : float64 (k,)
            How much farther, in squared distance, the second nearest center of such a row of each cluster is at most.

        Returns
        -------
        totals : Totals
            Of all rows.
        parted : Parted or None
            None where more than `MOST_NEAR` of a block's rows are near.
        """
        shared = self.executor.share((self.table(centers), reach))
        handles: list[Any] = []
        n_near, few, rest, near = 0, True, None, None
        for handle, part in self.executor.hold(stage, _part, self.handles, shared):
            if part.n_near:
                handles.append(handle)
            n_near += part.n_near
            few &= part.few
            rest = part.rest if rest is None else join_totals([rest, part.rest])
            near = part.near if near is None else join_totals([near, part.near])
        assert rest is not None
        assert near is not None  # there are blocks
        parted = Parted(replace(self, handles=tuple(handles), n_rows=n_near), rest) if few and handles else None
        return join_totals([rest, near]), parted


@dataclass(frozen=True, slots=True)
class Parted:
    """Rows near borders between clusters, and the sums of all others.

    Attributes
    ----------
    near : Blocks
        `total_weight`, `total_d2norm` and `largest_d2norm` are those of all rows.
    rest : Totals
    """

    near: Blocks
    rest: Totals

    def totals(self, centers: NDArray[np.float64], stage: str) -> Totals:
        """Assign the rows near borders anew."""
        return join_totals([self.rest, self.near.totals(centers, stage)])


@dataclass(frozen=True, slots=True)
class _Part:
    """What tells of a block's rows: how many are near borders, whether few enough, and the sums of these and others."""

    n_near: int
    few: bool
    rest: Totals
    near: Totals


def _part(held: Held, shared: tuple[CenterTable, NDArray[np.float64]]) -> tuple[Block, _Part]:
    """The rows of a block that are near borders, none if they are too many, and what tells of them."""
    block, (table, _) = loaded(held), shared
    labels, near = labels_and_nearness(block.X, shared)
    totals = []
    for kept in (np.where(near, np.int32(-1), labels), np.where(near, labels, np.int32(-1))):
        part = Totals.unwritten(table)
        add_rows(block.X, block.weights, kept, part.sums, part.counts, fresh=True)
        totals.append(part)
    picked = np.flatnonzero(near)
    few = len(picked) <= MOST_NEAR * block.n_rows
    found = _Part(len(picked) if few else 0, few, *totals)
    picked = picked if few else picked[:0]
    return rows_of(block, picked), found


def labels_and_nearness(
    X: Matrix, shared: tuple[CenterTable, NDArray[np.float64]]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Nearest centers of dense rows (n,), and whether they are near a border: by a table, and how near that is (k,)."""
    table, reach = shared
    found = table.nearest(X)
    return found[0], near_borders(found, reach, table.layout(table.dtype, sparse=False).scale)


def _step(state: Totals | None, held: Held, table: CenterTable) -> tuple[Totals, None]:
    block = loaded(held)
    return assigned(state, block.X, block.weights, table, with_d2=False)[1], None


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
