"""NumPy arrays, frames, memory maps and SciPy sparse matrices: rows that are in memory already, or mapped into it.

Opens no file; NumPy's own file formats are in `numpy_files`.
"""

from __future__ import annotations

import logging
import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import MASKED_ROWS, check_unmasked
from streamkm.sources.base import ChunkedSource, Rows, row_places
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.dense import (
    Bfloat16Source,
    DenseSource,
    check_said,
    cut_rows,
    is_bfloat16,
    word_dtype,
    words_of,
)
from streamkm.sources.frames import (
    check_names_once,
    column_names,
    frame_table,
    has_sparse_columns,
    is_frame,
    is_read_by_column,
    sparse_matrix,
    without_index,
)
from streamkm.sources.memory.tables import MemoryTable
from streamkm.sources.stored import FileArray, check_matrix, csr_rows, decoded_dtype

logger = logging.getLogger(__name__)


class ArraySource(ChunkedSource):
    """Rows of an array in memory. Pickles with all of its values.

    `X` (ndarray of shape (n, d)): not copied. Rows are given as C-contiguous arrays in native byte order: views where X
    is that already. `name`, `form`: what messages call it, and what it is, for people. `feature_names`: names of the
    columns. Raises InvalidInputError: not two-dimensional, empty, or not of real numbers.
    """

    is_sparse = False
    in_process = True

    def __init__(
        self,
        X: NDArray[Any],
        *,
        name: str = "array",
        form: str = "NumPy array in memory",
        feature_names: tuple[str, ...] | None = None,
    ) -> None:
        check_matrix(X.shape, X.dtype, name)
        self._X = X
        self._form = form
        self.feature_names = feature_names
        self.name = name
        self.n_rows, self.n_features = X.shape
        self.dtype = decoded_dtype(X.dtype, name)
        self.n_bytes = self.resident_bytes = X.nbytes

    def details(self) -> dict[str, str]:
        """Say what the array is; see `RowSource.details`."""
        return {"format": self._form}

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows; see `ChunkedSource.chunks`. O(1)."""
        return cut_rows(self._X.shape[0], self._X.shape[1] * self.dtype.itemsize, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        rows = np.asarray(self._X[chunk.start : chunk.stop])
        return Rows(np.ascontiguousarray(rows, self.dtype), row_places(chunk.start, chunk.stop))


class SparseSource(ChunkedSource):
    """Rows of a SciPy sparse matrix in memory. Pickles with all of its values.

    `X` (sparse matrix or array of shape (n, d)): CSR is not copied; any other format is converted once, which takes as
    much memory again. `name`, `form`: what messages call it, and what it is, for people. Raises InvalidInputError: not
    two-dimensional, empty, or not of real numbers. By `read`: indices out of range.
    """

    is_sparse = True
    in_process = True

    def __init__(self, X: Any, *, name: str = "sparse matrix", form: str = "SciPy CSR in memory") -> None:
        check_matrix(X.shape, X.dtype, name)
        if not sp.issparse(X):  # of the package sparse
            try:
                X = X.asformat("coo").to_scipy_sparse()
            except ValueError as error:
                raise InvalidInputError(f"{name} cannot be made a sparse matrix of SciPy: {error}") from error
        if X.format != "csr":
            logger.info("%s is %s; converting it to CSR once", name, X.format.upper())
            X = X.tocsr()
        self._X = X
        self._form = form
        self.name = name
        self.n_rows, self.n_features = X.shape
        self.dtype = decoded_dtype(X.dtype, name)
        self.n_bytes = self.resident_bytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
        indptr, stored = X.indptr, min(len(X.data), len(X.indices))
        falls = indptr[1:] < indptr[:-1]
        if falls.any():
            raise InvalidInputError(f"indptr of {name} falls at row {int(falls.argmax()):,}; it must never fall")
        if indptr[0] != 0 or int(indptr[-1]) > stored:
            raise InvalidInputError(
                f"indptr of {name} goes from {indptr[0]} to {indptr[-1]:,}; it must go from 0 to {stored:,}"
            )

    def details(self) -> dict[str, str]:
        """Say what the matrix is; see `RowSource.details`."""
        nnz = int(self._X.indptr[-1])
        return {
            "format": self._form,
            "nnz": f"{nnz:,}, {nnz / self._X.shape[0]:,.1f} a row",
            "indices": str(self._X.indices.dtype),
        }

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows by their stored bytes; O(chunks log n)."""
        return ChunkRuns.of(self._cuts(target_bytes))

    def _cuts(self, target_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Part, start, stop and bytes of each chunk."""
        indptr = self._X.indptr
        n_rows = len(indptr) - 1
        value_bytes = self.dtype.itemsize + self._X.indices.itemsize
        start = 0

        def size(stop: int) -> int:
            return int(indptr[stop] - indptr[start]) * value_bytes + (stop - start) * 8

        while start < n_rows:
            # bytes of rows up to the first that does not fit rise; a row that is too large is a chunk by itself
            stop = max(start + 1, bisect_right(range(n_rows + 1), target_bytes, start + 1, key=size) - 1)
            yield 0, start, stop, size(stop)
            start = stop

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        pointers = self._X.indptr[chunk.start : chunk.stop + 1]
        first, last = int(pointers[0]), int(pointers[-1])
        X = csr_rows(
            np.asarray(self._X.data[first:last], self.dtype),
            np.asarray(self._X.indices[first:last]),
            pointers - pointers[0],
            n_features=self._X.shape[1],
            name=self.name,
            first_row=chunk.start,
        )
        return Rows(X, row_places(chunk.start, chunk.stop))


class MappedSource(ArraySource):
    """Rows of an array that is mapped from a file, but are no block of it: some of its columns, every other row.

    Pages that were read are given back, so that they do not stay in the process. See `ArraySource`.
    """

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk, as a copy; see `ChunkedSource.read`."""
        values = self._X[chunk.start : chunk.stop]
        rows = Rows(np.array(values, self.dtype, order="C"), row_places(chunk.start, chunk.stop))
        root = _memory_map(self._X)
        pages = None if root is None else root.base
        if root is not None and isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            # pages of the map, which starts in front of the file's part that the array shows
            begun = _address(root) - root.offset % mmap.ALLOCATIONGRANULARITY
            first, last = (bound - begun for bound in byte_bounds(values))
            low = first // mmap.PAGESIZE * mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, low, last - low)
        return rows


def open_array(X: Any, *, name: str | None = None, dtype: str | None = None) -> ChunkedSource:
    """Open an array, a frame, or whatever NumPy makes one of.

    Rows that a memory map shows, and views of it, are read from the file: mapped pages that were read would count as
    the process's own. Maps whose changes stay in memory (mode "c") are arrays like any.

    `name`: what messages call it. `dtype` ("bfloat16" or None): what 16-bit words, or values of two bytes without a
    type, are; arrays and tensors of that type say so. Raises InvalidInputError: not two-dimensional, empty, or not of
    real numbers. Raises InvalidParameterError: another `dtype`.
    """
    called = name or "array"
    check_said(dtype, name or "an array")
    check_unmasked(X, called, MASKED_ROWS)
    if str(layout := getattr(X, "layout", "")).startswith("torch.sparse"):
        raise InvalidInputError(
            f"{called} is a sparse tensor of PyTorch ({layout}); pass a matrix of SciPy: T = X.to_sparse_csr(), then "
            f"scipy.sparse.csr_array((T.values(), T.col_indices(), T.crow_indices()), T.shape)"
        )
    if dtype is not None or is_bfloat16(X):
        words = words_of(X) if is_bfloat16(X) else np.asanyarray(X)
        return Bfloat16Source(open_array(words.view(word_dtype(words.dtype, called)), name=name))
    # a tensor of PyTorch without its gradient, in this processor's memory
    X = X.detach().cpu() if hasattr(X, "detach") and hasattr(X, "cpu") else X
    root = _memory_map(X)
    if root is not None and root.mode != "c":
        if root.mode != "r":
            root.flush()
        path, by_rows = str(root.filename), X.flags.c_contiguous
        if not (by_rows or X.flags.f_contiguous):
            return MappedSource(X, name=path, form="part of a memory map")
        offset = root.offset + _address(X) - _address(root)
        return DenseSource(
            FileArray(path, offset, X.shape, X.dtype, name=path, fortran_order=not by_rows, format="memory map")
        )
    try:
        if is_frame(X):
            return _open_frame(without_index(X), name or "data frame")
        return ArraySource(np.asarray(X), name=called)
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"{called} cannot be made an array of rows: {error}") from error


def open_frame(X: Any, **options: Any) -> ChunkedSource:
    """Open a frame in memory; see `open_source` for options, `MemoryTable` for errors."""
    return MemoryTable(X, **options) if options else open_array(X)


def _open_frame(X: Any, name: str) -> ChunkedSource:
    """Open a frame: its values as one array, CSR where it has sparse columns, else column by column as a table."""
    form = f"{type(X).__module__.partition('.')[0]} {type(X).__name__} in memory"
    X, names = X if hasattr(X, "__array__") else frame_table(X, name), column_names(X)
    check_names_once(X.column_names if hasattr(X, "column_names") else X.columns, name)
    if has_sparse_columns(X):
        source = SparseSource(sparse_matrix(X), name=name, form=f"{form}, sparse columns")
        source.feature_names = names
        return source
    if not is_read_by_column(X):
        values = np.asarray(X)
        if values.dtype.kind in "buif":
            return ArraySource(values, name=name, form=form, feature_names=names)
    return MemoryTable(X, name)


def _memory_map(X: Any) -> np.memmap[Any, Any] | None:
    """The memory map of a file that an array is, or shows a part of."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap) and X.filename is not None and isinstance(X.base, mmap.mmap):
            return X
        X = X.base
    return None


def _address(X: NDArray[Any]) -> int:
    """Of the first value."""
    return int(X.__array_interface__["data"][0])
