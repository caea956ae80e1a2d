"""Whole lines out of blocks of bytes, in bounded memory, and the names of their places in messages.

Long lines are refused as they are read if a memory limit leaves no room for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, MemoryLimitError, SourceError
from streamkm.core.memory import human_bytes
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.stored import file_size

BLOCK_BYTES = 1 << 20
"""Text held at a time: fits in a core's cache between read and parse, and outweighs the cost of a call."""

MAX_LINE_BYTES = 64 << 20
"""A longer line is refused, so that a file without line feeds cannot fill the memory."""

PLACE_BITS = 44
"""A row's place is ``part << PLACE_BITS | byte``: files below 16 TiB, and half a million of them."""

LONG_BYTES = 1 << 20
"""Size of the pieces of long lines; shorter lines need no room of their own."""

SHARED = 2
"""Factor on the bytes that a line lacks, for the limit in a message: plans use part of an increase otherwise."""

_LINE_FEED = 10

Fill: TypeAlias = Callable[[memoryview], int]
"""Fills a buffer with the next bytes; gives how many there were."""

Watch: TypeAlias = Callable[[NDArray[np.uint8], int, Fill | None], None]
"""Gets a line of more than `BLOCK_BYTES`, its position, and a `Fill` for the rest if only its beginning is there."""

LineCost: TypeAlias = Callable[[NDArray[np.uint8]], int]
"""Gives the memory that a piece of a line takes."""


class LongLineError(Exception):
    """A line of more than `BLOCK_BYTES` begins, in a look at the text that reads no long lines."""


def stop_at_long(text: NDArray[np.uint8], byte: int, fill: Fill | None) -> None:  # noqa: ARG001
    """Raise LongLineError: a `Watch`."""
    raise LongLineError


class LineReader:
    """Whole lines out of bytes that arrive in order, in one buffer that is reused, and grows only for longer lines.

    `fill` gives the bytes from position `offset` of the file on, none at its end. `watch` gets long lines while they
    are read, each time before the buffer grows, and may refuse them. `text` is the buffer (uint8), whose byte 0 is at
    position `base` of the file; unconsumed whole lines are in start..end, and the consumer moves `start`.
    """

    def __init__(self, fill: Fill, offset: int, block_bytes: int = BLOCK_BYTES, *, watch: Watch | None = None) -> None:
        self._fill = fill
        self._watch = watch
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

        Raises InvalidInputError, without the name of the file: a line is longer than `MAX_LINE_BYTES`.
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
            # behind a long line no other one is read with it
            n_read = self._fill(self._view[self._filled : min(self._capacity, self._filled + BLOCK_BYTES)])
            if n_read == 0:
                return self._finish()
            searched = self._filled
            self._filled += n_read
            self.end = self._buffer.rfind(b"\n", searched, self._filled) + 1
            if self.end > 0:
                self._tell_of_first()
                return True

    def _tell_of_first(self) -> None:
        """Show the watch the first whole line if it is long; the other lines of a load never are."""
        if self._watch is not None and self.end > BLOCK_BYTES:
            stop = self._buffer.find(b"\n", 0, self.end)
            if stop > BLOCK_BYTES:
                self._watch(self.text[:stop], self.base, None)

    def _grow(self) -> None:
        if self._filled >= MAX_LINE_BYTES:
            raise InvalidInputError(
                f"a line is longer than {MAX_LINE_BYTES:,} bytes, the most that is accepted; "
                "check that the file is text with line feeds between its rows"
            )
        if self._watch is not None and self._filled >= BLOCK_BYTES:
            self._watch(self.text[: self._filled], self.base, self._fill)
        old = self._view[: self._filled]
        self._allocate(min(2 * self._capacity, max(MAX_LINE_BYTES, self._capacity)))
        self._view[: self._filled] = old

    def _finish(self) -> bool:
        self._at_end = True
        if self._filled == 0:
            return False
        self._buffer[self._filled] = _LINE_FEED
        self.end = self._filled + 1
        self._tell_of_first()
        return True

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


def text_size(path: str) -> int:
    """Bytes of a file or object, small enough for places of rows; raises as `stored.file_size`."""
    size = file_size(path)
    if size >> PLACE_BITS:
        raise SourceError(f"{path}: {size:,} bytes; files of {1 << PLACE_BITS:,} bytes or more must be split")
    return size


def part_and_byte(place: int) -> tuple[int, int]:
    """The number of a place's file, and the byte in its text."""
    return place >> PLACE_BITS, place & ((1 << PLACE_BITS) - 1)


def line_number(fill: Fill, offset: int) -> int:
    """The number, from 1, of the line that holds a byte of a text: a scan, for messages only."""
    n_lines, view = 1, memoryview(bytearray(1 << 20))
    while offset > 0 and (n_read := fill(view[: min(offset, len(view))])):
        n_lines += bytes(view[:n_read]).count(b"\n")
        offset -= n_read
    return n_lines


@dataclass(frozen=True, slots=True)
class LineLimit:
    """Memory that a plan leaves for long lines, below a given memory limit."""

    limit_bytes: int
    room_bytes: int  # for one line; negative where a plan is above its limit
    n_readers: int  # threads that may read such a line at a time


def refuse_long(
    where: Callable[[int], str], limit: LineLimit, cost: LineCost, text: NDArray[np.uint8], byte: int, fill: Fill | None
) -> None:
    """Refuse a line without room, at the byte named by `where`, after reading all of it. Raises MemoryLimitError."""
    n_bytes, piece = len(text), np.empty(LONG_BYTES, np.uint8)
    needed = sum(cost(text[start : start + LONG_BYTES]) for start in range(0, n_bytes, LONG_BYTES))
    if needed <= limit.room_bytes:
        return
    while fill is not None and n_bytes < MAX_LINE_BYTES:
        line, feed, _ = piece[: fill(piece.data)].tobytes().partition(b"\n")
        n_bytes, needed = n_bytes + len(line), needed + cost(piece[: len(line)])
        if feed or not line:
            fill = None
    raise MemoryLimitError(
        f"{where(byte)}, of {n_bytes:,} bytes, takes about {human_bytes(needed)}, and the limit of "
        f"{human_bytes(limit.limit_bytes)} leaves {human_bytes(max(0, limit.room_bytes))} for a line",
        limit.limit_bytes + SHARED * limit.n_readers * (needed - limit.room_bytes),
        "cut the line",
    )
