"""How clusters share buckets, so that those that are compared at the same time fit in memory."""

from __future__ import annotations

from dataclasses import dataclass

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
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes

COPIES = 4  # of a bucket's rows while they are compared
LEAST_ROOM = 1 << 24  # bytes for rows
ROOM_SHARE = 0.8  # of what is left; the rest is what allocators keep of what was freed
BYTES_PER_ROW = 6  # its label, and whether it goes


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
    n_threads : int
    chunk_bytes : int
    """

    bucket_of: NDArray[np.int64]
    n_buckets: int
    most_guests: NDArray[np.int64]
    room_bytes: int
    n_threads: int
    chunk_bytes: int

    @classmethod
    def of(cls, source: RowSource, estimator: StreamKMeans, sizes: NDArray[np.int64]) -> GatherPlan:
        """By the limit, rows and clusters alone.

        Raises
        ------
        MemoryLimitError
            The largest cluster has no room.
        """
        budget, n_threads = MemoryBudget.of(estimator.memory_limit, source), local_threads(estimator.executor)
        limit = budget.limit_bytes
        row_bytes = decoded_row_bytes(source)
        if not source.is_sparse and np.can_cast(source.dtype, np.float32):
            row_bytes = 4 * row_bytes // source.dtype.itemsize  # rows of unit length are floats
        chunk = estimator.plan_for(source).chunk_bytes
        taken = budget.base_bytes + BYTES_PER_ROW * int(sizes.sum())
        largest_bytes = largest_chunk(source, chunk)
        room = _room(limit - taken, reading_of(source, 1, largest_bytes))
        most_guests = sizes if len(sizes) > 1 else np.zeros_like(sizes)
        largest = int((sizes + most_guests).max(initial=0)) * (row_bytes + ROW_BYTES)
        if COPIES * largest > room // 2 and COPIES * largest > LEAST_ROOM:
            raise MemoryLimitError(
                f"the largest cluster has {int(sizes.max()):,} rows, which take {human_bytes(COPIES * largest)} while "
                f"they are compared with as many guests; the limit of {human_bytes(limit)} leaves "
                f"{human_bytes(room // 2)}: raise memory_limit, or pass more n_clusters"
            )
        rooms = {
            count: _room(limit - taken, reading_of(source, count, largest_bytes)) for count in range(1, n_threads + 1)
        }
        n_threads = max((count for count, left in rooms.items() if count * COPIES * largest <= left // 2), default=1)
        room = rooms[n_threads]
        most = max(largest, room // (2 * COPIES * n_threads))
        ends = np.cumsum(sizes + most_guests) * (row_bytes + ROW_BYTES)
        bucket_of = _cut(np.diff(ends, prepend=0), most)
        return cls(bucket_of, int(bucket_of[-1]) + 1, most_guests, room // 2, n_threads, chunk)


def _room(free: int, reading: ReadingMemory) -> int:
    """Bytes for rows, beside chunks that threads read, those of the same rows at unit length, and those that wait."""
    taken = reading.peak(BorderRows.memory(reading.largest_chunk))
    return max(LEAST_ROOM, int(ROOM_SHARE * (free - taken)))


def _cut(sizes: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Numbers of runs of consecutive clusters whose bytes together are `most` at most, or of one cluster (k,)."""
    out = np.zeros(len(sizes), np.int64)
    bucket = filled = 0
    for cluster, size in enumerate(sizes.tolist()):
        if filled and filled + size > most:
            bucket, filled = bucket + 1, 0
        out[cluster], filled = bucket, filled + size
    return out
