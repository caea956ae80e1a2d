"""Datasets of HDF5 files, read by rows, by as many threads as there are.

The HDF5 library lets one thread in at a time, decompression included. So it is asked once where the bytes lie; then
contiguous datasets and chunks that are plain, deflated or shuffled are read and decoded here, all others by h5py.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MissingDependencyError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.core.process import collector_off
from streamkm.sources.local import unchanged
from streamkm.sources.remote.file import RemoteFile
from streamkm.sources.remote.objects import Address, is_remote, remote_library, settle
from streamkm.sources.stored import FileArray, StoredArray, chunks_text, open_binary, read_fully

DEFLATE, SHUFFLE = 1, 2
"""Filter identifiers of the HDF5 file format."""

# of a request for the library's own structures: where chunks are small, pieces of their index lie everywhere between
# them, and larger requests would bring the whole file
_LIBRARY_BYTES = 1 << 12
# below this, finding a chunk and starting zlib costs more in Python than the lock does; not more than requests do
_LEAST_CHUNK_BYTES = 1 << 12
_MOST_CHUNKS = 1 << 22  # 16 bytes each
_FILTER_NAMES = {DEFLATE: "gzip", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd", 32026: "blosc2"}
_SHOWN_CHARACTERS = 30
_DIRECT_FILTERS = ((), (DEFLATE,), (SHUFFLE,), (SHUFFLE, DEFLATE))  # in the order in which they were applied
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, OverflowError)  # of h5py, besides OSError


class Hdf5Array(StoredArray):
    """A dataset of one or two dimensions, at `location` of a file; its links may give it another name there.

    `handle`: whether to read through `dataset` itself, because its file is open for writing or is no file on disk; such
    an array cannot be pickled. The file is compared with what it was at every read, other files that it names are not.
    """

    format = "HDF5"

    def __init__(self, path: str, location: str, dataset: h5py.Dataset, *, handle: bool = False) -> None:
        self._path, self._dataset, self._handle = path, location, dataset if handle else None
        self.files = () if handle else (path,)
        self.name = f"{path}:{location}"
        self.shape, self.dtype = dataset.shape or (), dataset.dtype
        self.unit_rows = dataset.chunks[0] if dataset.chunks else 1
        self.unit_bytes = math.prod(dataset.chunks) * self.dtype.itemsize if dataset.chunks else 0
        self.in_process = handle or (isinstance(path, Address) and path.in_process)
        self.libraries = ("h5py", *remote_library(path))
        self._details = _describe_storage(dataset)
        self.decodes = dataset.id.get_create_plist().get_nfilters() > 0 or is_remote(path)
        _require_filters(dataset, self.name)
        self._stored: FileArray | _Chunks | None = None
        self._object = _remote_file(path)  # kept for what it has fetched: the library reads its structures again
        self._asked = handle
        if self._object:  # the index of an object's chunks is fetched once, and goes along to all processes
            self._ask(dataset)
        stored: Any = self._stored
        self.n_bytes = int(stored.sizes.sum()) if isinstance(stored, _Chunks) else dataset.id.get_storage_size()

    def details(self) -> dict[str, str]:
        """Say how the values are stored; see `StoredArray.details`."""
        return self._details

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill `out`; see `StoredArray.read_into`."""
        if not self._asked:
            with open_file(self._path) as file:
                self._ask(file[self._dataset])
        if isinstance(self._stored, FileArray):
            self._stored.read_into(start, stop, out)
            return
        try:
            if self._stored and self._stored.are_direct and self._read_chunks(self._stored, start, stop, out):
                return
            with nullcontext() if self._handle is not None else open_file(self._path, self._object) as file:
                dataset: Any = self._handle if file is None else file[self._dataset]
                _require_filters(dataset, self.name)
                if self._object and self._stored:
                    self._object.expect(self._stored.ranges(start, stop))
                if out.dtype == dataset.dtype:
                    dataset.read_direct(out, np.s_[start:stop])
                else:
                    out[...] = dataset[start:stop]
        except StreamkmError:
            raise
        except (OSError, *_FAILURES) as error:
            raise SourceError(f"{self.name}, rows {start:,}-{stop - 1:,}, cannot be read: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        if self._handle is not None:
            raise SourceError(
                f"{self.name} is read through a file that is open for writing or lies in memory, which no other "
                f"process can share; close it and pass its path instead"
            )
        return {**self.__dict__, "_object": None, **({} if self._object else {"_asked": False, "_stored": None})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _object=_remote_file(state["_path"]))

    def _ask(self, dataset: h5py.Dataset) -> None:
        """Find out where the values are, unless only the library can read them or they are damaged."""
        with suppress(*_FAILURES):
            if _is_plain(dataset, self._path):
                offset = dataset.id.get_offset()
                if offset is None:
                    self._stored = _find_chunks(dataset, self._path)
                else:
                    self._stored = FileArray(self._path, offset, self.shape, self.dtype, name=self.name)
        self._asked = True

    def _read_chunks(self, stored: _Chunks, start: int, stop: int, out: NDArray[Any]) -> bool:
        """Fill `out` without the library; False where a chunk needs it, to give its fill value or say what is wrong."""
        rows, columns = stored.shape
        table = out.reshape(stop - start, -1)
        with open_binary(self._path) as file:
            if isinstance(file, RemoteFile):
                file.expect(stored.ranges(start, stop))
            for i in range(start // rows, -(-stop // rows)):
                low, high = max(start, i * rows), min(stop, (i + 1) * rows)
                for j in range(stored.offsets.shape[1]):
                    place = table[low - start : high - start, j * columns : (j + 1) * columns]
                    values = self._decoded(file, int(stored.offsets[i, j]), int(stored.sizes[i, j]), stored)
                    if values is None:
                        return False
                    place[...] = values[low - i * rows : high - i * rows, : place.shape[1]]
        return True

    def _decoded(self, file: Any, offset: int, size: int, stored: _Chunks) -> NDArray[Any] | None:
        """Values of a storage chunk; no more is inflated than it holds: few bytes can claim to be terabytes."""
        values: Any = bytearray(size if size <= file.size else 0)
        if not values or read_fully(file, memoryview(values), offset) < size:
            return None
        if DEFLATE in stored.filters:
            try:
                values = zlib.decompressobj().decompress(values, self.unit_bytes + 1)
            except zlib.error:
                return None
            if len(values) > self.unit_bytes:
                raise SourceError(
                    f"a storage chunk of {self.name} inflates to more than the {self.unit_bytes:,} bytes it holds"
                )
        if len(values) != self.unit_bytes:
            return None
        if SHUFFLE in stored.filters:  # all first bytes come before all second ones; plane by plane is fastest
            planes = np.frombuffer(values, np.uint8).reshape(self.dtype.itemsize, -1)
            values = np.empty(planes.shape[::-1], np.uint8)
            for i, plane in enumerate(planes):
                values[:, i] = plane
        return np.frombuffer(values, self.dtype).reshape(stored.shape)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Places of the storage chunks of a dataset; those of one dimension are seen as having one column."""

    shape: tuple[int, int]  # of a storage chunk
    filters: tuple[int, ...]
    are_direct: bool  # whether all can be decoded here
    # (chunks down, chunks across); size 0 is a chunk that was never written, whose value the library knows
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Bytes of the file that rows lie in."""
        places = np.s_[start // self.shape[0] : -(-stop // self.shape[0])]
        offsets, sizes = self.offsets[places].ravel().tolist(), self.sizes[places].ravel().tolist()
        return ((at, at + size) for at, size in zip(offsets, sizes, strict=True) if size)


def _is_plain(dataset: h5py.Dataset, path: str) -> bool:
    """Whether the stored values are the bytes of NumPy's type, in this file, at the places that the library tells."""
    file = dataset.file  # another one where a link leads there
    here = file.driver == "fileobj" if isinstance(path, Address) else (file.driver, file.filename) == ("sec2", path)
    plain_type = h5py.h5t.py_create(dataset.dtype) == dataset.id.get_type()
    return here and plain_type and not (dataset.is_virtual or dataset.external or file.userblock_size)


def _find_chunks(dataset: h5py.Dataset, path: str) -> _Chunks | None:
    """Places of the storage chunks; None where there are none, or too many, or too small ones of a local file.

    Raises SourceError: chunks beyond the dataset, or two in one place.
    """
    if dataset.chunks is None or len(dataset.chunks) > 2:
        return None
    chunk, shape = (*dataset.chunks, 1)[:2], (*dataset.shape, 1)[:2]
    grid = (-(-shape[0] // chunk[0]), -(-shape[1] // chunk[1]))
    if math.prod(grid) > _MOST_CHUNKS:
        return None
    offsets, sizes = np.zeros(grid, np.int64), np.zeros(grid, np.int64)
    masks, misplaced = set(), []

    def note(info: Any) -> None:
        at = (info.chunk_offset[0] // chunk[0], (*info.chunk_offset, 0)[1] // chunk[1])
        if at[0] >= grid[0] or at[1] >= grid[1] or sizes[at]:
            misplaced.append(info.chunk_offset)
        else:
            offsets[at], sizes[at] = info.byte_offset, info.size
            masks.add(info.filter_mask)

    dataset.id.chunk_iter(note)
    if misplaced:  # the library would read such chunks as if they had never been written
        raise SourceError(f"{path} is damaged: its index has a storage chunk at {misplaced[0]}, none of {shape}")
    if not isinstance(path, Address) and math.prod(chunk) * dataset.dtype.itemsize < _LEAST_CHUNK_BYTES:
        return None
    filters = tuple(code for code, *_ in _filters(dataset))
    return _Chunks(chunk, filters, filters in _DIRECT_FILTERS and masks <= {0}, offsets, sizes)


def _filters(dataset: h5py.Dataset) -> list[Any]:
    plist = dataset.id.get_create_plist()
    return [plist.get_filter(i) for i in range(plist.get_nfilters())]


def _describe_storage(dataset: h5py.Dataset) -> dict[str, str]:
    names = []
    for code, _, values, text in _filters(dataset):
        known = _FILTER_NAMES.get(code) or text.decode(errors="replace")[:_SHOWN_CHARACTERS].strip() or f"filter {code}"
        names.append(f"{known}, level {values[0]}" if code == DEFLATE and values else known)
    where = "virtual, in other datasets" if dataset.is_virtual else "none, contiguous"
    chunks = chunks_text(dataset.chunks, dataset.shape) if dataset.chunks else where
    return {"chunks": chunks, "compression": " + ".join(names) or "none"}


def _remote_file(path: str) -> RemoteFile | None:
    """An object for the library to read, None for a local file."""
    return RemoteFile(path, _LIBRARY_BYTES) if isinstance(path, Address) else None


@contextmanager
def open_file(path: str, kept: RemoteFile | None = None) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; `kept` is the object behind a URL, where it is there already.

    Raises SourceError: no such file, no permission, no HDF5, or truncated.
    """
    remote = kept or _remote_file(path)
    with collector_off if remote else unchanged(path):
        if remote:
            settle(remote.address)  # a collection may have begun
        try:
            file = h5py.File(remote or path, "r")
        except StreamkmError as error:
            # h5py's frames hold the object in a way that crashes if it outlives the library
            raise error.with_traceback(None) from None
        except FileNotFoundError as error:
            raise SourceNotFoundError(f"{path} does not exist") from error
        except OSError as error:
            raise SourceError(f"{path} cannot be opened as HDF5: {error}") from error.with_traceback(None)
        with file:
            yield file


def _require_filters(dataset: h5py.Dataset, name: str) -> None:
    """See to it that a dataset has its sources, and each filter a decoder; loads hdf5plugin where that helps.

    Raises MissingDependencyError naming the filter and the extra that brings it.
    """
    _require_sources(dataset, name)
    missing = [(code, text) for code, _, _, text in _filters(dataset) if not h5py.h5z.filter_avail(code)]
    if not missing:
        return
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401  # registers its filters
    for code, text in missing:
        if not h5py.h5z.filter_avail(code):
            label = text.decode(errors="replace") or "unnamed"
            raise MissingDependencyError(
                f"{name} is compressed with HDF5 filter {code} ({label}), which is not installed; "
                f"pip install 'streamkm[hdf5plugin]', or write the data again with gzip"
            )


def _require_sources(dataset: h5py.Dataset, name: str) -> None:
    """Refuse a virtual dataset that has lost a source: the library would give its fill value. Raises SourceError."""
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        file, inner = source.file_name, source.dset_name
        if "%" in file + inner:  # one of a series, of which any number may be there
            continue
        places = [os.path.join(os.path.dirname(os.fsdecode(dataset.file.filename)), file), file]
        place = next((each for each in places if os.path.isfile(each)), None)
        with suppress(OSError), nullcontext(dataset.file) if file == "." else h5py.File(place or file, "r") as holder:
            if isinstance(found := holder.get(inner), h5py.Dataset):
                _require_sources(found, name)
                continue
        where = "the same file" if file == "." else f"{place or file}, which is {'there' if place else 'missing'}"
        raise SourceError(f"{name} is virtual and has lost its source {inner} in {where}; restore it")
