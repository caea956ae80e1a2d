"""Whole lines out of blocks of bytes, in bounded memory, and the names of their places in messages.

Long lines are refused as they are read if a memory limit leaves no room for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from streamkm.core.exceptions import InvalidInputError, MemoryLimitError, SourceError
from streamkm.core.memory import human_bytes
from streamkm.kernels.text.machine_words import WINDOW
from streamkm.sources.stored import file_size

BLOCK_BYTES = 1 << 20
"""Text held at a time: fits in a core's cache between read and parse, and outweighs the cost of a call."""

MAX_LINE_BYTES = 64 << 20
"""A longer line is refused, so that a file without line feeds cannot fill the memory."""

PLACE_BITS = 44
"""A row's place is ``part << PLACE_BITS | byte``: files below 16 TiB, and half a million of them."""

SHARED = 2
"""Factor on the bytes that a line lacks, for the limit in a message: plans use part of an increase otherwise."""

_LINE_FEED = 10
_MORE_BYTES = 1 << 14  # behind the end of a piece of text, as often as its last line takes to end

Fill: TypeAlias = Callable[[memoryview], int]
"""Fills a buffer with the next bytes; gives how many there were."""


class LongLineError(Exception):
    """A line is too long for a reader that names no places; the byte of the text where it begins, if known."""


@dataclass(frozen=True, slots=True)
class LineLimit:
    """Memory that a plan leaves for long lines, below a given memory limit."""

    limit_bytes: int
    room_bytes: int  # for one line; negative where a plan is above its limit
    n_readers: int  # threads that may read such a line at a time
    byte_cost: float = 1.0  # memory for each byte of a line, at most

    @property
    def most_bytes(self) -> int:
        """Bytes of the longest line that is read; those up to `BLOCK_BYTES` need no room of their own."""
        return min(MAX_LINE_BYTES, max(BLOCK_BYTES, int(self.room_bytes / self.byte_cost)))

    def refusal(self, where: str, n_bytes: int) -> MemoryLimitError:
        """The error for a line without room."""
        needed = int(n_bytes * self.byte_cost)
        return MemoryLimitError(
            f"{where}, of {n_bytes:,} bytes, takes up to {human_bytes(needed)}, and the limit of "
            f"{human_bytes(self.limit_bytes)} leaves {human_bytes(max(0, self.room_bytes))} for a line",
            self.limit_bytes + SHARED * self.n_readers * (needed - self.room_bytes),
            "cut the line",
        )


class LineReader:
    """Whole lines out of bytes that arrive in order, in one buffer that is reused, and grows only for longer lines.

    `fill` gives the bytes from position `offset` of the file on, none at its end. `source` names a line of file `part`,
    in the refusal of one for which its `line_limit`, or else `limit`, has no room. `text` is the buffer (uint8), whose
    byte 0 is at position `base` of the file; unconsumed whole lines are in start..end, and the consumer moves `start`.
    """

    def __init__(
        self,
        fill: Fill,
        offset: int,
        block_bytes: int = BLOCK_BYTES,
        *,
        source: Any = None,
        part: int = 0,
        limit: LineLimit | None = None,
    ) -> None:
        self._fill, self._source, self._part = fill, source, part
        self._limit = limit if source is None else source.line_limit
        self._most_bytes = MAX_LINE_BYTES if self._limit is None else self._limit.most_bytes
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
        """Position in the file of the next unconsumed line."""
        return self.base + self.start

    def load(self) -> bool:
        """Have at least one whole line between `start` and `end`; False at the end of the file.

        Raises InvalidInputError, MemoryLimitError, LongLineError: a line is too long.
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
                if self._filled >= self._most_bytes:
                    raise self._refusal()
                old = self._view[: self._filled]
                self._allocate(min(2 * self._capacity, self._most_bytes))
                self._view[: self._filled] = old
            # behind a long line no other one is read with it
            n_read = self._fill(self._view[self._filled : min(self._capacity, self._filled + BLOCK_BYTES)])
            if n_read == 0:
                self._at_end = True
                if self._filled == 0:
                    return False
                self._buffer[self._filled] = _LINE_FEED
                self.end = self._filled + 1
                return True
            searched = self._filled
            self._filled += n_read
            self.end = self._buffer.rfind(b"\n", searched, self._filled) + 1
            if self.end > 0:
                return True

    def _refusal(self) -> Exception:
        """The error for the line that fills the buffer, after reading the rest of it."""
        if self._source is None:
            return LongLineError()
        n_bytes, line, feed = self._filled, b" ", b""
        while line and not feed and n_bytes < MAX_LINE_BYTES:
            line, feed, _ = bytes(self._view[: self._fill(self._view[:BLOCK_BYTES])]).partition(b"\n")
            n_bytes += len(line)
        where = self._source.describe(self._part << PLACE_BITS | self.base)
        if self._limit is not None and n_bytes < MAX_LINE_BYTES:
            return self._limit.refusal(where, n_bytes)
        return InvalidInputError(
            f"{where}: a line is longer than {MAX_LINE_BYTES:,} bytes, the most that is accepted; "
            f"check that the file is text with line feeds between its rows"
        )

    def skip_line(self, limit: int) -> bool:
        """Drop bytes through the next line feed; False if there is none before position `limit`."""
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


def filled(fill: Fill, view: memoryview) -> int:
    """Fill a buffer with text; give the bytes, which are less only at the end."""
    done = 0
    while done < len(view) and (n_read := fill(view[done:])):
        done += n_read
    return done


def whole_lines(fill: Fill, n_bytes: int, longest: int, *, is_inside: bool) -> bytearray:
    """Text of so many bytes, on to the end of its last line, and `WINDOW` zeros; a last line feed may be missing.

    `is_inside`: whether it begins inside of a line; if that goes through all of it, the text is left out. Raises
    LongLineError: the last line is longer than `longest`.
    """
    text = bytearray(n_bytes + _MORE_BYTES + WINDOW)  # so that it need not grow and be copied
    del text[filled(fill, memoryview(text)[:n_bytes]) :]
    line = text.rfind(b"\n", 0, -1) + 1
    if is_inside and not line:
        text.clear()
    while text and not text.endswith(b"\n"):
        if len(text) - line > longest:
            raise LongLineError(line)
        more = bytearray(_MORE_BYTES)
        del more[filled(fill, memoryview(more)) :]
        text += more[: more.find(b"\n") + 1 or None] or b"\n"
    text += bytes(WINDOW)
    return text


def text_size(path: str) -> int:
    """Bytes of a file or object, small enough for places of rows; raises as `stored.file_size`."""
    size = file_size(path)
    if size >> PLACE_BITS:
        raise SourceError(f"{path}: {size:,} bytes; files of {1 << PLACE_BITS:,} bytes or more must be split")
    return size


def line_number(fill: Fill, offset: int) -> int:
    """The number, from 1, of the line that holds a byte of a text: a scan, for messages only."""
    n_lines, view = 1, memoryview(bytearray(1 << 20))
    while offset > 0 and (n_read := fill(view[: min(offset, len(view))])):
        n_lines += bytes(view[:n_read]).count(b"\n")
        offset -= n_read
    return n_lines
