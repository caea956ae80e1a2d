"""The plan of a fit, which users read and the fit follows; `fit_plan` decides it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from streamkm.cluster.model import Space
from streamkm.cluster.moving_averages import Schedule
from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.core.display import Lines, aligned
from streamkm.core.memory import human_bytes
from streamkm.planning.memory import MemoryModel
from streamkm.planning.plan_parts import (
    EpochRoom,
    PlannedClustering,
    PlannedEpochs,
    PlannedReading,
    PlannedSample,
    PlannedSketch,
    epoch_schedule,
)
from streamkm.planning.process import PlannedWorkers, excess_bytes
from streamkm.sketches.registry import sketch_class

SAID = {
    "idf": "document frequencies",
    "by rows": "sorting entries by rows",
    "fill": "column means",
}  # of passes, for people
MANY_CENTERS = "two-level k-means++, then a search among neighbouring centers; labels are exact, by an index"
_MAIN = ("sketch", "assignment", "passes", "bytes read", "memory", "worker memory")  # what users need


@dataclass(frozen=True, kw_only=True)
class Plan(PlannedReading, PlannedClustering, PlannedSample, PlannedSketch, Lines):
    """The plan of a fit, with the fields of its parts."""

    source: str
    n_rows: int | None  # exact, or about; None if only reading can tell
    knows_rows: bool = False  # whether `n_rows` is exact
    n_features: int | None
    stored_bytes: int | None  # read in one pass over the source
    memory: dict[str, int]  # projected resident bytes of this process in each stage: of the client, on a Dask cluster
    memory_model: MemoryModel  # what the projection is made of
    limit_bytes: int  # what they may not exceed
    base_bytes: int  # what the process holds beside what is planned: `process_memory`, and rows in memory
    # what it holds beside data, in steps of 64 MiB: measured before the fit, or given with the limit
    process_memory: int
    # memory of the workers of a Dask cluster, which read rows and hold those that are sketched; None without one
    workers: PlannedWorkers | None = None

    def coreset_rule(self, n_clusters: int, seed: int) -> CoresetRule | None:
        """How the coreset is drawn; None where there is none."""
        if self.cluster_on != "coreset":
            return None
        return CoresetRule(self.memory_model.coreset_rows, n_clusters, seed, self.coreset)

    def space_for(self, n_features: int) -> Space:
        """Where rows are assigned, once the number of features is known."""
        if self.assign_space is not None:
            return self.assign_space
        return "original" if self._fits(self.memory_model, n_features, "original", 1) else "sketch"

    def threads_for(self, n_features: int) -> int:
        """Threads that have room where rows are assigned, once the number of features is known; at least one."""
        if self.assign_space is not None:
            return self.n_threads
        space, counts = self.space_for(n_features), range(self.n_threads, 1, -1)
        return next((count for count in counts if self._fits(self.memory_model, n_features, space, count)), 1)

    def with_epochs(self, asked: Any, *, stored: float | None) -> Plan:
        """The same with the epochs of a fit by it, as far as they can be told before its first read.

        `stored` is about which share of the sketched rows' entries is stored; None: they are dense.
        """
        on_sample, counted = self.cluster_on == "sample", self.n_rows is not None
        if on_sample and self.expected_space == "original" and sketch_class(self.sketch).needs_polishing:
            return self  # centers move by steps on the row sample, in the original space only
        n_rows = Schedule.fewest_rows(asked.n_clusters) if self.n_rows is None else self.n_rows
        if counted and on_sample:
            n_rows = min(n_rows, self.sample_rows)
        elif counted and self.cluster_on == "coreset":
            n_rows = min(n_rows, self.memory_model.coreset_rows)
        room = self.epoch_room
        schedule = epoch_schedule(n_rows, asked, self.cluster_on, stored=stored, counted=counted, room=room)
        if schedule is not None and not counted:
            return replace(self, epochs=PlannedEpochs(None, n_rows, exact=False))
        exact = self.knows_rows and self.cluster_on != "coreset" and stored is None
        return replace(self, epochs=None if schedule is None else PlannedEpochs(schedule, n_rows, exact))

    @property
    def epoch_room(self) -> EpochRoom | None:
        """Room for epochs in one process, where workers hold all rows; None where this process holds them."""
        if self.workers is None or self.cluster_on != "blocks":
            return None
        return self.workers.epoch_room(self.memory_model, self.limit_bytes - self.memory["cluster"])

    def _fits(self, sizes: MemoryModel, n_features: int, space: Space, n_threads: int) -> bool:
        """Whether what is projected for centers of so many features keeps the limits, here and on workers."""
        rows = replace(sizes.rows, n_features=n_features, n_occurring=0)  # all features may occur
        reading = replace(sizes.reading, n_threads=n_threads)
        sizes = replace(sizes, rows=rows, reading=reading, space=space)
        return excess_bytes(sizes, self.base_bytes, self.limit_bytes, self.workers) <= 0

    @property
    def expected_space(self) -> Space:
        """Where rows are assigned, by the number of features that is known or estimated."""
        return self.space_for(self.memory_model.rows.center_features)

    @property
    def sketches_later(self) -> bool:
        """Whether the first pass only samples, and all rows are sketched in one after the sketch is found."""
        model = self.memory_model
        return (model.fitted or model.map is not None) and self.cluster_on != "sample" and not self.reads_ahead

    @property
    def peak_bytes(self) -> int:
        """Projected resident bytes at the peak."""
        return max(self.memory.values())

    def __str__(self) -> str:
        return aligned(self.main_lines())

    def main_lines(self) -> list[tuple[str, str]]:
        """Label and text of what users need most; on a Dask cluster, also where it finds its centers."""
        more = () if self.workers is None else ("epochs", "centers")
        return [pair for pair in self.lines() if pair[0] in (*_MAIN, *more)]

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        readings = self.from_source
        total = None if self.stored_bytes is None else self.stored_bytes * readings
        stages = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.memory.items())
        stages += f"; each includes {human_bytes(self.process_memory)} of the process itself"
        return [
            ("data", self.source),
            ("rows", self._rows()),
            ("features", "known after the first pass" if self.n_features is None else f"{self.n_features:,}"),
            (
                "chunks",
                f"{'unknown number' if self.n_chunks is None else self.n_chunks} of {human_bytes(self.chunk_bytes)}",
            ),
            ("sketch", f"{self.sketch}, {self.n_components:,} components: {self.why_sketch}"),
            ("row sample", self._sample()),
            ("clustering", self.why_regime),
            *([] if self.epochs is None else [("epochs", str(self.epochs))]),
            ("assignment", self._assignment()),
            *([("centers", MANY_CENTERS)] if self.memory_model.many else []),
            ("passes", f"{self.passes}{self._more()}"),
            (
                "bytes read",
                "unknown"
                if total is None
                else f"{human_bytes(total)} ({readings} x {human_bytes(total // readings)}){self._kept()}",
            ),
            ("bytes written", self._written()),
            ("memory", f"{human_bytes(self.peak_bytes)} at the peak, of {human_bytes(self.limit_bytes)} allowed"),
            ("stages", stages),
            *([] if self.workers is None else [("worker memory", str(self.workers))]),
        ]

    def _rows(self) -> str:
        if self.n_rows is None:
            return "known after the first pass"
        return f"{'' if self.knows_rows else 'about '}{self.n_rows:,}"

    def _sample(self) -> str:
        if self.n_rows is not None and self.n_rows <= self.sample_rows:
            return f"all {self._rows()} rows"
        return f"up to {self.sample_rows:,} rows"

    def _more(self) -> str:
        before = tuple(SAID.get(name, name) for name in (*self.passes_before, *self.finding_steps))
        first = f", the first for {' and '.join(before)}" if before else ""
        more = self.more_passes
        return first + (f", up to {more} more if the sample missed something" if more else "")

    def _kept(self) -> str:
        return f"; rows stay in memory, up to {human_bytes(self.cached_bytes)}" if self.cached_bytes else ""

    def _assignment(self) -> str:
        if self.assign_space is None:
            about = f"about {self.memory_model.rows.n_features:,} features"
            return f"in the {self.expected_space} space ({about} are expected; the first pass decides)"
        by_limit = self.chooses_space and self.assign_space == "sketch"
        why = ": centers of all features do not fit below the limit" if by_limit else ""
        return f"in the {self.expected_space} space{why}"

    def _written(self) -> str:
        block_room = self.block_room
        if block_room is None:
            return "none"
        if self.rereads:
            return f"none; rows beyond {human_bytes(block_room)} are read again in every step, from where they lie"
        room = f"sketched rows beyond {human_bytes(block_room)}"
        if self.n_rows is None:
            return room
        written = max(0, self.n_rows * (8 + self.memory_model.rows.block_row_bytes) - block_room)
        return f"{room}, about {human_bytes(written)}; read again in every step"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)
