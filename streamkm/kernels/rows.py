"""Picking rows of CSR arrays. numba only; arrays in, arrays out; the caller validates."""

from __future__ import annotations

import numba as nb


@nb.njit(nogil=True, cache=True)
def place_rows(indptr, indices, data, rows, places, out_indptr, out_indices, out_data):
    """Copy CSR rows to their places among the rows of another array.

    The readable form is ``out[places] = X[rows]``. O(entries copied).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : (nnz,)
    rows, places : int64 (r,)
        Row of X, and row of the result, of every row to copy.
    out_indptr : int64
        Where the rows of the result start.
    out_indices, out_data : as indices and data
        Written.
    """
    for q in range(rows.shape[0]):
        at = out_indptr[places[q]]
        for t in range(indptr[rows[q]], indptr[rows[q] + 1]):
            out_indices[at] = indices[t]
            out_data[at] = data[t]
            at += 1
