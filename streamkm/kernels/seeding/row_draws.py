"""Draws of rows: trials of k-means++, draws by share of the objective, and draws that preserve sums.

`scores` are squared distances to the tried rows less the rows' own squared norms.
"""

from __future__ import annotations

import math

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.hashing import mix

_EQUAL = 1e-9  # inverse tops that differ by less, relatively, are the same


@kernel(fastmath=FUSED)
def best_trial(scores, n_trials, d2norms, weights, closest):
    """Position of the trial that leaves the least mass; the first of equal ones. O(n * n_trials).

    The readable form is ``argmin(weights @ minimum(closest[:, None], scores[:, :n_trials] + d2norms[:, None]))``.

    Parameters
    ----------
    scores : float32 or float64 (n, at least n_trials)
    n_trials : int
    d2norms : float64 (n,)
    weights : float64 (n,) or (0,); empty: every row weighs 1
    closest : float64 (n,); squared distances to the centers so far

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
    best = 0  # NumPy's argmin would load what only compiling needs
    for t in range(1, n_trials):
        best = t if masses[t] < masses[best] else best
    return best


@kernel(fastmath=FUSED)
def take_trial(scores, trial, row, d2norms, weights, closest, mass):
    """Update the squared distances and their running weighted sum for one more center. O(n).

    Parameters
    ----------
    scores : float32 or float64 (n, more than trial)
    trial, row : int; column of the new center, and the row that it is
    d2norms, weights : float64 (n,), (n,) or (0,)
    closest : float64 (n,); lowered
    mass : float64 (n,); written: ``cumsum(weights * closest)``
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
def lowest_by_rate(seed, row_ids, weights, d2, per_weight, per_d2, limit, most, picked, keys):
    """Find the rows whose exponential key is below a limit, in order.

    A row's rate is ``w (per_weight + per_d2 d2)``, its key ``-log(1 - u) / rate`` with u the hash of its place as a
    number in (0, 1): it is below t with probability ``1 - exp(-t rate)``.

    Parameters
    ----------
    seed : uint64
    row_ids : int64 (n,)
    weights : float64 (n,) or (0,)
    d2 : float64 (n,); not negative
    per_weight, per_d2, limit : float64
    most : int; the search ends once it has found more rows
    picked : int64 (at least most + 1,); written: the rows
    keys : float64 (at least most + 1,); written: their keys

    Returns
    -------
    int64; number of rows found; ``most + 1`` if there are more than `most`
    """
    found = 0
    weighted = weights.shape[0] > 0
    for i in range(row_ids.shape[0]):
        rate = per_weight + per_d2 * d2[i]
        if weighted:
            rate *= weights[i]
        u = (np.float64(mix(seed, np.uint64(row_ids[i])) >> np.uint64(12)) + 0.5) / 2.0**52
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

    By the C library's function: NumPy's own differs on processors with wider vectors.

    Parameters
    ----------
    weights, d2 : float64 (n,)
    per_weight, per_d2, limit : float64
    out : float64 (n,); written
    """
    for i in range(weights.shape[0]):
        out[i] = -math.expm1(-limit * (weights[i] * (per_weight + per_d2 * d2[i])))


@kernel
def settle(weights, tops, units, moves, n_units, draw):
    """Move weight between two or three rows until one of them weighs nothing or its top.

    With a the weights and t the tops, ``a + step * u`` keeps ``sum(a)``, and with three rows ``sum(a / t)`` too. Of the
    two steps that end at a bound, each is taken with the probability that keeps every weight's expectation.

    Parameters
    ----------
    weights : float64 (n,); changed
    tops : float64 (n,)
    units : int64 (3,); the rows; changed: those that are still between their bounds come first
    moves : float64 (3,); overwritten
    n_units : int; 2 or 3
    draw : float; uniform in (0, 1)

    Returns
    -------
    int; number of rows still between their bounds; fewer than before
    """
    moves[0], moves[1], moves[2] = 1.0, -1.0, 0.0
    if n_units == 3:
        g0, g1, g2 = 1.0 / tops[units[0]], 1.0 / tops[units[1]], 1.0 / tops[units[2]]
        size = max(abs(g2 - g1), abs(g0 - g2), abs(g1 - g0))
        if size > _EQUAL * max(g0, g1, g2):
            moves[0], moves[1], moves[2] = (g2 - g1) / size, (g0 - g2) / size, (g1 - g0) / size
    up, down = np.inf, np.inf  # steps to the first bound, forward and backward
    for q in range(n_units):
        i = units[q]
        room = tops[i] - weights[i]
        if moves[q] > 0.0:
            up = min(up, room / moves[q])
            down = min(down, weights[i] / moves[q])
        elif moves[q] < 0.0:
            up = min(up, -weights[i] / moves[q])
            down = min(down, -room / moves[q])
    step = up if draw * (up + down) < down else -down
    left = 0
    for q in range(n_units):
        i = units[q]
        bound = 0.0
        if moves[q] * step > 0.0:
            bound = tops[i] - weights[i]
        elif moves[q] * step < 0.0:
            bound = weights[i]
        moved = abs(moves[q] * step)
        if moved > 0.0 and moved >= bound * (1.0 - 1e-12):
            weights[i] = tops[i] if moves[q] * step > 0.0 else 0.0
        else:
            weights[i] += moves[q] * step
            units[left] = i
            left += 1
    return left


@kernel
def balance(weights, tops, draws):
    """Move all weights but at most one to 0 or to their tops, by exchanges between neighbours. O(n).

    Every weight keeps its expectation and the sum stays the same; ``sum(weights / tops)`` rows are left, to within 2.
    Exchanges between neighbours hardly change sums of what these have in common.

    Parameters
    ----------
    weights : float64 (n,); changed. Rows at 0 or at their tops are left alone.
    tops : float64 (n,); not below the weights
    draws : float64 (n,); uniform in (0, 1): one draw a row

    References
    ----------
    Deville and Tillé, "Efficient balanced sampling: the cube method", Biometrika 91 (2004), with the constraints
    "number of rows" and "sum of weights" and a window of neighbours as in Grafström and Tillé, "Doubly balanced spatial
    sampling with spreading and restitution of auxiliary totals", Environmetrics 24 (2013).
    """
    units = unfilled(3, np.int64)
    moves = unfilled(3, np.float64)
    n_units = np.int64(0)  # no literal, for which `settle` would be compiled once more
    spare = 0.5
    for i in range(weights.shape[0]):
        if weights[i] <= 0.0 or weights[i] >= tops[i]:
            continue
        units[n_units] = i
        n_units += 1
        if n_units == 1:
            spare = draws[i]
        if n_units == 3:
            n_units = settle(weights, tops, units, moves, n_units, draws[i])
    if n_units == 2:
        settle(weights, tops, units, moves, n_units, spare)
