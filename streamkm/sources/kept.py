"""Rows of a source that stay in memory once they are read, so that the passes that follow read nothing again."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from streamkm.core.matrix import Matrix
from streamkm.sources.base import Chunk, ChunkedSource, Rows, RowSource


class KeptRows(ChunkedSource):
    """Rows of another source, which stay in memory as far as there is room for them: for threads of one process.

    Parameters
    ----------
    source : ChunkedSource
    chunk_bytes : int
        Chunks of this size stay: a look at smaller ones leaves nothing behind.
    room_bytes : int
        That rows may take. Chunks that come when it is full are read again whenever they are needed.

    Attributes
    ----------
    source : ChunkedSource

    Notes
    -----
    What is kept is what was read first: a file that changes later is not looked at.
    """

    def __init__(self, source: ChunkedSource, chunk_bytes: int, room_bytes: int) -> None:
        self.source = source
        self.take_after(source)
        chunks = source.chunks(chunk_bytes)
        self._wanted = frozenset(chunks)
        self._all_bytes = max(1, sum(chunk.n_bytes for chunk in chunks))
        self._room, self._read_bytes = room_bytes, 0
        self._kept: dict[Chunk, Rows] = {}
        self._lock = threading.Lock()

    @property
    def estimated_rows(self) -> int | None:
        return self.source.estimated_rows

    @property
    def estimated_features(self) -> int | None:
        return self.source.estimated_features

    def chunks(self, target_bytes: int) -> tuple[Chunk, ...]:
        return self.source.chunks(target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Give a chunk that was kept, or read it; see `ChunkedSource.read`."""
        rows = self._kept.get(chunk)
        if rows is not None:
            return rows
        rows = self.source.read(chunk)
        size = _matrix_bytes(rows.X) + rows.places.nbytes
        with self._lock:
            self._read_bytes += chunk.n_bytes
            if chunk in self._wanted and size <= self._room and chunk not in self._kept:
                self._room -= size
                self._kept[chunk] = rows
        return rows

    def describe(self, place: int) -> str:
        return self.source.describe(place)

    def details(self) -> dict[str, str]:
        return self.source.details()

    def ids(self) -> Any:
        return self.source.ids()

    def take_read_bytes(self) -> int:
        """Stored bytes, about, that were read since this was asked before; see `RowSource.take_read_bytes`."""
        with self._lock:
            share, self._read_bytes = min(1.0, self._read_bytes / self._all_bytes), 0
        return round(share * self.source.take_read_bytes())


def kept_rows(source: RowSource, chunk_bytes: int, room_bytes: int) -> RowSource:
    """The source, whose rows stay in memory where there is room for them; see `KeptRows`."""
    keeps = room_bytes > 0 and isinstance(source, ChunkedSource)
    return KeptRows(source, chunk_bytes, room_bytes) if keeps else source


def _matrix_bytes(X: Matrix) -> int:
    """Bytes of a matrix in memory."""
    if isinstance(X, np.ndarray):
        return int(X.nbytes)
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)
