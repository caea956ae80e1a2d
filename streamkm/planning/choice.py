"""The largest sizes, the best cluster_on and the best space that fit in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from streamkm.cluster.model import Space
from streamkm.passes.sizes import ClusterOn, Sizes
from streamkm.planning.memory import MemoryModel
from streamkm.planning.memory_budget import MemoryBudget
from streamkm.planning.request import SERVING_PER_CLUSTER, FitRequest
from streamkm.sources.base import RowSource
from streamkm.sources.chunks import ChunkRuns

WHOLE = "on all rows: the row sample has room for them"
POLISHED = (
    "on a sample of rows; the centers are then refined in the original space, and using all rows would change them "
    "little; coreset=None clusters all sketched rows"
)
ON_ALL = "on all sketched rows, seeding too: they are at most ten times as many as would be sampled"
ALONG = "on all rows, along directions that are found on a few rows read ahead"
FEW_ON_WORKERS = "on a sensitivity coreset of the sketched rows: all of them would not fit in the workers' memory"
MOST_PROJECTED = 10  # times the sample: more rows take longer to cluster than to read


def regimes(request: FitRequest, sample_rows: int, *, on_cluster: bool = False) -> dict[ClusterOn, str]:
    """What k-means may run on, best first, and why, where memory has room for a sample of so many rows.

    `on_cluster`: whether workers of a Dask cluster hold sketched rows.
    """
    found = _regimes(request, sample_rows)
    if on_cluster:
        found.pop("spilled", None)  # workers hold the rows, and nothing of them is written here
        if "blocks" in found and "coreset" in found:
            found["coreset"] = FEW_ON_WORKERS
        return found
    if request.source.estimated_rows is None and found.pop("blocks", None) is not None:
        # whether memory holds them is not known
        found = {"spilled": found.pop("spilled"), **found}
    return found


def serves(request: FitRequest, sample_rows: int) -> bool:
    """Whether centers may be found on a sample of so many rows alone."""
    return sample_rows >= request.serving_sample


def clusters_all(request: FitRequest, sample_rows: int) -> bool:
    """Whether all rows are clustered, and not the sample, where memory holds them sketched.

    Wide dense ones are, along directions found on a few rows read ahead, and wide sparse ones. That takes no pass
    more, and time in proportion to that of a pass.
    """
    source = request.source
    if request.parameters.coreset != "auto" or request.once:
        return False
    if request.found:
        along = not request.sketch_answers.needs_polishing and not request.streamed and not source.streams
        n_rows = source.n_rows if along else None
    else:
        n_rows = source.estimated_rows if request.polishes and source.is_sparse else None
    return n_rows is not None and sample_rows < n_rows <= MOST_PROJECTED * request.wanted_sample


def _sampled(request: FitRequest, sample_rows: int, spilled: str) -> dict[ClusterOn, str]:
    """The row sample, where it serves or was you chose."""
    found = request.parameters.coreset != "uniform" and not request.streamed
    why_sample = "on the row sample" + (", which its directions are found on" if found else "")
    if request.parameters.coreset == "uniform" or serves(request, sample_rows):
        return {"sample": why_sample}
    why = f"on all sketched rows: memory has no room for {SERVING_PER_CLUSTER} sampled rows a cluster"
    return {"blocks": why, "spilled": why + spilled}


def _regimes(request: FitRequest, sample_rows: int) -> dict[ClusterOn, str]:
    """The same, of rows whose number is known."""
    spilled = "; what memory does not hold of them is written to disk"
    if request.once:
        why = "on all sketched rows, whose labels are the result: the data can be walked once only"
        return {"blocks": why, "spilled": why + spilled}
    if request.parameters.coreset == "uniform" or (request.found and request.parameters.coreset == "auto"):
        return _sampled(request, sample_rows, spilled)
    if request.parameters.coreset is None:
        why = "on all sketched rows, as you chose"
        return {"blocks": why, "spilled": why + spilled}
    if request.parameters.coreset != "auto":
        return {"coreset": f"on a {request.parameters.coreset} coreset of the sketched rows, as you chose"}
    if request.polishes:
        # a sketch of more rows would only find starts for polishing on the sample: the sample finds them as well
        whole = (request.source.estimated_rows or np.inf) <= sample_rows
        return {"sample": WHOLE if whole else POLISHED}
    as_they_are = request.sketch_answers.is_identity
    kept = "rows, which are kept as they are" if as_they_are else "sketched rows: labels are the sketch's"
    return {
        "blocks": f"on all {kept}",
        "coreset": "on a sensitivity coreset of the sketched rows: all of them would not fit in memory",
        "spilled": f"on all {kept}; a coreset would not fit in memory{spilled}",
    }


SPILL_SHARE = 0.9  # of the room that a projection leaves, for blocks that are kept in memory
MOST_PORTIONS = 16  # that starts are searched on one after the other, each in a pass over blocks
MANY_CHUNKS = 1 << 16  # of a source that does not say how many rows it has


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of sizes, rows to cluster, and space."""

    memory_model: MemoryModel
    cluster_on: ClusterOn
    space: Space
    room: int = 0  # bytes of spilled blocks that are kept in memory

    def memory(self, base: int) -> dict[str, int]:
        """Resident bytes of each stage."""
        return self.memory_model.stages(self.cluster_on, self.space, base, self.room)

    def worker_memory(self, budget: MemoryBudget) -> dict[str, int]:
        """Resident bytes of a worker in each stage; empty without a cluster."""
        workers = budget.workers
        return {} if workers is None else workers.stages(self.memory_model, self.cluster_on, self.space)

    def excess_bytes(self, budget: MemoryBudget) -> int:
        """Bytes by which the projection exceeds the limits; below 0 where it keeps them."""
        peak = max(self.memory(budget.base_bytes).values())
        return budget.excess_bytes(peak, max(self.worker_memory(budget).values(), default=0))

    def in_portions(self, budget: MemoryBudget) -> Choice:
        """Search starts in the fewest portions that fit, if they are searched on rows drawn from all that are held.

        If none fit, in those that exceed the limits least: portions take memory for labels of all rows.
        """
        least, n_portions = self, 2 * self.memory_model.n_portions
        if not self.memory_model.many or self.cluster_on not in ("blocks", "spilled"):
            return self
        while least.excess_bytes(budget) > 0 and n_portions <= MOST_PORTIONS:
            tried = replace(self, memory_model=replace(self.memory_model, n_portions=n_portions))
            least = min(least, tried, key=lambda choice: choice.excess_bytes(budget))
            n_portions *= 2
        return least

    def with_threads(self, n_threads: int, budget: MemoryBudget) -> Choice:
        """Let as many of these threads work as have room beside what was chosen."""

        def of(count: int) -> Choice:
            reading = replace(self.memory_model.reading, n_threads=count)
            return replace(self, memory_model=replace(self.memory_model, reading=reading))

        return of(budget.threads(n_threads, lambda count: max(of(count).memory(budget.base_bytes).values())))

    def with_room(self, limit_bytes: int, budget: MemoryBudget, n_rows: int | None) -> Choice:
        """Keep in memory what there is room for below so much of blocks that are spilled."""
        if self.cluster_on != "spilled":
            return self
        room = max(0, int(SPILL_SHARE * (limit_bytes - max(self.memory(budget.base_bytes).values()))))
        if n_rows is not None:
            room = min(room, n_rows * (8 + self.memory_model.rows.block_row_bytes))
        return replace(self, room=room)


def choose(
    source: RowSource,
    memory_model: MemoryModel,
    regimes: Iterable[ClusterOn],
    spaces: tuple[Space, ...],
    ladder: list[Sizes],
    budget: MemoryBudget,
    n_threads: int,
) -> Choice:
    """Choose the best space, in it the best of the regimes, with it the largest sizes, that fit in memory.

    Each is given best first. As many threads work as have room beside the sizes, which are chosen for one. Where
    nothing fits, the choice is what exceeds the limits least.
    """
    cut = cache(source.cut)  # which may read pointers of sparse rows
    models = [_sized(source, memory_model, sizes, cut(sizes.chunk_bytes)) for sizes in ladder]
    tried = (
        Choice(model, cluster_on, space).in_portions(budget)
        for space, cluster_on, model in product(spaces, regimes, models)
    )
    least, n_rows = None, source.estimated_rows
    for choice in tried:
        if choice.excess_bytes(budget) <= 0:
            if len(spaces) > 1 and source.n_features is None:  # the room still decides on the space
                return choice.with_room(budget.limit_bytes, budget, n_rows).with_threads(n_threads, budget)
            return choice.with_threads(n_threads, budget).with_room(budget.now_bytes, budget, n_rows)
        if least is None or choice.excess_bytes(budget) < least.excess_bytes(budget):
            least = choice
    if least is None:
        raise ValueError("nothing to choose from")
    return least


def _sized(source: RowSource, memory_model: MemoryModel, sizes: Sizes, cut: ChunkRuns) -> MemoryModel:
    """The needs with these sizes, of rows that are cut like this."""
    n_rows = source.estimated_rows
    n_chunks = MANY_CHUNKS if n_rows is None or source.streams else max(1, len(cut))
    return replace(
        memory_model,
        chosen=sizes,
        rows=replace(memory_model.rows, n_rows=n_rows or sizes.sample_rows),
        reading=replace(memory_model.reading, largest_chunk=cut.largest_bytes or sizes.chunk_bytes, n_chunks=n_chunks),
    )
