"""Means and objectives from the sums of clusters; by NumPy where it rounds as a loop does, to compile nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import added_in_order
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.reductions import dot

MOVED_ENTRIES = 1 << 16  # of centers that move at a time


def means(
    sums: NDArray[np.float64], counts: NDArray[np.float64], fallback: NDArray[np.float64], out: NDArray[np.float64]
) -> None:
    """Divide sums by counts; clusters without weight get their row of `fallback`. O(k * m).

    Parameters
    ----------
    sums, counts : float64 (k, m), (k,)
    fallback : float64 (k, m); may be `sums`
    out : float64 (k, m); written; may be `sums`
    """
    empty = np.flatnonzero(~(counts > 0))
    kept = fallback[empty]
    np.divide(sums, np.where(counts > 0, counts, 1.0)[:, None], out=out)
    out[empty] = kept


def moved_towards(
    sums: NDArray[np.float64], counts: NDArray[np.float64], rate: float, centers: NDArray[np.float64]
) -> None:
    """Move centers towards the means of their rows by a share of the way; those without weight stay. O(k * m).

    Parameters
    ----------
    sums, counts : float64 (k, m), (k,)
    rate : float64; the share, from 0 to 1
    centers : float64 (k, m); written
    """
    step = max(1, MOVED_ENTRIES // centers.shape[1])  # all ways at once would take as much memory as the centers
    for first in range(0, len(centers), step):
        some = first + np.flatnonzero(counts[first : first + step] > 0)
        way = sums[some] / counts[some, None]
        way -= centers[some]
        way *= rate
        centers[some] += way


def carried_on(means: NDArray[np.float64], before: NDArray[np.float64], share: float, out: NDArray[np.float64]) -> None:
    """Carry means on by a share of their last way: ``means + share * (means - before)``, to the bit. O(k * m).

    Parameters
    ----------
    means, before : float64 (k, m)
    share : float64
    out : float64 (k, m); written
    """
    np.subtract(means, before, out=out)
    out *= share
    out += means


def explained(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Sum of squared norms of the clusters' means by their counts: ``sum_c |sums_c|^2 / counts_c``, float64. O(k * m).

    Parameters
    ----------
    sums, counts : float64 (k, m), (k,); clusters of 0 add nothing
    """
    squares = np.empty(len(counts))
    row_products(sums, sums, squares)
    return added_in_order((squares[counts > 0] / counts[counts > 0]).tolist())


def crossed(sums: NDArray[np.float64], counts: NDArray[np.float64], centers: NDArray[np.float64]) -> float:
    """Sum of what centers add to their rows' squared norms: ``sum_c counts_c |c|^2 - 2 c.sums_c``, float64. O(k * m).

    Parameters
    ----------
    sums, counts, centers : float64 (k, m), (k,), (k, m)
    """
    squares, products = np.empty(len(counts)), np.empty(len(counts))
    row_products(centers, centers, squares)
    row_products(centers, sums, products)
    return added_in_order((counts * squares - 2.0 * products).tolist())


@kernel
def weighted_sum(weights, values):
    """Sum of values, each times its weight, in a fixed order, which a BLAS does not promise; float64. O(n).

    Parameters
    ----------
    weights : float64 (n,) or (0,); empty: every value weighs 1
    values : float64 (n,), C-contiguous
    """
    if weights.shape[0]:
        return dot(weights, 0, values, 0, values.shape[0])
    ones = unfilled(1024, np.float64)
    ones[:] = 1.0
    total = 0.0
    for first in range(0, values.shape[0], 1024):
        total += dot(values, first, ones, 0, min(1024, values.shape[0] - first))
    return total


@kernel
def row_products(X, Y, out):
    """Products of the rows of two arrays, ``sum(X * Y, axis=1)``. O(k * m).

    Parameters
    ----------
    X, Y : float64 (k, m), C-contiguous; squared norms where they are the same
    out : float64 (k,); written
    """
    width = X.shape[1]
    for c in range(X.shape[0]):
        out[c] = dot(X, c * width, Y, c * width, width)
