"""Rows of a source that stay in memory once they are read, so that the passes that follow read nothing again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from streamkm.core.matrix import Matrix
from streamkm.sources.base import ChunkedSource, Rows, RowSource, WrappedSource
from streamkm.sources.chunks import Chunk


class CachedRows(WrappedSource):
    """Rows of another source, in order only, which stay in memory if there is room for all: for one process.

    `source`: replayable. `chunk_bytes`: pieces of this size stay: a look at smaller ones leaves nothing behind.
    `room_bytes`: that rows may take.

    Notes
    -----
    What is kept is what was read first: a file that changes later is not looked at.
    """

    def __init__(self, source: RowSource, chunk_bytes: int, room_bytes: int) -> None:
        self.source = source
        self.take_after(source)
        self._chunk_bytes, self._room = chunk_bytes, room_bytes
        self._pieces: list[Rows] | None = None
        self._read_share = 0.0  # of the source, since it was asked for

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        wanted = target_bytes == self._chunk_bytes
        if wanted and self._pieces is not None:
            yield from self._pieces
            return
        self._read_share = 1.0
        pieces, size = list[Rows](), 0
        for rows in self.source.stream(target_bytes):
            size += _bytes_of(rows)
            if size <= self._room:
                pieces.append(rows)
            else:
                pieces.clear()
            yield rows
        if wanted and size <= self._room:
            self._pieces = pieces

    def take_read_bytes(self) -> int:
        """Stored bytes, about, that were read since this was asked before; see `RowSource.take_read_bytes`."""
        share, self._read_share = min(1.0, self._read_share), 0.0
        return round(share * self.source.take_read_bytes())


class CachedChunks(CachedRows, ChunkedSource):
    """The same where the source's pieces can be read in any order: as many stay as there is room for."""

    source: ChunkedSource

    def __init__(self, source: ChunkedSource, chunk_bytes: int, room_bytes: int) -> None:
        super().__init__(source, chunk_bytes, room_bytes)
        chunks = source.chunks(chunk_bytes)
        self._wanted = frozenset(chunks)
        self._all_bytes = max(1, sum(chunk.n_bytes for chunk in chunks))
        self._cached: dict[Chunk, Rows] = {}
        self._lock = threading.Lock()

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        return self.source.chunks(target_bytes)

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        return ChunkedSource.stream(self, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Give a chunk that was kept, or read it; see `ChunkedSource.read`."""
        rows = self._cached.get(chunk)
        if rows is not None:
            return rows
        rows = self.source.read(chunk)
        size = _bytes_of(rows)
        with self._lock:
            self._read_share += chunk.n_bytes / self._all_bytes
            if chunk in self._wanted and size <= self._room:
                self._room -= size
                self._cached[chunk] = rows
        return rows


def cached_rows(source: RowSource, chunk_bytes: int, room_bytes: int) -> RowSource:
    """The source, whose rows stay in memory where there is room for them: `room_bytes`, 0 for none."""
    if not room_bytes:
        return source
    if isinstance(source, ChunkedSource):
        return CachedChunks(source, chunk_bytes, room_bytes)
    return CachedRows(source, chunk_bytes, room_bytes)


def _bytes_of(rows: Rows) -> int:
    """Bytes of rows in memory."""
    X: Matrix = rows.X
    values = X.nbytes if isinstance(X, np.ndarray) else X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    return int(values + rows.places.nbytes)
