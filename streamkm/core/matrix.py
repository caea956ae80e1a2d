"""What rows are made of: the matrix type of every layer, and the precision that work is done in."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # takes longer to import than all that most readers need
    import scipy.sparse as sp

Matrix: TypeAlias = "NDArray[Any] | sp.csr_array"


LINE_BYTES = 64


def working_dtype(dtype: Any) -> np.dtype[Any]:
    """float64 for types that float32 cannot hold exactly, float32 for the others."""
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32) else np.float64)


def as_working(values: NDArray[Any]) -> NDArray[Any]:
    """The values in their `working_dtype`; no copy where they have it."""
    return values.astype(working_dtype(values.dtype), copy=False)


def raw(values: NDArray[Any]) -> memoryview:
    """The bytes of an array's values, row after row, for checksums; no copy where they lie like that."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def matrix_bytes(X: Matrix) -> int:
    """Bytes that rows take in memory."""
    if isinstance(X, np.ndarray):
        return int(X.nbytes)
    return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)


def rows_between(X: Matrix, start: int, stop: int) -> Matrix:
    """Rows start..stop-1, whose values are not copied (SciPy's slices of CSR arrays are copies)."""
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
    """Memory that begins at a cache line: a vector then never lies across two, which costs a quarter of the time."""
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
    """The matrix that `pack_matrix` made arrays of."""
    import scipy.sparse as sp

    if name in arrays:
        return arrays[name]
    data, indices, indptr, shape = (arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr", "shape"))
    return sp.csr_array((data, indices, indptr), shape=tuple(shape.tolist()))
