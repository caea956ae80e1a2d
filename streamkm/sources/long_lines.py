"""Long lines of text: found by probes before rows are read, so that memory can be planned, or refused as they are read.

Knows nothing of what the text means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import human_bytes
from streamkm.sources.remote.objects import is_remote
from streamkm.sources.stored import RawFile, open_binary, read_fully
from streamkm.sources.text_lines import MAX_LINE_BYTES
from streamkm.sources.text_positions import Fill, line_number

Units: TypeAlias = Callable[[NDArray[np.uint8]], int]
"""Counts what takes memory in a piece of text."""

LONG_BYTES, PROBES = 1 << 20, 1 << 11
"""Text between probes: so much, or a part in so many. A line longer than that and `NEAR_BYTES` is never missed."""

NEAR_BYTES = 1 << 16
"""Text behind a probe in which the lines that need no memory of their own have a line feed."""

SHARED = 2
"""Times that a limit must be raised by what a line lacks: plans take part of what is added for rows and chunks."""


MOST_FOUND = 16
"""Long lines that are looked at: where there are so many, others are like them."""


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line that takes more memory than what is planned for chunks."""

    path: str
    byte: int  # where it starts
    n_bytes: int
    n_units: int  # of what its format counts: words, or values
    largest_byte: int
    memory_bytes: int = 0  # that a thread takes to make a row of it, and that the row takes where it is kept

    def longer(self, text: NDArray[np.uint8], units: Units) -> LongLine:
        """The line with so much more text."""
        n_bytes, largest = self.n_bytes + len(text), max(self.largest_byte, int(text.max(initial=0)))
        return replace(self, n_bytes=n_bytes, n_units=self.n_units + units(text), largest_byte=largest)

    def describe(self) -> str:
        """Say where it is, for messages: a scan of the text in front of it. Lines are counted from 1."""
        with open_binary(self.path) as raw:
            return f"{self.path}, line {line_number(lambda view: raw.readinto(view) or 0, self.byte):,}"


@dataclass(frozen=True, slots=True)
class LineCost:
    """How much memory a line takes."""

    units: Units  # counts what is needed for that
    memory: Callable[[LongLine], int]  # of a line whose units are known


@dataclass(frozen=True, slots=True)
class LineRoom:
    """What a plan leaves for a long line that it does not know of, below a memory limit that was given."""

    limit_bytes: int
    room_bytes: int  # for one line; negative where a plan is above its limit
    n_readers: int  # threads that may read such a line at a time


@dataclass(frozen=True, slots=True)
class LineWatch:
    """Refuses lines of a file that a plan has no room for, as they are read; a `Watch` of `LineReader`."""

    path: str
    room: LineRoom
    cost: LineCost
    number: Callable[[int], int]  # gives the number of the line at a byte

    def __call__(self, text: NDArray[np.uint8], byte: int, fill: Fill | None) -> None:
        """Refuse a line that takes too much. What is left of it is read, to say how much it takes.

        Raises MemoryLimitError.
        """
        line = LongLine(self.path, byte, 0, 0, 0)
        for start in range(0, len(text), LONG_BYTES):
            line = self._longer(line, text[start : start + LONG_BYTES])
        if line.memory_bytes <= self.room.room_bytes:
            return
        ended = fill is None
        piece = np.empty(LONG_BYTES, np.uint8)
        while fill is not None and not ended and line.n_bytes < MAX_LINE_BYTES:
            n_read = fill(piece.data)
            end = piece[:n_read].tobytes().find(b"\n")
            ended = n_read == 0 or end >= 0
            line = self._longer(line, piece[: n_read if end < 0 else end])
        needed, room = line.memory_bytes, self.room
        limit = room.limit_bytes + SHARED * room.n_readers * (needed - room.room_bytes)
        raise MemoryLimitError(
            f"{self.path}, line {self.number(byte):,}, of {line.n_bytes:,} bytes{'' if ended else ' or more'} (byte "
            f"{byte:,}) takes about {human_bytes(needed)}, and the limit of {human_bytes(room.limit_bytes)} leaves "
            f"{human_bytes(max(0, room.room_bytes))} for a line",
            limit,
            "cut the line",
        )

    def _longer(self, line: LongLine, text: NDArray[np.uint8]) -> LongLine:
        longer = line.longer(text, self.cost.units)
        return replace(longer, memory_bytes=self.cost.memory(longer))


def find_long_lines(paths: Sequence[str], sizes: Sequence[int], units: Units) -> tuple[LongLine, ...]:
    """Find long lines of local plain text. `paths`, `sizes`: files and their bytes; remote ones are not looked at."""
    found: list[LongLine] = []
    step = max(LONG_BYTES, sum(sizes) // PROBES)
    for path, size in zip(paths, sizes, strict=True):
        if size > step and not is_remote(path) and len(found) < MOST_FOUND:
            with open_binary(path) as raw:
                found += islice(_in_file(raw, path, size, step, units), MOST_FOUND)
    return tuple(found)


def by_memory(lines: Iterable[LongLine]) -> tuple[LongLine, ...]:
    """Those that take most memory first."""
    return tuple(sorted(lines, key=lambda line: -line.memory_bytes))


def _in_file(raw: RawFile, path: str, size: int, step: int, units: Units) -> Iterator[LongLine]:
    """Yield long lines of one file."""
    stop = 0  # of the last line that was looked at
    for at in range(0, size, step):
        if at < stop or b"\n" in _text(raw, at, min(at + NEAR_BYTES, size)):
            continue
        back = max(stop, at - step)  # there is a line feed behind the probe before
        line = LongLine(path, back + _text(raw, back, at).rfind(b"\n") + 1, 0, 0, 0)
        last = min(size, line.byte + MAX_LINE_BYTES)
        for begin in range(line.byte, last, LONG_BYTES):
            text, feed, _ = _text(raw, begin, min(begin + LONG_BYTES, last)).partition(b"\n")
            line = line.longer(np.frombuffer(text, np.uint8), units)
            if feed:
                break
        stop = line.byte + line.n_bytes
        if line.n_bytes >= LONG_BYTES:
            yield line


def _text(raw: RawFile, start: int, stop: int) -> bytearray:
    """Bytes of a file."""
    text = bytearray(stop - start)
    return text[: read_fully(raw, memoryview(text), start)]
