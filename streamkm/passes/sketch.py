"""Passes before the search for centers: count rows, sample and sketch them, find a sketch on all of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.held_rows import Held, Spill
from streamkm.cluster.occurring import Columns, Occurring
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.coreset import Part
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.exceptions import InvalidInputError, StreamkmWarning
from streamkm.core.matrix import Matrix, added_in_order
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.pass_memory import PassMemory
from streamkm.engine.passes import Map, Pass, held_outputs, outputs
from streamkm.passes.gathered import BlockTotals, Gathered, SavedRows
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader, SourceRows, ValidRows
from streamkm.passes.sketch_rows import SketchRows
from streamkm.sketches.base_sketch import Sketch, SketchFitBytes
from streamkm.sources.chunks import Chunk
from streamkm.sources.row_source import RowSource


@dataclass(frozen=True, slots=True)
class Sketched:
    """The result of the sketch pass."""

    blocks: Blocks | None  # None if sketched rows are not held
    coreset: Part | None  # a coreset of sketched rows, in place of blocks
    sample: Sample
    chunk_rows: NDArray[np.int64]  # (chunks,): rows of each chunk, invalid ones included
    # mapping of int to int64 (v,), numbers of the valid rows in each chunk that has others, by the number of the chunk
    kept: Mapping[int, NDArray[np.int64]]
    n_features: int  # d of the source, or of the widest row
    n_valid: int  # number of valid rows
    occurring: Occurring  # features that occur in wide sparse rows

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
    """Read all rows once: sketch them into blocks, or only sample them if `sketch` is None; fill `gathered` in place.

    Chunks that `gathered` contains already are not read again. `chunk_rows` (chunks,), from `count_pass`, is needed if
    there are weights and the source does not know its rows. `record`: name under which `gathered` and spilled rows are
    saved as they grow, and restored; rows in memory are not saved if the pass ends before a save is due, and rows that
    lie in local files as they are read are read again. Raises InvalidInputError: a row is invalid, there are no rows,
    or `weights` has another length than the rows.
    """
    reader, weights, writer = context.reader, context.weights, context.writer

    def state() -> SavedRows:
        return replace(gathered.saved(), n_bytes=spill.sync() if spill else 0)

    holds = sketch is not None and gathered.tree is None
    handles = list[Any]()
    spill = context.spill if holds else None
    rereads = spill is not None and sketch is not None and sketch.is_identity and reader.source.lies_as_read
    chunks = reader.source.chunks(reader.target_bytes) if rereads else ()  # reading these costs as much as a copy would
    map_ = SketchRows(sketch, gathered.rule, gathered.coreset_rule)
    if record is not None and writer.checkpoint is not None:
        saved = writer.load(record, SavedRows)
        if (spill is None or spill.begin(record, saved.n_bytes if saved else 0)) and saved is not None:
            again = zip(chunks, context.rows(chunk_rows).items(context.executor), strict=False)
            before = _blocks_before(reader, map_, spill, len(saved.n_read), again) if spill else ()
            _restore(gathered, saved, before, handles)
        stage.after_advance = lambda: writer.save_if_due(record, state)
    if reader.source.n_rows is not None:
        check_weights(reader, weights, reader.source.n_rows)
    n_before = len(gathered.counts)
    stage.advance(n_before)
    # the nodes of several calls would need too much memory on one worker, and progress is saved as summaries arrive
    once = gathered.tree is None and (record is None or writer.checkpoint is None)
    rows = context.rows(chunk_rows, n_before)
    for handle, told in held_outputs(map_, rows, context.executor, stage, once=once):
        if holds:
            read = partial(_again, reader, chunks[len(handles)]) if chunks else None
            handles.append(spill.keep(handle, read) if spill and isinstance(handle, Block) else handle)
        if told is not None:  # else it comes with a later chunk of the same call
            gathered.absorb(told)
    stage.rows = gathered.counts.n_rows
    lost = reader.source.origin.missing_chunks
    texts = [f'{lost}; restore them, or pass missing_chunks="raise"'] if lost else []
    if gathered.counts.n_inexact:
        texts.append(
            f"{reader.source.name} holds integers of 64 bits from 2^53 on, which float64 rounds: near ones may become "
            "equal; subtract an offset from them, or leave out such columns if they only name rows"
        )
    for text in texts if stage.name == "sketch" else ():
        warnings.warn(text, StreamkmWarning, stacklevel=8)
    blocks = None if sketch is None else _blocks(context.executor, sketch, handles, gathered)
    sketched = _sketched(context, gathered, blocks)
    if record is not None and (spill is None or spill.file is not None or chunks):
        writer.save(record, state())
    if spill is not None:
        spill.end()
    return sketched


def _again(reader: RowReader, chunk: Chunk) -> Matrix:
    return reader.read_rows(chunk).X


def _blocks_before(
    reader: RowReader, map_: SketchRows, spill: Spill, n_saved: int, again: Iterator[Any]
) -> Iterator[tuple[Held, Block]]:
    """The blocks of the first chunks with their handles: read again, for the chunks of `again`, or from the file."""
    for chunk, item in islice(again, n_saved):
        block, _ = map_.output(map_.read(reader, item))
        assert block is not None
        yield spill.keep(block, partial(_again, reader, chunk)), block
        n_saved -= 1
    yield from spill.restored(n_saved)


def _restore(gathered: Gathered, saved: SavedRows, before: Iterable[Any], handles: list[Any]) -> None:
    """Continue from the record of a checkpoint, after the blocks that were held."""
    gathered.restore(saved)
    for handle, block in before:
        if not block.n_rows:
            gathered.counts.kept[len(handles)] = np.empty(0, np.int64)
        handles.append(handle)
        gathered.blocks.absorb(BlockTotals.of(block))


def _sketched(context: PassContext, gathered: Gathered, blocks: Blocks | None) -> Sketched:
    """The result of the pass; raises InvalidInputError without rows, or for weights of another length."""
    source, counts = context.reader.source, gathered.counts
    n_read, n_valid = np.array(counts.n_read, np.int64), counts.n_valid
    if not n_valid:
        valid, hint = ("valid ", _column_without_values(source)) if n_read.any() else ("", "")
        raise InvalidInputError(f"{source.name} has no {valid}rows; needed: at least 1{hint}")
    check_weights(context.reader, context.weights, int(n_read.sum()))
    n_features = source.n_features or max(1, counts.width)
    sample = gathered.collector.sample(n_features, counts.n_counted, context.weights)
    part = None if gathered.tree is None else gathered.tree.part()
    coreset = None if part is None or gathered.coreset_rule is None else gathered.coreset_rule.finish(part)
    return Sketched(blocks, coreset, sample, n_read, counts.kept, n_features, n_valid, gathered.occurring)


def _column_without_values(source: RowSource) -> str:
    """A hint if a column has no value in the first dense rows."""
    if source.access.streams or source.is_sparse:
        return ""
    X = np.asarray(source.read(next(iter(source.chunks(1 << 20)))).X)
    empty = np.flatnonzero(~np.isfinite(X).any(axis=0))
    names = range(X.shape[1]) if source.feature_names is None else source.feature_names
    return f"; column {names[empty[0]]!r} has no value in the first {len(X):,} rows: leave it out" if len(empty) else ""


def _blocks(executor: Executor, sketch: Sketch, handles: list[Any], gathered: Gathered) -> Blocks | None:
    """Held blocks of all chunks with valid rows; None if there are none."""
    counts, totals, empty = gathered.counts, gathered.blocks, gathered.counts.empty()
    if totals.dtype is None:
        return None
    filled = [handle for number, handle in enumerate(handles) if number not in empty] if empty else handles
    size = counts.n_valid, sketch.n_components, np.result_type(totals.dtype)
    sums = added_in_order(totals.weights), added_in_order(totals.d2norms)
    return Blocks(executor, filled, *size, *sums, totals.largest_d2norm, totals.dense)


@dataclass(frozen=True, slots=True)
class Count(Map[int]):
    """Count the rows of each chunk."""

    def output(self, rows: ValidRows) -> int:
        """Rows of a chunk, invalid ones included."""
        return rows.n_read


def count_pass(context: PassContext, stage: Stage) -> NDArray[np.int64]:
    """Read all rows once; count those of each chunk (chunks,), which weights of rows of text need."""
    counts = np.array(list(outputs(Count(), SourceRows(context.reader), context.executor, stage)), np.int64)
    stage.rows = int(counts.sum())
    return counts


@dataclass(frozen=True, slots=True)
class FindSketch(Pass[Any, None, Any]):
    """The pass that finds a sketch, or the statistics of a step: sums over all rows."""

    fit: Any  # a `SketchFit`, or what finds a step

    @staticmethod
    def memory(fit: SketchFitBytes, kept: int, *, reads: bool = True) -> PassMemory:
        """Memory of the sums, beside `kept` bytes of other data."""
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
        return self.fit.join([each for each in (first, second) if each is not None])

    def finish(self, state: Any) -> Any:
        """Make the sketch."""
        return self.fit.finish(state)


def check_weights(reader: RowReader, weights: NDArray[np.float64], n_rows: int) -> None:
    """Refuse weights of another length than the rows."""
    if len(weights) not in (0, n_rows):
        raise InvalidInputError(f"sample_weight has {len(weights):,} values; {reader.source.name} has {n_rows:,} rows")
