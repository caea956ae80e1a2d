"""Numbers of comma-separated text to rows of a matrix, in one pass over the bytes.

Reads plain numbers, empty fields, and skipped fields without quotes. At the first other line it stops, for its caller's
full CSV parser. Makes no messages. Numba's cache follows a function's own file alone: after an edit of `words` or
`decimals`, empty the folder ``__pycache__`` here.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.text.decimals import DECIDED, EXACT_POWERS, no_digits, read_decimal
from streamkm.kernels.text.machine_words import first_digits, load_word, text_of, trailing_zeros

_LINE_FEED, _RETURN, _SPACE, _QUOTE, _POINT = 10, 13, 32, 34, 46
_1, _3, _8, _LOW_BYTE, _MINUS_BYTE = (np.uint64(i) for i in (1, 3, 8, 255, 45))


@kernel
def parse_numbers(buf, span, delimiter, columns, out, row_ids):
    """Read the records of plain lines; empty lines are no records. Linear in the bytes.

    Parameters
    ----------
    buf : uint8 ndarray; text with `machine_words.WINDOW` readable bytes behind it
    span : (end, base) of int64; behind a line feed; place of byte 0 of `buf`
    delimiter : int64
    columns : int64 ndarray of shape (fields,); column of `out` for each field of a record; -1: it is skipped
    out : float64 ndarray of shape (rows, d), mutated; room for a row a line feed
    row_ids : int64 ndarray of shape (rows,), mutated; get the place of each row's first byte

    Returns
    -------
    n_rows : int64
    at : int64; `end`; else the first byte of a line that is not plain
    """
    at, (end, base) = np.int64(0), span  # no literal, for which `_read_short` would be compiled once more
    text = text_of(buf)
    n_fields = columns.shape[0]
    n_rows = 0
    while at < end:
        line = at
        end_of_line = at + np.int64(text[at] == _RETURN)
        if text[end_of_line] == _LINE_FEED:
            at = end_of_line + 1
            continue
        for field in range(n_fields):
            column = columns[field]
            if column < 0:
                if text[at] == _QUOTE:
                    return n_rows, line
                while text[at] != delimiter and text[at] != _LINE_FEED:
                    at += 1
                at -= np.int64(text[at] == _LINE_FEED and text[at - 1] == _RETURN)
            else:
                begun = at
                at, value = _read_short(text, begun, delimiter)
                if at < 0:
                    at = begun
                    while text[at] == _SPACE and delimiter != _SPACE:
                        at += 1
                    if text[at] == delimiter or text[at] == _LINE_FEED or text[at] == _RETURN:
                        if at > begun:
                            return n_rows, line
                        value = np.nan
                    else:
                        status, at, value = read_decimal(text, at)
                        if status != DECIDED:
                            return n_rows, line
                out[n_rows, column] = value
            if field < n_fields - 1:
                if text[at] != delimiter:
                    return n_rows, line
                at += 1
        if text[at] == _RETURN:
            at += 1
        if text[at] != _LINE_FEED:
            return n_rows, line
        at += 1
        row_ids[n_rows] = base + line
        n_rows += 1
    return n_rows, at


@kernel(forceinline=True)
def _read_short(text, at, delimiter):
    """Read ``[-]digits[.digits]`` of at most 8 characters behind the sign, and the end of the field; else (-1, 0).

    One word holds all characters: without the point, its digits are the number times a power of ten.
    """
    word = load_word(text, at)
    negative = np.uint64(word & _LOW_BYTE == _MINUS_BYTE)
    at += np.int64(negative)
    word = word >> (negative << _3)
    others = no_digits(word)
    point = trailing_zeros(others) >> 3
    stop, n_fraction = point, 0
    if text[at + point] == _POINT and point < 8:
        others = others & (others - _1)
        stop = trailing_zeros(others) >> 3
        n_fraction = stop - point - 1
        before = (_1 << (np.uint64(point) << _3)) - _1
        word = (word & before) | ((word >> _8) & ~before)
        if n_fraction == 0:
            return -1, 0.0
    last = text[at + stop]
    if point == 0 or (last != delimiter and last != _LINE_FEED and last != _RETURN):
        return -1, 0.0
    sign = np.float64(np.int64(1) - 2 * np.int64(negative))  # no branch: signs follow no pattern
    return at + stop, sign * np.float64(first_digits(word, point + n_fraction)) / EXACT_POWERS[np.uint64(n_fraction)]
