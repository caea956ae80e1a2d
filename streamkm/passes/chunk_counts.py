"""Counts of chunks, and totals of their blocks: some numbers a chunk, whatever the number of chunks."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import Block
from streamkm.passes.reader import ValidRows
from streamkm.sources.base import RowSource

EXACT = 2.0**53  # float64 holds all integers below


@dataclass(slots=True)
class ChunkCounts:
    """Counts of consecutive chunks."""

    n_read: array[int] = field(default_factory=lambda: array("q"))  # array of int64 (chunks,), rows of each chunk
    # dict of int to int64 (v,), numbers of the valid rows in each chunk with others, by the number of the chunk
    kept: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    n_rows: int = 0  # rows of all chunks, those of them that are valid, and those of these with a positive weight
    n_valid: int = 0
    n_counted: int = 0
    width: int = 0  # features of the widest
    n_inexact: int = 0  # chunks with integers of 64 bits that float64 may not hold

    def __len__(self) -> int:
        return len(self.n_read)

    def empty(self) -> set[int]:
        """Numbers of the chunks without valid rows."""
        unread = {number for number, n_rows in enumerate(self.n_read) if not n_rows}
        return unread | {number for number, kept in self.kept.items() if not len(kept)}

    def absorb(self, others: ChunkCounts) -> None:
        """Add the counts of the chunks that follow."""
        self.kept.update({len(self) + number: kept for number, kept in others.kept.items()})
        self.n_read.extend(others.n_read)
        self.n_valid += others.n_valid
        self.n_rows += others.n_rows
        self.n_counted += others.n_counted
        self.width = max(self.width, others.width)
        self.n_inexact += others.n_inexact


@dataclass(slots=True)
class BlockTotals:
    """Totals of the blocks of consecutive chunks; those without rows are left out."""

    # array of float64 (blocks,), weight of the rows of each, and the weighted sum of their squared norms
    weights: array[float] = field(default_factory=lambda: array("d"))
    d2norms: array[float] = field(default_factory=lambda: array("d"))
    largest_d2norm: float = 0.0  # largest squared norm of a row
    dtype: np.dtype[Any] | None = None  # that holds the rows of all blocks; None: there is none
    dense: bool = True  # whether all rows are dense

    @classmethod
    def of(cls, block: Block | None) -> BlockTotals:
        """Totals of one block, if there is one."""
        if block is None or not block.n_rows:
            return cls()
        totals = array("d", [block.total_weight()]), array("d", [block.total_d2norm()])
        return cls(*totals, block.largest_d2norm(), block.X.dtype, isinstance(block.X, np.ndarray))

    def absorb(self, others: BlockTotals) -> None:
        """Add the totals of the blocks that follow."""
        self.weights.extend(others.weights)
        self.d2norms.extend(others.d2norms)
        self.largest_d2norm = max(self.largest_d2norm, others.largest_d2norm)
        dtypes = [dtype for dtype in (self.dtype, others.dtype) if dtype is not None]
        self.dtype = np.result_type(*dtypes) if dtypes else None
        self.dense = self.dense and others.dense


def counted(rows: ValidRows, source: RowSource) -> ChunkCounts:
    """Counts of the rows of a chunk."""
    n_valid, width = rows.X.shape
    n_counted = int(np.count_nonzero(rows.weights)) if len(rows.weights) else n_valid
    kept, is_inexact = {} if rows.kept is None else {0: rows.kept}, _is_inexact(rows, source)
    return ChunkCounts(array("q", [rows.n_read]), kept, rows.n_read, n_valid, n_counted, width, is_inexact)


def _is_inexact(rows: ValidRows, source: RowSource) -> bool:
    """Whether rows hold integers of 64 bits that float64 may not hold; looks at values of long rows only."""
    values = rows.X if isinstance(rows.X, np.ndarray) else rows.X.data
    is_long = source.has_long_integers or values.dtype in (np.int64, np.uint64)
    if not is_long or rows.d2norms is None or rows.d2norms.max(initial=0) < EXACT**2:
        return False
    return bool(max(values.max(), -float(values.min())) >= EXACT)
