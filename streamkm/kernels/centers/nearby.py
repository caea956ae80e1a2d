"""Nearest centers among those near a row's last one; groups of centers and their candidate lists."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.kernels.centers.nearest import search_block
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.products import BLOCK_ROWS, load_block, panel_stop
from streamkm.kernels.intrinsics.reductions import dot, squared_distance

POWER_STEPS = 3
"""Steps of power iteration for a principal direction, on `DIRECTION_POINTS` points or more where a group has them."""
DIRECTION_POINTS = 256


@kernel
def lay_out_list(columns, few, n_padded, table):
    """Lay out some columns of a table of centers as a table of their own.

    Parameters
    ----------
    columns : float32 or float64 (k, m), C-contiguous
    few : int32 (l,)
    n_padded : int64; l, filled up to whole lines
    table : same dtype (m * n_padded,); written, in panels
    """
    n_features, first = columns.shape[1], 0
    while first < n_padded:
        stop = panel_stop(first, n_padded, table.itemsize)
        width, n_filled = stop - first, max(0, min(stop, few.shape[0]) - first)
        panel = table[first * n_features : stop * n_features].reshape((n_features, width))
        for j in range(n_features):
            for q in range(n_filled):
                panel[j, q] = columns[few[first + q], j]
            for q in range(n_filled, width):
                panel[j, q] = 0.0
        first = stop


@kernel
def nearest_among(X, order, starts, shift, scale, columns, bias, candidates, room, labels, scores, seconds):
    """Find the two nearest centers of every dense row among the candidates of its group. O(n * m * l + g * m * l).

    Parameters
    ----------
    X : float32 or float64 (n, m)
    order, starts : int64 (n,), (g + 1,); rows, group by group, and where each starts
    shift, scale : as of `nearest.nearest_dense`
    columns : float32 or float64 (k, m), C-contiguous; of the table of centers
    bias : same dtype (at least k,)
    candidates : int32 (g, l); centers that rows of each group are compared with, ascending
    room : tuple of arrays
        Dtype of the columns, written: rows (BLOCK_ROWS, m), a table (m * p,) of the candidates, padded to whole lines,
        their bias (p,), infinite where padded, and totals and a state, as of `nearest.search_room`.
    labels : int32 (n,)
    scores, seconds : dtype of the columns (n,); written
    """
    block, table, few_bias, totals, state = room
    n_features, wanted, n_padded = X.shape[1], candidates.shape[1], few_bias.shape[0]
    found = unfilled(BLOCK_ROWS, np.int32)
    score, other = unfilled(BLOCK_ROWS, columns.dtype), unfilled(BLOCK_ROWS, columns.dtype)
    for g in range(starts.shape[0] - 1):
        if starts[g] == starts[g + 1]:
            continue
        few = candidates[g]
        lay_out_list(columns, few, n_padded, table)
        for q in range(wanted):
            few_bias[q] = bias[few[q]]
        for first in range(starts[g], starts[g + 1], BLOCK_ROWS):
            n_rows = min(BLOCK_ROWS, starts[g + 1] - first)
            for i in range(n_rows):
                load_block(X, order[first + i], 1, 0, n_features, shift, scale, block[i : i + 1])
            search_block(block, 0, n_rows, table, few_bias, wanted, totals, state, 0, found, score, other)
            for i in range(n_rows):
                row = order[first + i]
                labels[row], scores[row], seconds[row] = few[found[i]], score[i], other[i]


def balanced_groups(
    points: NDArray[np.float64], n_groups: int, order: NDArray[np.int64], starts: NDArray[np.int64]
) -> None:
    """Cut points into groups of equal size, near each other. O(k * m * log(g)).

    Each part is halved across its principal direction, found by a few power iterations on the offset of the point
    farthest from the mean.

    Parameters
    ----------
    points : float64 (k, m), C-contiguous
    n_groups : int64; at most k
    order : int64 (k,); written: points, group by group
    starts : int64 (n_groups + 1,); written: where each starts
    """
    order[:] = np.arange(len(points))
    starts[0], starts[n_groups] = 0, len(points)
    waiting = [(0, n_groups)]  # the first group, and the one after the last
    while waiting:
        group, end = waiting.pop()
        if end - group < 2:
            continue
        part = order[starts[group] : starts[end]]
        along = np.empty(len(part))
        project(points, part, along)
        part[:] = part[along.argsort(kind="stable")]
        middle = (group + end) // 2
        starts[middle] = starts[group] + len(part) * (middle - group) // (end - group)
        waiting += [(group, middle), (middle, end)]


@kernel
def project(points, part, along):
    """Find the places of some points along their principal direction, about. O(k * m).

    Parameters
    ----------
    points : as of `balanced_groups`
    part : int64 (p,); the points
    along : float64 (p,); written
    """
    n_features, n_points = points.shape[1], part.shape[0]
    mean = unfilled(n_features, np.float64)
    direction, ahead = unfilled(n_features, np.float64), unfilled(n_features, np.float64)
    for j in range(n_features):
        mean[j] = 0.0
    for q in range(n_points):
        for j in range(n_features):
            mean[j] += points[part[q], j]
    for j in range(n_features):
        mean[j] /= n_points
    farthest, highest = part[0], -1.0
    for q in range(n_points):
        d2 = squared_distance(points, part[q] * n_features, mean, 0, n_features)
        if d2 > highest:
            farthest, highest = part[q], d2
    for j in range(n_features):
        direction[j] = points[farthest, j] - mean[j]
    for _ in range(POWER_STEPS):
        for j in range(n_features):
            ahead[j] = 0.0
        for q in range(0, n_points, 1 + n_points // DIRECTION_POINTS):
            offset = dot(points, part[q] * n_features, direction, 0, n_features)
            offset -= dot(mean, 0, direction, 0, n_features)
            for j in range(n_features):
                ahead[j] += offset * (points[part[q], j] - mean[j])
        length = np.sqrt(dot(ahead, 0, ahead, 0, n_features))
        if not length > 0.0:
            break
        for j in range(n_features):
            direction[j] = ahead[j] / length
    for q in range(n_points):
        along[q] = dot(points, part[q] * n_features, direction, 0, n_features)


@kernel
def lowest_set(scores, limits, n_columns, out):
    """Find the columns of each row's lowest scores, ascending; the last tie goes to the first column.

    Parameters
    ----------
    scores : float32 or float64 (n, at least n_columns)
    limits : float32 or float64 (n,); the highest score of those that are wanted
    n_columns : int64
    out : int32 (n, l); written; l is at most n_columns
    """
    wanted = out.shape[1]
    for i in range(scores.shape[0]):
        limit, ties = limits[i], wanted
        for c in range(n_columns):
            ties -= scores[i, c] < limit
        found = 0
        for c in range(n_columns):
            is_tie = scores[i, c] == limit and ties > 0
            if scores[i, c] < limit or is_tie:
                out[i, found] = c
                found += 1
                ties -= is_tie
