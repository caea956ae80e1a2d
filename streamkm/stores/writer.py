"""Sketch stores as they are written: the root, which names the parts that count, and arrays that grow.

The layout is described in `streamkm.sources.sketch_store`.
"""

from __future__ import annotations

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from streamkm.cluster.blocks import merged
from streamkm.cluster.sampling.row_sample import as_block_matrix
from streamkm.core.atomic_io import remove_tree, replace_file, sync, writing
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, raw
from streamkm.core.progress import Stage
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map
from streamkm.passes.context import PassContext
from streamkm.passes.reader import ValidRows
from streamkm.preparation import Preparation
from streamkm.sketches import Sketch
from streamkm.sources.sketch_store import CSR_ARRAYS, ROOT, STEPS_PREFIX, PartInfo, StoreInfo

STORED_COPIES = 4  # of a sketched chunk: made, gathered, compressed, written
CHUNK_BYTES = 2 << 20  # of a storage chunk, decoded
_OF_A_PART = re.compile(r"zarr\.json|X|weights|checksums|zarr\.[0-9a-f]{32}\.partial")
_CODEC = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}  # 2 GB/s written, 4 read, by one thread


def start_store(place: Path, sketch: Sketch, preparation: Preparation | None) -> dict[str, int]:
    """Make the groups of a store and write what its sketch needs and steps have found; give the checksums of that."""
    checksums = {}
    found = {} if preparation is None else preparation.arrays()
    arrays = sketch.arrays() | {STEPS_PREFIX + name: values for name, values in found.items()}
    with writing(place):
        for group in ("", "parts", "sketch"):
            zarr.create_group(str(place / group))
        for name, values in arrays.items():
            array = create_array(place / "sketch" / name, values.dtype, (max(1, len(values)), *values.shape[1:]))
            array.resize(values.shape)
            array[...] = values
            checksums[name] = zlib.crc32(raw(values))
        _sync_all(place / "sketch")
    return checksums


def publish(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Make a store what `info` says, in one step, the replacement of its root; then remove parts that it lost."""
    root = info.to_root()
    with writing(path):
        sync(Path(path) / "parts")
    replace_file(Path(path) / ROOT, lambda file: file.write(root), len(root))
    sweep_parts(path, info)


def sweep_parts(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Remove parts that a store does not have: those that it lost, or that a killed process began."""
    kept = {str(part.number) for part in info.parts}
    for entry in (Path(path) / "parts").iterdir():
        if entry.name in kept or not entry.name.isdecimal() or entry.is_symlink() or not entry.is_dir():
            continue
        if all(map(_OF_A_PART.fullmatch, os.listdir(entry))):
            remove_tree(entry)


def part_directory(path: str | os.PathLike[str], number: int) -> Path:
    """Where a part of a store lies."""
    return Path(path) / "parts" / str(number)


def _sync_all(directory: Path) -> None:
    """Bring all that is below a directory to the disk."""
    for folder, _, names in os.walk(directory, topdown=False):
        for each in (*(os.path.join(folder, name) for name in names), folder):
            sync(each)


class PartWriter:
    """Rows on their way into a new part of a store, "dense" or "csr"; `n_rows` were added."""

    def __init__(self, directory: Path, kind: str, dtype: np.dtype[Any], n_components: int):
        self._directory, self._n_components = directory, n_components
        self.n_rows = self._nnz = 0
        with writing(directory):
            zarr.create_group(str(directory))
            if kind == "dense":
                self._arrays = {"X": _GrowingArray(directory / "X", dtype, n_components)}
                return
            zarr.create_group(str(directory / "X"))
            dtypes: list[np.dtype[Any]] = [dtype, np.dtype(np.int32), np.dtype(np.int64)]
            self._arrays = {
                name: _GrowingArray(directory / "X" / name, each) for name, each in zip(CSR_ARRAYS, dtypes, strict=True)
            }
            self._arrays["indptr"].add(np.zeros(1, np.int64))

    def add(self, X: Matrix) -> None:
        """Append rows, canonical CSR or dense as the part is."""
        with writing(self._directory):
            if isinstance(X, np.ndarray):
                self._arrays["X"].add(X)
            else:
                self._arrays["data"].add(X.data)
                self._arrays["indices"].add(X.indices.astype(np.int32, copy=False))
                self._arrays["indptr"].add(X.indptr[1:] + np.int64(self._nnz))
                self._nnz += int(X.indptr[-1])
        self.n_rows += X.shape[0]

    def finish(self, number: int, weights: NDArray[np.float64]) -> PartInfo:
        """Complete the part, of a number, and bring all of it to the disk; its rows may have weights."""
        with writing(self._directory):
            if "data" in self._arrays:
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
            zarr.create_group(str(self._directory / "checksums"))
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
            _sync_all(self._directory)
        return PartInfo(number, self.n_rows, found)


class _GrowingArray:
    """A Zarr array, of one or of `width` columns, that rows are appended to, storage chunk by storage chunk."""

    def __init__(self, directory: Path, dtype: np.dtype[Any], width: int | None = None):
        self._inner = () if width is None else (width,)
        self._unit = max(1, CHUNK_BYTES // (dtype.itemsize * (width or 1)))
        self._array = create_array(directory, dtype, (self._unit, *self._inner))
        self._pending: list[NDArray[Any]] = [np.empty((0, *self._inner), dtype)]
        self._n_pending = 0
        self._written = 0
        self.checksums: list[int] = []

    def add(self, values: NDArray[Any]) -> None:
        """Append values; whole storage chunks are written."""
        self._pending.append(values)
        self._n_pending += len(values)
        full = self._n_pending // self._unit * self._unit
        if full:
            joined = np.concatenate(self._pending)
            self._write(joined[:full])
            self._pending, self._n_pending = [joined[full:].copy()], self._n_pending - full

    def finish(self) -> None:
        """Write the rest; nothing may be added afterwards."""
        if self._n_pending:
            self._write(np.concatenate(self._pending))

    def _write(self, values: NDArray[Any]) -> None:
        start, stop = self._written, self._written + len(values)
        self._array.resize((stop, *self._inner))
        self._array[start:stop] = values
        self.checksums += [zlib.crc32(raw(values[at : at + self._unit])) for at in range(0, len(values), self._unit)]
        self._written = stop


def create_array(directory: Path, dtype: np.dtype[Any], chunks: tuple[int, ...]) -> Any:
    """An empty array with room to grow along the first axis."""
    codec = BloscCodec(**_CODEC, typesize=dtype.itemsize)  # type: ignore[arg-type]
    return zarr.create_array(
        str(directory), shape=(0, *chunks[1:]), chunks=chunks, dtype=dtype, compressors=codec, fill_value=0
    )


@dataclass(frozen=True, slots=True)
class Filled:
    """A part whose rows are all there, not finished yet; its kind; and the width of the widest rows that were read."""

    writer: PartWriter
    kind: Any
    width: int


def fill_part(context: PassContext, stage: Stage, directory: Path, sketch: Sketch, kind: str | None) -> Filled:
    """Write what a pass makes of a source into a part."""
    writer, width = None, 0
    for made, found in context.outputs(StoredRows(sketch), stage):
        if kind is None:
            kind = "dense" if isinstance(made, np.ndarray) else "csr"
        X = _as_stored(made, kind)
        if writer is None:
            writer = PartWriter(directory, kind, X.dtype, X.shape[1])
        writer.add(X)
        width = max(width, found)
    if writer is None or not writer.n_rows:
        raise InvalidInputError(f"{context.reader.source.name} has no rows; needed: at least 1")
    stage.rows = writer.n_rows
    return Filled(writer, kind, width)


@dataclass(frozen=True, slots=True)
class StoredRows(Map[tuple[Matrix, int]]):
    """Sketched rows of a chunk, canonical, with NaN for those that were skipped; and how wide the rows were."""

    large = True

    sketch: Sketch

    @staticmethod
    def memory(block_bytes: int) -> PassMemory:
        """Chunks as they are stored, of so many bytes."""
        return PassMemory(kept=STORED_COPIES * block_bytes, output=block_bytes)

    def output(self, rows: ValidRows) -> tuple[Matrix, int]:
        """Of one chunk."""
        return _with_gaps(rows, as_block_matrix(merged(self.sketch.apply(rows.X)))), rows.X.shape[1]


def _with_gaps(rows: ValidRows, X: Matrix) -> Matrix:
    """Rows at their places among all rows of the chunk; NaN where one was skipped."""
    if rows.kept is None:
        return X
    if isinstance(X, np.ndarray):
        out = np.full((rows.n_read, X.shape[1]), np.nan, X.dtype)
        out[rows.kept] = X
        return out
    lengths = np.ones(rows.n_read, np.int64)
    lengths[rows.kept] = np.diff(X.indptr)
    skipped = np.ones(rows.n_read, bool)
    skipped[rows.kept] = False
    gaps = np.repeat(skipped, lengths)
    data, indices = np.full(len(gaps), np.nan, X.dtype), np.zeros(len(gaps), X.indices.dtype)
    data[~gaps], indices[~gaps] = X.data, X.indices
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sp.csr_array((data, indices, indptr), shape=(rows.n_read, X.shape[1]))


def _as_stored(X: Matrix, kind: str) -> Matrix:
    """Rows as a store of a kind has them: dense, or CSR."""
    if kind == "dense":
        return X if isinstance(X, np.ndarray) else X.toarray()
    return sp.csr_array(X) if isinstance(X, np.ndarray) else X
