"""Lines of one, two or three numbers to columns of numbers, in one pass over the bytes.

Takes what is plain; at the first line with anything else it stops, and its caller looks at that line. Makes no
messages.

Numba's cache follows a function's own file alone: after an edit of `words` or `decimals`, empty the folder
``__pycache__`` here.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.text.decimals import DECIDED, read_decimal
from streamkm.kernels.text.words import text_of

_LINE_FEED, _RETURN, _SPACE, _TAB = 10, 13, 32, 9
LEAST_LINE_BYTES = 2
MOST_INDEX = 1 << 59


@kernel
def read_lines(buf, span, n_indices, valued, first, second, values):
    """Read lines of ``[row column] [value]``.

    Parameters
    ----------
    buf : uint8 ndarray
        Text with `words.WINDOW` readable bytes behind it.
    span : (start, end) of int64
        A line's first byte; behind a line feed.
    n_indices : int64
        0 or 2: whole numbers that a line begins with.
    valued : bool
        Whether a number follows; else values are 1.
    first, second : int64 ndarray, mutated
        Room for a number each `LEAST_LINE_BYTES`; not written where there are no indices.
    values : float64 ndarray, mutated

    Returns
    -------
    n_lines : int64
        Empty ones are none.
    at : int64
        `end`; else the first byte of a line that is not plain.

    Notes
    -----
    Linear in the bytes.
    """
    at, end = span
    text = text_of(buf)
    n_lines = 0
    while at < end:
        line = at
        while text[at] == _SPACE or text[at] == _TAB:
            at += 1
        if text[at] == _RETURN:
            at += 1
        if text[at] == _LINE_FEED:
            at += 1
            continue
        for number in range(n_indices):
            begun, index = at, 0
            while 48 <= text[at] <= 57 and index < MOST_INDEX:
                index = 10 * index + np.int64(text[at]) - 48
                at += 1
            if at == begun:
                return n_lines, line
            if number == 0:
                first[n_lines] = index
            else:
                second[n_lines] = index
            begun = at
            while text[at] == _SPACE or text[at] == _TAB:
                at += 1
            if at == begun and (valued or number == 0):
                return n_lines, line
        value = 1.0
        if valued:
            status, at, value = read_decimal(text, at)
            if status != DECIDED:
                return n_lines, line
        while text[at] == _SPACE or text[at] == _TAB:
            at += 1
        if text[at] == _RETURN:
            at += 1
        if text[at] != _LINE_FEED:
            return n_lines, line
        at += 1
        values[n_lines] = value
        n_lines += 1
    return n_lines, at
