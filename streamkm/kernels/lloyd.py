"""One step of Lloyd's algorithm on a piece of rows: nearest centers, sums, squared distances.

Centers come as a table of shape (m, k): each stored entry of a sparse row then updates k contiguous numbers. A table
larger than the caches lies in tiles and is read tile by tile. Scores leave out what all centers of a row share. numba
only; arrays in, arrays out; the caller validates. fastmath keeps NaN and infinity meaningful, because padded columns of
a table have an infinite bias.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from streamkm.kernels.lanes import add_entries, lowest
from streamkm.kernels.prefetching import LINE_BYTES, prefetch

FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}
LAID_OUT = 64
"""Components of every center that are laid out at a time: some cache lines in a row, so that they are fetched ahead."""


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def nearest_csr(indptr, indices, data, table, width, bias, labels, scores, seconds):
    """Find the nearest center of every CSR row.

    The readable form is ``labels = argmin(X @ table + bias, axis=1)``; ties go to the lower label. O(nnz * k).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : same dtype as table (nnz,)
    table : float32 or float64 (m * p,)
        ``-2 * centers.T``, padded with zero columns from k to p, a multiple of `lanes.LANES`; laid out in tiles of
        `width` columns, one (m, width) after the other, the last of what is left.
    width : int
        A multiple of `lanes.LANES`, at most p.
    bias : same dtype (p,)
        Squared norms of the centers, infinite where padded.
    labels : int32 (n,)
        Written.
    scores : same dtype as table (n,)
        Written: the score of the nearest center.
    seconds : same dtype as table (n,) or (0,)
        Written unless empty: the score of the second nearest center.
    """
    n_columns = bias.shape[0]
    with_seconds = seconds.shape[0] > 0
    labels[:] = 0
    scores[:] = np.inf
    seconds[:] = np.inf
    for column in range(0, n_columns, width):
        stop = min(column + width, n_columns)
        tile, total = _tile(table, n_columns, column, stop), np.empty(stop - column, table.dtype)
        for i in range(indptr.shape[0] - 1):
            for j in range(stop - column):
                total[j] = bias[column + j]
            add_entries(total, tile, indices, data, indptr[i], indptr[i + 1])
            label = lowest(total)
            score = total[label]
            if with_seconds:
                total[label] = np.inf
                seconds[i] = min(seconds[i], max(scores[i], score), total[lowest(total)])
            if score < scores[i]:
                labels[i] = column + label
                scores[i] = score


@nb.njit(nogil=True, cache=True, inline="always")
def _tile(table, n_columns, first, stop):
    """Columns `first` to `stop` of a table in tiles: (m, stop - first)."""
    n_rows = table.shape[0] // n_columns
    return table[first * n_rows : stop * n_rows].reshape((n_rows, stop - first))


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def nearest_dense(products, bias, labels, scores, seconds):
    """Find the nearest center of every row from ready products with the table.

    The readable form is ``labels = argmin(products + bias, axis=1)``; ties go to the lower label. O(n * k).

    Parameters
    ----------
    products : float32 or float64 (at least n, p)
        ``X @ table``; overwritten with scores.
    bias : same dtype (p,)
    labels : int32 (n,)
        Written.
    scores : same dtype (n,)
        Written.
    seconds : same dtype (n,) or (0,)
        Written unless empty.
    """
    n_lanes = bias.shape[0]
    with_seconds = seconds.shape[0] > 0
    for i in range(labels.shape[0]):
        total = products[i]
        for c in range(n_lanes):
            total[c] += bias[c]
        label = lowest(total)
        labels[i] = label
        scores[i] = total[label]
        if with_seconds:
            total[label] = np.inf
            seconds[i] = total[lowest(total)]


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


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def add_csr(indptr, indices, data, weights, order, starts, first, fresh, sums, counts):
    """Add CSR rows to the sums of their clusters, one cluster after the other. O(nnz).

    The sums of one cluster stay in the cache while its rows are added, in ascending order.

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
    sums : float64 (k, m)
        Added to.
    counts : float64 (k,)
        Added to: total weight per cluster.
    """
    weighted = weights.shape[0] > 0
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
        counts[first + c] += count


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
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


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def d2_dense(X, labels, centers, out):
    """Squared distance of every dense row to its center, by differences in float64. O(n * m).

    Parameters
    ----------
    X : float32 or float64 (n, m)
    labels : int32 (n,)
        A row labelled -1 gets 0.
    centers : float64 (k, m)
    out : float64 (n,)
        Written.
    """
    n_features = X.shape[1]
    for i in range(labels.shape[0]):
        total = 0.0
        if labels[i] >= 0:
            x = X[i]
            center = centers[labels[i]]
            for j in range(n_features):
                difference = np.float64(x[j]) - center[j]
                total += difference * difference
        out[i] = total


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def d2_csr(indptr, indices, data, labels, centers, centers_d2, out):
    """Squared distance of every CSR row to its center, in float64. O(nnz).

    The readable form is ``sum((x - c)^2 - c^2 over stored entries) + ||c||^2``: no cancellation for entries that agree
    with the center.

    Parameters
    ----------
    indptr, indices : int32 or int64
        Indices distinct within a row.
    data : float32 or float64 (nnz,)
    labels : int32 (n,)
        A row labelled -1 gets 0.
    centers : float64 (k, m)
    centers_d2 : float64 (k,)
        Squared norms of the centers.
    out : float64 (n,)
        Written.
    """
    for i in range(indptr.shape[0] - 1):
        total = 0.0
        label = labels[i]
        if label >= 0:
            center = centers[label]
            total = centers_d2[label]
            for t in range(indptr[i], indptr[i + 1]):
                c = center[indices[t]]
                difference = np.float64(data[t]) - c
                total += difference * difference - c * c
            if total < 0.0:
                total = 0.0
        out[i] = total


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def d2norms_dense(X, out):
    """Squared norms of dense rows in float64.

    Parameters
    ----------
    X : float32 or float64 (n, m)
    out : float64 (n,)
        Written.
    """
    for i in range(X.shape[0]):
        total = 0.0
        x = X[i]
        for j in range(X.shape[1]):
            total += np.float64(x[j]) * np.float64(x[j])
        out[i] = total


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
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
        total = 0.0
        for t in range(indptr[i], indptr[i + 1]):
            total += np.float64(data[t]) * np.float64(data[t])
        out[i] = total


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
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


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def lay_out(centers, shift, table, bias):
    """Fill a table of centers and its bias in one pass over the centers.

    The readable form is ``table[:, :k] = -2 * (centers - shift).T``, ``table[:, k:] = 0`` and
    ``bias[:k] = sum((centers - shift)^2, axis=1) + 2 * (centers - shift) @ shift``. O(k * m).

    Parameters
    ----------
    centers : float64 (k, m)
    shift : float64 (m,)
    table : float32 or float64 (m, p)
        Written.
    bias : float64 (k,)
        Written.
    """
    n_clusters, n_components = centers.shape
    bias[:] = 0.0
    crossed = np.empty(n_clusters)
    crossed[:] = 0.0
    for first in range(0, n_components, LAID_OUT):
        last = min(first + LAID_OUT, n_components)
        for c in range(n_clusters):
            squared, product = 0.0, 0.0
            for j in range(first, last):
                offset = centers[c, j] - shift[j]
                table[j, c] = -2.0 * offset
                squared += offset * offset
                product += offset * shift[j]
            bias[c] += squared
            crossed[c] += product
        for j in range(first, last):
            for c in range(n_clusters, table.shape[1]):
                table[j, c] = 0.0
    for c in range(n_clusters):
        bias[c] += 2.0 * crossed[c]
