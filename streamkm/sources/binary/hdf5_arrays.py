"""Datasets of HDF5 files, read by rows, past the lock of the HDF5 library where that is possible.

Responsible for reading rows of one dataset. HDF5 lets one thread in at a time, decompression included. So where the
bytes lie in the file is asked of it once; then contiguous datasets and chunks that are plain, deflated or shuffled are
read and decoded without it (`hdf5_direct`). Whatever else a dataset is made of is read by h5py. Which dataset to
read is none of its business.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MissingDependencyError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.core.process import collector_off
from streamkm.sources.binary.hdf5_direct import DEFLATE, SHUFFLE, ChunkTable, DirectChunks
from streamkm.sources.local import unchanged
from streamkm.sources.remote.file import RemoteFile
from streamkm.sources.remote.objects import Address, is_remote, remote_library, settle
from streamkm.sources.stored import FileArray, StoredArray, chunks_text

# of a request for the library's own structures: where chunks are small, pieces of their index lie everywhere between
# them, and larger requests would bring the whole file
_LIBRARY_BYTES = 1 << 12
# below this, finding a chunk and starting zlib costs more in Python than the lock does; not more than requests do
_LEAST_CHUNK_BYTES = 1 << 12
# the table of where chunks are takes 16 bytes a chunk
_MOST_CHUNKS = 1 << 22
_FILTER_NAMES = {DEFLATE: "gzip", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd", 32026: "blosc2"}
_SHOWN_CHARACTERS = 30
# in the order in which they were applied
_DIRECT_FILTERS = ((), (DEFLATE,), (SHUFFLE,), (SHUFFLE, DEFLATE))

_Reader = FileArray | DirectChunks


class Hdf5Array(StoredArray):
    """A dataset of one or two dimensions.

    Parameters
    ----------
    path : str
        Of the file.
    location : str
        Of the dataset in the file; by links, perhaps, so not always the name that the dataset has itself.
    dataset : h5py.Dataset
        Open; asked for its properties and not kept, unless `handle` is true.
    handle : bool
        Read through `dataset` itself, because its file is open for writing or is no file on disk. Such an array
        cannot be pickled.

    Notes
    -----
    Storage chunks that were never written are the dataset's fill value, as HDF5 has it. The file must not change
    while it is in use: its size and time of change are compared at every read (see `local`), those of other files that
    it names are not; nor those of a file that is read through `handle`.
    """

    format = "HDF5"

    def __init__(self, path: str, location: str, dataset: h5py.Dataset, *, handle: bool = False) -> None:
        self._path = path
        self.files = () if handle else (path,)
        self._dataset = location
        self._handle = dataset if handle else None
        self.name = f"{path}:{location}"
        self.shape = dataset.shape or ()
        self.dtype = dataset.dtype
        self.unit_rows = dataset.chunks[0] if dataset.chunks else 1
        self.unit_bytes = math.prod(dataset.chunks) * self.dtype.itemsize if dataset.chunks else 0
        self.in_process = handle or (isinstance(path, Address) and path.in_process)
        self.libraries = ("h5py", *remote_library(path))
        self._details = _describe_storage(dataset)
        self.decodes = dataset.id.get_create_plist().get_nfilters() > 0 or is_remote(path)
        _require_filters(dataset, self.name)
        self._start()
        # kept for what it has fetched: the library looks at its own structures whenever it opens the file
        self._object = remote_file(path)
        if self._object:
            # the index of an object's chunks is fetched once, and goes along to all processes
            self._find(dataset)
        self.n_bytes = self._table.n_bytes if self._table else dataset.id.get_storage_size()

    def details(self) -> dict[str, str]:
        """Say how the values are stored; see `StoredArray.details`."""
        return self._details

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill `out`; see `StoredArray.read_into`."""
        direct = self._direct()
        if direct is not None and direct.read_into(start, stop, out) is not False:
            return
        try:
            if self._handle is not None:
                _read_rows(self._handle, start, stop, out)
                return
            with open_file(self._path, self._object) as file:
                dataset = file[self._dataset]
                _require_filters(dataset, self.name)
                if self._object and self._table:
                    self._object.expect(self._table.ranges(start, stop))
                _read_rows(dataset, start, stop, out)
        except StreamkmError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError, LookupError, OverflowError) as error:
            raise SourceError(f"{self.name}, rows {start:,}-{stop - 1:,}, cannot be read: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        if self._handle is not None:
            raise SourceError(
                f"{self.name} is read through a file that is open for writing or lies in memory, which no other "
                f"process can share; close it and pass its path instead"
            )
        left = {"_lock", "_object"} if self._object else {"_lock", "_object", "_asked", "_reader", "_table"}
        return {key: value for key, value in self.__dict__.items() if key not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._start()
        self.__dict__.update(state)
        self._object = remote_file(self._path)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._reader: _Reader | None = None
        self._table: ChunkTable | None = None

    def _direct(self) -> _Reader | None:
        with self._lock:
            if not self._asked and self._handle is None:
                with open_file(self._path) as file:
                    self._find(file[self._dataset])
            return self._reader

    def _find(self, dataset: h5py.Dataset) -> None:
        """Find out where the values are, and how to read them without the library, if that can be done."""
        # what is damaged here is damaged for the library too, which then words it
        with suppress(RuntimeError, LookupError, ValueError, TypeError, OverflowError):
            self._table = _find_chunks(dataset, self._path)
            self._reader = _find_direct(dataset, self._path, self.name, self._table)
        self._asked = True


def _find_direct(dataset: h5py.Dataset, path: str, name: str, table: ChunkTable | None) -> _Reader | None:
    """How to read a dataset without the library's look at the file; None where only the library can."""
    if not _is_plain(dataset, path):
        return None
    offset = dataset.id.get_offset()
    if offset is not None:
        return FileArray(path, offset, dataset.shape, dataset.dtype, name=name)
    plist = dataset.id.get_create_plist()
    filters = tuple(plist.get_filter(i)[0] for i in range(plist.get_nfilters()))
    if table is None or not table.is_uniform or filters not in _DIRECT_FILTERS:
        return None
    return DirectChunks(path, name, dataset.dtype, filters, table)


def _is_plain(dataset: h5py.Dataset, path: str) -> bool:
    """Whether the stored values are the bytes of NumPy's type, in this file, at the places that the library tells."""
    file = dataset.file  # another one where a link leads there
    here = file.driver == "fileobj" if isinstance(path, Address) else (file.driver, file.filename) == ("sec2", path)
    plain_type = h5py.h5t.py_create(dataset.dtype) == dataset.id.get_type()
    return here and plain_type and not (dataset.is_virtual or dataset.external or file.userblock_size)


def _find_chunks(dataset: h5py.Dataset, path: str) -> ChunkTable | None:
    """Where the storage chunks are; None where there are none, or too many, or too small ones of a local file.

    Raises SourceError: chunks beyond the dataset, or two in one place.
    """
    if dataset.chunks is None or len(dataset.chunks) > 2 or not _is_plain(dataset, path):
        return None
    chunk = (*dataset.chunks, 1)[:2]
    shape = (*dataset.shape, 1)[:2]
    grid = (-(-shape[0] // chunk[0]), -(-shape[1] // chunk[1]))
    if grid[0] * grid[1] > _MOST_CHUNKS:
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
    if not isinstance(path, Address) and chunk[0] * chunk[1] * dataset.dtype.itemsize < _LEAST_CHUNK_BYTES:
        return None
    return ChunkTable(chunk, offsets, sizes, is_uniform=masks <= {0})


def _describe_storage(dataset: h5py.Dataset) -> dict[str, str]:
    plist = dataset.id.get_create_plist()
    names = []
    for i in range(plist.get_nfilters()):
        code, _, values, text = plist.get_filter(i)
        known = _FILTER_NAMES.get(code) or text.decode(errors="replace")[:_SHOWN_CHARACTERS].strip() or f"filter {code}"
        names.append(f"{known}, level {values[0]}" if code == DEFLATE and values else known)
    where = "virtual, in other datasets" if dataset.is_virtual else "none, contiguous"
    chunks = chunks_text(dataset.chunks, dataset.shape) if dataset.chunks else where
    return {"chunks": chunks, "compression": " + ".join(names) or "none"}


def remote_file(path: str) -> RemoteFile | None:
    """An object for the library to read, None for a local file."""
    return RemoteFile(path, _LIBRARY_BYTES) if isinstance(path, Address) else None


@contextmanager
def open_file(path: str, remote: RemoteFile | None = None) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; `remote` is the object that holds it, where that is not the file system's.

    Raises SourceError: no such file, no permission, no HDF5, or truncated.
    """
    with collector_off if remote else unchanged(path):
        if remote:
            settle(remote.address)  # a collection may have begun
        with _opened_file(remote or path) as file:
            yield file


def _opened_file(path: str | RemoteFile) -> h5py.File:
    name = path.name if isinstance(path, RemoteFile) else path
    try:
        return h5py.File(path, "r")
    except StreamkmError as error:
        # h5py's frames hold the object in a way that crashes if it outlives the library
        raise error.with_traceback(None) from None
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{name} does not exist") from error
    except OSError as error:
        raise SourceError(f"{name} cannot be opened as HDF5: {error}") from error.with_traceback(None)


def _read_rows(dataset: h5py.Dataset, start: int, stop: int, out: NDArray[Any]) -> None:
    """Have the library fill `out` with rows of a dataset, in `out`'s type."""
    if out.dtype == dataset.dtype:
        dataset.read_direct(out, np.s_[start:stop])
    else:
        out[...] = dataset[start:stop]


def _require_filters(dataset: h5py.Dataset, name: str) -> None:
    """See to it that a dataset has its sources, and each filter a decoder; loads hdf5plugin where that helps.

    Raises MissingDependencyError naming the filter and the extra that brings it.
    """
    _require_sources(dataset, name)
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    missing = [(code, text) for code, _, _, text in filters if not h5py.h5z.filter_avail(code)]
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
