"""Means and squared deviations of features.

A feature's state is its number of values, their mean, and the sum of squared deviations; exactly 0 if all are equal.

References
----------
Chan, Golub, LeVeque, "Algorithms for computing the sample variance", The American Statistician 37 (1983), eq. 2.1.
Welford, "Note on a method for calculating corrected sums of squares and products", Technometrics 4 (1962).
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled

BLOCK_ROWS = 128  # that are summed up around the first of them: what cancels is at most so many units of the last place


@kernel
def join(counts, means, squares, more, more_means, more_squares):
    """Add the states of further values to those of the first. O(d).

    Parameters
    ----------
    counts, means, squares : float64 (d,); changed
    more, more_means, more_squares : float64 (d,)
    """
    for j in range(counts.shape[0]):
        if more[j] > 0:
            total = counts[j] + more[j]
            share = more[j] / total
            apart = more_means[j] - means[j]
            squares[j] += more_squares[j] + apart * apart * counts[j] * share
            means[j] += apart * share
            counts[j] = total


@kernel
def add_dense(X, counts, means, squares):
    """Add dense rows to the states of their features; NaN is left out. O(n * d).

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    counts, means, squares : float64 (d,); changed
    """
    n_rows, n_features = X.shape
    around, n_block = unfilled(n_features, np.float64), unfilled(n_features, np.float64)
    sums, sums_of_squares = unfilled(n_features, np.float64), unfilled(n_features, np.float64)
    for start in range(0, n_rows, BLOCK_ROWS):
        for j in range(n_features):
            sums[j], sums_of_squares[j], n_block[j] = 0.0, 0.0, 0.0
        for i in range(start, min(start + BLOCK_ROWS, n_rows)):
            row = X[i]
            for j in range(n_features):  # without branches, so that it runs in vectors
                known = not np.isnan(row[j])
                around[j] = row[j] if known and n_block[j] == 0 else around[j]
                apart = np.float64(row[j]) - around[j] if known else 0.0
                sums[j] += apart
                sums_of_squares[j] += apart * apart
                n_block[j] += 1.0 if known else 0.0
        for j in range(n_features):
            if n_block[j] > 0:
                mean = sums[j] / n_block[j]
                sums_of_squares[j] = max(0.0, sums_of_squares[j] - sums[j] * mean)
                sums[j] = around[j] + mean
        join(counts, means, squares, n_block, sums, sums_of_squares)


@kernel
def add_entries(indices, data, counts, means, squares):
    """Add the stored entries of CSR rows to the states of their features, one by one. O(nnz).

    Parameters
    ----------
    indices : int32 or int64 (nnz,); below d
    data : float32 or float64 (nnz,)
    counts, means, squares : float64 (d,); changed
    """
    for t in range(data.shape[0]):
        j = indices[t]
        counts[j] += 1.0
        apart = data[t] - means[j]
        means[j] += apart / counts[j]
        squares[j] += apart * (data[t] - means[j])
