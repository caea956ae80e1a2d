"""Dense rows from a stored array, their chunks, and bfloat16, without ml_dtypes or PyTorch. Knows no file format."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.sources.base import Rows, RowSource, WrappedSource, row_places
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.stored import StoredArray, check_matrix, decoded_dtype

MOST_CHUNKS = 1 << 24
"""Largest number of chunks of a source: 256 TiB in chunks of 16 MiB."""

BFLOAT16 = "bfloat16"
"""The `dtype` of 16-bit words that are upper halves of float32 values, also the name of other packages' types."""


def cut_rows(n_rows: int, row_bytes: int, unit_rows: int, target_bytes: int) -> ChunkRuns:
    """Cut rows into chunks of about `target_bytes`, at multiples of `unit_rows`, the rows of a storage chunk. O(1).

    A storage chunk above `target_bytes` is a chunk by itself. Raises InvalidInputError: more than `MOST_CHUNKS`.
    """
    rows = max(1, target_bytes // max(1, row_bytes * unit_rows)) * unit_rows
    check_count(-(-n_rows // rows), n_rows, target_bytes)
    return ChunkRuns.even(n_rows, rows, row_bytes)


def check_count(n_chunks: int, n_rows: int, target_bytes: int) -> None:
    """Refuse more than `MOST_CHUNKS`, which a few bytes of metadata can claim. Raises InvalidInputError."""
    if n_chunks > MOST_CHUNKS:
        raise InvalidInputError(
            f"{n_rows:,} rows are {n_chunks:,} chunks of {target_bytes:,} bytes, and {MOST_CHUNKS:,} are the most; if "
            f"there are so many rows, pass a larger chunk_bytes, or fit the data in parts"
        )


class DenseSource(RowSource):
    """Rows of a stored array (n, d). Raises InvalidInputError: not two-dimensional, empty, or not of real numbers."""

    is_sparse = False
    read_factor = 4.0  # decoders hold several pieces, compressed and not

    def __init__(self, array: StoredArray) -> None:
        check_matrix(array.shape, array.dtype, array.name)
        self._array = array
        self.name = array.name
        self.n_rows, self.n_features = array.shape
        self.dtype, self.stored_dtype = decoded_dtype(array.dtype, array.name), array.dtype.newbyteorder("=")
        self.n_bytes = array.n_bytes
        self.in_process = array.in_process
        self.decodes = array.decodes
        self.files, self.libraries, self.missing_chunks = array.files, array.libraries, array.missing_chunks

    def details(self) -> dict[str, str]:
        lacking = {label: text.rpartition(": ")[2] for label, text in self.lacking().items()}
        return {"format": f"{self._array.format} dense", **self._array.details(), **lacking}

    def chunks(self, target_bytes: int) -> ChunkRuns:
        (n_rows, n_features), unit = self._array.shape, self._array.unit_rows
        row_bytes = max(n_features * self.dtype.itemsize, self._array.unit_bytes // min(unit, n_rows))
        return cut_rows(n_rows, row_bytes, unit, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        return Rows(self._array.read(chunk.start, chunk.stop), row_places(chunk.start, chunk.stop))


class Bfloat16Source(WrappedSource):
    """Rows of a dense `source` of uint16 as float32 values, of which its words are the upper halves.

    Raises InvalidInputError for other rows.
    """

    growth = 2.0

    def __init__(self, source: RowSource) -> None:
        if source.is_sparse or source.dtype != np.uint16 or source.streams:
            kind = "sparse" if source.is_sparse else "dense"
            raise InvalidInputError(
                f"{source.name} holds {kind} rows of {source.dtype}; dtype={BFLOAT16!r} is for dense ones of 16-bit "
                f"words (uint16), which are read as such values; leave it out"
            )
        self.source = source
        # words and values are there together
        self.take_after(source, dtype=np.dtype(np.float32), stored_dtype=None, read_factor=source.read_factor / 2 + 1)

    def details(self) -> dict[str, str]:
        return {**self.source.details(), "values": f"16-bit words, read as {BFLOAT16}"}

    def apply(self, X: Matrix) -> Matrix:
        return as_float32(np.asarray(X))


def as_float32(words: NDArray[Any]) -> NDArray[np.float32]:
    """The exact float32 values of bfloat16 words."""
    return np.left_shift(words, np.uint32(16), dtype=np.uint32).view(np.float32)


def check_said(dtype: str | None, name: str) -> None:
    """Refuse a `dtype` for files that store their type, except bfloat16. Raises InvalidParameterError."""
    if dtype not in (None, BFLOAT16):
        raise InvalidParameterError(
            f"dtype={dtype!r} does not apply to {name}, which is read in the type that it has; the only one that such "
            f"data cannot say themselves is {BFLOAT16!r}"
        )


def is_bfloat16(X: Any) -> bool:
    """Whether an array or tensor has bfloat16 values, by the name of its type; imports nothing."""
    return str(getattr(X, "dtype", "")) in (BFLOAT16, f"torch.{BFLOAT16}")


def words_of(X: Any) -> Any:
    """The 16-bit words of an array or tensor of bfloat16, in the same memory."""
    if not hasattr(X, "detach"):  # of NumPy, or what becomes one of its arrays, such as JAX's
        return np.asarray(X).view(np.uint16)
    import torch

    return X.detach().cpu().view(torch.uint16).numpy()


def word_dtype(stored: np.dtype[Any], name: str) -> np.dtype[Any]:
    """The type by which to read bfloat16 words, stored as two bytes or uint16. Raises InvalidInputError for others."""
    if stored.kind == "V" and stored.itemsize == 2 and stored.names is None:
        return np.dtype("<u2")
    if stored.kind == "u" and stored.itemsize == 2:
        return stored
    raise InvalidInputError(f"{name} holds {stored}, not {BFLOAT16} (V2 or uint16); leave dtype={BFLOAT16!r} out")
