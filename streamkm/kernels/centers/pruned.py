"""Nearest centers by certain bounds, which exclude most centers before any product in full.

Rows z and table columns y are reduced to their first principal coordinates and the length of the rest (see `reduced`).
A product of 32 bytes, else one of 64 numbers of 16 bits, proves a column's score too high. Lengths are rounded up by
more than rounding can lose, so no column with the lowest score, or within the doubt beside it, is excluded. Remaining
columns are compared by float64 products; the few close ones are scored as `nearest.nearest_dense` does, to the bit.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from streamkm.kernels.centers.reduced import FINE
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import prefetch, unfilled
from streamkm.kernels.intrinsics.pairs import CHAINS, chained_products, short_product
from streamkm.kernels.intrinsics.products import BLOCK_ROWS
from streamkm.kernels.intrinsics.reductions import dot
from streamkm.kernels.intrinsics.sieve import PANEL_BYTES, PANEL_COLUMNS, mark_columns
from streamkm.kernels.text.machine_words import count_bits, trailing_zeros

SEGMENT = 64
"""Panels compared before each row's limit is lowered: their marks fill whole words."""
CLOSE = 16
"""Columns that may come close to a row's lowest score; if there are more, all are scored."""
SIEVE_COST, FINE_COST, FULL_COST, EACH_COST = 0.6, 24.0, 0.5, 60.0
"""Cycles, about: of a comparison by bytes, of one by `FINE` numbers, of each feature of a product in float64 (1/32 in
`nearest.nearest_dense`), and of such a product beside its features."""
LINE = 16
"""Floats of a cache line."""


@kernel
def nearest_pruned(X, reduced, norms, likely, centers, slopes, slack, found, left):
    """Find the nearest center of every dense row, or the two nearest, with the bits of `nearest.nearest_dense`.

    O(n * (k + s * m)) with s the columns of a row that are not excluded.

    Parameters
    ----------
    X : float32 (n, m), C-contiguous; rows as they are multiplied: moved and scaled
    reduced : tuple of arrays
        An order of the rows, int64 (n,), that keeps near rows together; in this order bytes and units, with
        rows to fill the last block of `BLOCK_ROWS`; numbers and units; all as of `reduced.to_bytes`.
    norms : float64 (n,); as of `reduced.reduce_rows`
    likely : int32 (n, 1) or (n, 2)
        A column that is likely each row's nearest: the better the guess, the more are excluded. Or two, which differ:
        second scores are wanted too, and no column with one of the two lowest is excluded.
    centers : tuple of arrays
        Columns as rows (k, m), near ones together; their numbers and units as of `reduced.to_bytes`; panels of bytes,
        units (p,), and bias (p,), infinite where padded; their labels, int32 (k,).
    slopes : (float64, float64)
        A score is wrong by at most ``slope * |x| + slack``; the first slope, for doubt, is negative to check no row.
    slack : float64
    found : tuple of arrays
        Labels, int32 (n,); scores and second scores, float32 (n,), which hold anything unless wanted; doubt, bool (n,),
        as of `nearest.nearest_dense`. Written.
    left : bool (n,); written: rows left to that kernel, for which nothing else is written
    """
    rows, fine, fine_units, table, units, bias, _ = centers
    order, row_bytes, row_units, row_fine, row_fine_units = reduced
    fine_entries, entries = fine.reshape(-1), rows.reshape(-1)
    n_clusters, n_features = rows.shape
    n_panels = bias.shape[0] // PANEL_COLUMNS
    product_cost = EACH_COST + FULL_COST * n_features
    dear = n_clusters * (n_features / 32.0 - SIEVE_COST)  # a look at all columns costs as much
    marks = unfilled((BLOCK_ROWS, SEGMENT * PANEL_COLUMNS // 64), np.uint64)
    limits = unfilled(BLOCK_ROWS, np.float32)
    best, bar = (
        unfilled(BLOCK_ROWS, np.float64),
        unfilled(BLOCK_ROWS, np.float64),
    )  # the lowest scores, and what others are compared with
    reach, costs = unfilled(BLOCK_ROWS, np.float64), unfilled(BLOCK_ROWS, np.float64)
    shape, n_pairs = (BLOCK_ROWS, CLOSE), BLOCK_ROWS * CLOSE + CHAINS
    close, close_scores = unfilled(shape, np.int32), unfilled(shape, np.float64)
    n_close = unfilled(BLOCK_ROWS, np.int64)
    pairs = unfilled(n_pairs, np.int64), unfilled(n_pairs, np.int64), unfilled(n_pairs, np.float32)
    kept_columns, bounds = unfilled(SEGMENT * PANEL_COLUMNS, np.int32), unfilled(SEGMENT * PANEL_COLUMNS, np.float32)
    for i in range(BLOCK_ROWS):
        limits[i] = -np.inf
    both = likely.shape[1] > 1
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        n_left = 0
        for i in range(n_rows):
            row = order[first + i]
            for q in range(likely.shape[1]):
                c = likely[row, q]
                close[i, q] = c
                close_scores[i, q] = dot(X, row * n_features, rows, c * n_features, n_features) + bias[c]
            n_close[i], costs[i] = likely.shape[1], 0.0
            best[i], bar[i] = close_scores[i, 0], close_scores[i, 0]
            if both:
                best[i], bar[i] = min(best[i], close_scores[i, 1]), max(best[i], close_scores[i, 1])
            reach[i] = 2.0 * (slopes[1] * norms[row] + slack)
            if slopes[0] >= 0.0:
                reach[i] += 2.0 * (slopes[0] * norms[row] + slack)
            left[row] = not (np.isfinite(bar[i]) and np.isfinite(reach[i]))
            n_left += left[row]
            limits[i] = -np.inf if left[row] else _rounded_up(bar[i] + reach[i] + slack)
        # first the panels near the likely columns, so that limits are low for all others
        middle = likely[order[first + n_rows // 2], 0] // PANEL_COLUMNS
        begin = max(0, min(middle - SEGMENT // 2, n_panels - SEGMENT))
        panel, n_seen = begin, 0
        while n_seen < n_panels and n_left < n_rows:
            stop = min(panel + SEGMENT, begin if panel < begin else n_panels)
            for i in range(BLOCK_ROWS):
                for q in range((stop - panel) * PANEL_COLUMNS // 64, marks.shape[1]):
                    marks[i, q] = np.uint64(0)
            for q in range(panel, stop):
                mark_columns(
                    row_bytes, first, n_rows, table, q * PANEL_BYTES, units, bias, q * PANEL_COLUMNS, row_units,
                    limits, marks, (q - panel) * PANEL_COLUMNS // 8,
                )  # fmt: skip
            for i in range(n_rows):
                row = order[first + i]
                if left[row]:
                    continue
                kept = 0
                for q in range(marks.shape[1]):
                    kept += count_bits(marks[i, q])
                costs[i] += FINE_COST * kept
                if costs[i] > dear:
                    left[row] = True
                else:
                    n_kept = 0
                    for q in range(marks.shape[1]):
                        word = marks[i, q]
                        while word != 0:
                            c = panel * PANEL_COLUMNS + q * 64 + trailing_zeros(word)
                            word &= word - np.uint64(1)
                            prefetch(fine_entries, c * FINE)
                            prefetch(fine_entries, c * FINE + FINE // 2)
                            kept_columns[n_kept] = c
                            n_kept += 1
                    limit, unit, n_likely, lowest = limits[i], row_fine_units[row], 0, 0
                    for q in range(n_kept):
                        c = kept_columns[q]
                        product = np.float32(short_product(row_fine, row * FINE, fine, c * FINE, FINE))
                        bound = product * fine_units[c] * unit + bias[c]
                        if bound <= limit and c != likely[row, 0] and not (both and c == likely[row, 1]):
                            if n_likely * product_cost < dear - costs[i]:  # it may be multiplied
                                for j in range(0, n_features, LINE):
                                    prefetch(entries, c * n_features + j)
                            kept_columns[n_likely], bounds[n_likely] = c, bound
                            if bound < bounds[lowest]:
                                lowest = n_likely
                            n_likely += 1
                    for turn in range(n_likely):  # the likeliest first
                        q = lowest if turn == 0 else (0 if turn == lowest else turn)
                        if bounds[q] > bar[i] + reach[i] + slack:
                            continue
                        c = kept_columns[q]
                        costs[i] += product_cost
                        if costs[i] > dear:
                            left[row] = True
                            break
                        score = dot(X, row * n_features, rows, c * n_features, n_features) + bias[c]
                        if score > bar[i] + reach[i]:
                            continue
                        bar[i] = min(bar[i], max(best[i], score)) if both else min(bar[i], score)
                        best[i] = min(best[i], score)
                        if n_close[i] == CLOSE:
                            n_close[i] = _still_close(close[i], close_scores[i], CLOSE, bar[i] + reach[i])
                        if n_close[i] == CLOSE:
                            left[row] = True
                            break
                        close[i, n_close[i]], close_scores[i, n_close[i]] = c, score
                        n_close[i] += 1
                n_left += left[row]
                limits[i] = -np.inf if left[row] else _rounded_up(bar[i] + reach[i] + slack)
            n_seen += stop - panel
            panel = stop if stop < n_panels else 0
        state = (close, close_scores, n_close, bar, reach)
        _choose(X, order, centers, first, n_rows, state, pairs, norms, slopes[0], slack, found, left)


@nb.njit(inline="always")
def _choose(X, order, centers, first, n_rows, state, pairs, norms, slope, slack, found, left):
    """Score what is close to the lowest score of each row of a block, or the second; of equal ones take the first."""
    rows, _, _, _, _, bias, numbers = centers
    labels, scores, seconds, doubtful = found
    close, close_scores, n_close, bar, reach = state
    firsts, others, products = pairs
    n_features, n_pairs = X.shape[1], 0
    for i in range(n_rows):
        if left[order[first + i]]:
            continue
        n_close[i] = _still_close(close[i], close_scores[i], n_close[i], bar[i] + reach[i])
        for q in range(n_close[i]):
            firsts[n_pairs], others[n_pairs] = order[first + i] * n_features, close[i, q] * n_features
            n_pairs += 1
    for q in range(n_pairs, n_pairs + CHAINS - 1):
        firsts[q], others[q] = 0, 0
    for q in range(0, n_pairs, CHAINS):
        chained_products(X, firsts, rows, others, q, n_features, products)
    pair = 0
    for i in range(n_rows):
        row = order[first + i]
        if left[row]:
            continue
        score, second, label = np.float32(np.inf), np.float32(np.inf), np.int32(0)
        for q in range(n_close[i]):
            c = close[i, q]
            other = products[pair] + bias[c]
            pair += 1
            if other < score or (other == score and numbers[c] < label):
                second, score, label = score, other, numbers[c]
            elif other < second:
                second = other
        labels[row], scores[row], seconds[row], doubtful[row] = label, score, second, False
        if slope >= 0.0:
            doubtful[row] = not np.float64(second) - score > 2.0 * (slope * norms[row] + slack)


@nb.njit(inline="always")
def _rounded_up(value):
    """Round a number to a float32 that is not below it."""
    return np.float32(value + abs(value) * 2.0**-22)


@nb.njit(inline="always")
def _still_close(columns, scores, n_close, limit):
    """Keep the columns whose score is at most a limit, in order; return their number."""
    kept = 0
    for q in range(n_close):
        if scores[q] <= limit:
            columns[kept], scores[kept] = columns[q], scores[q]
            kept += 1
    return kept
