"""Everything that walks a source: the sketch pass, the assign pass, predictions.

Each function here reads every row once. May import sample, budget and below; knows nothing of parameters' defaults.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import NO_WEIGHTS, Block, CenterTable, row_d2
from streamkm.cluster.coreset import Coreset, CoresetRule, Part
from streamkm.cluster.lloyd import JOIN_TOTALS, Blocks, Totals, assigned, inertia_of, merged
from streamkm.cluster.sample import Candidates, Sample, SampleRule, as_block_matrix, sketched_d2norms
from streamkm.cluster.spilled import Held, loaded
from streamkm.compute import Executor, Folded, Listener
from streamkm.errors import InvalidInputError
from streamkm.keeping import Gathered, KeptLabels, KeptSums
from streamkm.matrices import Matrix
from streamkm.model import Model
from streamkm.progress import Stage
from streamkm.sketches import Sketch, SketchFit
from streamkm.sources.base import Skimmed
from streamkm.walk import Item, Valid, Walk, changed_source

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
    """

    blocks: Blocks | None
    coreset: Coreset | None
    sample: Sample
    chunk_rows: NDArray[np.int64]
    kept: tuple[NDArray[np.int64] | None, ...]
    n_features: int
    n_valid: int


def sketch_pass(
    executor: Executor,
    walk: Walk,
    sketch: Sketch | None,
    gathered: Gathered,
    weights: NDArray[np.float64],
    chunk_rows: NDArray[np.int64] | None,
    stage: Stage,
) -> Sketched:
    """Read all rows once: sketch them into blocks and keep a sample of them.

    Parameters
    ----------
    sketch : Sketch or None
        None: only sample.
    gathered : Gathered
        What was done before, changed in place; its chunks are not read again. Empty where rows are sketched.
    weights : float64 (n,) or (0,)
        Sample weights.
    chunk_rows : int64 (chunks,) or None
        Rows of each chunk, needed where there are weights and the source cannot tell: see `count_pass`.
    stage : Stage
        Told of progress, in chunks.

    Raises
    ------
    InvalidInputError
        If a row is invalid, there are no rows, or `weights` has another length than the rows.
    """
    handles: list[Any] = []
    infos: list[_Info] = []
    first_row = gathered.n_read
    if walk.source.n_rows is not None:
        check_weights(walk, weights, walk.source.n_rows)
    shared = executor.share((walk.for_calls(executor), sketch, gathered.rule, gathered.coreset_rule))
    items = itertools.islice(walk.items(executor, weights, chunk_rows), len(gathered.counts), None)
    stage.advance(len(gathered.counts))
    for handle, (info, candidates, part) in executor.hold(stage.name, _sketch_item, items, shared):
        if part is not None and gathered.tree is not None:
            gathered.tree.insert(part, len(infos))
        elif info.n_valid:
            handles.append(gathered.spill.keep(handle) if gathered.spill and isinstance(handle, Block) else handle)
        if len(candidates.rows):
            gathered.collector.add(candidates, first_row)
        infos.append(info)
        gathered.counts.append((info.n_read, info.n_valid, info.n_counted, info.width))
        first_row += info.n_read
        stage.advance()
    n_read, n_valid, n_counted, widths = np.array(gathered.counts, np.int64).reshape(-1, 4).T
    if not n_valid.any():
        raise InvalidInputError(f"{walk.source.name} has no {'valid ' if first_row else ''}rows; needed: at least 1")
    check_weights(walk, weights, first_row)
    n_features = walk.source.n_features or max(1, int(widths.max()))
    stage.rows, stage.read_bytes = first_row, walk.source.n_bytes or 0
    sample = gathered.collector.sample(n_features, int(n_counted.sum()), weights)
    blocks = None
    if sketch is not None and gathered.tree is None:
        filled = [info for info in infos if info.n_valid]
        blocks = Blocks(
            executor,
            tuple(handles),
            int(n_valid.sum()),
            sketch.n_components,
            np.result_type(*{info.dtype for info in filled}),
            float(sum(info.total_weight for info in filled)),
            float(sum(info.total_d2norm for info in filled)),
        )
    kept = tuple(info.kept for info in infos)
    part = None if gathered.tree is None else gathered.tree.part()
    coreset = None if part is None or gathered.coreset_rule is None else gathered.coreset_rule.finish(part)
    return Sketched(blocks, coreset, sample, n_read, kept, n_features, int(n_valid.sum()))


def count_pass(executor: Executor, walk: Walk, stage: Stage) -> NDArray[np.int64]:
    """Read all rows once only to count those of each chunk (chunks,): weights of rows of text need it."""
    shared = executor.share(walk.for_calls(executor))
    counts = []
    for n_rows in executor.map("count", _count_item, walk.items(executor, NO_WEIGHTS, None), shared):
        counts.append(n_rows)
        stage.advance()
    stage.rows, stage.read_bytes = sum(counts), walk.source.n_bytes or 0
    return np.array(counts, np.int64)


def fit_pass(
    executor: Executor,
    walk: Walk,
    fit: SketchFit,
    weights: NDArray[np.float64],
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    kept: KeptSums | None = None,
) -> Sketch | SketchFit:
    """Read all rows once for one round of finding a sketch; give the sketch or the next round.

    Parameters
    ----------
    fit : SketchFit
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from the pass before.
    kept : KeptSums, optional
        What was done before, and where to save what is: for a `fit` whose states are arrays.
    """
    listener: Listener[Any] = Listener(stage.advance)
    if kept is not None:
        stage.advance(0 if kept.begun is None else kept.begun.n_items)
        listener = Listener(stage.advance, kept.begun, kept.save)
    shared = executor.share((walk.for_calls(executor), fit))
    items = walk.items(executor, weights, chunk_rows)
    state = executor.fold(
        stage.name,
        _fit_item,
        fit.join,
        items,
        len(chunk_rows),
        shared,
        large_state=True,
        listener=listener,
    )
    stage.rows, stage.read_bytes = int(chunk_rows.sum()), walk.source.n_bytes or 0
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
    total_weight: float
    total_d2norm: float


def _sketch_item(
    item: tuple[Item, int | None, NDArray[np.float64]],
    shared: tuple[Walk, Sketch | None, SampleRule, CoresetRule | None],
) -> tuple[Block | None, tuple[_Info, Candidates, Part | None]]:
    walk, sketch, rule, coreset_rule = shared
    few = sketch is None and rule.limit < MOST_SKIMMED and not len(item[2])
    skimmed = walk.skim(item[0]) if few else None
    if skimmed is not None:
        return None, _skim_item(skimmed, walk, rule)
    rows, weights = _read_weighted(walk, item)
    n_valid, width = rows.X.shape
    n_counted = int(np.count_nonzero(weights)) if len(weights) else n_valid
    numbers = np.arange(rows.n_read) if rows.kept is None else rows.kept
    candidates = rule.candidates(rows.X, rows.places, numbers, weights)
    if sketch is None:
        return None, (
            _Info(rows.n_read, rows.kept, n_valid, n_counted, width, rows.X.dtype, 0.0, 0.0),
            candidates,
            None,
        )
    sketched = as_block_matrix(sketch.apply(rows.X))
    if coreset_rule is not None:
        info = _Info(rows.n_read, rows.kept, n_valid, n_counted, width, sketched.dtype, 0.0, 0.0)
        part = coreset_rule.part(merged(sketched), rows.places, weights) if n_valid else None
        return None, (info, candidates, part)
    block = Block(sketched, sketched_d2norms(sketched), weights)
    totals = (block.total_weight(), block.total_d2norm())
    return block, (_Info(rows.n_read, rows.kept, n_valid, n_counted, width, sketched.dtype, *totals), candidates, None)


def _skim_item(skimmed: Skimmed, walk: Walk, rule: SampleRule) -> tuple[_Info, Candidates, None]:
    """The candidates of a chunk whose other rows are not read: the pass that assigns them finds what is wrong there."""
    n_rows = len(skimmed.places)
    picked, keys = rule.picks(skimmed.places, NO_WEIGHTS)
    rows = walk.checked(skimmed.take(picked), skimmed.places[picked])
    info = _Info(n_rows, None, n_rows, n_rows, skimmed.n_features, rows.X.dtype, 0.0, 0.0)
    return info, Candidates(rows.X, keys, picked), None


def _fit_item(
    state: Any, item: tuple[Item, int | None, NDArray[np.float64]], shared: tuple[Walk, SketchFit]
) -> tuple[Any, int]:
    walk, fit = shared
    rows, weights = _read_weighted(walk, item)
    return fit.step(state, rows.X, weights), 1


def _count_item(item: tuple[Item, int | None, NDArray[np.float64]], walk: Walk) -> int:
    return walk.read(item[0]).n_read


def _read_weighted(walk: Walk, item: tuple[Item, int | None, NDArray[np.float64]]) -> tuple[Valid, NDArray[np.float64]]:
    """The valid rows of an item, and their weights."""
    what, n_expected, weights = item
    rows = walk.read(what)
    if n_expected is not None and rows.n_read != n_expected:
        raise changed_source(walk)
    return rows, weights if rows.kept is None or not len(weights) else weights[rows.kept]


@dataclass(frozen=True, slots=True)
class Assigned:
    """What an assign pass leaves.

    Attributes
    ----------
    labels : int32 (n,)
        -1 for invalid rows.
    totals : Totals
        Exact sums and counts of the clusters, and the exact sum of squared distances to the model's centers, all in
        the model's space.
    """

    labels: NDArray[np.int32]
    totals: Totals


def assign_pass(
    executor: Executor,
    walk: Walk,
    model: Model,
    weights: NDArray[np.float64],
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    kept: KeptLabels | None = None,
) -> Assigned:
    """Read all rows once more: label each by its nearest center, and gather sums and the objective of the clusters.

    Parameters
    ----------
    weights : float64 (n,) or (0,)
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from the pass before.
    kept : KeptLabels, optional
        What was done before, and where to save what is.
    """
    bounds = np.concatenate([[0], np.cumsum(chunk_rows)])
    begun = None if kept is None else kept.begun
    done = 0 if begun is None else begun.n_items
    labels = np.empty(int(bounds[-1]), np.int32)
    if kept is not None and begun is not None:
        labels[: bounds[done]] = kept.labels(int(bounds[done]))
        stage.advance(done)

    def take(part: NDArray[np.int32]) -> None:
        nonlocal done
        labels[bounds[done] : bounds[done + 1]] = part
        done += 1
        stage.advance()

    def keep(folded: Callable[[], Folded[Totals]]) -> None:
        if kept is not None:
            kept.save(labels, bounds, folded)

    totals = fold_assigned(executor, walk, model, weights, chunk_rows, stage, Listener(take, begun, keep))
    if done != len(chunk_rows):
        raise changed_source(walk)
    return Assigned(labels, totals)


def fold_assigned(
    executor: Executor,
    walk: Walk,
    model: Model,
    weights: NDArray[np.float64],
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    listener: Listener[Totals],
) -> Totals:
    """Read and label all rows; sums and objective of the clusters. The listener gets each chunk's labels."""
    shared = executor.share(
        (walk.for_calls(executor), model, model.table(walk.source.dtype, sparse=walk.source.is_sparse))
    )
    totals = executor.fold(
        stage.name,
        _assign_item,
        JOIN_TOTALS,
        walk.items(executor, weights, chunk_rows),
        len(chunk_rows),
        shared,
        large_state=8 * model.centers.size > walk.target_bytes,
        listener=listener,
    )
    stage.rows, stage.read_bytes = int(chunk_rows.sum()), walk.source.n_bytes or 0
    if _by_norms(walk, model):
        totals = replace(totals, d2=inertia_of(totals, model.centers, totals.d2))
    return totals


def _by_norms(walk: Walk, model: Model) -> bool:
    """Whether the objective follows from squared norms and the clusters' sums: for sparse rows, which have no offset.

    That saves a look at k * d numbers for every stored entry. The error is some 1e-16 of the sum of squared norms.
    """
    return walk.source.is_sparse and model.space == "original"


def _assign_item(
    state: Totals | None,
    item: tuple[Item, int | None, NDArray[np.float64]],
    shared: tuple[Walk, Model, CenterTable],
) -> tuple[Totals, NDArray[np.int32]]:
    walk, model, table = shared
    rows, weights = _read_weighted(walk, item)
    X = model.place(rows.X)
    by_norms = _by_norms(walk, model)
    labels, totals, d2 = assigned(state, X, weights, table, with_d2=not by_norms)
    if by_norms:
        d2 = rows.d2norms
    gathered = float(weights @ d2) if len(weights) else float(d2.sum())
    return Totals(totals.sums, totals.counts, totals.d2 + gathered), rows.spread(labels, -1)


def assign_blocks(sketched: Sketched, blocks: Blocks, model: Model, stage: Stage) -> Assigned:
    """Label the sketched rows that were kept: what there is for rows that can be walked once only."""
    labels = np.full(int(sketched.chunk_rows.sum()), -1, np.int32)
    ends = np.cumsum(sketched.chunk_rows)
    chunks = zip(ends - sketched.chunk_rows, ends, sketched.kept, strict=True)
    filled = ((start, stop, kept) for start, stop, kept in chunks if (stop - start if kept is None else len(kept)))

    def take(part: NDArray[np.int32]) -> None:
        start, stop, kept = next(filled)
        labels[start:stop][slice(None) if kept is None else kept] = part
        stage.advance()

    table = blocks.executor.share(CenterTable.build(model.centers, blocks.dtype))
    totals = blocks.executor.fold(
        stage.name, _assign_block, JOIN_TOTALS, blocks.handles, len(blocks.handles), table, listener=Listener(take)
    )
    return Assigned(labels, totals)


def _assign_block(state: Totals | None, held: Held, table: CenterTable) -> tuple[Totals, NDArray[np.int32]]:
    block = loaded(held)
    labels, totals, d2 = assigned(state, merged(block.X), block.weights, table, with_d2=True)
    gathered = float(block.weights @ d2) if len(block.weights) else float(d2.sum())
    return Totals(totals.sums, totals.counts, totals.d2 + gathered), labels


def map_rows(
    executor: Executor, walk: Walk, model: Model, function: Callable[..., Any], stage: Stage, n_columns: int | None
) -> Iterator[NDArray[Any]]:
    """Read all rows once; yield ``function(X in the model's space, table)`` for each chunk, in order.

    Parameters
    ----------
    function : callable
        Of a matrix (v, m) and a CenterTable; gives one value, or one row of `n_columns`, for each row.
    """
    shared = executor.share(
        (walk.for_calls(executor), model, model.table(walk.source.dtype, sparse=walk.source.is_sparse))
    )
    items = (item for item, _ in executor.items(walk.source, walk.target_bytes))
    for part in executor.map(stage.name, _map_item, items, shared, function, n_columns):
        stage.advance()
        stage.rows += len(part)
        yield part
    stage.read_bytes = walk.source.n_bytes or 0


def _map_item(
    item: Item, shared: tuple[Walk, Model, CenterTable], function: Callable[..., Any], n_columns: int | None
) -> NDArray[Any]:
    walk, model, table = shared
    rows = walk.read(item)
    values = function(model.place(rows.X), table)
    if rows.kept is None:
        return np.asarray(values)
    fill = -1 if values.dtype.kind == "i" else np.nan
    out = np.full(rows.n_read if n_columns is None else (rows.n_read, n_columns), fill, values.dtype)
    out[rows.kept] = values
    return out


def nearest_labels(X: Matrix, table: CenterTable) -> NDArray[np.int32]:
    """Labels of rows (v,), for `map_rows`."""
    return table.nearest(X)[0]


def nearest_d2(X: Matrix, table: CenterTable) -> NDArray[np.float64]:
    """Squared distances of rows to their nearest centers (v,), for `map_rows`."""
    return row_d2(X, table.nearest(X)[0], table.centers)


def distances(X: Matrix, table: CenterTable) -> NDArray[Any]:
    """Distances of rows to all centers (v, k), for `map_rows`."""
    from sklearn.metrics.pairwise import euclidean_distances

    dtype = np.float64 if X.dtype == np.float64 else np.float32
    if not X.shape[0]:
        return np.empty((0, table.n_clusters), dtype)
    return np.asarray(euclidean_distances(X, table.centers.astype(dtype, copy=False)), dtype)
