"""CSR matrices that a kernel may walk without looking.

Responsible for proving that indices are in range, rising and distinct, and for repairing what can be repaired. May
import errors only. Where the arrays come from is none of its business.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError

INT32_MAX = int(np.iinfo(np.int32).max)
"""Largest number of features and of values that 32-bit indices serve."""


def csr_rows(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], *, n_features: int, name: str, first_row: int
) -> sp.csr_array:
    """Make CSR rows that a kernel may walk without looking: indices in range, rising and distinct within a row.

    Parameters
    ----------
    data, indices : ndarray of shape (nnz,)
        Not changed; shared with the result where nothing had to be repaired.
    indptr : int ndarray of shape (n + 1,)
        From 0 to nnz, never falling.
    n_features, name, first_row
        For the shape and for messages.

    Returns
    -------
    csr_array of shape (n, n_features)
        32-bit indices where they suffice. Entries of a row that name the same feature are added up.

    Raises
    ------
    InvalidInputError
        An index below 0 or not below `n_features`; names the row. O(nnz).
    """
    # read as unsigned, a negative index is a huge one: one comparison finds both kinds
    if len(indices) and indices.view(f"u{indices.itemsize}").max() >= n_features:
        at = int(((indices < 0) | (indices >= n_features)).argmax())
        row = first_row + int(np.searchsorted(indptr, at, side="right")) - 1
        raise InvalidInputError(
            f"index {indices[at]} in row {row:,} of {name} is out of range; {n_features:,} features allow "
            f"0-{n_features - 1:,}"
        )
    narrow = n_features <= INT32_MAX and len(data) <= INT32_MAX
    index_dtype = np.int32 if narrow else np.int64
    X = make_csr(
        data, indices.astype(index_dtype, copy=False), indptr.astype(index_dtype, copy=False), n_features=n_features
    )
    return X if X.has_canonical_format else _canonical(X, name)


def make_csr(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], *, n_features: int) -> sp.csr_array:
    """Put sound arrays together as a csr_array, which shares them.

    SciPy's constructor would copy arrays that are slices of much larger ones, which is eight times the work of all
    other checks.
    """
    X = sp.csr_array((len(indptr) - 1, n_features), dtype=data.dtype)
    X.data, X.indices, X.indptr = data, indices, indptr
    return X


def _canonical(X: sp.csr_array, name: str) -> sp.csr_array:
    """Sort the indices of every row and add up duplicates, in a copy; the dtype stays."""
    wide = X.dtype if X.dtype.kind == "f" else np.dtype(f"{X.dtype.kind}8")
    out = X.astype(wide, copy=True)
    out.sum_duplicates()
    if (
        wide != X.dtype
        and out.nnz
        and not (np.iinfo(X.dtype).min <= out.data.min() and out.data.max() <= np.iinfo(X.dtype).max)
    ):
        raise InvalidInputError(
            f"entries of {name} that name the same row and feature add up to more than {X.dtype} holds; "
            f"convert the data to a wider type or add the entries up"
        )
    return out.astype(X.dtype, copy=False)
