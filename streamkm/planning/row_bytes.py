"""Bytes that a row takes in memory, as floats and as sketched, by what its source says of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkm.sketches import CountSketch, PreconditionedSampling, SparseJL
from streamkm.sketches.countsketch import DENSE_COMPONENTS
from streamkm.sketches.sparse_jl import USUAL_PER_FEATURE
from streamkm.sources.base import RowSource

HASHED = (CountSketch.kind, SparseJL.kind)
STORED_ENTRY_BYTES = 8  # of a sketched sparse row: a value and its index
LEAVES_ZEROS = (*HASHED, "identity", "leverage", "laplacian", "selection")  # of sparse rows


def is_dense(source: RowSource, sketch: Any, kind: str, n_components: int) -> bool:
    """Whether rows are dense once sketched."""
    if isinstance(sketch, PreconditionedSampling):
        return False
    narrow = kind in HASHED and n_components <= DENSE_COMPONENTS
    return narrow or not (source.is_sparse and kind in LEAVES_ZEROS)


def block_row_bytes(
    source: RowSource, row_bytes: int, sketch: Any, kind: str, n_components: int, nnz_per_feature: int | None = None
) -> int:
    """Bytes of a row once sketched, about; `sketch` is one that is made, if it is."""
    if isinstance(sketch, PreconditionedSampling):
        return 8 * sketch.n_kept
    if not is_dense(source, sketch, kind, n_components):
        entries = sketch.nnz_per_feature if isinstance(sketch, CountSketch) else 1
        if kind == SparseJL.kind and not isinstance(sketch, CountSketch):
            entries = nnz_per_feature or USUAL_PER_FEATURE
        return entries * STORED_ENTRY_BYTES * row_bytes // (4 + source.dtype.itemsize)
    single = source.is_sparse and kind in LEAVES_ZEROS
    itemsize = 4 if single or np.can_cast(source.dtype, np.float32) else 8
    return itemsize * n_components


def float_row_bytes(source: RowSource, row_bytes: int) -> int:
    """Bytes of a row as floats of its original features, about; 0 where it need not be converted."""
    if source.is_sparse:
        return 0 if source.dtype == np.float32 else 4 * row_bytes // (4 + source.dtype.itemsize)
    working = 4 if np.can_cast(source.dtype, np.float32) else 8
    return 0 if source.dtype in (np.float32, np.float64) else row_bytes // source.dtype.itemsize * working
