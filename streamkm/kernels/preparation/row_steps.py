"""Steps that change the values of rows, dense or CSR.

Values lie row after row; `starts` says where each row begins. Arithmetic is float64, rounded once. Outputs may be the
inputs. NaN is a missing value: it stays NaN and is ignored; values that a step cannot use become infinite instead.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled

PIECE = 256  # values at a time, which stay in the nearest cache
ROOT_BITS = 0x3FE6A09E667F3BCD  # of the square root of 1/2
LN2_HIGH = 0.693147180369123816490  # its last 21 bits are 0: times an exponent it is exact
LN2_LOW = 1.90821492927058770002e-10  # the rest


@kernel
def scale_dense(X, shift, factor, out):
    """Shift and scale features: ``out = (X - shift) * factor``. O(n * d).

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    shift, factor : float64 (d,)
    out : same dtype (n, d), C-contiguous; written
    """
    for i in range(X.shape[0]):
        row, scaled = X[i], out[i]
        for j in range(row.shape[0]):
            scaled[j] = (row[j] - shift[j]) * factor[j]


@kernel
def fill_dense(X, means, out):
    """Write means in place of NaN: ``out = where(isnan(X), means, X)``. O(n * d).

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    means : float64 (d,)
    out : same dtype (n, d), C-contiguous; written
    """
    for i in range(X.shape[0]):
        row, filled = X[i], out[i]
        for j in range(row.shape[0]):
            filled[j] = means[j] if np.isnan(row[j]) else row[j]


@kernel
def scale_entries(indices, data, factor, out):
    """Scale the entries of CSR rows by their features' factors; features without one are left as they are. O(nnz).

    Parameters
    ----------
    indices : int32 or int64 (nnz,)
    data : float32 or float64 (nnz,)
    factor : float64 (d,)
    out : same dtype as data (nnz,); written
    """
    n_known = factor.shape[0]
    for t in range(data.shape[0]):
        j = indices[t]
        out[t] = data[t] * factor[j] if j < n_known else data[t]


@kernel
def log1p(values, out):
    """Compute log(1 + x), within some units of the last place of float64; -infinity for x <= -1.

    By plain arithmetic, for the same bits on every processor: ``1 + x = 2^e m``, m between the roots of 1/2 and 2,
    ``s = (m - 1) / (m + 1)``, and eleven terms of ``log m = 2 (s + s^3 / 3 + s^5 / 5 + ...)``. The loss of adding 1 is
    added again, over ``1 + x``.

    Parameters
    ----------
    values : float32 or float64 (n,)
    out : same dtype (n,); written
    """
    more = unfilled(PIECE, np.float64)
    bits = more.view(np.int64)
    lost, exponent = unfilled(PIECE, np.float64), unfilled(PIECE, np.float64)
    for start in range(0, values.shape[0], PIECE):
        size = min(PIECE, values.shape[0] - start)
        for t in range(size):
            x = np.float64(values[start + t])
            y = 1.0 + x
            short = x - (y - 1.0) if x < 1.0 else 1.0 - (y - x)
            more[t] = y
            lost[t] = short / y if -1.0 < x < np.inf else -np.inf if x <= -1.0 else x
        for t in range(size):
            power = (bits[t] - ROOT_BITS) >> 52
            exponent[t] = power
            bits[t] -= power << 52
        for t in range(size):
            above = more[t] - 1.0
            s = above / (2.0 + above)
            z = s * s
            tail = 1 / 19 + z * (1 / 21)
            tail = 1 / 15 + z * (1 / 17 + z * tail)
            tail = 1 / 11 + z * (1 / 13 + z * tail)
            tail = 1 / 7 + z * (1 / 9 + z * tail)
            tail = 1 / 3 + z * (1 / 5 + z * tail)
            low = exponent[t] * LN2_LOW + lost[t] + 2.0 * s * z * tail
            out[start + t] = exponent[t] * LN2_HIGH + (2.0 * s + low)


@kernel
def common_total(values, starts, total, out):
    """Scale rows so that their values add up to `total`; rows of zeros stay.

    All values of a row become infinite if one is negative, or if their sum is infinite.

    Parameters
    ----------
    values : float32 or float64
    starts : int64 (n + 1,)
    total : float64
    out : same dtype as values; written
    """
    for i in range(starts.shape[0] - 1):
        found, least = 0.0, 0.0
        for t in range(starts[i], starts[i + 1]):
            value = np.float64(values[t])
            if not np.isnan(value):
                found += value
                least = min(least, value)
        if least < 0 or found == np.inf:
            for t in range(starts[i], starts[i + 1]):
                out[t] = values[t] if np.isnan(values[t]) else np.inf
            continue
        factor = total / found if found != 0 else 1.0
        for t in range(starts[i], starts[i + 1]):
            out[t] = values[t] * factor


@kernel
def unit_length(values, starts, out):
    """Scale rows to length 1; rows of zeros stay, and rows with infinity. No square overflows or vanishes.

    Parameters
    ----------
    values : float32 or float64
    starts : int64 (n + 1,)
    out : same dtype as values; written
    """
    for i in range(starts.shape[0] - 1):
        largest = 0.0
        for t in range(starts[i], starts[i + 1]):
            largest = max(largest, abs(np.float64(values[t])))  # NaN is never larger
        if largest == 0 or largest == np.inf:
            for t in range(starts[i], starts[i + 1]):
                out[t] = values[t]
            continue
        d2 = 0.0
        for t in range(starts[i], starts[i + 1]):
            value = values[t] / largest
            if not np.isnan(value):
                d2 += value * value
        norm = np.sqrt(d2)
        for t in range(starts[i], starts[i + 1]):
            out[t] = values[t] / largest / norm
