"""Two-means inside clusters, to find those that deserve two centers.

Callees of kernels here are inlined: on their own they took as long to compile again.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.reductions import dot, squared_distance


@kernel(fastmath=FUSED)
def split_csr(indptr, indices, data, weights, rows, seeds, n_steps, halves):
    """Split the rows of one cluster in two by `n_steps` of 2-means.

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    weights : float64 (n,) or (0,)
    rows : int64 (r,); the cluster's rows
    seeds : int64 (2,); the rows of `rows` to start from
    n_steps : int
    halves : float64 (2, m); written: means of the two halves

    Returns
    -------
    gain : float64; by how much two means lower the sum of squared distances against one; 0 if a half came out empty
    """
    away = unfilled(halves.shape[1], np.float32)
    sums, counts = unfilled(halves.shape, np.float64), unfilled(2, np.float64)
    halves[:] = 0.0
    for half in range(2):
        i = rows[seeds[half]]
        for t in range(indptr[i], indptr[i + 1]):
            halves[half, indices[t]] += data[t]
    for _ in range(n_steps):
        limit = _begin(halves, away, sums, counts)
        for i in rows:
            start, stop = np.uint64(indptr[i]), np.uint64(indptr[i + 1])  # unsigned: no look at negative indices
            product = 0.0
            for t in range(start, stop):
                product += np.float64(data[t]) * away[np.uint64(indices[t])]
            half = 1 if product > limit else 0
            weight = weights[i] if weights.shape[0] else 1.0
            counts[half] += weight
            for t in range(start, stop):
                sums[half, np.uint64(indices[t])] += weight * data[t]
        if not _finish(halves, sums, counts):
            return 0.0
    return _gain(halves, counts)


@kernel(fastmath=FUSED)
def split_dense(X, weights, rows, seeds, n_steps, halves):
    """Split the dense rows of one cluster as `split_csr` does its CSR rows; returns the same gain.

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
    weights, rows, seeds, n_steps, halves : as of `split_csr`; halves are written
    """
    n_components = halves.shape[1]
    away = unfilled(n_components, X.dtype)
    sums, counts = unfilled(halves.shape, np.float64), unfilled(2, np.float64)
    for half in range(2):
        seed = X[rows[seeds[half]]]
        for j in range(n_components):
            halves[half, j] = seed[j]
    for _ in range(n_steps):
        limit = _begin(halves, away, sums, counts)
        for i in rows:
            half = 1 if dot(X, i * n_components, away, 0, n_components) > limit else 0
            weight = weights[i] if weights.shape[0] else 1.0
            counts[half] += weight
            total, x = sums[half], X[i]
            for j in range(n_components):
                total[j] += weight * x[j]
        if not _finish(halves, sums, counts):
            return 0.0
    return _gain(halves, counts)


@kernel(fastmath=FUSED, inline="always")
def _begin(halves, away, sums, counts):
    """Clear sums and counts, write the difference of both means, and return half that of their squared norms."""
    n_components = halves.shape[1]
    for j in range(n_components):
        away[j] = halves[1, j] - halves[0, j]
    sums[:] = 0.0
    counts[:] = 0.0
    last = dot(halves, n_components, halves, n_components, n_components)
    return 0.5 * (last - dot(halves, 0, halves, 0, n_components))


@kernel(fastmath=FUSED, inline="always")
def _finish(halves, sums, counts):
    """Write the means of both halves, unless one is empty; returns whether none is."""
    full = counts[0] != 0.0 and counts[1] != 0.0
    if full:
        for j in range(halves.shape[1]):
            halves[0, j] = sums[0, j] / counts[0]
            halves[1, j] = sums[1, j] / counts[1]
    return full


@kernel(fastmath=FUSED, inline="always")
def _gain(halves, counts):
    """Sum of squares that two means explain beyond one."""
    d2 = squared_distance(halves, 0, halves, halves.shape[1], halves.shape[1])
    return d2 * counts[0] * counts[1] / (counts[0] + counts[1])
