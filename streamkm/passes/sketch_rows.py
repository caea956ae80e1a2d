"""The map of the first pass over rows: it sketches those of a chunk, and tells of them what fits in few bytes.

What is told of chunks is joined on the workers of a cluster, where its size is about that of the row sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import merged
from streamkm.cluster.columns import FEWEST_FEATURES, Occurring, occurring_bits
from streamkm.cluster.rows import NO_WEIGHTS, Block
from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.cluster.sampling.row_sample import (
    Candidates,
    SampleCollector,
    SampleRule,
    as_block_matrix,
    sketched_d2norms,
)
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import HeldMap
from streamkm.passes.gathered import gathered_memory
from streamkm.passes.reader import ReadItem, RowReader, ValidRows
from streamkm.passes.sizes import ClusterOn, FitSizes
from streamkm.sketches import Sketch
from streamkm.sources.base import IndexedRows

MOST_INDEXED = 0.5  # share of rows that may be candidates, where rows are found first and then picked


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """Counts and totals of a sketched chunk: rows read, valid rows, rows of positive weight, features."""

    n_read: int
    kept: NDArray[np.int64] | None
    n_valid: int
    n_counted: int
    width: int
    dtype: np.dtype[Any]
    dense: bool = False
    total_weight: float = 0.0
    total_d2norm: float = 0.0
    largest_d2norm: float = 0.0

    @classmethod
    def of(cls, rows: ValidRows, dtype: np.dtype[Any], block: Block | None = None) -> ChunkInfo:
        """Counts and totals of the rows of a chunk, and of their block if it is held."""
        n_valid, width = rows.X.shape
        n_counted = int(np.count_nonzero(rows.weights)) if len(rows.weights) else n_valid
        sizes = (rows.n_read, rows.kept, n_valid, n_counted, width, dtype)
        if block is None:
            return cls(*sizes)
        totals = (block.total_weight(), block.total_d2norm(), block.largest_d2norm())
        return cls(*sizes, isinstance(block.X, np.ndarray), *totals)


@dataclass(slots=True)
class Told:
    """The small result of consecutive sketched chunks: rows for sample and coreset, and the features that occur."""

    n_read: int
    infos: list[ChunkInfo]
    sample: SampleCollector
    parts: list[Part | None]
    occurring: Occurring

    @classmethod
    def of(
        cls,
        info: ChunkInfo,
        candidates: Candidates,
        rule: SampleRule,
        part: Part | None = None,
        bits: NDArray[np.uint8] | None = None,
    ) -> Told:
        """What is told of one chunk."""
        sample = SampleCollector(rule.size)
        sample.add(candidates)
        return cls(info.n_read, [info], sample, [part], Occurring(bits))


@dataclass(frozen=True, slots=True)
class SketchRows(HeldMap[Told]):
    """Sketch the rows of each chunk, and gather its sample, coreset and features.

    Attributes
    ----------
    sketch : Sketch or None
        None: rows are sampled only.
    rule : SampleRule
    coreset_rule : CoresetRule or None
        Rule of the coreset of sketched rows, which replaces blocks.
    """

    sketch: Sketch | None
    rule: SampleRule
    coreset_rule: CoresetRule | None

    @staticmethod
    def memory(sizes: FitSizes, cluster_on: ClusterOn, room: int = 0) -> PassMemory:
        """Memory of gathered and sketched rows; `room`: bytes of spilled blocks that stay in memory."""
        gathered, row = gathered_memory(sizes, cluster_on), 8 + sizes.rows.block_row_bytes
        if cluster_on == "blocks" and not sizes.reading.on_cluster:
            return replace(gathered, kept=gathered.kept + sizes.rows.n_rows * row)
        if cluster_on == "spilled":
            return replace(gathered, kept=gathered.kept + room, output=sizes.chunk_rows * row)
        return gathered

    def read(self, reader: RowReader, item: ReadItem) -> tuple[ValidRows | IndexedRows, RowReader]:
        """Read the rows of a chunk; if few of them are needed, index them only."""
        few = self.sketch is None and self.rule.limit < MOST_INDEXED and not len(item[2])
        indexed = reader.index_rows(item[0]) if few else None
        return reader.read(item) if indexed is None else indexed, reader

    def join(self, first: Told, second: Told) -> Told:
        """Join the small results of chunks; candidates that cannot come into the sample are dropped."""
        first.sample.absorb(second.sample, first.n_read)
        first.occurring.add(second.occurring.bits)
        first.infos += second.infos
        first.parts += second.parts
        first.n_read += second.n_read
        return first

    def output(self, rows: tuple[ValidRows | IndexedRows, RowReader]) -> tuple[Block | None, Told]:
        """The block of sketched rows, if it is held, and the small result of the chunk."""
        found, reader = rows
        if isinstance(found, IndexedRows):
            return None, _indexed(found, reader, self.rule)
        candidates = self.rule.candidates(found.X, found.places, found.numbers, found.weights)
        n_features = reader.source.n_features
        bits = occurring_bits(found.X) if n_features is None or n_features >= FEWEST_FEATURES else None
        if self.sketch is None:
            return None, Told.of(ChunkInfo.of(found, found.X.dtype), candidates, self.rule, bits=bits)
        sketched = as_block_matrix(self.sketch.apply(found.X), sketched=not self.sketch.is_identity)
        if self.coreset_rule is not None:
            part = self.coreset_rule.part(merged(sketched), found.places, found.weights) if len(found.places) else None
            return None, Told.of(ChunkInfo.of(found, sketched.dtype), candidates, self.rule, part, bits)
        as_they_are = self.sketch.is_identity and not isinstance(sketched, np.ndarray)
        known = found.d2norms if as_they_are else None  # no entry repeats an index
        block = Block(sketched, sketched_d2norms(sketched) if known is None else known, found.weights)
        return block, Told.of(ChunkInfo.of(found, sketched.dtype, block), candidates, self.rule, bits=bits)


def _indexed(indexed: IndexedRows, reader: RowReader, rule: SampleRule) -> Told:
    """Sample candidates of a chunk whose other rows stay unread; the assign pass reads and checks them."""
    n_rows = len(indexed.places)
    picked, keys = rule.picks(indexed.places, NO_WEIGHTS)
    rows = reader.checked(indexed.take(picked), indexed.places[picked])
    info = ChunkInfo(n_rows, None, n_rows, n_rows, indexed.n_features, rows.X.dtype)
    return Told.of(info, Candidates(rows.X, keys, picked), rule)
