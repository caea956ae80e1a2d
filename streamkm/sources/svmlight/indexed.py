"""Rows of svmlight text that are found, but not read: for a pass that needs a few of them.

Text is looked at for where its lines end and how wide its rows are, at several times the speed of parsing; the chosen
rows alone are parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.kernels.text.svmlight_index import NOT_PLAIN, find_rows, gather_lines
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.base import IndexedRows, Rows
from streamkm.sources.chunks import Chunk
from streamkm.sources.svmlight.rows import LARGEST_INT64, BadTextError, RowBuilder, TextFormat
from streamkm.sources.text_lines import PLACE_BITS, LineReader

_LINE_FEED = 10
_ROOM_BEHIND = 1 << 14


@dataclass(frozen=True, slots=True)
class IndexedText(IndexedRows):
    """Rows of plain text."""

    read: Callable[[], Rows]  # reads the whole chunk: for the message that names file and line
    text: NDArray[np.uint8]
    # (n,); first byte and line feed of every row, in `text`
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    fmt: TextFormat

    def take(self, rows: NDArray[np.int64]) -> Matrix:
        picked = np.empty(int((self.stops[rows] + 1 - self.starts[rows]).sum()), np.uint8)
        gather_lines(self.text, self.starts, self.stops, rows, picked)
        builder, given = RowBuilder(self.fmt), 0

        def fill(view: memoryview) -> int:
            nonlocal given
            part = picked[given : given + len(view)]
            view[: len(part)] = part.data
            given += len(part)
            return len(part)

        lines = LineReader(fill, 0)
        try:
            while lines.load():
                builder.add(lines, len(picked), 0)
        except BadTextError:
            return self.read().X[rows]
        return builder.finish().X


def index_text(
    fill: Callable[[memoryview], int], begin: int, chunk: Chunk, fmt: TextFormat, read: Callable[[], Rows], longest: int
) -> IndexedText | None:
    """Find the rows of the lines that start in a chunk.

    `fill`: gives the text of a file from byte `begin` on; see `LineReader`. `begin`: the byte in front of the chunk: it
    tells whether the chunk's first byte starts a line. `read`: reads the chunk. `longest`: bytes of a line that may be
    held behind the chunk. The result is None where the text is not plain, or its last line too long: it must be read.
    """
    n_wanted = chunk.stop - begin
    text = np.empty(n_wanted + _ROOM_BEHIND + 1 + WINDOW, np.uint8)
    filled, searched, end = 0, n_wanted - 1, -1
    while end < 0:
        room = len(text) - 1 - WINDOW
        if filled == room:
            if room - n_wanted > longest:
                return None
            text = np.concatenate([text, np.empty(room, np.uint8)])
            continue
        n_read = fill(text[filled:room].data)
        if n_read == 0:
            text[filled] = _LINE_FEED  # the last one may be missing
            end = filled
        filled += n_read
        if filled > searched:
            found = np.flatnonzero(text[searched:filled] == _LINE_FEED)
            end = searched + int(found[0]) if len(found) else end
            searched = max(searched, filled)
    text[end + 1 : end + 1 + WINDOW] = 0
    capacity = end // 2 + 1
    starts, stops = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    n_rows, width = find_rows(text, 0, min(n_wanted, end + 1), 0 if fmt.zero_based else 1, starts, stops)
    largest = LARGEST_INT64 - 1 if fmt.n_features is None else fmt.n_features
    if n_rows == NOT_PLAIN or width > largest:
        return None
    starts, stops = starts[:n_rows].copy(), stops[:n_rows].copy()
    places = starts + ((chunk.part << PLACE_BITS) + begin)
    width = width if fmt.n_features is None else fmt.n_features
    return IndexedText(places, width, read, text, starts, stops, fmt)
