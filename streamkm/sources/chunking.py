"""How large the chunks of a source are by default."""

from __future__ import annotations

from streamkm.sources.base import ChunkedSource, RowSource

MIB = 1 << 20
SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = MIB, 16 * MIB
CHUNKS_WANTED = 16  # of a small source, so that several workers share it
UNKNOWN_ROW_BYTES = 1024


def default_chunk_bytes(source: RowSource, *, row_bytes: int | None = None, largest: int = LARGEST_CHUNK_BYTES) -> int:
    """Decoded bytes of a chunk of a source: the same whatever the machine.

    `row_bytes`: what `decoded_row_bytes` gives, where that was asked for already. `largest`: that there is room for.
    """
    most = max(SMALLEST_CHUNK_BYTES, min(LARGEST_CHUNK_BYTES, largest))
    n_rows = source.estimated_rows
    if n_rows is None:
        return min(most, LARGEST_CHUNK_BYTES // 2)
    decoded_bytes = n_rows * (decoded_row_bytes(source) if row_bytes is None else row_bytes)
    return int(min(most, max(SMALLEST_CHUNK_BYTES, decoded_bytes // CHUNKS_WANTED)))


def decoded_row_bytes(source: RowSource) -> int:
    """Bytes of a row in memory, about."""
    if not source.is_sparse and source.n_features is not None:
        return max(1, source.n_features * source.dtype.itemsize)
    if isinstance(source, ChunkedSource) and source.estimated_rows:
        decoded = sum(chunk.n_bytes for chunk in source.chunks(LARGEST_CHUNK_BYTES))
        return max(1, decoded // source.estimated_rows)
    return UNKNOWN_ROW_BYTES
