"""svmlight text to CSR arrays, line by line, one pass over the bytes.

Ordinary features, ``12345:0.123456`` and a blank, are cut out of one window of bytes by masks and committed only if
everything about them is plain; whatever is not goes through `_read_feature`, which knows the whole grammar. So the
first is short and the second decides what is an error. May import `words` and `decimals` only; opens no files, makes
no messages.

The text must end with a line feed and be followed by `WINDOW` readable bytes. Every scan here stops at a line feed at
the latest, so no byte behind those is ever touched, whatever the text.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamkm.kernels.decimals import (
    DECIDED,
    EXACT_POWERS,
    INTEGER_POWERS,
    MALFORMED,
    UNDECIDED,
    read_decimal,
    round_decimal,
)
from streamkm.kernels.words import WINDOW, bytes_outside, first_digits, load_word, text_of, trailing_zeros

# what is wrong, in job[STATUS]
OK, BAD_CALL, BAD_TARGET, BAD_QUERY, BAD_INDEX, NEGATIVE_INDEX, HUGE_INDEX, NO_VALUE, BAD_VALUE = range(9)
ZERO_INDEX, UNSORTED, TOO_WIDE = range(9, 12)

# the fields of a job
START, LIMIT, END, BASE, FIRST_INDEX, LARGEST_INDEX = range(6)
ROWS, NNZ, FIXUPS, WIDEST, STATUS, TOKEN, LINE = range(6, 13)
JOB_FIELDS = 13

_SPACE, _LINE_FEED, _HASH, _COMMA, _MINUS, _POINT, _COLON = 32, 10, 35, 44, 45, 46, 58
_0, _1 = np.uint64(0), np.uint64(1)
_EXACT_LIMIT = np.uint64(1 << 53)
_SIGNS = np.array([1.0, -1.0])
_QID = np.uint64(0x3A646971)
_FOUR_BYTES = np.uint64(0xFFFFFFFF)
_INT64_MAX = 2**63 - 1


@njit(nogil=True, cache=True)
def _is_blank(byte):
    """Tell white space from other bytes; a line feed is not blank but an end."""
    return byte == _SPACE or (9 <= byte <= 13 and byte != _LINE_FEED)


@njit(nogil=True, cache=True)
def _ends_token(byte):
    return byte == _SPACE or 9 <= byte <= 13 or byte == _HASH


@njit(nogil=True, cache=True)
def _skip_integer(buf, at):
    """Skip ``[+-]digits``: the position behind, or -1 if there is no digit or something else follows."""
    if buf[at] == _MINUS or buf[at] == 43:
        at += 1
    start = at
    while 48 <= buf[at] <= 57:
        at += 1
    return at if at > start and _ends_token(buf[at]) else -1


@njit(nogil=True, cache=True)
def _skip_target(buf, at):
    """Check and skip what stands in front of the features.

    Parameters
    ----------
    buf : uint8 ndarray
    at : int64
        First byte of the line's first token.

    Returns
    -------
    status : int64
        `OK`, `BAD_TARGET` or `BAD_QUERY`.
    at : int64
        Start of the features, or of the bad token.
    """
    start = at
    # one digit and a blank is what most targets are
    if not (48 <= buf[at] <= 57 and _is_blank(buf[at + 1])):
        while not (_ends_token(buf[at]) or buf[at] == _COLON):
            at += 1
        if buf[at] == _COLON:
            at = start  # no target: the first token is a feature or a query already
        else:
            at = start
            while True:
                status, at, _ = read_decimal(buf, at)
                if status == MALFORMED:
                    return BAD_TARGET, start
                if buf[at] != _COMMA:
                    break
                at += 1
            if not _ends_token(buf[at]):
                return BAD_TARGET, start
    else:
        at += 1
    while _is_blank(buf[at]):
        at += 1
    if load_word(buf, at) & _FOUR_BYTES == _QID:
        end = _skip_integer(buf, at + 4)
        if end < 0:
            return BAD_QUERY, at
        at = end
    return OK, at


@njit(nogil=True, cache=True)
def _read_feature(buf, at):
    """Read ``index:value`` by the whole grammar.

    Parameters
    ----------
    buf : uint8 ndarray
    at : int64
        First byte of the token.

    Returns
    -------
    status : int64
        `OK` or what is wrong with the token.
    end : int64
        Behind the token.
    index : int64
    value : float64
    value_at : int64
        First byte of the value, if the value is for the caller to find; else -1.
    """
    negative = buf[at] == _MINUS
    if negative or buf[at] == 43:
        at += 1
    index, start, huge = 0, at, False
    while 48 <= buf[at] <= 57:
        digit = np.int64(buf[at]) - 48
        huge = huge or index > (_INT64_MAX - digit) // 10
        if not huge:
            index = index * 10 + digit
        at += 1
    if at == start or buf[at] != _COLON:
        return (NO_VALUE if at > start and _ends_token(buf[at]) else BAD_INDEX), at, 0, 0.0, -1
    if negative:
        return NEGATIVE_INDEX, at, 0, 0.0, -1
    if huge:
        return HUGE_INDEX, at, 0, 0.0, -1
    status, end, value = read_decimal(buf, at + 1)
    if status == MALFORMED or not _ends_token(buf[end]):
        return BAD_VALUE, end, 0, 0.0, -1
    return OK, end, index, value, (at + 1 if status == UNDECIDED else -1)


@njit(nogil=True, cache=True, forceinline=True)
def _read_plain_feature(buf, at):
    """Read ``digits:[-]digits[.digits]`` and one blank or line feed, where all of it fits in a window.

    The positions of the bytes that are no digits are the whole structure: colon, perhaps a minus right behind it,
    perhaps a point, end. Reading them from a mask does without a branch for each character.

    Parameters
    ----------
    buf : uint8 ndarray
    at : int64
        First byte of the token.

    Returns
    -------
    end : int64
        Behind the token, on the blank or line feed; -1 if the feature is not plain.
    index : int64
    value : float64
    """
    minus = ~bytes_outside(buf, at, _MINUS, 0)
    # a minus counts as a digit at first, so that finding the end does not have to wait for what it is
    marks = bytes_outside(buf, at, 48, 9) & ~minus
    colon = trailing_zeros(marks)
    marks = marks & (marks - _1)
    point = trailing_zeros(marks)
    marks = marks & (marks - _1)
    if colon == 0 or colon > 8 or point >= WINDOW or buf[at + colon] != _COLON:
        return -1, 0, 0.0
    has_point = buf[at + point] == _POINT
    stop = trailing_zeros(marks) if has_point else point
    end = at + stop
    if stop >= WINDOW or (buf[end] != _SPACE and buf[end] != _LINE_FEED):
        return -1, 0, 0.0
    whole_at = colon + 1
    negative = _0
    minus = minus & ((_1 << np.uint64(stop)) - _1)
    if minus != _0:
        if minus != _1 << np.uint64(whole_at):
            return -1, 0, 0.0
        negative = _1
        whole_at += 1
    index = np.int64(first_digits(load_word(buf, at), colon))
    n_whole = point - whole_at
    if n_whole == 1:
        significand = np.uint64(buf[at + whole_at]) & np.uint64(15)
    elif 1 < n_whole <= 8:
        significand = first_digits(load_word(buf, at + whole_at), n_whole)
    else:
        return -1, 0, 0.0
    if not has_point:
        return end, index, np.float64(significand) * _SIGNS[negative]
    n_fraction = stop - point - 1
    if n_fraction == 0:
        return -1, 0, 0.0
    fraction_at = at + point + 1
    if n_fraction <= 8:
        fraction = first_digits(load_word(buf, fraction_at), n_fraction)
        significand = significand * INTEGER_POWERS[np.uint64(n_fraction)] + fraction
        if significand <= _EXACT_LIMIT:
            return end, index, np.float64(significand) / EXACT_POWERS[np.uint64(n_fraction)] * _SIGNS[negative]
    elif n_whole + n_fraction <= 19:
        left = n_fraction - 8
        fraction = first_digits(load_word(buf, fraction_at), 8)
        if left > 8:
            fraction = fraction * INTEGER_POWERS[8] + first_digits(load_word(buf, fraction_at + 8), 8)
            fraction_at += 8
            left -= 8
        fraction = fraction * INTEGER_POWERS[left] + first_digits(load_word(buf, fraction_at + 8), left)
        significand = significand * INTEGER_POWERS[n_fraction] + fraction
    else:
        return -1, 0, 0.0
    value, decided = round_decimal(significand, -n_fraction)
    if not decided:
        return -1, 0, 0.0
    return end, index, value * _SIGNS[negative]


@njit(nogil=True, cache=True)
def parse_rows(buf, job, data, indices, indptr, places, fixups):
    """Append the rows of the lines that start in a range of a text to CSR arrays.

    Parameters
    ----------
    buf : uint8 ndarray
        The text; see the module's first paragraphs for what must stand behind it.
    job : int64 ndarray of shape (JOB_FIELDS,), mutated
        In: `START`, a line's first byte; `LIMIT`, where no further line is begun; `END`, behind a line feed; `BASE`,
        the place of byte 0; `FIRST_INDEX`, 0 or 1; `LARGEST_INDEX` as written in the text; in and out: `ROWS` and
        `NNZ` filled so far, `WIDEST`, the largest index plus one counted from `FIRST_INDEX`. Out: `START`, the first
        byte not parsed; `FIXUPS`, values left to the caller, possibly more than `fixups` has room for, and then this
        call must be repeated with more; `STATUS`, and unless it is `OK`, `TOKEN` and `LINE`, the bytes where the
        trouble and its line begin. Rows and values before the trouble are good.
    data : float32 or float64 ndarray of shape (capacity,), mutated
        Room for a value for each four bytes of the lines, and one more.
    indices : int32 or int64 ndarray of shape (capacity,), mutated
    indptr : ndarray of shape (row_capacity + 1,), mutated
        Of the type of `indices`; entry ``job[ROWS]`` is set by the caller. Room for a row for each two bytes, and one more.
    places : int64 ndarray of shape (row_capacity,), mutated
    fixups : int64 ndarray of shape (n, 3), mutated
        Values to be found by other means: position in `data`, first byte, and behind the last byte.

    Notes
    -----
    Linear in the bytes. A value of a row is stored before the row is known to be good; only `indptr` commits it.
    """
    at, end, limit = job[START], job[END], job[LIMIT]
    first_index, largest_index = job[FIRST_INDEX], job[LARGEST_INDEX]
    rows, nnz, widest = job[ROWS], job[NNZ], job[WIDEST]
    n_fixups, status, token = 0, OK, at
    line = at
    if at < 0 or at > end or end + WINDOW > buf.shape[0] or (end > at and buf[end - 1] != _LINE_FEED):
        job[STATUS] = BAD_CALL
        return
    limit = min(limit, end)
    text = text_of(buf)
    while at < limit:
        line = at
        while _is_blank(text[at]):
            at += 1
        if text[at] != _LINE_FEED and text[at] != _HASH:
            status, at = _skip_target(text, at)
            token = at
            if status != OK:
                break
            at += np.int64(text[at] == _SPACE)
            last = first_index - 1
            while True:
                token = at
                stop, index, value = _read_plain_feature(text, at)
                if stop >= 0:
                    # behind its blank; so the next feature need not wait until that byte has been looked at
                    at = stop + 1
                else:
                    while _is_blank(text[at]):
                        at += 1
                    if text[at] == _LINE_FEED or text[at] == _HASH:
                        break
                    token = at
                    status, stop, index, value, value_at = _read_feature(text, at)
                    if status != OK:
                        break
                    if value_at >= 0:
                        if n_fixups < fixups.shape[0]:
                            fixups[n_fixups, 0] = nnz
                            fixups[n_fixups, 1] = value_at
                            fixups[n_fixups, 2] = stop
                        n_fixups += 1
                    at = stop
                if index <= last:
                    status = ZERO_INDEX if index < first_index else UNSORTED
                    break
                last = index
                data[np.uint64(nnz)] = value
                indices[np.uint64(nnz)] = index - first_index
                nnz += 1
                if text[stop] == _LINE_FEED:
                    at = stop
                    break
            if status == OK and last > largest_index:
                status = TOO_WIDE
            if status != OK:
                break
            places[rows] = job[BASE] + line
            rows += 1
            indptr[rows] = nnz
            widest = max(widest, last - first_index + 1)
        while text[at] != _LINE_FEED:
            at += 1
        at += 1
    job[START], job[ROWS], job[NNZ], job[WIDEST] = at, rows, nnz, widest
    job[FIXUPS], job[STATUS], job[TOKEN], job[LINE] = n_fixups, status, token, line
