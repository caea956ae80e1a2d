"""Rows and columns of a table by their first principal coordinates: as floats, and as bytes with certain bounds.

With z' the first coordinates of a row, z'' the rest, and y', y'' likewise of a column, ``z @ y`` is at least
``z' @ y' - |z''| |y''|``. In bytes, ``z' = s q + e`` and ``y' = r p + f`` with whole numbers q and p, so that

    z @ y >= s r q @ p - |z''| |y''| - |e| |y'| - |s q| |f|,

and the subtracted terms are at most the product of ``A = sqrt(|z''|^2 + t^2 |e|^2 + |s q|^2 / t^2)`` and the column's
counterpart (Cauchy and Schwarz). These lengths, rounded up, are the last byte of each: one byte product is a bound.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.pairs import rough_product
from streamkm.kernels.intrinsics.reductions import dot
from streamkm.kernels.intrinsics.sieve import DEPTH

WIDE = DEPTH
"""Bytes of the first exclusion test: a coordinate each, and a length."""
FINE = 64
"""Numbers of 16 bits of the second test: `COORDINATES`, a zero, and a length."""
COORDINATES = FINE - 2
ROW_LIMITS, COLUMN_LIMITS = (63.0, 119.0, 118.0, 8.0, 0.002), (127.0, 248.0, 118.0, 8.0, 0.002)
"""Limits of bytes: the largest whole number; the largest norm of a half of `WIDE`; the largest length before roundings
(below 2^7 with them); t, about the root of coordinates in units of their rounding; and what a length may lack, in whole
units, for the rounding of its parts. Products of halves stay below 2^15, as `sieve` needs:
``(119 + 9) (248 + 7) < 2^15`` with roundings and lengths; see `_unit`."""
FINE_LIMITS = (4095.0, np.inf, 4000.0, 64.0, 0.8)
"""Limits of numbers of 16 bits, whose products are added up in 32."""
UP = 1.0 + 2.0**-22
"""Rounds a number up to float32, and more."""
SMALLEST = 1e-37
"""Smallest unit: numbers below it are zero beside any other unit."""
LOOSE = {"reassoc", "contract", "nsz"}
"""fastmath for bounds, whose last bits change no label."""


@kernel
def reduce_rows(X, coordinates, lost, wide, lengths, fine, fine_lengths, norms):
    """Fill the first coordinates of rows and the lengths of what they leave: ``sqrt(|x|^2 - |x'|^2 + lost * |x|^2)``.

    Parameters
    ----------
    X : float32 (n, m), C-contiguous
    coordinates : float32 (n, at least COORDINATES), C-contiguous; of the rows, in principal directions
    lost : float64
        Bounds, as a share of ``|z| |y|``, what products of the coordinates and of the lengths may be wrong by: added to
        both squared lengths, it is added to their product (Cauchy and Schwarz).
    wide : float32 (n, WIDE), C-contiguous; written: the first WIDE - 1 coordinates, and a zero
    lengths : float32 (n,); written: lengths of the rest
    fine, fine_lengths : float32 (n, FINE), C-contiguous, (n,); likewise of the first `COORDINATES`, and two zeros
    norms : float64 (n,); written: lengths of the rows
    """
    n_features, step = X.shape[1], coordinates.shape[1]
    for i in range(X.shape[0]):
        norm = dot(X, i * n_features, X, i * n_features, n_features)
        norms[i] = np.sqrt(norm)
        for j in range(WIDE - 1):
            wide[i, j] = coordinates[i, j]
        wide[i, WIDE - 1] = 0.0
        for j in range(COORDINATES):
            fine[i, j] = coordinates[i, j]
        fine[i, FINE - 2], fine[i, FINE - 1] = 0.0, 0.0
        lengths[i] = _rest(norm, dot(coordinates, i * step, coordinates, i * step, WIDE - 1), lost)
        fine_lengths[i] = _rest(norm, dot(coordinates, i * step, coordinates, i * step, COORDINATES), lost)


@nb.njit(inline="always")
def _rest(norm, head, lost):
    """Upper bound of the length of what coordinates leave out."""
    return UP * np.sqrt(max(norm - head, 0.0) + lost * norm)


@kernel(fastmath=LOOSE)
def to_bytes(wide, lengths, sign, offset, limits, out, units):
    """Convert coordinates and lengths to whole numbers, as `sieve.mark_columns` and `pairs.short_product` take them.

    Parameters
    ----------
    wide, lengths : as `reduce_rows` writes them; or `fine` and its
    sign : int64; sign of the length
    offset : int64; added to the numbers q, not to the length
    limits : tuple of float64; `ROW_LIMITS`, `COLUMN_LIMITS` or `FINE_LIMITS`
    out : uint8 or int8 (at least n, WIDE), or int16 (at least n, FINE), C-contiguous; written
    units : float32 (at least n,); written: s
    """
    last = wide.shape[1] - 1
    for i in range(wide.shape[0]):
        unit = _unit(wide[i], lengths[i], limits)
        units[i] = unit
        lost, kept, inverse = np.float32(0.0), np.float32(0.0), np.float32(1.0) / unit
        for j in range(last):
            exact = wide[i, j] * inverse
            whole = np.floor(exact + np.float32(0.5))
            lost += (exact - whole) * (exact - whole)
            kept += max(exact * exact, whole * whole)
            out[i, j] = np.int32(whole) + offset
        out[i, last] = sign * _length(lengths[i] * inverse, lost, kept, limits[3], limits[4])


@nb.njit(inline="always")
def _unit(coordinates, length, limits):
    """Find the smallest unit, about, by which all whole numbers keep their limits; 1 if all are 0."""
    highest, first, second = np.float32(0.0), 0.0, np.float64(length) * length
    for j in range(0, coordinates.shape[0], 4):
        for q in range(j, j + 2):
            highest = max(highest, abs(coordinates[q]))
            first += np.float64(coordinates[q]) * coordinates[q]
        for q in range(j + 2, j + 4):
            highest = max(highest, abs(coordinates[q]))
            second += np.float64(coordinates[q]) * coordinates[q]
    square, (largest, half, longest, balance, _) = np.float64(length) * length, limits
    # of A's squared units, t^2 |e|^2 takes at most t^2 / 4 for each coordinate, and |s q| / t little more than |z'| / t
    added = 1.1 / balance**2 * (first + second - square)
    unit = max(np.sqrt(first), np.sqrt(second + added)) / half
    unit = UP * max(unit, np.float64(highest) / largest, np.sqrt(square + added) / longest)
    return np.float32(unit if unit > SMALLEST and unit < np.inf else 1.0)


@nb.njit(inline="always")
def _length(length, lost, kept, balance, more):
    """Compute A of the module's docstring in whole units, rounded up, with the roundings of its parts added."""
    squared = np.float64(length) * length + balance**2 * lost + kept / balance**2
    return np.int32(np.ceil(1.00001 * np.sqrt(squared) + more))


@kernel
def lowest_columns(products, bias, out):
    """Find the columns of the lowest scores, ``products + bias``, the lowest first; ties go to the first.

    Parameters
    ----------
    products, bias : float32 (n, c), (c,)
    out : int32 (n, at most c); written
    """
    wanted = out.shape[1]
    lowest = unfilled(wanted, np.float32)
    for i in range(products.shape[0]):
        for q in range(wanted):
            lowest[q], out[i, q] = np.inf, 0
        for c in range(bias.shape[0]):
            score = products[i, c] + bias[c]
            if score < lowest[wanted - 1]:
                q = wanted - 1
                while q > 0 and score < lowest[q - 1]:
                    lowest[q], out[i, q] = lowest[q - 1], out[i, q - 1]
                    q -= 1
                lowest[q], out[i, q] = score, c


@kernel
def likely_columns(wide, groups, starts, wide_columns, head_bias, out):
    """Guess each row's two nearest columns, the likelier first, by few coordinates among the columns of its groups.

    Parameters
    ----------
    wide : float32 (n, WIDE), C-contiguous; as of `reduce_rows`
    groups : int32 (n, at most g); groups of columns to look at
    starts : int64 (g + 1,); starts of the groups of columns
    wide_columns : float32 (k, WIDE), C-contiguous; as `wide`, of the columns
    head_bias : float32 (k,); added to products of `wide_columns`
    out : int32 (n, 2); written; the two differ
    """
    for row in range(wide.shape[0]):
        nearest, other, lowest, second = 0, 0, np.float32(np.inf), np.float32(np.inf)
        for group in groups[row]:
            for q in range(starts[group], starts[group + 1]):
                score = rough_product(wide, row * WIDE, wide_columns, q * WIDE, WIDE) + head_bias[q]
                if score < lowest:
                    nearest, other, lowest, second = q, nearest, score, lowest
                elif score < second:
                    other, second = q, score
        if other == nearest:
            other = 1 if nearest == 0 else 0
        out[row, 0], out[row, 1] = nearest, other
