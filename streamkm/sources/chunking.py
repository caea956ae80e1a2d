"""How large the chunks of a source are by default."""

from __future__ import annotations

from streamkm.sources.base import ChunkedSource, RowSource

MIB = 1 << 20
SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = MIB, 16 * MIB
CHUNKS_WANTED = 16  # of a small source, so that several workers share it
MOST_WANTED = 1 << 23  # of a large one, as client and scheduler keep some bytes of each: 128 TiB in chunks of 16 MiB
UNKNOWN_ROW_BYTES = 1024


def default_chunk_bytes(source: RowSource, *, row_bytes: int | None = None, largest: int | None = None) -> int:
    """Decoded bytes of a chunk of a source: the same whatever the machine.

    Chunks of the largest source grow with it. `row_bytes`: what `decoded_row_bytes` gives, where that was asked for
    already. `largest`: that there is room for.
    """
    n_rows = source.estimated_rows
    if n_rows is None:
        wanted = LARGEST_CHUNK_BYTES // 2
    else:
        decoded_bytes = n_rows * (decoded_row_bytes(source) if row_bytes is None else row_bytes)
        wanted = min(LARGEST_CHUNK_BYTES, decoded_bytes // CHUNKS_WANTED)
        wanted = max(wanted, -(-decoded_bytes // MOST_WANTED))
    return int(max(SMALLEST_CHUNK_BYTES, wanted if largest is None else min(wanted, largest)))


def decoded_row_bytes(source: RowSource) -> int:
    """Bytes of a row in memory, about."""
    if not source.is_sparse and source.n_features is not None:
        return max(1, source.n_features * source.dtype.itemsize)
    if isinstance(source, ChunkedSource) and source.estimated_rows:
        return max(1, source.cut(LARGEST_CHUNK_BYTES).total_bytes // source.estimated_rows)
    return UNKNOWN_ROW_BYTES
