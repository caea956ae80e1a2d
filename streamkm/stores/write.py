"""The pass that fills a part of a sketch store: chunks become their sketches, added to rows of a store or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from streamkm.cluster.blocks import merged
from streamkm.cluster.sampling.row_sample import as_block_matrix, stacked
from streamkm.core.exceptions import InvalidInputError, StoreError
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map, outputs
from streamkm.passes.reader import RowReader, SourceRows, ValidRows
from streamkm.sketches import Sketch
from streamkm.sources.sketch_store import StoreSource
from streamkm.stores.writer import PartWriter

STORED_COPIES = 4  # of a sketched chunk: made, gathered, compressed, written


@dataclass(frozen=True, slots=True)
class Job:
    """How and by whom rows are read that go into a store."""

    reader: RowReader
    executor: Executor
    stage: Stage


@dataclass(frozen=True, slots=True)
class Filled:
    """A part whose rows are all there, not finished yet; its kind; and the width of the widest rows that were read."""

    writer: PartWriter
    kind: Any
    width: int


def fill_part(job: Job, directory: Path, making: NewRows | NewColumns, kind: str | None) -> Filled:
    """Write what a pass makes of a source into a part."""
    reader, executor, stage = job.reader, job.executor, job.stage
    writer, width, finish = None, 0, making.finisher()
    for made, found in outputs(StoredRows(making.shared, making.function), SourceRows(reader), executor, stage):
        if kind is None:
            kind = "dense" if isinstance(made, np.ndarray) else "csr"
        X = finish(_as_stored(made, kind))
        if writer is None:
            writer = PartWriter(directory, kind, X.dtype, X.shape[1])
        writer.add(X)
        width = max(width, found)
    if writer is None or not writer.n_rows:
        raise InvalidInputError(f"{reader.source.name} has no rows; needed: at least 1")
    stage.rows = writer.n_rows
    return Filled(writer, kind, width)


class NewRows:
    """Making rows of a store: their sketch."""

    def __init__(self, sketch: Sketch):
        self.shared: Any = sketch

    @staticmethod
    def function(X: Matrix, sketch: Sketch) -> Matrix:
        """What calls of the executor make of a chunk."""
        return sketch.apply(X)

    def finisher(self) -> Callable[[Matrix], Matrix]:
        """A function that makes rows of the store of that."""
        return lambda X: X


class NewColumns:
    """Making rows of a store longer: the sketch of further features is added to the rows that it has."""

    def __init__(self, sketch: Any, first_feature: int, store: StoreSource, reader: RowReader):
        self.shared: Any = (sketch, first_feature)
        self._store, self._reader = store, reader

    @staticmethod
    def function(X: Matrix, shared: tuple[Any, int]) -> Matrix:
        """What calls of the executor make of a chunk."""
        sketch, first_feature = shared
        return sketch.apply_columns(X, first_feature)

    def finisher(self) -> Callable[[Matrix], Matrix]:
        """A function that adds consecutive rows to the store's."""
        take = _taker(self._store, self._reader.target_bytes)

        def add(X: Matrix) -> Matrix:
            held = take(X.shape[0])
            if held.shape != X.shape:
                raise other_rows(self._store, self._reader, f"more than {self._store.info.n_rows:,}")
            return as_block_matrix(held + X)

        return add


def _taker(store: StoreSource, target_bytes: int) -> Callable[[int], Matrix]:
    """A function that gives the next rows of a store; fewer at its end."""
    pieces = (part.read(chunk).X for part in store.part_sources for chunk in part.chunks(target_bytes))
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


@dataclass(frozen=True, slots=True)
class StoredRows(Map[tuple[Matrix, int]]):
    """Rows of a chunk as a store has them, canonical, with NaN for those that were skipped; and how wide they were."""

    large = True

    shared: Any  # the function's second argument
    function: Callable[[Matrix, Any], Matrix]  # of the valid rows

    @staticmethod
    def memory(block_bytes: int) -> PassMemory:
        """Chunks as they are stored, of so many bytes."""
        return PassMemory(kept=STORED_COPIES * block_bytes, output=block_bytes)

    def output(self, rows: ValidRows) -> tuple[Matrix, int]:
        """Of one chunk."""
        return _with_gaps(rows, as_block_matrix(merged(self.function(rows.X, self.shared)))), rows.X.shape[1]


def _with_gaps(rows: ValidRows, X: Matrix) -> Matrix:
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


def other_rows(store: StoreSource, reader: RowReader, n_rows: str) -> StoreError:
    """The error for further features of other rows than a store's."""
    return StoreError(
        f"{reader.source.name} has {n_rows} rows; {store.path} has {store.info.n_rows:,}: features are added row by row"
    )
