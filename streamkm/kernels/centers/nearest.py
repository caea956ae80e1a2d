"""The nearest centers of a piece of rows, and how certain that is.

Centers are a table (m, k), in tiles if it exceeds the caches. Scores omit terms that all centers of a row share. Every
sum runs in a fixed order.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from streamkm.core.matrix import aligned_empty
from streamkm.kernels import FUSED
from streamkm.kernels.centers.layout import LAID_OUT
from streamkm.kernels.cluster.distances import entries_d2
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics import products
from streamkm.kernels.intrinsics.forms import unfilled, vector_lanes
from streamkm.kernels.intrinsics.lanes import add_entries
from streamkm.kernels.intrinsics.lowest import lower
from streamkm.kernels.intrinsics.products import BLOCK_ROWS, load_block, multiply_panel, panel_stop
from streamkm.kernels.intrinsics.reductions import dot, squared_distance

ROUNDINGS = 5
"""Roundings of a score beside one a product: the row's entry, the table's, the bias, and two sums."""


@kernel(fastmath=FUSED)
def nearest_csr(indptr, indices, data, d2norms, table, width, bias, slope, slack, labels, scores, seconds, doubtful):
    """Find the two nearest centers of every CSR row.

    The readable form is ``labels = argmin(X @ table + bias, axis=1)``; ties go to the lower label. O(nnz * k).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : same dtype as table (nnz,)
    d2norms : float64 (n,) or (0,); squared norms of the rows; empty: no row is checked, none is doubtful
    table : float32 or float64 (m * p,)
        ``-2 * centers.T``, padded from k to p columns, a multiple of `lanes.LANES`; laid out in tiles of `width`
        columns, one (m, width) after the other, the last of what is left.
    width : int; a multiple of `lanes.LANES`, at most p
    bias : same dtype (p,); squared norms of the centers, infinite where padded
    slope, slack : float64; a score is wrong by at most ``(entries + ROUNDINGS) * slope * |x| + slack`` of its row
    labels : int32 (n,); written
    scores, seconds : same dtype as table (n,); written: the scores of the nearest and the second nearest center
    doubtful : bool (n,); written: whether the second may be nearer in truth
    """
    n_columns, lanes = bias.shape[0], vector_lanes(table)
    state = unfilled((1, lanes), table.dtype), unfilled((1, lanes), table.dtype), unfilled((1, lanes), np.int32)
    label, score, other = unfilled(1, np.int32), unfilled(1, table.dtype), unfilled(1, table.dtype)
    labels[:] = 0
    scores[:] = np.inf
    seconds[:] = np.inf
    for column in range(0, n_columns, width):
        stop = min(column + width, n_columns)
        tile, total = tile_of(table, n_columns, column, stop), unfilled((1, stop - column), table.dtype)
        for i in range(indptr.shape[0] - 1):
            total[:] = 0.0
            add_entries(total[0], tile, indices, data, indptr[i], indptr[i + 1])
            lower(total, 1, bias[column:stop], 0, stop - column, state, True, 0, label, score, other)
            seconds[i] = min(seconds[i], other[0], max(scores[i], score[0]))
            if score[0] < scores[i]:
                labels[i] = column + label[0]
                scores[i] = score[0]
    for i in range(labels.shape[0]):
        doubtful[i] = False
        if d2norms.shape[0]:
            wrong = (indptr[i + 1] - indptr[i] + ROUNDINGS) * slope * np.sqrt(d2norms[i]) + slack
            doubtful[i] = not np.float64(seconds[i]) - scores[i] > 2.0 * wrong  # of NaN too


@kernel(inline="always")
def tile_of(table, n_columns, first, stop):
    """Columns `first` to `stop` of a table in tiles: (m, stop - first)."""
    n_rows = table.shape[0] // n_columns
    return table[first * n_rows : stop * n_rows].reshape((n_rows, stop - first))


@kernel
def nearest_dense(X, shift, scale, table, bias, n_clusters, slope, slack, room, labels, scores, seconds, doubtful):
    """Find the two nearest centers of every dense row: products and search in one. O(n * m * k).

    The readable form is ``labels = argmin((X - shift) * scale @ table + bias, axis=1)``; ties go to the lower label.

    Parameters
    ----------
    X : dtype of the table (n, m), C-contiguous; m at most `WIDE`; copied only if rows are moved or scaled
    shift : float64 (m,) or (0,); empty: none
    scale : float64; a power of two
    table : float32 or float64 (m * p,); as of `nearest_csr`, in the panels of `products`
    bias : same dtype (p,)
    n_clusters : int64; columns that are not padded
    slope, slack : float64
        A score is wrong by at most ``slope * |x| + slack`` of its row, moved and scaled; below 0: no row is checked.
    room : tuple of arrays; as `search_room` gives them; written
    labels, scores, seconds, doubtful : as of `nearest_csr`; written
    """
    block, totals, state = room
    direct = shift.shape[0] == 0 and scale == 1.0
    for first in range(0, X.shape[0], BLOCK_ROWS):
        n_rows = min(BLOCK_ROWS, X.shape[0] - first)
        rows, start = X, first
        if not direct or n_rows < BLOCK_ROWS:
            load_block(X, first, n_rows, 0, X.shape[1], shift, scale, block)
            rows, start = block, 0
        search_block(rows, start, n_rows, table, bias, n_clusters, totals, state, first, labels, scores, seconds)
        _doubt(X, first, n_rows, shift, scale, slope, slack, scores, seconds, doubtful)


@kernel
def lowest_scores(products, n_rows, bias, n_clusters, state, labels, scores, seconds):
    """Find the two lowest scores of rows from their products with all centers, as `nearest_dense` does.

    Parameters
    ----------
    products : dtype of the table (at least n_rows, p), C-contiguous
    n_rows : int64
    bias, n_clusters, labels, scores, seconds : as of `nearest_dense`
    state : as of `lowest.lower`; overwritten
    """
    lower(products, n_rows, bias, 0, n_clusters, state, True, 0, labels, scores, seconds)


@kernel
def mark_doubtful(X, shift, scale, slope, slack, scores, seconds, doubtful):
    """Mark the rows, given as they are stored, whose scores `nearest_dense` would call doubtful."""
    _doubt(X, 0, X.shape[0], shift, scale, slope, slack, scores, seconds, doubtful)


def nearest_copied(X, shift, scale, table, bias, n_clusters, slope, slack, room, *found):
    """Find nearest centers as `nearest_dense`, but of rows of any width and another dtype, copied some at a time."""
    wide = X.shape[1] > products.WIDE
    parts = products.products_of_copies(X, shift, scale, table, n_clusters)
    for first, n_rows, given, *_ in parts if wide else products.copies(X, shift, scale, table.dtype):
        rows = slice(first, first + n_rows)
        here = tuple(array[rows] for array in found)
        if wide:
            lowest_scores(given, n_rows, bias, n_clusters, room[2], *here[:3])
            here[3][:] = False
        else:
            nearest_dense(given[:n_rows], shift[:0], 1.0, table, bias, n_clusters, -1.0, slack, room, *here)
        if slope >= 0.0:
            mark_doubtful(X[rows], shift, scale, slope, slack, *here[1:])


def search_room(table: Any, n_features: int) -> tuple[Any, ...]:
    """Room for a search of dense rows: `block_room`, then lowest scores, second lowest and their columns."""
    shape, dtypes = (BLOCK_ROWS, vector_lanes(table)), (table.dtype, table.dtype, np.int32)
    return (*products.block_room(table, n_features), tuple(aligned_empty(shape, dtype) for dtype in dtypes))


@nb.njit(inline="always")
def search_block(rows, start, n_rows, table, bias, n_clusters, totals, state, first, labels, scores, seconds):
    """Search the scores of a block of rows, panel after panel. O(n_rows * m * n_clusters).

    Parameters
    ----------
    rows, start, n_rows : as of `multiply_panel`
    table : same dtype (m * p,); centers in panels
    bias : same dtype (p,); added to the products of a center
    n_clusters : int64
    totals : same dtype (BLOCK_ROWS, columns of a panel); overwritten
    state : as of `lower`; written
    first : int64; position of the rows in the arrays that follow
    labels, scores, seconds : as of `nearest_csr`; written
    """
    n_features, column = rows.shape[1], 0
    while column < n_clusters:
        stop = panel_stop(column, bias.shape[0], table.itemsize)
        width, needed, place = stop - column, min(stop, n_clusters) - column, column * n_features
        multiply_panel(rows, start, n_rows, n_features, table, place, width, needed, True, totals, 0, 0)
        lower(totals, n_rows, bias, column, needed, state, stop >= n_clusters, first, labels, scores, seconds)
        column = stop


@nb.njit(inline="always")
def _doubt(X, first, n_rows, shift, scale, slope, slack, scores, seconds, doubtful):
    """Mark rows whose two lowest scores differ by no more than both may be wrong."""
    n_features = X.shape[1]
    if not slope >= 0.0:
        doubtful[first : first + n_rows] = False
        return
    for i in range(first, first + n_rows):
        if shift.shape[0]:
            norm = np.sqrt(squared_distance(X, i * n_features, shift, 0, n_features)) * scale
        else:
            norm = np.sqrt(dot(X, i * n_features, X, i * n_features, n_features)) * scale
        doubtful[i] = not np.float64(seconds[i]) - scores[i] > 2.0 * (slope * norm + slack)  # of NaN too


@kernel
def nearest_dense_exactly(X, centers, prices, rows, labels):
    """Find the nearest centers of dense rows by differences in float64, one center after the other. O(r * m * k).

    Parameters
    ----------
    X, centers : float64 (r, m), (k, m), C-contiguous
    prices : float64 (k,); at least 0, added to squared distances
    rows : int64 (r,); positions of their labels
    labels : int32 (n,); written for `rows`
    """
    n_features = X.shape[1]
    for q in range(rows.shape[0]):
        nearest, lowest = 0, np.inf
        for c in range(centers.shape[0]):
            d2 = prices[c]
            for j in range(0, n_features, LAID_OUT):
                width = min(LAID_OUT, n_features - j)
                d2 += squared_distance(X, q * n_features + j, centers, c * n_features + j, width)
                if d2 >= lowest:  # and every further term adds to it
                    break
            if d2 < lowest:
                nearest, lowest = c, d2
        labels[rows[q]] = nearest


@kernel(fastmath=FUSED)
def nearest_csr_exactly(indptr, indices, data, centers, centers_d2, prices, rows, labels):
    """Find the nearest centers of CSR rows by differences in float64. O(entries * k).

    Parameters
    ----------
    indptr, indices : int32 or int64; indices distinct within a row
    data : float32 or float64 (nnz,)
    centers : float64 (k, m), C-contiguous
    centers_d2 : float64 (k, 2); their squared norms, as `center_norms` gives them
    prices : float64 (k,); added to squared distances
    rows : int64 (r,); those to label
    labels : int32 (n,); written for `rows`
    """
    for q in range(rows.shape[0]):
        i = rows[q]
        nearest, lowest = 0, np.inf
        for c in range(centers.shape[0]):
            d2 = entries_d2(indices, data, indptr[i], indptr[i + 1], centers[c], centers_d2[c]) + prices[c]
            if d2 < lowest:
                nearest, lowest = c, d2
        labels[i] = nearest


@kernel(fastmath=FUSED)
def scores_csr(indptr, indices, data, table, width, bias, out):
    """Write the scores of CSR rows for every center: ``out = X @ table + bias``. O(nnz * k).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : same dtype as table (nnz,)
    table : float32 or float64 (m * p,)
    width : int; as for `nearest_csr`
    bias : same dtype (p,)
    out : same dtype (n, p); written
    """
    n_columns = bias.shape[0]
    for column in range(0, n_columns, width):
        stop = min(column + width, n_columns)
        tile = tile_of(table, n_columns, column, stop)
        for i in range(indptr.shape[0] - 1):
            total = out[i, column:stop]
            for j in range(stop - column):
                total[j] = bias[column + j]
            add_entries(total, tile, indices, data, indptr[i], indptr[i + 1])
