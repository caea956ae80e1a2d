"""Passes before the search for centers: count rows, sample and sketch them, find a sketch on all of them.

Each function here reads every row once. Knows no defaults of parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks, merged
from streamkm.cluster.columns import FEWEST_FEATURES, Columns, Occurring, occurring_bits
from streamkm.cluster.rows import NO_WEIGHTS, Block
from streamkm.cluster.sampling.coreset import Coreset, CoresetRule, Part
from streamkm.cluster.sampling.row_sample import Candidates, Sample, SampleRule, as_block_matrix, sketched_d2norms
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.ordered_sum import added_in_order
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map, Pass
from streamkm.passes.context import PassContext
from streamkm.passes.gathered import Gathered, SavedRows, gathered_memory
from streamkm.passes.reader import ReadItem, RowReader, ValidRows
from streamkm.passes.sizes import ClusterOn, FitSizes
from streamkm.sketches import Sketch, SketchFit
from streamkm.sketches.base import SketchFitBytes
from streamkm.sources.base import IndexedRows

MOST_INDEXED = 0.5  # share of rows that may be candidates, where rows are found first and then picked


@dataclass(frozen=True, slots=True)
class Sketched:
    """The result of the sketch pass.

    Attributes
    ----------
    blocks : Blocks or None
        None if sketched rows are not held.
    coreset : Coreset or None
        A coreset of sketched rows, in place of blocks.
    sample : Sample
    chunk_rows : int64 (chunks,)
        Rows of each chunk, invalid ones included.
    kept : tuple of (int64 (v,) or None)
        Numbers of the valid rows in each chunk; None: all.
    n_features : int
        d of the source, or of the widest row.
    n_valid : int
        Number of valid rows.
    occurring : Occurring
        Features that occur in wide sparse rows.
    """

    blocks: Blocks | None
    coreset: Coreset | None
    sample: Sample
    chunk_rows: NDArray[np.int64]
    kept: tuple[NDArray[np.int64] | None, ...]
    n_features: int
    n_valid: int
    occurring: Occurring

    @property
    def columns(self) -> Columns | None:
        """The features that occur, if they are known and few."""
        if self.occurring.bits is None and self.sample.complete:
            return Columns.of(self.sample.X)
        return self.occurring.columns(self.n_features)


def sketch_pass(
    context: PassContext,
    gathered: Gathered,
    stage: Stage,
    *,
    sketch: Sketch | None = None,
    chunk_rows: NDArray[np.int64] | None = None,
    record: str | None = None,
) -> Sketched:
    """Read all rows once: sketch them into blocks and keep a sample of them.

    Parameters
    ----------
    context : PassContext
    gathered : Gathered
        Filled in place. Chunks that it contains already are not read again.
    stage : Stage
        Advances by one for each chunk.
    sketch : Sketch, optional
        None: only sample.
    chunk_rows : int64 (chunks,), optional
        Rows of each chunk, from `count_pass`; needed if there are weights and the source does not know.
    record : str, optional
        Name under which `gathered` is saved as it grows, and restored from an earlier run. None: it is not saved,
        because sketched rows in memory would be lost with the process.

    Raises
    ------
    InvalidInputError
        If a row is invalid, there are no rows, or `weights` has another length than the rows.
    """
    reader, weights, writer = context.reader, context.weights, context.writer
    if record is not None:
        saved = writer.load(record, SavedRows)
        if saved is not None:
            gathered.restore(saved)
        stage.after_advance = lambda: writer.save_if_due(record, gathered.saved)
    if reader.source.n_rows is not None:
        check_weights(reader, weights, reader.source.n_rows)
    handles: list[Any] = []
    infos: list[_Info] = []
    first_row, n_before = gathered.n_read, len(gathered.counts)
    map_ = SketchRows(sketch, gathered.rule, gathered.coreset_rule)
    stage.advance(n_before)
    for handle, told in context.held_outputs(map_, stage, chunk_rows, n_before):
        info, part = told.info, told.part
        if part is not None and gathered.tree is not None:
            gathered.tree.insert(part, len(gathered.counts))
        elif info.n_valid:
            handles.append(context.spill.keep(handle) if context.spill and isinstance(handle, Block) else handle)
        if len(told.candidates.rows):
            gathered.collector.add(told.candidates, first_row)
        gathered.occurring.add(told.bits)
        infos.append(info)
        gathered.counts.append((info.n_read, info.n_valid, info.n_counted, info.width))
        first_row += info.n_read
    stage.rows = first_row
    blocks = None
    if sketch is not None and gathered.tree is None and handles:
        blocks = _blocks(context.executor, sketch, handles, infos)
    sketched = _sketched(context, gathered, blocks, tuple(info.kept for info in infos))
    if record is not None:
        writer.save(record, gathered.saved())
    return sketched


def _sketched(
    context: PassContext, gathered: Gathered, blocks: Blocks | None, kept: tuple[NDArray[np.int64] | None, ...]
) -> Sketched:
    """The result of the pass; raises InvalidInputError without rows, or for weights of another length."""
    source = context.reader.source
    n_read, n_valid, n_counted, widths = np.array(gathered.counts, np.int64).reshape(-1, 4).T
    if not n_valid.any():
        raise InvalidInputError(f"{source.name} has no {'valid ' if n_read.any() else ''}rows; needed: at least 1")
    check_weights(context.reader, context.weights, int(n_read.sum()))
    n_features = source.n_features or max(1, int(widths.max()))
    sample = gathered.collector.sample(n_features, int(n_counted.sum()), context.weights)
    part = None if gathered.tree is None else gathered.tree.part()
    coreset = None if part is None or gathered.coreset_rule is None else gathered.coreset_rule.finish(part)
    return Sketched(blocks, coreset, sample, n_read, kept, n_features, int(n_valid.sum()), gathered.occurring)


def _blocks(executor: Executor, sketch: Sketch, handles: list[Any], infos: list[_Info]) -> Blocks:
    """Held blocks of all chunks with valid rows."""
    filled = [info for info in infos if info.n_valid]
    return Blocks(
        executor,
        tuple(handles),
        sum(info.n_valid for info in filled),
        sketch.n_components,
        np.result_type(*{info.dtype for info in filled}),
        added_in_order(info.total_weight for info in filled),
        added_in_order(info.total_d2norm for info in filled),
        max(info.largest_d2norm for info in filled),
        all(info.dense for info in filled),
    )


@dataclass(frozen=True, slots=True)
class Count(Map[int]):
    """Count the rows of each chunk."""

    def output(self, rows: ValidRows) -> int:
        """Rows of a chunk, invalid ones included."""
        return rows.n_read


def count_pass(context: PassContext, stage: Stage) -> NDArray[np.int64]:
    """Read all rows once to count those of each chunk (chunks,), which weights of rows of text need."""
    unweighted = replace(context, weights=NO_WEIGHTS)
    counts = np.array(list(unweighted.outputs(Count(), stage)), np.int64)
    stage.rows = int(counts.sum())
    return counts


@dataclass(frozen=True, slots=True)
class FindSketch(Pass[Any, None, Sketch | SketchFit]):
    """One round of finding a sketch: sums over all rows."""

    fit: SketchFit

    @staticmethod
    def memory(fit: SketchFitBytes, kept: int, *, reads: bool = True) -> PassMemory:
        """Memory of the round, beside `kept` bytes of other data."""
        return PassMemory(kept=kept, state=fit.state, call=fit.call, end=fit.end, reads=reads)

    @property
    def state_bytes(self) -> float:
        """Infinite: sums over many rows are larger than any chunk."""
        return math.inf

    def step(self, state: Any, rows: ValidRows) -> tuple[Any, None]:
        """Add rows to the sums."""
        return self.fit.step(state, rows.X, rows.weights), None

    def join(self, first: Any, second: Any) -> Any:
        """Add sums up."""
        return self.fit.join([first, second])

    def finish(self, state: Any) -> Sketch | SketchFit:
        """Make the sketch, or the next round."""
        return self.fit.finish(state)


def check_weights(reader: RowReader, weights: NDArray[np.float64], n_rows: int) -> None:
    """Refuse weights of another length than the rows."""
    if len(weights) not in (0, n_rows):
        raise InvalidInputError(f"sample_weight has {len(weights):,} values; {reader.source.name} has {n_rows:,} rows")


@dataclass(frozen=True, slots=True)
class _Info:
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
    def of(cls, rows: ValidRows, dtype: np.dtype[Any], block: Block | None = None) -> _Info:
        """Counts and totals of the rows of a chunk, and of their block if it is held."""
        n_valid, width = rows.X.shape
        n_counted = int(np.count_nonzero(rows.weights)) if len(rows.weights) else n_valid
        sizes = (rows.n_read, rows.kept, n_valid, n_counted, width, dtype)
        if block is None:
            return cls(*sizes)
        totals = (block.total_weight(), block.total_d2norm(), block.largest_d2norm())
        return cls(*sizes, isinstance(block.X, np.ndarray), *totals)


@dataclass(frozen=True, slots=True)
class _ChunkSummary:
    """The small result of a sketched chunk: rows for sample and coreset, and the features that occur."""

    info: _Info
    candidates: Candidates
    part: Part | None = None
    bits: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class SketchRows(Map[tuple[Block | None, _ChunkSummary]]):
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
        if cluster_on == "blocks":
            return replace(gathered, kept=gathered.kept + sizes.rows.n_rows * row)
        if cluster_on == "spilled":
            return replace(gathered, kept=gathered.kept + room, output=sizes.chunk_rows * row)
        return gathered

    def read(self, reader: RowReader, item: ReadItem) -> tuple[ValidRows | IndexedRows, RowReader]:
        """Read the rows of a chunk; if few of them are needed, index them only."""
        few = self.sketch is None and self.rule.limit < MOST_INDEXED and not len(item[2])
        indexed = reader.index_rows(item[0]) if few else None
        return reader.read(item) if indexed is None else indexed, reader

    def output(self, rows: tuple[ValidRows | IndexedRows, RowReader]) -> tuple[Block | None, _ChunkSummary]:
        """The block of sketched rows, if it is held, and the small result of the chunk."""
        found, reader = rows
        if isinstance(found, IndexedRows):
            return None, _indexed(found, reader, self.rule)
        candidates = self.rule.candidates(found.X, found.places, found.numbers, found.weights)
        n_features = reader.source.n_features
        bits = occurring_bits(found.X) if n_features is None or n_features >= FEWEST_FEATURES else None
        if self.sketch is None:
            return None, _ChunkSummary(_Info.of(found, found.X.dtype), candidates, bits=bits)
        sketched = as_block_matrix(self.sketch.apply(found.X), sketched=not self.sketch.is_identity)
        if self.coreset_rule is not None:
            part = self.coreset_rule.part(merged(sketched), found.places, found.weights) if len(found.places) else None
            return None, _ChunkSummary(_Info.of(found, sketched.dtype), candidates, part, bits)
        as_they_are = self.sketch.is_identity and not isinstance(sketched, np.ndarray)
        known = found.d2norms if as_they_are else None  # no entry repeats an index
        block = Block(sketched, sketched_d2norms(sketched) if known is None else known, found.weights)
        return block, _ChunkSummary(_Info.of(found, sketched.dtype, block), candidates, bits=bits)


def _indexed(indexed: IndexedRows, reader: RowReader, rule: SampleRule) -> _ChunkSummary:
    """Sample candidates of a chunk whose other rows stay unread; the assign pass reads and checks them."""
    n_rows = len(indexed.places)
    picked, keys = rule.picks(indexed.places, NO_WEIGHTS)
    rows = reader.checked(indexed.take(picked), indexed.places[picked])
    info = _Info(n_rows, None, n_rows, n_rows, indexed.n_features, rows.X.dtype)
    return _ChunkSummary(info, Candidates(rows.X, keys, picked))
