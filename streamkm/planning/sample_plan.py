"""What runs that are no fits will take, decided before the first read: a sweep over sampled rows, a sketch store.

Pure functions of the source's description, the parameters and the limit, as `plan` has them for fits. Reads no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkm.cluster.model import Space
from streamkm.engine.memory import PassMemory, ReadingMemory
from streamkm.passes.draw import Draw
from streamkm.passes.gathered import CANDIDATES
from streamkm.passes.sizes import Sizes
from streamkm.planning.memory import pca_rows
from streamkm.planning.memory_budget import MemoryBudget, checked, largest_chunk, reading_of, smaller_sizes
from streamkm.planning.plan_parts import PlannedSketch
from streamkm.planning.row_bytes import block_row_bytes, float_row_bytes
from streamkm.sketches.registry import DATA_DEPENDENT
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes

MEANS_COPIES = 24  # of the means of the most clusters, while clusterings are grown and scored
PLACED = 16  # bytes of a row's norm and number


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """What such a run will do."""

    source: str
    # decoded bytes of a chunk, threads that read, rows that are kept of the sample
    chunk_bytes: int
    n_threads: int
    sample_rows: int
    # as of `plan.Plan`
    limit_bytes: int
    base_bytes: int
    process_memory: int
    n_features: int  # as the source says, or estimated
    # resident bytes of each stage, for a number of threads, of features, and a space
    stages: Callable[[int, int, Space], dict[str, int]]

    def space_for(self, n_features: int) -> Space:
        """Where clusterings are scored: in the original space wherever the means of the most clusters fit there."""
        fits = max(self.stages(1, n_features, "original").values()) <= self.limit_bytes
        return "original" if fits else "sketch"

    @property
    def memory(self) -> dict[str, int]:
        """Projected resident bytes of each stage."""
        return self.stages(self.n_threads, self.n_features, self.space_for(self.n_features))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSizes:
    """The rows and clusterings of a sweep."""

    clustered_rows: int
    sampled_rows: int  # fewer where memory has no room for them, never fewer than clustered
    judged_rows: int
    n_clusters: int  # the most of a clustering
    n_clusterings: int


def plan_sweep(
    source: RowSource,
    sketch: PlannedSketch,
    wanted: SweepSizes,
    *,
    chunk_bytes: int | str,
    memory_limit: Any,
    n_threads: int,
) -> SamplePlan:
    """Decide how a sweep will go. Raises MemoryLimitError if the projected memory exceeds the limit."""
    kind, m, row_bytes = sketch.sketch, sketch.n_components, decoded_row_bytes(source)
    clustered, judged, most_clusters = wanted.clustered_rows, wanted.judged_rows, wanted.n_clusters
    clustered_row = PLACED + row_bytes + 2 * block_row_bytes(source, row_bytes, kind, kind, m)
    clustered_row += max(row_bytes, float_row_bytes(source, row_bytes))
    labels = np.min_scalar_type(most_clusters).itemsize * wanted.n_clusterings * clustered

    def stages(reading: ReadingMemory, sizes: Sizes, n_features: int, space: Space) -> dict[str, int]:
        sample, working = sizes.sample_rows * (row_bytes + PLACED), clustered * clustered_row
        width = n_features if space == "original" else m
        found = 16 * min(sizes.sample_rows, pca_rows(n_features, m)) * n_features if kind in DATA_DEPENDENT else 0
        means = MEANS_COPIES * 8 * most_clusters * max(width, m)
        draw = Draw.memory(clustered // 2, row_bytes + PLACED, 8 * most_clusters * m)
        return {
            "sample": reading.peak(PassMemory(kept=int(CANDIDATES * sample))),
            "draw": reading.peak(draw) + sample + found,
            "sketch": sample + working + max(found, 24 * judged**2),
            "sweep": sample + working + 8 * judged**2 + means + labels,
        }

    budget = MemoryBudget.of(memory_limit, source)
    size = budget.chunk_bytes(source, chunk_bytes, row_bytes)
    first = Sizes(size, max(clustered, min(wanted.sampled_rows, budget.most_sampled(row_bytes))))
    plans = _Plans(source, budget, stages, n_threads, source.estimated_features or m)
    return plans.largest(smaller_sizes(first, chunk_bytes, clustered), "sweep")


def plan_store(
    source: RowSource,
    sketch: PlannedSketch,
    sample_rows: int,
    *,
    stored: Callable[[int], PassMemory],
    memory_limit: Any,
    n_threads: int,
) -> SamplePlan:
    """Decide how a sketch store will be written.

    `sample_rows`: that the sketch is found on; 0: it needs none. `stored`: memory of the pass
    that writes, for bytes of a sketched chunk. Raises MemoryLimitError if the projected memory exceeds the limit; see
    `core.memory.memory_limit_bytes`.
    """
    kind, m, row_bytes = sketch.sketch, sketch.n_components, decoded_row_bytes(source)
    sketched = block_row_bytes(source, row_bytes, kind, kind, m)

    def stages(reading: ReadingMemory, sizes: Sizes, n_features: int, space: Space) -> dict[str, int]:  # noqa: ARG001
        found = 16 * min(sample_rows, pca_rows(n_features, m)) * n_features
        return {
            "sample": reading.peak(PassMemory(kept=int(CANDIDATES * sample_rows * row_bytes) + found)),
            "sketch": reading.peak(stored(reading.largest_chunk // row_bytes * sketched)),
        }

    budget = MemoryBudget.of(memory_limit, source)
    first = Sizes(budget.chunk_bytes(source, "auto", row_bytes), sample_rows)
    plans = _Plans(source, budget, stages, n_threads, source.estimated_features or m)
    return plans.largest(smaller_sizes(first, "auto", sample_rows), "sketch")


@dataclass(frozen=True, slots=True)
class _Plans:
    """Plans of a run by their sizes."""

    source: RowSource
    budget: MemoryBudget
    # bytes of each stage beside the process: for how rows are read, sizes, features, and a space
    stages: Callable[[ReadingMemory, Sizes, int, Space], dict[str, int]]
    n_threads: int  # there are; sizes and space are chosen for one
    n_features: int

    def largest(self, ladder: Iterator[Sizes], what: str) -> SamplePlan:
        """That of the largest sizes that fit, in the original space if that can be."""
        plans = [self._of(sizes) for sizes in ladder]
        spaces: tuple[Space, ...] = ("original", "sketch")
        limit = self.budget.limit_bytes
        for space in spaces:
            for plan in plans:
                if max(plan.stages(1, self.n_features, space).values()) <= limit:
                    return checked(self._with_threads(plan, space), "", 0, self.budget, what=what)
        last = plans[-1]
        largest = largest_chunk(self.source, last.chunk_bytes)
        return checked(last, "or use fewer rows or clusters", largest, self.budget, what=what)

    def _with_threads(self, plan: SamplePlan, space: Space) -> SamplePlan:
        """The same with as many threads as have room."""
        n_threads = self.budget.threads(
            self.n_threads, lambda count: max(plan.stages(count, self.n_features, space).values())
        )
        return replace(plan, n_threads=n_threads)

    def _of(self, sizes: Sizes) -> SamplePlan:
        """That of these sizes, with one thread."""
        source, base = self.source, self.budget.base_bytes
        largest = largest_chunk(source, sizes.chunk_bytes)

        def stages(n_threads: int, n_features: int, space: Space) -> dict[str, int]:
            found = self.stages(reading_of(source, n_threads, largest), sizes, n_features, space)
            return {name: base + size for name, size in found.items()}

        return SamplePlan(
            source=source.name,
            chunk_bytes=sizes.chunk_bytes,
            n_threads=1,
            sample_rows=sizes.sample_rows,
            limit_bytes=self.budget.limit_bytes,
            base_bytes=base,
            process_memory=self.budget.process_memory,
            n_features=self.n_features,
            stages=stages,
        )
