"""How clusters share buckets, so that those that are compared at the same time fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import human_bytes
from streamkm.deduplication.borders import BorderRows
from streamkm.deduplication.buckets import ROW_BYTES
from streamkm.engine import local_threads
from streamkm.engine.memory import ReadingMemory
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.planning.memory_budget import MemoryBudget, largest_chunk, reading_of
from streamkm.planning.plan import Plan
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes

COPIES = 4  # of a bucket's rows while they are compared
LEAST_ROOM = 1 << 24  # bytes for rows
ROOM_SHARE = 0.8  # of what is left; the rest is what allocators keep of what was freed
BYTES_PER_ROW = 6  # its label, and whether it goes
ORDER_BYTES = 40  # of a row of a cluster that is compared: its distance and place, and whether it goes


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """How clusters share buckets.

    Attributes
    ----------
    bucket_of : int64 (k,)
    n_buckets : int
    most_guests : int64 (k,)
        Rows of other clusters that those of each are compared with, too.
    room_bytes : int
        That rows may take before they go to the disk.
    piece_bytes : int
        Of rows that are compared at a time, at most; larger clusters are compared piece by piece.
    n_threads : int
    chunk_bytes : int
    """

    bucket_of: NDArray[np.int64]
    n_buckets: int
    most_guests: NDArray[np.int64]
    room_bytes: int
    piece_bytes: int
    n_threads: int
    chunk_bytes: int

    @classmethod
    def of(cls, source: RowSource, estimator: StreamKMeans, sizes: NDArray[np.int64]) -> GatherPlan:
        """By the limit, rows and clusters alone."""
        budget, n_threads = MemoryBudget.of(estimator.memory_limit, source), local_threads(estimator.executor)
        limit = budget.limit_bytes
        row_bytes = decoded_row_bytes(source)
        if not source.is_sparse and np.can_cast(source.dtype, np.float32):
            row_bytes = 4 * row_bytes // source.dtype.itemsize  # rows of unit length are floats
        chunk = estimator.plan_for(source).chunk_bytes
        taken = budget.base_bytes + BYTES_PER_ROW * int(sizes.sum()) + ORDER_BYTES * int(sizes.max(initial=0))
        largest = largest_chunk(source, chunk)

        def room(count: int) -> int:  # for rows, beside those that so many threads read
            return int(ROOM_SHARE * (limit - taken - _read_bytes(reading_of(source, count, largest))))

        n_threads = next((count for count in range(n_threads, 1, -1) if room(count) >= count * LEAST_ROOM), 1)
        rows_bytes = max(LEAST_ROOM, room(n_threads)) // 2
        piece = rows_bytes // (COPIES * n_threads)
        most_guests = sizes if len(sizes) > 1 else np.zeros_like(sizes)
        ends = np.cumsum(sizes + most_guests) * (row_bytes + ROW_BYTES)
        bucket_of = _cut(np.diff(ends, prepend=0), piece)
        return cls(bucket_of, int(bucket_of[-1]) + 1, most_guests, rows_bytes, piece, n_threads, chunk)


def plan_run(estimator: StreamKMeans, source: RowSource, memory_limit: Any) -> Plan:
    """The plan of the fit, if gathering and comparing have room below the limit, too, whatever clusters there are.

    Raises
    ------
    MemoryLimitError
    """
    plan = estimator.plan_for(source, memory_limit=memory_limit)
    reading = reading_of(source, 1, largest_chunk(source, plan.chunk_bytes))
    rows_bytes = (BYTES_PER_ROW + ORDER_BYTES) * (source.estimated_rows or 0)
    needed = plan.base_bytes + rows_bytes + int(LEAST_ROOM / ROOM_SHARE) + _read_bytes(reading)
    if needed > plan.limit_bytes:
        what, limit = f"finding near-duplicates of {source.name}", human_bytes(plan.limit_bytes)
        raise MemoryLimitError(f"{what} needs about {human_bytes(needed)}, above the limit of {limit}", needed)
    return plan


def _read_bytes(reading: ReadingMemory) -> int:
    """Bytes of chunks that threads read, of the same rows at unit length, and of those that wait."""
    return reading.peak(BorderRows.memory(reading.largest_chunk))


def _cut(sizes: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Numbers of runs of consecutive clusters whose bytes together are `most` at most, or of one cluster (k,)."""
    out = np.zeros(len(sizes), np.int64)
    bucket = filled = 0
    for cluster, size in enumerate(sizes.tolist()):
        if filled and filled + size > most:
            bucket, filled = bucket + 1, 0
        out[cluster], filled = bucket, filled + size
    return out
