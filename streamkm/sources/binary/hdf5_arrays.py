"""Datasets of HDF5 files, read by rows, by any number of threads.

The HDF5 library lets one thread in at a time, even for decompression. Storage chunks that are plain, deflated or
shuffled are therefore taken as stored and decoded here; h5py reads all others.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MissingDependencyError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.core.process import collector_off
from streamkm.sources.chunks import Access, Origin
from streamkm.sources.local import unchanged
from streamkm.sources.remote import Address, RemoteFile, is_remote, remote_library, settle
from streamkm.sources.stored import StoredArray, chunks_text

FAILURES = (OSError, RuntimeError, ValueError, TypeError, LookupError, OverflowError)
"""Errors that h5py raises on damaged bytes."""

DEFLATE, SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
# below this, finding a chunk and starting zlib costs more in Python than the lock does
_LEAST_CHUNK_BYTES = 1 << 12
_SHOWN_CHARACTERS = 30
_DIRECT_FILTERS = ((), (DEFLATE,), (SHUFFLE,), (SHUFFLE, DEFLATE))  # in the order in which they were applied


class Hdf5Array(StoredArray):
    """A dataset of one or two dimensions, at `location` of a file; its links may give it another name there.

    `handle`: read through `dataset` itself, because its file is open for writing or not on disk; such an array cannot
    be pickled. Every read checks that the file is unchanged, but not other files that it names.
    """

    format = "HDF5"

    def __init__(self, path: str, location: str, dataset: h5py.Dataset, *, handle: bool = False) -> None:
        self._path, self._dataset, self._handle = path, location, dataset if handle else None
        self.name = f"{path}:{location}"
        self.shape, self.dtype = dataset.shape or (), dataset.dtype
        self.origin = Origin(() if handle else (path,), self.dtype.newbyteorder("="))
        self.unit_rows = dataset.chunks[0] if dataset.chunks else 1
        self.unit_bytes = math.prod(dataset.chunks) * self.dtype.itemsize if dataset.chunks else 0
        self.n_bytes = dataset.id.get_storage_size()
        self._details = _describe_storage(dataset)
        self._codes = tuple(code for code, *_ in _filters(dataset))
        decodes, libraries = bool(self._codes) or is_remote(path), ("h5py", *remote_library(path))
        self.access = Access(decodes=decodes, in_process=handle, libraries=libraries)
        self._object = _remote_file(path)  # kept for what it has fetched: the library reads its structures again
        _require_decoders(dataset, self.name)

    def details(self) -> dict[str, str]:
        return self._details

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        try:
            with nullcontext() if self._handle is not None else open_file(self._path, self._object) as file:
                dataset: Any = self._handle if file is None else file[self._dataset]
                _require_decoders(dataset, self.name)
                if self._object and dataset.chunks:
                    self._object.expected = _span(dataset, start, stop)
                if self._is_direct(dataset) and self._read_chunks(dataset, start, stop, out):
                    return
                if out.dtype == dataset.dtype:
                    dataset.read_direct(out, np.s_[start:stop])
                else:
                    out[...] = dataset[start:stop]
        except StreamkmError:
            raise
        except FAILURES as error:
            raise SourceError(f"{self.name}, rows {start:,}-{stop - 1:,}, cannot be read: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        if self._handle is not None:
            raise SourceError(
                f"{self.name} is read through a file that is open for writing or lies in memory, which no other "
                f"process can share; close it and pass its path instead"
            )
        return {**self.__dict__, "_object": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _object=_remote_file(state["_path"]))

    def _is_direct(self, dataset: Any) -> bool:
        """Whether stored values are the bytes of NumPy's type, behind filters that are decoded here."""
        return (
            dataset.chunks is not None
            and self._handle is None
            and self._codes in _DIRECT_FILTERS
            and self.unit_bytes >= _LEAST_CHUNK_BYTES
            and len(self.shape) <= 2
            and bool(h5py.h5t.py_create(dataset.dtype) == dataset.id.get_type())
        )

    def _read_chunks(self, dataset: Any, start: int, stop: int, out: NDArray[Any]) -> bool:
        """Fill `out` by stored chunks; False if a chunk needs the library, for its fill value or its error."""
        rows, columns = (*dataset.chunks, 1)[:2]
        table = out.reshape(stop - start, -1)
        for i in range(start // rows * rows, stop, rows):
            low, high = max(start, i), min(stop, i + rows)
            for j in range(0, table.shape[1], columns):
                place = table[low - start : high - start, j : j + columns]
                values = self._decoded(dataset, (i, j)[: len(self.shape)])
                if values is None:
                    return False
                place[...] = values.reshape(rows, columns)[low - i : high - i, : place.shape[1]]
        return True

    def _decoded(self, dataset: Any, at: tuple[int, ...]) -> NDArray[Any] | None:
        """Values of a storage chunk; inflates no more than it holds, as few bytes can claim to be terabytes."""
        if not 0 < dataset.id.get_chunk_info_by_coord(at).size <= h5py.h5i.get_file_id(dataset.id).get_filesize():
            return None
        mask, values = dataset.id.read_direct_chunk(at)
        if mask:
            return None
        if DEFLATE in self._codes:
            try:
                values = zlib.decompressobj().decompress(values, self.unit_bytes + 1)
            except zlib.error:
                return None
        if len(values) > self.unit_bytes:
            raise SourceError(
                f"a storage chunk of {self.name} inflates to more than the {self.unit_bytes:,} bytes it holds"
            )
        if len(values) < self.unit_bytes:
            return None
        if SHUFFLE in self._codes:  # all first bytes come before all second ones; plane by plane is fastest
            planes = np.frombuffer(values, np.uint8).reshape(self.dtype.itemsize, -1)
            values = np.empty(planes.shape[::-1], np.uint8)
            for i, plane in enumerate(planes):
                values[:, i] = plane
        return np.frombuffer(values, self.dtype)


def _span(dataset: Any, start: int, stop: int) -> tuple[int, int]:
    """Bytes of the file that hold rows of a chunked dataset; none if others are between them."""
    steps = zip((start, 0), (stop, *dataset.shape[1:]), dataset.chunks, strict=False)
    corners = itertools.product(*(range(first // step * step, last, step) for first, last, step in steps))
    found = [info for info in map(dataset.id.get_chunk_info_by_coord, corners) if info.size]
    first = min((info.byte_offset for info in found), default=0)
    last = max((info.byte_offset + info.size for info in found), default=0)
    return (first, last) if last - first < 1.1 * sum(info.size for info in found) else (0, 0)


def _filters(dataset: h5py.Dataset) -> list[Any]:
    plist = dataset.id.get_create_plist()
    return [plist.get_filter(i) for i in range(plist.get_nfilters())]


def _describe_storage(dataset: h5py.Dataset) -> dict[str, str]:
    names = [
        f"gzip, level {values[0]}" if code == DEFLATE else text.decode(errors="replace")[:_SHOWN_CHARACTERS]
        for code, _, values, text in _filters(dataset)
    ]
    where = "virtual, in other datasets" if dataset.is_virtual else "none, contiguous"
    chunks = chunks_text(dataset.chunks, dataset.shape) if dataset.chunks else where
    return {"chunks": chunks, "compression": " + ".join(names) or "none"}


def _remote_file(path: str) -> RemoteFile | None:
    """A file object for the library, None for a local file."""
    return RemoteFile(path) if isinstance(path, Address) else None


@contextmanager
def open_file(path: str, kept: RemoteFile | None = None) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading, by `kept`, the object behind a URL, if given. Raises SourceError."""
    remote = kept or _remote_file(path)
    with collector_off if remote else unchanged(path):
        if remote:
            settle()  # a collection may have begun
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


def _require_decoders(dataset: h5py.Dataset, name: str) -> None:
    """Refuse a dataset that lacks sources or decoders; loads hdf5plugin. Raises SourceError, MissingDependencyError."""
    _require_sources(dataset, name)
    for code, _, _, text in _filters(dataset):
        if not h5py.h5z.filter_avail(code):
            with suppress(ImportError):
                import hdf5plugin  # noqa: F401  # registers its filters
        if not h5py.h5z.filter_avail(code):
            raise MissingDependencyError(
                f"{name} is compressed with HDF5 filter {code} ({text.decode(errors='replace') or 'unnamed'}), which "
                f"is not installed; pip install 'streamkm[hdf5plugin]', or write the data again with gzip"
            )


def _require_sources(dataset: h5py.Dataset, name: str) -> None:
    """Refuse a virtual dataset with a missing source, which would read as fill values. Raises SourceError."""
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        file, inner = source.file_name, source.dset_name
        if "%" in file + inner:  # one of a series, of which any number may be there
            continue
        beside = os.path.join(os.path.dirname(os.fsdecode(dataset.file.filename)), file)
        place = beside if os.path.isfile(beside) else file
        with suppress(OSError), nullcontext(dataset.file) if file == "." else h5py.File(place, "r") as holder:
            if isinstance(found := holder.get(inner), h5py.Dataset):
                _require_sources(found, name)
                continue
        where = "the same file" if file == "." else place
        raise SourceError(f"{name} is virtual and has lost its source {inner} in {where}; restore it")
