"""Centers laid out as a table for products, and sparse rows moved to match."""

from __future__ import annotations

import numpy as np

from streamkm.kernels import FUSED
from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled
from streamkm.kernels.intrinsics.reductions import dot

LAID_OUT = 64
"""Components of every center that are laid out at a time: some cache lines in a row, so that they are fetched ahead."""


@kernel(fastmath=FUSED)
def lay_out(centers, shift, moved, scale, first, table, bias):
    """Fill some columns of a table of centers, and their bias, in one pass over the centers. O(k * m).

    The readable form is ``table[:, :k] = -2 * scale * (centers - shift).T``, ``table[:, k:] = -2 * scale * shift`` and
    ``bias[:k] = scale^2 * (sum((centers - shift)^2, axis=1) + 2 * (centers - shift) @ (shift - moved))``.

    Parameters
    ----------
    centers : float64 (k, m), C-contiguous
    shift : float64 (m,)
    moved : float64 (m,); offset that rows will be reduced by
    scale : float64; a power of two that rows will be multiplied with
    first : int64; center of the table's first column
    table : float32 or float64 (m, width); written
    bias : float64 (k,); written for the table's columns
    """
    n_clusters, n_components = min(centers.shape[0], first + table.shape[1]), centers.shape[1]
    offsets, left = unfilled(LAID_OUT, np.float64), unfilled(LAID_OUT, np.float64)
    for c in range(first, n_clusters):
        bias[c] = 0.0
    for start in range(0, n_components, LAID_OUT):
        width = min(LAID_OUT, n_components - start)
        for j in range(width):
            left[j] = 2.0 * (shift[start + j] - moved[start + j]) * scale
        for c in range(first, n_clusters):
            for j in range(width):
                offsets[j] = (centers[c, start + j] - shift[start + j]) * scale
            for j in range(width):
                table[start + j, c - first] = -2.0 * offsets[j]
            bias[c] += dot(offsets, 0, offsets, 0, width) + dot(offsets, 0, left, 0, width)
        for j in range(start, start + width):
            for c in range(n_clusters, first + table.shape[1]):
                table[j, c - first] = -2.0 * shift[j] * scale


@kernel
def count_moved(indptr, indices, places, n_columns, out):
    """Find the starts of CSR rows once each row stores all of some columns.

    Parameters
    ----------
    indptr, indices : int32 or int64
    places : int32 (m,); place of each feature among the columns; -1 for others
    n_columns : int64
    out : int64 (n + 1,); written
    """
    out[0] = 0
    for i in range(indptr.shape[0] - 1):
        others = 0
        for t in range(indptr[i], indptr[i + 1]):
            others += places[indices[t]] < 0
        out[i + 1] = out[i] + n_columns + others


@kernel
def move_csr(indptr, indices, data, places, columns, offsets, scale, out_indptr, out_indices, out_data):
    """Write CSR rows less an offset in some columns, which come first in every row.

    Parameters
    ----------
    indptr, indices, places : as of `count_moved`
    data : float32 or float64 (nnz,)
    columns : int64 (u,)
    offsets : float64 (u,)
    scale : float64
    out_indptr : int64 (n + 1,); as `count_moved` gives it
    out_indices, out_data : written
    """
    values = unfilled(columns.shape[0], np.float64)
    for i in range(indptr.shape[0] - 1):
        values[:] = 0.0
        at = out_indptr[i]
        there = at + columns.shape[0]
        for t in range(indptr[i], indptr[i + 1]):
            place = places[indices[t]]
            if place >= 0:
                values[place] += data[t]  # entries of a sketched row may repeat an index
            else:
                out_indices[there] = indices[t]
                out_data[there] = data[t] * scale
                there += 1
        for u in range(columns.shape[0]):
            out_indices[at + u] = columns[u]
            out_data[at + u] = (values[u] - offsets[u]) * scale
