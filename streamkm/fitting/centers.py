"""From rows that were sampled and sketched to centers: seeding, Lloyd, polishing; in memory, by threads.

Reads no source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.columns import FEWEST_FEATURES, Columns
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.normalization import WHOLE, Normalization
from streamkm.cluster.polish import POLISH_STEPS, POLISH_TOL, original_centers, polish
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.cluster.sampling.coreset import Coreset
from streamkm.cluster.sampling.row_sample import Sample, as_block_matrix
from streamkm.cluster.seeding.init import Streams, drawn_by, start_centers
from streamkm.cluster.seeding.search_set import SAMPLED, Pool, search_rows
from streamkm.cluster.spherical import on_sphere, placed_in, spherical_lloyd
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.memory import trim_heap
from streamkm.engine import Executor
from streamkm.fitting.clustering import Clustering, SampleView
from streamkm.fitting.context import FitContext, Settings
from streamkm.fitting.iterations import StepCheckpoint, iterated, noted
from streamkm.fitting.reading import NormalizedRows
from streamkm.passes.sketch import Sketched
from streamkm.planning.plan import Plan
from streamkm.planning.plan_parts import MUCH_ROOM, EpochRoom, epoch_schedule, stored_share
from streamkm.planning.process import SEARCH
from streamkm.sketches import Sketch


def search_centers(
    executor: Executor,
    sampled: Block,
    settings: Settings,
    n_clusters: int,
    original_rows: Callable[[], Matrix],
    placed: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    pool: Pool = SAMPLED,
) -> NDArray[np.float64]:
    """Centers to start from, looked for among sampled rows or given by the function that is the settings' `init`.

    `executor`, `sampled`, `n_clusters`, `pool`: as of `start_centers`. `settings`: with an `init` that is no array.
    `original_rows`: gives the sampled rows as the data have them, for such a function. `placed`: takes centers among
    original rows to the space of `sampled`. Returns float64 (n_clusters, m).
    """
    init: Any = settings.init
    return start_centers(
        executor,
        sampled,
        n_clusters,
        init=drawn_by(init, original_rows(), n_clusters, placed) if callable(init) else init,
        n_init=settings.n_init,
        streams=Streams(settings.generator("seeding"), settings.generator("search")),
        pool=pool,
    )


logger = logging.getLogger(__name__)


def find_centers(context: FitContext, framed: NormalizedRows) -> Clustering:
    """Seed and iterate on the rows of the plan; then polish in the original space, if rows will be assigned there."""
    sketched, sketch, frame = framed.sketched, framed.sketch, framed.frame
    sample, plan, progress = sketched.sample, context.plan, context.progress
    n_searched, n_features = search_rows(context.settings.n_clusters), sample.X.shape[1]
    columns = _occurring(sketched, sketch)
    space = plan.space_for(n_features if columns is None else columns.n_columns)
    polished = space == "original" and not sketch.is_identity
    # whether centers of a sketch move in the original space only, by steps that polish them on the row sample
    polished_alone = space == "original" and sketch.needs_polishing and plan.cluster_on == "sample"
    if not polished:
        columns = None
    if plan.cluster_on == "spilled":
        trim_heap(plan.limit_bytes, plan.memory["cluster"])  # blocks take what is left: heaps must not grow
    with progress.stage("seed"):
        sampled = sample.block(context.here, sketch)
        clustered = sampled if sketched.coreset is None else _block(sketched.coreset)
        rows = sketched.blocks or LocalBlocks.of(context.here, clustered)
        counted = plan.n_rows is not None
        room = epoch_room(plan, rows)
        stored, settings = stored_share(clustered.X), context.settings
        schedule = None
        if not polished_alone:
            schedule = epoch_schedule(rows.n_rows, settings, plan.cluster_on, stored=stored, counted=counted, room=room)
        held = None if sample.complete else sketched.blocks
        pool = pool_of(context, held, sketched.n_valid, averaged=schedule is not None)
        start = seeded(context, clustered, rows_between(sample.X, 0, n_searched), sketch, frame=frame, pool=pool)
    trim_heap(plan.limit_bytes)
    if polished_alone:
        with progress.stage("lloyd", context.settings.max_iter, "steps"):
            result, history = LloydResult(start, float("nan"), 0, False, ()), list[dict[str, Any]]()
    else:
        result, history = iterated(context, rows, start, schedule)
    result = replace(result, labels=None)  # the assign pass finds the labels
    if polished:
        trim_heap(plan.limit_bytes, plan.memory.get("polish", 0))  # clustering may have taken much more
        polishing = sample if columns is None else replace(sample, X=columns.narrow(sample.X))
        result, more = _polished(context, sketch, polishing, sampled, result)
        history += more
        frame = frame if columns is None else columns.frame(frame)
    if context.settings.spherical:
        rows = LocalBlocks.of(context.here, polishing.original_block()) if polished else rows
        result = _on_sphere(context, rows, result, frame, whole=sample.complete or not polished)
        history += noted("sphere", result)
    keeps = plan.keeps_sample
    look = SampleView.of(context.here, sample, sampled, framed.frame, n_rows=n_searched, keeps_sample=keeps)
    centers = frame.originals(result.centers) if space == "original" else frame.sketched(sketch, result.centers)
    for step in history:
        step["inertia"] /= frame.scale * frame.scale
    if context.settings.spherical:
        centers = on_sphere(centers)  # a frame rounds
    result, sketch = frame.result(result, centers), framed.frame.sketch(sketch)
    return Clustering(result, space, sketch, tuple(history), look, n_features, sketched.chunk_rows, columns)


def _occurring(sketched: Sketched, sketch: Sketch) -> Columns | None:
    """The features that occur, where they are known and few; directions have all features."""
    if sketch.is_projection or sketch.is_identity:
        return None
    if isinstance(sketched.sample.X, np.ndarray) or sketched.n_features < FEWEST_FEATURES:
        return None
    if sketched.occurring.bits is None and not sketched.sample.complete:
        logger.info(
            "centers have all %s features: the first pass did not note which ones occur, as it did not read all rows",
            f"{sketched.n_features:,}",
        )
    return sketched.columns


def _polished(
    context: FitContext, sketch: Sketch, sample: Sample, sampled: Block, result: LloydResult
) -> tuple[LloydResult, list[dict[str, Any]]]:
    """Centers among the original features, and the history of finding them.

    Directions that were iterated along need no polishing by a part of the rows: it would fit the sample, and where all
    rows took part they know better.
    """
    with context.progress.stage("polish", None, "steps") as stage:
        centers, explained = original_centers(context.here, sample, sampled, result.centers)
        basis = sketch.basis
        if not sample.complete and basis is not None:
            known = context.plan.cluster_on != "sample"
            if known:  # along the directions, what all rows say; only the rest is the sample's
                centers += (result.centers - sketch.apply(centers)) @ basis.T
            if known or not sketch.needs_polishing:
                return replace(result, centers=centers), []
        steps = StepCheckpoint(context.writer, "polish", stage, LloydResult)
        polished = polish(
            context.here,
            sample,
            centers,
            max_iter=context.settings.max_iter,
            tol=context.settings.tol,
            on_step=steps.step,
            begun=explained if steps.begun is None else steps.begun,
        )
    return polished, noted("polish", polished)


def _on_sphere(
    context: FitContext, rows: Blocks, result: LloydResult, frame: Normalization, *, whole: bool
) -> LloydResult:
    """Spherical k-means from the centers that were found, on the rows that were clustered last.

    `whole`: whether these are all rows; of a sample, more steps than polishing makes would fit the sample.
    """
    max_iter, tol = context.settings.max_iter, context.settings.tol
    if not whole:
        max_iter, tol = min(max_iter, POLISH_STEPS), max(tol, POLISH_TOL)
    with context.progress.stage("sphere", max_iter, "steps") as stage:
        steps = StepCheckpoint(context.writer, "sphere", stage, LloydResult)
        return spherical_lloyd(
            rows, result.centers, placed_in(frame), max_iter=max_iter, tol=tol, on_step=steps.step, begun=steps.begun
        )


def seeded(
    context: FitContext, sampled: Block, rows: Matrix, sketch: Sketch, *, frame: Normalization = WHOLE, pool: Pool
) -> NDArray[np.float64]:
    """Centers to start from (k, m), or those that an earlier run found.

    They are given, or a function gives them, or they are looked for among the sampled rows.

    `sampled`: Block (s, m). `rows`: ndarray or csr_array (r, d), sampled rows in their frame.
    """
    begun = context.writer.load("seed", np.ndarray)
    if begun is not None:
        return begun

    def placed(centers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(sketch.apply(frame.points(centers)), np.float64)

    settings = context.settings
    if isinstance(settings.init, np.ndarray):
        if settings.init.shape[1] != rows.shape[1]:
            raise InvalidInputError(f"init has {settings.init.shape[1]} features; the data have {rows.shape[1]:,}")
        start = placed(settings.init)
    else:
        start = search_centers(
            context.here, sampled, settings, settings.n_clusters, lambda: frame.original_rows(rows), placed, pool=pool
        )
    context.writer.save("seed", start)
    return start


def pool_of(context: FitContext, blocks: Blocks | None, n_rows: int, *, averaged: bool = False) -> Pool:
    """The plan for the rows on which starts are searched; `blocks` are all rows in memory, if they are not sampled."""
    needs, workers = context.plan.memory_model, context.plan.workers
    if needs is None:
        return Pool(blocks, n_rows=n_rows, averaged=averaged)
    on_worker = workers is not None and SEARCH in workers.memory
    return Pool(blocks, needs.chosen.searched_rows, needs.n_portions, n_rows, averaged, on_worker)


def epoch_room(plan: Plan, rows: Blocks) -> EpochRoom | None:
    """Room for epochs in one process, where workers hold the rows; plenty where the plan knows no limit of workers."""
    return None if rows.executor.joins_here else plan.epoch_room or MUCH_ROOM


def _block(coreset: Coreset) -> Block:
    """Rows of a coreset with their weights."""
    X = as_block_matrix(coreset.X, sketched=False)
    return Block(X, row_d2norms(X), coreset.weights)
