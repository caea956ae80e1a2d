"""Dense rows from a stored array, and their chunks. Knows no file format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.row_source import Rows, RowSource, row_ids_between
from streamkm.sources.stored import StoredArray, check_matrix, decoded_dtype

READ_FACTOR = 4.0  # of stored arrays, whose decoders hold several pieces, compressed and not

MOST_CHUNKS = 1 << 24
"""Largest number of chunks of a source: 256 TiB in chunks of 16 MiB."""


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

    def __init__(self, array: StoredArray) -> None:
        check_matrix(array.shape, array.dtype, array.name)
        self._array = array
        self.name = array.name
        self.n_rows, self.n_features = array.shape
        self.dtype = decoded_dtype(array.dtype, array.name)
        self.access, self.origin = replace(array.access, read_factor=READ_FACTOR), array.origin
        self.n_bytes = array.n_bytes

    def details(self) -> dict[str, str]:
        lacking = {label: text.rpartition(": ")[2] for label, text in super().details().items()}
        return {"format": f"{self._array.format} dense", **self._array.details(), **lacking}

    def chunks(self, target_bytes: int) -> ChunkRuns:
        (n_rows, n_features), unit = self._array.shape, self._array.unit_rows
        row_bytes = max(n_features * self.dtype.itemsize, self._array.unit_bytes // min(unit, n_rows))
        return cut_rows(n_rows, row_bytes, unit, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        return Rows(self._array.read(chunk.start, chunk.stop), row_ids_between(chunk.start, chunk.stop))


def is_bfloat16(X: Any) -> bool:
    """Whether an array or tensor has bfloat16 values, by the name of its type; imports nothing."""
    return str(getattr(X, "dtype", "")) in ("bfloat16", "torch.bfloat16", "|V2")
