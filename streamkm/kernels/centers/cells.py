"""Nearest centers among cells of centers that lie near each other: those too far from a row are not looked at.

A row w is at least ``|w - m| - r`` from every center of a cell of mean m and radius r. That is of use where there are
few features; of many, all distances are about the same, and `pruned` serves. numba only; arrays in, arrays out; the
caller validates.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.products import multiply_panel
from streamkm.kernels.intrinsics.reductions import dot

CELL = 48
"""Centers of a cell at most: a panel of `products`."""
WORTH = 0.25
"""Share of the cells from which on a row is left to a look at all centers."""


@kernel
def nearest_in_cells(X, origin, cells, slopes, slack, likely, room, both, labels, scores, seconds, doubtful, left):
    """Find the nearest center of every dense row, or the two nearest, with the bits of `nearest.nearest_dense`.

    O(n * (g * m + s * CELL * m)) with g cells, and s that are not excluded.

    Parameters
    ----------
    X : float32 (n, m), C-contiguous
        Rows as they are multiplied: moved and scaled.
    origin : float64 (m,)
        Scores are squared distances, less those from here.
    cells : tuple of arrays
        Means, less the origin (m, g), and radii (g,), rounded up by more than a share (m + 16) * 2^-22, float32; the
        table, a panel of CELL columns for each cell, and their bias (g * CELL,), infinite where padded; columns of the
        table of all centers, int32 (g * CELL,); cells of these columns, int32 (k,).
    slopes, slack
        As of `pruned.nearest_pruned`.
    likely : int32 (n,) or (0,)
        Columns that are likely the nearest ones; none: the cell of the nearest mean is looked at first.
    room : (float32 (BLOCK_ROWS, m), float32 (BLOCK_ROWS, at least CELL))
        Written: a row, and products.
    both : bool
        Whether second scores are wanted.
    labels, scores, seconds, doubtful, left
        As of `pruned.nearest_pruned`; written.
    """
    means, radii, table, bias, columns, cell_of = cells
    block, totals = room
    n_features, n_cells = means.shape
    away = np.empty(n_cells, np.float32)
    dear = max(1.0, WORTH * n_cells)
    # roundings of a row, of differences, squares, sums and roots, as a share of lengths
    wrong = (n_features + 16.0) * 2.0**-23
    for row in range(X.shape[0]):
        norm = np.sqrt(dot(X, row * n_features, X, row * n_features, n_features))
        reach = 2.0 * (slopes[1] * norm + slack)
        if slopes[0] >= 0.0:
            reach += 2.0 * (slopes[0] * norm + slack)
        left[row] = not np.isfinite(reach)
        if left[row]:
            continue
        away[:] = 0.0
        length = 0.0
        for j in range(n_features):
            block[0, j] = X[row, j]
            offset = X[row, j] - origin[j]
            length += offset * offset
            near = np.float32(offset)
            for p in range(n_cells):
                difference = near - means[j, p]
                away[p] += difference * difference
        nearest = np.int64(cell_of[likely[row]]) if likely.shape[0] else np.argmin(away)
        state = (np.int32(0), np.float32(np.inf), np.float32(np.inf))
        state = _in_cell(block, table, bias, columns, totals, nearest, n_features, state)
        n_seen, limit = 1, _distance(state[2] if both else state[1], reach + slack, length, wrong)
        for p in range(n_cells):
            if away[p] > (limit + radii[p]) * (limit + radii[p]) or p == nearest:
                continue
            n_seen += 1
            if n_seen > dear:
                left[row] = True
                break
            state = _in_cell(block, table, bias, columns, totals, p, n_features, state)
            limit = _distance(state[2] if both else state[1], reach + slack, length, wrong)
        if left[row]:
            continue
        labels[row], scores[row], seconds[row], doubtful[row] = state[0], state[1], state[2], False
        if slopes[0] >= 0.0:
            doubtful[row] = not np.float64(state[2]) - state[1] > 2.0 * (slopes[0] * norm + slack)


@nb.njit(inline="always")
def _distance(score, reach, length, wrong):
    """A distance from a row that centers with a score, or one within reach of it, are not beyond, rounded up."""
    return np.float32((np.sqrt(max(score + reach + length, 0.0)) + wrong * np.sqrt(length)) * (1.0 + 2.0 * wrong))


@nb.njit(inline="always")
def _in_cell(block, table, bias, columns, totals, cell, n_features, state):
    """The column of the lowest score, this and the second lowest one, with those of a cell; of equal ones the first."""
    label, score, second = state
    multiply_panel(block, 0, 1, n_features, table, cell * CELL * n_features, CELL, CELL, True, totals, 0, 0)
    for q in range(CELL):
        other = totals[0, q] + bias[cell * CELL + q]
        if other < second or other == score:
            c = columns[cell * CELL + q]
            if other < score or (other == score and c < label):
                label, score, second = c, other, score
            elif other < second:
                second = other
    return label, score, second
