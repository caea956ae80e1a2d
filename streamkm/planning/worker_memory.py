"""Memory of a worker of a Dask cluster: its bytes in each stage of a fit, and the bytes that its limit allows.

Pure arithmetic on sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamkm.cluster.memory import PLACED_ROW_BYTES
from streamkm.cluster.model import Space
from streamkm.cluster.sampling.row_sample import FEWEST_CANDIDATES, SPARE
from streamkm.engine.dask_shards import Reading, count_shards
from streamkm.engine.dask_workers import WorkerMemory
from streamkm.engine.memory import READ_BYTES
from streamkm.engine.reduction import ARITY, FEW_RUNS, RUNS, count_runs, run_length
from streamkm.passes.assign import DRAWN_SLACK, LABEL_BYTES
from streamkm.passes.gathered import PICKED_ROW_BYTES, node_rows
from streamkm.passes.sizes import ClusterOn, FitSizes
from streamkm.planning.memory import MemoryModel
from streamkm.planning.process import FIRST_BYTES, LEAST_BYTES, STEP_BYTES
from streamkm.planning.schedule import EpochRoom
from streamkm.sketches.subspace import subspace_bytes

BLOCK_LABEL_BYTES = 8  # of a row in a step with many centers: its last label and its new one
JOINED_COPIES = 4  # of a row sample: as it arrives, joined, and packed for the client; 3.7 to 4.4 measured
DISTRIBUTED_BYTES = 45 << 20  # of a worker's connections and libraries
HELD_SHARE = 0.7  # of a worker's limit: above it, Dask writes what the worker holds to disk


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """The projection of a worker's memory, of a fit by equal workers."""

    sizes: MemoryModel
    n_workers: int  # worker processes, and threads of each
    n_threads: int
    n_slots: int  # threads of all workers

    def stages(self, cluster_on: ClusterOn, space: Space, base: int) -> dict[str, int]:
        """Resident bytes stage by stage, above `base`: held rows and labels grow with the rows.

        Each thread reads a chunk. What a call tells lies there until it is fetched: that of the call that runs and of
        half a call more, as calls are started ahead, or of two stretches where that is more; sums likewise, and eight
        that are joined and their total.
        """
        sizes, n_rows, n_chunks = self.sizes, self.sizes.rows.n_rows, self.sizes.reading.n_chunks
        held = self.held_bytes(cluster_on)
        read = int(sizes.reading.read_factor * sizes.reading.largest_chunk) + READ_BYTES
        reading = self.n_threads * (read + sizes.maps())
        fewest_runs = self._fewest_runs(sizes.centers(sizes.width(space)).double_bytes)
        n_shards = self._count_calls(fewest_runs)
        labels = int(LABEL_BYTES * n_rows * (self._largest_share + self.n_threads / n_shards))  # kept, and in work
        told = int(self._waiting(RUNS) * run_length(n_chunks, RUNS) * self._returned_bytes())
        drawn = int(DRAWN_SLACK * sizes.chosen.drawn_rows * sizes.rows.row_bytes)
        stages = {
            "sketch": reading + held + max(told + self._node_bytes(cluster_on), self._joined_bytes(cluster_on)),
            "assign": reading * (not sizes.once) + held + labels + self._sums_bytes(sizes.width(space), drawn),
        }
        if held:
            stages["lloyd"] = held + self._sums_bytes(sizes.rows.n_components) + self._label_bytes()
        if sizes.directions:
            found = subspace_bytes(sizes.directions, sizes.rows.n_features)
            n_states = self._waiting(FEW_RUNS) + ARITY + 1
            stages["directions"] = reading + n_states * found.state + self.n_threads * found.call
        return {name: base + size for name, size in stages.items()}

    def searching(self) -> int:
        """Bytes above the base of the worker that searches for starts: its held rows, and rows drawn from all."""
        sizes = self.sizes
        return self.held_bytes("blocks") + sizes.searching_bytes(sizes.rows.n_rows)

    def held_bytes(self, cluster_on: ClusterOn) -> int:
        """Of sketched rows on the worker that holds most of them."""
        if cluster_on not in ("blocks", "spilled"):
            return 0
        rows = self.sizes.rows
        return int(rows.n_rows * (8 + rows.block_row_bytes) * self._largest_share)

    @property
    def _largest_share(self) -> float:
        """Of all shards, those that the worker with most of them gets."""
        n_shards = self._count_calls(RUNS)
        return -(-n_shards // self.n_workers) / n_shards

    def _joined_bytes(self, cluster_on: ClusterOn) -> int:
        """Of the row sample of all calls, on the worker that joins it; with a coreset, the client does."""
        if cluster_on == "coreset":
            return 0
        rows = self.sizes.rows
        n_candidates = min(rows.n_rows, int(SPARE * self.sizes.chosen.sample_rows))
        return int(JOINED_COPIES * n_candidates * (rows.row_bytes + PICKED_ROW_BYTES))

    def _label_bytes(self) -> int:
        """Of labels that a step keeps on the worker, where there are many centers."""
        n_labels = int(self.sizes.rows.n_rows * self._largest_share)
        return BLOCK_LABEL_BYTES * n_labels * self.sizes.centers(self.sizes.rows.n_components).many

    def _node_bytes(self, cluster_on: ClusterOn) -> int:
        """Of the coreset's nodes that are made of the chunks of calls, of those that run or wait."""
        if cluster_on != "coreset":
            return 0
        sizes = self.sizes
        n_rows = node_rows(sizes, -(-sizes.reading.n_chunks // self._count_calls(RUNS)))
        return self._waiting(RUNS) * n_rows * (PLACED_ROW_BYTES + sizes.rows.block_row_bytes)

    def _returned_bytes(self) -> float:
        """Of the row sample that the first pass tells of a chunk."""
        sizes = self.sizes
        rows, n_chunks = sizes.rows, sizes.reading.n_chunks
        chunk_rows = rows.n_rows / n_chunks
        candidates = max(SPARE * sizes.chosen.sample_rows / n_chunks, FEWEST_CANDIDATES)
        return min(chunk_rows, candidates) * (rows.row_bytes + 16)

    def _sums_bytes(self, width: int, drawn: int = 0) -> int:
        """Of sums that wait and are joined, with so many bytes of drawn rows; of centers of that width, their table."""
        centers = self.sizes.centers(width)
        n_states = self._waiting(self._fewest_runs(centers.double_bytes)) + ARITY + 1
        return n_states * (centers.double_bytes + drawn) + centers.double_bytes + centers.table_bytes

    def _fewest_runs(self, state_bytes: int) -> int:
        """Calls, or a multiple of them, that carry sums of so many bytes."""
        return FEW_RUNS if state_bytes > self.sizes.chosen.chunk_bytes else RUNS

    def _waiting(self, fewest_runs: int) -> int:
        """Calls of a worker that run, or whose results wait there."""
        reading = self.sizes.reading
        chunks = Reading(reading.n_chunks, reading.largest_chunk, reading.shared_bytes)
        stretch = chunks.stretch(self._count_calls(fewest_runs), self.n_workers)
        return max(self.n_threads + max(1, self.n_threads // 2), 2 * stretch)

    def _count_calls(self, fewest_runs: int) -> int:
        """Calls of a pass, each of which goes through a shard."""
        n_runs = count_runs(self.sizes.reading.n_chunks, fewest_runs)
        return min(n_runs, count_shards(self.n_slots, self.sizes.rows.n_rows, n_runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBudget:
    """The memory that each worker of a cluster has for a fit: that of the smallest, as rows are shared out evenly."""

    n_workers: int  # worker processes, threads of the one that has most, and threads of all
    n_threads: int
    n_slots: int
    # resident bytes that the smallest worker may take: 70 % of its memory limit. Above it, Dask writes to its disk
    limit_bytes: int
    base_bytes: int  # what the fullest worker holds before the fit, and what kernels take, in steps of 64 MiB

    @classmethod
    def of(cls, workers: Sequence[WorkerMemory]) -> WorkerBudget | None:
        """Of the workers of a cluster; None without any."""
        if not workers:
            return None
        # a worker that has run nothing has yet to load this package
        least = LEAST_BYTES + DISTRIBUTED_BYTES
        held = max(least, *(worker.held_bytes for worker in workers)) + FIRST_BYTES
        threads = [worker.n_threads for worker in workers]
        return cls(
            n_workers=len(workers),
            n_threads=max(threads),
            n_slots=sum(threads),
            limit_bytes=int(HELD_SHARE * min(worker.limit_bytes for worker in workers)),
            base_bytes=-(-held // STEP_BYTES) * STEP_BYTES,
        )

    def stages(self, sizes: MemoryModel, cluster_on: ClusterOn, space: Space) -> dict[str, int]:
        """Resident bytes of a worker in each stage of a fit of these sizes."""
        return self._model(sizes).stages(cluster_on, space, self.base_bytes)

    def search_bytes(self, sizes: MemoryModel) -> int:
        """Resident bytes of a worker that searches for starts."""
        return self.base_bytes + self._model(sizes).searching()

    def epoch_room(self, sizes: FitSizes, client_bytes: int) -> EpochRoom:
        """Rows that epochs have room for in a worker, or in these bytes of the client."""
        centers, held = sizes.centers(sizes.rows.n_components), self._model(sizes).held_bytes("blocks")
        work = centers.step_bytes(0, self.n_threads + ARITY + 1, in_blocks=True) + centers.double_bytes
        room = self.limit_bytes - self.base_bytes - work
        return EpochRoom(
            *(max(0, free) // (8 + sizes.rows.block_row_bytes) for free in (room, room - held, client_bytes))
        )

    def _model(self, sizes: FitSizes) -> WorkerModel:
        # rows that are held need no more than these sizes
        return WorkerModel(sizes, self.n_workers, self.n_threads, self.n_slots)  # type: ignore[arg-type]
