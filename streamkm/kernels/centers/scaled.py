"""Centers ``scales[c] * vectors[c]`` that move towards CSR rows: the nearest ones, and moves that touch few features.

All of a center moves by its scale alone; its vector changes at the features of its rows. numba only; arrays in, arrays
out; the caller validates.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.centers.nearest import tile_of
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled, vector_lanes
from streamkm.kernels.intrinsics.lanes import add_entries
from streamkm.kernels.intrinsics.lowest import lower

LEAST_SCALE = 2.0**-40
"""Size of a scale below which it is multiplied into its vector: float32 holds numbers so many times as large."""


@kernel(fastmath=FUSED)
def nearest_scaled(indptr, indices, data, rows, table, width, scales, bias, labels, scores):
    """Find the nearest centers of some CSR rows.

    The readable form is ``labels = argmin(X[rows] @ table * scales + bias, axis=1)``; ties go to the lower label.
    O(nnz * k).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : same dtype as table (nnz,)
    rows : int64 (r,)
    table : float32 or float64 (m * p,)
        ``-2 * vectors.T``, padded and in tiles of `width` columns as of `nearest.nearest_csr`.
    width : int
    scales : same dtype (p,)
    bias : same dtype (p,)
        Squared norms of the centers, infinite where padded.
    labels : int32 (r,)
        Written.
    scores : same dtype (r,)
        Written: squared distances to the nearest centers, less the squared norms of the rows.
    """
    n_columns, lanes = bias.shape[0], vector_lanes(table)
    state = unfilled((1, lanes), table.dtype), unfilled((1, lanes), table.dtype), unfilled((1, lanes), np.int32)
    label, score, other = unfilled(1, np.int32), unfilled(1, table.dtype), unfilled(1, table.dtype)
    labels[:] = 0
    scores[:] = np.inf
    for column in range(0, n_columns, width):
        stop = min(column + width, n_columns)
        tile, total = tile_of(table, n_columns, column, stop), unfilled((1, stop - column), table.dtype)
        for i in range(rows.shape[0]):
            total[:] = 0.0
            add_entries(total[0], tile, indices, data, indptr[rows[i]], indptr[rows[i] + 1])
            for j in range(stop - column):
                total[0, j] *= scales[column + j]
            lower(total, 1, bias[column:stop], 0, stop - column, state, True, 0, label, score, other)
            if score[0] < scores[i]:
                labels[i] = column + label[0]
                scores[i] = score[0]


@kernel(fastmath=FUSED)
def move_scaled(
    indptr, indices, data, weights, order, starts, first, rate, vectors, scales, d2norms, table, width, crossed
):
    """Move centers towards the means of their CSR rows, by a share of the way; those without weight stay. O(nnz).

    The readable form is ``centers[c] += rate * (mean - centers[c])``. A scale that becomes too small or too large is
    multiplied into its vector, O(m); that is once in many moves.

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : float32 or float64 (nnz,)
    weights : float64 (n,) or (0,)
        Empty: every row weighs 1.
    order : int64
        Rows of the first cluster, then of the next, and so on.
    starts : int64
        Rows of cluster ``first + c`` are ``order[starts[c]:starts[c + 1]]``.
    first : int64
    rate : float64
    vectors : float64 (k, m)
        Written, as are
    scales : float64 (k,)
        what the centers are as many times as large as, and
    d2norms : float64 (k,)
        squared norms of the vectors, and
    table : float32 or float64 (m * p,)
        as of `nearest_scaled`, at what changes.
    width : int64
    crossed : float64 (k,)
        Written: what each center adds, before it moves, to the squared norms of its rows, for squared distances.
    """
    n_features = vectors.shape[1]
    n_columns = table.shape[0] // n_features
    for q in range(starts.shape[0] - 1):
        c, count, products = first + q, 0.0, 0.0
        vector = vectors[c]
        for place in range(starts[q], starts[q + 1]):
            i = order[place]
            weight = weights[i] if weights.shape[0] else 1.0
            count += weight
            for t in range(indptr[i], indptr[i + 1]):
                products += weight * data[t] * vector[indices[t]]
        crossed[c] = scales[c] * (count * scales[c] * d2norms[c] - 2.0 * products)
        if not count > 0.0:
            continue
        column = c // width * width
        tile = tile_of(table, n_columns, column, min(column + width, n_columns))
        scale, d2norm = scales[c] * (1.0 - rate), d2norms[c]
        if not LEAST_SCALE <= abs(scale) <= 1.0 / LEAST_SCALE:
            d2norm *= scale * scale
            for j in range(n_features):
                vector[j] *= scale
                tile[j, c - column] = -2.0 * vector[j]
            scale = 1.0
        share = rate / (count * scale)
        for place in range(starts[q], starts[q + 1]):
            i = order[place]
            part = share * weights[i] if weights.shape[0] else share
            for t in range(indptr[i], indptr[i + 1]):
                j, step = indices[t], part * data[t]
                d2norm += step * (2.0 * vector[j] + step)
                vector[j] += step
                tile[j, c - column] = -2.0 * vector[j]
        scales[c], d2norms[c] = scale, d2norm
