"""The plan of a fit, which users read and the fit follows (`fit_plan` decides it), and plans of memory alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

from streamkm.cluster.model import Space
from streamkm.cluster.moving_averages import DRAWN_ROWS, GATHERED_ROWS, Schedule
from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.core.display import Lines, aligned
from streamkm.core.memory import human_bytes
from streamkm.engine.pass_memory import ReadingMemory
from streamkm.passes.sizes import ClusterOn, Sizes
from streamkm.planning.memory_budget import (
    MemoryBudget,
    accepted,
    checked,
    largest_chunk,
    reading_of,
    smaller_sizes,
)
from streamkm.planning.memory_model import MUCH_ROOM, EpochRoom, MemoryModel, PlannedWorkers
from streamkm.sources.chunks import decoded_row_bytes
from streamkm.sources.row_source import RowSource

STAGE_NAMES = {"idf": "document frequencies", "by rows": "sorting entries by rows", "fill": "column means"}
_MAIN = ("sketch", "assignment", "passes", "bytes read", "epochs", "memory", "worker memory")  # main lines for users


@dataclass(frozen=True)
class PlannedSketch:
    """The sketch of a plan."""

    sketch: str  # its kind, as in `streamkm.sketches.SKETCHES`
    n_components: int
    why_sketch: str


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The memory of a plan: of a sweep, a sketch store, a pass that labels rows, or a fit."""

    source: str
    chunk_bytes: int  # decoded bytes of a chunk, about
    n_threads: int  # threads of this process that work on rows, at most
    limit_bytes: int  # of resident bytes
    base_bytes: int  # memory beside the plan: `process_memory`, and rows in memory
    memory: dict[str, int]  # projected resident bytes of this process in each stage: of the client, on a Dask cluster

    @property
    def peak_bytes(self) -> int:
        """Projected resident bytes at the peak."""
        return max(self.memory.values())


@dataclass(frozen=True, kw_only=True)
class Plan(MemoryPlan, Sizes, PlannedSketch, Lines):
    """The plan of a fit."""

    n_rows: int | None  # exact, or about; None if only reading can tell
    knows_rows: bool = False  # whether `n_rows` is exact
    n_features: int | None
    stored_bytes: int | None  # read in one pass over the source
    # whether the limit left fewer sampled rows than serve: further passes are worth it for less
    few_sampled: bool = False
    # rows for k-means. "sample": the row sample; "blocks": all sketched rows, in memory; "coreset": a weighted coreset
    # of them; "spilled": all of them, partly on disk
    cluster_on: ClusterOn
    why_regime: str
    assign_space: Space | None  # "original" or "sketch"; None: decided when the number of features is known
    # whether the memory limit decides between labels in the original space and in the sketch
    chooses_space: bool = False
    # bytes of spilled rows that stay in memory; None if rows are not spilled
    block_room: int | None = None
    rereads: bool = False  # whether the other rows are read again from the source, not from a copy
    passes: int
    # passes before rows are made: "categories", "idf"
    passes_before: tuple[str, ...] = ()
    # steps of the preparation that take a pass each, after those
    finding_steps: tuple[str, ...] = ()
    counts_first: bool  # whether a pass counts rows first, to match them with weights
    fit_passes: int = 0  # passes that find the sketch; 0 if it needs no rows or only the row sample
    # whether the sketch is found on a few rows read ahead, so that the first pass sketches all rows
    reads_ahead: bool = False
    more_passes: int = 0  # further passes, at most, if the sample missed something; seldom more for sizes of clusters
    sized: bool = False  # whether sizes of clusters have bounds
    n_chunks: int | None
    # room for rows that stay in memory once they are read, so that later passes read nothing; 0: each pass reads them
    cached_bytes: int = 0
    memory_model: MemoryModel  # of the projection
    # beside data, in steps of 32 MiB: measured before the fit, or given with the limit
    process_memory: int
    # memory of the workers of a Dask cluster, which read rows and hold those that are sketched; None without one
    workers: PlannedWorkers | None = None

    def coreset_rule(self, n_clusters: int, seed: int) -> CoresetRule | None:
        """The rule that draws the coreset; None without one."""
        if self.cluster_on != "coreset":
            return None
        return CoresetRule(self.memory_model.coreset_rows, n_clusters, seed)

    def space_for(self, n_features: int) -> Space:
        """The space in which rows are assigned, once the number of features is known."""
        if self.assign_space is not None:
            return self.assign_space
        return "original" if self._fits(self.memory_model, n_features, "original", 1) else "sketch"

    def threads_for(self, n_features: int) -> int:
        """Threads that have room when rows are assigned, once the number of features is known; at least one."""
        if self.assign_space is not None:
            return self.n_threads
        space, counts = self.space_for(n_features), range(self.n_threads, 1, -1)
        return next((count for count in counts if self._fits(self.memory_model, n_features, space, count)), 1)

    def epochs(self, asked: Any, n_rows: int, *, stored: float | None, here: bool) -> Schedule | None:
        """Epochs on `n_rows` rows, by the settings of a fit; None if Lloyd's algorithm is expected or as good.

        `stored`: share of the rows' entries that are stored; None: rows are dense. `here`: whether this process holds
        the rows, not workers.
        """
        plain = not asked.searches or asked.n_init == 1 or asked.tol == 0
        # a batch would read all rows from disk; rows that are not counted may lie there, unless workers hold them
        if plain or self.cluster_on == "spilled" or (self.cluster_on == "blocks" and self.n_rows is None):
            return None
        n_drawn = None if here else self._drawn_for_epochs(n_rows)
        made = Schedule.of(n_rows, asked.n_clusters, asked.max_iter, stored=stored, n_drawn=n_drawn)
        if made is None or here:
            return made
        return replace(made, place="worker" if (n_drawn or 0) <= self.epoch_room.drawn else "client")

    def _drawn_for_epochs(self, n_rows: int) -> int | None:
        """Rows drawn evenly for epochs, if workers hold `n_rows` and none of them may take all; else None."""
        room, n_clusters = self.epoch_room, self.memory_model.n_clusters
        if n_rows <= min(room.gathered, GATHERED_ROWS * n_clusters):
            return None
        return min(n_rows, DRAWN_ROWS * n_clusters, max(room.drawn, room.here))

    @property
    def epoch_room(self) -> EpochRoom:
        """Room for epochs in one process if workers hold all rows."""
        if self.workers is None or self.cluster_on != "blocks":
            return MUCH_ROOM
        return self.workers.epoch_room(self.memory_model, self.limit_bytes - self.memory["cluster"])

    def _fits(self, sizes: MemoryModel, n_features: int, space: Space, n_threads: int) -> bool:
        """Whether the projection for centers of `n_features` features keeps the limits, here and on workers."""
        rows = replace(sizes.rows, n_features=n_features, n_occurring=0)  # all features may occur
        sizes = replace(sizes, rows=rows, reading=replace(sizes.reading, n_threads=n_threads), space=space)
        budget = MemoryBudget(self.limit_bytes, self.base_bytes, self.process_memory, workers=self.workers)
        return budget.excess_bytes(sizes) <= 0

    @property
    def expected_space(self) -> Space:
        """The space in which rows are assigned, by the known or estimated number of features."""
        return self.space_for(self.memory_model.rows.center_features)

    @property
    def sketches_later(self) -> bool:
        """Whether the first pass only samples, and another one sketches all rows after the sketch is found."""
        model = self.memory_model
        return (model.fitted or model.map is not None) and self.cluster_on != "sample" and not self.reads_ahead

    def __str__(self) -> str:
        return aligned(self.main_lines())

    def main_lines(self) -> list[tuple[str, str]]:
        """Label and text of the main lines."""
        return [pair for pair in self.lines() if pair[0] in _MAIN]

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        rows = "known after the first pass" if self.n_rows is None else f"{self.n_rows:,}"
        rows = rows if self.knows_rows or self.n_rows is None else f"about {rows}"
        whole = self.n_rows is not None and self.n_rows <= self.sample_rows
        chunks = "unknown number" if self.n_chunks is None else self.n_chunks
        stages = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.memory.items())
        return [
            ("data", self.source),
            ("rows", rows),
            ("features", "known after the first pass" if self.n_features is None else f"{self.n_features:,}"),
            ("chunks", f"{chunks} of {human_bytes(self.chunk_bytes)}"),
            ("sketch", f"{self.sketch}, {self.n_components:,} components: {self.why_sketch}"),
            ("row sample", f"all {rows} rows" if whole else f"up to {self.sample_rows:,} rows"),
            ("clustering", self.why_regime),
            ("assignment", self._assignment()),
            ("passes", self._passes()),
            ("bytes read", self._read()),
            *self._epochs(),
            ("bytes written", self._written()),
            ("memory", f"{human_bytes(self.peak_bytes)} at the peak, of {human_bytes(self.limit_bytes)} allowed"),
            ("stages", f"{stages}; each includes {human_bytes(self.process_memory)} of the process itself"),
            *([] if self.workers is None else [("worker memory", str(self.workers))]),
        ]

    def _epochs(self) -> list[tuple[str, str]]:
        """Label and text of the exception to the same answer everywhere, if it holds."""
        held = self.workers is not None and self.cluster_on == "blocks" and self.n_rows is not None
        drawn = self._drawn_for_epochs(self.n_rows or 0) if held else None
        text = f"any epochs on {drawn or 0:,} rows drawn evenly, not on all as with threads; then steps on all rows"
        return [] if drawn is None else [("epochs", text)]

    def _passes(self) -> str:
        before = [STAGE_NAMES.get(name, name) for name in (*self.passes_before, *self.finding_steps)]
        first = f", the first for {' and '.join(before)}" if before else ""
        why = "for the sizes of clusters" if self.sized else "if the sample missed something"
        more = f", up to {self.more_passes} more {why}" if self.more_passes else ""
        return f"{self.passes}{first}{more}"

    def _read(self) -> str:
        if self.stored_bytes is None:
            return "unknown"
        # later passes read cached rows
        each, readings = self.stored_bytes, 1 + len(self.passes_before) if self.cached_bytes else self.passes
        kept = f"; rows stay in memory, up to {human_bytes(self.cached_bytes)}" if self.cached_bytes else ""
        return f"{human_bytes(each * readings)} ({readings} x {human_bytes(each)}){kept}"

    def _assignment(self) -> str:
        why = ""
        if self.assign_space is None:
            why = f" (about {self.memory_model.rows.n_features:,} features are expected; the first pass decides)"
        elif self.chooses_space and self.assign_space == "sketch":
            why = ": centers of all features do not fit below the limit"
        return f"in the {self.expected_space} space{why}"

    def _written(self) -> str:
        if self.block_room is None:
            return "none"
        rows = "none but for a checkpoint; rows" if self.rereads else "sketched rows"
        return f"{rows} beyond {human_bytes(self.block_room)}; read again in every step"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


LARGE_CHUNKS = 1 << 20  # enough that all large states of a fold exist
PLACE_BYTES = 8  # of a row, beside its values
ESTIMATE_SLACK = 1.25  # of the bytes of rows whose number is known by a look at a few places


def with_cached_rows(plan: Plan, source: RowSource, budget: MemoryBudget) -> Plan:
    """The plan, with rows cached as they are read if that saves long reading and all have room; same results."""
    rows = source.original
    # without a width, bytes are known after rows were read
    n_rows, has_width = rows.estimated_rows, rows.n_features is not None or budget.free_bytes is not None
    if plan.passes - len(plan.passes_before) == 1 or not rows.access.decodes or n_rows is None or not has_width:
        return plan
    needed = n_rows * (decoded_row_bytes(rows) + PLACE_BYTES)
    room = budget.room_for_rows(plan.peak_bytes)
    if needed > room:
        return plan
    if rows.n_rows is None:
        needed = min(room, int(ESTIMATE_SLACK * needed))
    return replace(plan, cached_bytes=needed, memory={name: size + needed for name, size in plan.memory.items()})


def plan_memory(
    source: RowSource,
    resources: Any,
    stages: Callable[[ReadingMemory], dict[str, int]],
    what: str,
    written: int = 0,
) -> MemoryPlan:
    """The plan with the largest chunks that fit with one thread, and the number of threads that fit then.

    `what`: what is refused if it does not fit, or "". `written`: bytes of what a call finds for a row.
    """
    asked, row_bytes, largest = resources.chunk_bytes, decoded_row_bytes(source), cache(partial(largest_chunk, source))

    def planned(limit: Any) -> MemoryPlan:
        budget = MemoryBudget.of(limit, source, on_cluster=resources.on_cluster)

        def memory(sizes: Sizes, n_threads: int) -> dict[str, int]:
            found = stages(reading_of(source.access, n_threads, largest(sizes.chunk_bytes), n_chunks=LARGE_CHUNKS))
            return {name: budget.base_bytes + size for name, size in found.items()}

        first = budget.chunk_bytes(source, asked, row_bytes)
        first = max(1, first * row_bytes // max(row_bytes, written * (asked == "auto")))
        for sizes in smaller_sizes(Sizes(first, 0), asked, 0):
            if max(memory(sizes, 1).values()) <= budget.limit_bytes:
                break
        n_threads = budget.threads(resources.n_threads, lambda count: max(memory(sizes, count).values()))
        plan = MemoryPlan(
            source=source.name,
            chunk_bytes=sizes.chunk_bytes,
            n_threads=n_threads,
            limit_bytes=budget.limit_bytes,
            base_bytes=budget.base_bytes,
            memory=memory(sizes, n_threads),
        )
        remedy = "use fewer rows or clusters"
        return checked(plan, remedy, largest(sizes.chunk_bytes), budget, what=what) if what else plan

    return accepted(planned, resources.memory_limit)
