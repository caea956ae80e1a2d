"""The map of the first pass: it sketches the rows of a chunk, and returns a summary about as small as the sample."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamkm.cluster.occurring import FEWEST_FEATURES, Occurring, occurring_bits
from streamkm.cluster.rows import NO_WEIGHTS, Block, merged
from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.cluster.sampling.row_sample import (
    Candidates,
    SampleRule,
    as_block_matrix,
    sketched_d2norms,
    stacked,
)
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine.pass_memory import PassMemory
from streamkm.engine.passes import HeldMap, Map, outputs
from streamkm.passes.gathered import BlockTotals, ChunkCounts, Gathered, counted, gathered_memory
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import ReadItem, RowReader, SourceRows, ValidRows
from streamkm.passes.sizes import ClusterOn, FitSizes
from streamkm.sketches.base_sketch import Sketch
from streamkm.sources.chunks import Chunk
from streamkm.sources.row_source import IndexedRows

MOST_INDEXED = 0.5  # largest share of candidates for which rows are indexed first and then picked


@dataclass(frozen=True, slots=True)
class SketchRows(HeldMap[Gathered]):
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
        """Read the rows of a chunk, or only index them if few are needed."""
        few = self.sketch is None and self.rule.limit < MOST_INDEXED and not len(item[2])
        indexed = reader.index_rows(item[0]) if few else None
        return reader.read(item) if indexed is None else indexed, reader, item[4]

    def join(self, first: Gathered, second: Gathered) -> Gathered:
        """Join the small results of chunks."""
        first.absorb(second)
        return first

    def output(self, rows: tuple[ValidRows | IndexedRows, RowReader, int]) -> tuple[Block | None, Gathered]:
        """The block of sketched rows, if it is held, and the small result of the chunk."""
        found, reader, index = rows
        if isinstance(found, IndexedRows):
            return None, _indexed(found, reader, self.rule)
        n_features = reader.source.n_features
        bits = occurring_bits(found.X) if n_features is None or n_features >= FEWEST_FEATURES else None
        told = Gathered(self.rule, self.coreset_rule, counted(found, reader.source), Occurring(bits))
        told.collector.add(self.rule.candidates(found.X, found.row_ids, found.numbers, found.weights))
        if self.sketch is None:
            return None, told
        sketched = as_block_matrix(self.sketch.apply(found.X), sketched=not self.sketch.is_identity)
        if told.tree is not None:
            if len(found.row_ids):
                told.tree.add(index, merged(sketched), found.row_ids, found.weights)
            return None, told
        as_they_are = self.sketch.is_identity and not isinstance(sketched, np.ndarray)
        known = found.d2norms if as_they_are else None  # no entry repeats an index
        block = Block(sketched, sketched_d2norms(sketched) if known is None else known, found.weights)
        told.blocks = BlockTotals.of(block)
        return block, told


def _indexed(indexed: IndexedRows, reader: RowReader, rule: SampleRule) -> Gathered:
    """Sample candidates of a chunk whose other rows stay unread; the assign pass reads and checks them."""
    n_rows = len(indexed.row_ids)
    picked, keys = rule.picks(indexed.row_ids, NO_WEIGHTS)
    rows = reader.checked(indexed.take(picked), indexed.row_ids[picked])
    counts = ChunkCounts(array("q", [n_rows]), {}, n_rows, n_rows, n_rows, indexed.n_features)
    told = Gathered(rule, counts=counts, occurring=Occurring(None))
    told.collector.add(Candidates(rows.X, keys, picked))
    return told


FEWEST_PLACES, MOST_PLACES = 16, 64
MOST_SHARE = 0.05  # of the rows that are read for more places than rows are wanted from


def rows_ahead(context: PassContext, n_wanted: int, row_bytes: int, stage: Stage) -> Matrix:
    """Read about `n_wanted` rows (s, d) from evenly spread chunks, each as small as its storage allows.

    The source must know its number of rows. Small chunks give fewer rows; an invalid row raises InvalidInputError.
    """
    reader = replace(context.reader, target_bytes=max(1, n_wanted // MOST_PLACES) * row_bytes)
    chosen, parts = _places(reader.source.chunks(reader.target_bytes), n_wanted), []
    rows, evenly = SourceRows(reader, chosen=chosen), Evenly(-(-n_wanted // len(chosen)))
    for X, n_read in outputs(evenly, rows, context.executor, stage, large=True):
        parts.append(X)
        stage.rows += n_read
    return stacked(parts)


@dataclass(frozen=True, slots=True)
class Evenly(Map[tuple[Matrix, int]]):
    """Evenly spread rows of each chunk, and the number of its rows."""

    n_each: int

    @staticmethod
    def memory(n_wanted: int, row_bytes: int) -> PassMemory:
        """Memory of the rows, as they were read and as one matrix."""
        return PassMemory(kept=2 * n_wanted * row_bytes)

    def output(self, rows: ValidRows) -> tuple[Matrix, int]:
        """At most `n_each` rows of a chunk, and the number of its rows."""
        step = max(1, rows.X.shape[0] // self.n_each)
        return rows.X[::step][: self.n_each], rows.n_read


def _places(chunks: Sequence[Chunk], n_wanted: int) -> frozenset[int]:
    """Chunks to read: enough for the rows, and more of them while they are a small part of all."""
    lengths = np.fromiter((chunk.stop - chunk.start for chunk in chunks), np.int64, len(chunks))
    enough = -(-n_wanted // max(1, int(np.median(lengths))))
    spread = min(FEWEST_PLACES, int(MOST_SHARE * len(chunks)))
    n_places = min(len(chunks), MOST_PLACES, max(enough, spread))
    return frozenset(((np.arange(n_places) * len(chunks) + len(chunks) // 2) // n_places).tolist())
