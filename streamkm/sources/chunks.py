"""Chunks: the pieces in which a source is read, in runs of equal ones; and what a source says of its reading."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.progress import Stage

if TYPE_CHECKING:
    from streamkm.preparation import Preparation

MIB = 1 << 20
SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = MIB, 16 * MIB
CHUNKS_WANTED = 16  # of a small source, so that several workers share it
MOST_WANTED = 1 << 23  # of a large one, as client and scheduler keep some bytes of each: 128 TiB in chunks of 16 MiB
UNKNOWN_ROW_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Access:
    """How rows of a source are read, and the memory that this takes."""

    streams: bool = False  # whether rows come only in order: there are no chunks, and `stream` is overridden
    replayable: bool = True  # whether `stream` can be called more than once
    sequential: bool = False  # whether a chunk is read fastest right after its predecessor, by whichever thread
    decodes: bool = False  # whether reading takes much longer than a copy: text, and compressed or remote data
    in_process: bool = False  # whether the rows lie in this process's memory, from where a cluster gets them
    read_factor: float = 1.5  # peak memory of a thread that reads a chunk, over the chunk's decoded bytes
    producer_bytes: int = 0  # memory of this process that the producer of the rows takes, whatever the size of chunks
    resident_bytes: int = 0  # memory of this process that the rows take, whatever is read,
    unloaded_bytes: int = 0  # of which these are taken when rows are first asked for, and were not yet
    shared_bytes: int = 0  # decoded bytes of the storage that two neighbouring chunks share, and both read
    # libraries that are loaded in addition to those of every fit: "h5py", "zarr", "pyarrow", "fsspec", and "words" for
    # the analyzer of texts
    libraries: tuple[str, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[Access]) -> Access:
        """The access to sources or stored arrays that are read one after the other."""
        rules: dict[Any, tuple[str, ...]] = {
            all: ("replayable",),
            any: ("streams", "sequential", "decodes", "in_process"),
            max: ("read_factor", "producer_bytes", "shared_bytes"),
            sum: ("resident_bytes", "unloaded_bytes"),
        }
        told = {name: rule(getattr(part, name) for part in parts) for rule, names in rules.items() for name in names}
        return cls(**told, libraries=tuple(dict.fromkeys(library for part in parts for library in part.libraries)))


@dataclass(frozen=True, slots=True)
class Origin:
    """What the rows of a source are stored in, and what they are made with."""

    files: tuple[str, ...] = ()  # local files and directories that hold the rows
    stored_dtype: np.dtype[Any] | None = None  # of the values in the files; None if files hold no values
    has_long_integers: bool = False  # whether columns that are read as floats are stored as integers of 64 bits
    missing_chunks: str = ""  # how many storage chunks the files lack, and where; they are read as a fill value
    is_sketched: bool = False  # whether the rows are those of a sketch store
    # options by which rows are made from the files (``documents``, ``hashing``, ``tfidf``), if files hold no rows
    made_with: Mapping[str, Any] = field(default_factory=dict)
    id_column: str | None = None  # the column that identifies rows, whose values `RowSource.ids` yields
    stages_before: tuple[Stage, ...] = ()  # passes over the data that were needed to open the source
    prepared_by: Preparation | None = None  # the preparation of the rows of `RowSource.original`

    def joined(self, parts: Sequence[Origin]) -> Origin:
        """Origin of the rows of several parts, one after the other."""
        return replace(
            self,
            files=tuple(dict.fromkeys(file for part in parts for file in part.files)),
            missing_chunks="; ".join(part.missing_chunks for part in parts if part.missing_chunks),
            is_sketched=all(part.is_sketched for part in parts),
        )

    def also_made_with(self, **options: Any) -> Origin:
        """Copy with more options by which rows are made."""
        return replace(self, made_with={**self.made_with, **options})


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
