"""What remains certain of gaps to other centers when centers move. numba only; arrays in, arrays out."""

from __future__ import annotations

import math

import numpy as np

from streamkm.kernels.cluster.gaps import bin_of
from streamkm.kernels.compiling import inner_kernel, kernel
from streamkm.kernels.intrinsics.reductions import squared_distance
from streamkm.kernels.intrinsics.unfilled import unfilled


@kernel
def move_cells(cells, before, after, came_from, origins, unit, grid, moved, rounding):
    """Move centers: what remains certain of the rows of each cell. O(k * k2 * (d + r * g)).

    The gap of a row ``x = a + y`` of center a to another center b was ``|b - a|^2 - 2 y.(b - a)``. When the centers
    have gone to a' and b', it is ``|b' - a|^2 - |a' - a|^2 - 2 y.(b' - a')``. The least value of the second bounds it
    from below: y lies in a ball, as the distance to a is known, and in a halfspace, as the first is at least the gap.

    Parameters
    ----------
    cells : three of float64 (k, r, g), C-contiguous
        Weights, largest squared distances and least gaps.
    before : float64 (k, d), C-contiguous
    after : float64 (k2, d), C-contiguous
    came_from : int64 (k,)
        Position in `after` of each center; -1 where it is gone.
    origins : int64 (k2,)
        Position in `before` of each center of `after`; -1 where it is new.
    unit : float64 (k2,)
    grid : int64 (2, 2)
        As of `gaps.add_gaps`.
    moved : three of float64 (k2, r, g), C-contiguous
        Changed: rows that are certain to keep their center are added.
    rounding : float64
        Relative error of squared distances and cosines, at most.

    Returns
    -------
    float64
        Weight of the rows whose nearest center may be another one.
    """
    weights, farthest, least_gaps = cells
    n_features, n_cells = after.shape[1], weights.shape[1] * weights.shape[2]
    changed = 0.0
    held, reach = unfilled(n_cells, np.int64), unfilled(n_cells, np.float64)
    gaps, bounds = unfilled(n_cells, np.float64), unfilled(n_cells, np.float64)
    for c in range(weights.shape[0]):
        own_weights, own_farthest, own_gaps = weights[c].reshape(-1), farthest[c].reshape(-1), least_gaps[c].reshape(-1)
        n_held, longest, here = 0, 0.0, came_from[c]
        for cell in range(n_cells):
            if own_weights[cell] > 0.0:
                held[n_held], gaps[n_held], bounds[n_held] = cell, own_gaps[cell], np.inf
                reach[n_held] = math.sqrt(own_farthest[cell])
                longest = max(longest, reach[n_held])
                n_held += 1
        if here < 0:
            for i in range(n_held):
                changed += own_weights[held[i]]
            continue
        own_d2 = squared_distance(before, c * n_features, after, here * n_features, n_features)
        largest = np.inf  # of the bounds
        for other in range(after.shape[0] if n_held else 0):
            if other == here:
                continue
            origin = origins[other]
            fixed = squared_distance(before, c * n_features, after, other * n_features, n_features) - own_d2
            apart = math.sqrt(squared_distance(after, here * n_features, after, other * n_features, n_features))
            error = rounding * (fixed + 2.0 * own_d2 + 2.0 * apart * longest)
            if fixed - 2.0 * apart * longest - error >= largest:  # farther than what bounds the gaps already
                continue
            was_apart, cosine, still = 0.0, 1.0, False
            if origin >= 0:
                was_apart = math.sqrt(squared_distance(before, c * n_features, before, origin * n_features, n_features))
                cosine = cosine_between(before[c], before[origin], after[here], after[other], was_apart * apart)
                still = own_d2 == 0.0 and same_rows(before[origin], after[other])
                error += 2.0 * rounding * apart * was_apart
            largest = -np.inf
            for i in range(n_held):
                if still:
                    bound = gaps[i]
                else:
                    limit = 0.5 * (was_apart - gaps[i] / was_apart) if was_apart > 0.0 else np.inf
                    bound = fixed - 2.0 * apart * farthest_along(reach[i], limit, cosine, rounding) - error
                    bound = bound if bound > 0.0 else -1.0  # equally near centers may change, too
                bounds[i] = min(bounds[i], bound)
                largest = max(largest, bounds[i])
        drift = math.sqrt(own_d2)
        for i in range(n_held):
            if bounds[i] < 0.0:
                changed += own_weights[held[i]]
            else:
                d2 = own_farthest[held[i]]
                if drift > 0.0:
                    d2 = (reach[i] + drift) ** 2 * (1.0 + rounding)
                put(own_weights[held[i]], d2, bounds[i], here, unit, grid, moved)
    return changed


@inner_kernel
def farthest_along(radius, limit, cosine, rounding):
    """The largest product ``y.v`` with a unit vector v, for ``|y| <= radius`` and ``y.u <= limit``. O(1).

    Parameters
    ----------
    radius, limit : float64
    cosine : float64
        Of the angle between v and the unit vector u.
    rounding : float64
        Error of the squared sine, at most.
    """
    if radius * cosine <= limit:
        return radius
    sine = math.sqrt(max(1.0 - cosine * cosine, 0.0) + rounding)
    return min(limit * cosine + math.sqrt(max(radius * radius - limit * limit, 0.0)) * sine, radius)


@inner_kernel
def cosine_between(first, second, third, fourth, lengths):
    """Cosine of the angle between ``second - first`` and ``fourth - third``; 1 where one of them is 0. O(d).

    Parameters
    ----------
    first, second, third, fourth : float64 (d,)
    lengths : float64
        Product of the lengths of both differences.
    """
    if not lengths > 0.0:
        return 1.0
    product = 0.0
    for j in range(first.shape[0]):
        product += (second[j] - first[j]) * (fourth[j] - third[j])
    return min(max(product / lengths, -1.0), 1.0)


@inner_kernel
def same_rows(first, second):
    """Whether two rows have the same numbers. O(d)."""
    for j in range(first.shape[0]):
        if first[j] != second[j]:
            return False
    return True


@inner_kernel
def put(weight, d2, gap, cluster, unit, grid, cells):
    """Add rows of a weight, with at most this squared distance and at least this gap, to their cell. O(1).

    Parameters
    ----------
    weight, d2, gap : float64
    cluster : int64
    unit : float64 (k,)
    grid : int64 (2, 2)
    cells : three of float64 (k, r, g)
        Changed.
    """
    weights, farthest, least_gaps = cells
    numbers = unfilled(2, np.float64)
    numbers[0], numbers[1] = d2 * unit[cluster], gap * unit[cluster]
    bits = numbers.view(np.int64)
    row = bin_of(bits[0], grid[0, 0], grid[0, 1], weights.shape[1])
    column = bin_of(bits[1], grid[1, 0], grid[1, 1], weights.shape[2])
    weights[cluster, row, column] += weight
    farthest[cluster, row, column] = max(farthest[cluster, row, column], d2)
    least_gaps[cluster, row, column] = min(least_gaps[cluster, row, column], gap)
