"""Writing of sketch stores: a new one, or rows at the end of one; one pass over a source.

The store changes in one step at the end of the pass; a call that is killed earlier leaves it unchanged.
`streamkm.sources.sketch_store` describes the layout.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

from streamkm.core.atomic_io import (
    REPLACED,
    check_new_directory,
    named,
    replace_file,
    replace_tree,
    working_directory,
    writing,
)
from streamkm.core.exceptions import InvalidInputError, OutputError
from streamkm.core.locks import Lock
from streamkm.core.matrix import Matrix, raw
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.passes import outputs
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.sketches.base_sketch import Sketch
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.sketch_store import CSR_ARRAYS, ROOT, PartInfo, StoreInfo, StoreSource
from streamkm.stores.planned import StoredRows, check_appended, sketch_of_store, stored_arrays

CHUNK_BYTES = 2 << 20  # of a storage chunk, decoded
_OF_A_STORE, _OF_A_PART = r"zarr\.json|parts|sketch|\.?zarr\..*\.partial", r"zarr\.json|X|checksums"


def write_store(
    path: str | os.PathLike[str],
    reader: RowReader,
    sketch: Sketch,
    executor: Executor,
    stage: Stage,
    *,
    overwrite: bool = False,
) -> StoreSource:
    """Sketch all rows of a source into a new store; one pass. The directory appears when it is complete.

    The metric of `reader` becomes the store's; rows that it skips become rows of NaN. `overwrite` replaces a store.
    Raises OutputError, DiskFullError: it exists, or cannot be written; InvalidInputError (also for no rows),
    SourceError.
    """
    preparation = reader.source.origin.prepared_by
    check_store_place(path, overwrite=overwrite)
    target = Path(os.path.realpath(path))
    with working_directory(target) as work, named(work, target):
        place, context = work / "store", PassContext(executor=executor, reader=reader)
        arrays = stored_arrays(sketch, preparation)
        with writing(place):
            for group in ("", "parts", "sketch"):
                zarr.create_group(str(place / group))
            for name, values in arrays.items():
                _create_array(place / "sketch" / name, values, len(values))
        part, kind, width = _write_part(context, stage, place / "parts" / "0", 0, sketch, None)
        info = StoreInfo(
            kind,
            part.n_rows,
            sketch.n_components,
            width,
            reader.metric,
            sketch.to_dict(),
            {name: zlib.crc32(raw(values)) for name, values in arrays.items()},
            (part,),
            (_input(reader, 0, part.n_rows, width),),
            () if preparation is None else preparation.steps,
        )
        _publish(place, info)
        check_store_place(target, overwrite=overwrite)  # once more: the pass may have taken hours
        replace_tree(place, target, work / REPLACED)
    return StoreSource(target)


def check_store_place(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse a path where no store can be written, or replaced. Raises OutputError; SourceError: there is no store."""
    target = os.path.realpath(path)
    check_new_directory(target, _OF_A_STORE, overwrite=True)
    if os.path.lexists(target):
        if not overwrite:
            raise OutputError(f"{target} exists; choose another name, append to it, or pass overwrite")
        StoreInfo.read(target)


def append_rows(path: str | os.PathLike[str], reader: RowReader, executor: Executor, stage: Stage) -> StoreSource:
    """Sketch the rows of a source onto the end of a store; one pass over the source, none over the store.

    `reader` prepares rows as the store's were (`prepared_as`). Raises StoreError: another metric, steps or features, or
    a file that the store has already; InUseError: another process changes the store; else as `write_store`.
    """
    target = Path(os.path.realpath(path))
    StoreInfo.read(target)
    lock = Lock(target.with_name(f".{target.name}.lock"), f"store {os.fspath(path)}")
    try:
        store = StoreSource(path)
        info, sketch = store.info, sketch_of_store(store)
        check_appended(store, reader)
        number = 1 + max(part.number for part in info.parts)
        place = target / "parts" / str(number)  # a killed process may have left one there
        check_new_directory(place, _OF_A_PART, overwrite=True)
        with working_directory(place) as work, named(work, target):
            context = PassContext(executor=executor, reader=reader)
            part, _, width = _write_part(context, stage, work / "part", number, sketch, info.kind)
            replace_tree(work / "part", place, work / REPLACED)
        n_rows = info.n_rows + part.n_rows
        parts, inputs = (*info.parts, part), (*info.inputs, _input(reader, info.n_rows, n_rows, width))
        n_features = max(info.n_features, width)
        _publish(target, replace(info, n_rows=n_rows, n_features=n_features, parts=parts, inputs=inputs))
    finally:
        lock.release(remove=True)
    return StoreSource(path)


def _publish(place: Path, info: StoreInfo) -> None:
    """Make `info` the state of a store in one step, the replacement of its root."""
    root = info.to_root()
    replace_file(place / ROOT, lambda file: file.write(root), len(root))


def _input(reader: RowReader, start: int, stop: int, width: int) -> dict[str, Any]:
    """Rows and features of a store, and their source."""
    exact = reader.source.n_features is not None
    return {"rows": [start, stop], "features": [0, width], "exact": exact, "source": fingerprint(reader.source)}


def _write_part(
    context: PassContext, stage: Stage, directory: Path, number: int, sketch: Sketch, kind: Any
) -> tuple[PartInfo, Any, int]:
    """Write a pass over a source into a part; give the part, its kind, and the width of the original rows."""
    writer, width, source = None, 1, context.reader.source
    for X, found in outputs(StoredRows(sketch), context.rows(), context.executor, stage, large=True):
        kind = kind or ("dense" if isinstance(X, np.ndarray) else "csr")
        writer = writer or _PartWriter(directory, kind, X.dtype, X.shape[1])
        writer.add(X)
        width = max(width, found)
    if writer is None or not writer.n_rows:
        raise InvalidInputError(f"{source.name} has no rows; needed: at least 1")
    stage.rows = writer.n_rows
    return PartInfo(number, writer.n_rows, writer.finish()), kind, source.n_features or width


class _PartWriter:
    """Writer of a new part of a store, "dense" or "csr", with `n_rows` rows so far."""

    def __init__(self, directory: Path, kind: str, dtype: np.dtype[Any], n_components: int):
        self._directory, self._n_components = directory, n_components
        self.n_rows = self._nnz = 0
        with writing(directory):
            zarr.create_group(str(directory))
            if kind == "dense":
                self._arrays = {"X": _GrowingArray(directory / "X", dtype, n_components)}
                return
            zarr.create_group(str(directory / "X"))
            dtypes: tuple[Any, ...] = (dtype, np.dtype(np.int32), np.dtype(np.int64))
            self._arrays = {
                name: _GrowingArray(directory / "X" / name, each) for name, each in zip(CSR_ARRAYS, dtypes, strict=True)
            }
            self._arrays["indptr"].add(np.zeros(1, np.int64))

    def add(self, X: Matrix) -> None:
        """Append rows, in canonical form."""
        with writing(self._directory):
            if "X" in self._arrays:
                self._arrays["X"].add(X if isinstance(X, np.ndarray) else X.toarray())
            else:
                X = sp.csr_array(X)
                self._arrays["data"].add(X.data)
                self._arrays["indices"].add(X.indices.astype(np.int32, copy=False))
                self._arrays["indptr"].add(X.indptr[1:] + np.int64(self._nnz))
                self._nnz += int(X.indptr[-1])
        self.n_rows += X.shape[0]

    def finish(self) -> dict[str, int]:
        """Complete the part; give the checksums of its checksums."""
        found = {}
        with writing(self._directory):
            if "X" not in self._arrays:
                shape = [self.n_rows, self._n_components]
                encoding: dict[str, Any] = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": shape}
                zarr.open_group(str(self._directory / "X"), mode="r+").attrs.update(encoding)
            zarr.create_group(str(self._directory / "checksums"))
            for name, array in self._arrays.items():
                checksums = array.finish()
                found[name] = zlib.crc32(raw(checksums))
                _create_array(self._directory / "checksums" / name, checksums, len(checksums))
        return found


class _GrowingArray:
    """A Zarr array, of one or of `width` columns, to which rows are appended, storage chunk by storage chunk."""

    def __init__(self, directory: Path, dtype: np.dtype[Any], width: int | None = None):
        self._unit = max(1, CHUNK_BYTES // (dtype.itemsize * (width or 1)))
        self._pending = [np.empty((0,) if width is None else (0, width), dtype)]
        self._array = _create_array(directory, self._pending[0], self._unit)
        self._checksums: list[int] = []

    def add(self, values: NDArray[Any]) -> None:
        """Append values; whole storage chunks are written."""
        self._pending.append(values)
        full = sum(map(len, self._pending)) // self._unit * self._unit
        if full:
            joined = np.concatenate(self._pending)
            self._write(joined[:full])
            self._pending = [joined[full:].copy()]

    def finish(self) -> NDArray[np.uint32]:
        """Write the rest, and give the checksum of each storage chunk."""
        self._write(np.concatenate(self._pending))
        return np.array(self._checksums, np.uint32)

    def _write(self, values: NDArray[Any]) -> None:
        if len(values):
            self._array.append(values)
        self._checksums += [zlib.crc32(raw(values[at : at + self._unit])) for at in range(0, len(values), self._unit)]


def _create_array(directory: Path, values: NDArray[Any], chunk_rows: int) -> Any:
    """A Zarr array of some values, with room to grow along the first axis."""
    codec = BloscCodec(cname="lz4", shuffle="shuffle", typesize=values.dtype.itemsize)  # by one thread 2 GB/s, 4 read
    chunks = (max(1, chunk_rows), *values.shape[1:])
    return zarr.create_array(str(directory), data=values, chunks=chunks, compressors=codec, fill_value=0)
