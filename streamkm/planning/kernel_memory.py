"""Resident memory of a kernel fit, projected stage by stage from sizes.

Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamkm.cluster.profile import profile_bytes
from streamkm.cluster.seeding.search_set import search_rows
from streamkm.planning.memory import (
    CANDIDATES,
    CHECK_CENTERS,
    CHECK_COPIES,
    DRAWN_SLACK,
    IN_FLIGHT,
    MIB,
    ROUND_COPIES,
    SEARCH_COPIES,
    reading_bytes,
    waiting_calls,
)
from streamkm.sketches.kernel_columns import BATCH_ROWS

VIEW_ROWS = 5000  # sampled rows kept for the 2-D picture, and for what they promise of the objective
SQUARES = 6  # of c x c numbers while the landmarks' matrix is inverted: it, its vectors, what LAPACK works with
PROJECTED_SQUARES = 9  # while directions are found of the sums: root, sums, products, vectors, the map; measured
LIBRARY_MORE = 28 * MIB  # what maps of kernels and LAPACK hold beside what a fit of `StreamKMeans` does; measured
COMBINED = 3  # of n x c numbers while kernel columns are combined: the combinations, twice, and the random matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMemoryModel:
    """Sizes that the projection is made of."""

    n_rows: int
    sample_rows: int
    n_clusters: int
    n_features: int
    n_threads: int
    n_columns: int  # landmarks, random features, or combinations of kernel columns: c
    # rows that the map holds: landmarks, or all rows where kernel columns are combined; 0 for random features
    n_held: int
    rank: int
    row_bytes: int  # of a row as read
    landmark_bytes: int  # of a row as a landmark, with what is laid out for kernels
    pool_rows: int  # rows that landmarks are the means of, as floats; 0 where they are sampled
    largest_chunk: int  # decoded bytes of the largest chunk
    read_factor: float
    producer_bytes: int  # of the source
    all_rows: bool  # whether projection and clustering see all rows
    streams: bool = False  # whether the source only streams: pieces wait for threads
    drawn_rows: int = 0  # feature rows that the last pass draws by their share of the objective
    keeps_sample: bool = False  # whether the row sample is kept for rounds that look further

    def stages(self, base: int) -> dict[str, int]:
        """Resident bytes of each stage at its peak."""
        given = (self.n_threads, self.read_factor, self.largest_chunk)
        reading = reading_bytes(*given, streams=self.streams, producer_bytes=self.producer_bytes)
        kept = min(self.n_rows, self.sample_rows)
        sample, row = kept * self.row_bytes, 8 + 4 * self.rank
        mapped = self.n_held * (self.landmark_bytes + 4 * self.rank)
        batch = self.n_threads * BATCH_ROWS * (12 * self.n_columns + 4 * self.n_held + 16 * self.n_features)
        square = 8 * self.n_columns**2
        combined = COMBINED * 4 * self.n_held * self.n_columns if self.n_held > self.n_columns else 0
        pool = self.pool_rows * 4 * self.n_features + (32 * self.n_columns * self.n_features if self.pool_rows else 0)
        states = waiting_calls(self.n_threads) + IN_FLIGHT
        blocks = self.n_rows * row if self.all_rows else 0
        searched = min(kept, search_rows(self.n_clusters)) * 12 * self.rank
        searched += SEARCH_COPIES * 8 * self.n_clusters * self.rank
        streamed = reading if self.all_rows else 0
        looked_at = min(kept, VIEW_ROWS) * (self.row_bytes + row) + sample * self.keeps_sample
        sums = states * (8 * self.n_clusters * self.rank + profile_bytes(self.n_clusters))
        stages = {
            "sample": reading + int(CANDIDATES * sample),
            "landmarks": sample + mapped + batch + combined + SQUARES * square + pool,
            "gram": sample + mapped + batch + max(states * square + streamed, PROJECTED_SQUARES * square),
            "features": sample + mapped + batch + 2 * kept * row + blocks + streamed,
            "cluster": sample + mapped + kept * row + blocks + searched,
            "assign": mapped + batch + reading + 5 * self.n_rows + sums + looked_at,
        }
        if self.drawn_rows:
            stages["assign"] += int(states * DRAWN_SLACK * self.drawn_rows * row)
            checked = self.drawn_rows * CHECK_COPIES * 2 * row + CHECK_CENTERS * 8 * self.n_clusters * self.rank
            stages["check"] = mapped + looked_at + checked + 5 * self.n_rows
        if self.keeps_sample:
            both = ROUND_COPIES * (kept + self.drawn_rows) * row
            stages["search"] = mapped + batch + looked_at + both + 5 * self.n_rows
            stages["search"] += SEARCH_COPIES * 8 * self.n_clusters * self.rank
        return {name: base + LIBRARY_MORE + size for name, size in stages.items()}
