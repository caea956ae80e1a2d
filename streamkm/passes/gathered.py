"""Small results of the first pass beside sketched rows: a row sample, a coreset, and the features that occur."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.occurring import Occurring
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.coreset import CoresetRule, CoresetTree, Part
from streamkm.cluster.sampling.row_sample import Candidates, SampleCollector, SampleRule
from streamkm.cluster.search_memory import PLACED_ROW_BYTES
from streamkm.engine.pass_memory import PassMemory, waiting_calls
from streamkm.passes.reader import ValidRows
from streamkm.passes.sizes import ClusterOn, FitSizes
from streamkm.sources.row_source import RowSource

CANDIDATES = 2.5  # row samples' worth of rows: 1.5 gathered, and one picked from them
PICKED_ROW_BYTES = 40  # of a row that may come into the sample: its key and number, and the order of all keys
DRAWN_ROW_BYTES = 128  # of a row, while a coreset is drawn from it and others: distances, draws, shares, orders
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


@dataclass(frozen=True, slots=True)
class SavedRows:
    """`Gathered` as a record of a checkpoint."""

    n_read: NDArray[np.int64]  # (chunks,), rows of each chunk
    # valid rows, those of positive weight, features of the widest chunk, chunks with inexact integers
    sizes: tuple[int, int, int, int]
    candidates: Candidates | None
    occurring: NDArray[np.uint8] | None
    nodes: tuple[tuple[int, int, Part], ...]  # of the coreset tree, by level and index
    n_bytes: int = 0  # of the file of sketched rows


@dataclass(slots=True)
class Gathered:
    """Small results of consecutive chunks of the sketch pass, without the sketched rows."""

    rule: SampleRule
    coreset_rule: CoresetRule | None = None  # rule of the coreset of sketched rows, if one is wanted
    counts: ChunkCounts = field(default_factory=ChunkCounts)
    occurring: Occurring = field(default_factory=Occurring)  # features that occur in wide sparse rows
    blocks: BlockTotals = field(default_factory=BlockTotals)  # of the blocks that are held
    collector: SampleCollector = field(init=False)
    tree: CoresetTree | None = field(init=False)

    def __post_init__(self) -> None:
        self.collector = SampleCollector(self.rule.size)
        self.tree = None if self.coreset_rule is None else CoresetTree(self.coreset_rule)

    def absorb(self, others: Gathered) -> None:
        """Add the results of the chunks that follow; candidates that cannot come into the sample are dropped."""
        if self.tree is not None and others.tree is not None:
            self.tree.absorb(others.tree)
        self.collector.absorb(others.collector, self.counts.n_rows)
        self.occurring.add(others.occurring.bits)
        self.blocks.absorb(others.blocks)
        self.counts.absorb(others.counts)

    def saved(self) -> SavedRows:
        """The record for a checkpoint."""
        counts = self.counts
        sizes = counts.n_valid, counts.n_counted, counts.width, counts.n_inexact
        nodes = () if self.tree is None else tuple((*at, part) for at, part in self.tree.nodes.items())
        return SavedRows(np.array(counts.n_read, np.int64), sizes, self.collector.compact(), self.occurring.bits, nodes)

    def restore(self, saved: SavedRows) -> None:
        """Continue from the record of a checkpoint."""
        n_read = array("q", saved.n_read.tolist())
        self.counts = ChunkCounts(n_read, {}, sum(n_read), *saved.sizes)
        self.occurring = Occurring(saved.occurring)
        if saved.candidates is not None:
            self.collector.add(saved.candidates)
        if self.tree is not None:
            self.tree.nodes.update({(level, index): part for level, index, part in saved.nodes})


def gathered_memory(sizes: FitSizes, cluster_on: ClusterOn) -> PassMemory:
    """Memory of the results of the first pass beside sketched rows."""
    rows, picked = sizes.rows, sizes.rows.row_bytes + PICKED_ROW_BYTES
    sample, told = int(CANDIDATES * sizes.kept_rows * picked), sizes.kept_rows / max(1, sizes.reading.n_chunks) * picked
    if cluster_on != "coreset":
        return PassMemory(kept=sample, told=told)
    # The coreset's tree has one node for each doubling of the chunks, none larger than the coreset. While two nodes are
    # joined, there is a copy of their rows.
    size, chunk_rows = sizes.coreset_rows, sizes.chunk_rows
    row, leaf = PLACED_ROW_BYTES + rows.block_row_bytes, min(size, chunk_rows)
    drawing = chunk_rows * (DRAWN_ROW_BYTES + rows.block_row_bytes) if chunk_rows > size else 0
    joined = min(2 * size, rows.n_rows)
    joining = joined * (2 * row + (DRAWN_ROW_BYTES if joined > size else 0))
    held = node_rows(sizes, sizes.reading.n_chunks) + waiting_calls(sizes.reading.n_threads) * leaf
    return PassMemory(kept=sample + held * row + joining, call=drawing, told=told + leaf * row)


def node_rows(sizes: FitSizes, n_chunks: int) -> int:
    """Most rows in the nodes of the coreset tree of `n_chunks` consecutive chunks."""
    leaf = min(sizes.coreset_rows, sizes.chunk_rows)
    return sum(min(sizes.coreset_rows, leaf << level) for level in range(n_chunks.bit_length()))


def counted(rows: ValidRows, source: RowSource) -> ChunkCounts:
    """Counts of the rows of a chunk."""
    n_valid, width = rows.X.shape
    n_counted = int(np.count_nonzero(rows.weights)) if len(rows.weights) else n_valid
    kept, is_inexact = {} if rows.kept is None else {0: rows.kept}, _is_inexact(rows, source)
    return ChunkCounts(array("q", [rows.n_read]), kept, rows.n_read, n_valid, n_counted, width, is_inexact)


def _is_inexact(rows: ValidRows, source: RowSource) -> bool:
    """Whether rows hold integers of 64 bits that float64 may round; reads the values only if the norms are large."""
    values = rows.X if isinstance(rows.X, np.ndarray) else rows.X.data
    is_long = source.origin.has_long_integers or values.dtype in (np.int64, np.uint64)
    if not is_long or rows.d2norms is None or rows.d2norms.max(initial=0) < EXACT**2:
        return False
    return bool(max(values.max(), -float(values.min())) >= EXACT)
