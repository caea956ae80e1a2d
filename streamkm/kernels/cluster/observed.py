"""Distances and sums of rows with missing values. numba only; arrays in, arrays out; the caller validates.

NaN is a missing value. Each row takes part with the features that it has.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel


@kernel
def observed_d2(X, centers_t, out):
    """Squared distances of rows to all centers among the features that a row has, in float64. O(n * d * k).

    ``out[i, c] = sum over observed j of (X[i, j] - centers_t[j, c])^2``, feature after feature: no sum is reordered.

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    centers_t : float64 (d, k), C-contiguous
    out : float64 (n, k), C-contiguous
        Written.
    """
    n_features, n_clusters = centers_t.shape
    for i in range(X.shape[0]):
        d2 = out[i]
        d2[:] = 0.0
        for j in range(n_features):
            value = np.float64(X[i, j])
            if not np.isnan(value):
                center = centers_t[j]
                for c in range(n_clusters):
                    difference = value - center[c]
                    d2[c] += difference * difference


@kernel
def add_observed(X, labels, weights, sums, totals):
    """Add rows to the sums of their clusters, feature by feature, and their weights to those of the features. O(n * d).

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    labels : int32 (n,)
    weights : float64 (n,) or (0,)
        (0,): each row weighs 1.
    sums, totals : float64 (k, d)
        Changed.
    """
    weighted = weights.shape[0] > 0
    for i in range(X.shape[0]):
        weight = weights[i] if weighted else 1.0
        row_sums, row_totals = sums[labels[i]], totals[labels[i]]
        for j in range(X.shape[1]):
            value = np.float64(X[i, j])
            if not np.isnan(value):
                row_sums[j] += weight * value
                row_totals[j] += weight
