"""From the sums of clusters to their means, and to the objective. numba only; arrays in, arrays out."""

from __future__ import annotations

import numba as nb

from streamkm.kernels.lloyd import FASTMATH


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
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


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
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


@nb.njit(nogil=True, cache=True)
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


@nb.njit(nogil=True, cache=True)
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


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
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
        total = sums[c]
        squared = 0.0
        for j in range(total.shape[0]):
            squared += total[j] * total[j]
        if counts[c] > 0:
            result += squared / counts[c]
    return result


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
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
        total, center = sums[c], centers[c]
        squared, product = 0.0, 0.0
        for j in range(total.shape[0]):
            squared += center[j] * center[j]
            product += center[j] * total[j]
        result += counts[c] * squared - 2.0 * product
    return result
