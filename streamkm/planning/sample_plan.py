"""Memory of sweeps, sketch stores and passes that label rows, decided before the first read. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from streamkm.engine.pass_memory import PassMemory, ReadingMemory
from streamkm.passes.assign import Observe
from streamkm.passes.gathered import CANDIDATES
from streamkm.passes.predict import Values, labelled_bytes
from streamkm.passes.sizes import Sizes, UpdateSizes
from streamkm.planning.memory_budget import MemoryBudget, accepted, checked, largest_chunk, reading_of, smaller_sizes
from streamkm.planning.memory_model import pca_rows
from streamkm.planning.plan import MemoryPlan, PlannedSketch
from streamkm.planning.request import Resources, block_row_bytes, float_row_bytes
from streamkm.sketches import DATA_DEPENDENT, sketch_class
from streamkm.sources.chunks import decoded_row_bytes
from streamkm.sources.row_source import RowSource

CENTERS_COPIES = 24  # of the most centers, while clusters are searched
LARGE_CHUNKS = 1 << 20  # enough that all large states of a fold exist
PLACED = 16  # bytes of a row's norm and number


def plan_sweep(
    source: RowSource, resources: Resources, sketch: PlannedSketch, n_rows: int, n_judged: int, n_clusters: int
) -> MemoryPlan:
    """Plan a sweep over `n_rows` sampled rows, `n_judged` for silhouettes, in up to `n_clusters` clusters.

    Raises MemoryLimitError if the projected memory exceeds the limit.
    """
    kind, m, row_bytes = sketch.sketch, sketch.n_components, decoded_row_bytes(source)
    n_features = source.estimated_features or m
    found = 16 * min(n_rows, pca_rows(n_features, m)) * n_features if kind in DATA_DEPENDENT else 0
    sample = n_rows * (row_bytes + PLACED)
    row = PLACED + row_bytes + 2 * block_row_bytes(source, row_bytes, sketch_class(kind), m)
    working = sample + n_rows * (row + max(row_bytes, float_row_bytes(source, row_bytes)))
    sums = 3 * n_rows * row_bytes if source.is_sparse else 8 * n_clusters * n_features

    def stages(reading: ReadingMemory) -> dict[str, int]:
        return {
            "sample": reading.peak(PassMemory(kept=int(CANDIDATES * sample))),
            "sketch": working + max(found, 24 * n_judged**2),
            "sweep": working + 8 * n_judged**2 + max(CENTERS_COPIES * 8 * n_clusters * m, sums),
        }

    return _planned(source, resources, stages, "sweep")


def plan_store(
    source: RowSource,
    resources: Resources,
    sketch: PlannedSketch,
    sample_rows: int,
    stored: Callable[[int], PassMemory],
) -> MemoryPlan:
    """Decide how a sketch store will be written, with a sketch found on `sample_rows` rows, maybe 0.

    `stored`: memory of the pass that writes a sketched chunk. Raises MemoryLimitError as `plan_sweep` does.
    """
    kind, m, row_bytes = sketch.sketch, sketch.n_components, decoded_row_bytes(source)
    sketched, n_features = block_row_bytes(source, row_bytes, sketch_class(kind), m), source.estimated_features or m
    found = 16 * min(sample_rows, pca_rows(n_features, m)) * n_features

    def stages(reading: ReadingMemory) -> dict[str, int]:
        return {
            "sample": reading.peak(PassMemory(kept=int(CANDIDATES * sample_rows * row_bytes) + found)),
            "sketch": reading.peak(stored(reading.largest_chunk // row_bytes * sketched)),
        }

    return _planned(source, resources, stages, "sketch")


def plan_labels(
    source: RowSource,
    resources: Resources,
    *,
    centers_bytes: int,
    n_columns: int = 0,
    update: UpdateSizes | None = None,
) -> MemoryPlan:
    """Plan a pass that labels rows and computes `n_columns` values of each, which count like rows that are read.

    If even the smallest chunks have no room for one thread, they are planned; only an `update` raises MemoryLimitError.
    """
    row_bytes, found_bytes, n_rows = decoded_row_bytes(source), labelled_bytes(n_columns), source.n_rows or 0

    def stages(reading: ReadingMemory) -> dict[str, int]:
        values = Values.memory(n_rows, reading.largest_chunk // row_bytes, centers_bytes, n_columns)
        found = {"label": reading.peak(values)}
        if update is not None:
            found["update"] = reading.peak(Observe.memory(update, reading)) - update.held_bytes
        return found

    what = f"update of {update.n_clusters:,} clusters of {update.n_features:,} features by the rows" if update else ""
    return _planned(source, resources, stages, what, found_bytes)


def _planned(
    source: RowSource,
    resources: Resources,
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
        if asked == "auto":
            first = max(1, first * row_bytes // max(row_bytes, written))
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
