"""Matrix Market files, plain or compressed, by path or URL: SciPy reads the whole matrix when rows are first read.

The header tells the shape beforehand, so that a plan counts the memory of the matrix, or refuses it, before it is read.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from streamkm.core.exceptions import InvalidInputError, SourceError, StreamkmError
from streamkm.sources.base import ChunkedSource, Rows
from streamkm.sources.chunks import Chunk
from streamkm.sources.dense import cut_rows
from streamkm.sources.local import unchanged
from streamkm.sources.memory.arrays import ArraySource, SparseSource
from streamkm.sources.stored import file_size, name_of, opened_path
from streamkm.sources.svmlight.compressed import opened_text
from streamkm.sources.text_positions import Fill

_ENTRY_BYTES = 64  # of an entry of a sparse matrix while SciPy reads it and makes rows of it; measured, mirrored too
_DAMAGE = (ValueError, TypeError, OverflowError, EOFError, OSError, MemoryError)


class MatrixMarketSource(ChunkedSource):
    """Rows of a matrix in a Matrix Market file: CSR of a coordinate file, dense of an array. Duplicates are summed.

    Raises SourceError, SourceNotFoundError, MissingDependencyError: missing, damaged, truncated, or of numbers that are
    not real; errors behind the header are raised by `read`. Raises InvalidInputError: no rows or columns.
    """

    in_process = True
    decodes = True
    n_rows: int
    n_features: int

    def __init__(self, path: str) -> None:
        self._path = opened_path(path)
        self.name, self.files = name_of((self._path,)), (self._path,)
        n_rows, n_features, self._n_entries, form, field, _ = self._read(scipy.io.mminfo)
        if min(n_rows, n_features) < 1:
            raise InvalidInputError(f"{self._path} has {n_rows:,} rows of {n_features:,} columns; needed: 1 of each")
        if field == "complex":
            raise SourceError(f"{self._path} cannot be read as Matrix Market: complex values; rows must be real")
        self.n_rows, self.n_features = n_rows, n_features
        self.dtype, self.is_sparse = np.dtype(np.float64), form == "coordinate"
        self.n_bytes = file_size(self._path)
        self._turn = threading.Lock()
        self.producer_bytes = _ENTRY_BYTES * self._n_entries if self.is_sparse else 24 * n_rows * n_features

    def __reduce__(self) -> tuple[Any, ...]:
        return MatrixMarketSource, (self._path,)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows, as if all had equally many entries; see `ChunkedSource.chunks`. O(1)."""
        row_bytes = 8 + 12 * self._n_entries // self.n_rows if self.is_sparse else 8 * self.n_features
        return cut_rows(self.n_rows, row_bytes, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`. The first call reads the file."""
        with self._turn:
            matrix = self._matrix
        return matrix.read(chunk)

    def details(self) -> dict[str, str]:
        """Say what the file is; see `RowSource.details`."""
        n_entries = f"{self._n_entries:,}, {self._n_entries / self.n_rows:,.1f} a row"
        form = "coordinates" if self.is_sparse else "array"
        return {"format": f"Matrix Market, {form}", "nnz": n_entries, "chunks": "none, read as a whole"}

    @cached_property
    def _matrix(self) -> ArraySource | SparseSource:
        X = self._read(partial(scipy.io.mmread, spmatrix=False))
        if sp.issparse(X):
            return SparseSource(sp.csr_array(X, dtype=np.float64), name=self.name)
        return ArraySource(np.ascontiguousarray(X, np.float64), name=self.name)

    def _read(self, read: Any) -> Any:
        """Let SciPy read the text."""
        try:
            with unchanged(self._path), opened_text(self._path) as (fill, _):
                return read(io.BufferedReader(_Text(fill)))
        except StreamkmError:
            raise
        except _DAMAGE as error:
            raise SourceError(
                f"{self._path} cannot be read as Matrix Market, it is truncated or damaged: {error}"
            ) from error


class _Text(io.RawIOBase):
    """The text of a file, as SciPy reads it."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._fill(memoryview(buffer))
