"""NumPy's .npy and .npz files, and SciPy's sparse .npz: uncompressed arrays in parts, others whole. Never unpickles."""

from __future__ import annotations

import math
import struct
import threading
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from tokenize import TokenError
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.chunks import Access, Chunk, ChunkRuns, Origin
from streamkm.sources.dense import DenseSource
from streamkm.sources.local import unchanged
from streamkm.sources.memory.arrays import ArraySource, SparseSource
from streamkm.sources.row_source import Rows, RowSource
from streamkm.sources.stored import FileArray, check_matrix, decoded_dtype, open_binary, opened_path

DAMAGE = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, TokenError)
"""Errors that NumPy and zipfile raise on damaged bytes."""

_CSR_ARRAYS = ("data", "indices", "indptr")
_CSR_KEYS = frozenset({*_CSR_ARRAYS, "shape", "format"})
_CHECKED_BYTES = 1 << 20  # at a time
_ONCE = threading.Lock()  # what threads do once for all of them: loading an array, comparing its checksum
_MOST_INFLATED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}  # bytes that a stored byte can become
_Header = tuple[tuple[int, ...], bool, np.dtype[Any], int]  # as of `_described`
_SPARSE = {"csr": sp.csr_array, "csc": sp.csc_array}


def open_npy(path: str) -> RowSource:
    """Open a .npy file; its rows are read chunk by chunk.

    Raises SourceError: missing, truncated, or no .npy file; InvalidInputError: not a matrix of real numbers, or empty.
    """
    path = opened_path(path)
    with open_binary(path) as file:
        shape, fortran_order, stored = npy_header(file, path)
        start = file.tell()
    decoded_dtype(stored, path)
    return DenseSource(FileArray(path, start, shape, stored, name=path, fortran_order=fortran_order, format=".npy"))


def npy_header(file: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order (True: by columns) and type from the header at a file's position. Raises SourceError."""
    try:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran_order, dtype = read(file)
    except DAMAGE as error:
        raise unreadable(name, error) from error
    if any(length < 0 for length in shape):
        raise SourceError(f"{name} is damaged: its header says the shape {shape}; lengths must not be negative")
    return shape, fortran_order, dtype


def unreadable(name: str, error: Exception) -> Exception:
    """A SourceError with NumPy's message on an array."""
    if "allow_pickle" in str(error):
        return InvalidInputError(f"{name} holds Python objects, which are pickled and never loaded; save numbers")
    return SourceError(f"{name} cannot be read as .npy: {error}")


def open_npz(path: str, *, key: str | None = None) -> RowSource:
    """Open the array `key` of a .npz file, its only two-dimensional one, or the matrix of ``scipy.sparse.save_npz``.

    Uncompressed members are read chunk by chunk, after their checksums were compared. Compressed ones can be read only
    from their start, so they are loaded whole when rows are first asked for. Raises SourceError: missing or damaged
    file, or no such key; InvalidInputError: none or several candidates; not a matrix of real numbers, or empty.
    """
    path = opened_path(path)
    with _opened(path) as archive:
        infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if key is None and _CSR_KEYS <= infos.keys() <= _CSR_KEYS | {"_is_array"}:
            return _open_saved(path, archive, infos)
        if key is None:
            key = _only_matrix(path, archive, infos)
        if key not in infos:
            raise SourceNotFoundError(f"{path} has no array {key}; it has {', '.join(sorted(infos)) or 'none'}")
        info, name = infos[key], f"{path}:{key}"
        header = _described(archive, info, name)
        if info.compress_type == zipfile.ZIP_STORED:
            return DenseSource(_stored(path, info, header, name))
        return _Compressed(path, name, header[0], {info.filename: header})


@contextmanager
def _opened(path: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive; errors within the context become SourceError."""
    try:
        with unchanged(path), zipfile.ZipFile(path) as archive:
            yield archive
    except StreamkmError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{path} does not exist") from error
    except DAMAGE as error:
        raise SourceError(f"{path} cannot be read as .npz: {error}") from error


def _only_matrix(path: str, archive: zipfile.ZipFile, infos: dict[str, zipfile.ZipInfo]) -> str:
    found = {key: _described(archive, info, f"{path}:{key}") for key, info in infos.items()}
    matrices = [key for key, (shape, _, dtype, _) in found.items() if len(shape) == 2 and dtype.kind in "biuf"]
    if len(matrices) != 1:
        listed = ", ".join(f"{key} {shape} {dtype}" for key, (shape, _, dtype, _) in sorted(found.items())) or "nothing"
        raise InvalidInputError(f"{path} holds {len(matrices)} matrices of numbers ({listed}); choose one with key=")
    return matrices[0]


def _open_saved(path: str, archive: zipfile.ZipFile, infos: dict[str, zipfile.ZipInfo]) -> RowSource:
    """Open a sparse matrix that SciPy saved."""
    layout = read_member(archive, infos["format"], f"{path}:format").astype(str).item()
    shape = tuple(int(length) for length in read_member(archive, infos["shape"], f"{path}:shape").ravel())
    if layout not in _SPARSE:
        raise InvalidInputError(f"{path} holds a sparse matrix in {layout} format; save it as CSR: X.tocsr()")
    found = {key: _described(archive, infos[key], f"{path}:{key}") for key in _CSR_ARRAYS}
    (data, *_), (indices, *_), (pointers, *_) = found.values()
    if len(shape) != 2 or len(data) != 1 or data != indices or pointers != (shape[layout == "csc"] + 1,):
        raise InvalidInputError(
            f"{path} holds no sound {layout.upper()} matrix: data {data}, indices {indices} and indptr {pointers} do "
            f"not fit together or to the shape {shape}"
        )
    if layout == "csr" and all(infos[key].compress_type == zipfile.ZIP_STORED for key in found):
        arrays = [_stored(path, infos[key], header, f"{path}:{key}") for key, header in found.items()]
        return CsrSource(*arrays, shape=shape, name=path, layout="SciPy CSR")
    return _Compressed(path, path, shape, {infos[key].filename: header for key, header in found.items()}, layout)


class LoadedSource(RowSource):
    """Rows of a file that can only be read as a whole: loaded at the first request, once for all threads."""

    _loaded: RowSource | None = None

    @abstractmethod
    def _load(self) -> RowSource:
        """Read the file."""

    def chunks(self, target_bytes: int) -> ChunkRuns:
        return self._rows().chunks(target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        return self._rows().read(chunk)

    def _rows(self) -> RowSource:
        with _ONCE:
            if self._loaded is None:
                self._loaded, self.access = self._load(), replace(self.access, unloaded_bytes=0)
        return self._loaded


class _Compressed(LoadedSource):
    """Rows that can only be decompressed from their start: `members` of a dense array, or of a sparse `layout`."""

    def __init__(
        self, path: str, name: str, shape: tuple[int, ...], members: dict[str, _Header], layout: str = ""
    ) -> None:
        lengths, _, dtype, _ = next(iter(members.values()))
        check_matrix(shape, dtype, name)
        self.name, self.origin, self.is_sparse = name, Origin(files=(path,)), bool(layout)
        self.n_rows, self.n_features = shape
        self.dtype = decoded_dtype(dtype, name)
        n_bytes = sum(math.prod(header[0]) * header[2].itemsize for header in members.values())
        # CSC takes as much again as CSR
        self.n_bytes = n_bytes = 2 * n_bytes if layout == "csc" else n_bytes
        self.access = Access(in_process=True, resident_bytes=n_bytes, unloaded_bytes=n_bytes)
        self._members, self._layout = members, layout
        self._told = {"format": ".npz dense, compressed, loaded whole"}
        if layout:
            self._told = {
                "format": f"SciPy {layout.upper()} in .npz, loaded whole",
                "nnz": f"{lengths[0]:,}, {lengths[0] / self.n_rows:,.1f} a row",
                "indices": str(list(members.values())[1][2]),
            }

    def details(self) -> dict[str, str]:
        return self._told

    def _load(self) -> RowSource:
        with _opened(self.origin.files[0]) as archive:
            parts = [read_member(archive, archive.getinfo(member), self.name) for member in self._members]
        if not self._layout:
            return ArraySource(parts[0], name=self.name)
        X = _SPARSE[self._layout](tuple(parts), shape=(self.n_rows, self.n_features))
        return SparseSource(X, name=self.name)


class _StoredMember(FileArray):
    """An uncompressed array, read in parts after the checksum of all its bytes was compared."""

    unchecked = ""  # name in the archive of what was not compared yet

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        with _ONCE:
            if self.unchecked:
                with _opened(self._path) as archive, archive.open(self.unchecked) as values:
                    while values.read(_CHECKED_BYTES):
                        pass
                self.unchecked = ""
        super().read_into(start, stop, out)


def _stored(path: str, info: zipfile.ZipInfo, header: _Header, name: str) -> FileArray:
    shape, fortran_order, dtype, start = header
    decoded_dtype(dtype, name)
    with open_binary(path) as file:
        file.seek(info.header_offset + 26)  # lengths of the name and the extra field, which values follow
        start += info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
    found = _StoredMember(path, start, shape, dtype, name=name, fortran_order=fortran_order, format=".npz")
    found.unchecked = info.filename
    return found


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    """Read a whole array of an archive. Raises SourceError: damaged or too large for it; InvalidInputError: objects."""
    _described(archive, info, name)
    try:
        with archive.open(info) as member:
            values = np.asarray(npy_format.read_array(member, allow_pickle=False))
            member.read()  # to the end, where the checksum is compared
            return values
    except DAMAGE as error:
        raise unreadable(name, error) from error


def _described(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> _Header:
    """Shape, order and type of an array, and the header's bytes; reads nothing beyond them."""
    try:
        with archive.open(info) as member:
            shape, fortran_order, dtype = npy_header(member, name)
            start = member.tell()
    except DAMAGE as error:
        raise error if isinstance(error, StreamkmError) else unreadable(name, error) from error
    claimed, held = math.prod(shape) * dtype.itemsize, info.file_size - start
    if info.compress_type in _MOST_INFLATED:  # sizes of entries may be damaged as well
        held = min(held, _MOST_INFLATED[info.compress_type] * min(info.compress_size, archive.start_dir))
    if claimed > held:
        raise SourceError(
            f"{name} is damaged: its header says {claimed:,} bytes of values {shape}; the archive holds "
            f"{held:,} at most"
        )
    return shape, fortran_order, dtype, start
