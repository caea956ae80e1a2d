"""Small matrices and files that several readers' tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st
from numpy.typing import NDArray

DTYPES = ("?", "u1", "i2", "<i8", ">u4", "f2", "<f4", ">f4", ">f8")


def dense_matrix(n_rows: int = 53, n_features: int = 7, dtype: str = "f4") -> NDArray[Any]:
    """Whole numbers, so that every dtype holds them exactly."""
    values = np.random.default_rng(n_rows).integers(0, 100, (n_rows, n_features))
    return (values % 2 if dtype == "?" else values).astype(dtype)


def sparse_matrix(n_rows: int = 53, n_features: int = 31, density: float = 0.2, dtype: str = "f4") -> sp.csr_array:
    """With empty rows at the start, in the middle and at the end, and zero columns."""
    X = sp.random_array((n_rows, n_features), density=density, format="lil", rng=np.random.default_rng(n_rows))
    X = X.toarray()
    X[[0, n_rows // 2, -1]] = 0
    X[:, -1] = 0
    return sp.csr_array(np.ceil(X * 100).astype(dtype))


def unknown(array: Any) -> Any:
    """A Dask array without the heights of its blocks."""
    copy = array.copy()
    copy._chunks = ((np.nan,) * len(array.chunks[0]), array.chunks[1])
    return copy


@st.composite
def sparse_matrices(draw: st.DrawFn) -> sp.csr_array:
    """CSR matrices with any pattern: empty rows, zero columns, one row, no values at all."""
    n_rows, n_features = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    seed, density = draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 0.05, 0.5, 1.0]))
    rng = np.random.default_rng(seed)
    mask = rng.random((n_rows, n_features)) < density
    mask[rng.random(n_rows) < draw(st.sampled_from([0.0, 0.5]))] = False
    return sp.csr_array(np.where(mask, rng.integers(1, 100, mask.shape), 0).astype(np.float32))


def write_csr(group: Any, X: Any, *, chunk: int | None = None, encoding: str = "csr_matrix", **options: Any) -> None:
    """Write a CSR matrix as AnnData does, into an HDF5 or Zarr group."""
    create = group.create_array if hasattr(group, "create_array") else group.create_dataset
    for name in ("data", "indices", "indptr"):
        values = getattr(X, name)
        size = {} if chunk is None else {"chunks": (max(1, min(chunk, len(values))),)}
        create(name, data=values, **size, **options)
    group.attrs["shape"] = list(X.shape)
    group.attrs["encoding-type"] = encoding
