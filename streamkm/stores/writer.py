"""Parts of sketch stores: their arrays as they grow, and what of them is on disk for sure.

The layout is described in `streamkm.sources.sketch_store`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from streamkm.core.atomic_io import remove_tree, sync, writing
from streamkm.core.matrix import Matrix, raw
from streamkm.sources.sketch_store import CSR_ARRAYS, ROOT, PartInfo

CHUNK_BYTES = 2 << 20  # of a storage chunk, decoded
_CODEC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}  # 2 GB/s written, 4 read, by one thread
_PARTIAL = ".partial"  # ends the names of files that zarr, or `replace_file`, was writing when it was killed


class PartWriter:
    """Rows on their way into a part of a store.

    Parameters
    ----------
    directory : path
        Of the part. What is there is continued, from where `state` says, or replaced.
    kind : "dense" or "csr"
    dtype : dtype
        Of the values.
    n_components : int
    state : (dict of arrays, dict of JSON values), optional
        What an earlier `commit` gave.

    Attributes
    ----------
    n_rows : int
        Rows added.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        kind: str,
        dtype: Any,
        n_components: int,
        state: tuple[Mapping[str, NDArray[Any]], Mapping[str, Any]] | None = None,
    ):
        self._directory = Path(directory)
        self._kind, self._n_components = kind, n_components
        dtype = np.dtype(dtype)
        self._settings = {"kind": kind, "dtype": dtype.str, "n_components": n_components}
        self.n_rows = self._nnz = 0
        if state is None:
            with writing(directory):
                remove_tree(directory)
                zarr.create_group(str(directory))
        if kind == "dense":
            self._arrays = {"X": _GrowingArray(self._directory / "X", dtype, n_components)}
        else:
            if state is None:
                with writing(directory):
                    zarr.create_group(str(self._directory / "X"))
            dtypes = (dtype, np.dtype(np.int32), np.dtype(np.int64))
            self._arrays = {
                name: _GrowingArray(self._directory / "X" / name, each)
                for name, each in zip(CSR_ARRAYS, dtypes, strict=True)
            }
        if state is not None:
            self.n_rows, self._nnz = state[1]["n_rows"], state[1]["nnz"]
            for name, array in self._arrays.items():
                array.resume(state[1]["written"][name], state[0][f"{name}.tail"], state[0][f"{name}.checksums"])
        elif kind == "csr":
            self._arrays["indptr"].add(np.zeros(1, np.int64))

    @classmethod
    def resume(
        cls, directory: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> PartWriter:
        """Go on from what `commit` gave."""
        return cls(directory, meta["kind"], meta["dtype"], meta["n_components"], (arrays, meta))

    def add(self, X: Matrix) -> None:
        """Append rows, canonical CSR or dense as the part is.

        Raises
        ------
        DiskFullError, OutputError
            What the last `commit` gave is still valid.
        """
        with writing(self._directory):
            if isinstance(X, np.ndarray):
                self._arrays["X"].add(X)
            else:
                self._arrays["data"].add(X.data)
                self._arrays["indices"].add(X.indices.astype(np.int32, copy=False))
                self._arrays["indptr"].add(X.indptr[1:] + np.int64(self._nnz))
                self._nnz += int(X.indptr[-1])
        self.n_rows += X.shape[0]

    def commit(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Bring what was added to the disk; give the state to go on from: what fills no storage chunk, and numbers."""
        with writing(self._directory):
            for array in self._arrays.values():
                array.flush()
            for folder in (self._directory / "X", self._directory, self._directory.parent):
                sync(folder)
        state: dict[str, NDArray[Any]] = {}
        for name, array in self._arrays.items():
            state[f"{name}.tail"], state[f"{name}.checksums"] = array.tail(), np.array(array.checksums, np.uint32)
        written = {name: array.written for name, array in self._arrays.items()}
        return state, {**self._settings, "n_rows": self.n_rows, "nnz": self._nnz, "written": written}

    def finish(self, number: int, weights: NDArray[np.float64]) -> PartInfo:
        """Complete the part and bring all of it to the disk.

        Parameters
        ----------
        number : int
            The part's.
        weights : float64 (n,) or (0,)
        """
        with writing(self._directory):
            if self._kind == "csr":
                group = zarr.open_group(str(self._directory / "X"), mode="r+")
                group.attrs.update(
                    {
                        "encoding-type": "csr_matrix",
                        "encoding-version": "0.1.0",
                        "shape": [self.n_rows, self._n_components],
                    }
                )
            arrays = dict(self._arrays)
            if len(weights):
                arrays["weights"] = _GrowingArray(self._directory / "weights", np.dtype(np.float64))
                arrays["weights"].add(weights)
            zarr.create_group(str(self._directory / "checksums"), overwrite=True)
            found = {}
            for name, array in arrays.items():
                array.finish()
                checksums = np.array(array.checksums, np.uint32)
                found[name] = zlib.crc32(raw(checksums))
                table = create_array(
                    self._directory / "checksums" / name, np.dtype(np.uint32), (max(1, len(checksums)),)
                )
                table.resize((len(checksums),))
                table[:] = checksums
            for folder, _, names in os.walk(self._directory, topdown=False):
                for name in names:
                    path = os.path.join(folder, name)
                    os.unlink(path) if name.endswith(_PARTIAL) else sync(path)
                sync(folder)
        return PartInfo(number, self.n_rows, found)


class _GrowingArray:
    """A Zarr array that rows are appended to, storage chunk by storage chunk.

    Parameters
    ----------
    directory : Path
    dtype : dtype
    width : int or None
        Columns; None for one dimension.
    """

    def __init__(self, directory: Path, dtype: np.dtype[Any], width: int | None = None):
        self._directory = directory
        self._inner = () if width is None else (width,)
        self._unit = max(1, CHUNK_BYTES // (dtype.itemsize * (width or 1)))
        exists = (directory / ROOT).exists()
        self._array = (
            zarr.open_array(str(directory), mode="r+")
            if exists
            else create_array(directory, dtype, (self._unit, *self._inner))
        )
        self._pending: list[NDArray[Any]] = [np.empty((0, *self._inner), dtype)]
        self._n_pending = 0
        self._unsynced: list[int] = []
        self.written = 0
        self.checksums: list[int] = []

    def resume(self, written: int, tail: NDArray[Any], checksums: NDArray[np.uint32]) -> None:
        self.written, self.checksums = written, checksums.tolist()
        self._pending, self._n_pending = [tail], len(tail)

    def add(self, values: NDArray[Any]) -> None:
        """Append values; whole storage chunks are written."""
        self._pending.append(values)
        self._n_pending += len(values)
        full = self._n_pending // self._unit * self._unit
        if full:
            joined = np.concatenate(self._pending)
            self._write(joined[:full])
            self._pending, self._n_pending = [joined[full:].copy()], self._n_pending - full

    def tail(self) -> NDArray[Any]:
        """Values that fill no storage chunk yet."""
        return np.concatenate(self._pending)

    def flush(self) -> None:
        """Bring what was written to the disk."""
        folders = {self._directory}
        for number in self._unsynced:
            key = self._array.metadata.encode_chunk_key((number, *(0 for _ in self._inner)))
            path = self._directory / key
            if path.exists():  # a storage chunk of zeros is not stored
                sync(path)
                folders.add(path.parent)
        sync(self._directory / ROOT)
        for folder in folders:
            sync(folder)
        self._unsynced = []

    def finish(self) -> None:
        """Write the rest; nothing may be added afterwards."""
        tail = self.tail()
        if len(tail):
            self._write(tail)
        self._pending, self._n_pending = [tail[:0]], 0

    def _write(self, values: NDArray[Any]) -> None:
        start, stop = self.written, self.written + len(values)
        self._array.resize((stop, *self._inner))
        self._array[start:stop] = values
        for at in range(0, len(values), self._unit):
            self.checksums.append(zlib.crc32(raw(values[at : at + self._unit])))
            self._unsynced.append((start + at) // self._unit)
        self.written = stop


def create_array(directory: Path, dtype: np.dtype[Any], chunks: tuple[int, ...]) -> Any:
    """An empty array with room to grow along the first axis."""
    codec = BloscCodec(**_CODEC, typesize=dtype.itemsize)  # type: ignore[arg-type]
    return zarr.create_array(
        str(directory), shape=(0, *chunks[1:]), chunks=chunks, dtype=dtype, compressors=codec, fill_value=0
    )
