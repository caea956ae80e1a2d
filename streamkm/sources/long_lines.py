"""Long lines of text: refused as they are read where a memory limit leaves no room for them.

Knows nothing of what the text means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import human_bytes
from streamkm.sources.text_lines import MAX_LINE_BYTES, Fill

LONG_BYTES = 1 << 20
"""Text that is looked at at a time; shorter lines need no room of their own."""

SHARED = 2
"""Times that a limit must be raised by what a line lacks: plans take part of what is added for rows and chunks."""


LineCost: TypeAlias = Callable[[NDArray[np.uint8]], int]
"""Gives the memory that a piece of a line takes."""


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
        room, n_bytes, piece = self.room, len(text), np.empty(LONG_BYTES, np.uint8)
        needed = sum(self.cost(text[start : start + LONG_BYTES]) for start in range(0, n_bytes, LONG_BYTES))
        if needed <= room.room_bytes:
            return
        while fill is not None and n_bytes < MAX_LINE_BYTES:
            line, feed, _ = piece[: fill(piece.data)].tobytes().partition(b"\n")
            n_bytes, needed = n_bytes + len(line), needed + self.cost(piece[: len(line)])
            if feed or not line:
                fill = None
        limit = room.limit_bytes + SHARED * room.n_readers * (needed - room.room_bytes)
        raise MemoryLimitError(
            f"{self.path}, line {self.number(byte):,}, of {n_bytes:,} bytes (byte "
            f"{byte:,}) takes about {human_bytes(needed)}, and the limit of {human_bytes(room.limit_bytes)} leaves "
            f"{human_bytes(max(0, room.room_bytes))} for a line",
            limit,
            "cut the line",
        )
