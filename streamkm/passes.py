"""Everything that walks a source: the sketch pass, the assign pass, predictions.

Each function here reads every row once. May import sample, budget and below; knows nothing of parameters' defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import NO_WEIGHTS, Block, CenterTable, add_rows, row_d2, row_d2norms
from streamkm.cluster.lloyd import Blocks, Totals, inertia_of, join_totals
from streamkm.cluster.sample import Candidates, Sample, SampleCollector, SampleRule, as_block_matrix, sketched_d2norms
from streamkm.compute import Executor
from streamkm.errors import InvalidInputError
from streamkm.matrices import Matrix, working_dtype
from streamkm.model import Metric, Model, normalized
from streamkm.progress import Stage
from streamkm.sketches import Sketch
from streamkm.sources.base import Chunk, ChunkedSource, Rows, RowSource, row_places

OnInvalid = Literal["raise", "skip"]
Item = Chunk | Rows | tuple[Chunk, Matrix]
LARGEST_D2 = 1e300  # squared norms above it leave no room for sums,
LARGEST_SINGLE_D2 = 1e34  # in single precision


@dataclass(frozen=True, slots=True)
class Walk:
    """How a source is walked: the same in every pass of a run.

    Attributes
    ----------
    source : RowSource
    target_bytes : int
        Decoded bytes of a chunk, about.
    metric : "euclidean" or "cosine"
        "cosine": rows are scaled to unit length as they come.
    on_invalid : "raise" or "skip"
        What becomes of rows with NaN or infinity.
    """

    source: RowSource
    target_bytes: int
    metric: Metric
    on_invalid: OnInvalid

    def items(self, executor: Executor) -> Iterable[Item]:
        """What the executor's calls are to read."""
        return executor.items(self.source, self.target_bytes)

    def for_calls(self, executor: Executor) -> Walk:
        """The walk as the executor's calls need it, without rows that come to them as items."""
        return replace(self, source=executor.for_calls(self.source))

    def read(self, item: Item) -> Valid:
        """Read an item and take out what is invalid.

        Raises
        ------
        InvalidInputError
            For NaN or infinity, unless they are to be skipped; names the row.
        """
        X, places = self._rows(item)
        n_read = X.shape[0]
        d2norms = row_d2norms(X)
        double = isinstance(X, np.ndarray) and working_dtype(X.dtype) == np.float64
        valid = d2norms <= (LARGEST_D2 if double else LARGEST_SINGLE_D2)  # false for NaN too
        kept = None
        if not valid.all():
            if self.on_invalid == "raise":
                raise InvalidInputError(_describe_invalid(self.source, X, places, int(np.argmin(valid))))
            kept = np.flatnonzero(valid)
            X, places, d2norms = X[kept], places[kept], d2norms[kept]
        if self.metric == "cosine":
            X = normalized(X)
            d2norms = row_d2norms(X)
        return Valid(X, places, n_read, kept, d2norms)

    def _rows(self, item: Item) -> tuple[Matrix, NDArray[np.int64]]:
        if isinstance(item, tuple):  # a block of a Dask array, computed on the cluster
            chunk, X = item
            return X, row_places(chunk.start, chunk.start + X.shape[0])
        if isinstance(item, Chunk):
            if not isinstance(self.source, ChunkedSource):
                raise TypeError(f"{self.source.name} streams rows; it has no chunks to read")
            item = self.source.read(item)
        return item.X, item.places


@dataclass(frozen=True, slots=True)
class Valid:
    """Rows of one chunk, fit for use.

    Attributes
    ----------
    X : ndarray or csr_array (v, d)
    places : int64 (v,)
    n_read : int
        Rows of the chunk, invalid ones included.
    kept : int64 (v,), or None
        Which rows of the chunk these are; None: all.
    d2norms : float64 (v,)
        Squared norms of the rows.
    """

    X: Matrix
    places: NDArray[np.int64]
    n_read: int
    kept: NDArray[np.int64] | None
    d2norms: NDArray[np.float64]

    def spread(self, values: NDArray[Any], fill: Any) -> NDArray[Any]:
        """Values of the valid rows at their places among all rows of the chunk."""
        if self.kept is None:
            return values
        out = np.full(self.n_read, fill, values.dtype)
        out[self.kept] = values
        return out


@dataclass(frozen=True, slots=True)
class Sketched:
    """What the sketch pass leaves.

    Attributes
    ----------
    blocks : Blocks or None
        None where nothing was sketched.
    sample : Sample
    chunk_rows : int64 (chunks,)
        Rows of each chunk, invalid ones included.
    n_features : int
        d, as the source says, or the widest row seen.
    n_valid : int
        Rows that took part.
    """

    blocks: Blocks | None
    sample: Sample
    chunk_rows: NDArray[np.int64]
    n_features: int
    n_valid: int


def sketch_pass(
    executor: Executor,
    walk: Walk,
    sketch: Sketch | None,
    rule: SampleRule,
    weights: NDArray[np.float64],
    stage: Stage,
) -> Sketched:
    """Read all rows once: sketch them into blocks and keep a sample of them.

    Parameters
    ----------
    sketch : Sketch or None
        None: only sample.
    weights : float64 (n,) or (0,)
        Sample weights.
    stage : Stage
        Told of progress, in chunks.

    Raises
    ------
    InvalidInputError
        If a row is invalid, there are no rows, or `weights` has another length than the rows.
    """
    handles, infos = [], []
    collector = SampleCollector(rule.size)
    first_row = n_features = 0
    shared = executor.share((walk.for_calls(executor), sketch, rule))
    for handle, (info, candidates) in executor.hold("sketch", _sketch_item, walk.items(executor), shared):
        if info.n_valid:
            if sketch is not None:
                handles.append(handle)
            collector.add(candidates, first_row)
        infos.append(info)
        first_row += info.n_read
        n_features = max(n_features, info.width)
        stage.advance()
    n_valid = sum(info.n_valid for info in infos)
    if not n_valid:
        raise InvalidInputError(f"{walk.source.name} has no {'valid ' if first_row else ''}rows; needed: at least 1")
    if len(weights) not in (0, first_row):
        raise InvalidInputError(f"sample_weight has {len(weights):,} values; {walk.source.name} has {first_row:,} rows")
    n_features = walk.source.n_features or max(1, n_features)
    stage.rows, stage.read_bytes = first_row, walk.source.n_bytes or 0
    chunk_rows = np.array([info.n_read for info in infos], np.int64)
    sample = collector.sample(n_features, n_valid, weights)
    blocks = None
    if sketch is not None:
        if len(weights):
            handles, infos = _attach_weights(executor, handles, infos, weights)
        blocks = Blocks(
            executor,
            tuple(handles),
            n_valid,
            sketch.n_components,
            np.result_type(*{info.dtype for info in infos if info.n_valid}),
            float(sum(info.total_weight for info in infos)),
            float(sum(info.total_d2norm for info in infos)),
        )
    return Sketched(blocks, sample, chunk_rows, n_features, n_valid)


@dataclass(frozen=True, slots=True)
class _Info:
    """The small part of a sketched chunk."""

    n_read: int
    n_valid: int
    kept: NDArray[np.int64] | None
    width: int
    dtype: np.dtype[Any]
    total_weight: float
    total_d2norm: float


def _sketch_item(
    item: Item, shared: tuple[Walk, Sketch | None, SampleRule]
) -> tuple[Block | None, tuple[_Info, Candidates]]:
    walk, sketch, rule = shared
    rows = walk.read(item)
    n_valid, width = rows.X.shape
    if sketch is None:
        block = None
        info = _Info(rows.n_read, n_valid, rows.kept, width, rows.X.dtype, float(n_valid), float(rows.d2norms.sum()))
    else:
        sketched = as_block_matrix(sketch.apply(rows.X))
        block = Block(sketched, sketched_d2norms(sketched), NO_WEIGHTS)
        total_d2norm = block.total_d2norm()
        info = _Info(rows.n_read, n_valid, rows.kept, width, sketched.dtype, float(n_valid), total_d2norm)
    numbers = np.arange(rows.n_read) if rows.kept is None else rows.kept
    return block, (info, rule.candidates(rows.X, rows.places, numbers))


def _attach_weights(
    executor: Executor, handles: list[Any], infos: list[_Info], weights: NDArray[np.float64]
) -> tuple[list[Any], list[_Info]]:
    """The same blocks with their rows' weights."""

    def pairs() -> Iterator[tuple[Any, NDArray[np.float64]]]:
        first_row, blocks = 0, iter(handles)
        for info in infos:
            part = weights[first_row : first_row + info.n_read]
            first_row += info.n_read
            if info.n_valid:
                yield next(blocks), part if info.kept is None else part[info.kept]

    held = list(executor.hold("weights", _weigh, pairs()))
    filled = [info for info in infos if info.n_valid]
    weighed = [
        _Info(info.n_read, info.n_valid, info.kept, info.width, info.dtype, total, total_d2norm)
        for info, (_, (total, total_d2norm)) in zip(filled, held, strict=True)
    ]
    return [handle for handle, _ in held], weighed


def _weigh(pair: tuple[Block, NDArray[np.float64]]) -> tuple[Block, tuple[float, float]]:
    block, weights = pair
    weighed = Block(block.X, block.d2norms, weights)
    return weighed, (weighed.total_weight(), weighed.total_d2norm())


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
) -> Assigned:
    """Read all rows once more: label each by its nearest center, and gather sums and the objective of the clusters.

    Parameters
    ----------
    weights : float64 (n,) or (0,)
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from the pass before.
    """
    labels = np.empty(int(chunk_rows.sum()), np.int32)
    bounds = np.concatenate([[0], np.cumsum(chunk_rows)])

    def items() -> Iterator[tuple[Any, int, NDArray[np.float64]]]:
        for index, item in enumerate(walk.items(executor)):
            if index >= len(chunk_rows):
                raise _changed(walk)
            part = weights[bounds[index] : bounds[index + 1]] if len(weights) else NO_WEIGHTS
            yield item, int(chunk_rows[index]), part

    done = 0

    def take(part: NDArray[np.int32]) -> None:
        nonlocal done
        labels[bounds[done] : bounds[done + 1]] = part
        done += 1
        stage.advance()

    shared = executor.share(
        (walk.for_calls(executor), model, model.table(walk.source.dtype, sparse=walk.source.is_sparse))
    )
    totals = executor.fold(
        stage.name,
        _assign_item,
        join_totals,
        items(),
        len(chunk_rows),
        shared,
        large_state=8 * model.centers.size > walk.target_bytes,
        on_output=take,
    )
    if done != len(chunk_rows):
        raise _changed(walk)
    stage.rows, stage.read_bytes = len(labels), walk.source.n_bytes or 0
    if _by_norms(walk, model):
        totals = replace(totals, d2=inertia_of(totals, model.centers, totals.d2))
    return Assigned(labels, totals)


def _by_norms(walk: Walk, model: Model) -> bool:
    """Whether the objective follows from squared norms and the clusters' sums: for sparse rows, which have no offset.

    That saves a look at k * d numbers for every stored entry. The error is some 1e-16 of the sum of squared norms.
    """
    return walk.source.is_sparse and model.space == "original"


def _assign_item(
    state: Totals | None, item: tuple[Any, int, NDArray[np.float64]], shared: tuple[Walk, Model, CenterTable]
) -> tuple[Totals, NDArray[np.int32]]:
    walk, model, table = shared
    what, n_expected, weights = item
    rows = walk.read(what)
    if rows.n_read != n_expected:
        raise _changed(walk)
    if rows.kept is not None and len(weights):
        weights = weights[rows.kept]
    X = model.place(rows.X)
    labels, _, _ = table.nearest(X)
    totals = Totals.zeros(*table.centers.shape) if state is None else state
    add_rows(X, weights, labels, totals.sums, totals.counts)
    d2 = rows.d2norms if _by_norms(walk, model) else row_d2(X, labels, table.centers)
    gathered = float(weights @ d2) if len(weights) else float(d2.sum())
    return Totals(totals.sums, totals.counts, totals.d2 + gathered), rows.spread(labels, -1)


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
    for part in executor.map(stage.name, _map_item, walk.items(executor), shared, function, n_columns):
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
    return np.asarray(euclidean_distances(X, table.centers.astype(dtype, copy=False)), dtype)


def _changed(walk: Walk) -> InvalidInputError:
    return InvalidInputError(
        f"{walk.source.name} gave other rows than in the pass before; it must not change during a fit"
    )


def _describe_invalid(source: RowSource, X: Matrix, places: NDArray[np.int64], row: int) -> str:
    values = X[row] if isinstance(X, np.ndarray) else X.data[X.indptr[row] : X.indptr[row + 1]]
    what = "NaN" if np.isnan(values).any() else "infinity" if np.isinf(values).any() else "a value too large to square"
    remedy = 'pass on_invalid="skip" to leave such rows out (they get the label -1)'
    return f"{what} in {source.describe(int(places[row]))}; {remedy}"
