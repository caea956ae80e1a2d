"""Memory of a sweep over sampled rows and of a sketch store, decided before the first read. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from streamkm.engine.memory import PassMemory, ReadingMemory
from streamkm.passes.gathered import CANDIDATES
from streamkm.passes.sizes import Sizes
from streamkm.planning.memory import pca_rows
from streamkm.planning.memory_budget import MemoryBudget, accepted, checked, largest_chunk, reading_of, smaller_sizes
from streamkm.planning.plan import PlannedSketch
from streamkm.planning.request import block_row_bytes, float_row_bytes
from streamkm.sketches import DATA_DEPENDENT, sketch_class
from streamkm.sources.base import RowSource
from streamkm.sources.chunks import decoded_row_bytes

CENTERS_COPIES = 24  # of the most centers, while clusters are searched
PLACED = 16  # bytes of a row's norm and number


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """The plan of a sweep or of a sketch store."""

    source: str
    chunk_bytes: int  # decoded
    n_threads: int  # that read
    # as of `plan.Plan`
    limit_bytes: int
    base_bytes: int
    memory: dict[str, int]  # projected resident bytes of each stage


def plan_sweep(
    source: RowSource,
    sketch: PlannedSketch,
    n_rows: int,
    n_judged: int,
    n_clusters: int,
    *,
    memory_limit: Any,
    n_threads: int,
) -> SamplePlan:
    """Plan a sweep over `n_rows` sampled rows, `n_judged` for silhouettes, in up to `n_clusters` clusters.

    Raises MemoryLimitError if the projected memory exceeds the limit.
    """
    kind, m, row_bytes = sketch.sketch, sketch.n_components, decoded_row_bytes(source)
    n_features = source.estimated_features or m
    found = 16 * min(n_rows, pca_rows(n_features, m)) * n_features if kind in DATA_DEPENDENT else 0
    sample = n_rows * (row_bytes + PLACED)
    row = PLACED + row_bytes + 2 * block_row_bytes(source, row_bytes, sketch_class(kind), m)
    working = n_rows * (row + max(row_bytes, float_row_bytes(source, row_bytes)))
    centers = CENTERS_COPIES * 8 * n_clusters * m
    sums = 3 * n_rows * row_bytes if source.is_sparse else 8 * n_clusters * n_features

    def stages(reading: ReadingMemory) -> dict[str, int]:
        return {
            "sample": reading.peak(PassMemory(kept=int(CANDIDATES * sample))),
            "sketch": sample + working + max(found, 24 * n_judged**2),
            "sweep": sample + working + 8 * n_judged**2 + max(centers, sums),
        }

    return accepted(lambda limit: _below(limit, source, stages, n_threads, "sweep"), memory_limit)


def plan_store(
    source: RowSource,
    sketch: PlannedSketch,
    sample_rows: int,
    *,
    stored: Callable[[int], PassMemory],
    memory_limit: Any,
    n_threads: int,
) -> SamplePlan:
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

    return accepted(lambda limit: _below(limit, source, stages, n_threads, "sketch"), memory_limit)


def _below(
    limit: Any, source: RowSource, stages: Callable[[ReadingMemory], dict[str, int]], n_threads: int, what: str
) -> SamplePlan:
    """The plan with the largest chunks that fit, and the number of threads that fit then; `what` is for messages."""
    budget, largest = MemoryBudget.of(limit, source), cache(partial(largest_chunk, source))

    def memory(sizes: Sizes, n_threads: int) -> dict[str, int]:
        found = stages(reading_of(source, n_threads, largest(sizes.chunk_bytes)))
        return {name: budget.base_bytes + size for name, size in found.items()}

    first = Sizes(budget.chunk_bytes(source, "auto", decoded_row_bytes(source)), 0)
    ladder = smaller_sizes(first, "auto", 0)
    sizes, n_threads = budget.fitting(ladder, n_threads, lambda sizes, count: max(memory(sizes, count).values()))
    plan = SamplePlan(
        source=source.name,
        chunk_bytes=sizes.chunk_bytes,
        n_threads=n_threads,
        limit_bytes=budget.limit_bytes,
        base_bytes=budget.base_bytes,
        memory=memory(sizes, n_threads),
    )
    return checked(plan, "use fewer rows or clusters", largest(sizes.chunk_bytes), budget, what=what)
