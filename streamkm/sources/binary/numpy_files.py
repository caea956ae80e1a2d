"""NumPy's own files: .npy, .npz, and the .npz that ``scipy.sparse.save_npz`` writes.

Responsible for finding where in such a file the values lie, so that they are read in parts and never loaded whole
unless they are compressed. Never loads a pickle: arrays of Python objects are refused.
"""

from __future__ import annotations

import logging
import math
import struct
import zipfile
import zlib
from tokenize import TokenError
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.sources.base import ChunkedSource
from streamkm.sources.bfloat16 import Bfloat16Source, check_said, word_dtype
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.dense import DenseSource
from streamkm.sources.local import unchanged
from streamkm.sources.memory.arrays import ArraySource, SparseSource
from streamkm.sources.stored import FileArray, decoded_dtype, open_binary, opened_path

logger = logging.getLogger(__name__)

_CSR_KEYS = frozenset({"data", "indices", "indptr", "shape", "format"})
DAMAGE = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, TokenError)
"""What NumPy and zipfile raise on bytes that are not theirs."""
_MOST_INFLATED = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}  # bytes that a stored byte can become
_LOCAL_HEADER = struct.Struct("<26xHH")
_SPARSE = {"csr": sp.csr_array, "csc": sp.csc_array, "bsr": sp.bsr_array}


def open_npy(path: str, *, dtype: str | None = None) -> ChunkedSource:
    """Open a .npy file; its rows are read from the file, chunk by chunk.

    `dtype` ("bfloat16" or None): what values of two bytes are that the file has no type for. Raises SourceError:
    missing, truncated, or no .npy file. Raises InvalidInputError: not two-dimensional, empty, or not of real numbers
    (pickled objects are never loaded). Raises InvalidParameterError: another `dtype`.
    """
    check_said(dtype, path)
    path = opened_path(path)
    if dtype is None:
        return DenseSource(_npy_array(path, 0, path, ".npy"))
    return Bfloat16Source(DenseSource(_npy_array(path, 0, path, ".npy", words=True)))


def open_npz(path: str, *, key: str | None = None) -> ChunkedSource:
    """Open an array of a .npz file, or the CSR matrix that ``scipy.sparse.save_npz`` wrote.

    Members that are not compressed are read from the file chunk by chunk. Compressed ones (``savez_compressed``, and
    ``save_npz`` unless told otherwise) can be decompressed from their start only, so they are loaded whole.

    `key`: name of the array; None where only one of them is two-dimensional. Raises SourceError: missing or damaged
    file; no such key (lists what there is). Raises InvalidInputError: no array or several that may be meant; not
    two-dimensional, empty, or not of real numbers.
    """
    path = opened_path(path)
    try:
        with unchanged(path), zipfile.ZipFile(path) as archive:
            infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if key is None and _CSR_KEYS - {"format"} <= infos.keys() <= _CSR_KEYS | {"_is_array"}:
                return _open_saved_csr(path, archive, infos)
            if key is not None and key not in infos:
                raise SourceNotFoundError(f"{path} has no array {key}; it has {', '.join(sorted(infos)) or 'none'}")
            if key is None:
                key = _only_matrix(path, archive, infos)
            return _open_member(path, archive, infos[key], f"{path}:{key}")
    except StreamkmError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{path} does not exist") from error
    except DAMAGE as error:
        raise SourceError(f"{path} cannot be read as .npz: {error}") from error


def _only_matrix(path: str, archive: zipfile.ZipFile, infos: dict[str, zipfile.ZipInfo]) -> str:
    headers = {}
    for key, info in infos.items():
        with archive.open(info) as member:
            headers[key] = _npy_header(member, f"{path}:{key}")
    matrices = [key for key, (shape, _, dtype) in headers.items() if len(shape) == 2 and dtype.kind in "biuf"]
    if len(matrices) != 1:
        listed = ", ".join(f"{key} {shape} {dtype}" for key, (shape, _, dtype) in sorted(headers.items())) or "nothing"
        raise InvalidInputError(f"{path} holds {len(matrices)} matrices of numbers ({listed}); choose one with key=")
    return matrices[0]


def _open_member(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> ChunkedSource:
    if info.compress_type == zipfile.ZIP_STORED:
        return DenseSource(_npy_array(path, _member_offset(path, info), name, ".npz"))
    loaded = ArraySource(_load_member(archive, info, name), name=name, form=".npz dense, compressed, loaded whole")
    loaded.files = (path,)
    return loaded


def _open_saved_csr(path: str, archive: zipfile.ZipFile, infos: dict[str, zipfile.ZipInfo]) -> ChunkedSource:
    small = {key: _load_member(archive, infos[key], f"{path}:{key}") for key in ("shape", "format") if key in infos}
    layout = small["format"].item() if "format" in small else b"csr"
    layout = layout.decode("ascii", "replace") if isinstance(layout, bytes) else str(layout)
    shape = tuple(int(length) for length in small["shape"].ravel())
    if len(shape) != 2:
        raise InvalidInputError(f"{path} says its shape is {shape}; a matrix needs two numbers")
    parts = [infos[key] for key in ("data", "indices", "indptr")]
    names = [f"{path}:{key}" for key in ("data", "indices", "indptr")]
    if layout == "csr" and all(info.compress_type == zipfile.ZIP_STORED for info in parts):
        stored = [
            _npy_array(path, _member_offset(path, info), name, ".npz") for info, name in zip(parts, names, strict=True)
        ]
        return CsrSource(*stored, shape=shape, name=path, layout="SciPy CSR")
    loaded = tuple(_load_member(archive, info, name) for info, name in zip(parts, names, strict=True))
    if layout not in _SPARSE:
        raise InvalidInputError(f"{path} holds a sparse matrix in {layout} format; save it as CSR: X.tocsr()")
    try:
        source = SparseSource(
            _SPARSE[layout](loaded, shape=shape), name=path, form=f"SciPy {layout.upper()} in .npz, loaded whole"
        )
    except ValueError as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{path} holds no sound {layout.upper()} matrix: {error}") from error
    source.files = (path,)
    return source


def _load_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    logger.info("%s is compressed and cannot be read in parts; loading %s bytes", name, f"{info.file_size:,}")
    return read_member(archive, info, name)


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> NDArray[Any]:
    """Read a whole array of an archive; nothing is allocated for what the archive cannot hold.

    `info`: of the array. `name`: what messages call it. Raises SourceError: a damaged header or damaged values, or more
    values than there are bytes for. Raises InvalidInputError: Python objects.
    """
    try:
        with archive.open(info) as member:
            shape, _, dtype = _npy_header(member, name)
            claimed, held = math.prod(shape) * dtype.itemsize, info.file_size - member.tell()
            if info.compress_type in _MOST_INFLATED:  # sizes of entries may be damaged as well
                stored = min(info.compress_size, archive.start_dir)
                held = min(held, _MOST_INFLATED[info.compress_type] * stored)
            if claimed > held:
                raise SourceError(
                    f"{name} is damaged: its header says {claimed:,} bytes of values {shape}; the archive holds "
                    f"{held:,} at most"
                )
            member.seek(0)
            return np.asarray(npy_format.read_array(member, allow_pickle=False))
    except StreamkmError:
        raise
    except DAMAGE as error:
        raise _unreadable(name, error) from error


def _npy_array(path: str, offset: int, name: str, form: str, *, words: bool = False) -> FileArray:
    """Give the array whose .npy header starts at byte `offset` of a file, or its 16-bit words."""
    with open_binary(path) as file:
        file.seek(offset)
        shape, fortran_order, dtype = _npy_header(file, name)
        start = file.tell()
    if words:
        dtype = word_dtype(dtype, name)
    decoded_dtype(dtype, name)
    return FileArray(path, start, shape, dtype, name=name, fortran_order=fortran_order, format=form)


def _npy_header(file: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy_format.read_magic(file)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran_order, dtype = read(file)
    except DAMAGE as error:
        raise _unreadable(name, error) from error
    if any(length < 0 for length in shape):
        raise SourceError(f"{name} is damaged: its header says the shape {shape}; lengths must not be negative")
    return shape, fortran_order, dtype


def _unreadable(name: str, error: Exception) -> Exception:
    if "allow_pickle" in str(error):
        return InvalidInputError(f"{name} holds Python objects, which are pickled and never loaded; save numbers")
    return SourceError(f"{name} cannot be read as .npy: {error}")


def _member_offset(path: str, info: zipfile.ZipInfo) -> int:
    """Byte at which the data of an uncompressed zip member start: after its local header, name and extra field."""
    with open_binary(path) as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        raise SourceError(f"{path} is truncated: the entry of {info.filename} is missing")
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    return int(info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes)
