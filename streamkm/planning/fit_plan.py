"""The decisions about a fit before the first read: sketch, sizes, cluster_on, passes, bytes.

Pure functions of the source's description, the parameters and the memory that may be taken. Reads no rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from streamkm.cluster.model import Space
from streamkm.passes.sizes import ClusterOn, Sizes
from streamkm.planning.memory import MemoryModel
from streamkm.planning.memory_budget import MemoryBudget, accepted, check_workers, checked, smaller_sizes
from streamkm.planning.plan import Plan
from streamkm.planning.process import SEARCH, PlannedWorkers
from streamkm.planning.request import ALONG, ON_ALL, FitRequest, Resources, clusters_all, regimes
from streamkm.planning.sketch_choice import choose_sketch
from streamkm.sketches import SketchOptions
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes
from streamkm.sources.chunks import ChunkRuns

PLACE_BYTES = 8  # of a row, beside its values
ESTIMATE_SLACK = 1.25  # of the bytes of rows whose number is known by a look at a few places


def with_cached_rows(plan: Plan, source: RowSource, budget: MemoryBudget) -> Plan:
    """The plan, or one that caches the rows as they are read: where that saves long reading and there is room for all.

    It changes no result, only how often rows are read.

    `plan`: of a fit by threads of this process. `source`: what it is a plan for. Rows are cached as they come, before
    any preparation. `budget`: by which the plan was made.
    """
    rows = source.original
    if plan.passes - len(plan.passes_before) == 1 or not rows.decodes or rows.estimated_rows is None:
        return plan
    if rows.n_features is None and budget.free_bytes is None:
        return plan  # how wide rows are, and what that takes of a given limit, is known after they were read
    needed = rows.estimated_rows * (decoded_row_bytes(rows) + PLACE_BYTES)
    room = budget.room_for_rows(plan.peak_bytes)
    if needed > room:
        return plan
    if rows.n_rows is None:
        needed = min(room, int(ESTIMATE_SLACK * needed))
    memory = {name: size + needed for name, size in plan.memory.items()}
    return replace(plan, cached_bytes=needed, memory=memory)


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

    def worker_memory(self, workers: PlannedWorkers) -> dict[str, int]:
        """Resident bytes of a worker in each stage."""
        return workers.stages(self.memory_model, self.cluster_on, self.space)

    def excess_bytes(self, budget: MemoryBudget) -> int:
        """Bytes by which the projection exceeds the limits; below 0 where it keeps them."""
        here = max(self.memory(budget.base_bytes).values()) - budget.limit_bytes
        if budget.workers is None:
            return here
        return max(here, max(self.worker_memory(budget.workers).values()) - budget.workers.limit_bytes)

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

    def sized(sizes: Sizes, cluster_on: ClusterOn, space: Space) -> Choice:
        model = _sized(source, memory_model, sizes, cut(sizes.chunk_bytes))
        return Choice(model, cluster_on, space).in_portions(budget)

    least, n_rows = None, source.estimated_rows
    for space, cluster_on, sizes in product(spaces, regimes, ladder):
        choice = sized(sizes, cluster_on, space)
        if choice.excess_bytes(budget) <= 0:
            if memory_model.many:  # each small chunk has few rows near a center, and makes room for few rows drawn
                chunks = (sized(replace(sizes, chunk_bytes=each.chunk_bytes), cluster_on, space) for each in ladder)
                choice = next(each for each in chunks if each.excess_bytes(budget) <= 0)
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


FEWEST_SEARCHED, FEWEST_SEARCHED_PER_CLUSTER = 10_000, 32  # rows that starts are searched on, whatever the memory
MOST_ROUNDS = 2  # of looking further, where `refine` is "auto"


def plan_fit(source: RowSource, resources: Resources, **asked: Any) -> Plan:
    """Decide how a fit will go, without reading rows; `asked`: parameters of a `FitRequest`.

    Raises InvalidInputError: if the source cannot be walked as often as needed; InvalidParameterError: if a parameter
    does not fit the data; MemoryLimitError: if the projected memory exceeds the limit.
    """

    def planned(of_workers: int) -> Plan:
        workers = tuple(replace(each, limit_bytes=max(each.limit_bytes, of_workers)) for each in resources.workers)
        given = replace(resources, workers=workers)
        limit = resources.memory_limit
        return accepted(lambda below: _planned(source, replace(given, memory_limit=below), **asked), limit)

    return accepted(planned, 0, on_workers=True)


def _planned(source: RowSource, resources: Resources, *, n_clusters: int, options: SketchOptions, **more: Any) -> Plan:
    """The plan below one limit."""
    chunk_bytes, n_threads, row_bytes = resources.chunk_bytes, resources.n_threads, decoded_row_bytes(source)
    sketch = choose_sketch(source, options, n_clusters)
    budget = MemoryBudget.of(resources.memory_limit, source, on_cluster=resources.on_cluster, workers=resources.workers)
    asked = FitRequest(
        source=source, n_clusters=n_clusters, options=options, sketching=sketch, row_bytes=row_bytes, **more
    )
    if asked.once:
        asked.check_once()
    first = Sizes(
        chunk_bytes=budget.chunk_bytes(source, chunk_bytes, row_bytes),
        sample_rows=max(asked.fewest_sampled, min(asked.wanted_sample, budget.most_sampled(row_bytes))),
        drawn_rows=asked.drawn_rows,
        keeps_sample=asked.refine == "auto" and not asked.once,
        searched_rows=asked.searched_rows,
        fewest_searched=min(asked.searched_rows, max(FEWEST_SEARCHED, FEWEST_SEARCHED_PER_CLUSTER * n_clusters)),
    )
    memory_model = asked.memory_model(first, resources)
    allowed = regimes(asked, first.sample_rows, on_cluster=resources.on_cluster)
    ladder = list(smaller_sizes(first, chunk_bytes, asked.fewest_sampled))
    enough = [sizes.sample_rows for sizes in ladder if asked.serves(sizes.sample_rows)]
    serving = list(smaller_sizes(first, chunk_bytes, min(enough))) if enough else []
    choice, all_rows = None, bool(serving) and clusters_all(asked, first.sample_rows)
    if all_rows:
        ahead_of_all = replace(memory_model, ahead=asked.found)
        choice = choose(source, ahead_of_all, {"blocks": ""}, asked.spaces[:1], serving, budget, n_threads)
        all_rows = choice.excess_bytes(budget) <= 0
    if choice is None or not all_rows:
        sizes = serving if serving and "sample" in allowed else ladder  # a smaller sample would cost quality
        choice = choose(source, memory_model, allowed, asked.spaces, sizes, budget, n_threads)
    ahead = all_rows and asked.found
    # a source that only streams is counted as it comes; a chunk of text does not know its first row's number
    counts_first = asked.weighted and source.n_rows is None and not source.streams
    why_regime = (ALONG if ahead else ON_ALL) if all_rows else allowed[choice.cluster_on]
    plan = _plan(asked, choice, budget, why_regime, counts_first=counts_first, reads_ahead=ahead)
    if resources.caches_rows:
        plan = with_cached_rows(plan, source, budget)
    if plan.workers is not None:
        check_workers(plan.workers, source.name)
    return checked(
        plan, "use fewer n_components or fewer n_clusters", choice.memory_model.reading.largest_chunk, budget
    )


def _plan(
    asked: FitRequest, choice: Choice, budget: MemoryBudget, why_regime: str, *, counts_first: bool, reads_ahead: bool
) -> Plan:
    """The plan of a choice."""
    source, memory_model, cluster_on = asked.source, choice.memory_model, choice.cluster_on
    n_rows, several = source.estimated_rows, len(asked.spaces) > 1
    steps = () if source.prepared_by is None else source.prepared_by.finding
    before = tuple(stage.name for stage in source.stages_before)
    passes = 2 + (asked.refine if isinstance(asked.refine, int) else 0) + counts_first + asked.fit_passes
    passes += asked.found and cluster_on != "sample" and not reads_ahead
    sizes, refine = memory_model.chosen, asked.refine
    return Plan(
        source=source.name,
        n_rows=n_rows,
        knows_rows=source.n_rows is not None,
        n_features=source.n_features,
        stored_bytes=source.n_bytes,
        **vars(asked.sketching),
        sample_rows=sizes.sample_rows,
        drawn_rows=sizes.drawn_rows,
        keeps_sample=sizes.keeps_sample,
        few_sampled=sizes.sample_rows < min(asked.wanted_sample, n_rows or asked.wanted_sample),
        cluster_on=cluster_on,
        why_regime=why_regime,
        coreset="lightweight" if asked.coreset == "lightweight" else "sensitivity",
        assign_space=choice.space if source.n_features is not None or not several else None,
        chooses_space=several,
        block_room=choice.room if cluster_on == "spilled" else None,
        passes=len(before) + len(steps) + (1 if asked.once else passes),
        passes_before=before,
        finding_steps=steps,
        counts_first=counts_first,
        fit_passes=asked.fit_passes,
        reads_ahead=reads_ahead,
        more_passes=MOST_ROUNDS if refine == "auto" and not asked.once else 0,
        chunk_bytes=sizes.chunk_bytes,
        n_chunks=source.n_chunks(sizes.chunk_bytes),
        n_threads=memory_model.reading.n_threads,
        memory=choice.memory(budget.base_bytes),
        memory_model=memory_model,
        limit_bytes=budget.limit_bytes,
        base_bytes=budget.base_bytes,
        process_memory=budget.process_memory,
        workers=_workers(choice, budget),
    )


def _workers(choice: Choice, budget: MemoryBudget) -> PlannedWorkers | None:
    """The workers' part of a choice's plan; None without a cluster.

    A worker searches for starts, where it has room for the rows that these are searched on; else the client does.
    """
    workers = budget.workers
    if workers is None:
        return None
    memory, searching = choice.worker_memory(workers), workers.search_bytes(choice.memory_model)
    if choice.cluster_on == "blocks" and searching <= workers.limit_bytes:
        memory[SEARCH] = searching
    return replace(workers, memory=memory)
