"""Stored arrays, to which every binary format is reduced, and rules on rows that all readers share. Knows no format."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.display import displayed
from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources import local, remote
from streamkm.sources.chunks import Access, Origin
from streamkm.sources.local import LocalFile, LocalPath
from streamkm.sources.remote import Address, RemoteFile, is_remote, remote_library

RawFile = LocalFile | RemoteFile
"""Result of `open_binary`."""

INT32_MAX = int(np.iinfo(np.int32).max)
"""Largest number of features and of values that 32-bit indices can address."""

if TYPE_CHECKING:
    import scipy.sparse as sp


class StoredArray(ABC):
    """An array (n,) or (n, d) on disk: cheap to pickle; opens its file when it is read."""

    name: str  # what messages call it
    shape: tuple[int, ...]  # one or two lengths
    dtype: np.dtype[Any]  # as stored, byte order included
    # rows of a storage chunk (a shard, where there are shards): reads that start and stop at multiples of it touch
    # every storage chunk once. 1 where rows can be read singly
    unit_rows: int
    n_bytes: int | None  # stored bytes, compressed
    unit_bytes: int = 0  # decoded bytes of a storage chunk, with what lies beyond the array
    format: str = "stored"  # what it is stored in, for people: ``HDF5``
    access: Access = Access()
    origin: Origin = Origin()

    @abstractmethod
    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill `out`, C-contiguous (stop - start, ...) and of this dtype, with rows `start` to `stop`. Thread-safe.

        Raises SourceError, naming the array and the rows, if the bytes cannot be read or decoded.
        """

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Give rows `start` to `stop` in their `decoded_dtype`."""
        decoded = decoded_dtype(self.dtype, self.name)
        out = np.empty((stop - start, *self.shape[1:]), self.dtype if self.dtype.kind == "V" else decoded)
        self.read_into(start, stop, out)
        return as_decoded(out, decoded)

    def details(self) -> dict[str, str]:
        """Labels and texts for people: storage chunks, compression."""
        return {"chunks": "none, contiguous", "compression": "none"}


class FileArray(StoredArray):
    """Contiguous values in a file: .npy, an uncompressed member of .npz, a memmap, a contiguous HDF5 dataset.

    Reads into the caller's memory, not through a memory map: mapped pages would count as resident, and a file that was
    cut short would kill the process. `fortran_order`: stored by columns, each of which takes one read.
    """

    def __init__(
        self,
        path: str,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        name: str,
        fortran_order: bool = False,
        format: str = "file",  # noqa: A002 - the name of the attribute
    ) -> None:
        self.format = format
        self._path = path = opened_path(path)
        self.access = Access(decodes=is_remote(path), libraries=remote_library(path))
        self.origin = Origin((path,), dtype.newbyteorder("="))
        self._offset = offset
        self._by_columns = fortran_order and len(shape) == 2
        self.name = name_of([name])
        self.shape = shape
        self.dtype = dtype
        self.unit_rows = 1
        self.n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        size = file_size(path)
        if size < offset + self.n_bytes:
            raise SourceError(
                f"{name} is truncated: {path} has {size:,} bytes and an array {shape} of {dtype} from byte {offset:,} "
                f"needs {offset + self.n_bytes:,}; write the file again"
            )

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        same = out.dtype == self.dtype and not self._by_columns
        target = out if same else np.empty(out.shape, self.dtype)
        itemsize = self.dtype.itemsize
        with open_binary(self._path) as file:
            if self._by_columns:
                column = np.empty(stop - start, self.dtype)
                for j in range(self.shape[1]):
                    self._fill(file, column, (j * self.shape[0] + start) * itemsize, start, stop)
                    target[:, j] = column
            else:
                row_bytes = itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
                self._fill(file, target, start * row_bytes, start, stop)
        if not same:
            out[...] = target

    def _fill(self, file: Any, values: NDArray[Any], position: int, start: int, stop: int) -> None:
        view = memoryview(values.reshape(-1).view(np.uint8).data)
        got = read_fully(file, view, self._offset + position)
        if got < len(view):
            raise SourceError(
                f"{self.name} ends within rows {start:,}-{stop - 1:,}: byte {self._offset + position + got:,} of "
                f"{self._path} is missing; the file was cut short after it was opened"
            )


def chunks_text(chunk: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """The size of storage chunks, and their number, for people."""
    count = math.prod(-(-length // size) for length, size in zip(shape, chunk, strict=True))
    return f"{count:,} of {' x '.join(f'{size:,}' for size in chunk)}"


def opened_path(path: str) -> LocalPath | Address:
    """A path or URL with its present state, unless it has one. Raises SourceNotFoundError, SourceError."""
    if is_remote(path):
        return remote.opened(path if isinstance(path, Address) else Address(path))
    return local.opened(path)


def name_of(paths: Sequence[str]) -> str:
    """The name of a source of files, as text without secrets that every encoder takes."""
    return displayed(str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more")


def open_binary(path: str, start: int = 0, stop: int | None = None) -> RawFile:
    """Open a file or object for positioned reads, unbuffered. Raises SourceError, also if it has changed.

    `start`, `stop`: the bytes that will be read, if known; requests to servers are that large.
    """
    try:
        if not is_remote(path):
            return LocalFile(local.opened(path))
        return RemoteFile(path if isinstance(path, Address) else Address(path), (start, stop or 0))
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error}") from error


def read_fully(file: Any, view: memoryview, position: int) -> int:
    """Read until `view` is full or the file ends (one system call reads at most 2 GiB). Returns bytes read."""
    done = 0
    try:
        file.seek(position)
        while done < len(view):
            got = file.readinto(view[done:])
            if not got:
                break
            done += got
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{file.name} cannot be read at byte {position + done:,}: {error}") from error
    return done


def file_size(path: str) -> int:
    """Bytes of a file or object when it was opened. Raises SourceNotFoundError."""
    version = opened_path(path).version
    if version is None:
        raise SourceError(f"{path} is a directory; name {'objects' if is_remote(path) else 'files'}, or a glob of them")
    return version.n_bytes


def decoded_dtype(stored: np.dtype[Any], name: str) -> np.dtype[Any]:
    """The dtype in which rows are given: the stored one in native byte order. Raises InvalidInputError: not numbers.

    bool becomes uint8, float16 float32, and floats wider than 64 bits float64, so that kernels see few types. Values of
    two bytes without a type are bfloat16, as NumPy stores it, and become float32.
    """
    if stored.kind not in "biuf":
        if stored.kind == "V" and stored.itemsize == 2 and stored.names is None:
            return np.dtype(np.float32)
        kinds = {"O": "Python objects", "U": "strings", "S": "strings", "c": "complex numbers", "V": "records"}
        remedy = ": numpy.lib.recfunctions.structured_to_unstructured(records)" if stored.names else ""
        raise InvalidInputError(
            f"{name} holds {kinds.get(stored.kind, 'values')} ({stored}); rows must be real numbers: bool, int or "
            f"float{remedy}"
        )
    if stored.kind == "f" and stored.itemsize not in (4, 8):
        return np.dtype(np.float32 if stored.itemsize == 2 else np.float64)
    return np.dtype(np.uint8) if stored.kind == "b" else stored.newbyteorder("=")


def as_decoded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in their `decoded_dtype`, C-contiguous; bfloat16 words are the upper halves of float32 values."""
    if values.dtype.kind == "V":
        values = np.left_shift(values.view(np.uint16), np.uint32(16), dtype=np.uint32).view(np.float32)
    return np.ascontiguousarray(values, dtype)


def check_matrix(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    """Refuse anything but a matrix of real numbers with a row and a column. Raises InvalidInputError."""
    decoded_dtype(dtype, name)
    if len(shape) != 2:
        remedy = "reshape it to (n, 1) or (1, d)" if len(shape) == 1 else "reshape each sample to one row"
        raise InvalidInputError(f"{name} has {len(shape)} dimensions {shape}; rows need 2, (n, d): {remedy}")
    for length, what in zip(shape, ("rows", "features (columns)"), strict=True):
        if length == 0:
            raise InvalidInputError(f"{name} has 0 {what} {shape}; at least 1 is needed")


def csr_rows(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], *, n_features: int, name: str, first_row: int
) -> sp.csr_array:
    """Make canonical CSR rows for kernels: indices in range, rising and distinct within a row; duplicates are added up.

    `data`, `indices` (nnz,) are not changed, and shared with the result unless repaired; `indptr` (n + 1,) runs from 0
    to nnz and never falls. Indices are 32-bit if they suffice. Raises InvalidInputError, naming the row: an index below
    0 or not below `n_features`. O(nnz).
    """
    # read as unsigned, a negative index is a huge one: one comparison finds both kinds
    if len(indices) and indices.view(f"u{indices.itemsize}").max() >= n_features:
        at = int(((indices < 0) | (indices >= n_features)).argmax())
        row = first_row + int(np.searchsorted(indptr, at, side="right")) - 1
        raise InvalidInputError(
            f"index {indices[at]} in row {row:,} of {name} is out of range; {n_features:,} features allow "
            f"0-{n_features - 1:,}"
        )
    index_dtype = np.int32 if max(n_features, len(data)) <= INT32_MAX else np.int64
    arrays = (array.astype(index_dtype, copy=False) for array in (indices, indptr))
    X = make_csr(data, *arrays, n_features=n_features)
    return X if X.has_canonical_format else _canonical(X, name)


def make_csr(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], *, n_features: int) -> sp.csr_array:
    """Put sound arrays together as a csr_array, which shares them.

    SciPy's constructor would copy slices of much larger arrays, which is eight times the work of all other checks.
    """
    import scipy.sparse as sp

    X = sp.csr_array((len(indptr) - 1, n_features), dtype=data.dtype)
    X.data, X.indices, X.indptr = data, indices, indptr
    return X


def _canonical(X: sp.csr_array, name: str) -> sp.csr_array:
    """A copy with sorted indices and duplicates added up in every row; the dtype stays."""
    wide = X.dtype if X.dtype.kind == "f" else np.dtype(f"{X.dtype.kind}8")
    out = X.astype(wide, copy=True)
    out.sum_duplicates()
    narrow = out.astype(X.dtype, copy=False)
    if X.dtype.kind != "f" and np.any(narrow.data != out.data):
        raise InvalidInputError(
            f"entries of {name} that name the same row and feature add up to more than {X.dtype} holds; "
            f"convert the data to a wider type or add the entries up"
        )
    return narrow
