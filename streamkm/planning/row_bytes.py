"""Bytes that a row takes in memory, as floats and as sketched, by what its source says of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkm.sketches import Sketch
from streamkm.sketches.registry import sketch_class
from streamkm.sources.base import RowSource

STORED_ENTRY_BYTES = 8  # of a sketched sparse row: a value and its index


def is_dense(source: RowSource, sketch: Any, kind: str, n_components: int) -> bool:
    """Whether rows are dense once sketched."""
    asked = sketch if isinstance(sketch, Sketch) else sketch_class(kind)
    return not asked.sparsifies and not (source.is_sparse and asked.leaves_zeros(n_components))


def block_row_bytes(
    source: RowSource, row_bytes: int, sketch: Any, kind: str, n_components: int, nnz_per_feature: int | None = None
) -> int:
    """Bytes of a row once sketched, about; `sketch` is one that is made, if it is."""
    made = isinstance(sketch, Sketch)
    asked = sketch if made else sketch_class(kind)
    if asked.sparsifies:
        return STORED_ENTRY_BYTES * int(sketch.n_kept)
    if not is_dense(source, sketch, kind, n_components):
        entries = sketch.entries_per_stored if made else nnz_per_feature or asked.usual_entries
        return int(entries) * STORED_ENTRY_BYTES * row_bytes // (4 + source.dtype.itemsize)
    single = np.can_cast(source.dtype, np.float32) or (source.is_sparse and asked.sparse_as_single)
    return (4 if single else 8) * n_components


def float_row_bytes(source: RowSource, row_bytes: int) -> int:
    """Bytes of a row as floats of its original features, about; 0 where it need not be converted."""
    if source.is_sparse:
        return 0 if source.dtype == np.float32 else 4 * row_bytes // (4 + source.dtype.itemsize)
    values = 0 if source.dtype in (np.float32, np.float64) else row_bytes // source.dtype.itemsize
    return values * (4 if np.can_cast(source.dtype, np.float32) else 8)
