"""One step of Lloyd's algorithm on a piece of rows: nearest centers, sums, squared distances.

Centers come as a table of shape (m, k): each stored entry of a sparse row then updates k contiguous numbers. A table
larger than the caches lies in tiles and is read tile by tile. Scores leave out what all centers of a row share. Every
sum runs in a fixed order, so that all processors with fused multiply-add give the same bits. numba only; arrays in,
arrays out; the caller validates.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from streamkm.kernels.intrinsics.lanes import add_entries
from streamkm.kernels.intrinsics.prefetching import LINE_BYTES, prefetch
from streamkm.kernels.intrinsics.products import (
    BLOCK_ROWS,
    block_room,
    load_block,
    lower,
    lowest_lanes,
    multiply_panel,
    multiply_wide,
    panel_stop,
    vector_lanes,
)
from streamkm.kernels.intrinsics.reductions import add_square_pair, dot, squared_distance, squared_norm_pair

FUSED = {"contract"}  # multiply and add with one rounding; nothing that would change the order of a sum
LAID_OUT = 64
"""Components of every center that are laid out at a time: some cache lines in a row, so that they are fetched ahead."""
ROUNDINGS = 5
"""Of a score, beside one for each product: of a row's entry, of the table's, of the bias, and of two sums."""
NEAR = 1e-6
"""Share of a center's squared norm below which a squared distance of a sparse row is summed in higher precision."""


@nb.njit(nogil=True, cache=True, fastmath=FUSED)
def nearest_csr(indptr, indices, data, d2norms, table, width, bias, slope, slack, labels, scores, seconds, doubtful):
    """Find the two nearest centers of every CSR row.

    The readable form is ``labels = argmin(X @ table + bias, axis=1)``; ties go to the lower label. O(nnz * k).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : same dtype as table (nnz,)
    d2norms : float64 (n,) or (0,)
        Squared norms of the rows; empty: no row is checked, none is doubtful.
    table : float32 or float64 (m * p,)
        ``-2 * centers.T``, padded with zero columns from k to p, a multiple of `lanes.LANES`; laid out in tiles of
        `width` columns, one (m, width) after the other, the last of what is left.
    width : int
        A multiple of `lanes.LANES`, at most p.
    bias : same dtype (p,)
        Squared norms of the centers, infinite where padded.
    slope, slack : float64
        A score is wrong by at most ``(entries + ROUNDINGS) * slope * |x| + slack`` of its row.
    labels : int32 (n,)
        Written.
    scores, seconds : same dtype as table (n,)
        Written: the scores of the nearest and the second nearest center.
    doubtful : bool (n,)
        Written: whether the second may be nearer in truth.
    """
    n_columns, lanes = bias.shape[0], vector_lanes(table)
    best, second = np.empty((1, lanes), table.dtype), np.empty((1, lanes), table.dtype)
    where = np.empty((1, lanes), np.int32)
    label, score, other = np.empty(1, np.int32), np.empty(1, table.dtype), np.empty(1, table.dtype)
    labels[:] = 0
    scores[:] = np.inf
    seconds[:] = np.inf
    for column in range(0, n_columns, width):
        stop = min(column + width, n_columns)
        tile, total = _tile(table, n_columns, column, stop), np.empty((1, stop - column), table.dtype)
        for i in range(indptr.shape[0] - 1):
            total[:] = 0.0
            add_entries(total[0], tile, indices, data, indptr[i], indptr[i + 1])
            best[:] = np.inf
            second[:] = np.inf
            where[:] = 0
            lower(total, 1, bias, column, stop - column, best, second, where)
            lowest_lanes(best, second, where, 1, 0, label, score, other)
            seconds[i] = min(seconds[i], other[0], max(scores[i], score[0]))
            if score[0] < scores[i]:
                labels[i] = label[0]
                scores[i] = score[0]
    for i in range(labels.shape[0]):
        doubtful[i] = False
        if d2norms.shape[0]:
            wrong = (indptr[i + 1] - indptr[i] + ROUNDINGS) * slope * np.sqrt(d2norms[i]) + slack
            doubtful[i] = not np.float64(seconds[i]) - scores[i] > 2.0 * wrong  # of NaN too


@nb.njit(nogil=True, cache=True, inline="always")
def _tile(table, n_columns, first, stop):
    """Columns `first` to `stop` of a table in tiles: (m, stop - first)."""
    n_rows = table.shape[0] // n_columns
    return table[first * n_rows : stop * n_rows].reshape((n_rows, stop - first))


@nb.njit(nogil=True, cache=True)
def nearest_dense(X, shift, scale, table, bias, n_clusters, slope, slack, room, labels, scores, seconds, doubtful):
    """Find the two nearest centers of every dense row: products and search in one. O(n * m * k).

    The readable form is ``labels = argmin((X - shift) * scale @ table + bias, axis=1)``; ties go to the lower label.

    Parameters
    ----------
    X : dtype of the table (n, m), C-contiguous; m at most `WIDE`
        Read where it is, unless rows are moved or scaled.
    shift : float64 (m,) or (0,)
        Empty: none.
    scale : float64
        A power of two.
    table : float32 or float64 (m * p,)
        As of `nearest_csr`, in the panels of `products`.
    bias : same dtype (p,)
    n_clusters : int64
        Columns that are not padded.
    slope, slack : float64
        A score is wrong by at most ``slope * |x| + slack`` of its row, moved and scaled; below 0: no row is checked.
    room : tuple of arrays
        As `search_room` gives them; written.
    labels, scores, seconds, doubtful
        As of `nearest_csr`; written.
    """
    block, totals, best, second, where = room
    direct = shift.shape[0] == 0 and scale == 1.0
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        rows, start = X, first
        if not direct or n_rows < BLOCK_ROWS:
            load_block(X, first, n_rows, 0, X.shape[1], shift, scale, block)
            rows, start = block, 0
        search_block(rows, start, n_rows, table, bias, n_clusters, totals[0], best, second, where)
        lowest_lanes(best, second, where, n_rows, first, labels, scores, seconds)
        _doubt(X, first, n_rows, shift, scale, slope, slack, scores, seconds, doubtful)


@nb.njit(nogil=True, cache=True)
def load_rows(X, shift, scale, out):
    """Fill rows as they are multiplied: ``out = (X - shift) * scale``, rounded as in `nearest_dense`.

    Parameters
    ----------
    X, shift, scale
        As of `nearest_dense`; X of any width.
    out : dtype of the table (n, m)
        Written.
    """
    load_block(X, 0, X.shape[0], 0, X.shape[1], shift, scale, out)


@nb.njit(nogil=True, cache=True)
def nearest_converted(X, shift, scale, table, bias, n_clusters, slope, slack, room, labels, scores, seconds, doubtful):
    """As `nearest_dense`, of rows of another dtype: they are turned to the table's block by block."""
    block, totals, best, second, where = room
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        load_block(X, first, n_rows, 0, X.shape[1], shift, scale, block)
        search_block(block, 0, n_rows, table, bias, n_clusters, totals[0], best, second, where)
        lowest_lanes(best, second, where, n_rows, first, labels, scores, seconds)
        _doubt(X, first, n_rows, shift, scale, slope, slack, scores, seconds, doubtful)


@nb.njit(nogil=True, cache=True)
def nearest_wide(X, shift, scale, table, bias, n_clusters, slope, slack, room, labels, scores, seconds, doubtful):
    """As `nearest_dense`, of rows of any width and of float32 or float64, a piece of their features at a time."""
    block, totals, best, second, where = room
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        multiply_wide(X, first, n_rows, shift, scale, table, bias.shape[0], n_clusters, block, totals)
        column, q = 0, 0
        while column < n_clusters:
            stop = panel_stop(column, bias.shape[0], table.itemsize)
            lower(totals[q], n_rows, bias, column, min(stop, n_clusters) - column, best, second, where)
            column, q = stop, q + 1
        lowest_lanes(best, second, where, n_rows, first, labels, scores, seconds)
        _doubt(X, first, n_rows, shift, scale, slope, slack, scores, seconds, doubtful)


def search_room(table: Any, n_features: int, n_clusters: int) -> tuple[Any, ...]:
    """Room for the search of dense rows: `block_room`, and the best scores, the second best, and where the best are."""
    shape = (BLOCK_ROWS, vector_lanes(table))
    state = np.empty(shape, table.dtype), np.empty(shape, table.dtype), np.empty(shape, np.int32)
    return (*block_room(table, n_features, n_clusters), *state)


@nb.njit(inline="always")
def search_block(rows, start, n_rows, table, bias, n_clusters, totals, best, second, where):
    """Search the scores of a block of rows, panel after panel."""
    n_features, column = rows.shape[1], 0
    while column < n_clusters:
        stop = panel_stop(column, bias.shape[0], table.itemsize)
        width, needed, place = stop - column, min(stop, n_clusters) - column, column * n_features
        multiply_panel(rows, start, n_rows, n_features, table, place, width, needed, True, totals, 0, 0)
        lower(totals, n_rows, bias, column, needed, best, second, where)
        column = stop


@nb.njit(inline="always")
def _doubt(X, first, n_rows, shift, scale, slope, slack, scores, seconds, doubtful):
    """Mark rows whose two lowest scores differ by no more than both may be wrong."""
    n_features = X.shape[1]
    for i in range(first, first + n_rows):
        doubtful[i] = False
        if slope >= 0.0:
            if shift.shape[0]:
                norm = np.sqrt(squared_distance(X, i * n_features, shift, 0, n_features)) * scale
            else:
                norm = np.sqrt(dot(X, i * n_features, X, i * n_features, n_features)) * scale
            doubtful[i] = not np.float64(seconds[i]) - scores[i] > 2.0 * (slope * norm + slack)  # of NaN too


@nb.njit(nogil=True, cache=True)
def nearest_dense_exactly(X, centers, rows, labels):
    """Find the nearest centers of dense rows by differences in float64, one center after the other. O(r * m * k).

    Parameters
    ----------
    X : float64 (r, m), C-contiguous
    centers : float64 (k, m), C-contiguous
    rows : int64 (r,)
        Where their labels are.
    labels : int32 (n,)
        Written for `rows`.
    """
    n_features = X.shape[1]
    for q in range(rows.shape[0]):
        nearest, lowest = 0, np.inf
        for c in range(centers.shape[0]):
            d2 = 0.0
            for j in range(0, n_features, LAID_OUT):
                width = min(LAID_OUT, n_features - j)
                d2 += squared_distance(X, q * n_features + j, centers, c * n_features + j, width)
                if d2 >= lowest:  # and every further term adds to it
                    break
            if d2 < lowest:
                nearest, lowest = c, d2
        labels[rows[q]] = nearest


@nb.njit(nogil=True, cache=True, fastmath=FUSED)
def nearest_csr_exactly(indptr, indices, data, centers, centers_d2, rows, labels):
    """Find the nearest centers of CSR rows by differences in float64. O(entries * k).

    Parameters
    ----------
    indptr, indices : int32 or int64
        Indices distinct within a row.
    data : float32 or float64 (nnz,)
    centers : float64 (k, m), C-contiguous
    centers_d2 : float64 (k, 2)
        Their squared norms, as `center_norms` gives them.
    rows : int64 (r,)
        Those to label.
    labels : int32 (n,)
        Written for `rows`.
    """
    for q in range(rows.shape[0]):
        i = rows[q]
        nearest, lowest = 0, np.inf
        for c in range(centers.shape[0]):
            d2 = entries_d2(indices, data, indptr[i], indptr[i + 1], centers[c], centers_d2[c])
            if d2 < lowest:
                nearest, lowest = c, d2
        labels[i] = nearest


@nb.njit(nogil=True, cache=True)
def center_norms(centers, out):
    """Squared norms of centers in two parts. O(k * m).

    Parameters
    ----------
    centers : float64 (k, m), C-contiguous
    out : float64 (k, 2)
        Written: each norm, and what it lacks.
    """
    for c in range(centers.shape[0]):
        out[c, 0], out[c, 1] = squared_norm_pair(centers, c * centers.shape[1], centers.shape[1])


@nb.njit(nogil=True, cache=True, fastmath=FUSED)
def entries_d2(indices, data, start, stop, center, center_d2):
    """Squared distance of one sparse row to a center, in float64, of full precision however near they are. O(nnz).

    The readable form is ``sum((x - c)^2 over stored entries) + sum(c^2 over the others)``; the second sum is the
    center's squared norm less that of its stored entries, in higher precision where that cancels.

    Parameters
    ----------
    indices : int32 or int64
        Distinct within the row.
    data : float32 or float64 (nnz,)
    start, stop : int64
        Entries of the row.
    center : float64 (m,)
    center_d2 : float64 (2,)

    Returns
    -------
    float64
    """
    d2, other_d2, seen, other_seen = 0.0, 0.0, 0.0, 0.0
    for t in range(start, stop - 1, 2):  # two chains of each sum: an addition takes longer than it takes to begin one
        c, other_c = center[indices[t]], center[indices[t + 1]]
        difference, other_difference = np.float64(data[t]) - c, np.float64(data[t + 1]) - other_c
        d2 += difference * difference
        other_d2 += other_difference * other_difference
        seen += c * c
        other_seen += other_c * other_c
    if (stop - start) % 2:
        c = center[indices[stop - 1]]
        difference = np.float64(data[stop - 1]) - c
        d2 += difference * difference
        seen += c * c
    d2 += other_d2
    unseen = center_d2[0] - (seen + other_seen)
    if d2 + unseen < NEAR * center_d2[0]:
        unseen = _unseen(indices, start, stop, center, center_d2)
    return d2 + max(unseen, 0.0)


@nb.njit(nogil=True, cache=True)
def _unseen(indices, start, stop, center, center_d2):
    """Squares of a center's entries other than a row's, in higher precision."""
    high, low = 0.0, 0.0
    for t in range(start, stop):
        high, low = add_square_pair(center[indices[t]], high, low)
    return (center_d2[0] - high) + (center_d2[1] - low)


@nb.njit(nogil=True, cache=True)
def order_by_label(labels, order, starts):
    """Sort rows by label, stably; rows labelled -1 are left out. O(n + k).

    Parameters
    ----------
    labels : int32 (n,)
    order : int64 (n,)
        Written: rows of label 0, then of label 1, and so on; each in ascending order.
    starts : int64 (k + 1,)
        Written: rows of label c are ``order[starts[c]:starts[c + 1]]``.
    """
    starts[:] = 0
    for i in range(labels.shape[0]):
        starts[labels[i] + 1] += 1
    starts[0] = 0  # where rows labelled -1 were counted
    for c in range(1, starts.shape[0]):
        starts[c] += starts[c - 1]
    ends = starts.copy()
    for i in range(labels.shape[0]):
        if labels[i] >= 0:
            order[ends[labels[i]]] = i
            ends[labels[i]] += 1


@nb.njit(nogil=True, cache=True, fastmath=FUSED)
def add_csr(indptr, indices, data, weights, order, starts, first, fresh, centers, centers_d2, sums, counts, d2):
    """Add CSR rows to the sums of their clusters, one cluster after the other. O(nnz).

    The sums of one cluster stay in the cache while its rows are added, in ascending order; so does its center, where
    squared distances are found on the way.

    Parameters
    ----------
    indptr, indices : int32 or int64, not negative
    data : float32 or float64 (nnz,)
    weights : float64 (n,) or (0,)
        Empty: every row weighs 1.
    order, starts : int64
        As `order_by_label` gives them; `starts` may be a piece of them.
    first : int
        Label that `starts` begins with.
    fresh : bool
        Whether these sums begin here, whatever `sums` holds.
    centers : float64 (k, m)
    centers_d2 : float64 (k, 2)
        As `center_norms` gives them; read for squared distances only.
    sums : float64 (k, m)
        Added to.
    counts : float64 (k,)
        Added to: total weight per cluster.
    d2 : float64 (n,) or (0,)
        Written for the rows added, unless empty: their squared distances to the centers, without weights.
    """
    weighted, with_d2 = weights.shape[0] > 0, d2.shape[0] > 0
    per_line = LINE_BYTES // data.itemsize
    for c in range(starts.shape[0] - 1):
        row = sums[first + c]
        if fresh:
            row[:] = 0.0
        count = 0.0
        for q in range(starts[c], starts[c + 1]):
            i = order[q]
            if q + 2 < starts[c + 1]:  # rows of a cluster lie apart
                ahead = order[q + 2]
                for t in range(indptr[ahead], indptr[ahead + 1], per_line):
                    prefetch(indices, t)
                    prefetch(data, t)
            weight = weights[i] if weighted else 1.0
            count += weight
            for t in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):  # unsigned: no look at negative indices
                row[np.uint64(indices[t])] += weight * data[t]
            if with_d2:
                label = first + c
                d2[i] = entries_d2(indices, data, indptr[i], indptr[i + 1], centers[label], centers_d2[label])
        counts[first + c] += count


@nb.njit(nogil=True, cache=True, fastmath=FUSED)
def add_dense(X, weights, order, starts, first, fresh, sums, counts):
    """Add dense rows to the sums of their clusters, one cluster after the other. O(n * m).

    Parameters
    ----------
    X : float32 or float64 (n, m)
    weights : float64 (n,) or (0,)
    order, starts, first, fresh
        As for `add_csr`.
    sums : float64 (k, m)
        Added to.
    counts : float64 (k,)
        Added to.
    """
    weighted = weights.shape[0] > 0
    n_features = X.shape[1]
    for c in range(starts.shape[0] - 1):
        row = sums[first + c]
        if fresh:
            row[:] = 0.0
        count = 0.0
        for q in range(starts[c], starts[c + 1]):
            weight = weights[order[q]] if weighted else 1.0
            count += weight
            x = X[order[q]]
            for j in range(n_features):
                row[j] += weight * x[j]
        counts[first + c] += count


@nb.njit(nogil=True, cache=True)
def d2_dense(X, labels, centers, out):
    """Squared distance of every dense row to its center, by differences in float64. O(n * m).

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
    labels : int32 (n,)
        A row labelled -1 gets 0.
    centers : float64 (k, m), C-contiguous
    out : float64 (n,)
        Written.
    """
    n_features = X.shape[1]
    for i in range(labels.shape[0]):
        out[i] = 0.0
        if labels[i] >= 0:
            out[i] = squared_distance(X, i * n_features, centers, labels[i] * n_features, n_features)


@nb.njit(nogil=True, cache=True)
def d2_csr(indptr, indices, data, labels, centers, centers_d2, out):
    """Squared distance of every CSR row to its center, in float64; see `entries_d2`. O(nnz).

    Parameters
    ----------
    indptr, indices : int32 or int64
        Indices distinct within a row.
    data : float32 or float64 (nnz,)
    labels : int32 (n,)
        A row labelled -1 gets 0.
    centers : float64 (k, m), C-contiguous
    centers_d2 : float64 (k, 2)
        Their squared norms, as `center_norms` gives them.
    out : float64 (n,)
        Written.
    """
    for i in range(indptr.shape[0] - 1):
        label = labels[i]
        out[i] = 0.0
        if label >= 0:
            out[i] = entries_d2(indices, data, indptr[i], indptr[i + 1], centers[label], centers_d2[label])


@nb.njit(nogil=True, cache=True)
def d2norms_dense(X, out):
    """Squared norms of dense rows in float64.

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
    out : float64 (n,)
        Written.
    """
    n_features = X.shape[1]
    for i in range(out.shape[0]):
        out[i] = dot(X, i * n_features, X, i * n_features, n_features)


@nb.njit(nogil=True, cache=True)
def d2norms_csr(indptr, data, out):
    """Squared norms of CSR rows in float64; indices distinct within a row.

    Parameters
    ----------
    indptr : int32 or int64 (n + 1,)
    data : float32 or float64 (nnz,)
    out : float64 (n,)
        Written.
    """
    for i in range(indptr.shape[0] - 1):
        out[i] = dot(data, indptr[i], data, indptr[i], indptr[i + 1] - indptr[i])


@nb.njit(nogil=True, cache=True, fastmath=FUSED)
def scores_csr(indptr, indices, data, table, width, bias, out):
    """Write the scores of CSR rows for every center: ``out = X @ table + bias``. O(nnz * k).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : same dtype as table (nnz,)
    table : float32 or float64 (m * p,)
    width : int
        As for `nearest_csr`.
    bias : same dtype (p,)
    out : same dtype (n, p)
        Written.
    """
    n_columns = bias.shape[0]
    for column in range(0, n_columns, width):
        stop = min(column + width, n_columns)
        tile = _tile(table, n_columns, column, stop)
        for i in range(indptr.shape[0] - 1):
            total = out[i, column:stop]
            for j in range(stop - column):
                total[j] = bias[column + j]
            add_entries(total, tile, indices, data, indptr[i], indptr[i + 1])


@nb.njit(nogil=True, cache=True, fastmath=FUSED)
def lay_out(centers, shift, moved, scale, first, table, bias):
    """Fill some columns of a table of centers, and their bias, in one pass over the centers.

    The readable form is ``table[:, :k] = -2 * scale * (centers - shift).T``, ``table[:, k:] = 0`` and
    ``bias[:k] = scale^2 * (sum((centers - shift)^2, axis=1) + 2 * (centers - shift) @ (shift - moved))``. O(k * m).

    Parameters
    ----------
    centers : float64 (k, m), C-contiguous
    shift : float64 (m,)
    moved : float64 (m,)
        What rows will be less by.
    scale : float64
        A power of two that rows will be multiplied with.
    first : int64
        Center of the table's first column.
    table : float32 or float64 (m, width)
        Written.
    bias : float64 (k,)
        Written for the table's columns.
    """
    n_clusters, n_components = min(centers.shape[0], first + table.shape[1]), centers.shape[1]
    offsets, left = np.empty(LAID_OUT), np.empty(LAID_OUT)
    for c in range(first, n_clusters):
        bias[c] = 0.0
    for start in range(0, n_components, LAID_OUT):
        width = min(LAID_OUT, n_components - start)
        for j in range(width):
            left[j] = 2.0 * (shift[start + j] - moved[start + j]) * scale
        for c in range(first, n_clusters):
            for j in range(width):
                offsets[j] = (centers[c, start + j] - shift[start + j]) * scale
            for j in range(width):
                table[start + j, c - first] = -2.0 * offsets[j]
            bias[c] += dot(offsets, 0, offsets, 0, width) + dot(offsets, 0, left, 0, width)
        for j in range(start, start + width):
            for c in range(n_clusters, first + table.shape[1]):
                table[j, c - first] = 0.0


@nb.njit(nogil=True, cache=True)
def count_moved(indptr, indices, places, n_columns, out):
    """Where CSR rows start that store all of some columns.

    Parameters
    ----------
    indptr, indices : int32 or int64
    places : int32 (m,)
        Of each feature among the columns; -1 for others.
    n_columns : int64
    out : int64 (n + 1,)
        Written.
    """
    out[0] = 0
    for i in range(indptr.shape[0] - 1):
        others = 0
        for t in range(indptr[i], indptr[i + 1]):
            others += places[indices[t]] < 0
        out[i + 1] = out[i] + n_columns + others


@nb.njit(nogil=True, cache=True)
def move_csr(indptr, indices, data, places, columns, offsets, scale, out_indptr, out_indices, out_data):
    """Write CSR rows less an offset in some columns, which come first in every row.

    Parameters
    ----------
    indptr, indices, places
        As of `count_moved`.
    data : float32 or float64 (nnz,)
    columns : int64 (u,)
    offsets : float64 (u,)
    scale : float64
    out_indptr : int64 (n + 1,)
        As `count_moved` gives it.
    out_indices, out_data
        Written.
    """
    values = np.empty(columns.shape[0])
    for i in range(indptr.shape[0] - 1):
        values[:] = 0.0
        at = out_indptr[i]
        there = at + columns.shape[0]
        for t in range(indptr[i], indptr[i + 1]):
            place = places[indices[t]]
            if place >= 0:
                values[place] += data[t]  # entries of a sketched row may repeat an index
            else:
                out_indices[there] = indices[t]
                out_data[there] = data[t] * scale
                there += 1
        for u in range(columns.shape[0]):
            out_indices[at + u] = columns[u]
            out_data[at + u] = (values[u] - offsets[u]) * scale
