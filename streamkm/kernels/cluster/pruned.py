"""Nearest centers without a look at most of them: what certain bounds exclude is never multiplied.

Rows z and table columns y are brought to their first principal coordinates z' and y' and the lengths of what is left,
so that ``z @ y >= z' @ y' - |z''| |y''|``: a product of a few numbers says that a column's score is too high. Lengths
are rounded up by more than all that float32 may have lost (see `reduce_rows`), so nothing is excluded that has the
lowest score, or one within the doubt beside it. What is left is compared by products in float64, and the few that come
close are scored as `nearest.nearest_dense` does, to the bit. numba only; arrays in, arrays out; the caller validates.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.prefetching import prefetch
from streamkm.kernels.intrinsics.products import BLOCK_ROWS
from streamkm.kernels.intrinsics.reductions import dot
from streamkm.kernels.intrinsics.sieve import PANEL_COLUMNS, chained_product, count_bits, lowest_bit, mark_columns

NARROW = 16
"""Coordinates that all columns are excluded by, the last of them a length: a line of float32."""
WIDE = 32
"""Those that the others are excluded by, one after the other; and so many more, by which the rest of them are."""
COORDINATES = 2 * (WIDE - 1)
"""Of a row, beside lengths: half of them and a length, then the others and a length that stands for less."""
SEGMENT = 64
"""Panels that rows are compared with before the limit of each is lowered: their marks fill whole words."""
CLOSE = 16
"""Columns that may come close to the lowest score of a row: if there are more, all are scored."""
WIDE_COST, FULL_COST = 16.0, 0.35
"""Of a comparison by `WIDE` coordinates, and of each feature of a product in float64, where one of
`nearest.nearest_dense` costs 1/32: cycles, about."""
WORTH = 0.7
"""Share of what a look at all columns costs from which on a row is left to that."""
UP = 1.0 + 2.0**-22
"""Rounds a number up to float32, and more."""


@kernel
def reduce_rows(X, coordinates, lost, sign, narrow, wide, wider, norms):
    """Fill the first coordinates of rows and the lengths beside them: ``sign * sqrt(|x|^2 - |x'|^2 + lost * |x|^2)``.

    Parameters
    ----------
    X : float32 (n, m), C-contiguous
    coordinates : float32 (n, at least COORDINATES), C-contiguous
        Of the rows, in principal directions.
    lost : float64
        Bounds, as a share of ``|z| |y|``, what products of the coordinates and of the lengths may be wrong by: added to
        both squared lengths, it is added to their product (Cauchy and Schwarz).
    sign : float64
        1 for rows, -1 for columns.
    narrow : float32 (at least n, NARROW)
    wide, wider : float32 (n, WIDE), C-contiguous
        Written: the first `NARROW` - 1 and `WIDE` - 1 coordinates, and those after them, each with a length at the end.
    norms : float64 (n,)
        Written: lengths of the rows.
    """
    n_features, step = X.shape[1], coordinates.shape[1]
    for i in range(X.shape[0]):
        norm = dot(X, i * n_features, X, i * n_features, n_features)
        norms[i] = np.sqrt(norm)
        narrow[i, : NARROW - 1] = coordinates[i, : NARROW - 1]
        wide[i, : WIDE - 1] = coordinates[i, : WIDE - 1]
        wider[i, : WIDE - 1] = coordinates[i, WIDE - 1 : COORDINATES]
        narrow[i, NARROW - 1] = sign * _rest(norm, dot(coordinates, i * step, coordinates, i * step, NARROW - 1), lost)
        wide[i, WIDE - 1] = sign * _rest(norm, dot(coordinates, i * step, coordinates, i * step, WIDE - 1), lost)
        wider[i, WIDE - 1] = sign * _rest(norm, dot(coordinates, i * step, coordinates, i * step, COORDINATES), lost)


@nb.njit(inline="always")
def _rest(norm, head, lost):
    """A length that is not below that of what coordinates leave out."""
    return UP * np.sqrt(max(norm - head, 0.0) + lost * norm)


@kernel
def lowest_columns(products, bias, out):
    """Columns of the lowest scores, ``products + bias``, the lowest first; of equal ones the first.

    Parameters
    ----------
    products : float32 (n, c)
    bias : float32 (c,)
    out : int32 (n, at most c)
        Written.
    """
    wanted = out.shape[1]
    lowest = np.empty(wanted, np.float32)
    for i in range(products.shape[0]):
        lowest[:] = np.inf
        out[i, :] = 0
        for c in range(bias.shape[0]):
            score = products[i, c] + bias[c]
            if score < lowest[wanted - 1]:
                q = wanted - 1
                while q > 0 and score < lowest[q - 1]:
                    lowest[q], out[i, q] = lowest[q - 1], out[i, q - 1]
                    q -= 1
                lowest[q], out[i, q] = score, c


@kernel
def likely_columns(X, wide, groups, order, starts, rows, wide_rows, bias, head_bias, out):
    """Guess each row's nearest column: the better of the two in its groups that lie nearest by their coordinates.

    Parameters
    ----------
    X : float32 (n, m), C-contiguous
    wide : float32 (n, WIDE), C-contiguous
        As of `reduce_rows`.
    groups : int32 (n, at most g)
        Groups of columns to look at.
    order, starts : int32 (k,), int64 (g + 1,)
        Columns of each group, and where they start.
    rows, wide_rows : float32 (k, m), (k, WIDE), C-contiguous
        The columns as rows, and likewise their coordinates.
    bias, head_bias : float32 (at least k,)
        What is added to products with columns, and with coordinates.
    out : int32 (n,)
        Written.
    """
    n_features = X.shape[1]
    for row in range(X.shape[0]):
        nearest, other, lowest, second = np.int32(0), np.int32(0), np.inf, np.inf
        for group in groups[row]:
            for q in range(starts[group], starts[group + 1]):
                c = order[q]
                score = dot(wide, row * WIDE, wide_rows, c * WIDE, WIDE) + head_bias[c]
                score -= np.float64(wide[row, WIDE - 1]) * wide_rows[c, WIDE - 1]
                if score < lowest:
                    nearest, other, lowest, second = c, nearest, score, lowest
                elif score < second:
                    other, second = c, score
        score = dot(X, row * n_features, rows, nearest * n_features, n_features) + bias[nearest]
        out[row] = nearest
        if dot(X, row * n_features, rows, other * n_features, n_features) + bias[other] < score:
            out[row] = other


@kernel
def nearest_pruned(X, reduced, norms, likely, centers, slopes, slack, labels, scores, doubtful, left):
    """Find the nearest center of every dense row, with the bits that `nearest.nearest_dense` gives.

    O(n * (k * NARROW + s * m)) with s the columns of a row that are not excluded.

    Parameters
    ----------
    X : float32 (n, m), C-contiguous
        Rows as they are multiplied: moved and scaled.
    reduced : tuple of arrays
        `narrow`, with rows to fill the last block of `BLOCK_ROWS`, `wide` and `wider`, and
    norms : float64 (n,)
        as of `reduce_rows`.
    likely : int32 (n,)
        A column that is likely the nearest one of each row: the less so, the fewer are excluded.
    centers : tuple of arrays
        Columns as rows (k, m), likewise `wide` and `wider`, `narrow` as a table of panels, bias (p,), infinite where
        padded; all float32.
    slopes : (float64, float64)
        A score is wrong by at most ``slope * |x| + slack``; the first, which doubt is found by, is negative where no
        row is checked.
    slack : float64
    labels : int32 (n,)
    scores : float32 (n,)
    doubtful : bool (n,)
        Written as by `nearest.nearest_dense`.
    left : bool (n,)
        Written: rows that are left to it, of which nothing else is written.
    """
    rows, wide_rows, wider_rows, table, bias = centers
    narrow, wide, wider = reduced
    wide_entries, wider_entries = wide_rows.reshape(-1), wider_rows.reshape(-1)
    n_clusters, n_features = rows.shape
    n_panels = bias.shape[0] // PANEL_COLUMNS
    dear = WORTH * n_clusters * n_features / 32.0
    marks = np.empty((BLOCK_ROWS, SEGMENT * PANEL_COLUMNS // 64), np.uint64)
    limits = np.empty(BLOCK_ROWS, np.float32)
    best, reach, costs = np.empty(BLOCK_ROWS), np.empty(BLOCK_ROWS), np.empty(BLOCK_ROWS)
    close, close_scores, n_close = (
        np.empty((BLOCK_ROWS, CLOSE), np.int32), np.empty((BLOCK_ROWS, CLOSE)), np.empty(BLOCK_ROWS, np.int64),
    )  # fmt: skip
    kept_columns, bounds = np.empty(SEGMENT * PANEL_COLUMNS, np.int32), np.empty(SEGMENT * PANEL_COLUMNS)
    limits[:] = -np.inf
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        n_left = 0
        for i in range(n_rows):
            row = first + i
            best[i] = dot(X, row * n_features, rows, likely[row] * n_features, n_features) + bias[likely[row]]
            reach[i] = 2.0 * (slopes[1] * norms[row] + slack)
            if slopes[0] >= 0.0:
                reach[i] += 2.0 * (slopes[0] * norms[row] + slack)
            left[row] = not (np.isfinite(best[i]) and np.isfinite(reach[i]))
            n_left += left[row]
            limits[i] = -np.inf if left[row] else _rounded_up(best[i] + reach[i] + slack)
            n_close[i], costs[i] = 0, 0.0
        panel = 0
        while panel < n_panels and n_left < n_rows:
            stop = min(panel + SEGMENT, n_panels)
            marks[:, (stop - panel) * PANEL_COLUMNS // 64 :] = 0
            for q in range(panel, stop):
                place = q * PANEL_COLUMNS * NARROW
                mark_columns(
                    narrow, first, n_rows, table, place, bias, q * PANEL_COLUMNS, limits, marks,
                    (q - panel) * PANEL_COLUMNS // 8,
                )  # fmt: skip
            for i in range(n_rows):
                row = first + i
                if left[row]:
                    continue
                kept = 0
                for q in range(marks.shape[1]):
                    kept += count_bits(marks[i, q])
                costs[i] += WIDE_COST * kept
                if costs[i] > dear:
                    left[row] = True
                else:
                    n_kept = 0
                    for q in range(marks.shape[1]):
                        word = marks[i, q]
                        while word != 0:
                            c = panel * PANEL_COLUMNS + q * 64 + lowest_bit(word)
                            word &= word - np.uint64(1)
                            prefetch(wide_entries, c * WIDE)
                            prefetch(wide_entries, c * WIDE + WIDE // 2)
                            kept_columns[n_kept] = c
                            n_kept += 1
                    limit, n_likely = best[i] + reach[i] + slack, 0
                    for q in range(n_kept):
                        c = kept_columns[q]
                        bound = dot(wide, row * WIDE, wide_rows, c * WIDE, WIDE) + bias[c]
                        kept_columns[n_likely], bounds[n_likely] = c, bound
                        if bound <= limit:
                            prefetch(wider_entries, c * WIDE)
                            prefetch(wider_entries, c * WIDE + WIDE // 2)
                            n_likely += 1
                    n_kept, n_likely, lowest = n_likely, 0, 0
                    for q in range(n_kept):
                        c = kept_columns[q]
                        bound = bounds[q] - np.float64(wide[row, WIDE - 1]) * wide_rows[c, WIDE - 1]
                        bound += dot(wider, row * WIDE, wider_rows, c * WIDE, WIDE)
                        if bound <= limit:
                            kept_columns[n_likely], bounds[n_likely] = c, bound
                            if bound < bounds[lowest]:
                                lowest = n_likely
                            n_likely += 1
                    for turn in range(n_likely):  # the likeliest first
                        q = lowest if turn == 0 else (0 if turn == lowest else turn)
                        if bounds[q] > best[i] + reach[i] + slack:
                            continue
                        c = kept_columns[q]
                        costs[i] += FULL_COST * n_features
                        score = dot(X, row * n_features, rows, c * n_features, n_features) + bias[c]
                        if score > best[i] + reach[i]:
                            continue
                        best[i] = min(best[i], score)
                        if n_close[i] == CLOSE:
                            n_close[i] = _still_close(close[i], close_scores[i], CLOSE, best[i] + reach[i])
                        if n_close[i] == CLOSE or costs[i] > dear:
                            left[row] = True
                            break
                        close[i, n_close[i]], close_scores[i, n_close[i]] = c, score
                        n_close[i] += 1
                n_left += left[row]
                limits[i] = -np.inf if left[row] else _rounded_up(best[i] + reach[i] + slack)
            panel = stop
        for i in range(n_rows):
            row = first + i
            if left[row]:
                continue
            found = _still_close(close[i], close_scores[i], n_close[i], best[i] + reach[i])
            score, second = np.float32(np.inf), np.float32(np.inf)
            label = np.int32(0)
            for q in range(found):
                c = close[i, q]
                product = chained_product(X, row * n_features, rows, c * n_features, n_features)
                other = product + bias[c]
                if other < score or (other == score and c < label):
                    second, score, label = score, other, c
                elif other < second:
                    second = other
            labels[row], scores[row], doubtful[row] = label, score, False
            if slopes[0] >= 0.0:
                wrong = slopes[0] * norms[row] + slack
                doubtful[row] = not np.float64(second) - score > 2.0 * wrong


@nb.njit(inline="always")
def _rounded_up(value):
    """A float32 that is not below a number."""
    return np.float32(value + abs(value) * 2.0**-22)


@nb.njit(inline="always")
def _still_close(columns, scores, n_close, limit):
    """Keep the columns whose score is not above a limit, in order; how many."""
    kept = 0
    for q in range(n_close):
        if scores[q] <= limit:
            columns[kept], scores[kept] = columns[q], scores[q]
            kept += 1
    return kept
