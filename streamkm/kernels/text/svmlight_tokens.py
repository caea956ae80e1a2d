"""Tokens of svmlight text: targets, queries and features, each read from its first byte on.

Ordinary features, ``12345:0.123456`` and a blank, are cut out of one window of bytes by masks; `read_feature` knows the
whole grammar, reads all others and decides what is an error. The text must end with a line feed and be followed by
`WINDOW` readable bytes: every scan stops at a line feed at the latest.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import inner_kernel
from streamkm.kernels.text.decimals import (
    EXACT_POWERS,
    INTEGER_POWERS,
    MALFORMED,
    UNDECIDED,
    read_decimal,
    round_decimal,
)
from streamkm.kernels.text.machine_words import WINDOW, bytes_outside, first_digits, load_word, trailing_zeros

# what is wrong, with a token or its line
OK, BAD_CALL, BAD_TARGET, BAD_QUERY, BAD_INDEX, NEGATIVE_INDEX, HUGE_INDEX, NO_VALUE, BAD_VALUE = range(9)
ZERO_INDEX, UNSORTED, TOO_WIDE = range(9, 12)

SPACE, LINE_FEED, HASH, _COMMA, _MINUS, _POINT, _COLON = 32, 10, 35, 44, 45, 46, 58
_0, _1 = np.uint64(0), np.uint64(1)
_EXACT_LIMIT = np.uint64(1 << 53)
_SIGNS = np.array([1.0, -1.0])
_QID = np.uint64(0x3A646971)
_FOUR_BYTES = np.uint64(0xFFFFFFFF)
_INT64_MAX = 2**63 - 1


@inner_kernel
def is_blank(byte):
    """Tell white space from other bytes; a line feed is not blank but an end."""
    return byte == SPACE or (9 <= byte <= 13 and byte != LINE_FEED)


@inner_kernel
def _ends_token(byte):
    return byte == SPACE or 9 <= byte <= 13 or byte == HASH


@inner_kernel
def _skip_integer(buf, at):
    """Skip ``[+-]digits``: the position behind, or -1 if there is no digit or something else follows."""
    if buf[at] == _MINUS or buf[at] == 43:
        at += 1
    start = at
    while 48 <= buf[at] <= 57:
        at += 1
    return at if at > start and _ends_token(buf[at]) else -1


@inner_kernel
def skip_target(buf, at):
    """Check and skip the tokens in front of the features.

    Parameters
    ----------
    buf : uint8 ndarray
    at : int64; first byte of the line's first token

    Returns
    -------
    status : int64; `OK`, `BAD_TARGET` or `BAD_QUERY`
    at : int64; start of the features, or of the bad token
    """
    start = at
    # one digit and a blank is what most targets are
    if not (48 <= buf[at] <= 57 and is_blank(buf[at + 1])):
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
    while is_blank(buf[at]):
        at += 1
    if load_word(buf, at) & _FOUR_BYTES == _QID:
        end = _skip_integer(buf, at + 4)
        if end < 0:
            return BAD_QUERY, at
        at = end
    return OK, at


@inner_kernel
def read_feature(buf, at):
    """Read ``index:value`` by the whole grammar.

    Parameters
    ----------
    buf : uint8 ndarray
    at : int64; first byte of the token

    Returns
    -------
    status : int64; `OK` or what is wrong with the token
    end : int64; behind the token
    index : int64
    value : float64
    value_at : int64; first byte of the value, if the value is for the caller to find; else -1
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


@inner_kernel(forceinline=True)
def _read_run(buf, at, n_digits):
    """Value of a run of 1 to 19 digits, as uint64."""
    if n_digits <= 8:
        return first_digits(load_word(buf, at), n_digits)
    value = first_digits(load_word(buf, at), 8)
    left = n_digits - 8
    if left > 8:
        value = value * INTEGER_POWERS[8] + first_digits(load_word(buf, at + 8), 8)
        at += 8
        left -= 8
    return value * INTEGER_POWERS[left] + first_digits(load_word(buf, at + 8), left)


@inner_kernel(forceinline=True)
def _read_power(buf, at):
    """Read ``e[+-]digits`` of at most three digits: where it ends, -1 if it is anything else, and the power."""
    if buf[at] != 101 and buf[at] != 69:
        return -1, 0
    down = buf[at + 1] == _MINUS
    at += 2 if down or buf[at + 1] == 43 else 1
    power, start = 0, at
    while 48 <= buf[at] <= 57 and at < start + 3:
        power = power * 10 + np.int64(buf[at]) - 48
        at += 1
    return (at if at > start else -1), (-power if down else power)


@inner_kernel(forceinline=True)
def read_plain_feature(buf, at):
    """Read ``digits:[-]digits[.digits][e[+-]digits]`` and one blank or line feed, if a window holds its significand.

    A mask of the bytes that are no digits gives the structure without a branch a character: colon, minus, point, end.

    Parameters
    ----------
    buf : uint8 ndarray
    at : int64; first byte of the token

    Returns
    -------
    end : int64; behind the token, on the blank or line feed; -1 if the feature is not plain
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
    if stop >= WINDOW:
        return -1, 0, 0.0
    end, power = at + stop, 0
    if buf[end] != SPACE and buf[end] != LINE_FEED:
        end, power = _read_power(buf, end)
        if end < 0 or (buf[end] != SPACE and buf[end] != LINE_FEED):
            return -1, 0, 0.0
    whole_at = colon + 1
    negative = _0
    minus = minus & ((_1 << np.uint64(stop)) - _1)
    if minus != _0:
        if minus != _1 << np.uint64(whole_at):
            return -1, 0, 0.0
        negative = _1
        whole_at += 1
    n_whole = point - whole_at
    if n_whole == 1:
        significand = np.uint64(buf[at + whole_at]) & np.uint64(15)
    elif 1 < n_whole <= 8:
        significand = first_digits(load_word(buf, at + whole_at), n_whole)
    else:
        return -1, 0, 0.0
    index = np.int64(first_digits(load_word(buf, at), colon))
    if has_point:
        n_fraction = stop - point - 1
        if n_fraction == 0 or n_whole + n_fraction > 19:
            return -1, 0, 0.0
        fraction = _read_run(buf, at + point + 1, n_fraction)
        significand = significand * INTEGER_POWERS[np.uint64(n_fraction)] + fraction
        if power == 0 and significand <= _EXACT_LIMIT:
            return end, index, np.float64(significand) / EXACT_POWERS[np.uint64(n_fraction)] * _SIGNS[negative]
        power -= n_fraction
    elif power == 0:
        return end, index, np.float64(significand) * _SIGNS[negative]
    value, decided = round_decimal(significand, power)
    if not decided:
        return -1, 0, 0.0
    return end, index, value * _SIGNS[negative]
