"""Kernel values of rows against landmarks: the work beside the matrix product.

Rows and landmarks come scaled so that gamma is 1. ``exp`` is a polynomial that LLVM vectorizes, some ten times as fast
as a call for each value.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.kernels import FUSED
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.hashing import mix
from streamkm.kernels.intrinsics.reductions import absolute_distance, chi_squared_distance, squared_distance
from streamkm.kernels.sketch.walsh_hadamard import butterflies

Floats: TypeAlias = NDArray[np.float32]

_LOG2_E = np.float32(1.4426950408889634)
_LN2_UPPER, _LN2_LOWER = np.float32(0.693359375), np.float32(-2.12194440e-4)  # their sum is ln 2 to 40 bits
_SMALLEST = np.float32(-87.0)  # exp of less is below float32's smallest normal number
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_HALF, _ONE, _TWO, _ZERO = np.float32(0.5), np.float32(1.0), np.float32(2.0), np.float32(0.0)
_TINY = np.float32(1.1754944e-38)
_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


@kernel(fastmath=FUSED)
def exp_nonpositive(row, bits):
    """Replace values by their exponentials; relative error below 1e-7.

    With n the integer nearest to ``x / ln 2``, ``exp(x) = 2^n exp(r)`` where ``|r| <= ln 2 / 2``; exp(r) is Cephes'
    polynomial of degree 7 (Moshier, "Methods and programs for mathematical functions", 1989). Values below -87 and NaN
    give 1.6e-38.

    Parameters
    ----------
    row : float32 (c,); not above 0; overwritten
    bits : int32 (c,); scratch
    """
    powers = bits.view(np.float32)
    for j in range(row.shape[0]):
        x = row[j] if row[j] > _SMALLEST else _SMALLEST
        n = np.int32(x * _LOG2_E - _HALF)
        q = np.float32(n)
        r = x - q * _LN2_UPPER
        r = r - q * _LN2_LOWER
        p = _P0 * r + _P1
        p = p * r + _P2
        p = p * r + _P3
        p = p * r + _P4
        p = p * r + _P5
        row[j] = p * r * r + r + _ONE
        bits[j] = (n + _BIAS) << _MANTISSA_BITS
    for j in range(row.shape[0]):
        row[j] *= powers[j]


@kernel(fastmath=FUSED)
def exp_of_distances(overlaps, factor, row_norms, norms, bits):
    """Turn overlaps into exp(-distance), at most 1, where ``distance = norm + norm - factor * overlap``.

    Parameters
    ----------
    overlaps : float32 (v, c); overwritten
    factor : float32
    row_norms, norms : float32 (at least v,), (c,)
    bits : int32 (c,); scratch
    """
    for i in range(overlaps.shape[0]):
        row = overlaps[i]
        norm = row_norms[i]
        for j in range(row.shape[0]):
            x = factor * row[j] - norm - norms[j]
            x = x if x > _SMALLEST else _SMALLEST  # NaN too: of a row too far away for float32
            row[j] = x if x < _ZERO else _ZERO
        exp_nonpositive(row, bits)


def cosines(products: Floats, row_norms: Floats, norms: Floats) -> None:
    """Divide products by both norms; 0 where one is 0.

    Parameters
    ----------
    products : float32 (v, c); overwritten
    row_norms, norms : float32 (at least v,), (c,); squared
    """
    row_scales, scales = (
        np.divide(_ONE, np.sqrt(d2), out=np.zeros_like(d2), where=d2 > 0) for d2 in (row_norms[: len(products)], norms)
    )
    products *= row_scales[:, None] * scales


def powers(products: Floats, coef0: np.float32, degree: int) -> None:
    """Replace p by ``(p + coef0) ** degree``.

    Parameters
    ----------
    products : float32 (v, c); overwritten
    coef0 : float32
    degree : int64; at least 1
    """
    products += coef0
    base = products.copy()
    for _ in range(degree - 1):
        products *= base


def tangents(products: Floats, coef0: np.float32, bits: NDArray[np.int32]) -> None:
    """Replace p by ``tanh(p + coef0)``, with an absolute error below 2e-7.

    Parameters
    ----------
    products : float32 (v, c); overwritten
    coef0 : float32
    bits : int32 (c,); scratch
    """
    products += coef0
    signs = np.where(products > 0, _ONE, -_ONE)
    np.multiply(np.abs(products), -_TWO, out=products)
    exp_rows(products, bits)
    np.divide(signs * (_ONE - products), _ONE + products, out=products)


@kernel(fastmath=FUSED)
def minus_differences(how, X, landmarks, out):
    """Write minus the sums of differences of dense rows, for `exp_nonpositive`; O(v * c * d).

    Parameters
    ----------
    how : int64; what is summed: 1, ``|x - y|``; 2, ``(x - y)^2 / (x + y)``, of numbers that are not negative
    X, landmarks : float32 (at least v, d), (c, d)
    out : float32 (v, c); written
    """
    n_features = X.shape[1]
    for j in range(landmarks.shape[0]):
        for i in range(out.shape[0]):
            if how == 1:
                out[i, j] = -absolute_distance(X, i * n_features, landmarks, j * n_features, n_features)
            else:
                out[i, j] = -chi_squared_distance(X, i * n_features, landmarks, j * n_features, n_features)


@kernel(fastmath=FUSED)
def exp_rows(values, bits):
    """Replace values, not above 0, by their exponentials; see `exp_nonpositive`.

    Parameters
    ----------
    values : float32 (v, c); overwritten
    bits : int32 (c,); scratch
    """
    for i in range(values.shape[0]):
        exp_nonpositive(values[i], bits)


@kernel(fastmath=FUSED)
def placed_dense(X, shift, scale, center, out, d2norms):
    """Shift and scale rows in float64, and compute the squared distances of the results to a center.

    Parameters
    ----------
    X : float32 or float64 (v, d)
    shift : float64 (d,)
    scale : float64
    center : float64 (d,)
    out : float32 (at least v, d); written: ``(X - shift) * scale``
    d2norms : float32 (at least v,); written
    """
    for i in range(X.shape[0]):
        for t in range(X.shape[1]):
            out[i, t] = (X[i, t] - shift[t]) * scale
        d2norms[i] = squared_distance(out, i * X.shape[1], center, 0, X.shape[1])


@kernel
def overlaps_csr(how, indptr, indices, data, columns, starts, owners, values, out):
    """Sum over the features that a sparse row shares with each landmark, by the landmarks' inverted lists.

    Parameters
    ----------
    how : int64; what is summed: 0, ``x y``; 1, ``|x| + |y| - |x - y|``; 2, ``4 x y / (x + y)``
    indptr, indices : int32 or int64
    data : float32 (nnz,)
    columns : int64 (u,); features that landmarks have, ascending
    starts : int64 (u + 1,); where each feature's list begins
    owners : int32 (entries,); landmarks that have the feature
    values : float32 (entries,); their values
    out : float32 (v, c); added to
    """
    for i in range(indptr.shape[0] - 1):
        row = out[i]
        for t in range(indptr[i], indptr[i + 1]):
            feature, x = indices[t], data[t]
            place = np.searchsorted(columns, feature)
            if place == columns.shape[0] or columns[place] != feature:
                continue
            first, last = starts[place], starts[place + 1]
            if how == 0:
                for e in range(first, last):
                    row[owners[e]] += x * values[e]
            elif how == 1:
                for e in range(first, last):
                    row[owners[e]] += abs(x) + abs(values[e]) - abs(x - values[e])
            else:
                for e in range(first, last):
                    row[owners[e]] += np.float32(4.0) * x * values[e] / (x + values[e] + _TINY)


@kernel
def walsh_hadamard(rows):
    """Transform rows in place by the unnormalized Walsh-Hadamard matrix; O(v * p log p).

    Parameters
    ----------
    rows : float32 (v, p), p a power of 2; overwritten
    """
    for i in range(rows.shape[0]):
        half = np.int64(1)  # no literal, for which `butterflies` would be compiled once more
        while half < rows.shape[1]:
            butterflies(rows[i], half)
            half *= 2


@kernel
def hashed_signs(seed, first, out):
    """Fill +1 and -1 by the hash of the place in the matrix: rows of a sub-Gaussian sketch.

    Parameters
    ----------
    seed : uint64
    first : int64; number of the first row
    out : float32 (v, c); written
    """
    width = out.shape[1]
    for i in range(out.shape[0]):
        for j in range(width):
            bits = mix(seed, np.uint64((first + i) * width + j))
            out[i, j] = _ONE if bits & np.uint64(1) else -_ONE
