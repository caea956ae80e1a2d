"""Greedy k-means++ on dense rows, all steps at once: a step on some thousands of rows takes less time than a call.

numba only; arrays in, arrays out; the caller validates.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.centers.layout import lay_out
from streamkm.kernels.cluster.ordering import drawn_row
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.products import BLOCK_ROWS, multiply_ready
from streamkm.kernels.intrinsics.unfilled import unfilled
from streamkm.kernels.seeding.trials import best_trial, take_trial


@kernel
def all_dense_trials(X, d2norms, weights, first, draws, negligible, table, centers):
    """Choose dense rows as centers, each the best of a few drawn ones. O(n * m * k * t).

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
        Around the origin.
    d2norms : float64 (n,)
    weights : float64 (n,) or (0,)
    first : int
        The only row tried for the first center.
    draws : float64 (k, t)
        Shares of the mass, in [0, 1): where the rows are that are tried after each center; t at most p.
    negligible : float64
        Mass at which to stop.
    table : dtype of X (m * p,)
        Overwritten; p columns, whole lines of them.
    centers : float64 (k, m)
        Written.

    Returns
    -------
    int64
        Centers written.
    """
    n_rows, n_features, n_trials, padded = X.shape[0], X.shape[1], draws.shape[1], table.shape[0] // X.shape[1]
    block, totals = unfilled((BLOCK_ROWS, n_features), X.dtype), unfilled((1, BLOCK_ROWS, padded), X.dtype)
    scores, unmoved, adds = unfilled((n_rows, padded), X.dtype), unfilled(0, np.float64), n_rows < 0
    closest, mass = unfilled(n_rows, np.float64), unfilled(n_rows, np.float64)
    closest[:] = np.inf
    trials = unfilled(n_trials, np.int64)
    trials[:] = first
    candidates, shift, exact = (
        unfilled((n_trials, n_features), np.float64),
        unfilled(n_features, np.float64),
        unfilled(n_trials, np.float64),
    )
    shift[:] = 0.0
    n_tried = np.int64(1)
    for found in range(centers.shape[0]):
        for t in range(n_trials):
            for j in range(n_features):  # as a whole row, it would compile an error of shapes
                candidates[t, j] = X[trials[t], j]
        lay_out(candidates, shift, shift, 1.0, np.int64(0), table.reshape((n_features, padded)), exact)
        multiply_ready(X, unmoved, table, n_trials, adds, block, totals, scores)
        for i in range(n_rows):
            for t in range(n_tried):
                scores[i, t] += exact[t]
        best = best_trial(scores, n_tried, d2norms, weights, closest)
        for j in range(n_features):
            centers[found, j] = candidates[best, j]
        take_trial(scores, best, trials[best], d2norms, weights, closest, mass)
        if mass[n_rows - 1] <= negligible:
            return found + 1
        n_tried = n_trials
        for t in range(n_trials):
            trials[t] = drawn_row(mass, draws[found, t])
    return centers.shape[0]
