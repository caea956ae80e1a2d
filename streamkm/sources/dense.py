"""Dense rows from a stored array, how rows are cut into chunks, and rows of bfloat16, which NumPy has no type for.

Knows no file format, and needs neither ml_dtypes nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.base import ChunkedSource, Rows, RowSource, WrappedSource, row_places
from streamkm.sources.chunks import Chunk, ChunkRuns, chunk_runs
from streamkm.sources.stored import StoredArray, check_matrix, decoded_dtype

MOST_CHUNKS = 1 << 24
"""Of a source: 256 TiB in chunks of 16 MiB."""

BFLOAT16 = "bfloat16"
"""What `dtype=` says of 16-bit words that are upper halves of float32 values; types of other packages are called so."""


def cut_rows(n_rows: int, row_bytes: int, unit_rows: int, target_bytes: int) -> ChunkRuns:
    """Cut `n_rows` rows into chunks of about `target_bytes`, at multiples of `unit_rows`.

    `row_bytes`: decoded bytes of a row. `unit_rows`: rows of a storage chunk. One that is larger than `target_bytes` is
    a chunk by itself. The result is in order, disjoint, covering; O(1). Raises InvalidInputError: more than
    `MOST_CHUNKS`.
    """
    rows = max(1, target_bytes // max(1, row_bytes * unit_rows)) * unit_rows
    check_count(-(-n_rows // rows), n_rows, target_bytes)
    return ChunkRuns.even(n_rows, rows, row_bytes)


def check_count(n_chunks: int, n_rows: int, target_bytes: int) -> None:
    """Refuse more chunks than a pass can walk: a few bytes of metadata can claim any number of rows.

    Raises InvalidInputError.
    """
    if n_chunks > MOST_CHUNKS:
        raise InvalidInputError(
            f"{n_rows:,} rows are {n_chunks:,} chunks of {target_bytes:,} bytes, and {MOST_CHUNKS:,} are the most; if "
            f"there are so many rows, pass a larger chunk_bytes, or fit the data in parts"
        )


class DenseSource(ChunkedSource):
    """Rows of a stored array of shape (n, d).

    Raises InvalidInputError: not two-dimensional, empty, or not of real numbers.
    """

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
        """Say how the rows are stored; see `RowSource.details`."""
        lacking = {label: text.rpartition(": ")[2] for label, text in self.lacking().items()}
        return {"format": f"{self._array.format} dense", **self._array.details(), **lacking}

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at multiples of a storage chunk; see `ChunkedSource.chunks`. O(1)."""
        (n_rows, n_features), unit = self._array.shape, self._array.unit_rows
        row_bytes = max(n_features * self.dtype.itemsize, self._array.unit_bytes // min(unit, n_rows))
        return cut_rows(n_rows, row_bytes, unit, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        return Rows(self._array.read(chunk.start, chunk.stop), row_places(chunk.start, chunk.stop))


class Bfloat16Source(WrappedSource, ChunkedSource):
    """Rows of 16-bit words as the float32 values that they are the upper halves of.

    `source`: dense, of uint16. Raises InvalidInputError for rows that are no such words.
    """

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
        """Say how the rows are stored; see `RowSource.details`."""
        return {**self.source.details(), "values": f"16-bit words, read as {BFLOAT16}"}

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut as the words are; see `ChunkedSource.chunks`."""
        return chunk_runs(self.source.chunks(max(1, target_bytes // 2))).resized(lambda n_bytes: 2 * n_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        rows = self.source.read(chunk)
        return Rows(as_float32(np.asarray(rows.X)), rows.places)


def as_float32(words: NDArray[Any]) -> NDArray[np.float32]:
    """Values of 16-bit words of bfloat16, exactly."""
    return np.left_shift(words, np.uint32(16), dtype=np.uint32).view(np.float32)


def check_said(dtype: str | None, name: str) -> None:
    """Refuse a `dtype` of files that say themselves what they hold, unless it is what they cannot say.

    Raises InvalidParameterError.
    """
    if dtype not in (None, BFLOAT16):
        raise InvalidParameterError(
            f"dtype={dtype!r} does not apply to {name}, which is read in the type that it has; the only one that such "
            f"data cannot say themselves is {BFLOAT16!r}"
        )


def is_bfloat16(X: Any) -> bool:
    """Whether an array or tensor is of such values, by the name of its type; imports nothing."""
    return str(getattr(X, "dtype", "")) in (BFLOAT16, f"torch.{BFLOAT16}")


def words_of(X: Any) -> Any:
    """The 16-bit words of an array or tensor of such values, in the same memory."""
    if not hasattr(X, "detach"):  # of NumPy, or what becomes one of its arrays, such as JAX's
        return np.asarray(X).view(np.uint16)
    import torch

    return X.detach().cpu().view(torch.uint16).numpy()


def word_dtype(stored: np.dtype[Any], name: str) -> np.dtype[Any]:
    """How words of a stored type are read that was said to be bfloat16: two bytes, which NumPy calls V2, or uint16.

    Raises InvalidInputError for other types.
    """
    if stored.kind == "V" and stored.itemsize == 2 and stored.names is None:
        return np.dtype("<u2")
    if stored.kind == "u" and stored.itemsize == 2:
        return stored
    raise InvalidInputError(f"{name} holds {stored}, not {BFLOAT16} (V2 or uint16); leave dtype={BFLOAT16!r} out")
