"""The request for a plan: parameters and source before memory limits any choice. `fit_plan` chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.model import Space
from streamkm.cluster.occurring import FEWEST_FEATURES, MOST_COUNTED, MOST_OCCUR
from streamkm.cluster.sampling.coreset import default_size
from streamkm.cluster.seeding.draws import draw_rows
from streamkm.cluster.seeding.search_set import search_rows
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine.dask_workers import WorkerMemory
from streamkm.engine.pass_memory import MIB
from streamkm.passes.sizes import ClusterOn, RowSizes, Sizes
from streamkm.planning.memory_budget import FEWEST_DRAWN, reading_of
from streamkm.planning.memory_model import MapBytes, MemoryModel
from streamkm.planning.plan import PlannedSketch
from streamkm.sketches import DATA_DEPENDENT, n_directions, sketch_class
from streamkm.sketches.base_sketch import SketchAnswers
from streamkm.sketches.kernel_map import KernelMap
from streamkm.sketches.options import SketchOptions
from streamkm.sources.row_source import RowSource

STORED_ENTRY_BYTES = 8  # of a sketched sparse row: a value and its index


def block_row_bytes(source: RowSource, row_bytes: int, sketch: Any, n_components: int) -> int:
    """Approximate bytes of a row that is sketched by a sketch, or by one of a class."""
    if sketch.sparsifies:
        return STORED_ENTRY_BYTES * int(sketch.n_kept)
    if source.is_sparse and sketch.leaves_zeros(n_components):
        entries = 1 if isinstance(sketch, type) else int(sketch.entries_per_stored)
        return entries * STORED_ENTRY_BYTES * row_bytes // (4 + source.dtype.itemsize)
    single = np.can_cast(source.dtype, np.float32) or (source.is_sparse and sketch.sparse_as_single)
    return (4 if single else 8) * n_components


def float_bytes(source: RowSource) -> int:
    """Bytes of a value as a float."""
    return 4 if np.can_cast(source.dtype, np.float32) else 8


def float_row_bytes(source: RowSource, row_bytes: int) -> int:
    """Approximate bytes of a row as floats of its original features; 0 if it need not be converted."""
    if source.is_sparse:
        return 0 if source.dtype == np.float32 else 4 * row_bytes // (4 + source.dtype.itemsize)
    values = 0 if source.dtype in (np.float32, np.float64) else row_bytes // source.dtype.itemsize
    return values * float_bytes(source)


SAMPLE_ROWS_PER_CLUSTER = 1000  # centers of s sampled rows cost k / s of the objective: 0.1 percent
SMALLEST_SAMPLE_ROWS = 50_000
SMALLEST_MAPPED_ROWS = 10_000  # of a kernel: each costs its kernel values twice
SERVING_PER_CLUSTER = 200  # with fewer, the sample alone costs more than half a percent: all rows are sketched
# what the sample is not made smaller than for want of memory: so many rows, or bytes where rows are wide
FEWEST_SAMPLED, FEWEST_PER_CLUSTER, SMALLEST_SAMPLE_BYTES = 1000, 20, 8 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The memory and threads that a fit may take, and the machines that it runs on."""

    memory_limit: Any  # see `core.memory.memory_limit_bytes`
    chunk_bytes: int | str
    n_threads: int  # of this process that may read, if they have room beside the plan for one
    gathers_labels: bool = True  # whether this process holds the labels of all rows
    # whether rows that take long to read may stay in memory for the passes after the first, where there is room:
    # threads of this process read them
    caches_rows: bool = False
    on_cluster: bool = False  # whether workers of a Dask cluster read, and this process is their client
    workers: tuple[WorkerMemory, ...] = ()  # of that cluster, when the fit is planned


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """The request for a plan, before memory limits any choice."""

    source: RowSource
    n_clusters: int
    options: SketchOptions
    refine: int | str
    coreset: str | None
    weighted: bool = False
    cluster_size: Any = None  # bounds of sizes, if there are any
    sketching: PlannedSketch
    row_bytes: int  # of a row as read, about
    map: MapBytes | None = None  # of a kernel
    remedy: str = "use fewer n_components or fewer n_clusters"  # if memory has no room

    @property
    def once(self) -> bool:
        """Whether rows can be read only once."""
        return not self.source.access.replayable

    @property
    def sketch_answers(self) -> SketchAnswers | type[SketchAnswers]:
        """The sketch if it is made already, else its class."""
        given = self.options.sketch
        if self.map is not None:
            return KernelMap
        return sketch_class(self.sketching.sketch) if isinstance(given, str) else given

    @property
    def dense(self) -> bool:
        """Whether rows are dense when they are clustered, but for sketches that leave zeros."""
        return self.map is not None or not self.source.is_sparse

    @property
    def rereads(self) -> bool:
        """Whether rows beyond memory are read from the source in every step, not from a copy."""
        return self.sketch_answers.is_identity and self.source.lies_as_read

    @property
    def found(self) -> bool:
        """Whether the sketch is found on rows."""
        by_name = self.sketching.sketch in DATA_DEPENDENT and isinstance(self.options.sketch, str)
        return self.map is not None or by_name

    @property
    def streamed(self) -> bool:
        """Whether the sketch is found on all rows, in passes of its own."""
        return self.found and self.options.fit_on == "all"

    @property
    def wanted_sample(self) -> int:
        """Rows of the sample, if memory has room for them."""
        fewest = SMALLEST_SAMPLE_ROWS if self.map is None else max(SMALLEST_MAPPED_ROWS, self.map.columns)
        return max(fewest, SAMPLE_ROWS_PER_CLUSTER * self.n_clusters)

    def serves(self, sample_rows: int) -> bool:
        """Whether centers may be found on a sample of `sample_rows` rows alone."""
        wanted = min(self.wanted_sample, SERVING_PER_CLUSTER * self.n_clusters)
        return sample_rows >= min(wanted, self.source.estimated_rows or wanted)

    @property
    def fewest_sampled(self) -> int:
        """Rows of the sample at least, for any limit."""
        if self.map is not None:
            return max(self.n_clusters, self.map.columns)
        few = max(FEWEST_SAMPLED, FEWEST_PER_CLUSTER * self.n_clusters)
        return max(self.n_clusters, min(few, self.wanted_sample, SMALLEST_SAMPLE_BYTES // self.row_bytes))

    @property
    def searched_rows(self) -> int:
        """Rows on which starts are searched, if memory has room for them."""
        return search_rows(self.n_clusters, many=self.dense and self.n_clusters >= FEWEST_CENTERS)

    @property
    def drawn_rows(self) -> int:
        """Rows that the last pass draws by their share of the objective; none if landmarks' clusters are the result."""
        row_bytes = self.row_bytes if self.map is None else 8 + 4 * self.sketching.n_components
        drawn = draw_rows(self.n_clusters, row_bytes)
        return 0 if self.once or self.sketching.sketch == "two-step" or drawn < FEWEST_DRAWN else drawn

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The spaces in which rows may be assigned, best first."""
        as_they_are, asked = self.sketch_answers.is_identity, self.options.assign_space
        if self.once or (as_they_are and asked == "auto"):
            return ("original",) if as_they_are else ("sketch",)
        return ("original", "sketch") if asked == "auto" else (asked,)

    @property
    def polishes(self) -> bool:
        """Whether centers are found in a sketch, and polished on the sample in the original space."""
        return not self.sketch_answers.is_identity and self.options.assign_space != "sketch"

    @property
    def _n_occurring(self) -> int:
        """Features that occur: as many as the source expects, and at most as many as entries; 0: any may."""
        source, sketch, n_features = self.source, self.sketch_answers, self.source.estimated_features or 0
        if not source.is_sparse or sketch.is_identity or sketch.is_projection:
            return 0
        n_entries = (source.estimated_rows or 0) * self.row_bytes // (4 + source.dtype.itemsize)
        n_occurring = n_entries if source.estimated_occurring is None else min(n_entries, source.estimated_occurring)
        counted = FEWEST_FEATURES <= n_features <= MOST_COUNTED
        return n_occurring if counted and n_occurring <= MOST_OCCUR * n_features else 0

    def check_once(self) -> None:
        """Refuse parameters that need more than one pass over rows that can be read only once."""
        refused = {
            f"refine={self.refine}": self.refine not in ("auto", 0),
            'assign_space="original"': self.polishes and self.options.assign_space == "original",
            f'sketch="{self.sketching.sketch}"': self.found,
            f"cluster_size={self.cluster_size}": self.cluster_size is not None,
        }
        parameter = next((parameter for parameter, wanted in refused.items() if wanted), None)
        if self.once and parameter is not None:
            raise InvalidInputError(
                f"{self.source.name} can be read only once, and {parameter} needs another pass; "
                "pass a list of chunks, or a function that returns a fresh iterator"
            )

    def memory_model(self, first: Sizes, resources: Resources) -> MemoryModel:
        """The memory model, without the sizes that are still to be chosen."""
        source, found, mapped = self.source, self.sketching, self.map is not None
        m, preparation = found.n_components, source.origin.prepared_by
        # if the number of rows is unknown, as many as are sampled
        rows = RowSizes(
            n_rows=source.estimated_rows or first.sample_rows,
            n_features=source.estimated_features or m,
            n_components=m,
            row_bytes=self.row_bytes,
            block_row_bytes=4 * m if mapped else block_row_bytes(source, self.row_bytes, self.sketch_answers, m),
            sample_floats=float_row_bytes(source, self.row_bytes),
            itemsize=4 if mapped or source.is_sparse or np.can_cast(source.dtype, np.float32) else 8,
            dense=self.dense,
            n_occurring=self._n_occurring,
        )
        return MemoryModel(
            n_clusters=self.n_clusters,
            rows=rows,
            reading=reading_of(source.access, 1, 0, n_chunks=0, on_cluster=resources.on_cluster),
            chosen=first,
            coreset_rows=default_size(self.n_clusters),
            fitted=self.found and not mapped,
            directions=n_directions(found.sketch, m, self.n_clusters) if self.streamed else 0,
            sums_bytes=preparation.sums_bytes(source.estimated_features) if preparation else 0,
            once=self.once,
            labels=resources.gathers_labels,
            map=self.map,
            sized=self.cluster_size is not None,
        )


WHOLE = "on all rows: the row sample has room for them"
POLISHED = (
    "on a sample of rows; the centers are then refined in the original space, and using all rows would change them "
    "little; coreset=None clusters all sketched rows"
)
ON_ALL = "on all sketched rows, seeding too: they are at most ten times as many as would be sampled"
ALONG = "on all rows, along directions that are found on a few rows read ahead"
MOST_PROJECTED = 10  # times the sample: more rows take longer to cluster than to read


def regimes(request: FitRequest, sample_rows: int, *, on_cluster: bool = False) -> dict[ClusterOn, str]:
    """The regimes of k-means, best first, each with its reason, for a sample of `sample_rows` rows."""
    coreset, n_rows = request.coreset, request.source.estimated_rows
    found: dict[ClusterOn, str] = {}
    if request.once:
        why = "on all sketched rows, whose labels are the result: the data can be read only once"
    elif coreset is None:
        why = "on all sketched rows, as you chose"
    elif coreset == "uniform" or (coreset == "auto" and request.found and request.serves(sample_rows)):
        return {"sample": "on the row sample"}
    elif coreset != "auto":
        return {"coreset": f"on a {coreset} coreset of the sketched rows, as you chose"}
    elif request.found:
        why = f"on all sketched rows: memory has no room for {SERVING_PER_CLUSTER} sampled rows a cluster"
    elif request.polishes:
        # a sketch of more rows would only find starts for polishing on the sample: the sample finds them as well
        return {"sample": WHOLE if n_rows is not None and n_rows <= sample_rows else POLISHED}
    else:
        why = "on all rows, in the space of their labels"
        room = "the workers' memory" if on_cluster else "memory"
        if on_cluster or n_rows is None or n_rows > default_size(request.n_clusters):  # else it would have all rows
            found["coreset"] = f"on a sensitivity coreset of the sketched rows: all of them would not fit in {room}"
    if on_cluster:  # workers hold the rows, and nothing of them is written here
        return {"blocks": why, **found}
    spilled = why if request.rereads else f"{why}; what memory does not hold of them is written to disk"
    if n_rows is None:  # whether memory holds rows that are not counted is not known
        return {"spilled": spilled, **found}
    return {"blocks": why, **found, "spilled": spilled}


def clusters_all(request: FitRequest, sample_rows: int) -> bool:
    """Whether all rows, not the sample, are clustered if memory holds them sketched.

    Wide sparse rows are, and wide dense rows along directions found ahead: that takes time as a pass does, but no pass.
    """
    source = request.source
    if request.coreset != "auto" or request.once:
        return False
    if request.found:
        along = not request.sketch_answers.needs_polishing and not request.streamed and not source.access.streams
        n_rows = source.n_rows if along else None
    else:
        n_rows = source.estimated_rows if request.polishes and source.is_sparse else None
    return n_rows is not None and sample_rows < n_rows <= MOST_PROJECTED * request.wanted_sample
