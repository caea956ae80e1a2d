"""Drawing rows with unequal probabilities so that the sum of the weights and the number of rows stay what they are.

numba only; arrays in, arrays out; the caller validates and orders the rows.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel

_EQUAL = 1e-9  # inverse tops that differ by less, relatively, are the same


@kernel
def settle(weights, tops, units, moves, n_units, draw):
    """Move weight between two or three rows until one of them weighs nothing or its top.

    With a the weights and t the tops, ``a + step * u`` keeps ``sum(a)``, and with three rows ``sum(a / t)`` too. Of the
    two steps that end at a bound, each is taken with the probability that keeps every weight's expectation.

    Parameters
    ----------
    weights : float64 (n,)
        Changed.
    tops : float64 (n,)
    units : int64 (3,)
        The rows; changed: those that are still between their bounds come first.
    moves : float64 (3,)
        Overwritten.
    n_units : int
        2 or 3.
    draw : float
        Uniform in (0, 1).

    Returns
    -------
    int
        How many rows are still between their bounds; fewer than before.
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
    """Take most rows to weight 0, the others to their tops, but for at most one row; neighbours stand for each other.

    Every weight keeps its expectation; the sum of all weights stays the same; the number of rows left is
    ``sum(weights / tops)`` to within 2. Rows next to each other exchange weight, so whatever neighbours have in common
    is hardly changed in sum. O(n).

    Parameters
    ----------
    weights : float64 (n,)
        Changed. Rows at 0 or at their tops are left alone.
    tops : float64 (n,)
        Not below the weights.
    draws : float64 (n,)
        Uniform in (0, 1): one draw a row.

    References
    ----------
    Deville and Tillé, "Efficient balanced sampling: the cube method", Biometrika 91 (2004), with the constraints
    "number of rows" and "sum of weights" and a window of neighbours as in Grafström and Tillé, "Doubly balanced spatial
    sampling with spreading and restitution of auxiliary totals", Environmetrics 24 (2013).
    """
    units = np.empty(3, np.int64)
    moves = np.empty(3, np.float64)
    n_units = 0
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
