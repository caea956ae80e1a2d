"""The matrix type of every layer, the precision of computations, and sums in a fixed order."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError

if TYPE_CHECKING:  # takes longer to import than all that most readers need
    import scipy.sparse as sp

Matrix: TypeAlias = "NDArray[Any] | sp.csr_array"


LINE_BYTES = 64


def is_sparse(X: Any) -> bool:
    """Whether a value is a sparse matrix of SciPy or of the package sparse; imports neither."""
    return hasattr(X, "nnz") and hasattr(X, "asformat")


def check_unmasked(X: Any, name: str, remedy: str) -> None:
    """Refuse masked values in an array of NumPy or a list of such rows. Raises InvalidInputError, naming the first."""
    if isinstance(X, list | tuple):
        for row, values in enumerate(X):
            if isinstance(values, np.ma.MaskedArray):
                check_unmasked(values, f"row {row:,} of {name}", remedy)
    if not isinstance(X, np.ma.MaskedArray) or not np.ma.is_masked(X):
        return
    at = ", ".join(f"{index:,}" for index in np.argwhere(np.ma.getmaskarray(X))[0])
    count = int(np.ma.getmaskarray(X).sum())
    raise InvalidInputError(
        f"{name} has {count:,} masked {'value' if count == 1 else 'values'}, the first at [{at}]; {remedy}"
    )


def with_nan(X: Any) -> Any:
    """Rows with NaN in place of masked values; values without a masked array are returned as they are."""
    if isinstance(X, list | tuple) and any(isinstance(row, np.ma.MaskedArray) for row in X):
        return [with_nan(row) for row in X]
    if not isinstance(X, np.ma.MaskedArray):
        return X
    if not np.ma.is_masked(X):
        return X.data
    return np.where(np.ma.getmaskarray(X), np.nan, X.data.astype(working_dtype(X.dtype)))


MASKED_ROWS = 'pass X.astype(float).filled(np.nan), and invalid="skip" to leave such rows out'
"""Remedy for masked values of rows."""


def working_dtype(dtype: Any) -> np.dtype[Any]:
    """float64 for types that float32 cannot hold exactly, float32 for the others."""
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32) else np.float64)


def as_working(values: NDArray[Any]) -> NDArray[Any]:
    """The values in their `working_dtype`; not copied if they have it."""
    return values.astype(working_dtype(values.dtype), copy=False)


def raw(values: NDArray[Any]) -> memoryview:
    """The bytes of an array's values in row order, for checksums; not copied if the array is C-contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def matrix_bytes(X: Matrix) -> int:
    """Bytes of rows in memory."""
    if isinstance(X, np.ndarray):
        return int(X.nbytes)
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)


def rows_between(X: Matrix, start: int, stop: int) -> Matrix:
    """Rows start..stop-1, without a copy of the values (SciPy copies when it slices CSR arrays)."""
    if isinstance(X, np.ndarray):
        return X[start:stop]
    import scipy.sparse as sp

    start, stop, _ = slice(start, stop).indices(X.shape[0])
    first, last = X.indptr[start], X.indptr[stop]
    part = sp.csr_array((stop - start, X.shape[1]), dtype=X.dtype)
    part.data, part.indices = X.data[first:last], X.indices[first:last]
    part.indptr = X.indptr[start : stop + 1] - first
    return part


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Uninitialized memory aligned to cache lines: vectors that straddle two lines cost a quarter of the time."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(n_bytes + LINE_BYTES, np.uint8)
    start = -memory.__array_interface__["data"][0] % LINE_BYTES  # in half the time of `memory.ctypes.data`
    return memory[start : start + n_bytes].view(dtype).reshape(shape)


def pack_matrix(name: str, X: Matrix) -> dict[str, NDArray[Any]]:
    """Named arrays, for a file, of a dense or CSR matrix; `unpack_matrix` gives it back."""
    if isinstance(X, np.ndarray):
        return {name: X}
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": np.array(X.shape)}
    return {f"{name}.{part}": array for part, array in parts.items()}


def unpack_matrix(name: str, arrays: Mapping[str, NDArray[Any]]) -> Matrix:
    """The matrix that `pack_matrix` packed."""
    import scipy.sparse as sp

    if name in arrays:
        return arrays[name]
    data, indices, indptr, shape = (arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr", "shape"))
    return sp.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))


def added_in_order(values: Iterable[float]) -> float:
    """The sum of numbers, added one after the other; from Python 3.12 on, `sum` gives other last bits."""
    return reduce(operator.add, values, 0.0)
