"""Squared norms of rows and centers, and squared distances of rows to their centers, in float64."""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.compiling import inner_kernel, kernel
from streamkm.kernels.intrinsics.reductions import add_square_pair, dot, squared_distance

NEAR = 1e-6
"""Share of a center's squared norm below which a squared distance of a sparse row is summed in higher precision."""


@kernel
def center_norms(centers, out):
    """Compute squared norms of centers in two parts, exact to some 100 bits. O(k * m).

    Parameters
    ----------
    centers : float64 (k, m), C-contiguous
    out : float64 (k, 2); written: each norm, and what it lacks
    """
    for c in range(centers.shape[0]):
        high, low = 0.0, 0.0
        for j in range(centers.shape[1]):
            high, low = add_square_pair(centers[c, j], high, low)
        out[c, 0], out[c, 1] = high, low


@inner_kernel(fastmath=FUSED)
def entries_d2(indices, data, start, stop, center, center_d2):
    """Squared distance of one sparse row to a center, in float64, fully precise however near they are. O(nnz).

    The readable form is ``sum((x - c)^2 over stored entries) + sum(c^2 over the others)``; the second sum is the
    center's squared norm less that of its stored entries, in higher precision where that cancels.

    Parameters
    ----------
    indices : int32 or int64; distinct within the row
    data : float32 or float64 (nnz,)
    start, stop : int64; entries of the row
    center, center_d2 : float64 (m,), (2,)

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


@inner_kernel
def _unseen(indices, start, stop, center, center_d2):
    """Sum the squares of a center's entries that a row does not store, in higher precision."""
    high, low = 0.0, 0.0
    for t in range(start, stop):
        high, low = add_square_pair(center[indices[t]], high, low)
    return (center_d2[0] - high) + (center_d2[1] - low)


@kernel
def d2_dense(X, labels, centers, out):
    """Squared distance of every dense row to its center, by differences in float64. O(n * m).

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
    labels : int32 (n,); a row labelled -1 gets 0
    centers : float64 (k, m), C-contiguous
    out : float64 (n,); written
    """
    n_features = X.shape[1]
    for i in range(labels.shape[0]):
        out[i] = 0.0
        if labels[i] >= 0:
            out[i] = squared_distance(X, i * n_features, centers, labels[i] * n_features, n_features)


@kernel
def d2_csr(indptr, indices, data, labels, centers, centers_d2, out):
    """Squared distance of every CSR row to its center, in float64; see `entries_d2`. O(nnz).

    Parameters
    ----------
    indptr, indices : int32 or int64; indices distinct within a row
    data : float32 or float64 (nnz,)
    labels : int32 (n,); a row labelled -1 gets 0
    centers : float64 (k, m), C-contiguous
    centers_d2 : float64 (k, 2); their squared norms, as `center_norms` gives them
    out : float64 (n,); written
    """
    for i in range(indptr.shape[0] - 1):
        label = labels[i]
        out[i] = 0.0
        if label >= 0:
            out[i] = entries_d2(indices, data, indptr[i], indptr[i + 1], centers[label], centers_d2[label])


@kernel
def d2norms_dense(X, out):
    """Squared norms of dense rows in float64.

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
    out : float64 (n,); written
    """
    n_features = X.shape[1]
    for i in range(out.shape[0]):
        out[i] = dot(X, i * n_features, X, i * n_features, n_features)


@kernel
def d2norms_csr(indptr, data, out):
    """Squared norms of CSR rows in float64; indices distinct within a row.

    Parameters
    ----------
    indptr : int32 or int64 (n + 1,)
    data : float32 or float64 (nnz,)
    out : float64 (n,); written
    """
    for i in range(indptr.shape[0] - 1):
        out[i] = dot(data, indptr[i], data, indptr[i], indptr[i + 1] - indptr[i])
