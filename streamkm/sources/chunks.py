"""Chunks: the pieces in which a source is read. A source holds runs of equal ones, not an object for each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIB = 1 << 20
SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = MIB, 16 * MIB
CHUNKS_WANTED = 16  # of a small source, so that several workers share it
MOST_WANTED = 1 << 23  # of a large one, as client and scheduler keep some bytes of each: 128 TiB in chunks of 16 MiB
UNKNOWN_ROW_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a source that is read at once."""

    index: int  # position among the chunks of the source, from 0
    part: int  # file of the source, from 0
    start: int  # first row; for text the first byte
    stop: int  # one past the last row; for text one past the last byte
    n_bytes: int  # projected bytes of the rows once decoded


class ChunkRuns(Sequence[Chunk]):
    """Chunks in order, made on demand: a run of equally long ones takes 40 bytes.

    `runs` (runs, 5), int64: the number of chunks, their part, the start of the first, and the length and bytes of each.
    """

    __slots__ = ("_ends", "_runs")

    def __init__(self, runs: NDArray[np.int64]) -> None:
        self._runs = runs
        self._ends = np.cumsum(runs[:, 0])

    @classmethod
    def of(cls, cuts: Iterable[tuple[int, int, int, int]]) -> ChunkRuns:
        """Chunks in order from their part, start, stop and bytes. O(chunks)."""
        runs = array("q")
        run = (-1, 0, 0, 0)
        n_chunks = stop_before = 0
        for part, start, stop, n_bytes in cuts:
            same = (part, stop - start, n_bytes) == (run[0], run[2], run[3])
            if not same or start != stop_before:
                if n_chunks:
                    runs.extend((n_chunks, *run))
                run, n_chunks = (part, start, stop - start, n_bytes), 0
            n_chunks, stop_before = n_chunks + 1, stop
        if n_chunks:
            runs.extend((n_chunks, *run))
        return cls(np.frombuffer(runs, np.int64).reshape(-1, 5) if runs else np.empty((0, 5), np.int64))

    @classmethod
    def even(cls, n_rows: int, rows: int, row_bytes: int) -> ChunkRuns:
        """Chunks of `rows` rows, and one of the remaining rows. O(1)."""
        n_full, left = divmod(n_rows, rows)
        full = (n_full, 0, 0, rows, rows * row_bytes), (1, 0, n_full * rows, left, left * row_bytes)
        return cls(np.array([run for run in full if run[0] and run[3]], np.int64).reshape(-1, 5))

    @classmethod
    def joined(cls, parts: Iterable[ChunkRuns]) -> ChunkRuns:
        """Chunks of several sources, one after the other; `part` becomes the number of the source."""
        tables = []
        for number, chunks in enumerate(parts):
            runs = chunks._runs.copy()
            runs[:, 1] = number
            tables.append(runs)
        return cls(np.concatenate(tables) if tables else np.empty((0, 5), np.int64))

    def resized(self, size: Callable[[NDArray[np.int64]], NDArray[Any]]) -> ChunkRuns:
        """Chunks with other bytes, given by a function of the present ones."""
        runs = self._runs.copy()
        runs[:, 4] = size(runs[:, 4])
        return ChunkRuns(runs)

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest chunk; 0 if there is none."""
        return int(self._runs[:, 4].max(initial=0))

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks."""
        return int(self._runs[:, 0] @ self._runs[:, 4])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Chunk:  # type: ignore[override]
        at = range(len(self))[index]
        run = int(np.searchsorted(self._ends, at, side="right"))
        n_chunks, part, start, length, n_bytes = self._runs[run].tolist()
        first = start + (at - int(self._ends[run]) + n_chunks) * length
        return Chunk(at, part, first, first + length, n_bytes)


def default_chunk_bytes(source: Any, *, row_bytes: int | None = None, largest: int | None = None) -> int:
    """Decoded bytes of a chunk, at most `largest`: the same on every machine, larger for the largest sources.

    `row_bytes`: the result of `decoded_row_bytes`, if already known.
    """
    n_rows = source.estimated_rows
    if n_rows is None:
        wanted = LARGEST_CHUNK_BYTES // 2
    else:
        decoded_bytes = n_rows * (decoded_row_bytes(source) if row_bytes is None else row_bytes)
        wanted = min(LARGEST_CHUNK_BYTES, decoded_bytes // CHUNKS_WANTED)
        wanted = max(wanted, -(-decoded_bytes // MOST_WANTED))
    return int(max(SMALLEST_CHUNK_BYTES, wanted if largest is None else min(wanted, largest)))


def decoded_row_bytes(source: Any) -> int:
    """Approximate bytes of a row in memory."""
    if not source.is_sparse and source.n_features is not None:
        return max(1, source.n_features * source.dtype.itemsize)
    if not source.access.streams and source.estimated_rows:
        return max(1, source.chunks(LARGEST_CHUNK_BYTES).total_bytes // source.estimated_rows)
    return UNKNOWN_ROW_BYTES
