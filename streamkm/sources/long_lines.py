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


def refuse_long(
    where: Callable[[int], str], room: LineRoom, cost: LineCost, text: NDArray[np.uint8], byte: int, fill: Fill | None
) -> None:
    """Refuse a line, `where` its byte is, that a plan has no room for; all of it is read to say how much it takes.

    Raises MemoryLimitError.
    """
    n_bytes, piece = len(text), np.empty(LONG_BYTES, np.uint8)
    needed = sum(cost(text[start : start + LONG_BYTES]) for start in range(0, n_bytes, LONG_BYTES))
    if needed <= room.room_bytes:
        return
    while fill is not None and n_bytes < MAX_LINE_BYTES:
        line, feed, _ = piece[: fill(piece.data)].tobytes().partition(b"\n")
        n_bytes, needed = n_bytes + len(line), needed + cost(piece[: len(line)])
        if feed or not line:
            fill = None
    raise MemoryLimitError(
        f"{where(byte)}, of {n_bytes:,} bytes, takes about {human_bytes(needed)}, and the limit of "
        f"{human_bytes(room.limit_bytes)} leaves {human_bytes(max(0, room.room_bytes))} for a line",
        room.limit_bytes + SHARED * room.n_readers * (needed - room.room_bytes),
        "cut the line",
    )
