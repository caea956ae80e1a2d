"""How far rows lie from the means of their clusters, for scores of a clustering.

Clusters are taken one after the other, so that one mean at a time is looked at however many features there are. numba
only; arrays in, arrays out; the caller validates.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.cluster.distances import entries_d2
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.reductions import squared_distance, squared_norm_pair


@kernel(fastmath=FUSED)
def spread_csr(indptr, indices, data, weights, order, starts, clusters, means, d2, distances):
    """Means of clusters of CSR rows, and how far their rows lie from them. O(nnz + k * d), of the clusters asked for.

    Parameters
    ----------
    indptr, indices : int32 or int64
        Indices distinct within a row.
    data : float32 or float64 (nnz,)
    weights : float64 (n,) or (0,)
    order : int64 (n,)
        Rows, cluster by cluster.
    starts : int64 (k + 1,)
        Where in `order` each cluster starts.
    clusters : int64 (c,)
        Those asked for.
    means : float32 or float64 (k, d)
        Written for the clusters asked for; zeros for one without rows. Gathered in float64.
    d2, distances : float64 (k,)
        Written likewise: weighted sums of squared distances and of distances of the rows to their mean.
    """
    mean, mean_d2 = np.empty(means.shape[1], np.float64), np.empty(2)
    for position in range(clusters.shape[0]):
        c = clusters[position]
        mean[:] = 0.0
        total_weight = 0.0
        for r in range(starts[c], starts[c + 1]):
            i = order[r]
            weight = weights[i] if weights.shape[0] > 0 else 1.0
            total_weight += weight
            for t in range(indptr[i], indptr[i + 1]):
                mean[indices[t]] += weight * data[t]
        for j in range(mean.shape[0]):
            mean[j] /= total_weight if total_weight > 0 else 1.0
            means[c, j] = mean[j]
        mean_d2[0], mean_d2[1] = squared_norm_pair(mean, 0, mean.shape[0])
        d2[c] = 0.0
        distances[c] = 0.0
        for r in range(starts[c], starts[c + 1]):
            i = order[r]
            weight = weights[i] if weights.shape[0] > 0 else 1.0
            total = entries_d2(indices, data, indptr[i], indptr[i + 1], mean, mean_d2)
            d2[c] += weight * total
            distances[c] += weight * np.sqrt(total)


@kernel(fastmath=FUSED)
def spread_dense(X, weights, order, starts, clusters, means, d2, distances):
    """Means of clusters of dense rows, and how far their rows lie from them. O(n * d), of the clusters asked for.

    Parameters
    ----------
    X : float32 or float64 (n, d), C-contiguous
    weights, order, starts, clusters, means, d2, distances
        As of `spread_csr`.
    """
    mean = np.empty(means.shape[1], np.float64)
    for position in range(clusters.shape[0]):
        c = clusters[position]
        mean[:] = 0.0
        total_weight = 0.0
        for r in range(starts[c], starts[c + 1]):
            x = X[order[r]]
            weight = weights[order[r]] if weights.shape[0] > 0 else 1.0
            total_weight += weight
            for j in range(mean.shape[0]):
                mean[j] += weight * x[j]
        for j in range(mean.shape[0]):
            mean[j] /= total_weight if total_weight > 0 else 1.0
            means[c, j] = mean[j]
        d2[c] = 0.0
        distances[c] = 0.0
        for r in range(starts[c], starts[c + 1]):
            weight = weights[order[r]] if weights.shape[0] > 0 else 1.0
            total = squared_distance(X, order[r] * mean.shape[0], mean, 0, mean.shape[0])
            d2[c] += weight * total
            distances[c] += weight * np.sqrt(total)
