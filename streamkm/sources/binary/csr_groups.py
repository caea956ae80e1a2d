"""Sparse rows from three stored arrays (data, indices, indptr), whatever file they lie in.

Responsible for cutting CSR rows along the storage chunks of `data` and `indices`, for the ragged ends that this leaves,
and for proving that `indptr` is sound. Knows no file format: HDF5, Zarr and .npz find the arrays and hand them over.

Rows do not end where storage chunks end. A chunk of rows is cut at the first row that starts at or after a multiple
of the storage chunk, so two neighbours share one storage chunk of each array. What the neighbour needs of the decoded
one is held until it asks (`shared_chunks`): walked in order in one process, by any number of threads, every storage
chunk is read once a pass; out of order or in several processes, a read costs at most one storage chunk of each array
more at either end. How much that is, `shared_bytes` says: executors give neighbouring chunks to the same process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.base import ChunkedSource, Rows, row_places
from streamkm.sources.binary.shared_chunks import SharedChunks
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.csr_rows import INT32_MAX, csr_rows
from streamkm.sources.dense import check_count
from streamkm.sources.stored import StoredArray, decoded_dtype

_KEPT_INDPTR_BYTES = 1 << 26
_KEPT_BOUNDARY_BYTES = 1 << 24


class CsrSource(ChunkedSource):
    """Rows of a CSR matrix whose three arrays are stored.

    Held in memory: `indptr` once it is read, 8 bytes a row, up to 64 MiB (8 million rows; above that it is read in
    slices, once more for every call of `chunks` and once a pass), and at most 16 MiB of what neighbouring chunks share,
    besides one storage chunk of each array for each thread that reads where these are larger.

    Parameters
    ----------
    data, indices, indptr : StoredArray of shape (nnz,), (nnz,), (n + 1,)
    shape : (int, int)
        (n, d).
    name : str
    layout : str
        What the three arrays are called together, for people: ``AnnData CSR``.

    Raises
    ------
    InvalidInputError
        Lengths that do not fit together, an empty matrix, arrays of another type than numbers and integers. What only
        reading can tell (`indptr` not rising, indices out of range) is raised by `chunks` and `read`.
    """

    is_sparse = True
    read_factor = 4.0  # decoders hold several pieces, compressed and not

    def __init__(
        self,
        data: StoredArray,
        indices: StoredArray,
        indptr: StoredArray,
        *,
        shape: tuple[int, int],
        name: str,
        layout: str = "CSR",
    ) -> None:
        self._data, self._indices, self._indptr = data, indices, indptr
        self._nnz = data.shape[0]
        self._shape = shape
        self._layout = layout
        self.name = name
        self.in_process = any(array.in_process for array in (data, indices, indptr))
        self.decodes = data.decodes or indices.decodes
        self.files = tuple(dict.fromkeys(data.files + indices.files + indptr.files))
        self.libraries = tuple(dict.fromkeys(data.libraries + indices.libraries + indptr.libraries))
        self.n_rows, self.n_features = shape
        self.dtype, self.stored_dtype = decoded_dtype(data.dtype, data.name), data.dtype.newbyteorder("=")
        arrays = (data, indices, indptr)
        sizes = [array.n_bytes for array in arrays]
        self.n_bytes = None if None in sizes else sum(size or 0 for size in sizes)
        self.missing_chunks = "; ".join(array.missing_chunks for array in arrays if array.missing_chunks)
        # of storage chunks, what lies beyond the arrays; pointers are read before chunks are planned
        beyond = (array.unit_bytes - math.prod(array.shape) * array.dtype.itemsize for array in arrays)
        self.resident_bytes = self.unloaded_bytes = sum(max(0, n_bytes) for n_bytes in beyond)
        self.shared_bytes = sum(min(array.unit_rows, self._nnz) * array.dtype.itemsize for array in (data, indices))
        self._check_layout()
        self._start_empty()

    def details(self) -> dict[str, str]:
        """Say how the rows are stored; see `RowSource.details`."""
        of_data, of_indices = self._data.details(), self._indices.details()
        both = {
            label: text if text == of_indices.get(label) else f"data: {text}; indices: {of_indices.get(label)}"
            for label, text in of_data.items()
        }
        return {
            "format": f"{self._layout} in {self._data.format}",
            "nnz": f"{self._nnz:,}, {self._nnz / self._shape[0]:,.1f} a row",
            "indices": f"{self._indices.dtype}, pointers {self._indptr.dtype}",
            **both,
            **self.lacking(),
        }

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows. O(n) the first time, which reads `indptr`; see the class for when it is kept."""
        index_bytes = 4 if self._shape[1] <= INT32_MAX else 8
        value_bytes = self.dtype.itemsize + index_bytes
        unit = max(self._data.unit_rows, self._indices.unit_rows)
        step = max(1, target_bytes // (value_bytes * unit)) * unit
        # only empty rows are that many: their pointers alone would fill a chunk
        most_rows = max(target_bytes, value_bytes * unit) // 8
        # before the pointers are read: at least so many
        check_count(max(self._shape[0] // most_rows, self._nnz // step), self._shape[0], target_bytes)
        return ChunkRuns.of(self._pieces(step, value_bytes, most_rows))

    def _pieces(self, step: int, value_bytes: int, most_rows: int) -> Iterator[tuple[int, int, int, int]]:
        """Part, start, stop and bytes of each chunk."""
        start, start_nnz = 0, 0
        for row, nnz in self._cuts(step):
            share = (nnz - start_nnz) * value_bytes // max(1, row - start)
            for piece in range(start, row, most_rows):
                end = min(piece + most_rows, row)
                yield 0, piece, end, (end - piece) * (share + 8)
            start, start_nnz = row, nnz

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        pointers = self._pointers(chunk.start, chunk.stop)
        first, last = int(pointers[0]), int(pointers[-1])
        self._check_rising(pointers, chunk.start)
        if first < 0 or last > self._nnz:
            raise InvalidInputError(
                f"{self._indptr.name} points to values {first:,}-{last:,} for rows {chunk.start:,}-{chunk.stop - 1:,}, "
                f"but {self._data.name} has {self._nnz:,}"
            )
        X = csr_rows(
            self._span(self._data, first, last),
            self._span(self._indices, first, last),
            pointers - first,
            n_features=self._shape[1],
            name=self.name,
            first_row=chunk.start,
        )
        return Rows(X, row_places(chunk.start, chunk.stop))

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_kept", "_boundaries")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_empty()

    def _start_empty(self) -> None:
        self._kept: NDArray[np.int64] | None = None
        self._boundaries = SharedChunks(_KEPT_BOUNDARY_BYTES)

    def _check_layout(self) -> None:
        n_rows, n_features = self._shape
        if n_rows < 1 or n_features < 1:
            raise InvalidInputError(f"{self.name} has shape {self._shape}; at least 1 row and 1 feature are needed")
        for array, kinds in ((self._indices, "iu"), (self._indptr, "iu")):
            if array.dtype.kind not in kinds:
                raise InvalidInputError(f"{array.name} holds {array.dtype}; a CSR matrix needs integers there")
        for array in (self._data, self._indices, self._indptr):
            if len(array.shape) != 1:
                raise InvalidInputError(f"{array.name} has shape {array.shape}; a CSR matrix needs one dimension there")
        if self._indices.shape[0] != self._nnz:
            raise InvalidInputError(
                f"{self._indices.name} has {self._indices.shape[0]:,} entries and {self._data.name} {self._nnz:,}; "
                f"they must be equal"
            )
        if self._indptr.shape[0] != n_rows + 1:
            raise InvalidInputError(
                f"{self._indptr.name} has {self._indptr.shape[0]:,} entries; {n_rows:,} rows need {n_rows + 1:,}"
            )

    def _cuts(self, step: int) -> list[tuple[int, int]]:
        """(row, values before it) of every cut, the end included; checks all of `indptr` on the way."""
        cuts: list[tuple[int, int]] = []
        previous, multiple = 0, step
        for start, pointers in self._pointer_slices():
            if start == 0 and pointers[0] != 0:
                raise InvalidInputError(f"{self._indptr.name} starts with {pointers[0]:,}; it must start with 0")
            if pointers[0] < previous:
                raise InvalidInputError(f"{self._indptr.name} falls to {pointers[0]:,} at row {start - 1:,}")
            self._check_rising(pointers, start)
            previous = int(pointers[-1])
            multiples = np.arange(multiple, previous + 1, step)
            if len(multiples):
                multiple = int(multiples[-1]) + step
                at = np.unique(np.searchsorted(pointers, multiples, side="left"))
                cuts += zip((at + start).tolist(), pointers[at].tolist(), strict=True)
        if previous != self._nnz:
            raise InvalidInputError(
                f"{self._indptr.name} ends with {previous:,}, but {self._data.name} has {self._nnz:,} values"
            )
        n_rows = self._shape[0]
        return [*(cut for cut in cuts if cut[0] < n_rows), (n_rows, self._nnz)]

    def _pointer_slices(self) -> list[tuple[int, NDArray[np.int64]]] | Any:
        """`indptr` whole and kept, or slice by slice where it is too large for that."""
        entries = self._indptr.shape[0]
        if entries * 8 <= _KEPT_INDPTR_BYTES:
            if self._kept is None:
                self._kept = self._indptr.read(0, entries).astype(np.int64, copy=False)
            return [(0, self._kept)]
        unit = self._indptr.unit_rows
        step = max(1, (_KEPT_INDPTR_BYTES // 8) // unit) * unit
        return (
            (start, self._indptr.read(start, min(start + step, entries)).astype(np.int64, copy=False))
            for start in range(0, entries, step)
        )

    def _pointers(self, start: int, stop: int) -> NDArray[np.int64]:
        if self._kept is not None:
            return self._kept[start : stop + 1]
        return self._span(self._indptr, start, stop + 1, ends=True).astype(np.int64, copy=False)

    def _check_rising(self, pointers: NDArray[np.int64], first_row: int) -> None:
        falls = pointers[1:] < pointers[:-1]
        if falls.any():
            at = int(falls.argmax())
            raise InvalidInputError(
                f"{self._indptr.name} falls from {pointers[at]:,} to {pointers[at + 1]:,} at row {first_row + at:,}; "
                f"it must never fall"
            )

    def _span(self, array: StoredArray, first: int, last: int, *, ends: bool = False) -> NDArray[Any]:
        """Read values `first` to `last`: whole storage chunks from the array, ragged ends from `_boundaries`.

        `ends`: the first and the last of them are those that the reads before and behind have, too.
        """
        unit, size = array.unit_rows, array.shape[0]
        if first == last:
            return np.empty(0, decoded_dtype(array.dtype, array.name))
        if unit == 1:
            return array.read(first, last)
        before, behind = ends and first > 0, ends and last < size
        inner = min(-(-(first + before) // unit) * unit, last)
        outer = last if last == size else max(inner, (last - behind) // unit * unit)
        if first == inner and outer == last:
            return array.read(first, last)
        twice = [first] * before + [last - 1] * behind
        out = np.empty(last - first, decoded_dtype(array.dtype, array.name))
        if first < inner:
            out[: inner - first] = self._boundaries.get(array, first, inner, twice)
        if inner < outer:
            array.read_into(inner, outer, out[inner - first : outer - first])
        if outer < last:
            out[outer - first :] = self._boundaries.get(array, outer, last, twice)
        return out
