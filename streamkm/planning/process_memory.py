"""Memory of processes: what this one holds beside data, and what each worker of a Dask cluster takes in a fit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from streamkm.cluster.sampling.row_sample import FEWEST_CANDIDATES, SPARE
from streamkm.cluster.search_memory import PLACED_ROW_BYTES, CenterSizes
from streamkm.core.memory import given_process_memory, human_bytes, is_given, resident_bytes
from streamkm.engine.dask_workers import Reading, WorkerMemory, count_shards
from streamkm.engine.pass_memory import MIB, READ_BYTES
from streamkm.engine.reduction import ARITY, FEW_RUNS, RUNS, count_runs, run_length
from streamkm.kernels.centers.nearest import nearest_csr, nearest_dense
from streamkm.passes.assign import DRAWN_SLACK, LABEL_BYTES
from streamkm.passes.gathered import PICKED_ROW_BYTES, node_rows
from streamkm.passes.sizes import FitSizes
from streamkm.planning.memory_model import MemoryModel
from streamkm.sketches.subspace import subspace_bytes
from streamkm.sources.row_source import RowSource

STEP_BYTES = 64 * MIB  # plans are the same wherever processes hold about the same
AUTO_BYTES = 320 * MIB  # without a limit, so that results never depend on the process
LEAST_BYTES = 128 * MIB  # a process with NumPy, SciPy, scikit-learn and numba; rows may not be resident before a pass
# by which a first fit of dense or sparse rows grows: kernels from the cache and what runs them, 44 to 51 MiB measured;
FIRST_BYTES = 64 * MIB
LATER_BYTES = 24 * MIB  # of a later fit: fragments of heaps, and rarer kernels
WORDS_BYTES = 8 * MIB  # of the tokenizer


def process_memory(memory_limit: Any, source: RowSource, *, on_cluster: bool = False) -> int:
    """Bytes that this process, client of a cluster or alone, will hold beside data, in steps; or those of the limit."""
    if not is_given(memory_limit):
        return AUTO_BYTES
    given = given_process_memory(memory_limit)
    if given is not None:
        return given
    libraries = {*source.access.libraries, *(("distributed",) if on_cluster else ())}
    for library in libraries - {"words"}:  # a fit loads them: measured, not assumed
        with suppress(ImportError):
            import_module(library)
    held = max(LEAST_BYTES, resident_bytes() - source.access.resident_bytes + source.access.unloaded_bytes)
    # a fit that has loaded its kernels ends by looking for the nearest centers
    has_fitted = getattr(nearest_csr if source.is_sparse else nearest_dense, "signatures", True)
    more = (LATER_BYTES if has_fitted else FIRST_BYTES) + WORDS_BYTES * ("words" in libraries)
    return -(-(held + more) // STEP_BYTES) * STEP_BYTES


JOINED_COPIES = 4  # of a row sample: as it arrives, joined, and packed for the client; 3.7 to 4.4 measured
DISTRIBUTED_BYTES = 45 << 20  # of a worker's connections and libraries
HELD_SHARE = 0.7  # of a worker's limit: above it, Dask writes what the worker holds to disk


@dataclass(frozen=True, slots=True)
class EpochRoom:
    """The most rows for epochs in one process, if workers of a cluster hold all rows."""

    gathered: int  # all rows, in a worker
    drawn: int  # in a worker, beside those that it holds
    here: int  # in the client


MUCH_ROOM = EpochRoom(1 << 62, 1 << 62, 0)

SEARCH = "search"  # stage of the one worker that searches for starts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorkers:
    """The workers of a cluster in a fit: each has the memory of the smallest, as rows are shared out evenly."""

    n_workers: int  # worker processes, threads of the one that has most, and threads of all
    n_threads: int
    n_slots: int
    # resident bytes that the smallest worker may take: 70 % of its memory limit. Above it, Dask writes to its disk
    limit_bytes: int
    base_bytes: int  # memory of the fullest worker before the fit, and of kernels, in steps of 64 MiB
    memory: dict[str, int] = field(default_factory=dict)  # projected resident bytes of a worker in each stage

    @classmethod
    def of(cls, workers: Sequence[WorkerMemory]) -> PlannedWorkers | None:
        """Workers of a cluster before a fit; None without any."""
        if not workers:
            return None
        # a worker that has run nothing has yet to load this package
        held = max(LEAST_BYTES + DISTRIBUTED_BYTES, *(worker.held_bytes for worker in workers)) + FIRST_BYTES
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
        return (
            f"{peak} at the peak of each of {self.n_workers:,} workers, of {limit} allowed; {memory}; each stage "
            f"includes {base} that the worker holds before the fit"
        )

    def stages(self, sizes: MemoryModel) -> dict[str, int]:
        """Resident bytes of a worker in each stage: its threads' chunks, held rows, labels, waiting messages, sums."""
        rows, reading, share = sizes.rows, sizes.reading, self._share(sizes)
        held, centers = self._held_bytes(sizes), sizes.centers(sizes.width(sizes.space))
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

    def planned(self, sizes: MemoryModel) -> PlannedWorkers:
        """The workers with their stages; one searches for starts on drawn rows if it has room, else the client does."""
        memory = self.stages(sizes)
        searching = self.base_bytes + self._held_bytes(sizes) + sizes.searching_bytes(sizes.rows.n_rows)
        if sizes.cluster_on == "blocks" and searching <= self.limit_bytes:
            memory[SEARCH] = searching
        return replace(self, memory=memory)

    def epoch_room(self, sizes: MemoryModel, client_bytes: int) -> EpochRoom:
        """Rows that epochs have room for in a worker, or in these bytes of the client."""
        centers = sizes.centers(sizes.rows.n_components)
        work = centers.step_bytes(0, self.n_threads + ARITY + 1, in_blocks=True) + centers.double_bytes
        room = self.limit_bytes - self.base_bytes - sizes.map_bytes(0) - work
        rooms = room, room - self._held_bytes(sizes), client_bytes
        return EpochRoom(*(max(0, free) // (8 + sizes.rows.block_row_bytes) for free in rooms))

    def _held_bytes(self, sizes: FitSizes) -> int:
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


def excess_bytes(sizes: MemoryModel, base_bytes: int, limit_bytes: int, workers: PlannedWorkers | None) -> int:
    """Bytes by which the projection exceeds the limits of this process and of workers; negative if it keeps them."""
    excess = max(sizes.stages(base_bytes).values()) - limit_bytes
    return excess if workers is None else max(excess, max(workers.stages(sizes).values()) - workers.limit_bytes)
