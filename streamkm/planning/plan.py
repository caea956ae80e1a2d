"""The plan of a fit, which users read and the fit follows; `fit_plan` decides it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from streamkm.cluster.model import Space
from streamkm.cluster.moving_averages import DRAWN_ROWS, GATHERED_ROWS, Schedule
from streamkm.cluster.sampling.coreset import CoresetRule, Method
from streamkm.core.display import Lines, aligned
from streamkm.core.matrix import Matrix
from streamkm.core.memory import human_bytes
from streamkm.passes.sizes import ClusterOn
from streamkm.planning.memory import MemoryModel
from streamkm.planning.process import EpochRoom, PlannedWorkers, excess_bytes
from streamkm.sketches import sketch_class

STAGE_NAMES = {"idf": "document frequencies", "by rows": "sorting entries by rows", "fill": "column means"}
MANY_CENTERS = "two-level k-means++, then a search among neighbouring centers; labels are exact, by an index"
_MAIN = ("sketch", "assignment", "passes", "bytes read", "memory", "worker memory")  # main lines for users


def epoch_schedule(
    n_rows: int,
    asked: Any,
    cluster_on: ClusterOn,
    *,
    stored: float | None = None,
    counted: bool = True,
    room: EpochRoom | None = None,
) -> Schedule | None:
    """Epochs on `n_rows` rows, by the settings of a fit; None if Lloyd's algorithm is expected or as good.

    `stored`: share of the sketched rows' entries that are stored; None: rows are dense. `counted`: whether the plan
    knows about how many rows there are. `room`: None: rows are held where epochs run.
    """
    plain = not asked.searches or asked.n_init == 1 or asked.tol == 0
    # a batch would read all rows from disk; rows that are not counted may lie there, unless workers hold them
    if plain or cluster_on == "spilled" or (cluster_on == "blocks" and not counted):
        return None
    n_clusters, n_drawn = asked.n_clusters, None
    if room is not None and n_rows > min(room.gathered, GATHERED_ROWS * n_clusters):
        n_drawn = min(n_rows, DRAWN_ROWS * n_clusters, max(room.drawn, room.here))
    made = Schedule.of(n_rows, n_clusters, asked.max_iter, stored=stored, n_drawn=n_drawn)
    if made is None or room is None:
        return made
    return replace(made, place="worker" if (n_drawn or 0) <= room.drawn else "client")


def stored_share(X: Matrix) -> float | None:
    """Share of the entries of sparse rows that are stored; None for dense rows."""
    return None if isinstance(X, np.ndarray) else X.nnz / max(1, X.shape[0] * X.shape[1])


@dataclass(frozen=True, slots=True)
class PlannedEpochs:
    """Epochs that a fit will run."""

    schedule: Schedule | None  # None if the number of rows is unknown
    n_rows: int  # of the epochs; if their number is unknown, the fewest with epochs
    exact: bool = True  # whether the fit will find as many

    def __str__(self) -> str:
        if self.schedule is None:
            return f"if there are {self.n_rows:,} rows or more; the first pass counts them"
        n_epochs, n_batches, n_drawn = self.schedule.n_epochs, self.schedule.n_batches, self.schedule.n_drawn
        about, n_rows = "" if self.exact else "about ", self.n_rows if n_drawn is None else n_drawn
        said = f"{about}{n_epochs} of {n_batches:,} batches of {n_rows // n_batches:,} rows"
        if self.schedule.place:
            said += ", on all rows" if n_drawn is None else f", on {n_drawn:,} rows drawn evenly"
            said += " in one worker" if self.schedule.place == "worker" else " in this process"
        then = "" if n_drawn is None else " on all rows in all workers"
        return f"{said}, then at most {self.schedule.n_steps} steps of Lloyd's algorithm{then}"


@dataclass(frozen=True)
class PlannedSketch:
    """The sketch of a plan."""

    sketch: str  # its kind, as in `streamkm.sketches.SKETCHES`
    n_components: int
    why_sketch: str


@dataclass(frozen=True, kw_only=True)
class Plan(PlannedSketch, Lines):
    """The plan of a fit."""

    source: str
    n_rows: int | None  # exact, or about; None if only reading can tell
    knows_rows: bool = False  # whether `n_rows` is exact
    n_features: int | None
    stored_bytes: int | None  # read in one pass over the source
    sample_rows: int  # rows of the row sample, at most
    # rows that the last pass draws by their share of the objective, to find clusters that the sample missed; 0: none
    drawn_rows: int = 0
    keeps_sample: bool = False  # whether the row sample is kept, so that a further pass begins with a search
    # whether the limit left fewer sampled rows than serve: further passes are worth it for less
    few_sampled: bool = False
    # rows for k-means. "sample": the row sample; "blocks": all sketched rows, in memory; "coreset": a weighted coreset
    # of them; "spilled": all of them, partly on disk
    cluster_on: ClusterOn
    why_regime: str
    coreset: Method  # how a coreset is drawn: "sensitivity" or "lightweight"
    assign_space: Space | None  # "original" or "sketch"; None: decided when the number of features is known
    # whether the memory limit decides between labels in the original space and in the sketch
    chooses_space: bool = False
    # bytes of spilled rows that stay in memory; None if rows are not spilled
    block_room: int | None = None
    rereads: bool = False  # whether the other rows are read again from the source, not from a copy
    # of moving averages, between steps of Lloyd's algorithm; None: no epochs
    epochs: PlannedEpochs | None = None
    passes: int
    # passes before rows are made: "categories", "idf"
    passes_before: tuple[str, ...] = ()
    # steps of the preparation that take a pass each, after those
    finding_steps: tuple[str, ...] = ()
    counts_first: bool  # whether a pass counts rows first, to match them with weights
    fit_passes: int = 0  # passes that find the sketch; 0 if it needs no rows or only the row sample
    # whether the sketch is found on a few rows read ahead, so that the first pass sketches all rows
    reads_ahead: bool = False
    more_passes: int = 0  # further passes, at most, if the sample missed something
    chunk_bytes: int  # decoded bytes of a chunk, about
    n_chunks: int | None
    n_threads: int  # threads of this process that work on rows, at most
    # room for rows that stay in memory once they are read, so that later passes read nothing; 0: each pass reads them
    cached_bytes: int = 0
    memory: dict[str, int]  # projected resident bytes of this process in each stage: of the client, on a Dask cluster
    memory_model: MemoryModel  # of the projection
    limit_bytes: int  # of resident bytes
    base_bytes: int  # memory beside the plan: `process_memory`, and rows in memory
    # beside data, in steps of 64 MiB: measured before the fit, or given with the limit
    process_memory: int
    # memory of the workers of a Dask cluster, which read rows and hold those that are sketched; None without one
    workers: PlannedWorkers | None = None

    @property
    def from_source(self) -> int:
        """Passes that read the source; the others read cached rows."""
        return 1 + len(self.passes_before) if self.cached_bytes else self.passes

    def coreset_rule(self, n_clusters: int, seed: int) -> CoresetRule | None:
        """The rule that draws the coreset; None without one."""
        if self.cluster_on != "coreset":
            return None
        return CoresetRule(self.memory_model.coreset_rows, n_clusters, seed, self.coreset)

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

    def with_epochs(self, asked: Any, *, stored: float | None) -> Plan:
        """The plan with the epochs of a fit, as far as known before the first read; `stored` as in `epoch_schedule`."""
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
        """Room for epochs in one process if workers hold all rows; None if this process holds them."""
        if self.workers is None or self.cluster_on != "blocks":
            return None
        return self.workers.epoch_room(self.memory_model, self.limit_bytes - self.memory["cluster"])

    def _fits(self, sizes: MemoryModel, n_features: int, space: Space, n_threads: int) -> bool:
        """Whether the projection for centers of `n_features` features keeps the limits, here and on workers."""
        rows = replace(sizes.rows, n_features=n_features, n_occurring=0)  # all features may occur
        reading = replace(sizes.reading, n_threads=n_threads)
        sizes = replace(sizes, rows=rows, reading=reading, space=space)
        return excess_bytes(sizes, self.base_bytes, self.limit_bytes, self.workers) <= 0

    @property
    def expected_space(self) -> Space:
        """The space in which rows are assigned, by the known or estimated number of features."""
        return self.space_for(self.memory_model.rows.center_features)

    @property
    def sketches_later(self) -> bool:
        """Whether the first pass only samples, and another one sketches all rows after the sketch is found."""
        model = self.memory_model
        return (model.fitted or model.map is not None) and self.cluster_on != "sample" and not self.reads_ahead

    @property
    def peak_bytes(self) -> int:
        """Projected resident bytes at the peak."""
        return max(self.memory.values())

    def __str__(self) -> str:
        return aligned(self.main_lines())

    def main_lines(self) -> list[tuple[str, str]]:
        """Label and text of the main lines; on a Dask cluster, also of the epochs and the centers."""
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
        before = tuple(STAGE_NAMES.get(name, name) for name in (*self.passes_before, *self.finding_steps))
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
            return f"none but for a checkpoint; rows beyond {human_bytes(block_room)} are read again in every step"
        room = f"sketched rows beyond {human_bytes(block_room)}"
        if self.n_rows is None:
            return room
        written = max(0, self.n_rows * (8 + self.memory_model.rows.block_row_bytes) - block_room)
        return f"{room}, about {human_bytes(written)}; read again in every step"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)
