"""Shares of clusters in buckets, so that rows compared at the same time fit in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import row_d2
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.matrix import rows_between
from streamkm.core.memory import human_bytes
from streamkm.deduplication.buckets import ROW_BYTES
from streamkm.engine import local_threads
from streamkm.engine.pass_memory import PassMemory, ReadingMemory
from streamkm.engine.passes import Map
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.passes.reader import ValidRows
from streamkm.planning.memory_budget import MemoryBudget, largest_chunk, reading_of
from streamkm.planning.plan import Plan
from streamkm.sources.chunks import decoded_row_bytes
from streamkm.sources.row_source import RowSource

WAITING = 6  # chunks whose rows wait to be put to their clusters, or are being put there
SCORE_BYTES = 1 << 24  # of distances to all centers that are held at a time
DEVIATIONS = 3.0  # of the way that near-duplicates in random directions lie apart across a border


# valid rows of a chunk, their numbers in it, its rows, and each valid row's nearest and second nearest cluster
Bordering: TypeAlias = tuple[Any, NDArray[np.int64], int, NDArray[np.int32], NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class BorderRows(Map[Bordering]):
    """Rows of each chunk, and their nearest and second nearest clusters."""

    table: NearestCenters
    width: float  # share of the distance between two centers that products of guests with them may differ by

    @classmethod
    def of(cls, centers: NDArray[np.float64], threshold: float) -> BorderRows:
        """Borders of spherical clusters (k, d) of rows whose near-duplicates have a cosine of at least the threshold.

        For rows x and y on both sides of the border between centers a and b, ``(x - y) @ (a - b)`` is at most
        ``|x - y| |a - b|``, with a standard deviation of ``1 / sqrt(d)`` of that for random directions. One of them
        lies at most half as far from the border.
        """
        apart = float(np.sqrt(2.0 - 2.0 * threshold))
        width = apart / 2 * min(1.0, DEVIATIONS / centers.shape[1] ** 0.5)
        return cls(NearestCenters.build(centers, np.float32), width)

    @staticmethod
    def memory(chunk_bytes: int) -> PassMemory:
        """Memory of rows that wait for their clusters, and of a chunk's rows at unit length in each call."""
        return PassMemory(kept=WAITING * chunk_bytes, call=2 * chunk_bytes)

    def output(self, rows: ValidRows) -> Bordering:
        """Rows of one chunk; the second nearest cluster is -1 for rows far from the border. O(n * k * d)."""
        n_rows, k = rows.X.shape[0], self.table.n_clusters
        nearest, second = np.zeros(n_rows, np.int32), np.full(n_rows, -1, np.int32)
        step = max(1, SCORE_BYTES // (4 * k))
        for start in range(0, n_rows if k > 1 else 0, step):
            part = rows_between(rows.X, start, min(start + step, n_rows))
            scores, each = self.table.scores(part), np.arange(part.shape[0])
            first = scores.argmin(axis=1).astype(np.int32)
            lowest = scores[each, first].copy()
            scores[each, first] = np.inf
            other = scores.argmin(axis=1).astype(np.int32)
            pairs, pair_of = np.unique(np.stack([first, other]), axis=1, return_inverse=True)
            # one at a time, as centers may have many features
            d2 = [row_d2(self.table.centers[[a]], pairs[1:, at], self.table)[0] for at, a in enumerate(pairs[0])]
            # squared distances differ by twice the products
            behind = scores[each, other] - lowest <= 2.0 * self.width * np.sqrt(d2)[pair_of]
            nearest[start : start + step] = first
            second[start : start + step] = np.where(behind, other, -1)
        return rows.X, rows.numbers, rows.n_read, nearest, second


def invited(
    own: NDArray[np.int32], nearest: NDArray[np.int32], second: NDArray[np.int32], room: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Clusters that rows are guests of, or -1 (n,); lowers `room`, int64 (k,), the guests that each may still have.

    `nearest` and `second` are those of `BorderRows.output`; `own` differs from `nearest` where that was full.
    """
    others = np.where(nearest == own, second, nearest).astype(np.int32)
    others[others == own] = -1
    rows = np.flatnonzero(others >= 0)
    order = rows[np.argsort(others[rows], kind="stable")]
    hosts = others[order]
    starts = np.flatnonzero(np.diff(hosts, prepend=-1))
    counts = np.diff(starts, append=len(hosts))
    before = np.arange(len(hosts)) - np.repeat(starts, counts)
    others[order[before >= room[hosts]]] = -1
    room[hosts[starts]] -= np.minimum(counts, room[hosts[starts]])
    return others


COPIES = 4  # of a bucket's rows while they are compared
LEAST_ROOM = 1 << 24  # bytes for rows
ROOM_SHARE = 0.8  # of what is left; the rest is what allocators keep of what was freed
BYTES_PER_ROW = 6  # its label, and whether it goes
ORDER_BYTES = 40  # of a row of a cluster that is compared: its distance and place, and whether it goes


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """Buckets of clusters, and sizes."""

    bucket_of: NDArray[np.int64]  # (k,)
    n_buckets: int
    most_guests: NDArray[np.int64]  # (k,): rows of other clusters that those of each are compared with, too
    room_bytes: int  # that rows may take before they go to the disk
    piece_bytes: int  # of rows that are compared at a time, at most; larger clusters are compared piece by piece
    n_threads: int
    chunk_bytes: int

    @classmethod
    def of(cls, source: RowSource, estimator: StreamKMeans, sizes: NDArray[np.int64]) -> GatherPlan:
        """Plan by the limit, rows and clusters alone."""
        budget, n_threads = MemoryBudget.of(estimator.memory_limit, source), local_threads(estimator.executor)
        limit = budget.limit_bytes
        row_bytes = decoded_row_bytes(source)
        if not source.is_sparse and np.can_cast(source.dtype, np.float32):
            row_bytes = 4 * row_bytes // source.dtype.itemsize  # rows of unit length are floats
        chunk = estimator.plan_for(source).chunk_bytes
        taken = budget.base_bytes + BYTES_PER_ROW * int(sizes.sum()) + ORDER_BYTES * int(sizes.max(initial=0))
        largest = largest_chunk(source, chunk)

        def room(count: int) -> int:  # for rows, beside those that so many threads read
            return int(ROOM_SHARE * (limit - taken - _read_bytes(reading_of(source.access, count, largest))))

        n_threads = next((count for count in range(n_threads, 1, -1) if room(count) >= count * LEAST_ROOM), 1)
        rows_bytes = max(LEAST_ROOM, room(n_threads)) // 2
        piece = rows_bytes // (COPIES * n_threads)
        most_guests = sizes if len(sizes) > 1 else np.zeros_like(sizes)
        ends = np.cumsum(sizes + most_guests) * (row_bytes + ROW_BYTES)
        bucket_of = _cut(np.diff(ends, prepend=0), piece)
        return cls(bucket_of, int(bucket_of[-1]) + 1, most_guests, rows_bytes, piece, n_threads, chunk)


def plan_run(estimator: StreamKMeans, source: RowSource, memory_limit: Any) -> Plan:
    """The plan of the fit, if gathering and comparing have room too, for any clusters; else MemoryLimitError."""
    plan = estimator.plan_for(source, memory_limit=memory_limit)
    reading = reading_of(source.access, 1, largest_chunk(source, plan.chunk_bytes))
    rows_bytes = (BYTES_PER_ROW + ORDER_BYTES) * (source.estimated_rows or 0)
    needed = plan.base_bytes + rows_bytes + int(LEAST_ROOM / ROOM_SHARE) + _read_bytes(reading)
    if needed > plan.limit_bytes:
        what, limit = f"finding near-duplicates of {source.name}", human_bytes(plan.limit_bytes)
        raise MemoryLimitError(f"{what} needs about {human_bytes(needed)}, above the limit of {limit}", needed)
    return plan


def _read_bytes(reading: ReadingMemory) -> int:
    """Bytes of chunks that threads read, of these rows at unit length, and of waiting ones."""
    return reading.peak(BorderRows.memory(reading.largest_chunk))


def _cut(sizes: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Numbers (k,) of runs of consecutive clusters with at most `most` bytes together, or of one cluster."""
    out = np.zeros(len(sizes), np.int64)
    bucket = filled = 0
    for cluster, size in enumerate(sizes.tolist()):
        if filled and filled + size > most:
            bucket, filled = bucket + 1, 0
        out[cluster], filled = bucket, filled + size
    return out
