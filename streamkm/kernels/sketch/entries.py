"""Random entries of projections by a counter-based hash, and products of rows with them.

Row j of the map belongs to feature j. Its entries come from 64-bit hashes of (seed, j, q), so neither d nor m need be
known: 64 signs of one, or components 2 q and 2 q + 1 of its halves. Normals are by Box and Muller's method ("A note on
the generation of random normal deviates", Ann. Math. Stat. 29, 1958) in float32, without fused operations, so that
every machine makes the same ones. Logarithm, sine and cosine are polynomials on small intervals. Entries reach 6.76
standard deviations, good to 1e-6, or to 2.4e-4 for pairs shorter than 1e-3 (one in two million).
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.hashing import mix

_S32 = np.uint64(32)
_F, _I = np.float32, np.int32
_HALF, _ONE = _F(0.5), _F(1.0)
_MANTISSA, _SQRT_HALF = _I(0x007FFFFF), _I(0x3F3504F3)  # bits of a float32: the mask, and the number sqrt(1/2)
_LN_2 = _F(np.log(2.0))
_EIGHTHS, _QUARTER = _I(29), _I(30)  # of a turn of 2^32
_ANGLE = _F(np.pi / 2 / (1 << 30))


@kernel(inline="always")
def _log_1p(x):
    """Compute log(1 + x) for 1 + x from sqrt(1/2) to sqrt(2)."""
    p = _F(7.0376836e-2)
    p = p * x - _F(1.1514610e-1)
    p = p * x + _F(1.1676998e-1)
    p = p * x - _F(1.2420141e-1)
    p = p * x + _F(1.4249323e-1)
    p = p * x - _F(1.6668057e-1)
    p = p * x + _F(2.0000714e-1)
    p = p * x - _F(2.4999994e-1)
    p = p * x + _F(3.3333331e-1)
    x2 = x * x
    return x + (x2 * x * p - _HALF * x2)


@kernel(inline="always")
def _sine(y):
    """Compute sin(y) for an eighth of a turn to either side."""
    y2 = y * y
    return ((_F(8.3321609e-3) - _F(1.9515296e-4) * y2) * y2 - _F(1.6666655e-1)) * y2 * y + y


@kernel(inline="always")
def _cosine(y):
    """Compute cos(y) for an eighth of a turn to either side."""
    y2 = y * y
    return ((_F(2.4433157e-5) * y2 - _F(1.3887316e-3)) * y2 + _F(4.1666646e-2)) * y2 * y2 - _HALF * y2 + _ONE


@kernel
def fill_normals(seed, features, out):
    """Write standard normal entries.

    ``out[f, 2 q] = sqrt(-2 log u) cos(a)`` and ``out[f, 2 q + 1] = sqrt(-2 log u) sin(a)``, with u = (h + 1/2) / 2^32
    from the upper half h of the word and the angle a = 2 pi l / 2^32 from the lower half l.

    Parameters
    ----------
    seed : uint64
    features : int64 (b,)
    out : float32 (b, m); written
    """
    n_components = out.shape[1]
    n_words = (n_components + 1) // 2
    words = unfilled(n_words, np.uint64)
    numbers, exponents, row = unfilled(n_words, _F), unfilled(n_words, _F), unfilled(2 * n_words, _F)
    bits = numbers.view(np.int32)
    for f in range(features.shape[0]):
        start = mix(seed, np.uint64(features[f]))
        for q in range(n_words):
            words[q] = mix(start, np.uint64(q))
            numbers[q] = _F(np.uint32(words[q] >> _S32)) + _HALF
        for q in range(n_words):  # number = 2^exponent * (what is left), from sqrt(1/2) to sqrt(2)
            above = _I(bits[q] - _SQRT_HALF)
            exponents[q] = _F(_I((above >> _I(23)) - _I(32)))
            bits[q] = _I((above & _MANTISSA) + _SQRT_HALF)
        for q in range(n_words):
            radius = np.sqrt(_F(-2.0) * (exponents[q] * _LN_2 + _log_1p(numbers[q] - _ONE)))
            low = _I(np.uint32(words[q]))
            turns = _I(_I(_I(low >> _EIGHTHS) + _I(1)) >> _I(1))  # quarters of a turn, from -2 to 2
            y = _F(_I(low - _I(turns << _QUARTER))) * _ANGLE
            sine, cosine = _sine(y), _cosine(y)
            across, up = (sine, cosine) if turns & 1 else (cosine, sine)
            row[2 * q] = -radius * across if (turns + 1) & 2 else radius * across
            row[2 * q + 1] = -radius * up if turns & 2 else radius * up
        for c in range(n_components):
            out[f, c] = row[c]


@kernel
def add_signs(seed, indptr, indices, data, out):
    """Add CSR rows times entries +1 and -1: that of component c is +1 if bit c % 64 of word c // 64 is set.

    Parameters
    ----------
    seed : uint64
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    out : same dtype as data (n, m); added to
    """
    n_components = out.shape[1]
    for i in range(out.shape[0]):
        y = out[i]
        for t in range(indptr[i], indptr[i + 1]):
            value, start = data[t], mix(seed, np.uint64(indices[t]))
            for first in range(0, n_components, 64):
                word = mix(start, np.uint64(first // 64))
                some = y[first : first + 64]
                for c in range(some.shape[0]):
                    some[c] += value if (word >> np.uint64(c)) & np.uint64(1) else -value


@kernel
def fill_sparse(seed, limit, features, out):
    """Write entries +1 and -1 with probability limit / 2^33 each, 0 otherwise.

    An entry is its component's half of the word (the lower for even components): nonzero if that is below `limit`, and
    positive if its lowest bit is set.

    Parameters
    ----------
    seed : uint64
    limit : uint64; even, at most 2^32
    features : int64 (b,)
    out : float32 (b, m); written
    """
    n_components = out.shape[1]
    words = unfilled((n_components + 1) // 2, np.uint64)
    halves = words.view(np.uint32)
    for f in range(features.shape[0]):
        start = mix(seed, np.uint64(features[f]))
        for q in range(words.shape[0]):
            word = mix(start, np.uint64(q))
            halves[2 * q], halves[2 * q + 1] = np.uint32(word), np.uint32(word >> _S32)
        row = out[f]
        for c in range(n_components):
            sign = _ONE if halves[c] & np.uint32(1) else -_ONE
            row[c] = sign if np.uint64(halves[c]) < limit else _F(0.0)


@kernel
def add_columns(indptr, rows, data, entries, out):
    """Add columns of a matrix times rows of entries: ``out += columns @ entries``.

    Column by column: a row of `out` adds its features in their order, whatever the other rows have.

    Parameters
    ----------
    indptr : int32 or int64 (b + 1,); where each column's stored values start
    rows : int32 or int64 (nnz,)
    data : float32 or float64 (nnz,)
    entries : float32 (b, m)
    out : same dtype as data (n, m); added to
    """
    n_components = out.shape[1]
    for f in range(entries.shape[0]):
        row = entries[f]
        for t in range(indptr[f], indptr[f + 1]):
            value, y = data[t], out[rows[t]]
            for c in range(n_components):
                y[c] += value * row[c]
