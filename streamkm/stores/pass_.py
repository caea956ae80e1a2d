"""The pass that fills a part of a sketch store, and goes on where it was after a kill.

Responsible for what becomes of a chunk (its sketch, or its sketch added to rows of a store) and for recording what is
done. What the part becomes part of is storing's work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.blocks import merged
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import as_block_matrix, stacked
from streamkm.compute import Executor
from streamkm.core.exceptions import InvalidInputError, StoreError
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.passes.checkpoint import Checkpoint, Throttle
from streamkm.passes.reader import Item, Valid, Walk
from streamkm.sketches import Sketch
from streamkm.sources.sketch_store import StoreSource
from streamkm.stores.writer import PartWriter

logger = logging.getLogger(__name__)

RECORD = "progress"
INTERVAL_S = 5.0  # of work that a kill may cost


@dataclass(frozen=True, slots=True)
class Job:
    """What every pass into a store has: the record of what is done, and how and by whom rows are read."""

    saved: Checkpoint
    walk: Walk
    executor: Executor
    stage: Stage


@dataclass(frozen=True, slots=True)
class Filled:
    """A part whose rows are all there, not finished yet; its kind; and the width of the widest rows that were read."""

    writer: PartWriter
    kind: Any
    width: int


def fill_part(job: Job, directory: Path, making: NewRows | NewColumns, kind: str | None) -> Filled:
    """Write what a pass makes of a source into a part; goes on where an earlier call was interrupted."""
    saved, walk, executor, stage = job.saved, job.walk, job.executor, job.stage
    writer, n_done, width = None, 0, 0
    record = saved.load(RECORD)
    if record is not None and directory.is_dir():
        arrays, meta = record
        writer = PartWriter.resume(directory, arrays, meta)
        n_done, width, kind = meta["chunks"], meta["width"], meta["kind"]
        logger.info("%s: %d chunks were done before; going on", stage.name, n_done)
        stage.advance(n_done)
    throttle = Throttle(INTERVAL_S)
    shared = executor.share((walk.for_calls(executor), making.shared))
    finish = making.finisher(0 if writer is None else writer.n_rows)
    items = islice(walk.items(executor, NO_WEIGHTS, None), n_done, None)
    for made, found in executor.map(stage.name, _sketch_item, items, shared, making.function, large=True):
        if kind is None:
            kind = "dense" if isinstance(made, np.ndarray) else "csr"
        X = finish(_as_stored(made, kind))
        if writer is None:
            writer = PartWriter(directory, kind, X.dtype, X.shape[1])
        writer.add(X)
        n_done, width = n_done + 1, max(width, found)
        stage.advance()

        def save(writer: PartWriter = writer, n_done: int = n_done, width: int = width) -> None:
            arrays, meta = writer.commit()
            saved.save(RECORD, arrays, {**meta, "chunks": n_done, "width": width})

        throttle.save_if_due(save)
    if writer is None or not writer.n_rows:
        raise InvalidInputError(f"{walk.source.name} has no rows; needed: at least 1")
    stage.rows, stage.read_bytes = writer.n_rows, walk.source.take_read_bytes()
    return Filled(writer, kind, width)


class NewRows:
    """Making rows of a store: their sketch."""

    def __init__(self, sketch: Sketch):
        self.shared: Any = sketch

    @staticmethod
    def function(X: Matrix, sketch: Sketch) -> Matrix:
        """What calls of the executor make of a chunk."""
        return sketch.apply(X)

    def finisher(self, n_done: int) -> Callable[[Matrix], Matrix]:  # noqa: ARG002 - rows stand by themselves
        """A function that makes rows of the store of that."""
        return lambda X: X


class NewColumns:
    """Making rows of a store longer: the sketch of further features is added to the rows that it has."""

    def __init__(self, sketch: Any, first_feature: int, store: StoreSource, walk: Walk):
        self.shared: Any = (sketch, first_feature)
        self._store, self._walk = store, walk

    @staticmethod
    def function(X: Matrix, shared: tuple[Any, int]) -> Matrix:
        """What calls of the executor make of a chunk."""
        sketch, first_feature = shared
        return sketch.apply_columns(X, first_feature)

    def finisher(self, n_done: int) -> Callable[[Matrix], Matrix]:
        """A function that adds consecutive rows, the first of them row `n_done`, to the store's."""
        take = _taker(self._store, n_done, self._walk.target_bytes)

        def add(X: Matrix) -> Matrix:
            held = take(X.shape[0])
            if held.shape != X.shape:
                raise other_rows(self._store, self._walk, f"more than {self._store.info.n_rows:,}")
            return as_block_matrix(held + X)

        return add


def _taker(store: StoreSource, first_row: int, target_bytes: int) -> Callable[[int], Matrix]:
    """A function that gives the next rows of a store, in order from `first_row`; fewer at its end."""
    pieces = _pieces_from(store, first_row, target_bytes)
    held: list[Matrix] = []

    def take(n_rows: int) -> Matrix:
        while sum(X.shape[0] for X in held) < n_rows:
            piece = next(pieces, None)
            if piece is None:
                break
            held.append(piece)
        joined = stacked(held) if held else sp.csr_array((0, store.info.n_components), dtype=np.float32)
        held[:] = [joined[n_rows:]] if joined.shape[0] > n_rows else []
        return joined[:n_rows]

    return take


def _pieces_from(store: StoreSource, first_row: int, target_bytes: int) -> Iterator[Matrix]:
    seen = 0
    for part in store.part_sources:
        for chunk in part.chunks(target_bytes):
            skipped = max(0, first_row - seen - chunk.start)
            if skipped < chunk.stop - chunk.start:
                yield part.read(chunk).X[skipped:]
        seen += part.n_rows or 0


def _sketch_item(
    item: tuple[Item, int | None, NDArray[np.float64]],
    shared: tuple[Walk, Any],
    function: Callable[[Matrix, Any], Matrix],
) -> tuple[Matrix, int]:
    """Sketched rows of an item, canonical, with NaN for those that were skipped; and how wide the rows were."""
    walk, with_what = shared
    rows = walk.read(item[0])
    return _with_gaps(rows, as_block_matrix(merged(function(rows.X, with_what)))), rows.X.shape[1]


def _with_gaps(rows: Valid, X: Matrix) -> Matrix:
    """Rows at their places among all rows of the chunk; NaN where one was skipped."""
    if rows.kept is None:
        return X
    if isinstance(X, np.ndarray):
        out = np.full((rows.n_read, X.shape[1]), np.nan, X.dtype)
        out[rows.kept] = X
        return out
    lengths = np.ones(rows.n_read, np.int64)
    lengths[rows.kept] = np.diff(X.indptr)
    skipped = np.ones(rows.n_read, bool)
    skipped[rows.kept] = False
    gaps = np.repeat(skipped, lengths)
    data, indices = np.full(len(gaps), np.nan, X.dtype), np.zeros(len(gaps), X.indices.dtype)
    data[~gaps], indices[~gaps] = X.data, X.indices
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((data, indices, indptr), shape=(rows.n_read, X.shape[1]))


def _as_stored(X: Matrix, kind: str) -> Matrix:
    """Rows as a store of a kind has them: dense, or CSR."""
    if kind == "dense":
        return X if isinstance(X, np.ndarray) else X.toarray()
    return sp.csr_array(X) if isinstance(X, np.ndarray) else X


def other_rows(store: StoreSource, walk: Walk, n_rows: str) -> StoreError:
    """The error for further features of other rows than a store's."""
    return StoreError(
        f"{walk.source.name} has {n_rows} rows; {store.path} has {store.info.n_rows:,}: features are added row by row"
    )
