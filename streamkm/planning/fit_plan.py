"""The decisions about fits, sweeps, stores and labels before the first read: sizes, passes, bytes. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from typing import Any

from streamkm.cluster.even_sizes import SIZE_ROUNDS
from streamkm.cluster.model import Space
from streamkm.engine.pass_memory import PassMemory, ReadingMemory
from streamkm.passes.assign import Observe
from streamkm.passes.gathered import CANDIDATES
from streamkm.passes.predict import Values, labelled_bytes
from streamkm.passes.sizes import ClusterOn, Sizes, UpdateSizes
from streamkm.planning.memory_budget import MemoryBudget, accepted, check_workers, checked, smaller_sizes
from streamkm.planning.memory_model import MemoryModel, pca_rows
from streamkm.planning.plan import MemoryPlan, Plan, PlannedSketch, plan_memory, with_cached_rows
from streamkm.planning.request import (
    ALONG,
    ON_ALL,
    FitRequest,
    Resources,
    block_row_bytes,
    clusters_all,
    float_bytes,
    float_row_bytes,
    regimes,
)
from streamkm.planning.sketch_choice import choose_sketch
from streamkm.sketches import DATA_DEPENDENT, sketch_class
from streamkm.sketches.options import SketchOptions
from streamkm.sources.chunks import ChunkRuns, decoded_row_bytes
from streamkm.sources.row_source import RowSource

SPILL_SHARE = 0.9  # of the room that a projection leaves, for blocks that are kept in memory
MOST_PORTIONS = 16  # that starts are searched on one after the other, each in a pass over blocks
MANY_CHUNKS = 1 << 16  # of a source that does not say how many rows it has


def _in_portions(sizes: MemoryModel, budget: MemoryBudget) -> MemoryModel:
    """Search starts on drawn rows in the fewest portions that fit, else in those that exceed the limits least."""
    if not sizes.many or sizes.cluster_on not in ("blocks", "spilled"):
        return sizes
    counts = (sizes.n_portions << power for power in range(MOST_PORTIONS.bit_length()))
    return budget.first_that_fits(replace(sizes, n_portions=n_portions) for n_portions in counts)


def _with_threads(sizes: MemoryModel, n_threads: int, budget: MemoryBudget) -> MemoryModel:
    """Use as many of these threads as have room beside the chosen sizes."""

    def of(count: int) -> MemoryModel:
        return replace(sizes, reading=replace(sizes.reading, n_threads=count))

    return of(budget.threads(n_threads, lambda count: max(of(count).stages(budget.base_bytes).values())))


def _with_room(sizes: MemoryModel, limit_bytes: int, budget: MemoryBudget, n_rows: int | None) -> MemoryModel:
    """Keep as much of spilled blocks in memory as the limit leaves room for."""
    if sizes.cluster_on != "spilled":
        return sizes
    room = max(0, int(SPILL_SHARE * (limit_bytes - max(sizes.stages(budget.base_bytes).values()))))
    return replace(sizes, room=room if n_rows is None else min(room, n_rows * (8 + sizes.rows.block_row_bytes)))


def choose(
    source: RowSource,
    memory_model: MemoryModel,
    regimes: Iterable[ClusterOn],
    spaces: tuple[Space, ...],
    ladder: list[Sizes],
    budget: MemoryBudget,
    n_threads: int,
) -> MemoryModel:
    """Choose the best space, then the best regime, then the largest sizes that fit in memory, each given best first.

    Sizes are chosen for one thread; other threads work if they have room beside these. If nothing fits, the choice is
    the one that exceeds the limits least.
    """
    cut = cache(source.chunks)  # which may read pointers of sparse rows

    def sized(sizes: Sizes, cluster_on: ClusterOn, space: Space) -> MemoryModel:
        model = _sized(source, memory_model, sizes, cut(sizes.chunk_bytes))
        return _in_portions(replace(model, cluster_on=cluster_on, space=space), budget)

    n_rows = source.estimated_rows
    tried = (sized(sizes, cluster_on, space) for space, cluster_on, sizes in product(spaces, regimes, ladder))
    model = budget.first_that_fits(tried)
    if budget.excess_bytes(model) > 0:
        return model
    if model.many:  # each small chunk has few rows near a center, and makes room for few rows drawn
        chunks = (replace(model.chosen, chunk_bytes=each.chunk_bytes) for each in ladder)
        model = budget.first_that_fits(sized(sizes, model.cluster_on, model.space) for sizes in chunks)
    if len(spaces) > 1 and source.n_features is None:  # the room still decides on the space
        return _with_threads(_with_room(model, budget.limit_bytes, budget, n_rows), n_threads, budget)
    return _with_room(_with_threads(model, n_threads, budget), budget.now_bytes, budget, n_rows)


def _sized(source: RowSource, memory_model: MemoryModel, sizes: Sizes, cut: ChunkRuns) -> MemoryModel:
    """The memory model with these sizes, for rows that are cut like this."""
    n_rows = source.estimated_rows
    n_chunks = MANY_CHUNKS if n_rows is None or source.access.streams else max(1, len(cut))
    return replace(
        memory_model,
        chosen=sizes,
        rows=replace(memory_model.rows, n_rows=n_rows or sizes.sample_rows),
        reading=replace(memory_model.reading, largest_chunk=cut.largest_bytes or sizes.chunk_bytes, n_chunks=n_chunks),
    )


FEWEST_SEARCHED, FEWEST_SEARCHED_PER_CLUSTER = 10_000, 32  # rows on which starts are searched, for any memory
MOST_ROUNDS = 2  # of further search, if `refine` is "auto"


def plan_fit(source: RowSource, resources: Resources, *, n_clusters: int, options: SketchOptions, **asked: Any) -> Plan:
    """Decide how a fit will go, without reading rows; `asked`: parameters of a `FitRequest`."""
    MemoryBudget.of(resources.memory_limit, source, on_cluster=resources.on_cluster)  # whether it can be loaded whole
    sketch, row_bytes = choose_sketch(source, options, n_clusters), decoded_row_bytes(source)
    given = {"n_clusters": n_clusters, "options": options, **asked}
    return plan_request(FitRequest(source=source, sketching=sketch, row_bytes=row_bytes, **given), resources)


def plan_request(request: FitRequest, resources: Resources) -> Plan:
    """Decide how the fit of a request will go.

    Raises InvalidInputError: the source cannot be read as often as needed; InvalidParameterError: a parameter does not
    fit the data; MemoryLimitError: the projected memory exceeds the limit.
    """
    request.check_once()

    def planned(of_workers: int) -> Plan:
        workers = tuple(replace(each, limit_bytes=max(each.limit_bytes, of_workers)) for each in resources.workers)
        given = replace(resources, workers=workers)
        return accepted(lambda below: _planned(request, replace(given, memory_limit=below)), given.memory_limit)

    return accepted(planned, 0, on_workers=True)


def _planned(asked: FitRequest, resources: Resources) -> Plan:
    """The plan below one limit."""
    source = asked.source
    budget = MemoryBudget.of(resources.memory_limit, source, on_cluster=resources.on_cluster, workers=resources.workers)
    chunk_bytes, n_threads, row_bytes = resources.chunk_bytes, resources.n_threads, asked.row_bytes
    first = Sizes(
        chunk_bytes=budget.chunk_bytes(source, chunk_bytes, row_bytes),
        sample_rows=max(asked.fewest_sampled, min(asked.wanted_sample, budget.most_sampled(row_bytes))),
        drawn_rows=asked.drawn_rows,
        keeps_sample=asked.refine == "auto" and not asked.once,
        searched_rows=asked.searched_rows,
        fewest_searched=min(asked.searched_rows, max(FEWEST_SEARCHED, FEWEST_SEARCHED_PER_CLUSTER * asked.n_clusters)),
    )
    memory_model = asked.memory_model(first, resources)
    allowed = regimes(asked, first.sample_rows, on_cluster=resources.on_cluster)
    ladder = list(smaller_sizes(first, chunk_bytes, asked.fewest_sampled))
    enough = [sizes.sample_rows for sizes in ladder if asked.serves(sizes.sample_rows)]
    serving = list(smaller_sizes(first, chunk_bytes, min(enough))) if enough else []
    chosen, why_regime = None, ALONG if asked.found else ON_ALL
    if serving and clusters_all(asked, first.sample_rows):
        ahead_of_all = replace(memory_model, ahead=asked.found)
        chosen = choose(source, ahead_of_all, ("blocks",), asked.spaces[:1], serving, budget, n_threads)
    if chosen is None or budget.excess_bytes(chosen) > 0:
        sizes = serving if serving and "sample" in allowed else ladder  # a smaller sample would cost quality
        chosen = choose(source, memory_model, allowed, asked.spaces, sizes, budget, n_threads)
        why_regime = allowed[chosen.cluster_on]
    plan = _plan(asked, chosen, budget, why_regime)
    if resources.caches_rows:
        plan = with_cached_rows(plan, source, budget)
    check_workers(plan.workers, source.name)
    return checked(plan, asked.remedy, chosen.reading.largest_chunk, budget)


def _plan(asked: FitRequest, chosen: MemoryModel, budget: MemoryBudget, why_regime: str) -> Plan:
    """The plan of a choice."""
    source, cluster_on = asked.source, chosen.cluster_on
    n_rows, several = source.estimated_rows, len(asked.spaces) > 1
    # a source that only streams is counted as it comes; a chunk of text does not know its first row's number
    counts_first = asked.weighted and source.n_rows is None and not source.access.streams
    steps = () if source.origin.prepared_by is None else source.origin.prepared_by.finding
    before = tuple(stage.name for stage in source.origin.stages_before)
    fit_passes = int(asked.streamed if asked.map is None else asked.map.projected)
    passes = 2 + (asked.refine if isinstance(asked.refine, int) else 0) + counts_first + fit_passes
    passes += asked.found and cluster_on != "sample" and not chosen.ahead
    sizes, refine = chosen.chosen, asked.refine
    return Plan(
        source=source.name,
        n_rows=n_rows,
        knows_rows=source.n_rows is not None,
        n_features=source.n_features,
        stored_bytes=source.n_bytes,
        **vars(asked.sketching),
        **asdict(sizes),
        few_sampled=asked.map is None and sizes.sample_rows < min(asked.wanted_sample, n_rows or asked.wanted_sample),
        cluster_on=cluster_on,
        why_regime=why_regime,
        assign_space=chosen.space if source.n_features is not None or not several else None,
        chooses_space=several,
        block_room=chosen.room if cluster_on == "spilled" else None,
        rereads=asked.rereads,
        passes=len(before) + len(steps) + (1 if asked.once else passes),
        passes_before=before,
        finding_steps=steps,
        counts_first=counts_first,
        fit_passes=fit_passes,
        reads_ahead=chosen.ahead,
        more_passes=SIZE_ROUNDS if asked.cluster_size else MOST_ROUNDS if refine == "auto" and not asked.once else 0,
        sized=asked.cluster_size is not None,
        n_chunks=len(source.chunks(sizes.chunk_bytes)) or None,
        n_threads=chosen.reading.n_threads,
        memory=chosen.stages(budget.base_bytes),
        memory_model=chosen,
        limit_bytes=budget.limit_bytes,
        base_bytes=budget.base_bytes,
        process_memory=budget.process_memory,
        workers=budget.planned_workers(chosen),
    )


CENTERS_COPIES = 24  # of the most centers, while clusters are searched
PLACED = 16  # bytes of a row's norm and number


def plan_sweep(
    source: RowSource, resources: Resources, sketch: PlannedSketch, n_rows: int, n_judged: int, n_clusters: int
) -> MemoryPlan:
    """Plan a sweep over `n_rows` sampled rows, `n_judged` for silhouettes, in up to `n_clusters` clusters.

    Raises MemoryLimitError if the projected memory exceeds the limit.
    """
    kind, m, row_bytes = sketch.sketch, sketch.n_components, decoded_row_bytes(source)
    n_features = source.estimated_features or m
    found = 2 * float_bytes(source) * min(n_rows, pca_rows(n_features, m)) * n_features * (kind in DATA_DEPENDENT)
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

    return plan_memory(source, resources, stages, "sweep")


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
    found = 2 * float_bytes(source) * min(sample_rows, pca_rows(n_features, m)) * n_features

    def stages(reading: ReadingMemory) -> dict[str, int]:
        return {
            "sample": reading.peak(PassMemory(kept=int(CANDIDATES * sample_rows * row_bytes), end=found)),
            "sketch": reading.peak(stored(reading.largest_chunk // row_bytes * sketched)),
        }

    return plan_memory(source, resources, stages, "sketch")


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
    row_bytes, itemsize, n_rows = decoded_row_bytes(source), float_bytes(source), source.n_rows or 0

    def stages(reading: ReadingMemory) -> dict[str, int]:
        values = Values.memory(n_rows, reading.largest_chunk // row_bytes, centers_bytes, n_columns, itemsize)
        found = {"label": reading.peak(values)}
        if update is not None:
            found["update"] = reading.peak(Observe.memory(update, reading)) - update.held_bytes
        return found

    what = f"update of {update.n_clusters:,} clusters of {update.n_features:,} features by the rows" if update else ""
    return plan_memory(source, resources, stages, what, labelled_bytes(n_columns))
