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
    n_components = halves.shape[1]
    table = unfilled((n_components, 2), np.float32)
    table[:] = 0.0
    away = unfilled(n_components, np.float32)  # the difference of both columns: half as much to keep at hand
    sums = unfilled((n_components, 2), np.float64)
    counts = unfilled(2, np.float64)
    weighted = weights.shape[0] > 0
    bias = unfilled(2, np.float64)
    for half in range(2):
        i = rows[seeds[half]]
        for t in range(indptr[i], indptr[i + 1]):
            table[indices[t], half] += data[t]
    for step in range(n_steps + 1):
        _squares_of_pairs(table, bias)
        if step == n_steps:
            break
        limit = 0.5 * (bias[1] - bias[0])
        for j in range(n_components):
            away[j] = table[j, 1] - table[j, 0]
        sums[:] = 0.0
        counts[:] = 0.0
        for r in range(rows.shape[0]):
            i = rows[r]
            half = 1 if _nearer(indices, data, indptr[i], indptr[i + 1], away) > limit else 0
            weight = weights[i] if weighted else 1.0
            counts[half] += weight
            for t in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):  # unsigned: no look at negative indices
                sums[np.uint64(indices[t]), half] += weight * data[t]
        if counts[0] == 0.0 or counts[1] == 0.0:
            return 0.0
        for j in range(n_components):
            table[j, 0] = sums[j, 0] / counts[0]
            table[j, 1] = sums[j, 1] / counts[1]
    total = 0.0
    for j in range(n_components):
        halves[0, j] = sums[j, 0] / counts[0]
        halves[1, j] = sums[j, 1] / counts[1]
        both = sums[j, 0] + sums[j, 1]
        total += both * both
    return counts[0] * bias[0] + counts[1] * bias[1] - total / (counts[0] + counts[1])


@kernel(fastmath=FUSED, inline="always")
def _squares_of_pairs(table, out):
    """Sum the squares of both columns of a table (m, 2), in four chains each."""
    chains = unfilled((4, 2), np.float64)
    chains[:] = 0.0
    whole = table.shape[0] // 4 * 4
    for j in range(0, whole, 4):
        for q in range(4):
            for half in range(2):
                chains[q, half] += np.float64(table[j + q, half]) * table[j + q, half]
    for half in range(2):
        out[half] = (chains[0, half] + chains[2, half]) + (chains[1, half] + chains[3, half])
        for j in range(whole, table.shape[0]):
            out[half] += np.float64(table[j, half]) * table[j, half]


@kernel(fastmath=FUSED, inline="always")
def _nearer(indices, data, start, stop, away):
    """Multiply a row's entries with the difference of two columns, in two chains."""
    first, second = 0.0, 0.0
    for t in range(start, stop - 1, 2):
        first += np.float64(data[t]) * away[np.uint64(indices[t])]
        second += np.float64(data[t + 1]) * away[np.uint64(indices[t + 1])]
    if (stop - start) % 2:
        first += np.float64(data[stop - 1]) * away[np.uint64(indices[stop - 1])]
    return first + second


@kernel(fastmath=FUSED)
def split_dense(X, weights, rows, seeds, n_steps, halves):
    """Split the dense rows of one cluster as `split_csr` does its CSR rows; returns the same gain.

    Parameters
    ----------
    X : float32 or float64 (n, m), C-contiguous
    weights, rows, seeds, n_steps, halves : as of `split_csr`; halves are written
    """
    n_components = halves.shape[1]
    direction = unfilled(n_components, X.dtype)
    sums = unfilled((2, n_components), np.float64)
    counts = unfilled(2, np.float64)
    weighted = weights.shape[0] > 0
    for half in range(2):
        seed = X[rows[seeds[half]]]
        for j in range(n_components):
            halves[half, j] = seed[j]
    for _ in range(n_steps):
        for j in range(n_components):
            direction[j] = halves[1, j] - halves[0, j]
        last = dot(halves, n_components, halves, n_components, n_components)
        limit = 0.5 * (last - dot(halves, 0, halves, 0, n_components))
        sums[:] = 0.0
        counts[:] = 0.0
        for r in range(rows.shape[0]):
            x = X[rows[r]]
            half = 1 if dot(X, rows[r] * n_components, direction, 0, n_components) > limit else 0
            weight = weights[rows[r]] if weighted else 1.0
            counts[half] += weight
            total = sums[half]
            for j in range(n_components):
                total[j] += weight * x[j]
        if counts[0] == 0.0 or counts[1] == 0.0:
            return 0.0
        for j in range(n_components):
            halves[0, j] = sums[0, j] / counts[0]
            halves[1, j] = sums[1, j] / counts[1]
    gain = squared_distance(halves, 0, halves, n_components, n_components)
    return gain * counts[0] * counts[1] / (counts[0] + counts[1])
