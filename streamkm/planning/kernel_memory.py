"""Resident memory of a kernel fit: its passes and searches, what each says of itself, and their sum.

Pure arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamkm.cluster.memory import SEARCH_COPIES
from streamkm.cluster.seeding.search_set import search_rows
from streamkm.engine.memory import MIB, PassMemory
from streamkm.passes.assign import LABEL_BYTES, Assign
from streamkm.passes.sizes import FitSizes
from streamkm.passes.sketch import FindSketch
from streamkm.passes.sketch_rows import SketchRows
from streamkm.planning.memory import CHECK_CENTERS, CHECK_COPIES, ROUND_COPIES
from streamkm.sketches.kernel_columns import BATCH_ROWS
from streamkm.sketches.kernel_map import gram_bytes

VIEW_ROWS = 5000  # sampled rows kept for the 2-D picture, and for what they promise of the objective
SQUARES = 6  # of c x c numbers while the landmarks' matrix is inverted: it, its vectors, what LAPACK works with
LIBRARY_MORE = 28 * MIB  # what maps of kernels and LAPACK hold beside what a fit of `StreamKMeans` does; measured
COMBINED = 3  # of n x c numbers while kernel columns are combined: the combinations, twice, and the random matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSizes:
    """Sizes of a map to features.

    Attributes
    ----------
    n_columns : int
        Landmarks, random features, or combinations of kernel columns: c.
    n_held : int
        Rows that the map holds: landmarks, or all rows where kernel columns are combined; 0 for random features.
    rank : int
        Features.
    n_features : int
        Of dense rows; 0 of sparse ones.
    landmark_bytes : int
        Of a row as a landmark, with what is laid out for kernels.
    pool_rows : int
        Rows that landmarks are the means of, as floats; 0 where they are sampled.
    """

    n_columns: int
    n_held: int
    rank: int
    n_features: int
    landmark_bytes: int
    pool_rows: int

    @property
    def map_bytes(self) -> int:
        """Of the map."""
        return self.n_held * (self.landmark_bytes + 4 * self.rank)

    @property
    def call_bytes(self) -> int:
        """Of a call that maps rows, beside these."""
        return BATCH_ROWS * (12 * self.n_columns + 4 * self.n_held + 16 * self.n_features)

    @property
    def finding_bytes(self) -> int:
        """While landmarks are chosen and their matrix is inverted, or kernel columns are combined."""
        combined = COMBINED * 4 * self.n_held * self.n_columns if self.n_held > self.n_columns else 0
        means = 32 * self.n_columns * self.n_features if self.pool_rows else 0
        return combined + SQUARES * 8 * self.n_columns**2 + self.pool_rows * 4 * self.n_features + means


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMemoryModel:
    """Sizes that the projection is made of, and the projection.

    Attributes
    ----------
    read : FitSizes
        Of rows as they are read.
    features : FitSizes
        Of rows as features.
    map : MapSizes
    all_rows : bool
        Whether projection and clustering see all rows.
    """

    read: FitSizes
    features: FitSizes
    map: MapSizes
    all_rows: bool

    def stages(self, base: int) -> dict[str, int]:
        """Resident bytes of each stage at its peak."""
        reading, sample, kept = self.read.reading, self.read.sample_bytes, self.read.kept_rows
        row, n_rows = 8 + 4 * self.map.rank, self.read.rows.n_rows
        batch = reading.n_threads * self.map.call_bytes
        mapped = self.map.map_bytes + batch
        blocks = n_rows * row if self.all_rows else 0
        centers = 8 * self.read.n_clusters * self.map.rank
        searched = min(kept, search_rows(self.read.n_clusters)) * 12 * self.map.rank + SEARCH_COPIES * centers
        looked_at = min(kept, VIEW_ROWS) * (self.read.rows.row_bytes + row) + sample * self.read.chosen.keeps_sample
        labels, drawn = LABEL_BYTES * n_rows, self.read.chosen.drawn_rows
        gram = FindSketch.memory(gram_bytes(self.map.n_columns), sample + mapped, reads=self.all_rows)
        streamed = PassMemory(kept=sample + mapped + 2 * kept * row + blocks, reads=self.all_rows)
        stages = {
            "sample": reading.peak(SketchRows.memory(self.read, "sample")),
            "landmarks": sample + mapped + self.map.finding_bytes,
            "gram": reading.peak(gram),
            "features": reading.peak(streamed),
            "cluster": sample + mapped - batch + kept * row + blocks + searched,
            "assign": reading.peak(Assign.memory(self.features, "sketch")) + mapped + looked_at,
        }
        if drawn:
            checked = drawn * CHECK_COPIES * 2 * row + CHECK_CENTERS * centers
            stages["check"] = mapped - batch + looked_at + checked + labels
        if self.read.chosen.keeps_sample:
            both = ROUND_COPIES * (kept + drawn) * row
            stages["search"] = mapped + looked_at + both + labels + SEARCH_COPIES * centers
        return {name: base + LIBRARY_MORE + size for name, size in stages.items()}
