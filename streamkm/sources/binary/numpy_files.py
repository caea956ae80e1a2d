"""NumPy's .npy files, and the headers that members of .npz files start with.

Responsible for finding where in such a file the values lie, so that they are read in parts. Never loads a pickle:
arrays of Python objects are refused.
"""

from __future__ import annotations

import zipfile
import zlib
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.base import ChunkedSource
from streamkm.sources.bfloat16 import Bfloat16Source, check_said, word_dtype
from streamkm.sources.dense import DenseSource
from streamkm.sources.stored import FileArray, decoded_dtype, open_binary, opened_path

DAMAGE = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, TokenError)
"""What NumPy and zipfile raise on bytes that are not theirs."""


def open_npy(path: str, *, dtype: str | None = None) -> ChunkedSource:
    """Open a .npy file; its rows are read from the file, chunk by chunk.

    `dtype` ("bfloat16" or None): what values of two bytes are that the file has no type for. Raises SourceError:
    missing, truncated, or no .npy file. Raises InvalidInputError: not two-dimensional, empty, or not of real numbers
    (pickled objects are never loaded). Raises InvalidParameterError: another `dtype`.
    """
    check_said(dtype, path)
    path = opened_path(path)
    if dtype is None:
        return DenseSource(_npy_array(path))
    return Bfloat16Source(DenseSource(_npy_array(path, words=True)))


def _npy_array(path: str, *, words: bool = False) -> FileArray:
    """Give the array of a .npy file, or its 16-bit words."""
    with open_binary(path) as file:
        shape, fortran_order, dtype = npy_header(file, path)
        start = file.tell()
    if words:
        dtype = word_dtype(dtype, path)
    decoded_dtype(dtype, path)
    return FileArray(path, start, shape, dtype, name=path, fortran_order=fortran_order, format=".npy")


def npy_header(file: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order (True: by columns) and type of the array whose header a file stands at. Raises SourceError."""
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
    """The error to raise for what NumPy says of an array."""
    if "allow_pickle" in str(error):
        return InvalidInputError(f"{name} holds Python objects, which are pickled and never loaded; save numbers")
    return SourceError(f"{name} cannot be read as .npy: {error}")
