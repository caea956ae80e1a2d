"""Starts and widths of the rows of svmlight text, without their values.

Indices increase, so a row's last feature tells its width. Only plain text is indexed; comments and tokens other than
``<index>:<value>`` are left to the parser. See `svmlight` for the cache.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.text.machine_words import WINDOW, bytes_outside, text_of, trailing_zeros
from streamkm.kernels.text.svmlight_tokens import HASH, LINE_FEED, is_blank

NOT_PLAIN = -1
_COLON, _0 = 58, 48
_WHOLE_WINDOW = np.uint64((1 << WINDOW) - 1)
_MOST_DIGITS, _MOST_VALUE_BYTES = 18, 64


@kernel
def find_rows(buf, start, limit, first_index, starts, stops):
    """Find the lines that start in a range of a text and hold a row; the first starts behind the first line feed.

    Parameters
    ----------
    buf : uint8 ndarray; the text; a line feed at or behind ``limit - 1``, and `WINDOW` readable bytes behind that
    start : int64; start of the search for a line feed
    limit : int64; where no further line is begun
    first_index : int64; 0 or 1, what column 0 is called
    starts, stops : int64 (capacity,)
        Written: first byte of each row's line, and its line feed. Room for a row for every two bytes, the line feed
        included.

    Returns
    -------
    n_rows : int64; `NOT_PLAIN` where the parser has to decide
    width : int64; columns of the widest row
    """
    text = text_of(buf)
    n_rows, widest = 0, first_index - 1
    at = start
    while at < limit and text[at] != LINE_FEED:
        at += 1
    line = at = at + 1
    while line < limit:
        feeds = ~bytes_outside(text, at, LINE_FEED, 0) & _WHOLE_WINDOW
        comments = ~bytes_outside(text, at, HASH, 0) & _WHOLE_WINDOW
        if comments != np.uint64(0):
            return NOT_PLAIN, 0
        if feeds == np.uint64(0):
            at += WINDOW
            continue
        stop = at + np.int64(trailing_zeros(feeds))
        last = stop - 1
        while last >= line and is_blank(text[last]):
            last -= 1
        if last >= line:
            index = _last_index(text, line, last)
            if index == NOT_PLAIN or 0 <= index < first_index:
                return NOT_PLAIN, 0
            widest = max(widest, index)
            starts[n_rows], stops[n_rows] = line, stop
            n_rows += 1
        line = at = stop + 1
    return n_rows, widest - first_index + 1


@kernel
def _last_index(text, line, last):
    """Read the index that ends at byte `last` of a line: -2 for a row without features, or `NOT_PLAIN`."""
    at = last
    while at >= line and text[at] != _COLON and not is_blank(text[at]):
        at -= 1
    if last - at > _MOST_VALUE_BYTES:
        return NOT_PLAIN
    if at < line or text[at] != _COLON:  # no feature: a target alone
        while at >= line and is_blank(text[at]):
            at -= 1
        return -2 if at < line else NOT_PLAIN
    index, scale = np.int64(0), np.int64(1)
    digits = at - 1
    while digits >= line and _0 <= text[digits] <= _0 + 9:
        if at - digits > _MOST_DIGITS:
            return NOT_PLAIN
        index += scale * (np.int64(text[digits]) - _0)
        scale *= 10
        digits -= 1
    if digits == at - 1 or (digits >= line and not is_blank(text[digits])):
        return NOT_PLAIN
    return index


@kernel
def gather_lines(buf, starts, stops, rows, out):
    """Copy the lines of chosen rows, line feeds included, one behind the other.

    Parameters
    ----------
    buf : uint8 ndarray
    starts, stops, rows : int64 (n,), (r,)
    out : uint8 (their length,); written
    """
    at = 0
    for row in rows:
        for byte in range(starts[row], stops[row] + 1):
            out[at] = buf[byte]
            at += 1
