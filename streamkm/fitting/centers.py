"""Seeding, Lloyd and polishing on sampled or sketched rows in memory, by threads. Reads no source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.even_sizes import Evened, even_out
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import POLISH_STEPS, POLISH_TOL, LloydResult, lloyd, original_centers, polish
from streamkm.cluster.model import Space
from streamkm.cluster.moving_averages import Schedule
from streamkm.cluster.normalization import WHOLE, Normalization, on_sphere
from streamkm.cluster.occurring import FEWEST_FEATURES, Columns
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.cluster.sampling.coreset import Part
from streamkm.cluster.sampling.row_sample import Sample, as_block_matrix
from streamkm.cluster.seeding.init import Streams, drawn_by, start_centers
from streamkm.cluster.seeding.search_set import SAMPLED, SearchRows, search_rows
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.memory import trim_heap
from streamkm.engine import Executor
from streamkm.fitting.context import FitContext, Settings
from streamkm.fitting.iterations import StepCheckpoint, iterated, noted
from streamkm.fitting.reading import NormalizedRows
from streamkm.fitting.state import Clustering, SampleView
from streamkm.passes.sketch import Sketched
from streamkm.planning.memory_budget import SEARCH
from streamkm.sketches.base_sketch import Sketch


def search_centers(
    here: Executor,
    sampled: Block,
    settings: Settings,
    rows: Matrix,
    sketch: Sketch,
    normalization: Normalization = WHOLE,
    pool: SearchRows = SAMPLED,
) -> NDArray[np.float64]:
    """Centers to start from (k, m): given, drawn by a function, or found among the sampled rows.

    `sampled`: Block (s, m). `rows`: normalized sampled rows (r, d). Raises InvalidInputError: `init` has another number
    of features than the rows.
    """

    def placed(centers: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(sketch.apply(normalization.points(centers)), np.float64)

    init: Any = settings.init
    if isinstance(init, np.ndarray):
        if init.shape[1] != rows.shape[1]:
            raise InvalidInputError(f"init has {init.shape[1]} features; the data have {rows.shape[1]:,}")
        return placed(init)
    if callable(init):
        init = drawn_by(init, normalization.original_rows(rows), settings.n_clusters, placed)
    streams = Streams(settings.generator("seeding"), settings.generator("search"))
    return start_centers(
        here, sampled, settings.n_clusters, init=init, n_init=settings.n_init, streams=streams, pool=pool
    )


@dataclass(frozen=True, slots=True)
class Start:
    """Centers to iterate from, and the rows that are iterated on."""

    centers: NDArray[np.float64]  # (k, m): of normalized sketched rows
    sampled: Block  # sketched
    blocks: Blocks  # the rows of the plan
    is_iterated: bool  # whether steps among the sketched features come before those among the original ones
    schedule: Schedule | None  # of epochs
    space: Space  # "original" or "sketch", in which rows will be assigned
    columns: Columns | None  # the features that occur, if they are known and few


def find_start(context: FitContext, rows: NormalizedRows) -> Start:
    """Centers that are given, or found among the rows of the plan."""
    sketched, sketch, plan, settings = rows.sketched, rows.sketch, context.plan, context.settings
    sample, columns = sketched.sample, _occurring(sketched, sketch)
    space = plan.space_for(sample.X.shape[1] if columns is None else columns.n_columns)
    if plan.cluster_on == "spilled":
        trim_heap(plan.limit_bytes, plan.memory["cluster"])  # blocks take the rest of the memory: heaps must not grow
    with context.progress.stage("seed"):
        sampled = sample.block(context.here, sketch, settings.start_rows)
        clustered = sampled if sketched.coreset is None else _block(sketched.coreset)
        blocks, schedule = sketched.blocks or LocalBlocks.of(context.here, clustered), None
        is_iterated = not (space == "original" and sketch.needs_polishing and plan.cluster_on == "sample")
        if is_iterated:
            X, here = clustered.X, blocks.executor.joins_here
            stored = None if isinstance(X, np.ndarray) else X.nnz / max(1, X.shape[0] * X.shape[1])
            schedule = plan.epochs(settings, blocks.n_rows, stored=stored, here=here)
        centers = context.writer.load("seed", np.ndarray)
        if centers is None:
            held, sizes = None if sample.complete else sketched.blocks, plan.memory_model
            on_worker = plan.workers is not None and SEARCH in plan.workers.memory
            pool = SearchRows(
                held, sizes.chosen.searched_rows, sizes.n_portions, sketched.n_valid, schedule is not None, on_worker
            )
            first = rows_between(sample.X, 0, search_rows(settings.n_clusters))
            centers = search_centers(context.here, clustered, settings, first, sketch, rows.normalization, pool)
            context.writer.save("seed", centers)
    trim_heap(plan.limit_bytes)
    return Start(centers, sampled, blocks, is_iterated, schedule, space, columns)


def iterate(context: FitContext, rows: NormalizedRows, start: Start) -> Clustering:
    """The clusters of the rows of the plan, polished in the original space if rows will be assigned there."""
    sketched, sketch, normalization, plan = rows.sketched, rows.sketch, rows.normalization, context.plan
    settings, sample, sampled, columns = context.settings, sketched.sample, start.sampled, start.columns
    is_polished = start.space == "original" and not sketch.is_identity
    if start.is_iterated:
        result, history = iterated(context, start.blocks, start.centers, start.schedule)
    else:
        with context.progress.stage("lloyd", settings.max_iter, "steps"):
            result, history = LloydResult(start.centers, float("nan"), 0, False, ()), list[dict[str, Any]]()
    result = replace(result, labels=None)  # the assign pass finds the labels
    if is_polished:
        trim_heap(plan.limit_bytes, plan.memory.get("polish", 0))  # clustering may have taken much more
        polishing = sample
        if columns is not None:
            polishing, normalization = replace(sample, X=columns.narrow(sample.X)), columns.normalization(normalization)
        result, more = _polished(context, sketch, polishing, sampled, result)
        history += more
    if settings.spherical:
        blocks = LocalBlocks.of(context.here, polishing.original_block()) if is_polished else start.blocks
        result = _on_sphere(context, blocks, result, normalization, whole=sample.complete or not is_polished)
        history += noted("sphere", result)
    evened = None
    if settings.cluster_size is not None:
        blocks = LocalBlocks.of(context.here, polishing.original_block()) if is_polished else start.blocks
        result, evened = _evened(context, blocks, result, normalization, sketched.n_valid)
    view = SampleView.of(context, sample, sampled, rows.normalization, min(settings.view_rows, sampled.n_rows))
    if start.space == "original":
        centers = normalization.originals(result.centers)
    else:
        centers = normalization.sketched(sketch, result.centers)
    for step in history:
        step["inertia"] /= normalization.scale * normalization.scale
    if settings.spherical:
        centers = on_sphere(centers)  # a normalization rounds
    result, sketch, told = normalization.result(result, centers), rows.normalization.sketch(sketch), tuple(history)
    columns, width = columns if is_polished else None, sample.X.shape[1]
    given = (result, start.space, sketch, told, view, width, sketched.chunk_rows, columns, rows.kernel, evened)
    found = Clustering(*given)
    context.writer.save("found", found)
    return found


def _occurring(sketched: Sketched, sketch: Sketch) -> Columns | None:
    """The features that occur, if they are known and few; None for directions, which have all features."""
    if sketch.is_projection or sketch.is_identity:
        return None
    if isinstance(sketched.sample.X, np.ndarray) or sketched.n_features < FEWEST_FEATURES:
        return None
    return sketched.columns


def _polished(
    context: FitContext, sketch: Sketch, sample: Sample, sampled: Block, result: LloydResult
) -> tuple[LloydResult, list[dict[str, Any]]]:
    """Centers among the original features, and the history; directions of all rows are not fitted to the sample."""
    with context.progress.stage("polish", None, "steps") as stage:
        centers, explained = original_centers(context.here, sample, sampled, result.centers)
        basis = sketch.basis
        if not sample.complete and basis is not None:
            known = context.plan.cluster_on != "sample"
            if known:  # all rows give the part along the directions, the sample only the rest
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
    context: FitContext, rows: Blocks, result: LloydResult, normalization: Normalization, *, whole: bool
) -> LloydResult:
    """Spherical k-means on the rows that were clustered last; few steps if these are a sample, which more would fit."""
    max_iter, tol = context.settings.max_iter, context.settings.tol
    if not whole:
        max_iter, tol = min(max_iter, POLISH_STEPS), max(tol, POLISH_TOL)
    with context.progress.stage("sphere", max_iter, "steps") as stage:
        steps = StepCheckpoint(context.writer, "sphere", stage, LloydResult)
        start, placed = result.centers if steps.begun is None else steps.begun, normalization.on_sphere
        return lloyd(rows, start, max_iter=max_iter, tol=tol, on_step=steps.step, placed=placed)


def _evened(
    context: FitContext, blocks: Blocks, result: LloydResult, normalization: Normalization, n_valid: int
) -> tuple[LloydResult, Evened]:
    """Centers and prices of clusters whose sizes keep their bounds on the rows clustered last."""
    settings, scale = context.settings, normalization.scale
    total = float(context.weights.sum()) if len(context.weights) else float(n_valid)
    bounds = settings.size_bounds(total, context.weights).times(blocks.total_weight / total)
    placed, seed = normalization.on_sphere if settings.spherical else None, settings.seed64("draws")
    with context.progress.stage("sizes"):
        centers = result.centers[np.arange(settings.n_clusters) % len(result.centers)]  # copies, if some are missing
        centers, found = even_out(blocks, centers, bounds, seed, n_valid, placed)
    rule = replace(found.rule, limit=found.rule.limit / (scale * scale))
    evened = Evened(found.prices / (scale * scale), found.sizes * (total / blocks.total_weight), rule)
    return replace(result, centers=centers), evened


def _block(coreset: Part) -> Block:
    """Rows of a coreset with their weights."""
    X = as_block_matrix(coreset.X, sketched=False)
    return Block(X, row_d2norms(X), coreset.weights)
