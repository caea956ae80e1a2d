"""Long lines of text: refused as they are read where a memory limit leaves no room for them.

Knows nothing of what the text means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import human_bytes
from streamkm.sources.text_lines import MAX_LINE_BYTES, Fill

LONG_BYTES = 1 << 20
"""Text that is looked at at a time; shorter lines need no room of their own."""

SHARED = 2
"""Times that a limit must be raised by what a line lacks: plans take part of what is added for rows and chunks."""


@dataclass(frozen=True, slots=True)
class LongLine:
    """Counts of a line that may take more memory than what is planned for chunks."""

    n_bytes: int = 0
    n_units: int = 0  # of what its format counts: words, or values
    largest_byte: int = 0


@dataclass(frozen=True, slots=True)
class LineCost:
    """How much memory a line takes."""

    units: Callable[[NDArray[np.uint8]], int]  # counts what takes memory in a piece of text
    memory: Callable[[LongLine], int]

    def longer(self, line: LongLine, text: NDArray[np.uint8]) -> LongLine:
        """The line with so much more text."""
        largest = max(line.largest_byte, int(text.max(initial=0)))
        return LongLine(line.n_bytes + len(text), line.n_units + self.units(text), largest)


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
        line, room, cost = LongLine(), self.room, self.cost
        for start in range(0, len(text), LONG_BYTES):
            line = cost.longer(line, text[start : start + LONG_BYTES])
        if cost.memory(line) <= room.room_bytes:
            return
        ended = fill is None
        piece = np.empty(LONG_BYTES, np.uint8)
        while fill is not None and not ended and line.n_bytes < MAX_LINE_BYTES:
            n_read = fill(piece.data)
            end = piece[:n_read].tobytes().find(b"\n")
            ended = n_read == 0 or end >= 0
            line = cost.longer(line, piece[: n_read if end < 0 else end])
        needed = cost.memory(line)
        limit = room.limit_bytes + SHARED * room.n_readers * (needed - room.room_bytes)
        raise MemoryLimitError(
            f"{self.path}, line {self.number(byte):,}, of {line.n_bytes:,} bytes{'' if ended else ' or more'} (byte "
            f"{byte:,}) takes about {human_bytes(needed)}, and the limit of {human_bytes(room.limit_bytes)} leaves "
            f"{human_bytes(max(0, room.room_bytes))} for a line",
            limit,
            "cut the line",
        )
