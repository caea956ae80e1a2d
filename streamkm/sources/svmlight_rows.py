"""Rows out of svmlight text: growing CSR arrays, messages on bad text, and rows that are found but not parsed.

A pass that needs few rows only looks for line ends and row widths, at several times the speed of parsing, and parses
the chosen rows. Knows nothing of files.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.kernels.text import svmlight as kernel
from streamkm.kernels.text import svmlight_tokens as tokens
from streamkm.kernels.text.machine_words import WINDOW
from streamkm.kernels.text.svmlight_index import NOT_PLAIN, find_rows, gather_lines
from streamkm.sources.chunks import Chunk
from streamkm.sources.row_source import IndexedRows, Rows
from streamkm.sources.text_lines import PLACE_BITS, LineReader, LongLineError, whole_lines

LARGEST_INT64 = 2**63 - 1
_LARGEST_INT32 = 2**31 - 1
_SHOWN_CHARACTERS = 40
_INDEX_BYTES = 4
_TEXT_COPIES, _ROW_COPIES = 2, 3  # of a long line: its text in buffers; its values as they are parsed, sampled and kept

_MARGIN, _MOST_AHEAD = 1.03, 4096.0


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The properties of a text that its parser needs."""

    n_features: int | None  # columns, if fixed
    zero_based: bool  # whether column 0 is written as 0 rather than as 1
    guessed: bool  # whether `zero_based` was found by a look at the text; messages then say so
    dtype: np.dtype[Any]  # float32 or float64


class BadTextError(Exception):
    """Bad text: the problem, and the byte of the file; the source names file and line."""


class RowBuilder:
    """CSR arrays that grow with each block of lines."""

    def __init__(self, fmt: TextFormat) -> None:
        self._fmt = fmt
        wide = fmt.n_features is not None and fmt.n_features > _LARGEST_INT32
        self._index_dtype: type[np.signedinteger[Any]] = np.int64 if wide else np.int32
        self._data: NDArray[Any] = np.empty(0, fmt.dtype)
        self._indices: NDArray[Any] = np.empty(0, self._index_dtype)
        self._indptr: NDArray[Any] = np.zeros(1, self._index_dtype)
        self._row_ids = np.empty(0, np.int64)
        self._fixups = np.empty((64, 3), np.int64)
        self._job = np.zeros(kernel.JOB_FIELDS, np.int64)
        self._n_text_bytes = 0
        self._job[kernel.FIRST_INDEX] = 0 if fmt.zero_based else 1

    @property
    def n_rows(self) -> int:
        """Rows so far."""
        return int(self._job[kernel.ROWS])

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows so far."""
        per_row = self._indptr.itemsize + self._row_ids.itemsize
        return self.n_rows * per_row + int(self._job[kernel.NNZ]) * (self._data.itemsize + self._indices.itemsize)

    def add(self, lines: LineReader, limit: int, part: int) -> None:
        """Append the rows of loaded lines that start before position `limit`, and consume the lines.

        Raises BadTextError at the first error; the rows before it have been appended.
        """
        self._reserve(lines.end - lines.start, limit - lines.position)
        job = self._job
        job[kernel.START], job[kernel.END] = lines.start, lines.end
        job[kernel.LIMIT] = min(limit - lines.base, lines.end)
        job[kernel.BASE] = (part << PLACE_BITS) + lines.base
        while True:
            before = job.copy()
            job[kernel.LARGEST_INDEX] = self._largest_index()
            # only without compilation, where wrapping on purpose would warn
            with np.errstate(over="ignore"):
                kernel.parse_rows(lines.text, job, self._data, self._indices, self._indptr, self._row_ids, self._fixups)
            if job[kernel.FIXUPS] > len(self._fixups):
                self._fixups = np.empty((job[kernel.FIXUPS], 3), np.int64)
            elif job[kernel.STATUS] == tokens.TOO_WIDE and self._largest_index() < self._largest_accepted():
                self._widen()
            else:
                break
            job[:] = before
        for slot, first, stop in self._fixups[: job[kernel.FIXUPS]]:
            self._data[slot] = float(bytes(lines.text[first:stop]))
        if job[kernel.STATUS] != tokens.OK:
            raise self._complaint(lines)
        lines.start = int(job[kernel.START])

    def _largest_accepted(self) -> int:
        n_features = LARGEST_INT64 if self._fmt.n_features is None else self._fmt.n_features
        return n_features - 1 if self._fmt.zero_based else n_features

    def _largest_index(self) -> int:
        held = int(np.iinfo(self._index_dtype).max)
        return min(self._largest_accepted(), held - 1 if self._fmt.zero_based else held)

    def _reserve(self, n_bytes: int, n_bytes_to_come: int) -> None:
        """Make room for all that a block of text can hold, and for the rest of the chunk at the density so far."""
        rows, nnz = self.n_rows, int(self._job[kernel.NNZ])
        # far more than most blocks do hold, but what is not used is never touched
        most_nnz, most_rows = nnz + n_bytes // kernel.LEAST_VALUE_BYTES, rows + n_bytes // kernel.LEAST_ROW_BYTES
        if most_nnz > _LARGEST_INT32 and self._index_dtype is np.int32:
            self._widen()
        ahead = min(_MARGIN * n_bytes_to_come / max(self._n_text_bytes, 1), _MOST_AHEAD)
        if most_nnz > len(self._data):
            capacity = most_nnz + max(int(nnz * ahead), nnz // 2)
            self._data = _grown(self._data, nnz, capacity)
            self._indices = _grown(self._indices, nnz, capacity)
        if most_rows > len(self._row_ids):
            capacity = most_rows + max(int(rows * ahead), rows // 2)
            self._row_ids = _grown(self._row_ids, rows, capacity)
            self._indptr = _grown(self._indptr, rows + 1, capacity + 1)
        self._n_text_bytes += n_bytes

    def _widen(self) -> None:
        self._index_dtype = np.int64
        self._indices, self._indptr = self._indices.astype(np.int64), self._indptr.astype(np.int64)

    def finish(self) -> Rows:
        """Return the rows; the builder must not be used afterwards."""
        rows, nnz = self.n_rows, int(self._job[kernel.NNZ])
        for array, size in ((self._data, nnz), (self._indices, nnz), (self._indptr, rows + 1), (self._row_ids, rows)):
            # gives the unused end back without a copy; nothing else refers to these arrays
            array.resize(size, refcheck=False)
        width = int(self._job[kernel.WIDEST]) if self._fmt.n_features is None else self._fmt.n_features
        X = sp.csr_array((self._data, self._indices, self._indptr), shape=(rows, width), copy=False)
        X.has_canonical_format = True  # sorted and unique, or it would not have been read
        return Rows(X, self._row_ids)

    def _complaint(self, lines: LineReader) -> BadTextError:
        at, status = int(self._job[kernel.TOKEN]), int(self._job[kernel.STATUS])
        rest = bytes(lines.text[at : min(lines.end, at + _SHOWN_CHARACTERS + 1)])
        token = rest.split(None, 1)[0] if rest.split() else rest
        shown = token.decode("utf-8", "backslashreplace")
        if len(token) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "..."
        problem = f"{self._problem(status)}, got {shown!r}"
        if b"\0" in token:
            problem += "; it holds a NUL byte: is this a binary or UTF-16 file? Convert text to UTF-8"
        return BadTextError(problem, lines.base + at)

    def _problem(self, status: int) -> str:
        if status == tokens.ZERO_INDEX:
            how = "was taken to be one-based because its head has no index 0" if self._fmt.guessed else "is one-based"
            return f"an index 0, but the input {how}; pass zero_based=True if column 0 is meant"
        if status == tokens.TOO_WIDE and self._fmt.n_features is not None:
            known = f"{self._largest_accepted():,}, the largest of {self._fmt.n_features:,} features"
            return f"an index beyond {known}; pass a larger n_features, or a name in feature_names for every feature"
        return _PROBLEMS[status]


_HUGE = f"a feature index must not exceed {LARGEST_INT64}, nor may its column's number plus one"
_PROBLEMS = {
    tokens.TOO_WIDE: _HUGE,
    tokens.BAD_TARGET: "a target must be a number or several joined by commas",
    tokens.BAD_QUERY: "a query must be written qid:<integer>",
    tokens.BAD_INDEX: "a feature must be written <index>:<value> with a non-negative integer for its index",
    tokens.NEGATIVE_INDEX: "a feature index must not be negative",
    tokens.HUGE_INDEX: _HUGE,
    tokens.NO_VALUE: "a feature must be written <index>:<value>; the colon and the value are missing",
    tokens.BAD_VALUE: "a value must be a number right behind the colon",
    # scikit-learn refuses such rows too: whether a repeated index means sum, last or mistake is not for a reader to say
    tokens.UNSORTED: "feature indices must increase within a row; sort them and join repeated ones",
}


def _grown(array: NDArray[Any], used: int, capacity: int) -> NDArray[Any]:
    larger = np.empty(capacity, array.dtype)
    larger[:used] = array[:used]
    return larger


def index_text(
    fill: Callable[[memoryview], int], begin: int, chunk: Chunk, fmt: TextFormat, read: Callable[[], Rows], longest: int
) -> IndexedRows | None:
    """Find the rows of the lines that start in a chunk; None if it must be parsed: not plain, or too long a last line.

    `fill` gives the text from byte `begin` on, the byte before the chunk, which tells whether the chunk's first byte
    starts a line. `read` reads the chunk, for the message that names file and line. `longest`: bytes of a line that may
    be held.
    """
    n_wanted = chunk.stop - begin
    try:
        text = np.frombuffer(whole_lines(fill, n_wanted, longest, is_inside=True), np.uint8)
    except LongLineError:
        return None
    end = len(text) - WINDOW - 1
    capacity = end // 2 + 1
    starts, stops = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    n_rows, width = find_rows(text, 0, min(n_wanted, end + 1), 0 if fmt.zero_based else 1, starts, stops)
    largest = LARGEST_INT64 - 1 if fmt.n_features is None else fmt.n_features
    if n_rows == NOT_PLAIN or width > largest:
        return None
    starts, stops = starts[:n_rows].copy(), stops[:n_rows].copy()
    row_ids = starts + ((chunk.part << PLACE_BITS) + begin)
    width = width if fmt.n_features is None else fmt.n_features

    def take(rows: NDArray[np.int64]) -> Matrix:
        picked = np.empty(int((stops[rows] + 1 - starts[rows]).sum()), np.uint8)
        gather_lines(text, starts, stops, rows, picked)
        builder, lines = RowBuilder(fmt), LineReader(io.BytesIO(picked.data).readinto, 0)
        try:
            while lines.load():
                builder.add(lines, len(picked), 0)
        except (BadTextError, LongLineError):
            return read().X[rows]
        return builder.finish().X

    return IndexedRows(row_ids, width, take)


def count_rows(text: bytes, at_end: bool) -> int:
    """Count the lines of a piece of text that can be rows, roughly: neither empty nor only a comment."""
    unfinished = at_end and not text.endswith(b"\n")
    return text.count(b"\n") - text.count(b"\n\n") - text.count(b"\n#") + unfinished


def line_cost(itemsize: int) -> float:
    """Memory for each byte of a long line, at most: its text, and its values."""
    return _TEXT_COPIES + _ROW_COPIES * (itemsize + _INDEX_BYTES) / kernel.LEAST_VALUE_BYTES
