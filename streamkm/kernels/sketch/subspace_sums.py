"""Sums for subspaces of CSR rows without repeated indices, maps onto subspaces, and hashed Gaussian numbers."""

from __future__ import annotations

import math

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.hashing import mix
from streamkm.kernels.intrinsics.lanes import add_entries

_S11 = np.uint64(11)
_ONE = np.uint64(1)
_UNIT = 2.0**-53  # of 53 random bits


@kernel
def fill_gaussians(seed, features, out):
    """Fill a row of standard normal numbers for each feature: functions of (seed, feature, column), by Box and Muller.

    Parameters
    ----------
    seed : uint64
    features : int64 (u,)
    out : float64 (u, l), l even; written
    """
    for i in range(features.shape[0]):
        stream = mix(seed, np.uint64(features[i]))
        for c in range(0, out.shape[1], 2):
            counter = np.uint64(c)
            first = (np.float64(mix(stream, counter) >> _S11) + 1.0) * _UNIT  # never 0
            second = np.float64(mix(stream, counter + _ONE) >> _S11) * _UNIT
            radius = math.sqrt(-2.0 * math.log(first))
            out[i, c] = radius * math.cos(2.0 * math.pi * second)
            out[i, c + 1] = radius * math.sin(2.0 * math.pi * second)


@kernel(fastmath={"contract"})
def add_range(indptr, indices, data, weights, table, sums):
    """Add ``X.T @ diag(weights) @ (X @ table)``. O(nnz * p).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : float64 (nnz,)
    weights : float64 (n,) or (0,); empty: every row weighs 1
    table : float64 (u, p); p is a multiple of `lanes.LANES`
    sums : float64 (u, p); added to
    """
    product = unfilled(table.shape[1], np.float64)
    weighted = weights.shape[0] > 0
    for i in range(indptr.shape[0] - 1):
        product[:] = 0.0
        add_entries(product, table, indices, data, indptr[i], indptr[i + 1])
        weight = weights[i] if weighted else 1.0
        for t in range(indptr[i], indptr[i + 1]):
            row = sums[indices[t]]
            value = weight * data[t]
            for c in range(product.shape[0]):
                row[c] += value * product[c]


@kernel(fastmath={"contract"})
def add_gram(indptr, indices, data, weights, sums):
    """Add ``X.T @ diag(weights) @ X`` to the lower triangle. O(sum of nnz(row)^2).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : (nnz,) any real dtype
    weights : float64 (n,) or (0,)
    sums : float64 (d, d); added to, on and below the diagonal
    """
    weighted = weights.shape[0] > 0
    for i in range(indptr.shape[0] - 1):
        weight = weights[i] if weighted else 1.0
        for t in range(indptr[i], indptr[i + 1]):
            feature = indices[t]
            row = sums[feature]
            value = weight * np.float64(data[t])
            for u in range(indptr[i], t + 1):
                other = indices[u]
                if other <= feature:
                    row[other] += value * np.float64(data[u])
                else:  # indices need not rise
                    sums[other, feature] += value * np.float64(data[u])


@kernel
def project_csr(indptr, indices, data, table, out):
    """Write ``X @ table`` for CSR rows. O(nnz * p).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : same dtype as table (nnz,)
    table : float32 or float64 (d, p); p is a multiple of `lanes.LANES`
    out : same dtype (n, p); written
    """
    for i in range(indptr.shape[0] - 1):
        total = out[i]
        total[:] = 0
        add_entries(total, table, indices, data, indptr[i], indptr[i + 1])
