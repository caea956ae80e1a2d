"""Picking rows of CSR arrays, and sorting keys. numba only; arrays in, arrays out; the caller validates."""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled


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
def place_lengths(indptr, rows, places, out):
    """Put the number of entries of CSR rows to their places: ``out[places] = diff(indptr)[rows]``.

    Parameters
    ----------
    indptr : int32 or int64
    rows, places : int64 (r,)
    out : int64
        Written.
    """
    for q in range(rows.shape[0]):
        out[places[q]] = indptr[rows[q] + 1] - indptr[rows[q]]


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


_DIGIT_BITS = 11
_N_DIGITS = 6  # of 64 bits
_MASK = np.uint64((1 << _DIGIT_BITS) - 1)


@kernel
def lowest_first(bits, order, other):
    """Sort words by radix, stably. O(n).

    The readable form is ``order[:] = argsort(bits, kind="stable")``.

    Parameters
    ----------
    bits : uint64 (n,)
        Of floats that are not negative: those are in the order of their bits.
    order, other : int64 (n,)
        Written; `other` is room to work in.
    """
    n = bits.shape[0]
    counts = unfilled((_N_DIGITS, 1 << _DIGIT_BITS), np.int64)
    counts[:] = 0
    for i in range(n):
        order[i] = i
        word = bits[i]
        for digit in range(counts.shape[0]):  # not a constant: the loop would be unrolled, which takes long
            counts[digit, (word >> np.uint64(_DIGIT_BITS * digit)) & _MASK] += 1
    for digit in range(counts.shape[0]):
        places = counts[digit]
        shift = np.uint64(_DIGIT_BITS * digit)
        if n == 0 or places[(bits[0] >> shift) & _MASK] == n:
            continue  # the same for all
        total = 0
        for value in range(places.shape[0]):
            count = places[value]
            places[value] = total
            total += count
        for i in range(n):
            value = (bits[order[i]] >> shift) & _MASK
            other[places[value]] = order[i]
            places[value] += 1
        for i in range(n):
            order[i] = other[i]
