"""Writing sketch stores.

Responsible for a part's arrays as they grow, for what of them is on disk for sure, and for the one step that makes them
part of a store: the replacement of its zarr.json. Where rows come from is none of its business; the layout is described
in `streamkm.sources.sketch_store`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from streamkm.core.atomic_io import remove_tree, replace_file, sync, writing
from streamkm.core.exceptions import OutputError
from streamkm.core.manifest import shortly
from streamkm.core.matrix import Matrix, raw
from streamkm.core.partial_files import FILE_TAG
from streamkm.preparation import Preparation
from streamkm.sketches import Sketch
from streamkm.sources.sketch_store import CSR_ARRAYS, ROOT, STEPS_PREFIX, PartInfo, StoreInfo

CHUNK_BYTES = 2 << 20  # of a storage chunk, decoded
_CODEC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}  # 2 GB/s written, 4 read, by one thread
_PARTIAL = ".partial"  # ends the names of files that zarr, or `replace_file`, was writing when it was killed
_PARTIAL_ROOT = re.compile(rf"zarr\.[0-9a-f]{{32}}\.partial|\.zarr\.json\.{FILE_TAG}\.partial")  # of such a zarr.json
_OF_A_PART = frozenset({ROOT, "X", "weights", "checksums"})


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
                table = _create(self._directory / "checksums" / name, np.dtype(np.uint32), (max(1, len(checksums)),))
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
            else _create(directory, dtype, (self._unit, *self._inner))
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


def _create(directory: Path, dtype: np.dtype[Any], chunks: tuple[int, ...]) -> Any:
    """An empty array with room to grow along the first axis."""
    codec = BloscCodec(**_CODEC, typesize=dtype.itemsize)  # type: ignore[arg-type]
    return zarr.create_array(
        str(directory), shape=(0, *chunks[1:]), chunks=chunks, dtype=dtype, compressors=codec, fill_value=0
    )


def start_store(path: str | os.PathLike[str], sketch: Sketch, preparation: Preparation | None) -> dict[str, int]:
    """Make the groups of a store and write what its sketch needs and steps have found; give the checksums of that."""
    place = Path(path)
    checksums = {}
    found = {} if preparation is None else preparation.arrays()
    arrays = sketch.arrays() | {STEPS_PREFIX + name: values for name, values in found.items()}
    with writing(path):
        for group in ("", "parts", "sketch"):
            if not (place / group / ROOT).exists():
                zarr.create_group(str(place / group))
        for name, values in arrays.items():
            remove_tree(place / "sketch" / name)
            array = _create(place / "sketch" / name, values.dtype, (max(1, len(values)), *values.shape[1:]))
            array.resize(values.shape)
            array[...] = values
            checksums[name] = zlib.crc32(raw(values))
        for folder, _, names in os.walk(place / "sketch", topdown=False):
            for each in (*(os.path.join(folder, name) for name in names), folder):
                sync(each)
    return checksums


def publish(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Make a store what `info` says, in one step; then remove parts that it no longer has.

    What a killed process left of files that it was writing is removed before. Only one process at a time may do this.
    """
    root = info.to_root()
    with writing(path):
        for folder in ("", "parts", "sketch"):
            for left in (Path(path) / folder).iterdir():
                if _PARTIAL_ROOT.fullmatch(left.name):
                    left.unlink()
        sync(Path(path) / "parts")
    replace_file(Path(path) / ROOT, lambda file: file.write(root), len(root))
    sweep_parts(path, info)


def sweep_parts(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Remove parts that a store does not have: whatever else lies there stays."""
    kept = {str(part.number) for part in info.parts}
    for entry in (Path(path) / "parts").iterdir():
        if entry.name not in kept and entry.name.isdecimal() and not list(_foreign(entry, _OF_A_PART)):
            remove_tree(entry)


def check_only_store(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Refuse to replace a store's directory where other files lie among the store's.

    Raises
    ------
    OutputError
        Names them.
    """
    place = Path(path)
    found = list(_foreign(place, {ROOT, "parts", "sketch"}))
    found += _foreign(place / "sketch", {ROOT, *info.sketch_checksums})
    numbers = [entry.name for entry in (place / "parts").iterdir() if entry.name.isdecimal()]
    found += _foreign(place / "parts", {ROOT, *numbers})
    for number in numbers:
        found += _foreign(place / "parts" / number, _OF_A_PART)
    if found:
        names = shortly(str(entry.relative_to(place)) for entry in found)
        raise OutputError(f"{place} holds other files than those of a sketch store ({names}); move them away")


def _foreign(directory: Path, own: Collection[str]) -> Iterator[Path]:
    """What lies in a directory, or is it, that streamkm does not write there; it writes no symbolic links."""
    if directory.is_symlink() or not directory.is_dir():
        yield directory
        return
    for entry in directory.iterdir():
        if entry.is_symlink() or (entry.name not in own and not _PARTIAL_ROOT.fullmatch(entry.name)):
            yield entry


def part_directory(path: str | os.PathLike[str], number: int) -> Path:
    """Where a part of a store lies."""
    return Path(path) / "parts" / str(number)


def next_part(info: StoreInfo) -> int:
    """The number of a part to come."""
    return 1 + max(part.number for part in info.parts)
