"""Rows of a source, prepared as they are read (see `preparation`), or cached in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from streamkm.core.matrix import Matrix, matrix_bytes, rows_between, working_dtype
from streamkm.preparation import Preparation
from streamkm.sources.chunks import Chunk, decoded_row_bytes
from streamkm.sources.row_source import Rows, RowSource, WrappedSource

logger = logging.getLogger(__name__)

INDEX_BYTES = 4  # of a stored value
DENSIFIED = (
    "%s has sparse rows, and %s was found on dense ones and shifts them: each chunk is made dense, with %d features"
)


class PreparedRows(WrappedSource):
    """Rows of another source, prepared where they are read, or where a cluster computes them.

    With an incomplete `preparation` rows can be planned for, but not read.
    """

    def __init__(self, source: RowSource, preparation: Preparation) -> None:
        self.source, self._preparation = source, preparation
        dtype, beside = working_dtype(source.dtype), INDEX_BYTES * source.is_sparse
        width = preparation.dense_width if source.is_sparse else None
        self.growth = (dtype.itemsize + beside) / (source.dtype.itemsize + beside)
        if width is not None:  # rows that store all their values grow least
            least = dtype.itemsize / (source.dtype.itemsize + beside)
            self.growth = max(least, width * dtype.itemsize / decoded_row_bytes(source))
            logger.info(DENSIFIED, source.name, ", ".join(preparation.finding), width)
        read_factor = source.access.read_factor / self.growth + 1  # both are there at the same time
        self.take_after(
            source,
            dtype=dtype,
            origin=replace(source.origin.also_made_with(steps=preparation.described()), prepared_by=preparation),
            access=replace(source.access, read_factor=read_factor),
            is_sparse=source.is_sparse and width is None,
            n_features=source.n_features if width is None else width,
        )

    @property
    def original(self) -> RowSource:
        return self.source

    def apply(self, X: Matrix) -> Matrix:
        return self._preparation.apply(X)

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        for rows in self.source.stream(self.original_bytes(target_bytes)):
            for piece in pieces(rows, self._preparation, target_bytes) if self.access.streams else (rows,):
                yield self._applied(piece)

    def describe(self, place: int) -> str:
        return f"{self.source.describe(place)}, after {', '.join(self._preparation.steps)}"

    def details(self) -> dict[str, str]:
        return {**self.source.details(), "preprocess": ", ".join(self._preparation.steps)}


def pieces(rows: Rows, preparation: Preparation, target_bytes: int) -> Iterator[Rows]:
    """Cut sparse rows that become dense into pieces of about `target_bytes` prepared bytes; others stay whole."""
    width, n_rows = preparation.dense_width, len(rows.row_ids)
    if isinstance(rows.X, np.ndarray) or width is None:
        yield rows
        return
    step = max(1, target_bytes // (width * working_dtype(rows.X.dtype).itemsize))
    for start in range(0, max(1, n_rows), step):
        stop = min(n_rows, start + step)
        yield Rows(rows_between(rows.X, start, stop), rows.row_ids[start:stop])


class CachedRows(WrappedSource):
    """Rows of another source that stay in memory once they are read, in one process; later changes do not show.

    Chunks are kept while there is room in `room_bytes`; rows of streams only if all fit. Only pieces of `chunk_bytes`
    are kept, so a look at smaller ones leaves nothing behind. `source` must be replayable.
    """

    def __init__(self, source: RowSource, chunk_bytes: int, room_bytes: int) -> None:
        self.source = source
        self.take_after(source)
        self._chunk_bytes, self._room = chunk_bytes, room_bytes
        chunks = source.chunks(chunk_bytes)
        self._wanted = frozenset(chunks)
        self._all_bytes = max(1, chunks.total_bytes)
        self._cached: dict[Chunk, Rows] = {}
        self._pieces: list[Rows] | None = None  # of rows that come in order only
        self._lock = threading.Lock()
        self._read_share = 0.0  # of the source, since it was asked for

    def read(self, chunk: Chunk) -> Rows:
        rows = self._cached.get(chunk)
        if rows is not None:
            return rows
        rows = self.source.read(chunk)
        size = matrix_bytes(rows.X) + rows.row_ids.nbytes
        with self._lock:
            self._read_share += chunk.n_bytes / self._all_bytes
            if chunk in self._wanted and size <= self._room:
                self._room -= size
                self._cached[chunk] = rows
        return rows

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        wanted = target_bytes == self._chunk_bytes
        if not self.access.streams:
            yield from RowSource.stream(self, target_bytes)
            return
        if wanted and self._pieces is not None:
            yield from self._pieces
            return
        self._read_share = 1.0
        pieces, size = list[Rows](), 0
        for rows in self.source.stream(target_bytes):
            size += matrix_bytes(rows.X) + rows.row_ids.nbytes
            if size <= self._room:
                pieces.append(rows)
            else:
                pieces.clear()
            yield rows
        if wanted and size <= self._room:
            self._pieces = pieces

    def take_read_bytes(self) -> int:
        share, self._read_share = min(1.0, self._read_share), 0.0
        return round(share * self.source.take_read_bytes())

    def remote_view(self) -> RowSource:
        return self.source.remote_view()


def cached_rows(source: RowSource, chunk_bytes: int, room_bytes: int) -> RowSource:
    """The source with its rows cached in up to `room_bytes`; unchanged for 0."""
    return CachedRows(source, chunk_bytes, room_bytes) if room_bytes else source
