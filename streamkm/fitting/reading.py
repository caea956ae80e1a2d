"""Reading all rows before clusters are looked for: how often, and what sketch is found on the way."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.normalization import WHOLE
from streamkm.cluster.sampling.row_sample import SampleRule
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.memory import trim_heap
from streamkm.fitting.centers import check_clusters
from streamkm.fitting.context import FitContext
from streamkm.fitting.normalize import NormalizedRows, normalize_rows, oblivious_sketch, sketch_of
from streamkm.passes.gathered import Gathered
from streamkm.passes.pilot_rows import rows_ahead
from streamkm.passes.sketch import FindSketch, Sketched, count_pass, sketch_pass
from streamkm.planning.memory import n_rows_ahead, pca_rows
from streamkm.sketches import Sketch, SketchFit
from streamkm.sketches.registry import find_sketch, first_round

MORE_LOST, LOST_ANYWAY = 1.15, 0.005  # how much more directions may leave out of all rows than of those read ahead

LOST_ROWS = 2048  # that this is judged by, at most

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Directions:
    """A sketch that was found, and the share of squared distances that it leaves out of the rows it was found on."""

    sketch: Sketch
    lost: float = 0.0


def read_rows(context: FitContext) -> tuple[Sketched, NormalizedRows]:
    """Read all rows as often as the plan says; return them as read, and as they are clustered."""
    plan = context.plan
    if plan.reading.reads_ahead:
        return _read_along(context)
    sketched = read_once(context)
    trim_heap(plan.limit_bytes)
    if not plan.reading.fit_passes and not plan.sketches_later:
        framed = normalize_rows(context, sketched)
        if context.reader.source.replayable:
            sketched = replace(sketched, blocks=None)  # `framed` has them
        return sketched, framed
    sketch = _sketch(context, sketched)
    if plan.sketches_later:
        chunk_rows = sketched.chunk_rows
        del sketched  # this pass samples the same rows once more
        sketched = _sketched(context, sketch, chunk_rows, "sketch-all", len(chunk_rows))
        trim_heap(plan.limit_bytes)
    return sketched, NormalizedRows(sketched, sketch, WHOLE)


def _read_along(context: FitContext) -> tuple[Sketched, NormalizedRows]:
    """Find directions on rows read ahead and sketch all rows along them; once more where they do not hold for all."""
    plan, writer = context.plan, context.writer
    begun = writer.load("directions", Directions)
    if begun is None:
        needs, n_features = plan.memory_model, context.reader.source.n_features
        assert needs is not None
        assert n_features is not None  # else there would be another plan
        n_wanted = n_rows_ahead(plan.n_rows or 0, n_features, plan.n_components)
        with context.progress.stage("ahead") as stage:
            some = rows_ahead(context, n_wanted, needs.rows.row_bytes, stage)
        if some.shape[0] < plan.n_components:  # hardly any of them is valid
            return _read_twice(context)
        found = _directions(context, some)
        lost = _lost(some, found)
        writer.save("directions", Directions(found, lost))
    else:
        found, lost = begun.sketch, begun.lost
    # a record of the first pass is of rows along the directions before
    name = "sketch" if begun is None or begun.lost < 1 else "sketch-all"
    sketched = _sketched(context, found, None, name, plan.n_chunks)
    check_clusters(context.settings.n_clusters, sketched.n_valid)
    trim_heap(plan.limit_bytes)
    sampled = rows_between(sketched.sample.X, 0, pca_rows(sketched.n_features, plan.n_components))
    lost_now = _lost(sampled, found)
    if lost_now > MORE_LOST * lost + LOST_ANYWAY:
        logger.info(
            "directions found on rows read ahead leave out %.1f %% of all rows, not %.1f %%: they are sketched again",
            100 * lost_now,
            100 * lost,
        )
        better, chunk_rows = _directions(context, sampled), sketched.chunk_rows
        writer.save("directions", Directions(better, 1.0))
        del sketched, sampled
        found = better
        sketched = _sketched(context, found, chunk_rows, "sketch-all", len(chunk_rows))
        trim_heap(plan.limit_bytes)
    return sketched, NormalizedRows(sketched, found, WHOLE)


def _read_twice(context: FitContext) -> tuple[Sketched, NormalizedRows]:
    """Find directions on a sample of all rows, and sketch all rows along them in another pass."""
    sampled = read_once(context)
    found, chunk_rows = sketch_of(context.plan, context.settings, sampled.sample), sampled.chunk_rows
    del sampled
    sketched = _sketched(context, found, chunk_rows, "sketch-all", len(chunk_rows))
    trim_heap(context.plan.limit_bytes)
    return sketched, NormalizedRows(sketched, found, WHOLE)


def _directions(context: FitContext, rows: Matrix) -> Sketch:
    plan, settings = context.plan, context.settings
    return find_sketch(plan.sketch, plan.n_components, settings.seed64("sketch"), rows, settings.n_clusters)


def _lost(rows: Matrix, sketch: Sketch) -> float:
    """Share of the rows' squared distances from the sketch's mean that its directions leave out."""
    assert sketch.center is not None  # they are principal directions
    assert isinstance(rows, np.ndarray)
    some = rows[:: -(-len(rows) // LOST_ROWS)]
    centered = some - sketch.center
    along = np.asarray(sketch.apply(some), np.float64)
    whole = float(np.einsum("ij,ij->", centered, centered))
    return 0.0 if whole == 0 else max(0.0, 1.0 - float(np.einsum("ij,ij->", along, along)) / whole)


def read_once(context: FitContext) -> Sketched:
    """Read all rows once, after counting them where that is needed."""
    plan = context.plan
    chunk_rows = None
    if plan.reading.counts_first:
        with context.progress.stage("count", plan.n_chunks) as stage:
            chunk_rows = count_pass(context, stage)
    n_features = context.reader.source.n_features
    sketch = oblivious_sketch(plan, context.settings, n_features) if plan.cluster_on != "sample" else None
    sketched = _sketched(context, sketch, chunk_rows, "sketch", plan.n_chunks)
    check_clusters(context.settings.n_clusters, sketched.n_valid)
    return sketched


def _sketched(
    context: FitContext, sketch: Sketch | None, chunk_rows: NDArray[np.int64] | None, name: str, n_chunks: int | None
) -> Sketched:
    """One pass that samples, or sketches too; from where an earlier run got to, unless workers hold sketched rows."""
    plan, settings = context.plan, context.settings
    rule = SampleRule.of(
        plan.sample_rows, settings.seed64("sample"), context.reader.source.estimated_rows, context.weights
    )
    coreset = None if sketch is None else plan.coreset_rule(settings.n_clusters, settings.seed64("coreset"))
    gathered = Gathered(rule, coreset)
    is_lost = sketch is not None and gathered.tree is None and context.spill is None  # with the workers
    record = None if is_lost or not context.reader.source.replayable else name
    with context.progress.stage(name, n_chunks) as stage:
        return sketch_pass(context, gathered, stage, sketch=sketch, chunk_rows=chunk_rows, record=record)


def _sketch(context: FitContext, sketched: Sketched) -> Sketch:
    """What a plan names, or what is found: on the row sample, or on all rows, in a pass for each round."""
    plan, settings, writer = context.plan, context.settings, context.writer
    if not plan.reading.fit_passes:
        return sketch_of(plan, settings, sketched.sample)
    begun = writer.load("directions", Directions)
    if begun is not None:
        return begun.sketch
    seed = settings.seed64("sketch")
    found: Sketch | SketchFit = first_round(
        plan.sketch, plan.n_components, seed, sketched.sample.X, settings.n_clusters
    )
    while not isinstance(found, Sketch):
        with context.progress.stage("directions", len(sketched.chunk_rows)) as stage:
            found = context.run(FindSketch(found), stage, sketched.chunk_rows)
    writer.save("directions", Directions(found))
    return found
