"""Bytes that a row takes in memory, as floats and as sketched, by what its source says of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkm.sketches import CountSketch, PreconditionedSampling
from streamkm.sketches.countsketch import DENSE_COMPONENTS
from streamkm.sources.base import RowSource

LEAVES_ZEROS = ("countsketch", "identity", "leverage", "laplacian", "selection")  # of sparse rows


def block_row_bytes(source: RowSource, row_bytes: int, sketch: Any, kind: str, n_components: int) -> int:
    """Bytes of a row once sketched, about."""
    if isinstance(sketch, PreconditionedSampling):
        return 8 * sketch.n_kept
    if source.is_sparse and kind in LEAVES_ZEROS:
        if kind == CountSketch.kind and n_components <= DENSE_COMPONENTS:
            return 4 * n_components
        entries = sketch.nnz_per_feature if isinstance(sketch, CountSketch) else 1
        return entries * 8 * row_bytes // (4 + source.dtype.itemsize)
    itemsize = 4 if np.can_cast(source.dtype, np.float32) else 8
    return itemsize * n_components


def float_row_bytes(source: RowSource, row_bytes: int) -> int:
    """Bytes of a row as floats of its original features, about; 0 where it need not be converted."""
    if source.is_sparse:
        return 0 if source.dtype == np.float32 else 4 * row_bytes // (4 + source.dtype.itemsize)
    working = 4 if np.can_cast(source.dtype, np.float32) else 8
    return 0 if source.dtype in (np.float32, np.float64) else row_bytes // source.dtype.itemsize * working
