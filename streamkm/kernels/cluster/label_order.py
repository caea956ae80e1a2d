"""Kernels that pick rows, sort them by label, and add them to the sums of their clusters."""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.cluster.distances import entries_d2
from streamkm.kernels.compiling import kernel


@kernel
def add_csr_rows(indptr, indices, data, rows, out):
    """Add CSR rows to dense ones: ``out += X[rows].toarray()``; entries may repeat an index. O(nnz of the rows).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : (nnz,)
    rows : int64 (r,)
    out : float64 (r, m); added to
    """
    for q in range(rows.shape[0]):
        for t in range(indptr[rows[q]], indptr[rows[q] + 1]):
            out[q, indices[t]] += data[t]


@kernel
def place_rows(indptr, indices, data, rows, places, out_indptr, out_indices, out_data):
    """Copy CSR rows into places of another CSR array: ``out[places] = X[rows]``. O(entries copied).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : (nnz,)
    rows, places : int64 (r,); row of X, and row of the result, of every row to copy
    out_indptr : int64; where the rows of the result start
    out_indices, out_data : as indices and data; written
    """
    for q in range(rows.shape[0]):
        at = out_indptr[places[q]]
        for t in range(indptr[rows[q]], indptr[rows[q] + 1]):
            out_indices[at] = indices[t]
            out_data[at] = data[t]
            at += 1


@kernel
def order_by_label(labels, order, starts):
    """Sort rows by label, stably; rows labelled -1 are left out. O(n + k).

    Parameters
    ----------
    labels : int32 (n,)
    order : int64 (n,); written: rows of label 0, then of label 1, and so on; each in ascending order
    starts : int64 (k + 1,); written: rows of label c are ``order[starts[c]:starts[c + 1]]``
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


@kernel(fastmath=FUSED)
def add_csr(indptr, indices, data, weights, order, starts, first, fresh, centers, centers_d2, sums, counts, d2):
    """Add CSR rows to the sums of their clusters, one cluster after the other. O(nnz).

    A cluster's sums stay in the cache while its rows are added in ascending order; so does its center for distances.

    Parameters
    ----------
    indptr, indices : int32 or int64, not negative
    data : float32 or float64 (nnz,)
    weights : float64 (n,) or (0,); empty: every row weighs 1
    order, starts : int64; as `order_by_label` gives them; `starts` may be a piece of them
    first : int; label that `starts` begins with
    fresh : bool; whether these sums begin here, whatever `sums` holds
    centers : float64 (k, m)
    centers_d2 : float64 (k, 2); as `center_norms` gives them; read for squared distances only
    sums : float64 (k, m); added to
    counts : float64 (k,); added to: total weight per cluster
    d2 : float64 (n,) or (0,)
        Written for the rows added, unless empty: their squared distances to the centers, without weights.
    """
    weighted, with_d2 = weights.shape[0] > 0, d2.shape[0] > 0
    for c in range(starts.shape[0] - 1):
        row = sums[first + c]
        if fresh:
            row[:] = 0.0
        count = 0.0
        for q in range(starts[c], starts[c + 1]):
            i = order[q]
            weight = weights[i] if weighted else 1.0
            count += weight
            for t in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):  # unsigned: no look at negative indices
                row[np.uint64(indices[t])] += weight * data[t]
            if with_d2:
                label = first + c
                d2[i] = entries_d2(indices, data, indptr[i], indptr[i + 1], centers[label], centers_d2[label])
        counts[first + c] += count


@kernel(fastmath=FUSED)
def add_dense(X, weights, order, starts, first, fresh, sums, counts):
    """Add dense rows to the sums of their clusters, one cluster after the other. O(n * m).

    Parameters
    ----------
    X : float32 or float64 (n, m)
    weights : float64 (n,) or (0,)
    order, starts, first, fresh : as for `add_csr`
    sums, counts : float64 (k, m), (k,); added to
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
