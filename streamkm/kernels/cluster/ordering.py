"""Sorting keys. numba only; arrays in, arrays out; the caller validates."""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.unfilled import unfilled

_DIGIT_BITS = 11
_N_DIGITS = 6  # of 64 bits
_MASK = np.uint64((1 << _DIGIT_BITS) - 1)


@kernel
def lowest_first(bits, order, other):
    """Sort words by radix, stably. O(n).

    The readable form is ``order[:] = argsort(bits, kind="stable")``.

    Parameters
    ----------
    bits : uint64 (n,)
        Of floats that are not negative: those are in the order of their bits.
    order, other : int64 (n,)
        Written; `other` is room to work in.
    """
    n = bits.shape[0]
    counts = unfilled((_N_DIGITS, 1 << _DIGIT_BITS), np.int64)
    counts[:] = 0
    for i in range(n):
        order[i] = i
        word = bits[i]
        for digit in range(counts.shape[0]):  # not a constant: the loop would be unrolled, which takes long
            counts[digit, (word >> np.uint64(_DIGIT_BITS * digit)) & _MASK] += 1
    for digit in range(counts.shape[0]):
        places = counts[digit]
        shift = np.uint64(_DIGIT_BITS * digit)
        if n == 0 or places[(bits[0] >> shift) & _MASK] == n:
            continue  # the same for all
        total = 0
        for value in range(places.shape[0]):
            count = places[value]
            places[value] = total
            total += count
        for i in range(n):
            value = (bits[order[i]] >> shift) & _MASK
            other[places[value]] = order[i]
            places[value] += 1
        for i in range(n):
            order[i] = other[i]
