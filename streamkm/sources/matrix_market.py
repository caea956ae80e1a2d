"""Matrix Market files, plain or compressed, by path or URL: read as a whole when rows are first read.

The header gives the shape, so a plan counts or refuses the memory of the matrix before SciPy reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.io import mminfo, mmread

from streamkm.core.exceptions import SourceError
from streamkm.sources.binary.numpy_files import LoadedSource
from streamkm.sources.chunks import Access, Origin
from streamkm.sources.compressed_text import compression_of, decompressor
from streamkm.sources.local import unchanged
from streamkm.sources.memory.arrays import ArraySource, SparseSource
from streamkm.sources.row_source import RowSource
from streamkm.sources.stored import check_matrix, file_size, name_of, open_binary, opened_path

_ENTRY_BYTES = 64  # of an entry of a sparse matrix while rows are made of it; measured, mirrored too
_DAMAGE = (ValueError, TypeError, OverflowError, EOFError, OSError, MemoryError)


class MatrixMarketSource(LoadedSource):
    """Rows of a Matrix Market file: CSR from coordinates, with duplicates added up, dense from an array.

    Raises SourceError, SourceNotFoundError, MissingDependencyError: missing, damaged, truncated, or not of real numbers
    (behind the header, `read` raises them); InvalidInputError: no rows or columns.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, path: str) -> None:
        self._path = opened_path(path)
        self.name, self.origin = name_of((self._path,)), Origin(files=(self._path,))
        with self._text() as text:
            n, d, self._n_entries, form, field, symmetry = mminfo(text)
            self.is_sparse, self.n_rows, self.n_features = form == "coordinate", n, d
            if field == "complex" or (symmetry != "general" and (n != d or not self.is_sparse)):
                raise ValueError(f"{field}, {n:,} x {d:,} and {symmetry}; rows must be real, symmetry of coordinates")
        check_matrix((n, d), self.dtype, self.name)
        self.n_bytes = file_size(self._path)
        n_bytes = _ENTRY_BYTES * self._n_entries if self.is_sparse else 24 * n * d
        self.access = Access(in_process=True, decodes=True, resident_bytes=n_bytes, unloaded_bytes=n_bytes)

    def details(self) -> dict[str, str]:
        return {"format": "Matrix Market", "entries": f"{self._n_entries:,}", "chunks": "none, read as a whole"}

    def _load(self) -> RowSource:
        with self._text() as text:
            X = mmread(text, spmatrix=False)
        if self.is_sparse:
            return SparseSource(sp.csr_array(X, dtype=np.float64), name=self.name)
        return ArraySource(np.ascontiguousarray(X, np.float64), name=self.name)

    @contextmanager
    def _text(self) -> Iterator[Any]:
        """The decompressed text; errors within the context name the file."""
        with unchanged(self._path), open_binary(self._path) as raw:
            text, failures = decompressor(self._path, compression_of(self._path, raw), raw)
            failures = (*_DAMAGE, *failures)
            try:
                yield _Ended(text)
            except failures as error:
                raise SourceError(
                    f"{self._path} cannot be read as Matrix Market, it is truncated or damaged: {error}"
                ) from error


class _Ended:
    """Text without NUL, and with a line feed at its end: SciPy's reader kills the process at numbers cut there."""

    def __init__(self, text: Any) -> None:
        self._text, self._end = text, b"\n"

    def read(self, size: int = -1) -> bytes:
        """Read as files do."""
        data: bytes = self._text.read(size)
        if b"\0" in data:
            raise ValueError("NUL bytes, which no text has")
        if not data:
            data, self._end = self._end, b""
        return data
