"""Where records of CSV text start. numba only; arrays in, arrays out; the caller validates.

The states are those of Python's csv module with doubled quotes: a quote opens a field only as its first byte, and
within quotes line feeds and delimiters are text. A carriage return in front of a line feed changes nothing.

Only line feeds and quotes are looked at. A quote outside of quotes opens a field where a record begins (`begun`),
behind a delimiter, and behind a quote that seemed to close the field (`closed`): two are one character of it.

Numba's cache follows a function's own file alone: after an edit of `words`, empty the folder ``__pycache__`` here.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.text.words import WINDOW, bytes_outside, trailing_zeros

FIELD_START, IN_FIELD, IN_QUOTES, QUOTE_IN_QUOTES = range(4)
_LINE_FEED, _QUOTE = 10, 34
_1, _ALL = np.uint64(1), np.uint64((1 << WINDOW) - 1)


@kernel
def record_starts(text, base, delimiter, state, step, starts, n_starts):
    """Note the first record that starts at or behind each multiple of `step`.

    Parameters
    ----------
    text : uint8 (b,)
        The next bytes of a file.
    base : int
        Position of the first of them.
    delimiter : uint8
    state : int
        Before the first byte; `FIELD_START` where a file begins.
    step : int
    starts : int64 (multiples,)
        Written from `n_starts` on.
    n_starts : int
        Multiples that have their start already.

    Returns
    -------
    state : int
        Behind the last byte.
    n_starts : int
    """
    n_bytes = len(text)
    begun, closed, inside = 0 if state == FIELD_START else -1, 0 if state == QUOTE_IN_QUOTES else -1, state == IN_QUOTES
    for at in range(0, n_bytes, WINDOW):
        marks = _marks(text, at, n_bytes)
        while marks != 0:
            i = at + trailing_zeros(marks)
            marks &= marks - _1
            if text[i] == _QUOTE:
                if inside:
                    inside, closed = False, i + 1
                else:
                    inside = i == begun or i == closed or (i > 0 and text[i - 1] == delimiter)
            elif not inside:
                begun = i + 1
                while n_starts < len(starts) and n_starts * step <= base + begun:
                    starts[n_starts] = base + begun
                    n_starts += 1
    if inside:
        return IN_QUOTES, n_starts
    if closed == n_bytes:
        return QUOTE_IN_QUOTES, n_starts
    at_start = begun == n_bytes or (n_bytes > 0 and text[n_bytes - 1] == delimiter)
    return FIELD_START if at_start else IN_FIELD, n_starts


@kernel(forceinline=True)
def _marks(text, at, end):
    """Mark the line feeds and quotes of a window, or of what is left of the text: bit i for byte ``at + i``."""
    if at + WINDOW <= end:
        return (bytes_outside(text, at, _LINE_FEED, 0) & bytes_outside(text, at, _QUOTE, 0)) ^ _ALL
    marks = np.uint64(0)
    for i in range(at, end):
        if text[i] == _LINE_FEED or text[i] == _QUOTE:
            marks |= _1 << np.uint64(i - at)
    return marks
