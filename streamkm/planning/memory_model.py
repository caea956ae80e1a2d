"""Resident memory of a fit in each stage: of this process, and of the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamkm.cluster.model import Space
from streamkm.cluster.normalization import MOST_FEATURES
from streamkm.cluster.sampling.row_sample import FEWEST_CANDIDATES, SPARE
from streamkm.cluster.search_memory import ALL_SETS, PLACED_ROW_BYTES, SEARCHED_ROW_BYTES, CenterSizes, search_bytes
from streamkm.cluster.seeding.search_set import ROWS_PER_CLUSTER
from streamkm.core.memory import human_bytes
from streamkm.engine.dask_workers import Reading, WorkerMemory, count_shards
from streamkm.engine.pass_memory import MIB, READ_BYTES
from streamkm.engine.reduction import ARITY, FEW_RUNS, RUNS, count_runs, run_length
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.passes.assign import DRAWN_SLACK, LABEL_BYTES, Assign
from streamkm.passes.gathered import PICKED_ROW_BYTES, node_rows
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
CHECK_CENTERS, CHECK_MANY = 22, 14  # measured copies of the centers meanwhile; of many, beside an index
ESTIMATE_COPIES = 3  # of the sample, while the objective is estimated by it
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
        framing = FRAME_ROWS * 8 * n_features * (self.fitted or n_features <= MOST_FEATURES)  # sparse: else not moved
        # what readers do not give back, and their library, of which 31 MiB were measured
        left = reading.n_threads * READ_BYTES * (self.cluster_on != "spilled") + reading.producer_bytes * self.many
        n_fitted = min(self.kept_rows, pca_rows(n_features, self.rows.n_components))  # rows of directions
        fitting = 2 * self.rows.itemsize * n_fitted * n_features * (self.fitted and not self.directions)
        stages = {
            "sketch": reading.peak(SketchRows.memory(self, self.cluster_on, self.room)),
            "cluster": sketched + framing + left + max(self.maps(), fitting, blocks + self._iterating()),
            "assign": reading.peak(Assign.memory(self, self.space)) + (blocks if self.once else 0),
            **self._looking_further(left + fitting),
        }
        if self.space == "original" and self.rows.n_components != n_features:
            floats = self.kept_rows * self.rows.sample_floats
            polishing = sketched + blocks + floats + self._steps(self.rows.center_features, self.kept_rows)
            stages["polish"] = max(polishing, stages["cluster"])  # which heaps may still hold
        if self.sums_bytes:
            stages["prepare"] = reading.peak(FindSketch.memory(SketchFitBytes(self.sums_bytes, 0, 0), 0))
        if self.ahead:
            n_ahead = n_rows_ahead(self.rows.n_rows, n_features, self.rows.n_components)
            stages["ahead"] = reading.peak(Evenly.memory(n_ahead, self.rows.row_bytes))
        if self.directions:
            found = subspace_bytes(self.directions, n_features)
            stages["directions"] = reading.peak(FindSketch.memory(found, self.sample_bytes))
        if self.map is not None:
            kept, reads = self.sample_bytes, self.cluster_on != "sample"
            stages["landmarks"] = kept + self.map.finding + min(self.kept_rows, POOL_ROWS) * self.map.pool_row
            stages["gram"] = reading.peak(FindSketch.memory(self.map.gram, kept, reads=reads))
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
        in_blocks, rows = self.cluster_on in ("blocks", "spilled"), self.rows
        few = {"sample": self.kept_rows, "coreset": min(self.coreset_rows, rows.n_rows)}
        n_rows = few.get(self.cluster_on, rows.n_rows)
        searching = self.searching_bytes(n_rows, in_blocks=in_blocks)
        steps = self._steps(rows.n_components, n_rows, in_blocks=in_blocks)
        # moved around their mean: all searched rows, or the sample before portions
        moved = (self.kept_rows if in_blocks else n_rows) * (self.n_portions > 1 or n_rows <= self.chosen.searched_rows)
        twice = not rows.sample_floats and rows.n_components == rows.n_features  # whether the sample is counted twice
        around = max(0, moved - twice * self.kept_rows) * (rows.block_row_bytes + SEARCHED_ROW_BYTES) * rows.dense
        searching = max(searching, around) if self.n_portions > 1 else searching + around
        return max(searching, steps) if self.many else searching + steps  # many centers: searched rows are freed first

    def searching_bytes(self, n_rows: int, *, in_blocks: bool = True) -> int:
        """Bytes of the search for starts on `n_rows` rows, or on rows drawn from them, without these rows."""
        centers, chosen, row_bytes = self.centers(self.rows.n_components), self.chosen, self.rows.block_row_bytes
        searching = search_bytes(centers, n_rows, row_bytes, chosen.searched_rows, self.n_portions)
        if in_blocks and self.n_portions == 1 and chosen.sample_rows < n_rows <= chosen.searched_rows:
            searching += ALL_SETS * n_rows * (PLACED_ROW_BYTES + row_bytes)
        return searching

    def _looking_further(self, left: int) -> dict[str, int]:
        """Bytes of the check for clusters that the sample missed, beside what is `left`, and of another search."""
        drawn, rows, k, stages = self.chosen.drawn_rows, self.rows, self.n_clusters, {}
        centers, labels = self.centers(self.width(self.space)), LABEL_BYTES * self.rows.n_rows * self.labels
        if drawn:
            doubles = rows.float_bytes(self.space) * (8 // rows.itemsize if rows.dense else 1)
            looked_at = drawn * (rows.placed_bytes(self.space) + CHECK_COPIES * doubles)
            # memory of the sample may not have been freed
            about = (CHECK_MANY if centers.many else CHECK_CENTERS) * centers.double_bytes + centers.table_bytes
            copies = ESTIMATE_COPIES * self.sample_bytes + centers.double_bytes + centers.near_bytes(held=True)
            stages["check"] = self.sample_bytes + max(looked_at + about + centers.near_bytes() + labels, left + copies)
        n_searched = self.kept_rows + drawn + k  # with a mean of each cluster
        if self.chosen.keeps_sample and self.chosen.sample_rows + drawn + k >= ROWS_PER_CLUSTER * k:
            searched = self.searching_bytes(n_searched, in_blocks=False) + self._steps(centers.width, n_searched)
            floats = ROUND_COPIES * n_searched * rows.float_bytes(self.space)
            stages["search"] = self.sample_bytes + floats + searched + labels
        return stages

    def _steps(self, width: int, n_rows: int, *, in_blocks: bool = False) -> int:
        """Bytes of a step of Lloyd's algorithm on `n_rows` rows, without these rows."""
        centers = self.centers(width)
        n_sums = self.reading.large_states(centers.double_bytes) if in_blocks else 2
        # workers keep the labels of the rows that they hold
        return centers.step_bytes(n_rows * (not (in_blocks and self.reading.on_cluster)), n_sums, in_blocks=in_blocks)

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


LEAST_BYTES = 173 * MIB  # of a worker: its connections and libraries
STEP_BYTES = 64 * MIB  # by which its first fit grows; plans are the same where workers hold about the same
JOINED_COPIES = 4  # of a row sample: as it arrives, joined, and packed for the client; 3.7 to 4.4 measured
HELD_SHARE = 0.7  # of a worker's limit: above it, Dask writes what the worker holds to disk


class EpochRoom(NamedTuple):
    """The most rows for epochs in one process, if workers of a cluster hold all rows."""

    gathered: int  # all rows, in a worker
    drawn: int  # in a worker, beside those that it holds
    here: int  # in the client


MUCH_ROOM = EpochRoom(1 << 62, 1 << 62, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkers:
    """The workers of a cluster in a fit: each has the memory of the smallest, as rows are shared out evenly."""

    n_workers: int  # worker processes, threads of the one that has most, and threads of all
    n_threads: int
    n_slots: int
    limit_bytes: int  # resident bytes that the smallest worker may take: `HELD_SHARE` of its memory limit
    base_bytes: int  # memory of the fullest worker before the fit, and of kernels, in steps of 64 MiB
    memory: dict[str, int] = field(default_factory=dict)  # projected resident bytes of a worker in each stage

    @classmethod
    def of(cls, workers: Sequence[WorkerMemory]) -> PlannedWorkers | None:
        """Workers of a cluster before a fit; None without any."""
        if not workers:
            return None
        # a worker that has run nothing has yet to load this package
        held = max(LEAST_BYTES, *(worker.held_bytes for worker in workers)) + STEP_BYTES
        threads = [worker.n_threads for worker in workers]
        return cls(
            n_workers=len(workers),
            n_threads=max(threads),
            n_slots=sum(threads),
            limit_bytes=int(HELD_SHARE * min(worker.limit_bytes for worker in workers)),
            base_bytes=-(-held // STEP_BYTES) * STEP_BYTES,
        )

    @property
    def peak_bytes(self) -> int:
        """Projected resident bytes of a worker at the peak."""
        return max(self.memory.values())

    def __str__(self) -> str:
        memory = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.memory.items())
        peak, limit, base = map(human_bytes, (self.peak_bytes, self.limit_bytes, self.base_bytes))
        told = f"{peak} at the peak of each of {self.n_workers:,} workers, of {limit} allowed; {memory}"
        return f"{told}; each stage includes {base} that the worker holds before the fit"

    def stages(self, sizes: MemoryModel) -> dict[str, int]:
        """Resident bytes of a worker in each stage: its threads' chunks, held rows, labels, waiting messages, sums."""
        rows, reading, share = sizes.rows, sizes.reading, self._share(sizes)
        held, centers = self.held_bytes(sizes), sizes.centers(sizes.width(sizes.space))
        held *= sizes.cluster_on in ("blocks", "spilled")
        read = self.n_threads * (int(reading.read_factor * reading.largest_chunk) + READ_BYTES + sizes.maps())
        labels = int(LABEL_BYTES * rows.n_rows * (share + self.n_threads / self._count_calls(sizes, RUNS)))
        drawn = int(DRAWN_SLACK * sizes.chosen.drawn_rows * rows.placed_bytes(sizes.space))
        stages = {
            "sketch": read + held + self._sample_bytes(sizes),
            "assign": read * (not sizes.once) + held + labels + self._sums_bytes(sizes, centers, drawn),
        }
        if held:
            centers = sizes.centers(rows.n_components)
            stages["lloyd"] = held + self._sums_bytes(sizes, centers) + 2 * labels * centers.many
        if sizes.directions:
            found = subspace_bytes(sizes.directions, rows.n_features)
            stages["directions"] = read + self._n_states(sizes, found.state) * found.state + self.n_threads * found.call
        base = self.base_bytes + sizes.map_bytes(self.n_threads)
        return {name: base + size for name, size in stages.items()}

    def epoch_room(self, sizes: MemoryModel, client_bytes: int) -> EpochRoom:
        """Rows that epochs have room for in a worker, or in these bytes of the client."""
        centers = sizes.centers(sizes.rows.n_components)
        work = centers.step_bytes(0, self.n_threads + ARITY + 1, in_blocks=True) + centers.double_bytes
        room = self.limit_bytes - self.base_bytes - sizes.map_bytes(0) - work
        rooms = room, room - self.held_bytes(sizes), client_bytes
        return EpochRoom(*(max(0, free) // (8 + sizes.rows.block_row_bytes) for free in rooms))

    def held_bytes(self, sizes: FitSizes) -> int:
        """Bytes of sketched rows on the worker that holds most of them, if workers hold them."""
        return int(sizes.rows.n_rows * (8 + sizes.rows.block_row_bytes) * self._share(sizes))

    def _share(self, sizes: FitSizes) -> float:
        """Share of all shards on the worker with most of them."""
        n_shards = self._count_calls(sizes, RUNS)
        return -(-n_shards // self.n_workers) / n_shards

    def _sample_bytes(self, sizes: MemoryModel) -> int:
        """Bytes of sampled rows that calls return in the first pass, and that are joined; or of a coreset."""
        rows, n_chunks, wanted = sizes.rows, sizes.reading.n_chunks, int(SPARE * sizes.chosen.sample_rows)
        picked, waiting = rows.row_bytes + PICKED_ROW_BYTES, self._waiting(sizes, RUNS)
        of_chunk = min(rows.n_rows / n_chunks, max(wanted / n_chunks, FEWEST_CANDIDATES))
        returned = int(waiting * run_length(n_chunks, RUNS) * of_chunk * picked)
        if sizes.cluster_on != "coreset":
            return max(returned, JOINED_COPIES * min(rows.n_rows, wanted) * picked)
        n_rows = node_rows(sizes, -(-n_chunks // self._count_calls(sizes, RUNS)))
        return returned + waiting * n_rows * (PLACED_ROW_BYTES + rows.block_row_bytes)

    def _sums_bytes(self, sizes: FitSizes, centers: CenterSizes, drawn: int = 0) -> int:
        """Bytes of sums that wait and are joined, with `drawn` bytes of drawn rows each, and of the centers' table."""
        each = centers.double_bytes
        return self._n_states(sizes, each) * (each + drawn) + each + centers.table_bytes

    def _n_states(self, sizes: FitSizes, state_bytes: int) -> int:
        """States of `state_bytes` that wait and are joined."""
        return self._waiting(sizes, FEW_RUNS if state_bytes > sizes.chosen.chunk_bytes else RUNS) + ARITY + 1

    def _waiting(self, sizes: FitSizes, fewest_runs: int) -> int:
        """Calls of a worker that run or whose results wait: half are started ahead, or two stretches."""
        reading = sizes.reading
        chunks = Reading(reading.n_chunks, reading.largest_chunk, reading.shared_bytes)
        stretch = chunks.stretch(self._count_calls(sizes, fewest_runs), self.n_workers)
        return max(self.n_threads + max(1, self.n_threads // 2), 2 * stretch)

    def _count_calls(self, sizes: FitSizes, fewest_runs: int) -> int:
        """Calls of a pass, one for each shard."""
        n_runs = count_runs(sizes.reading.n_chunks, fewest_runs)
        return min(n_runs, count_shards(self.n_slots, sizes.rows.n_rows, n_runs))
