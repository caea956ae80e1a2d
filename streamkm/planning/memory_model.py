"""Resident memory of a fit: the passes and searches of a plan, the sizes that each declares, and their sum."""

from __future__ import annotations

from dataclasses import dataclass

from streamkm.cluster.model import Space
from streamkm.cluster.normalization import MOST_FEATURES
from streamkm.cluster.search_memory import ALL_SETS, PLACED_ROW_BYTES, search_bytes
from streamkm.engine.pass_memory import MIB
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.passes.assign import LABEL_BYTES, Assign
from streamkm.passes.prepare import PreparationSums
from streamkm.passes.sizes import ClusterOn, FitSizes
from streamkm.passes.sketch import FindSketch
from streamkm.passes.sketch_rows import Evenly, SketchRows
from streamkm.sketches.base_sketch import SketchFitBytes
from streamkm.sketches.subspace import subspace_bytes

POOL_ROWS = 20_000  # of the sample, that a kernel's landmarks are chosen from
PCA_ROWS = 10_000  # of the sample, that directions are found on,
PCA_BYTES = 256 * MIB  # and their largest bytes in float64
MOST_AHEAD = 0.1  # share of all rows that are read ahead to find directions, at most, but for
FEWEST_AHEAD = 4  # rows a component
SPILLED_COPIES = 3  # of a spilled block that a thread reads: the file, its arrays, rows drawn from it
FRAME_ROWS = 6  # of float64, while rows are normalized
CHECK_COPIES = 6  # of drawn rows, while a gain is estimated
CHECK_CENTERS = 22  # copies of the centers meanwhile, measured: means, sums, halves of all clusters twice, layouts
ROUND_COPIES = 3  # of sampled and drawn rows as floats, in another search


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBytes:
    """Memory of a map to features that a fit finds on its rows."""

    held: int  # of the map
    call: int  # of a call that maps rows
    finding: int  # while it is found on the sample, and of each sampled row that landmarks are means of
    pool_row: int
    gram: SketchFitBytes  # of the sums that its projection is found by
    columns: int  # sampled rows that it needs
    projected: bool  # whether all rows are read to find its projection


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel(FitSizes):
    """Sizes that the projection of memory depends on, and the projection."""

    cluster_on: ClusterOn = "sample"
    space: Space = "original"  # in which rows are assigned
    room: int = 0  # bytes of spilled blocks that are kept in memory
    map: MapBytes | None = None  # of a kernel

    @property
    def many(self) -> bool:
        """Whether there are so many centers of dense rows that rows are compared with a few of them only."""
        return self.centers(self.rows.n_components).many

    def stages(self, base: int) -> dict[str, int]:
        """Resident bytes of each stage at its peak, above what the process holds beside data."""
        reading, blocks, n_features = self.reading, self._held_blocks(), self.rows.n_features
        sketched = self.sample_bytes + self.kept_rows * (8 + self.rows.block_row_bytes)
        # sparse rows of more features are not moved; a reader's library does not give all of it back: 31 MiB measured
        framing = FRAME_ROWS * 8 * n_features * (self.fitted or n_features <= MOST_FEATURES)
        left = reading.producer_bytes * self.many
        n_fitted = min(self.kept_rows, pca_rows(n_features, self.rows.n_components))  # rows of directions
        fitting = 2 * self.rows.itemsize * n_fitted * n_features * (self.fitted and not self.directions)
        stages = {
            "sketch": reading.peak(SketchRows.memory(self, self.cluster_on, self.room)),
            "cluster": sketched + framing + left + max(self.maps(), fitting, blocks + self._iterating()),
            "assign": reading.peak(Assign.memory(self, self.space)) + (blocks if self.once else 0),
            **self._looking_further(),
        }
        if self.space == "original" and self.rows.n_components != n_features:
            floats = self.kept_rows * self.rows.sample_floats
            stages["polish"] = sketched + blocks + floats + self._steps(self.rows.center_features, self.kept_rows)
        if self.sums_bytes:
            stages["prepare"] = reading.peak(PreparationSums.memory(self))
        if self.ahead:
            n_ahead = n_rows_ahead(self.rows.n_rows, n_features, self.rows.n_components)
            stages["ahead"] = reading.peak(Evenly.memory(n_ahead, self.rows.row_bytes))
        if self.directions:
            found = subspace_bytes(self.directions, n_features)
            stages["directions"] = reading.peak(FindSketch.memory(found, self.sample_bytes))
        if self.map is not None:
            pool = min(self.kept_rows, POOL_ROWS) * self.map.pool_row
            stages["landmarks"] = self.sample_bytes + self.map.finding + pool
            gram = FindSketch.memory(self.map.gram, self.sample_bytes, reads=self.cluster_on != "sample")
            stages["gram"] = reading.peak(gram)
        base += self.map_bytes(reading.n_threads)
        return {name: base + size for name, size in stages.items()}

    def map_bytes(self, n_threads: int) -> int:
        """Bytes of a kernel's map in a process of `n_threads` threads; 0 for other fits."""
        return 0 if self.map is None else self.map.held + n_threads * self.map.call

    def _held_blocks(self) -> int:
        """Bytes of the sketched rows in memory."""
        row, cluster_on = 8 + self.rows.block_row_bytes, self.cluster_on
        if cluster_on == "blocks":
            return 0 if self.reading.on_cluster else self.rows.n_rows * row  # workers hold them, or this process
        if cluster_on == "spilled":
            return self.room + SPILLED_COPIES * self.reading.n_threads * self.chunk_rows * row
        return min(self.coreset_rows, self.rows.n_rows) * (PLACED_ROW_BYTES + row) if cluster_on == "coreset" else 0

    def _iterating(self) -> int:
        """Bytes of the search for centers, without the rows that they are searched on."""
        in_blocks = self.cluster_on in ("blocks", "spilled")
        n_rows = self.rows.n_rows if self.cluster_on != "sample" else self.kept_rows
        n_rows = min(self.coreset_rows, n_rows) if self.cluster_on == "coreset" else n_rows
        searching = self.searching_bytes(n_rows, in_blocks=in_blocks)
        steps = self._steps(self.rows.n_components, n_rows, in_blocks=in_blocks)
        return max(searching, steps) if self.many else searching + steps  # many centers: searched rows are freed first

    def searching_bytes(self, n_rows: int, *, in_blocks: bool = True) -> int:
        """Bytes of the search for starts on `n_rows` rows, or on rows drawn from them, without these rows."""
        centers, chosen, row_bytes = self.centers(self.rows.n_components), self.chosen, self.rows.block_row_bytes
        searching = search_bytes(centers, n_rows, row_bytes, chosen.searched_rows, self.n_portions)
        if in_blocks and chosen.sample_rows < n_rows <= chosen.searched_rows:
            searching += ALL_SETS * n_rows * (PLACED_ROW_BYTES + row_bytes)
        return searching

    def _looking_further(self) -> dict[str, int]:
        """Bytes of the check for clusters that the sample missed, and of another search."""
        drawn, rows, stages = self.chosen.drawn_rows, self.rows, {}
        centers, labels = self.centers(self.width(self.space)), LABEL_BYTES * self.rows.n_rows * self.labels
        if drawn:
            doubles = rows.float_bytes(self.space) * (8 // rows.itemsize if rows.dense else 1)
            looked_at = drawn * (rows.placed_bytes(self.space) + CHECK_COPIES * doubles)
            # memory of the sample may not have been freed
            about = CHECK_CENTERS * centers.double_bytes + centers.table_bytes
            stages["check"] = self.sample_bytes + looked_at + about + labels
        if self.chosen.keeps_sample:
            n_searched = self.kept_rows + drawn + self.n_clusters  # with a mean of each cluster
            searched = self.searching_bytes(n_searched, in_blocks=False) + self._steps(centers.width, n_searched)
            floats = ROUND_COPIES * n_searched * rows.float_bytes(self.space)
            stages["search"] = self.sample_bytes + floats + searched + labels
        return stages

    def _steps(self, width: int, n_rows: int, *, in_blocks: bool = False) -> int:
        """Bytes of a step of Lloyd's algorithm on `n_rows` rows, without these rows."""
        centers = self.centers(width)
        n_sums = self.reading.large_states(centers.double_bytes) if in_blocks else 2
        # workers keep the labels of the rows that they hold
        n_labels = 0 if in_blocks and self.reading.on_cluster else n_rows
        return centers.step_bytes(n_labels, n_sums, in_blocks=in_blocks)

    def maps(self) -> int:
        """Bytes of directions laid out for kernels, by each thread that projects rows."""
        rows, padded = self.rows, -(-self.rows.n_components // LANES) * LANES
        return self.reading.n_threads * rows.itemsize * rows.n_features * padded if self.fitted else 0


def pca_rows(n_features: int, n_components: int) -> int:
    """Sampled rows on which directions are found."""
    return max(n_components, min(PCA_ROWS, PCA_BYTES // (8 * n_features)))


def n_rows_ahead(n_rows: int, n_features: int, n_components: int) -> int:
    """Rows read before the first pass to find directions."""
    return min(pca_rows(n_features, n_components), max(FEWEST_AHEAD * n_components, int(MOST_AHEAD * n_rows)))
