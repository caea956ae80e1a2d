"""From rows that were sampled and sketched to centers: seeding, Lloyd, polishing; in memory, by threads.

Reads no source.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.columns import FEWEST_FEATURES, Columns
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import POLISH_STEPS, POLISH_TOL, LloydResult, lloyd, original_centers, polish
from streamkm.cluster.model import Space
from streamkm.cluster.moving_averages import Schedule
from streamkm.cluster.normalization import WHOLE, Normalization, on_sphere
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.cluster.sampling.coreset import Coreset
from streamkm.cluster.sampling.row_sample import Sample, as_block_matrix
from streamkm.cluster.seeding.init import Streams, drawn_by, start_centers
from streamkm.cluster.seeding.search_set import SAMPLED, Pool, search_rows
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.memory import trim_heap
from streamkm.engine import Executor
from streamkm.fitting.context import FitContext, Settings
from streamkm.fitting.iterations import StepCheckpoint, iterated, noted
from streamkm.fitting.reading import NormalizedRows
from streamkm.fitting.state import Clustering, SampleView
from streamkm.passes.sketch import Sketched
from streamkm.planning.plan import epoch_schedule, stored_share
from streamkm.planning.process import MUCH_ROOM, SEARCH
from streamkm.sketches import Sketch

logger = logging.getLogger(__name__)


def search_centers(
    here: Executor,
    sampled: Block,
    settings: Settings,
    rows: Matrix,
    sketch: Sketch,
    normalization: Normalization = WHOLE,
    pool: Pool = SAMPLED,
) -> NDArray[np.float64]:
    """Centers to start from (k, m): given, drawn by a function, or looked for among the sampled rows.

    `sampled`: Block (s, m). `rows`: ndarray or csr_array (r, d), normalized sampled rows. `pool`: as of
    `start_centers`. Raises InvalidInputError: if `init` has another number of features than the rows.
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
    """Centers to start from, and the rows that they move by."""

    centers: NDArray[np.float64]  # (k, m)
    rows: Blocks
    sampled: Block  # the row sample, sketched
    schedule: Schedule | None  # of epochs
    space: Space  # where rows will be assigned
    columns: Columns | None  # the features that centers among the original ones have, where they are few of all
    is_polished: bool  # whether centers of a sketch end in the original space, by steps on the row sample
    is_iterated: bool  # whether they move before that


def find_start(context: FitContext, found: NormalizedRows) -> Start:
    """Centers to start from: given, or looked for among the rows of the plan."""
    sketched, sketch, plan, settings = found.sketched, found.sketch, context.plan, context.settings
    sample = sketched.sample
    columns = _occurring(sketched, sketch)
    space = plan.space_for(sample.X.shape[1] if columns is None else columns.n_columns)
    if plan.cluster_on == "spilled":
        trim_heap(plan.limit_bytes, plan.memory["cluster"])  # blocks take what is left: heaps must not grow
    with context.progress.stage("seed"):
        sampled = sample.block(context.here, sketch, settings.start_rows)
        clustered = sampled if sketched.coreset is None else _block(sketched.coreset)
        rows = sketched.blocks or LocalBlocks.of(context.here, clustered)
        counted = plan.n_rows is not None
        room = None if rows.executor.joins_here else plan.epoch_room or MUCH_ROOM  # where workers hold the rows
        stored = stored_share(clustered.X)
        is_polished, schedule = space == "original" and not sketch.is_identity, None
        is_iterated = not (space == "original" and sketch.needs_polishing and plan.cluster_on == "sample")
        if is_iterated:
            schedule = epoch_schedule(rows.n_rows, settings, plan.cluster_on, stored=stored, counted=counted, room=room)
        held = None if sample.complete else sketched.blocks
        sizes, on_worker = plan.memory_model, plan.workers is not None and SEARCH in plan.workers.memory
        searched, averaged = sizes.chosen.searched_rows, schedule is not None
        pool = Pool(held, searched, sizes.n_portions, sketched.n_valid, averaged, on_worker)
        first = rows_between(sample.X, 0, search_rows(settings.n_clusters))
        start = context.writer.load("seed", np.ndarray)
        if start is None:
            start = search_centers(context.here, clustered, settings, first, sketch, found.normalization, pool)
            context.writer.save("seed", start)
    trim_heap(plan.limit_bytes)
    return Start(start, rows, sampled, schedule, space, columns if is_polished else None, is_polished, is_iterated)


def iterate(context: FitContext, found: NormalizedRows, start: Start) -> Clustering:
    """Iterate on the rows of the plan; then polish in the original space, if rows will be assigned there."""
    sample, sketch, normalization, plan = found.sketched.sample, found.sketch, found.normalization, context.plan
    settings, columns, rows, space = context.settings, start.columns, start.rows, start.space
    if start.is_iterated:
        result, history = iterated(context, rows, start.centers, start.schedule, accelerated=settings.accelerated)
    else:
        with context.progress.stage("lloyd", settings.max_iter, "steps"):
            result, history = LloydResult(start.centers, float("nan"), 0, False, ()), list[dict[str, Any]]()
    result = replace(result, labels=None)  # the assign pass finds the labels
    if start.is_polished:
        trim_heap(plan.limit_bytes, plan.memory.get("polish", 0))  # clustering may have taken much more
        polishing = sample
        if columns is not None:
            polishing, normalization = replace(sample, X=columns.narrow(sample.X)), columns.frame(normalization)
        result, more = _polished(context, sketch, polishing, start.sampled, result)
        history += more
    if settings.spherical:
        rows = LocalBlocks.of(context.here, polishing.original_block()) if start.is_polished else rows
        result = _on_sphere(context, rows, result, normalization, whole=sample.complete or not start.is_polished)
        history += noted("sphere", result)
    view = SampleView.of(
        context, sample, start.sampled, found.normalization, min(settings.view_rows, start.sampled.n_rows)
    )
    if space == "original":
        centers = normalization.originals(result.centers)
    else:
        centers = normalization.sketched(sketch, result.centers)
    for step in history:
        step["inertia"] /= normalization.scale * normalization.scale
    if settings.spherical:
        centers = on_sphere(centers)  # a normalization rounds
    result, sketch = normalization.result(result, centers), found.normalization.sketch(sketch)
    return Clustering(
        result, space, sketch, tuple(history), view, sample.X.shape[1], found.sketched.chunk_rows, columns, found.kernel
    )


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
    context: FitContext, rows: Blocks, result: LloydResult, normalization: Normalization, *, whole: bool
) -> LloydResult:
    """Spherical k-means from the centers that were found, on the rows that were clustered last.

    `whole`: whether these are all rows; of a sample, more steps than polishing makes would fit the sample.
    """
    max_iter, tol = context.settings.max_iter, context.settings.tol
    if not whole:
        max_iter, tol = min(max_iter, POLISH_STEPS), max(tol, POLISH_TOL)
    with context.progress.stage("sphere", max_iter, "steps") as stage:
        steps = StepCheckpoint(context.writer, "sphere", stage, LloydResult)
        given: dict[str, Any] = {"on_step": steps.step, "begun": steps.begun, "placed": normalization.on_sphere}
        return lloyd(rows, result.centers, max_iter=max_iter, tol=tol, **given)


def _block(coreset: Coreset) -> Block:
    """Rows of a coreset with their weights."""
    X = as_block_matrix(coreset.X, sketched=False)
    return Block(X, row_d2norms(X), coreset.weights)
