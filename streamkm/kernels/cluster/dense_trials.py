"""Greedy k-means++ on dense rows, all steps at once: for many seedings of few rows each.

numba only; arrays in, arrays out; the caller validates.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.cluster.layout import lay_out
from streamkm.kernels.cluster.ordering import drawn_row
from streamkm.kernels.cluster.trials import best_trial, take_trial
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.products import BLOCK_ROWS, multiply_panel
from streamkm.kernels.intrinsics.unfilled import unfilled


@kernel
def all_dense_trials(X, rows, d2norms, weights, first, draws, negligible, room, centers):
    """Choose dense rows as centers, each the best of a few drawn ones. O(n * m * k * t).

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
        Around the origin.
    rows : int64 (r,)
        Those that are looked at.
    d2norms : float64 (r,)
    weights : float64 (r,) or (0,)
    first : int
        The only row of `rows` tried for the first center.
    draws : float64 (k, t)
        Shares of the mass, in [0, 1): where the rows are that are tried after each center; t at most p.
    negligible : float64
        Mass at which to stop.
    room : tuple of arrays
        Dtype of X, written: the rows (r, filled up to blocks of BLOCK_ROWS; m), a table (m * p,) of p columns:
        whole lines of them.
    centers : float64 (k, m)
        Written.

    Returns
    -------
    int64
        Centers written.
    """
    held, table = room
    n_rows, n_features, n_trials, padded = rows.shape[0], X.shape[1], draws.shape[1], table.shape[0] // X.shape[1]
    scores = unfilled((held.shape[0], padded), X.dtype)
    closest, mass = unfilled(n_rows, np.float64), unfilled(n_rows, np.float64)
    closest[:] = np.inf
    held[n_rows:] = 0.0
    for i in range(n_rows):
        held[i] = X[rows[i]]
    trials = unfilled(n_trials, np.int64)
    trials[:] = first
    candidates, shift, exact = (
        unfilled((n_trials, n_features), np.float64),
        np.zeros(n_features),
        unfilled(n_trials, np.float64),
    )
    n_tried = np.int64(1)
    for found in range(centers.shape[0]):
        for t in range(n_trials):
            candidates[t] = held[trials[t]]
        lay_out(candidates, shift, shift, 1.0, np.int64(0), table.reshape((n_features, padded)), exact)
        for start in range(0, n_rows, BLOCK_ROWS):
            multiply_panel(
                held, start, min(BLOCK_ROWS, n_rows - start), n_features, table, 0, padded, n_trials, True, scores,
                start, 0,
            )  # fmt: skip
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
