"""Where records of CSV text start. numba only; arrays in, arrays out; the caller validates.

The states are those of Python's csv module with doubled quotes: a quote opens a field only as its first byte, and
within quotes line feeds and delimiters are text. A carriage return in front of a line feed changes nothing.
"""

from __future__ import annotations

from streamkm.kernels.compiling import kernel

FIELD_START, IN_FIELD, IN_QUOTES, QUOTE_IN_QUOTES = range(4)
_LINE_FEED, _RETURN, _QUOTE = 10, 13, 34


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
    for i in range(len(text)):
        if text[i] == _LINE_FEED and state != IN_QUOTES:
            position = base + i + 1
            while n_starts < len(starts) and n_starts * step <= position:
                starts[n_starts] = position
                n_starts += 1
        state = _next_state(state, text[i], delimiter)
    return state, n_starts


@kernel
def records_of_piece(text, span, delimiter, quoted, starts):
    """Find all records of a piece of text; empty lines are none.

    Parameters
    ----------
    text : uint8 (b,)
    span : (start, end) of int64
        A record's first byte; behind the text.
    delimiter : uint8
    quoted : bool
        Whether a line feed within quotes ends no record; else it ends one, which is told.
    starts : int64 (records,)
        Mutated; room for a record a line feed.

    Returns
    -------
    n_records : int
    last : int
        Behind the last line feed that ends a record; the first byte if there is none.
    unclosed : int
        Start of the first record whose quotes are open at its end, or at the end of the text; -1 if there is none.
    """
    first, end = span
    n_records, last, begun, unclosed, state = 0, first, first, -1, FIELD_START
    for i in range(first, end):
        if text[i] == _LINE_FEED and not (quoted and state == IN_QUOTES):
            if state == IN_QUOTES and unclosed < 0:
                unclosed = begun
            blank = i == begun or (i == begun + 1 and text[begun] == _RETURN)
            if not blank:
                starts[n_records] = begun
                n_records += 1
            begun = last = i + 1
            state = FIELD_START
        else:
            state = _next_state(state, text[i], delimiter)
    if state == IN_QUOTES and unclosed < 0:
        unclosed = begun
    return n_records, last, unclosed


@kernel(forceinline=True)
def _next_state(state, byte, delimiter):
    """Go over a byte."""
    if state == IN_QUOTES:
        return QUOTE_IN_QUOTES if byte == _QUOTE else IN_QUOTES
    if byte == _LINE_FEED or byte == delimiter:
        return FIELD_START
    return IN_QUOTES if byte == _QUOTE and state != IN_FIELD else IN_FIELD
