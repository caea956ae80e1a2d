"""Rows out of svmlight text that arrives in blocks: whole lines, growing CSR arrays, and what to say about bad text.

Shared by the plain and the compressed source; knows nothing of where bytes come from. May import errors, the base
contract and kernels only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from streamkm.errors import InvalidInputError, InvalidParameterError
from streamkm.kernels import svmlight as kernel
from streamkm.kernels.words import WINDOW
from streamkm.sources.base import Rows

BLOCK_BYTES = 1 << 20
"""Text held at a time: stays in a core's cache between the read and the parse, and outweighs the cost of a call."""

MAX_LINE_BYTES = 64 << 20
"""A longer line is refused, so that a file without line feeds cannot fill the memory."""

PLACE_BITS = 44
"""A row's place is ``part << PLACE_BITS | byte``: files below 16 TiB, and half a million of them."""

LARGEST_INT64 = 2**63 - 1
_LARGEST_INT32 = 2**31 - 1
_LINE_FEED = 10
_SHOWN_CHARACTERS = 40

# ``1:2`` and a blank; ``1`` and a line feed. Bounds of what a block may hold; what is not used is never touched.
_LEAST_VALUE_BYTES, _LEAST_ROW_BYTES = 4, 2
_MARGIN, _MOST_AHEAD = 1.03, 4096.0


@dataclass(frozen=True, slots=True)
class TextFormat:
    """What has to be known to read a row.

    Attributes
    ----------
    n_features : int or None
        Columns, if fixed.
    zero_based : bool
        Whether column 0 is written as 0 rather than as 1.
    guessed : bool
        Whether `zero_based` was found by a look at the text; messages then say so.
    dtype : dtype
        float32 or float64.
    """

    n_features: int | None
    zero_based: bool
    guessed: bool
    dtype: np.dtype[Any]


def check_options(n_features: int | None, zero_based: bool | Literal["auto"], dtype: DTypeLike) -> np.dtype[Any]:
    """Check a source's parameters and return the dtype.

    Raises
    ------
    InvalidParameterError
        For a value that is not accepted.
    """
    if n_features is not None and not (isinstance(n_features, int | np.integer) and 1 <= n_features <= LARGEST_INT64):
        raise InvalidParameterError(f"n_features must be a positive integer or None, got {n_features!r}")
    if not (zero_based is True or zero_based is False or zero_based == "auto"):
        raise InvalidParameterError(f'zero_based must be True, False or "auto", got {zero_based!r}')
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise InvalidParameterError(f"dtype must be float32 or float64, got {np.dtype(dtype)}")
    return np.dtype(dtype)


class LineReader:
    """Whole lines out of bytes that arrive in order, in one buffer that is used again.

    Parameters
    ----------
    fill : callable
        Takes a writable memoryview, fills some of it and returns how many bytes; 0 at the end of the file.
    offset : int
        Position in the file of the first byte that `fill` will give.
    block_bytes : int
        Size of the buffer, which grows only for a line that is longer.

    Attributes
    ----------
    text : uint8 ndarray
        The buffer.
    start, end : int
        The whole lines in it that have not been consumed; the consumer moves `start`.
    base : int
        Position in the file of the buffer's first byte.
    """

    def __init__(self, fill: Callable[[memoryview], int], offset: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._fill = fill
        self._filled = 0
        self._at_end = False
        self._allocate(block_bytes)
        self.start = self.end = 0
        self.base = offset

    def _allocate(self, capacity: int) -> None:
        # room for a last line feed that the file lacks, and for the kernel's look ahead
        self._buffer = bytearray(capacity + 1 + WINDOW)
        self._view = memoryview(self._buffer)
        self.text = np.frombuffer(self._buffer, dtype=np.uint8)
        self._capacity = capacity

    @property
    def position(self) -> int:
        """Position in the file of the next line that is not consumed."""
        return self.base + self.start

    def load(self) -> bool:
        """Have at least one whole line between `start` and `end`; False at the end of the file.

        Raises
        ------
        InvalidInputError
            If a line is longer than `MAX_LINE_BYTES`. Names no file: that is for the caller.
        """
        if self.start < self.end:
            return True
        if self._at_end:
            return False
        left = self._filled - self.end
        self._view[:left] = self._view[self.end : self._filled]
        self.base += self.end
        self.start = self.end = 0
        self._filled = left
        while True:
            if self._filled == self._capacity:
                self._grow()
            n_read = self._fill(self._view[self._filled : self._capacity])
            if n_read == 0:
                return self._finish()
            searched = self._filled
            self._filled += n_read
            self.end = self._buffer.rfind(b"\n", searched, self._filled) + 1
            if self.end > 0:
                return True

    def _grow(self) -> None:
        if self._filled >= MAX_LINE_BYTES:
            raise InvalidInputError(
                f"a line is longer than {MAX_LINE_BYTES:,} bytes, the most that is accepted; "
                "check that the file is svmlight text with line feeds between its rows"
            )
        old = self._view[: self._filled]
        self._allocate(min(2 * self._capacity, max(MAX_LINE_BYTES, self._capacity)))
        self._view[: self._filled] = old

    def _finish(self) -> bool:
        self._at_end = True
        if self._filled == 0:
            return False
        self._buffer[self._filled] = _LINE_FEED
        self.end = self._filled + 1
        return True

    def skip_line(self, limit: int) -> bool:
        """Drop bytes up to and with the next line feed; False if there is none in front of position `limit`."""
        while self.base < limit:
            n_read = self._fill(self._view[: self._capacity])
            if n_read == 0:
                return False
            found = self._buffer.find(b"\n", 0, n_read)
            if found >= 0:
                self.start = found + 1
                self._filled = n_read
                self.end = self._buffer.rfind(b"\n", found, n_read) + 1
                return True
            self.base += n_read
        return False


class BadText(Exception):
    """Bad text at a byte of a file; the source turns it into an `InvalidInputError` that names file and line."""

    def __init__(self, byte: int, line_byte: int, problem: str) -> None:
        super().__init__(problem)
        self.byte, self.line_byte, self.problem = byte, line_byte, problem


class RowBuilder:
    """CSR arrays that grow with each block of lines.

    Parameters
    ----------
    fmt : TextFormat
    """

    def __init__(self, fmt: TextFormat) -> None:
        self._fmt = fmt
        wide = fmt.n_features is not None and fmt.n_features > _LARGEST_INT32
        self._index_dtype: type[np.signedinteger[Any]] = np.int64 if wide else np.int32
        self._data: NDArray[Any] = np.empty(0, fmt.dtype)
        self._indices: NDArray[Any] = np.empty(0, self._index_dtype)
        self._indptr: NDArray[Any] = np.zeros(1, self._index_dtype)
        self._places = np.empty(0, np.int64)
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
        per_row = self._indptr.itemsize + self._places.itemsize
        return self.n_rows * per_row + int(self._job[kernel.NNZ]) * (self._data.itemsize + self._indices.itemsize)

    def add(self, lines: LineReader, limit: int, part: int) -> None:
        """Append the rows of the loaded lines that start in front of position `limit`, and consume those lines.

        Raises
        ------
        BadText
            At the first thing that is wrong; the rows in front of it have been appended.
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
                kernel.parse_rows(
                    lines.text, job, self._data, self._indices, self._indptr, self._places, self._fixups
                )
            if job[kernel.FIXUPS] > len(self._fixups):
                self._fixups = np.empty((job[kernel.FIXUPS], 3), np.int64)
            elif job[kernel.STATUS] == kernel.TOO_WIDE and self._largest_index() < self._largest_accepted():
                self._widen()
            else:
                break
            job[:] = before
        for slot, first, stop in self._fixups[: job[kernel.FIXUPS]]:
            self._data[slot] = float(bytes(lines.text[first:stop]))
        if job[kernel.STATUS] != kernel.OK:
            raise self._complaint(lines)
        lines.start = int(job[kernel.START])

    def has_column_0(self) -> bool:
        """Whether a value is stored in column 0."""
        return bool(np.any(self._indices[: self._indptr[self.n_rows]] == 0))

    def _largest_accepted(self) -> int:
        n_features = LARGEST_INT64 if self._fmt.n_features is None else self._fmt.n_features
        return n_features - 1 if self._fmt.zero_based else n_features

    def _largest_index(self) -> int:
        held = int(np.iinfo(self._index_dtype).max)
        return min(self._largest_accepted(), held - 1 if self._fmt.zero_based else held)

    def _reserve(self, n_bytes: int, n_bytes_to_come: int) -> None:
        """Make room for whatever a block of text may hold, and for the rest of the chunk if it is like what was."""
        rows, nnz = self.n_rows, int(self._job[kernel.NNZ])
        most_nnz, most_rows = nnz + n_bytes // _LEAST_VALUE_BYTES + 1, rows + n_bytes // _LEAST_ROW_BYTES + 1
        if most_nnz > _LARGEST_INT32 and self._index_dtype is np.int32:
            self._widen()
        ahead = min(_MARGIN * n_bytes_to_come / max(self._n_text_bytes, 1), _MOST_AHEAD)
        if most_nnz > len(self._data):
            capacity = most_nnz + max(int(nnz * ahead), nnz // 2)
            self._data = _grown(self._data, nnz, capacity)
            self._indices = _grown(self._indices, nnz, capacity)
        if most_rows > len(self._places):
            capacity = most_rows + max(int(rows * ahead), rows // 2)
            self._places = _grown(self._places, rows, capacity)
            self._indptr = _grown(self._indptr, rows + 1, capacity + 1)
        self._n_text_bytes += n_bytes

    def _widen(self) -> None:
        self._index_dtype = np.int64
        self._indices, self._indptr = self._indices.astype(np.int64), self._indptr.astype(np.int64)

    def finish(self) -> Rows:
        """Return the rows; the builder must not be used afterwards."""
        rows, nnz = self.n_rows, int(self._job[kernel.NNZ])
        for array, size in ((self._data, nnz), (self._indices, nnz), (self._indptr, rows + 1), (self._places, rows)):
            # gives the unused end back without a copy; nothing else refers to these arrays
            array.resize(size, refcheck=False)
        width = int(self._job[kernel.WIDEST]) if self._fmt.n_features is None else self._fmt.n_features
        X = sp.csr_array((self._data, self._indices, self._indptr), shape=(rows, width), copy=False)
        X.has_canonical_format = True  # sorted and unique, or it would not have been read
        return Rows(X, self._places)

    def _complaint(self, lines: LineReader) -> BadText:
        at, line = int(self._job[kernel.TOKEN]), int(self._job[kernel.LINE])
        status = int(self._job[kernel.STATUS])
        if status == kernel.TOO_WIDE:
            at = self._first_too_wide(lines, line)
        rest = bytes(lines.text[at : min(lines.end, at + _SHOWN_CHARACTERS + 1)])
        token = rest.split(None, 1)[0] if rest.split() else rest
        shown = token.decode("utf-8", "backslashreplace")
        if len(token) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "..."
        problem = f"{self._problem(status)}, got {shown!r}"
        if b"\0" in token:
            problem += "; it holds a NUL byte: is this a binary or UTF-16 file?"
        return BadText(lines.base + at, lines.base + line, problem)

    def _first_too_wide(self, lines: LineReader, line: int) -> int:
        text = bytes(lines.text[line : lines.text[line : lines.end].tobytes().index(b"\n") + line])
        at = 0
        for token in text.split():
            at = text.index(token, at)
            index = token.split(b":", 1)[0]
            if b":" in token and index.isdigit() and int(index) > self._largest_accepted():
                break
            at += len(token)
        return line + at

    def _problem(self, status: int) -> str:
        if status == kernel.ZERO_INDEX:
            how = "was taken to be one-based because its head has no index 0" if self._fmt.guessed else "is one-based"
            return f"an index 0, but the input {how}; pass zero_based=True if column 0 is meant"
        if status == kernel.TOO_WIDE and self._fmt.n_features is not None:
            largest = self._largest_accepted()
            return f"an index beyond {largest:,}, the largest for the n_features that was given; pass a larger one"
        return _PROBLEMS[status]


_HUGE = f"a feature index must not exceed {LARGEST_INT64}, nor may its column's number plus one"
_PROBLEMS = {
    kernel.TOO_WIDE: _HUGE,
    kernel.BAD_TARGET: "a target must be a number or several joined by commas",
    kernel.BAD_QUERY: "a query must be written qid:<integer>",
    kernel.BAD_INDEX: "a feature must be written <index>:<value> with a non-negative integer for its index",
    kernel.NEGATIVE_INDEX: "a feature index must not be negative",
    kernel.HUGE_INDEX: _HUGE,
    kernel.NO_VALUE: "a feature must be written <index>:<value>; the colon and the value are missing",
    kernel.BAD_VALUE: "a value must be a number right behind the colon",
    # scikit-learn refuses such rows too: whether a repeated index means sum, last or mistake is not for a reader to say
    kernel.UNSORTED: "feature indices must increase within a row; sort them and join repeated ones",
}


def _grown(array: NDArray[Any], used: int, capacity: int) -> NDArray[Any]:
    larger = np.empty(capacity, array.dtype)
    larger[:used] = array[:used]
    return larger
