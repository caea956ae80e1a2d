"""Results of the first pass beside sketched rows: a row sample, a coreset, and the features that occur."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.columns import Occurring
from streamkm.cluster.memory import PLACED_ROW_BYTES
from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.cluster.sampling.coreset_tree import CoresetTree
from streamkm.cluster.sampling.row_sample import Candidates, SampleCollector, SampleRule
from streamkm.engine.memory import PassMemory, waiting_calls
from streamkm.passes.chunk_counts import ChunkCounts
from streamkm.passes.sizes import ClusterOn, FitSizes

CANDIDATES = 2.5  # row samples' worth of rows: 1.5 gathered, and one picked from them
PICKED_ROW_BYTES = 40  # of a row that may come into the sample: its key and number, and the order of all keys
DRAWN_ROW_BYTES = 256  # of a row, while a coreset is drawn from it and others: distances, draws, shares, orders


@dataclass(frozen=True, slots=True)
class SavedRows:
    """`Gathered` as a record.

    `n_read` (chunks,) are the rows of each chunk, `sizes` valid rows, those of positive weight, features of the widest
    chunk, and chunks with inexact integers, and `nodes` the nodes of the coreset tree, by level and index. `n_bytes`
    are those of the file of sketched rows.
    """

    n_read: NDArray[np.int64]
    sizes: tuple[int, int, int, int]
    candidates: Candidates | None
    occurring: NDArray[np.uint8] | None
    nodes: tuple[tuple[int, int, Part], ...]
    n_bytes: int = 0


@dataclass(slots=True)
class Gathered:
    """Results of the sketch pass so far, without the sketched rows."""

    rule: SampleRule
    coreset_rule: CoresetRule | None = None  # rule of the coreset of sketched rows, if one is wanted
    collector: SampleCollector = field(init=False)
    tree: CoresetTree | None = field(init=False)
    counts: ChunkCounts = field(default_factory=ChunkCounts)  # of the chunks so far
    occurring: Occurring = field(default_factory=Occurring)  # features that occur in wide sparse rows

    def __post_init__(self) -> None:
        self.collector = SampleCollector(self.rule.size)
        self.tree = None if self.coreset_rule is None else CoresetTree(self.coreset_rule)

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
    told += min(sizes.coreset_rows, sizes.chunk_rows) * (PLACED_ROW_BYTES + rows.block_row_bytes)
    gathered, drawing = _coreset_bytes(sizes)
    return PassMemory(kept=sample + gathered, call=drawing, told=told)


def node_rows(sizes: FitSizes, n_chunks: int) -> int:
    """Rows in the nodes of the coreset tree of so many consecutive chunks, at most."""
    leaf = min(sizes.coreset_rows, sizes.chunk_rows)
    return sum(min(sizes.coreset_rows, leaf << level) for level in range(n_chunks.bit_length()))


def _coreset_bytes(sizes: FitSizes) -> tuple[int, int]:
    """Bytes of a coreset while it is gathered, and of each call that draws from a chunk for it.

    These are the parts of chunks that are made or wait, and the nodes of the tree: one for each doubling of the chunks,
    none larger than the coreset. While two nodes are joined, there is a copy of their rows.
    """
    rows, reading, size, chunk_rows = sizes.rows, sizes.reading, sizes.coreset_rows, sizes.chunk_rows
    row, leaf = PLACED_ROW_BYTES + rows.block_row_bytes, min(size, chunk_rows)
    nodes = node_rows(sizes, reading.n_chunks)
    drawing = chunk_rows * (DRAWN_ROW_BYTES + rows.block_row_bytes) if chunk_rows > size else 0
    joined = min(2 * size, rows.n_rows)
    joining = joined * (2 * row + (DRAWN_ROW_BYTES if joined > size else 0))
    return (nodes + waiting_calls(reading.n_threads) * leaf) * row + joining, drawing
