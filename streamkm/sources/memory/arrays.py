"""NumPy arrays, frames, memory maps and SciPy sparse matrices in memory. Opens no file (see `numpy_files`)."""

from __future__ import annotations

import logging
import mmap
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import MASKED_ROWS, check_unmasked
from streamkm.sources.chunks import Access, Chunk, ChunkRuns
from streamkm.sources.dense import DenseSource, cut_rows, is_bfloat16
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
from streamkm.sources.row_source import Rows, RowSource, row_ids_between
from streamkm.sources.stored import FileArray, as_decoded, check_matrix, csr_rows, decoded_dtype

logger = logging.getLogger(__name__)


class ArraySource(RowSource):
    """Rows of an array (n, d) in memory, which is not copied; pickles with all values.

    Rows are C-contiguous arrays in native byte order: views if X is. `form` is a text for people. Raises
    InvalidInputError: not two-dimensional, empty, or not of real numbers.
    """

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
        self.n_bytes = X.nbytes
        self.access = Access(in_process=True, resident_bytes=X.nbytes)

    def details(self) -> dict[str, str]:
        return {"format": self._form}

    def chunks(self, target_bytes: int) -> ChunkRuns:
        return cut_rows(self._X.shape[0], self._X.shape[1] * self.dtype.itemsize, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        rows = np.asarray(self._X[chunk.start : chunk.stop])
        return Rows(as_decoded(rows, self.dtype), row_ids_between(chunk.start, chunk.stop))


class SparseSource(RowSource):
    """Rows of a SciPy sparse matrix (n, d) in memory; pickles with all values.

    CSR is not copied; any other format is converted once, which takes as much memory again. `form` is a text for
    people. Raises InvalidInputError: not two-dimensional, empty, or not of real numbers; `read`: indices out of range.
    """

    is_sparse = True

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
        self.n_bytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
        self.access = Access(in_process=True, resident_bytes=self.n_bytes)
        indptr, stored = X.indptr, min(len(X.data), len(X.indices))
        falls = indptr[1:] < indptr[:-1]
        if falls.any():
            raise InvalidInputError(f"indptr of {name} falls at row {int(falls.argmax()):,}; it must never fall")
        if indptr[0] != 0 or int(indptr[-1]) > stored:
            raise InvalidInputError(
                f"indptr of {name} goes from {indptr[0]} to {indptr[-1]:,}; it must go from 0 to {stored:,}"
            )

    def details(self) -> dict[str, str]:
        nnz = int(self._X.indptr[-1])
        return {
            "format": self._form,
            "nnz": f"{nnz:,}, {nnz / self._X.shape[0]:,.1f} a row",
            "indices": str(self._X.indices.dtype),
        }

    def chunks(self, target_bytes: int) -> ChunkRuns:
        """Cut at rows by their stored bytes. O(chunks log n)."""
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
        return Rows(X, row_ids_between(chunk.start, chunk.stop))


class MappedSource(ArraySource):
    """Rows of a non-contiguous view of a mapped file; pages that were read are released. See `ArraySource`."""

    def read(self, chunk: Chunk) -> Rows:
        values = self._X[chunk.start : chunk.stop]
        rows = Rows(as_decoded(np.array(values, order="C"), self.dtype), row_ids_between(chunk.start, chunk.stop))
        root = _memory_map(self._X)
        pages = None if root is None else root.base
        if root is not None and isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            # pages of the map, which starts in front of the file's part that the array shows
            begun = _address(root) - root.offset % mmap.ALLOCATIONGRANULARITY
            first, last = (bound - begun for bound in byte_bounds(values))
            low = first // mmap.PAGESIZE * mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, low, last - low)
        return rows


def open_array(X: Any, *, name: str | None = None) -> RowSource:
    """Open an array, a frame, or any value that NumPy converts to an array.

    Memory maps, and views of them, are read from the file, as mapped pages would count as the process's own; maps whose
    changes stay in memory (mode "c") are ordinary arrays. Raises InvalidInputError: not two-dimensional, empty, or not
    of real numbers.
    """
    called = name or "array"
    check_unmasked(X, called, MASKED_ROWS)
    if hasattr(X, "detach") and hasattr(X, "cpu"):  # a tensor of PyTorch
        X = X.detach().cpu()
        if is_bfloat16(X):
            import torch

            X = X.view(torch.uint16).numpy().view("V2")
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
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{called} cannot be made an array of rows: {error}") from error


def open_frame(X: Any, **options: Any) -> RowSource:
    """Open a frame in memory; see `open_source` for options, `MemoryTable` for errors."""
    return MemoryTable(X, **options) if options else open_array(X)


def _open_frame(X: Any, name: str) -> RowSource:
    """Open a frame as one array, as CSR if it has sparse columns, or column by column as a table."""
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
    """The memory map behind an array; None if there is none."""
    while isinstance(X, np.ndarray):
        if isinstance(X, np.memmap) and X.filename is not None and isinstance(X.base, mmap.mmap):
            return X
        X = X.base
    return None


def _address(X: NDArray[Any]) -> int:
    """Address of the first value."""
    return int(X.__array_interface__["data"][0])
