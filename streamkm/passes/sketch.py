"""Passes that come before centers are looked for: count rows, sample and sketch them, find a sketch on all of them.

Each function here reads every row once. Knows nothing of parameters' defaults.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks, merged
from streamkm.cluster.columns import FEWEST_FEATURES, Columns, Occurring, occurring_bits
from streamkm.cluster.rows import NO_WEIGHTS, Block
from streamkm.cluster.sampling.coreset import Coreset, CoresetRule, Part
from streamkm.cluster.sampling.row_sample import Candidates, Sample, SampleRule, as_block_matrix, sketched_d2norms
from streamkm.compute import Executor, Listener
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.progress import Stage
from streamkm.core.sums import added_in_order
from streamkm.passes.context import PassContext
from streamkm.passes.reader import Walk, Weighed
from streamkm.passes.resume import Gathered, KeptSums
from streamkm.sketches import IdentitySketch, Sketch, SketchFit
from streamkm.sources.base import Skimmed

MOST_SKIMMED = 0.5  # share of rows that may be candidates, where rows are found first and then picked


@dataclass(frozen=True, slots=True)
class Sketched:
    """What the sketch pass leaves.

    Attributes
    ----------
    blocks : Blocks or None
        None where no sketched rows are kept.
    coreset : Coreset or None
        Of sketched rows, in place of blocks.
    sample : Sample
    chunk_rows : int64 (chunks,)
        Rows of each chunk, invalid ones included.
    kept : tuple of (int64 (v,) or None)
        Which rows of each chunk are valid; None: all.
    n_features : int
        d, as the source says, or the widest row seen.
    n_valid : int
        Rows that took part.
    occurring : Occurring
        Features of the rows, where they are wide and sparse.
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
        """The features that occur, where they are known and few of all."""
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
        Filled in place. Chunks that it has already are not read again.
    stage : Stage
        Advances by one for each chunk.
    sketch : Sketch, optional
        None: only sample.
    chunk_rows : int64 (chunks,), optional
        Rows of each chunk, needed where there are weights and the source cannot tell: see `count_pass`.
    record : str, optional
        Name under which `gathered` is saved as it grows, and restored from an earlier run. None, as where sketched rows
        are kept in memory and lost with the process: it is not saved.

    Raises
    ------
    InvalidInputError
        If a row is invalid, there are no rows, or `weights` has another length than the rows.
    """
    walk, weights, writer = context.walk, context.weights, context.writer
    if record is not None:
        gathered.restore(writer.load(record))
        stage.after_advance = lambda: writer.save_if_due(record, gathered.pack)
    if walk.source.n_rows is not None:
        check_weights(walk, weights, walk.source.n_rows)
    handles: list[Any] = []
    infos: list[_Info] = []
    first_row = gathered.n_read
    shared = context.share(sketch, gathered.rule, gathered.coreset_rule)
    items = itertools.islice(context.items(chunk_rows), len(gathered.counts), None)
    stage.advance(len(gathered.counts))
    for handle, (info, candidates, part, bits) in context.executor.hold("sketch", _sketch_item, items, shared):
        if part is not None and gathered.tree is not None:
            gathered.tree.insert(part, len(gathered.counts))
        elif info.n_valid:
            handles.append(context.spill.keep(handle) if context.spill and isinstance(handle, Block) else handle)
        if len(candidates.rows):
            gathered.collector.add(candidates, first_row)
        gathered.occurring.add(bits)
        infos.append(info)
        gathered.counts.append((info.n_read, info.n_valid, info.n_counted, info.width))
        first_row += info.n_read
        stage.advance()
    stage.rows, stage.read_bytes = first_row, walk.source.take_read_bytes()
    blocks = None
    if sketch is not None and gathered.tree is None and handles:
        blocks = _blocks(context.executor, sketch, handles, infos)
    sketched = _sketched(context, gathered, blocks, tuple(info.kept for info in infos))
    if record is not None:
        writer.save(record, gathered.pack)
    return sketched


def _sketched(
    context: PassContext, gathered: Gathered, blocks: Blocks | None, kept: tuple[NDArray[np.int64] | None, ...]
) -> Sketched:
    """What the pass leaves; refuses no rows, and weights of another number of rows."""
    source = context.walk.source
    n_read, n_valid, n_counted, widths = np.array(gathered.counts, np.int64).reshape(-1, 4).T
    if not n_valid.any():
        raise InvalidInputError(f"{source.name} has no {'valid ' if n_read.any() else ''}rows; needed: at least 1")
    check_weights(context.walk, context.weights, int(n_read.sum()))
    n_features = source.n_features or max(1, int(widths.max()))
    sample = gathered.collector.sample(n_features, int(n_counted.sum()), context.weights)
    part = None if gathered.tree is None else gathered.tree.part()
    coreset = None if part is None or gathered.coreset_rule is None else gathered.coreset_rule.finish(part)
    return Sketched(blocks, coreset, sample, n_read, kept, n_features, int(n_valid.sum()), gathered.occurring)


def _blocks(executor: Executor, sketch: Sketch, handles: list[Any], infos: list[_Info]) -> Blocks:
    """The sketched rows that are kept, of all chunks that have valid ones."""
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


def count_pass(context: PassContext, stage: Stage) -> NDArray[np.int64]:
    """Read all rows once only to count those of each chunk (chunks,): weights of rows of text need it."""
    shared = context.share()
    counts = []
    for n_rows in context.executor.map("count", _count_item, replace(context, weights=NO_WEIGHTS).items(), shared):
        counts.append(n_rows)
        stage.advance()
    stage.rows, stage.read_bytes = sum(counts), context.walk.source.take_read_bytes()
    return np.array(counts, np.int64)


def fit_pass(
    context: PassContext,
    fit: SketchFit,
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    *,
    record: str | None = None,
) -> Sketch | SketchFit:
    """Read all rows once for one round of finding a sketch; give the sketch or the next round.

    Parameters
    ----------
    context : PassContext
    fit : SketchFit
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from the pass before.
    record : str, optional
        Name under which the sums are saved as they grow, and restored from an earlier run: for a `fit` whose states are
        arrays.
    """
    listener: Listener[Any] = Listener(stage.advance)
    if record is not None:
        kept = KeptSums(context.writer, record)
        stage.advance(0 if kept.begun is None else kept.begun.n_items)
        listener = Listener(stage.advance, kept.begun, kept.save)
    shared = context.share(fit)
    state = context.executor.fold(
        stage.name,
        _fit_item,
        fit.join,
        context.items(chunk_rows),
        len(chunk_rows),
        shared,
        large=context.walk.large(math.inf),
        listener=listener,
    )
    stage.rows, stage.read_bytes = int(chunk_rows.sum()), context.walk.source.take_read_bytes()
    return fit.finish(state)


def check_weights(walk: Walk, weights: NDArray[np.float64], n_rows: int) -> None:
    """Refuse weights of another length than the rows."""
    if len(weights) not in (0, n_rows):
        raise InvalidInputError(f"sample_weight has {len(weights):,} values; {walk.source.name} has {n_rows:,} rows")


@dataclass(frozen=True, slots=True)
class _Info:
    """The small part of a sketched chunk: rows read, valid ones, those of positive weight, features, and totals."""

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


_Told: TypeAlias = tuple[_Info, Candidates, Part | None, NDArray[np.uint8] | None]  # the last: see `occurring_bits`


def _sketch_item(
    item: Weighed,
    shared: tuple[Walk, Sketch | None, SampleRule, CoresetRule | None],
) -> tuple[Block | None, _Told]:
    walk, sketch, rule, coreset_rule = shared
    few = sketch is None and rule.limit < MOST_SKIMMED and not len(item[2])
    skimmed = walk.skim(item[0]) if few else None
    if skimmed is not None:
        return None, (*_skim_item(skimmed, walk, rule), None, None)
    rows, weights = walk.read_weighed(item)
    n_valid, width = rows.X.shape
    n_counted = int(np.count_nonzero(weights)) if len(weights) else n_valid
    numbers = np.arange(rows.n_read) if rows.kept is None else rows.kept
    candidates = rule.candidates(rows.X, rows.places, numbers, weights)
    n_features = walk.source.n_features
    bits = occurring_bits(rows.X) if n_features is None or n_features >= FEWEST_FEATURES else None
    if sketch is None:
        return None, (
            _Info(rows.n_read, rows.kept, n_valid, n_counted, width, rows.X.dtype),
            candidates,
            None,
            bits,
        )
    sketched = as_block_matrix(sketch.apply(rows.X), sketched=not isinstance(sketch, IdentitySketch))
    if coreset_rule is not None:
        info = _Info(rows.n_read, rows.kept, n_valid, n_counted, width, sketched.dtype)
        part = coreset_rule.part(merged(sketched), rows.places, weights) if n_valid else None
        return None, (info, candidates, part, bits)
    as_they_are = isinstance(sketch, IdentitySketch) and not isinstance(sketched, np.ndarray)
    known = rows.d2norms if as_they_are else None  # no entry repeats an index
    block = Block(sketched, sketched_d2norms(sketched) if known is None else known, weights)
    totals = (block.total_weight(), block.total_d2norm(), block.largest_d2norm())
    dense = isinstance(sketched, np.ndarray)
    return block, (
        _Info(rows.n_read, rows.kept, n_valid, n_counted, width, sketched.dtype, dense, *totals),
        candidates,
        None,
        bits,
    )


def _skim_item(skimmed: Skimmed, walk: Walk, rule: SampleRule) -> tuple[_Info, Candidates]:
    """The candidates of a chunk whose other rows are not read: the pass that assigns them finds what is wrong there."""
    n_rows = len(skimmed.places)
    picked, keys = rule.picks(skimmed.places, NO_WEIGHTS)
    rows = walk.checked(skimmed.take(picked), skimmed.places[picked])
    info = _Info(n_rows, None, n_rows, n_rows, skimmed.n_features, rows.X.dtype)
    return info, Candidates(rows.X, keys, picked)


def _fit_item(state: Any, item: Weighed, shared: tuple[Walk, SketchFit]) -> tuple[Any, int]:
    walk, fit = shared
    rows, weights = walk.read_weighed(item)
    return fit.step(state, rows.X, weights), 1


def _count_item(item: Weighed, shared: tuple[Walk]) -> int:
    (walk,) = shared
    return walk.read(item[0]).n_read
