"""Greedy k-means++: which of a few rows lowers the sum of squared distances most.

numba only; arrays in, arrays out; the caller validates. `scores` are squared distances to the tried rows less the
rows' own squared norms.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
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
