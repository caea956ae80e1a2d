"""Dense rows from a stored array, and how rows are cut into chunks.

Responsible for cutting rows at multiples of a storage chunk and for the source that reads such rows. Knows no file
format.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.base import ChunkedSource, Rows, row_places
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.stored import StoredArray, check_matrix, decoded_dtype

MOST_CHUNKS = 1 << 24
"""Of a source: 256 TiB in chunks of 16 MiB."""


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
