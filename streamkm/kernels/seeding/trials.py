"""Greedy k-means++: which of a few rows lowers the sum of squared distances most; rows drawn by their share of it.

numba only; arrays in, arrays out; the caller validates. `scores` are squared distances to the tried rows less the
rows' own squared norms.
"""

from __future__ import annotations

import math

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.hashing import mix


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
def lowest_by_rate(seed, places, weights, d2, per_weight, per_d2, limit, most, picked, keys):
    """Find the rows whose exponential key is below a limit, in order.

    A row's rate is ``w (per_weight + per_d2 d2)``, its key ``-log(1 - u) / rate`` with u the hash of its place as a
    number in (0, 1): it is below t with probability ``1 - exp(-t rate)``.

    Parameters
    ----------
    seed : uint64
    places : int64 (n,)
    weights : float64 (n,) or (0,)
    d2 : float64 (n,)
        Not negative.
    per_weight, per_d2, limit : float64
    most : int
        Nothing more is found once there are more than so many.
    picked : int64 (at least most + 1,)
        Written: the rows.
    keys : float64 (at least most + 1,)
        Written: their keys.

    Returns
    -------
    int64
        How many; ``most + 1`` if there are more than `most`.
    """
    found = 0
    weighted = weights.shape[0] > 0
    for i in range(places.shape[0]):
        rate = per_weight + per_d2 * d2[i]
        if weighted:
            rate *= weights[i]
        u = (np.float64(mix(seed, np.uint64(places[i])) >> np.uint64(12)) + 0.5) / 2.0**52
        if u < limit * rate:  # the key is at least u / rate
            key = -math.log1p(-u) / rate
            if key < limit:
                picked[found], keys[found] = i, key
                found += 1
                if found > most:
                    break
    return found


@kernel
def draw_chances(weights, d2, per_weight, per_d2, limit, out):
    """Fill the probabilities that keys of `lowest_by_rate` are below a limit: ``1 - exp(-limit rate)``.

    The C library's function, as NumPy's own is another on processors with wider vectors.

    Parameters
    ----------
    weights, d2 : float64 (n,)
    per_weight, per_d2, limit : float64
    out : float64 (n,)
        Written.
    """
    for i in range(weights.shape[0]):
        out[i] = -math.expm1(-limit * (weights[i] * (per_weight + per_d2 * d2[i])))
