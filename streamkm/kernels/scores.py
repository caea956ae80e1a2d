"""How far rows lie from the means of their clusters, for scores of a clustering.

Clusters are taken one after the other, so that one mean at a time is looked at however many features there are. numba
only; arrays in, arrays out; the caller validates.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from streamkm.kernels.lloyd import FASTMATH


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def spread_csr(indptr, indices, data, order, starts, clusters, means, d2, distances):
    """Means of clusters of CSR rows, and how far their rows lie from them. O(nnz + k * d), of the clusters asked for.

    Parameters
    ----------
    indptr, indices : int32 or int64
        Indices distinct within a row.
    data : float32 or float64 (nnz,)
    order : int64 (n,)
        Rows, cluster by cluster.
    starts : int64 (k + 1,)
        Where in `order` each cluster starts.
    clusters : int64 (c,)
        Those asked for.
    means : float32 or float64 (k, d)
        Written for the clusters asked for; zeros for one without rows. Gathered in float64.
    d2, distances : float64 (k,)
        Written likewise: sums of squared distances and of distances of the rows to their mean.
    """
    mean = np.empty(means.shape[1], np.float64)
    for position in range(clusters.shape[0]):
        c = clusters[position]
        mean[:] = 0.0
        for r in range(starts[c], starts[c + 1]):
            i = order[r]
            for t in range(indptr[i], indptr[i + 1]):
                mean[indices[t]] += data[t]
        n_rows = max(1, starts[c + 1] - starts[c])
        mean_d2 = 0.0
        for j in range(mean.shape[0]):
            mean[j] /= n_rows
            mean_d2 += mean[j] * mean[j]
            means[c, j] = mean[j]
        d2[c] = 0.0
        distances[c] = 0.0
        for r in range(starts[c], starts[c + 1]):
            i = order[r]
            total = mean_d2
            for t in range(indptr[i], indptr[i + 1]):
                center = mean[indices[t]]
                difference = np.float64(data[t]) - center
                total += difference * difference - center * center
            total = max(total, 0.0)
            d2[c] += total
            distances[c] += np.sqrt(total)


@nb.njit(nogil=True, cache=True, fastmath=FASTMATH)
def spread_dense(X, order, starts, clusters, means, d2, distances):
    """Means of clusters of dense rows, and how far their rows lie from them. O(n * d), of the clusters asked for.

    Parameters
    ----------
    X : float32 or float64 (n, d)
    order, starts, clusters, means, d2, distances
        As of `spread_csr`.
    """
    mean = np.empty(means.shape[1], np.float64)
    for position in range(clusters.shape[0]):
        c = clusters[position]
        mean[:] = 0.0
        for r in range(starts[c], starts[c + 1]):
            x = X[order[r]]
            for j in range(mean.shape[0]):
                mean[j] += x[j]
        n_rows = max(1, starts[c + 1] - starts[c])
        for j in range(mean.shape[0]):
            mean[j] /= n_rows
            means[c, j] = mean[j]
        d2[c] = 0.0
        distances[c] = 0.0
        for r in range(starts[c], starts[c + 1]):
            x = X[order[r]]
            total = 0.0
            for j in range(mean.shape[0]):
                difference = np.float64(x[j]) - mean[j]
                total += difference * difference
            d2[c] += total
            distances[c] += np.sqrt(total)
