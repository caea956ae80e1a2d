"""Matrix Market files, plain or compressed, by path or URL: read once, their entries gathered by rows.

A file's entries may stand in any order, that of columns mostly; so the text is read when the file is opened, in
bounded memory, and what a pass reads is a temporary file of 16 bytes an entry, in the folder that ``TMPDIR`` names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.core.progress import Stage
from streamkm.kernels.text import matrix_market as kernel
from streamkm.sources.base import ChunkedSource, Rows, row_places
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.matrix_market.entries import HELD_BYTES, GroupedEntries
from streamkm.sources.stored import file_size, name_of, open_binary, opened_path
from streamkm.sources.svmlight.compressed import compression_of, opened_text
from streamkm.sources.text_lines import BLOCK_BYTES, LineReader

_MARK = "%%matrixmarket"
_FIELDS = ("real", "double", "integer", "unsigned-integer", "pattern")
_SIGNS = {"general": 0, "symmetric": 1, "hermitian": 1, "skew-symmetric": -1}
_VALUE_BYTES, _ROW_BYTES = 12, 8  # of decoded sparse rows: a value and its column, and a row's pointer


@dataclass(frozen=True, slots=True)
class _Header:
    """What a file says of itself."""

    sparse: bool  # whether it names the places of its entries, and leaves zeros out
    field: str  # of `_FIELDS`
    sign: int  # 0, or what a value's mirror image is multiplied by
    shape: tuple[int, int]
    n_lines: int  # lines of entries


class MatrixMarketSource(ChunkedSource):
    """Rows of a matrix in a Matrix Market file: CSR of a coordinate file, dense of an array. Duplicates are summed.

    Raises SourceError, SourceNotFoundError, MissingDependencyError: missing, damaged, truncated, or of numbers that are
    not real; names line and byte. Raises InvalidInputError: no rows or columns. Raises DiskFullError, OutputError: no
    room for the temporary file.
    """

    in_process = True
    producer_bytes = HELD_BYTES + 8 * BLOCK_BYTES

    def __init__(self, path: str) -> None:
        self._path = opened_path(path)
        self.name, self.files = name_of((self._path,)), (self._path,)
        started = time.perf_counter()
        self._header, self._entries = self._gather()
        stage = Stage("by rows", time.perf_counter() - started, file_size(self._path), self._header.shape[0])
        self.stages_before = (stage,)
        self.n_rows, self.n_features = self._header.shape
        self.dtype, self.is_sparse = np.dtype(np.float64), self._header.sparse
        self.read_factor = 4.0 if self.is_sparse else 5.0  # entries as they were gathered, and their rows
        self.n_bytes = self._entries.n_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return MatrixMarketSource, (self._path,)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Join groups of rows; see `ChunkedSource.chunks`. O(groups)."""
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        return ChunkRuns.of(self._cuts(target_bytes))

    def _cuts(self, target_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Part, start, stop and decoded bytes of each chunk."""
        n_rows, group_rows = self._header.shape[0], self._entries.group_rows
        start = size = 0
        for group, n_entries in enumerate(self._entries.n_of_group.tolist()):
            begin, stop = group * group_rows, min(n_rows, (group + 1) * group_rows)
            if self.is_sparse:
                more = n_entries * _VALUE_BYTES + (stop - begin) * _ROW_BYTES
            else:
                more = (stop - begin) * self._header.shape[1] * 8
            if size and size + more > target_bytes:
                yield 0, start, begin, size
                start, size = begin, 0
            size += more
        yield 0, start, n_rows, size

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        group_rows = self._entries.group_rows
        entries = self._entries.read(chunk.start // group_rows, -(-chunk.stop // group_rows))
        shape = (chunk.stop - chunk.start, self._header.shape[1])
        rows, columns, values = entries["row"] - chunk.start, entries["column"], entries["value"]
        X: Any
        if self.is_sparse:
            X = sp.coo_array((values, (rows, columns)), shape=shape).tocsr()
        else:
            X = np.zeros(shape)
            X[rows, columns] = values
        return Rows(X, row_places(chunk.start, chunk.stop))

    def details(self) -> dict[str, str]:
        """Say what the file is; see `RowSource.details`."""
        with open_binary(self._path) as raw:
            compression = compression_of(self._path, raw).replace("plain", "none")
        n_entries, n_rows = int(self._entries.n_of_group.sum()), self._header.shape[0]
        form = "coordinates" if self.is_sparse else "array"
        return {
            "format": f"Matrix Market, {form}",
            "nnz": f"{n_entries:,}, {n_entries / n_rows:,.1f} a row",
            "compression": compression,
            "by rows": f"in a temporary file of {self._entries.n_bytes:,} bytes",
        }

    def _gather(self) -> tuple[_Header, GroupedEntries]:
        """Read the text."""
        with opened_text(self._path) as (fill, _):
            lines = _Lines(self._path, LineReader(fill, 0))
            header = lines.header()
            if min(header.shape) < 1:
                raise InvalidInputError(f"{self._path} has {header.shape[0]:,} rows of {header.shape[1]:,} columns")
            mirrored = 2 if header.sign else 1
            entries = GroupedEntries(header.shape, mirrored * header.n_lines)
            done = 0
            for first, second, values in lines.numbers(2 * header.sparse, header.field != "pattern"):
                if done + len(values) > header.n_lines:
                    raise self._damaged(f"it has more entries than the {header.n_lines:,} of its header")
                rows, columns = self._places(header, done, first, second, len(values))
                done += len(values)
                entries.add(rows, columns, values)
                if header.sign:
                    others = np.flatnonzero(rows != columns)
                    entries.add(columns[others], rows[others], header.sign * values[others])
        if done != header.n_lines:
            raise self._damaged(f"it has {done:,} entries, and its header says {header.n_lines:,}")
        entries.finish()
        return header, entries

    def _places(
        self, header: _Header, done: int, first: NDArray[np.int64], second: NDArray[np.int64], n_lines: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows and columns of lines, counted from 0; `done` lines are in front of them."""
        (n_rows, n_columns), numbers = header.shape, np.arange(done, done + n_lines)
        if header.sparse:
            wrong = np.flatnonzero((first < 1) | (first > n_rows) | (second < 1) | (second > n_columns))
            if len(wrong):
                at = int(wrong[0])
                raise self._damaged(
                    f"entry {done + at + 1:,} is in row {first[at]:,} and column {second[at]:,} of {n_rows:,} x "
                    f"{n_columns:,}"
                )
            return first - 1, second - 1
        if not header.sign:
            return numbers % n_rows, numbers // n_rows
        # the lower triangle, by columns; without the diagonal where that is 0
        skipped = int(header.sign < 0)
        ends = np.cumsum(np.arange(n_rows, 0, -1) - skipped)
        columns = np.searchsorted(ends, numbers, side="right")
        return columns + skipped + numbers - (ends[columns] - (n_rows - columns - skipped)), columns

    def _damaged(self, problem: str) -> SourceError:
        return SourceError(f"{self._path} cannot be read as Matrix Market: {problem}; it is truncated or damaged")


class _Lines:
    """The text of a file, line by line where that is needed, else in blocks."""

    def __init__(self, path: str, reader: LineReader) -> None:
        self._path, self._reader = path, reader
        self._n_lines = 0  # that were read

    def header(self) -> _Header:
        """Read up to the line with the sizes."""
        words = self._line().lower().split()
        if len(words) != 5 or words[0] != _MARK or words[1] != "matrix" or words[2] not in ("coordinate", "array"):
            raise self._wrong("needed: %%MatrixMarket matrix coordinate|array, a field and a symmetry")
        sparse, field, symmetry = words[2] == "coordinate", words[3], words[4]
        if field not in _FIELDS or symmetry not in _SIGNS:
            raise self._wrong(f"{field} {symmetry}; rows must be real numbers, general or symmetric")
        line = self._line()
        while line.startswith("%") or not line.strip():
            line = self._line()
        sizes = line.split()
        if len(sizes) != 2 + sparse or not all(size.isdecimal() for size in sizes):
            raise self._wrong(f"{line.strip()[:40]!r}; needed: {2 + sparse} sizes")
        n_rows, n_columns, *counted = map(int, sizes)
        sign = _SIGNS[symmetry]
        if sign and n_rows != n_columns:
            raise self._wrong(f"{n_rows:,} x {n_columns:,} is {symmetry}; needed: as many columns as rows")
        triangle = n_rows * (n_rows + sign) // 2
        n_lines = counted[0] if sparse else triangle if sign else n_rows * n_columns
        return _Header(sparse, field, sign, (n_rows, n_columns), n_lines)

    def numbers(
        self, n_indices: int, valued: bool
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
        """Yield the numbers of the lines that are left: as they stand there; in memory that is used again."""
        reader = self._reader
        first, second, values = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        while self._load():
            room = (reader.end - reader.start) // kernel.LEAST_LINE_BYTES + 1
            if room > len(values):
                first, second, values = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room)
            span = (reader.start, reader.end)
            n_lines, at = kernel.read_lines(reader.text, span, n_indices, valued, first, second, values)
            self._n_lines += bytes(reader.text[reader.start : at]).count(b"\n")
            reader.start = int(at)
            yield first[:n_lines], second[:n_lines], values[:n_lines]
            if at < reader.end:
                words = self._line().split()
                if words and not words[0].startswith("%"):
                    yield self._looked_at(words, n_indices, valued)

    def _looked_at(
        self, words: list[str], n_indices: int, valued: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """The numbers of a line that is not plain."""
        try:
            if len(words) != n_indices + valued:
                raise ValueError
            indices, value = [int(word) for word in words[:n_indices]], float(words[-1]) if valued else 1.0
            found = np.array(indices or [0, 0], np.int64)
        except (ValueError, OverflowError):
            raise self._wrong(f"{' '.join(words)[:40]!r}; needed: {n_indices + valued} numbers") from None
        return found[:1], found[1:], np.array([value])

    def _load(self) -> bool:
        try:
            return self._reader.load()
        except InvalidInputError as error:
            raise self._wrong(str(error)) from None

    def _line(self) -> str:
        reader = self._reader
        if not self._load():
            raise self._wrong("the file ends; it is truncated or damaged")
        text = bytes(reader.text[reader.start : reader.end])
        line = text[: text.index(b"\n") + 1]
        reader.start += len(line)
        self._n_lines += 1
        return line.decode("utf-8", "replace")

    def _wrong(self, problem: str) -> SourceError:
        return SourceError(f"{self._path} cannot be read as Matrix Market: line {self._n_lines:,}: {problem}")
