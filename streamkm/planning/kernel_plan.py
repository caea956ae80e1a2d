"""The decisions about a kernel fit before the first read: sizes, passes, bytes.

Reads no rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from streamkm.cluster.seeding.draws import draw_rows
from streamkm.core.exceptions import InvalidInputError
from streamkm.passes.sizes import FitSizes, RowSizes, Sizes
from streamkm.planning.fit_plan import MOST_ROUNDS, with_cached_rows
from streamkm.planning.kernel_sizes import (
    COLUMN_SKETCHES,
    LANDMARK_SKETCHES,
    LIBRARY_MORE,
    MOST_EVALUATIONS,
    KernelMemoryModel,
    KernelSizes,
    MapSizes,
)
from streamkm.planning.memory_budget import (
    FEWEST_DRAWN,
    MemoryBudget,
    accepted,
    checked,
    largest_chunk,
    reading_of,
    smaller_sizes,
)
from streamkm.planning.plan import Plan
from streamkm.planning.plan_parts import EpochRoom
from streamkm.planning.process import PlannedWorkers
from streamkm.planning.request import SAMPLE_ROWS_PER_CLUSTER, Resources
from streamkm.sources.base import RowSource, decoded_row_bytes

POOL_ROWS = 20_000  # of the sample, that landmarks are chosen from
SMALLEST_SAMPLE_ROWS = 10_000  # fewer than k-means keeps: each costs its kernel values twice


def plan_kernel_fit(source: RowSource, *, resources: Resources, **asked: Any) -> Plan:
    """Decide how a kernel fit will go, without reading rows; `asked` and errors are those of `_planned`."""
    limit = resources.memory_limit
    return accepted(lambda below: _planned(source, resources=replace(resources, memory_limit=below), **asked), limit)


def _planned(
    source: RowSource,
    *,
    n_clusters: int,
    method: str,
    how: str,
    sizes: KernelSizes,
    all_rows: bool,
    weighted: bool,
    refine: int | str,
    resources: Resources,
    n_neighbors: int = 0,
    near: bool = False,
    precomputed: bool = False,
) -> Plan:
    """The plan of a kernel fit below one limit.

    `all_rows`: whether projection and clustering see all rows, not the row sample: 4 passes instead of 2; 3 for
    `LANDMARK_SKETCHES`, which have no projection to find. `refine`: int or "auto", as of `plan_fit`. Clusters of the
    landmarks alone are left as they are. Raises InvalidInputError: if the source cannot be walked as often as needed,
    or has too many rows for `method`; MemoryLimitError: if the projected memory exceeds `memory_limit`; see
    `core.memory.memory_limit_bytes`.
    """
    n_rows, row_bytes = source.estimated_rows, decoded_row_bytes(source)
    if precomputed and (source.n_rows is None or source.n_rows != source.n_features):
        known = " x ".join("unknown" if n is None else f"{n:,}" for n in (source.n_rows, source.n_features))
        raise InvalidInputError(
            f'kernel="precomputed" needs the kernel values of all rows with each other; {source.name} is {known}: '
            "give a square matrix, or the rows themselves and another kernel"
        )
    budget = MemoryBudget.of(resources.memory_limit, source, on_cluster=resources.on_cluster, workers=resources.workers)
    chunk_bytes = resources.chunk_bytes
    size = budget.chunk_bytes(source, chunk_bytes, row_bytes)
    columns, rank = max(sizes.n_landmarks, n_neighbors), sizes.rank
    wanted = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    sample_rows = max(n_clusters, columns, min(wanted, budget.most_sampled(row_bytes)))
    held = 0 if method.endswith("fourier") else columns
    if method in COLUMN_SKETCHES:
        if n_rows is not None and n_rows**2 > MOST_EVALUATIONS:
            raise InvalidInputError(
                f"method={method!r} evaluates the kernel at all {n_rows:,}^2 pairs of rows; at most "
                f'{MOST_EVALUATIONS:,} are done ({int(MOST_EVALUATIONS**0.5):,} rows): use method="nystroem"'
            )
        held = n_rows or int(MOST_EVALUATIONS**0.5)
        sample_rows = max(sample_rows, held)
    drawn = draw_rows(n_clusters, 8 + 4 * rank)
    first = Sizes(
        size,
        sample_rows,
        drawn_rows=0 if method == "two-step" or drawn < FEWEST_DRAWN else drawn,
        keeps_sample=refine == "auto" and method != "two-step",
    )
    rows = RowSizes(
        n_rows=n_rows or sample_rows, n_features=rank, n_components=rank, row_bytes=row_bytes, block_row_bytes=0
    )
    pool = min(POOL_ROWS, sample_rows, n_rows or POOL_ROWS) if how == "kmeans" else 0
    wide = 0 if source.is_sparse else source.n_features or 0
    landmark = _landmark_bytes(source, row_bytes)
    map_ = MapSizes(n_columns=columns, n_held=held, rank=rank, n_features=wide, landmark_bytes=landmark, pool_rows=pool)

    largest = cache(partial(largest_chunk, source))

    def model(chosen: Sizes, n_threads: int) -> KernelMemoryModel:
        reading = reading_of(source, n_threads, largest(chosen.chunk_bytes))
        read = FitSizes(n_clusters=n_clusters, rows=rows, reading=reading, chosen=chosen, coreset_rows=0)
        features = replace(read, rows=replace(rows, row_bytes=8 + 4 * rank), chosen=replace(chosen, keeps_sample=False))
        return KernelMemoryModel(read=read, features=features, map=map_, all_rows=all_rows)

    def peak(chosen: Sizes, n_threads: int) -> int:
        return max(model(chosen, n_threads).stages(budget.base_bytes).values())

    # of its own accord, a plan takes smaller chunks
    chosen, n_threads = budget.fitting(smaller_sizes(first, chunk_bytes, sample_rows), resources.n_threads, peak)
    size, planned, room = chosen.chunk_bytes, model(chosen, n_threads), None
    memory = planned.stages(budget.base_bytes)
    if budget.workers is not None and all_rows:
        room = _epoch_room(planned, budget.workers, source.n_chunks(size) or 1, budget.limit_bytes - memory["cluster"])
    counts_first = weighted and source.n_rows is None and not source.streams
    more = (
        all_rows
        + (all_rows and not near and method not in LANDMARK_SKETCHES)
        + (refine if isinstance(refine, int) else 0)
    )
    why = f"{method}; {sizes.n_landmarks:,} columns" + (f"; {sizes.short}" if sizes.short else "")
    before = tuple(stage.name for stage in source.stages_before)
    plan = Plan(
        source=source.name,
        n_rows=n_rows,
        knows_rows=source.n_rows is not None,
        n_features=source.n_features,
        stored_bytes=source.n_bytes,
        sketch=method,
        n_components=rank,
        why_sketch=why,
        sample_rows=sample_rows,
        drawn_rows=chosen.drawn_rows,
        keeps_sample=chosen.keeps_sample,
        cluster_on="blocks" if all_rows else "sample",
        why_regime="on the features of all rows" if all_rows else "on the features of the row sample",
        coreset="sensitivity",
        assign_space="sketch",
        room=room,
        passes=len(before) + 2 + more + counts_first,
        passes_before=before,
        counts_first=counts_first,
        more_passes=MOST_ROUNDS if refine == "auto" and method != "two-step" else 0,
        chunk_bytes=size,
        n_chunks=source.n_chunks(size),
        n_threads=n_threads,
        memory=memory,
        memory_model=None,
        limit_bytes=budget.limit_bytes,
        base_bytes=budget.base_bytes,
        process_memory=budget.process_memory,
    )
    if not source.replayable:
        raise InvalidInputError(
            f"{source.name} can be walked once only and a fit needs {plan.passes} passes; "
            "pass a list of chunks, or a function that returns a fresh iterator"
        )
    if resources.caches_rows:
        plan = with_cached_rows(plan, source, budget)
    return checked(plan, 'use fewer n_landmarks, a smaller rank, or fit_on="sample"', largest(size), budget)


def _epoch_room(sizes: KernelMemoryModel, workers: PlannedWorkers, n_chunks: int, client_bytes: int) -> EpochRoom:
    """Room for epochs on features, where each worker holds the map, too."""
    rows = replace(sizes.features.rows, block_row_bytes=4 * sizes.map.rank)
    features = replace(sizes.features, rows=rows, reading=replace(sizes.read.reading, n_chunks=n_chunks))
    base = workers.base_bytes + sizes.map.map_bytes + LIBRARY_MORE
    return replace(workers, base_bytes=base).epoch_room(features, client_bytes)


def _landmark_bytes(source: RowSource, row_bytes: int) -> int:
    """Bytes of a row as a landmark: as floats, twice as it is laid out for products; or entries and inverted lists."""
    if source.is_sparse:
        return 3 * row_bytes
    working = 4 if np.can_cast(source.dtype, np.float32) else 8
    return (working + 8) * (source.n_features or row_bytes // source.dtype.itemsize)
