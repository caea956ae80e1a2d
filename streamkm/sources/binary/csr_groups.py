"""Sparse rows from three stored arrays (data, indices, indptr), in any kind of file.

Rows do not end where storage chunks end. A chunk of rows is cut at the first row that starts at or after a multiple of
the storage chunk, so two neighbours share one storage chunk of each array, whose rest is held for the neighbour
(`_SharedChunks`). A pass in order in one process, by any number of threads, reads every storage chunk of `data` and
`indices` once. Out of order or in several processes, a read costs at most one more of each array at either end
(`Access.shared_bytes`), so executors give neighbouring chunks to the same process.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chunks import Access, Chunk, ChunkRuns
from streamkm.sources.dense import READ_FACTOR, check_count
from streamkm.sources.row_source import Rows, RowSource, row_ids_between
from streamkm.sources.stored import INT32_MAX, StoredArray, check_matrix, csr_rows, decoded_dtype

_KEPT_INDPTR_BYTES = 1 << 26
_KEPT_BOUNDARY_BYTES = 1 << 24


class CsrSource(RowSource):
    """Rows of a CSR matrix of `shape` (n, d) whose three arrays are stored; `layout` describes them for people.

    Held in memory: `indptr`, 8 bytes a row, up to 64 MiB (above that, every call of `chunks` and every chunk takes
    slices); and shared storage chunks, at most 16 MiB plus one of each array for each reading thread if these are
    larger. Raises InvalidInputError: arrays that do not fit together, or an empty matrix; `chunks` and `read` raise it
    for falling `indptr` or an index out of range.
    """

    n_rows: int
    n_features: int
    is_sparse = True

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
        self._layout = layout
        self.name = name
        self.n_rows, self.n_features = shape
        self.dtype = decoded_dtype(data.dtype, data.name)
        arrays = (data, indices, indptr)
        sizes = [array.n_bytes for array in arrays]
        self.n_bytes = None if None in sizes else sum(size or 0 for size in sizes)
        self.origin = data.origin.joined([array.origin for array in arrays])
        # of storage chunks, what lies beyond the arrays; pointers are read before chunks are planned
        beyond = (array.unit_bytes - math.prod(array.shape) * array.dtype.itemsize for array in arrays)
        resident_bytes = sum(max(0, n_bytes) for n_bytes in beyond)
        self.access = replace(
            Access.joined([array.access for array in arrays]),
            decodes=data.access.decodes or indices.access.decodes,
            read_factor=READ_FACTOR,
            resident_bytes=resident_bytes,
            unloaded_bytes=resident_bytes,
            shared_bytes=sum(min(array.unit_rows, self._nnz) * array.dtype.itemsize for array in (data, indices)),
        )
        check_matrix(shape, data.dtype, name)
        for array, length, needed in (
            (indices, self._nnz, f" and {data.name} {self._nnz:,}; they must be equal"),
            (indptr, self.n_rows + 1, f"; {self.n_rows:,} rows need {self.n_rows + 1:,}"),
        ):
            if array.dtype.kind not in "iu":
                raise InvalidInputError(f"{array.name} holds {array.dtype}; a CSR matrix needs integers there")
            if array.shape != (length,):
                raise InvalidInputError(f"{array.name} has {math.prod(array.shape):,} entries{needed}")
        self._start_empty()

    def details(self) -> dict[str, str]:
        return {
            "format": f"{self._layout} in {self._data.format}",
            "nnz": f"{self._nnz:,}, {self._nnz / self.n_rows:,.1f} a row",
            "indices": f"{self._indices.dtype}, pointers {self._indptr.dtype}",
            **self._data.details(),
            **super().details(),
        }

    def chunks(self, target_bytes: int) -> ChunkRuns:
        """Cut at rows. O(n) the first time, which reads `indptr`."""
        index_bytes = 4 if self.n_features <= INT32_MAX else 8
        value_bytes = self.dtype.itemsize + index_bytes
        unit = max(self._data.unit_rows, self._indices.unit_rows)
        step = max(1, target_bytes // (value_bytes * unit)) * unit
        # only empty rows are that many: their pointers alone would fill a chunk
        most_rows = max(target_bytes, value_bytes * unit) // 8
        # before the pointers are read: at least so many
        check_count(max(self.n_rows // most_rows, self._nnz // step), self.n_rows, target_bytes)
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
            n_features=self.n_features,
            name=self.name,
            first_row=chunk.start,
        )
        return Rows(X, row_ids_between(chunk.start, chunk.stop))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_loading": None, "_boundaries": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_empty()

    def _start_empty(self) -> None:
        self._keeps_pointers = 8 * max(self._indptr.shape[0], self._indptr.unit_rows) <= _KEPT_INDPTR_BYTES
        self._kept: NDArray[np.int64] | None = None
        self._loading = threading.Lock()
        self._boundaries = _SharedChunks(_KEPT_BOUNDARY_BYTES)

    def _cuts(self, step: int) -> list[tuple[int, int]]:
        """(row, values before it) of every cut, the end included; checks all of `indptr`."""
        cuts: list[tuple[int, int]] = []
        previous, multiple = 0, step
        entries, unit = self._indptr.shape[0], self._indptr.unit_rows
        most = entries if self._keeps_pointers else max(1, (_KEPT_INDPTR_BYTES // 8) // unit) * unit
        for start in range(0, entries, most):
            pointers = self._pointers(start, min(start + most, entries) - 1)
            if start == 0 and pointers[0] != 0:
                raise InvalidInputError(f"{self._indptr.name} starts with {pointers[0]:,}; it must start with 0")
            self._check_rising(np.append(previous, pointers), start - 1)
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
        return [*(cut for cut in cuts if cut[0] < self.n_rows), (self.n_rows, self._nnz)]

    def _pointers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Pointers of rows, and of the end of the last."""
        if not self._keeps_pointers:
            return self._indptr.read(start, stop + 1).astype(np.int64, copy=False)
        with self._loading:
            if self._kept is None:
                self._kept = self._indptr.read(0, self._indptr.shape[0]).astype(np.int64, copy=False)
        return self._kept[start : stop + 1]

    def _check_rising(self, pointers: NDArray[np.int64], first_row: int) -> None:
        falls = pointers[1:] < pointers[:-1]
        if falls.any():
            at = int(falls.argmax())
            raise InvalidInputError(
                f"{self._indptr.name} falls from {pointers[at]:,} to {pointers[at + 1]:,} at row {first_row + at:,}; "
                f"it must never fall"
            )

    def _span(self, array: StoredArray, first: int, last: int) -> NDArray[Any]:
        """Read values `first` to `last`: whole storage chunks from the array, ragged ends from `_boundaries`."""
        unit = array.unit_rows
        inner = min(-(-first // unit) * unit, last)
        outer = last if last == self._nnz else max(inner, last // unit * unit)
        out = np.empty(last - first, decoded_dtype(array.dtype, array.name))
        if first < inner:
            out[: inner - first] = self._boundaries.get(array, first, inner)
        if inner < outer:
            array.read_into(inner, outer, out[inner - first : outer - first])
        if outer < last:
            out[outer - first :] = self._boundaries.get(array, outer, last)
        return out


@dataclass(slots=True, eq=False)
class _Held:
    """The values of a storage chunk, or a part of them, that other reads still need."""

    # which values of the array
    start: int
    stop: int
    left: tuple[tuple[int, int], ...]  # of these, those that will be asked for
    values: Future[NDArray[Any]] = field(default_factory=Future)  # Future of ndarray of shape (stop - start,)

    def take(self, start: int, stop: int) -> None:
        """Count values as taken."""
        pieces = [piece for low, high in self.left for piece in ((low, min(high, start)), (max(low, stop), high))]
        self.left = tuple(piece for piece in pieces if piece[0] < piece[1])


class _SharedChunks:
    """Decoded storage chunks that some reads have used in part and others still need.

    Threads wait for a storage chunk that another decodes. Once most of its values were read, the rest is copied:
    threads that read runs of chunks in order hold one storage chunk of each array, and small pieces where runs meet.
    Above `most_bytes`, the least recently used is dropped, and decoded again if needed; the newest of each array do not
    count if they do not fit in.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, int], _Held] = OrderedDict()
        self._threads: WeakSet[threading.Thread] = WeakSet()

    def get(self, array: StoredArray, start: int, stop: int) -> NDArray[Any]:
        """Give values `start` to `stop` of one storage chunk, read-only; all waiting threads get its error."""
        key = (array.name, start // array.unit_rows)
        with self._lock:
            self._threads.add(threading.current_thread())
            held, is_new = self._held.get(key), False
            if held is None or start < held.start or held.stop < stop:
                first = key[1] * array.unit_rows
                last, is_new = min(first + array.unit_rows, array.shape[0]), True
                held = self._held[key] = _Held(first, last, ((first, last),) if held is None else held.left)
            held.take(start, stop)
            self._held.move_to_end(key)
        if is_new:
            try:
                held.values.set_result(array.read(held.start, held.stop))
            except BaseException as error:
                with self._lock:
                    if self._held.get(key) is held:
                        del self._held[key]
                held.values.set_exception(error)
                raise
        values = held.values.result()[start - held.start : stop - held.start]
        with self._lock:
            if self._held.get(key) is held:
                self._trim(key, held)
            self._make_room()
        return values

    def _trim(self, key: tuple[str, int], held: _Held) -> None:
        """Drop storage chunks that were read completely; copy the rest of those that mostly were."""
        if not held.left:
            del self._held[key]
            return
        start, stop = held.left[0][0], held.left[-1][1]
        if 2 * (stop - start) < held.stop - held.start:
            rest = self._held[key] = _Held(start, stop, held.left)
            rest.values.set_result(held.values.result()[start - held.start : stop - held.start].copy())

    def _make_room(self) -> None:
        room = self._most_bytes
        large: Counter[str] = Counter()
        for key, held in reversed(list(self._held.items())):
            if not held.values.done():
                continue
            n_bytes = held.values.result().nbytes
            if n_bytes <= room:
                room -= n_bytes
            elif large[key[0]] < len(self._threads):
                large[key[0]] += 1
            else:
                del self._held[key]
