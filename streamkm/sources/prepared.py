"""Rows of a source, prepared as they are read: scaled, logarithms taken, and the like. See `preparation`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix, rows_between, working_dtype
from streamkm.preparation import Preparation
from streamkm.preparation.moments import SUM_BYTES
from streamkm.preparation.preparation import FILL
from streamkm.sources.base import ChunkedSource, GraphSource, IndexedRows, Rows, RowSource, SentRows, WrappedSource
from streamkm.sources.chunking import decoded_row_bytes
from streamkm.sources.chunks import Chunk, chunk_runs

if TYPE_CHECKING:
    from streamkm.sources.row_graphs import RowGraphs

logger = logging.getLogger(__name__)

INDEX_BYTES = 4  # of a stored value
DENSIFIED = (
    "%s has sparse rows, and %s was found on dense ones and shifts them: each chunk is made dense, with %d features"
)


class PreparedRows(WrappedSource):
    """Rows of another source, prepared, in order only; made by `prepared`.

    `source`: of original rows. `preparation`: where it is not complete, the rows can be planned for, and not be read.
    """

    def __init__(self, source: RowSource, preparation: Preparation) -> None:
        self.source, self.preparation = source, preparation
        dtype, beside = working_dtype(source.dtype), INDEX_BYTES * source.is_sparse
        width = preparation.dense_width if source.is_sparse else None
        # prepared rows over those that are read, in bytes
        self._growth = (dtype.itemsize + beside) / (source.dtype.itemsize + beside)
        if width is not None:  # rows that store all their values grow least
            least = dtype.itemsize / (source.dtype.itemsize + beside)
            self._growth = max(least, width * dtype.itemsize / decoded_row_bytes(source))
            logger.info(DENSIFIED, source.name, ", ".join(preparation.finding), width)
        made_with = {**(source.made_with or {}), "steps": preparation.described()}
        read_factor = source.read_factor / self._growth + 1  # both are there at the same time
        self.take_after(
            source,
            dtype=dtype,
            made_with=made_with,
            read_factor=read_factor,
            is_sparse=source.is_sparse and width is None,
            n_features=source.n_features if width is None else width,
        )

    @property
    def original(self) -> RowSource:
        return self.source

    @property
    def prepared_by(self) -> Preparation:
        return self.preparation

    @property
    def sums_bytes(self) -> int:
        summed = {FILL, "standardize"} & set(self.preparation.steps)
        return SUM_BYTES * (1 + (self.estimated_features or 0)) if summed else 0

    @property
    def estimated_features(self) -> int | None:
        return self.source.estimated_features if self.n_features is None else self.n_features

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        for rows in self.source.stream(self.original_bytes(target_bytes)):
            for piece in pieces(rows, self.preparation, target_bytes):
                yield self._prepared(piece)

    def describe(self, place: int) -> str:
        return _after(self.source, self.preparation.steps, place)

    def details(self) -> dict[str, str]:
        return {**self.source.details(), "preprocess": ", ".join(self.preparation.steps)}

    def stand_in(self) -> RowSource:
        if not self.in_process:
            return self
        return SentRows(self, _Described(self.source.stand_in(), self.preparation.steps).describe)

    def _prepared(self, rows: Rows) -> Rows:
        return Rows(self.preparation.apply(rows.X), rows.places)

    def original_bytes(self, target_bytes: int) -> int:
        return max(1, int(target_bytes / self._growth))


class PreparedChunks(PreparedRows, ChunkedSource):
    """The same where the source's pieces can be read in any order."""

    source: ChunkedSource

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        found = self.source.chunks(self.original_bytes(target_bytes))
        if self._growth == 1:
            return found
        return chunk_runs(found).resized(lambda n_bytes: n_bytes * self._growth)

    def read(self, chunk: Chunk) -> Rows:
        return self._prepared(self.source.read(chunk))

    def index_rows(self, chunk: Chunk) -> IndexedRows | None:
        found = self.source.index_rows(chunk)
        if found is None:
            return None
        n_features = found.n_features if self.n_features is None else self.n_features
        return _PreparedIndexed(found.places, n_features, found, self.preparation)


class PreparedGraphs(PreparedChunks, GraphSource):
    """The same of a Dask array: where a cluster computes its blocks, they are prepared where that is done."""

    source: GraphSource

    def graphs(self) -> RowGraphs:
        return self.source.graphs()

    def packed(self, chunk: Chunk) -> tuple[Any, list[Any]]:
        return self.source.packed(chunk)

    def row_blocks(self, chunk_rows: NDArray[np.int64]) -> tuple[tuple[int, ...], bool]:
        """As of the array that is prepared."""
        found: tuple[tuple[int, ...], bool] = self.source.row_blocks(chunk_rows)  # type: ignore[attr-defined]
        return found

    def stand_in(self) -> RowSource:
        """Give what calls on a cluster need: it prepares blocks that were computed there."""
        described = _Described(self.source.stand_in(), self.preparation.steps)
        return SentRows(self, described.describe, self.preparation.apply)


@dataclass(frozen=True, slots=True)
class _PreparedIndexed(IndexedRows):
    """Rows that were found but not read; those that are read are prepared."""

    found: IndexedRows
    preparation: Preparation

    def take(self, rows: NDArray[np.int64]) -> Matrix:
        return self.preparation.apply(self.found.take(rows))


@dataclass(frozen=True, slots=True)
class _Described:
    """Says where prepared rows are; cheap to pickle where `source` is."""

    source: RowSource
    steps: tuple[str, ...]

    def describe(self, place: int) -> str:
        return _after(self.source, self.steps, place)


def _after(source: RowSource, steps: tuple[str, ...], place: int) -> str:
    return f"{source.describe(place)}, after {', '.join(steps)}"


def pieces(rows: Rows, preparation: Preparation, target_bytes: int) -> Iterator[Rows]:
    """Cut sparse rows that preparing makes dense into pieces of so many prepared bytes; others stay whole."""
    width, n_rows = preparation.dense_width, len(rows.places)
    if isinstance(rows.X, np.ndarray) or width is None:
        yield rows
        return
    step = max(1, target_bytes // (width * working_dtype(rows.X.dtype).itemsize))
    for start in range(0, max(1, n_rows), step):
        stop = min(n_rows, start + step)
        yield Rows(rows_between(rows.X, start, stop), rows.places[start:stop])


def prepared(source: RowSource, preparation: Preparation) -> PreparedRows:
    """Prepare the rows of a source: in any order where it can be read so."""
    if isinstance(source, GraphSource):
        return PreparedGraphs(source, preparation)
    return (PreparedChunks if isinstance(source, ChunkedSource) else PreparedRows)(source, preparation)
