"""Picking rows of CSR arrays. numba only; arrays in, arrays out; the caller validates."""

from __future__ import annotations

from streamkm.kernels.compiling import kernel


@kernel
def add_csr_rows(indptr, indices, data, rows, out):
    """Add CSR rows to dense ones: ``out += X[rows].toarray()``; entries may repeat an index. O(nnz of the rows).

    Parameters
    ----------
    indptr, indices : int32 or int64
    data : (nnz,)
    rows : int64 (r,)
    out : float64 (r, m)
        Added to.
    """
    for q in range(rows.shape[0]):
        for t in range(indptr[rows[q]], indptr[rows[q] + 1]):
            out[q, indices[t]] += data[t]


@kernel
def place_dense_rows(X, rows, places, out):
    """Copy dense rows to their places: ``out[places] = X[rows]``.

    Parameters
    ----------
    X : uint8 (n, b)
        Rows as bytes.
    rows, places : int64 (r,)
    out : uint8 (at least r, b)
        Written.
    """
    for q in range(rows.shape[0]):
        row, placed = X[rows[q]], out[places[q]]
        for j in range(row.shape[0]):
            placed[j] = row[j]


@kernel
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
