"""From the sums of clusters to their means, and to the objective. numba only; arrays in, arrays out."""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.reductions import dot


@kernel
def means(sums, counts, fallback, out):
    """Divide sums by counts; clusters without weight get their row of `fallback`. O(k * m).

    Parameters
    ----------
    sums : float64 (k, m)
    counts : float64 (k,)
    fallback : float64 (k, m)
    out : float64 (k, m)
        Written.
    """
    for c in range(sums.shape[0]):
        row = out[c]
        if counts[c] > 0:
            total, count = sums[c], counts[c]
            for j in range(row.shape[0]):
                row[j] = total[j] / count
        else:
            kept = fallback[c]
            for j in range(row.shape[0]):
                row[j] = kept[j]


@kernel
def join(first, second, out):
    """Add up two arrays of sums. O(k * m).

    Parameters
    ----------
    first, second, out : float64 (k, m)
        `out` is written, and may be `first`.
    """
    for c in range(out.shape[0]):
        a, b, total = first[c], second[c], out[c]
        for j in range(total.shape[0]):
            total[j] = a[j] + b[j]


@kernel
def carried_on(means, before, share, out):
    """Carry means on by a share of their last way: ``means + share * (means - before)``, to the bit. O(k * m).

    Parameters
    ----------
    means, before : float64 (k, m)
    share : float64
    out : float64 (k, m)
        Written.
    """
    for c in range(out.shape[0]):
        here, there, ahead = means[c], before[c], out[c]
        for j in range(ahead.shape[0]):
            ahead[j] = here[j] + share * (here[j] - there[j])


@kernel
def mean_row(X, out):
    """Mean of the rows of an array, added up in order, as NumPy does. O(k * m).

    Parameters
    ----------
    X : float64 (k, m)
    out : float64 (m,)
        Written.
    """
    out[:] = 0.0
    for c in range(X.shape[0]):
        row = X[c]
        for j in range(out.shape[0]):
            out[j] += row[j]
    for j in range(out.shape[0]):
        out[j] /= X.shape[0]


@kernel
def explained(sums, counts):
    """Squared norms of the clusters' means, as often as they have rows: ``sum_c |sums_c|^2 / counts_c``. O(k * m).

    Parameters
    ----------
    sums : float64 (k, m)
    counts : float64 (k,)
        Clusters of 0 add nothing.

    Returns
    -------
    float64
    """
    result = 0.0
    for c in range(sums.shape[0]):
        if counts[c] > 0:
            at, width = c * sums.shape[1], sums.shape[1]
            result += dot(sums, at, sums, at, width) / counts[c]
    return result


@kernel
def crossed(sums, counts, centers):
    """What centers add to the squared norms of their rows: ``sum_c counts_c |c|^2 - 2 c.sums_c``. O(k * m).

    Parameters
    ----------
    sums : float64 (k, m)
    counts : float64 (k,)
    centers : float64 (k, m)

    Returns
    -------
    float64
    """
    result = 0.0
    for c in range(sums.shape[0]):
        at, width = c * sums.shape[1], sums.shape[1]
        result += counts[c] * dot(centers, at, centers, at, width) - 2.0 * dot(centers, at, sums, at, width)
    return result


@kernel
def weighted_sum(weights, values):
    """Sum of values, each times its weight, in a fixed order: a BLAS promises none. O(n).

    Parameters
    ----------
    weights : float64 (n,) or (0,)
        Empty: every value weighs 1.
    values : float64 (n,), C-contiguous

    Returns
    -------
    float64
    """
    if weights.shape[0]:
        return dot(weights, 0, values, 0, values.shape[0])
    ones = np.ones(1024)
    total = 0.0
    for first in range(0, values.shape[0], 1024):
        total += dot(values, first, ones, 0, min(1024, values.shape[0] - first))
    return total


@kernel
def row_squares(X, out):
    """Squared norms of rows, ``sum(X * X, axis=1)``. O(k * m).

    Parameters
    ----------
    X : float64 (k, m), C-contiguous
    out : float64 (k,)
        Written.
    """
    for c in range(X.shape[0]):
        out[c] = dot(X, c * X.shape[1], X, c * X.shape[1], X.shape[1])
