"""The map of the first pass over rows: it sketches those of a chunk, and tells of them what fits in few bytes.

What is told of chunks is joined on the workers of a cluster, where its size is about that of the row sample.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

import numpy as np

from streamkm.cluster.blocks import merged
from streamkm.cluster.columns import FEWEST_FEATURES, Occurring, occurring_bits
from streamkm.cluster.rows import NO_WEIGHTS, Block
from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.cluster.sampling.coreset_tree import CoresetTree
from streamkm.cluster.sampling.row_sample import (
    Candidates,
    SampleCollector,
    SampleRule,
    as_block_matrix,
    sketched_d2norms,
)
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import HeldMap
from streamkm.passes.chunk_counts import BlockTotals, ChunkCounts, counted
from streamkm.passes.gathered import gathered_memory
from streamkm.passes.reader import ReadItem, RowReader, ValidRows
from streamkm.passes.sizes import ClusterOn, FitSizes
from streamkm.sketches import Sketch
from streamkm.sources.base import IndexedRows

MOST_INDEXED = 0.5  # share of rows that may be candidates, where rows are found first and then picked


@dataclass(slots=True)
class Told:
    """The small result of consecutive sketched chunks: rows for sample and coreset, and the features that occur."""

    counts: ChunkCounts
    sample: SampleCollector
    occurring: Occurring
    blocks: BlockTotals = field(default_factory=BlockTotals)
    tree: CoresetTree | None = None


@dataclass(frozen=True, slots=True)
class SketchRows(HeldMap[Told]):
    """Sketch the rows of each chunk, and gather its sample, coreset and features."""

    sketch: Sketch | None  # None: rows are sampled only
    rule: SampleRule
    coreset_rule: CoresetRule | None  # rule of the coreset of sketched rows, which replaces blocks

    @staticmethod
    def memory(sizes: FitSizes, cluster_on: ClusterOn, room: int = 0) -> PassMemory:
        """Memory of gathered and sketched rows; `room`: bytes of spilled blocks that stay in memory."""
        gathered, row = gathered_memory(sizes, cluster_on), 8 + sizes.rows.block_row_bytes
        if cluster_on == "blocks" and not sizes.reading.on_cluster:
            return replace(gathered, kept=gathered.kept + sizes.rows.n_rows * row)
        if cluster_on == "spilled":
            return replace(gathered, kept=gathered.kept + room, output=sizes.chunk_rows * row)
        return gathered

    def read(self, reader: RowReader, item: ReadItem) -> tuple[ValidRows | IndexedRows, RowReader, int]:
        """Read the rows of a chunk; if few of them are needed, index them only."""
        few = self.sketch is None and self.rule.limit < MOST_INDEXED and not len(item[2])
        indexed = reader.index_rows(item[0]) if few else None
        return reader.read(item) if indexed is None else indexed, reader, item[4]

    def join(self, first: Told, second: Told) -> Told:
        """Join the small results of chunks; candidates that cannot come into the sample are dropped."""
        first.sample.absorb(second.sample, first.counts.n_rows)
        first.occurring.add(second.occurring.bits)
        first.counts.absorb(second.counts)
        first.blocks.absorb(second.blocks)
        if first.tree is not None and second.tree is not None:
            first.tree.absorb(second.tree)
        return first

    def output(self, rows: tuple[ValidRows | IndexedRows, RowReader, int]) -> tuple[Block | None, Told]:
        """The block of sketched rows, if it is held, and the small result of the chunk."""
        found, reader, index = rows
        if isinstance(found, IndexedRows):
            return None, _indexed(found, reader, self.rule)
        sample = SampleCollector(self.rule.size)
        sample.add(self.rule.candidates(found.X, found.places, found.numbers, found.weights))
        n_features = reader.source.n_features
        bits = occurring_bits(found.X) if n_features is None or n_features >= FEWEST_FEATURES else None
        told = Told(counted(found, reader.source), sample, Occurring(bits))
        if self.sketch is None:
            return None, told
        sketched = as_block_matrix(self.sketch.apply(found.X), sketched=not self.sketch.is_identity)
        if self.coreset_rule is not None:
            told.tree = CoresetTree(self.coreset_rule)
            if len(found.places):
                told.tree.add(index, merged(sketched), found.places, found.weights)
            return None, told
        as_they_are = self.sketch.is_identity and not isinstance(sketched, np.ndarray)
        known = found.d2norms if as_they_are else None  # no entry repeats an index
        block = Block(sketched, sketched_d2norms(sketched) if known is None else known, found.weights)
        told.blocks = BlockTotals.of(block)
        return block, told


def _indexed(indexed: IndexedRows, reader: RowReader, rule: SampleRule) -> Told:
    """Sample candidates of a chunk whose other rows stay unread; the assign pass reads and checks them."""
    n_rows = len(indexed.places)
    picked, keys = rule.picks(indexed.places, NO_WEIGHTS)
    rows = reader.checked(indexed.take(picked), indexed.places[picked])
    counts = ChunkCounts(array("q", [n_rows]), {}, n_rows, n_rows, n_rows, indexed.n_features)
    sample = SampleCollector(rule.size)
    sample.add(Candidates(rows.X, keys, picked))
    return Told(counts, sample, Occurring(None))
