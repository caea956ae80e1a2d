"""Where records of CSV text start although fields may hold line feeds: a look at all of a text. Opens no file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.kernels.text import csv_records as kernel
from streamkm.sources.text_lines import BLOCK_BYTES
from streamkm.sources.text_positions import Fill


def record_starts(fill: Fill, size: int, step: int, delimiter: str) -> NDArray[np.int64]:
    """Find the first record that starts at or behind each multiple of `step`; at most `size`. Reads all text: O(size).

    `fill`: gives the text, from its first byte on. `size`: bytes of text. `delimiter`: one ASCII character. Returns
    int64 ndarray of shape (multiples + 1,).
    """
    starts = np.full(-(-size // step) + 1, size, np.int64)
    starts[0], n_starts = 0, 1
    buffer = np.empty(BLOCK_BYTES, np.uint8)
    base, state = 0, kernel.FIELD_START
    while n_read := fill(memoryview(buffer.data)):
        # a quote behind the mark opens a field
        mark = 3 if base == 0 and bytes(buffer[:3]) == b"\xef\xbb\xbf" else 0
        state, n_starts = kernel.record_starts(
            buffer[mark:n_read], base + mark, ord(delimiter), state, step, starts, n_starts
        )
        base += n_read
    return np.minimum(starts, size)
