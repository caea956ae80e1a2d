"""Where records of CSV text start. numba only; arrays in, arrays out; the caller validates.

The states are those of Python's csv module with doubled quotes: a quote opens a field only as its first byte, and
within quotes line feeds and delimiters are text. A carriage return in front of a line feed changes nothing.
"""

from __future__ import annotations

from streamkm.kernels.compiling import kernel

FIELD_START, IN_FIELD, IN_QUOTES, QUOTE_IN_QUOTES = range(4)


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
        byte = text[i]
        if state == IN_QUOTES:
            if byte == 34:
                state = QUOTE_IN_QUOTES
        elif byte == 10:
            state = FIELD_START
            position = base + i + 1
            while n_starts < len(starts) and n_starts * step <= position:
                starts[n_starts] = position
                n_starts += 1
        elif byte == delimiter:
            state = FIELD_START
        elif byte == 34 and state != IN_FIELD:
            state = IN_QUOTES
        else:
            state = IN_FIELD
    return state, n_starts
