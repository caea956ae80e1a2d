"""Greedy k-means++: which of a few rows lowers the sum of squared distances most, step by step or all steps at once.

numba only; arrays in, arrays out; the caller validates. `scores` are squared distances to the tried rows less the
rows' own squared norms.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.centers.layout import lay_out
from streamkm.kernels.centers.nearest import scores_csr
from streamkm.kernels.cluster.ordering import drawn_row
from streamkm.kernels.cluster.rows import add_csr_rows
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.unfilled import unfilled


@kernel(fastmath=FUSED)
def best_trial(scores, n_trials, d2norms, weights, closest):
    """Position of the trial that leaves the least mass; the first of equal ones. O(n * n_trials).

    The readable form is ``argmin(weights @ minimum(closest[:, None], scores[:, :n_trials] + d2norms[:, None]))``.

    Parameters
    ----------
    scores : float32 or float64 (n, at least n_trials)
    n_trials : int
    d2norms : float64 (n,)
    weights : float64 (n,) or (0,)
        Empty: every row weighs 1.
    closest : float64 (n,)
        Squared distances to the centers so far.

    Returns
    -------
    int64
    """
    masses = unfilled(n_trials, np.float64)
    masses[:] = 0.0
    weighted = weights.shape[0] > 0
    for i in range(closest.shape[0]):
        weight = weights[i] if weighted else 1.0
        for t in range(n_trials):
            masses[t] += weight * min(closest[i], max(np.float64(scores[i, t]) + d2norms[i], 0.0))
    best = 0
    for t in range(1, n_trials):
        if masses[t] < masses[best]:
            best = t
    return best


@kernel(fastmath=FUSED)
def take_trial(scores, trial, row, d2norms, weights, closest, mass):
    """Bring the squared distances and their running weighted sum up to date with one more center. O(n).

    Parameters
    ----------
    scores : float32 or float64 (n, more than trial)
    trial, row : int
        Column of the new center, and the row that it is.
    d2norms : float64 (n,)
    weights : float64 (n,) or (0,)
    closest : float64 (n,)
        Lowered.
    mass : float64 (n,)
        Written: ``cumsum(weights * closest)``.
    """
    weighted = weights.shape[0] > 0
    total = 0.0
    for i in range(closest.shape[0]):
        d2 = max(np.float64(scores[i, trial]) + d2norms[i], 0.0)
        if d2 < closest[i]:
            closest[i] = d2
        if i == row:
            closest[i] = 0.0
        total += (weights[i] if weighted else 1.0) * closest[i]
        mass[i] = total


@kernel
def all_trials(indptr, indices, data, d2norms, weights, first, draws, negligible, table, bias, centers):
    """Choose CSR rows as centers, each the best of a few drawn ones. O(nnz * k * t).

    The steps are `scores_csr`, `best_trial`, `take_trial` and a look for each draw in the running sum.

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    d2norms : float64 (n,)
    weights : float64 (n,) or (0,)
    first : int
        The only row tried for the first center.
    draws : float64 (k, t)
        Shares of the mass, in [0, 1): where the rows are that are tried after each center.
    negligible : float64
        Mass at which to stop.
    table : same dtype as data (m * p,)
    bias : same dtype (p,)
        Both overwritten; p is t, padded.
    centers : float64 (k, m)
        Written.

    Returns
    -------
    int64
        Centers written.
    """
    n_rows, n_trials, padded = d2norms.shape[0], draws.shape[1], bias.shape[0]
    scores = unfilled((n_rows, padded), data.dtype)
    closest, mass = unfilled(n_rows, np.float64), unfilled(n_rows, np.float64)
    closest[:] = np.inf
    trials = unfilled(n_trials, np.int64)
    trials[:] = first
    candidates, shift, exact = (
        unfilled((n_trials, centers.shape[1]), np.float64),
        unfilled(centers.shape[1], np.float64),
        unfilled(n_trials, np.float64),
    )
    shift[:] = 0.0
    bias[:] = np.inf
    n_tried = np.int64(1)  # a literal would be a type of its own, and compiled once more
    for found in range(centers.shape[0]):
        candidates[:] = 0.0
        add_csr_rows(indptr, indices, data, trials, candidates)
        lay_out(candidates, shift, shift, 1.0, np.int64(0), table.reshape((centers.shape[1], padded)), exact)
        for t in range(n_trials):
            bias[t] = exact[t]
        scores_csr(indptr, indices, data, table, padded, bias, scores)
        best = best_trial(scores, n_tried, d2norms, weights, closest)
        for j in range(centers.shape[1]):
            centers[found, j] = candidates[best, j]
        take_trial(scores, best, trials[best], d2norms, weights, closest, mass)
        if mass[n_rows - 1] <= negligible:
            return found + 1
        n_tried = n_trials
        for t in range(n_trials):
            trials[t] = drawn_row(mass, draws[found, t])
    return centers.shape[0]
