"""Frames of pandas with sparse columns: which there are, and rows of those that are no sparse matrix.

Imports no pandas: what a sparse column is, its type tells. Frames whose columns are all sparse are opened in `arrays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamkm.sources.base import ChunkedSource, Rows, row_places
from streamkm.sources.chunks import Chunk
from streamkm.sources.dense import cut_rows
from streamkm.sources.memory.frames import column_names, frame_values, has_arrow_values, has_dates
from streamkm.sources.stored import check_matrix, decoded_dtype


class SparseFrame(ChunkedSource):
    """Rows of a frame with sparse and other columns; each chunk is made dense when it is read. Pickles with all values.

    `name`, `form`: what messages call it, and what it is, for people. Raises InvalidInputError: no rows, no columns, or
    not of numbers.
    """

    is_sparse = False
    in_process = True
    read_factor = 2.0  # what pandas makes of a chunk, and the rows

    def __init__(self, X: Any, *, name: str, form: str) -> None:
        dtype = frame_values(X.iloc[:1], name).dtype
        if not all(isinstance(kind, np.dtype) or _is_sparse(kind) for kind in X.dtypes):
            dtype = np.result_type(dtype, np.float64)  # later rows may hold nulls
        check_matrix(X.shape, dtype, name)
        self._X, self._form, self.name = X, form, name
        self.feature_names = column_names(X)
        self.n_rows, self.n_features = X.shape
        self.dtype = decoded_dtype(dtype, name)
        self.n_bytes = self.resident_bytes = max(1, int(X.memory_usage(index=False).sum()))

    def details(self) -> dict[str, str]:
        """Say what the frame is; see `RowSource.details`."""
        n_sparse = sum(_is_sparse(kind) for kind in self._X.dtypes)
        return {"format": self._form, "sparse columns": f"{n_sparse:,} of {self.n_features:,}, made dense by chunks"}

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows; see `ChunkedSource.chunks`. O(1)."""
        return cut_rows(self._X.shape[0], self._X.shape[1] * self.dtype.itemsize, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        values = frame_values(self._X.iloc[chunk.start : chunk.stop], self.name)
        return Rows(np.ascontiguousarray(values, self.dtype), row_places(chunk.start, chunk.stop))


def has_sparse_columns(X: Any) -> bool:
    """Whether a frame is one of pandas and has sparse columns."""
    return hasattr(X, "iloc") and any(_is_sparse(kind) for kind in X.dtypes)


def is_sparse_matrix(X: Any) -> bool:
    """Whether all columns of a frame of pandas are sparse, and what they leave out is zero."""
    return hasattr(X, "iloc") and all(_is_sparse(kind) and kind.fill_value == 0 for kind in X.dtypes)


def is_read_by_column(X: Any) -> bool:
    """Whether a frame has columns that scikit-learn would take wrongly: dates, but for pandas, which refuses these.

    Of pandas: columns that become objects, or dense as a whole.
    """
    if not hasattr(X, "iloc"):
        return has_dates(X)
    return has_arrow_values(X) or (has_sparse_columns(X) and not is_sparse_matrix(X))


def _is_sparse(kind: Any) -> bool:
    return hasattr(kind, "subtype") and hasattr(kind, "fill_value")
