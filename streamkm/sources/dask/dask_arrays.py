"""Dask arrays of dense, SciPy CSR or `sparse` COO blocks; only the interface that all of Dask's array classes share."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import scipy.sparse as sp
from dask.array import blockwise, concatenate, from_array, from_delayed
from dask.delayed import delayed
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import MASKED_ROWS, Matrix, check_unmasked
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.memory.arrays import SparseSource, open_array
from streamkm.sources.row_graphs import RowGraph, RowGraphs, same
from streamkm.sources.row_source import RemoteView, Rows, RowSource, row_ids_between
from streamkm.sources.stored import check_matrix, decoded_dtype

_PLACE_BITS = 40


class DaskSource(RowSource):
    """Rows of a Dask array (n, d), never computed as a whole; one chunk is one row-block, whatever `target_bytes` says.

    If heights of blocks are unknown, row r of block b has the place ``(b << 40) + r``, and a chunk has the row ids of
    its block. The bytes of such chunks, and of sparse ones (by ``_meta``), are given as `target_bytes`. Raises
    InvalidInputError: not two-dimensional, an unknown number of features or none, not of real numbers; `read` raises it
    for a block that differs from the array's metadata.
    """

    n_features: int
    _graphs: RowGraphs | None

    def __init__(self, array: Any, *, name: str = "dask array") -> None:
        shape = tuple(0 if math.isnan(length) else int(length) for length in array.shape)
        unknown_rows = bool(shape) and any(math.isnan(height) for height in array.chunks[0])
        if len(shape) == 2 and any(math.isnan(width) for width in array.chunks[1]):
            raise InvalidInputError(f"{name} has an unknown number of features; call compute_chunk_sizes() on it first")
        check_matrix((1, *shape[1:]) if unknown_rows else shape, array.dtype, name)
        self._array = array
        self._unknown_rows = unknown_rows
        self.name = name
        self.n_features = shape[1]
        self.n_rows = None if unknown_rows else shape[0]
        self.dtype = decoded_dtype(array.dtype, name)
        self.is_sparse = not isinstance(array._meta, np.ndarray)
        self._start()

    @property
    def computed(self) -> DaskSource:
        return self

    def chunks(self, target_bytes: int) -> ChunkRuns:
        return ChunkRuns.of(self._cuts(target_bytes))

    def _cuts(self, target_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Part, start, stop and bytes of each chunk."""
        start = 0
        for block, height in enumerate(self._array.chunks[0]):
            stop = start + int(height) if not self._unknown_rows else (block + 1) << _PLACE_BITS
            known = not self._unknown_rows and not self.is_sparse
            if stop > start:
                n_bytes = (stop - start) * self.n_features * self.dtype.itemsize if known else target_bytes
                yield 0, start, stop, n_bytes
            start = stop

    def read(self, chunk: Chunk) -> Rows:
        """Compute the graph of one row-block in this thread; persisted values are fetched from their cluster."""
        row, block = self._made_by(chunk)
        X = block.joined(row.compute(self.graphs().values_here(row.inputs)))
        return Rows(X, row_ids_between(chunk.start, chunk.start + X.shape[0]))

    def graphs(self) -> RowGraphs:
        """Give the graph, cut into row-blocks; made once, in time proportional to its size."""
        with self._lock:
            if self._graphs is None:
                self._graphs = RowGraphs(self._array)
            return self._graphs

    def packed(self, chunk: Chunk) -> tuple[Callable[[list[Any]], Matrix], list[Any]]:
        """Give a function that computes a row-block anywhere, and keys of `graphs` for the values that it needs."""
        from distributed.protocol.pickle import dumps

        row, block = self._made_by(chunk)
        # functions that were defined on the spot go along, and open files by their names
        return partial(computed_block, dumps((row, block))), row.inputs

    def lazily(
        self,
        function: Callable[[Rows, Any], NDArray[Any]],
        prepare: Callable[[], Any],
        *,
        meta: NDArray[Any],
        n_columns: int | None = None,
    ) -> Any:
        """Map rows to a Dask array (n,) or (n, n_columns) of the same row-blocks; computes and rechunks nothing.

        `function` gets `Rows`, one row-block at a time, and the value of `prepare`, which runs once in each process; it
        gives a value, or a row of `n_columns`, for each row. `meta`: a block of the result without rows.
        """
        n_blocks = len(self._array.chunks[0])
        starts, stops = np.arange(n_blocks) << _PLACE_BITS, np.full(n_blocks, -1)
        if self._starts is not None:
            starts, stops = self._starts[:-1], self._starts[1:]
        # an array without dimensions, whose block is what `prepare` gives
        named = f"streamkm-{secrets.token_hex(16)}"
        prepared = from_array(_Prepared(prepare), (), name=named, asarray=False, meta=np.empty((), object))
        return blockwise(
            partial(_map_block, function, self._block(self.name, None), meta),
            "i" if n_columns is None else "ik",
            *(self._array, "ij", from_array(starts, chunks=1), "i", from_array(stops, chunks=1), "i", prepared, ""),
            new_axes=None if n_columns is None else {"k": n_columns},
            align_arrays=False,
            concatenate=None,
            meta=meta,
            token="streamkm",
        )

    def row_blocks(self, chunk_rows: NDArray[np.int64]) -> tuple[tuple[int, ...], bool]:
        """Rows of each row-block, from `chunk_rows` of a pass if the array does not know them, and whether it does."""
        if self._unknown_rows:
            return tuple(chunk_rows.tolist()), False
        return tuple(int(height) for height in self._array.chunks[0]), True

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_graphs")}
        # graphs hold functions that were defined on the spot, which plain pickle cannot take along
        return {**state, "_array": cloudpickle.dumps(self._array)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._array = cloudpickle.loads(state["_array"])
        self._start()

    def describe(self, place: int) -> str:
        return _describe_in_block(self.name, place) if self._unknown_rows else super().describe(place)

    def remote_view(self) -> RowSource:
        return RemoteView(self, partial(_describe_in_block, self.name) if self._unknown_rows else None)

    def details(self) -> dict[str, str]:
        kind = "sparse" if self.is_sparse else "dense"
        down, across = (len(lengths) for lengths in self._array.chunks)
        return {"format": f"Dask array, {kind} blocks", "chunks": f"{down:,} x {across:,} blocks"}

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._graphs = None
        heights = self._array.chunks[0]
        self._starts = None if self._unknown_rows else np.cumsum([0, *heights])

    def _made_by(self, chunk: Chunk) -> tuple[RowGraph, _Block]:
        """The tasks of a row-block, and its expected form."""
        number, n_rows = chunk.start >> _PLACE_BITS, None
        if self._starts is not None:
            # an empty block starts where the next one does: of those, the last has the rows
            number = int(np.searchsorted(self._starts, chunk.start, side="right")) - 1
            n_rows = chunk.stop - chunk.start
        return self.graphs().row(number), self._block(f"row-block {number:,} of {self.name}", n_rows)

    def _block(self, name: str, n_rows: int | None) -> _Block:
        return _Block(name, n_rows, self.n_features, self._array.dtype, self.is_sparse)


@dataclass(frozen=True, slots=True)
class _Block:
    """The expected form of a row-block, checked by `joined`; small enough to send with every task."""

    name: str
    n_rows: int | None
    n_features: int
    declared: np.dtype[Any]
    is_sparse: bool

    def joined(self, columns: list[Any]) -> Matrix:
        """Put column blocks side by side; refuse a result that differs from the array's metadata."""
        X = join_blocks(columns)
        declared = (*X.shape[:1], self.n_features) if self.n_rows is None else (self.n_rows, self.n_features)
        if X.shape != declared:
            raise InvalidInputError(f"{self.name} has shape {X.shape}; the array says {declared}")
        if sp.issparse(X) and not self.is_sparse:
            raise InvalidInputError(
                f"{self.name} is sparse, but the array says that its blocks are dense; make the array with "
                f"meta=scipy.sparse.csr_matrix((0, 0))"
            )
        dtype = decoded_dtype(self.declared, self.name)
        if X.shape[0] == 0:
            return sp.csr_array(X.shape, dtype=dtype) if self.is_sparse else np.empty(X.shape, dtype)
        opened = SparseSource(sp.csr_array(X), name=self.name) if self.is_sparse else open_array(X, name=self.name)
        if not np.can_cast(opened.dtype, dtype):
            raise InvalidInputError(
                f"{self.name} holds {X.dtype}; the array says {self.declared}: pass X.astype({opened.dtype.name!r})"
            )
        (whole,) = opened.chunks(1 << 62)
        return opened.read(whole).X.astype(dtype, copy=False)


def computed_block(pickled: bytes, inputs: list[Any]) -> Matrix:
    """Compute a pickled row-block in this thread on the values of its inputs; see `DaskSource.packed`."""
    row, block = cloudpickle.loads(pickled)
    X: Matrix = block.joined(row.compute(inputs))
    return X


class _Prepared:
    """The value of `prepare` as an array's element, made where it is read: not all arrays take delayed values."""

    shape: tuple[int, ...] = ()
    ndim = 0
    dtype = np.dtype(object)

    def __init__(self, prepare: Callable[[], Any]):
        self._prepare, self._lock, self._value = prepare, threading.Lock(), None

    def __getitem__(self, _: Any) -> Any:
        with self._lock:
            if self._value is None:
                self._value = self._prepare()
            return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        return _Prepared, (self._prepare,)


def _map_block(
    function: Callable[..., NDArray[Any]],
    block: _Block,
    meta: NDArray[Any],
    columns: list[Any],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    shared: Any,
) -> NDArray[Any]:
    first = int(start[0])
    height = None if stop[0] < 0 else int(stop[0]) - first
    name = f"the row-block from row {first:,} of {block.name}" if height else block.name
    X = replace(block, name=name, n_rows=height).joined(columns)
    if X.shape[0] == 0:
        return meta
    return function(Rows(X, row_ids_between(first, first + X.shape[0])), shared).astype(meta.dtype, copy=False)


def _describe_in_block(name: str, place: int) -> str:
    return f"row {place & ((1 << _PLACE_BITS) - 1):,} of block {place >> _PLACE_BITS:,} of {name}"


def array_of_parts(parts: list[Any], shape: tuple[float, int], dtype: np.dtype[Any], meta: Any = None) -> Any:
    """Delayed matrices as row-blocks of a Dask array, each of this shape; heights may be unknown."""
    return concatenate([from_delayed(part, shape, dtype, meta) for part in parts])


def array_of_arrays(
    function: Callable[..., NDArray[Any]], parts: list[tuple[tuple[Any, ...], int]], dtype: np.dtype[Any]
) -> Any:
    """A one-dimensional Dask array of one block for each part: arguments of the function, and the block's length."""
    made = [from_delayed(delayed(function)(*given), (length,), dtype) for given, length in parts]
    return concatenate(made) if made else from_array(np.empty(0, dtype))


def dask_labels(labels: Any, heights: tuple[int, ...], *, known: bool = True) -> Any:
    """Labels (n,) of a fit as a Dask array with the row-blocks of the data; of unknown heights, unless `known`."""
    array = labels.rechunk((heights,)) if hasattr(labels, "dask") else from_array(labels, chunks=(heights,))
    return array if known else array.map_blocks(same, chunks=((math.nan,) * len(heights),), meta=array._meta)


_FILLED = "da.ma.filled(X.astype(float), "  # arrays of Dask have no method for it


def join_blocks(blocks: list[Any]) -> Any:
    """Put the column blocks (rows, columns) of one row-block side by side; `sparse` arrays become SciPy's."""
    for block in blocks:
        check_unmasked(block, "a block of the Dask array", MASKED_ROWS.replace("X.astype(float).filled(", _FILLED))
    blocks = [block.to_scipy_sparse() if hasattr(block, "to_scipy_sparse") else block for block in blocks]
    blocks = [block if sp.issparse(block) else np.asarray(block) for block in blocks]
    if len(blocks) == 1:
        return blocks[0]
    if any(sp.issparse(block) for block in blocks):
        return sp.hstack([sp.csr_array(block) for block in blocks], format="csr")
    return np.concatenate(blocks, axis=1)
