"""Decimal text to double, correctly rounded.

Short numbers are exact by one division or product (Clinger 1990). Longer ones multiply a 64-bit significand by a
128-bit power of five (Lemire, "Number Parsing at a Gigabyte per Second", 2021, section 5, algorithm 1). With more than
19 significant digits the first 19 decide, unless the next significand would round differently: such numbers are
reported as undecided, and the caller gives their text to Python's ``float``.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import inner_kernel, kernel
from streamkm.kernels.text.machine_words import first_digits, leading_zeros, load_word, multiply_wide, trailing_zeros

DECIDED, UNDECIDED, MALFORMED = 0, 1, 2

SMALLEST_POWER, LARGEST_POWER = -342, 308
"""Outside these powers of ten every 64-bit significand is zero or infinite."""

EXACT_POWERS = 10.0 ** np.arange(23)
"""Powers of ten that a double holds exactly."""

INTEGER_POWERS = np.array([10**i for i in range(20)], dtype=np.uint64)


def _powers_of_five() -> np.ndarray:
    """Top 128 bits of 5**q as (high, low), rounded down for q >= 0 and up for q < 0 (Lemire 2021, section 5)."""
    words = np.empty((LARGEST_POWER - SMALLEST_POWER + 1, 2), dtype=np.uint64)
    for row, q in enumerate(range(SMALLEST_POWER, LARGEST_POWER + 1)):
        power = 5 ** abs(q)
        if q >= 0:
            shift = 128 - power.bit_length()
            value = power << shift if shift >= 0 else power >> -shift
        else:
            value = (1 << (power.bit_length() + 127)) // power + 1
            value >>= max(0, value.bit_length() - 128)
        words[row] = value >> 64, value & (2**64 - 1)
    return words


POWERS_OF_FIVE = _powers_of_five()

_0, _1, _3, _10 = (np.uint64(i) for i in (0, 1, 3, 10))
_ZERO_CHAR = np.uint64(48)
_HIGH_BIT = np.uint64(63)
_ALL_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_NEEDED_BITS = np.uint64(0x1FF)  # below the 55 bits that a product must get right
_HIDDEN_BIT = np.uint64(1 << 52)
_EXACT_LIMIT = np.uint64(1 << 53)
_INFINITY_BITS = np.uint64(0x7FF << 52)
_EXPONENT_CAP = 1 << 40  # more than the digits of any line; larger ones are zero or infinity either way
_ZEROS = np.uint64(0x3030303030303030)
_PAST_NINE = np.uint64(0x4646464646464646)
_TOP_BITS = np.uint64(0x8080808080808080)


@inner_kernel
def scale_bits(significand, power):
    """Bits of the double nearest to ``significand * 10**power``, ties to even.

    Parameters
    ----------
    significand : uint64
    power : int64

    Returns
    -------
    bits : uint64; of a non-negative double, infinity included
    decided : bool; false in the one case that the product's 128 bits cannot decide
    """
    if significand == _0 or power < SMALLEST_POWER:
        return _0, True
    if power > LARGEST_POWER:
        return _INFINITY_BITS, True
    zeros = leading_zeros(significand)
    scaled = significand << np.uint64(zeros)
    high, low = multiply_wide(scaled, POWERS_OF_FIVE[power - SMALLEST_POWER, 0])
    if (high & _NEEDED_BITS) == _NEEDED_BITS:
        carry, _ = multiply_wide(scaled, POWERS_OF_FIVE[power - SMALLEST_POWER, 1])
        low = low + carry
        if low < carry:
            high = high + _1
    decided = not (low == _ALL_ONES and (power < -27 or power > 55))
    upper = high >> _HIGH_BIT
    shift = upper + np.uint64(9)
    mantissa = high >> shift
    # floor(log2(10**power)) by a fixed-point product, exact over the whole range
    exponent = ((217706 * power) >> 16) + 63 + np.int64(upper) - zeros + 1023
    if exponent <= 0:
        if exponent <= -63:
            return _0, decided
        mantissa = mantissa >> np.uint64(1 - exponent)
        mantissa = (mantissa + (mantissa & _1)) >> _1
        return mantissa, decided  # a carry into the hidden bit is the smallest normal number's exponent already
    # exactly half way: only there can the product be exact, and only for these powers
    if low <= _1 and -4 <= power <= 23 and (mantissa & _3) == _1 and (mantissa << shift) == high:
        mantissa = mantissa - _1
    mantissa = (mantissa + (mantissa & _1)) >> _1
    if mantissa == _HIDDEN_BIT << _1:
        mantissa, exponent = _HIDDEN_BIT, exponent + 1
    if exponent >= 2047:
        return _INFINITY_BITS, decided
    return (mantissa - _HIDDEN_BIT) | (np.uint64(exponent) << np.uint64(52)), decided


@inner_kernel
def round_decimal(significand, power):
    """Round ``significand * 10**power`` to a double, and tell whether that is certain (`scale_bits`)."""
    if significand <= _EXACT_LIMIT and -22 <= power <= 22:
        if power < 0:
            return np.float64(significand) / EXACT_POWERS[-power], True
        return np.float64(significand) * EXACT_POWERS[power], True
    bits, decided = scale_bits(significand, power)
    return np.uint64(bits).view(np.float64), decided


@inner_kernel
def no_digits(word):
    """Mark the bytes of a word that are no decimal digits by their top bits."""
    offset = word ^ _ZEROS
    # adding 0x76 carries into the top bit from 10 on; taking the low 7 bits first keeps carries inside their byte
    return (((offset & ~_TOP_BITS) + (_PAST_NINE + _ZEROS)) | offset) & _TOP_BITS


@inner_kernel
def _read_digits(buf, at, significand, n_digits):
    """Append a run of digits at byte `at` to a significand (uint64) that holds `n_digits`, at most 19.

    Returns the position behind the run, significand and n_digits with the digits that fit, the number of dropped
    digits, and whether one of these is not zero.
    """
    dropped, inexact = 0, False
    while True:
        if n_digits <= 11:
            word = load_word(buf, at)
            run = trailing_zeros(no_digits(word)) >> 3  # 0 to 8 digits
            if run == 0:
                break
            significand = significand * INTEGER_POWERS[run] + first_digits(word, run)
            # leading zeros are not significant
            n_digits = 0 if significand == _0 else n_digits + run
            at += run
            if run < 8:
                break
            continue
        digit = np.uint64(buf[at]) - _ZERO_CHAR
        if digit > np.uint64(9):
            break
        if n_digits < 19:
            significand = significand * _10 + digit
            n_digits += 1
        else:
            dropped += 1
            inexact = inexact or digit != _0
        at += 1
    return at, significand, n_digits, dropped, inexact


@inner_kernel
def _read_word_value(buf, at):
    """Read ``nan``, ``inf`` or ``infinity`` in any case: (status, end, value)."""
    word = load_word(buf, at) | np.uint64(0x2020202020202020)
    three = word & np.uint64(0xFFFFFF)
    if three == np.uint64(0x6E616E):
        return DECIDED, at + 3, np.nan
    if word == np.uint64(0x7974696E69666E69):
        return DECIDED, at + 8, np.inf
    if three == np.uint64(0x666E69):
        return DECIDED, at + 3, np.inf
    return MALFORMED, at, 0.0


@kernel
def read_decimal(buf, at):
    """Read the longest number that starts at a position, as Python's ``float`` would (without underscores). O(length).

    Parameters
    ----------
    buf : uint8 ndarray
        Text with a byte that belongs to no number (a line feed) behind `at`, and `machine_words.WINDOW` bytes behind
        that.
    at : int64

    Returns
    -------
    status : int64; `DECIDED`, `UNDECIDED` (well-formed, but its value is for the caller to find) or `MALFORMED`
    end : int64; behind the number's last character; the caller judges what stands there
    value : float64; correctly rounded if decided
    """
    sign = 1.0
    if buf[at] == 45:
        sign = -1.0
        at += 1
    elif buf[at] == 43:
        at += 1
    if buf[at] > 57:
        status, at, value = _read_word_value(buf, at)
        return status, at, np.copysign(value, sign)
    start = at
    at, significand, n_digits, power, inexact = _read_digits(buf, at, _0, np.int64(0))
    seen = at - start
    if buf[at] == 46:
        start = at + 1
        at, significand, n_digits, dropped, more = _read_digits(buf, start, significand, n_digits)
        inexact = inexact or more
        seen += at - start
        power += dropped - (at - start)
    if seen == 0:
        return MALFORMED, at, 0.0
    if buf[at] == 101 or buf[at] == 69:
        at += 1
        down = buf[at] == 45
        if down or buf[at] == 43:
            at += 1
        start = at
        exponent = 0
        while 48 <= buf[at] <= 57:
            exponent = min(exponent * 10 + np.int64(buf[at]) - 48, _EXPONENT_CAP)
            at += 1
        if at == start:
            return MALFORMED, at, 0.0
        power += -exponent if down else exponent
    value, decided = round_decimal(significand, power)
    if inexact:
        above, sure = round_decimal(significand + _1, power)
        decided = decided and sure and value == above
    return (DECIDED if decided else UNDECIDED), at, value * sign
