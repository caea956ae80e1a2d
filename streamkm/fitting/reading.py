"""Reading all rows before the search for clusters: the number of passes, and the sketch that they find."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.held_rows import HeldBlock, HeldRows, SourceBlock
from streamkm.cluster.normalization import WHOLE, Normalization
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.row_sample import Sample, SampleRule, sketched_d2norms
from streamkm.core.matrix import Matrix, added_in_order, as_working, rows_between
from streamkm.core.memory import trim_heap
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map, held_outputs
from streamkm.fitting.context import FitContext, FoundKernel, Settings, check_clusters
from streamkm.passes.gathered import Gathered
from streamkm.passes.sketch import FindSketch, Sketched, count_pass, sketch_pass
from streamkm.passes.sketch_rows import rows_ahead
from streamkm.planning.memory_model import n_rows_ahead, pca_rows
from streamkm.planning.plan import Plan
from streamkm.sketches import DATA_DEPENDENT, find_sketch, first_round, make_sketch, sketch_class
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.kernel_map import GramFit

MORE_LOST, LOST_ANYWAY = 1.15, 0.005  # how much more directions may leave out of all rows than of those read ahead
LOST_ROWS = 2048  # that this is judged by, at most

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NormalizedRows:
    """The rows in which clusters are searched."""

    as_read: Sketched  # without normalization
    sketched: Sketched  # its sample is normalized
    sketch: Sketch  # of normalized rows
    normalization: Normalization = WHOLE
    kernel: FoundKernel | None = None


def normalize_rows(context: FitContext, sketched: Sketched) -> NormalizedRows:
    """Normalize the sample and sketched rows, and name or find the sketch."""
    plan, settings = context.plan, context.settings
    asked = sketch_class(plan.sketch) if settings.sketch is None else settings.sketch
    normalization = WHOLE
    if asked.scales_with_rows:
        normalization = Normalization.of(sketched.sample.X, moves=asked.moves_with_rows)
    if normalization.is_whole:
        return NormalizedRows(sketched, sketched, sketch_of(context, sketched.sample))
    sample = replace(sketched.sample, X=normalization.rows(sketched.sample.X))
    sketch, origin, blocks, coreset = sketch_of(context, sample), normalization.origin, None, None
    if plan.cluster_on == "sample":
        return NormalizedRows(sketched, replace(sketched, sample=sample), sketch, normalization)
    offset = np.asarray(sketch.apply(origin[None]), np.float64)[0] if len(origin) else origin
    inner = Normalization(offset, normalization.scale)
    if sketched.blocks is not None:
        blocks = normalized_blocks(context, sketched.blocks, inner)
    if sketched.coreset is not None:
        coreset = replace(sketched.coreset, X=inner.rows(sketched.coreset.X))
    normalized = replace(sketched, sample=sample, blocks=blocks, coreset=coreset)
    if context.reader.source.access.replayable:
        sketched = replace(sketched, blocks=None)
    return NormalizedRows(sketched, normalized, sketch, normalization)


@dataclass(frozen=True, slots=True)
class NormalizeBlocks(Map[tuple[Block, tuple[float, float]]]):
    """Normalized blocks, which stay where they are, and the total and largest squared norm of each."""

    normalization: Normalization

    def output(self, rows: HeldBlock) -> tuple[Block, tuple[float, float]]:
        """Normalize one block."""
        X = self.normalization.rows(rows.block.X)
        block = Block(X, sketched_d2norms(X), rows.block.weights)
        return block, (block.total_d2norm(), block.largest_d2norm())


def _normalized_again(read: Callable[[], Any], normalization: Normalization) -> Matrix:
    """Rows that are read again from their source, normalized."""
    return normalization.rows(as_working(read()))


def normalized_blocks(context: FitContext, blocks: Blocks, normalization: Normalization) -> Blocks:
    """Normalize sketched rows that are held."""
    handles: list[Any] = []
    norms, spill, held = [], context.spill, HeldRows(blocks.handles)
    for handle, found in held_outputs(NormalizeBlocks(normalization), held, context.executor, Stage("normalize")):
        before = blocks.handles[len(handles)]
        again = partial(_normalized_again, before.read, normalization) if isinstance(before, SourceBlock) else None
        handles.append(spill.keep(handle, again) if spill and isinstance(handle, Block) else handle)
        norms.append(found)
    totals, largest = zip(*norms, strict=True)
    return replace(blocks, handles=tuple(handles), total_d2norm=added_in_order(totals), largest_d2norm=max(largest))


def oblivious_sketch(plan: Plan, settings: Settings, n_features: int | None) -> Sketch | None:
    """The given sketch, or the one that a plan names; None if it must be found on rows."""
    if settings.sketch is not None:
        return settings.sketch.made(settings.seed64("sketch"), n_features)
    if plan.sketch in DATA_DEPENDENT:
        return None
    return make_sketch(plan.sketch, plan.n_components, settings.seed64("sketch"), n_features)


def sketch_of(context: FitContext, sample: Sample) -> Sketch:
    """The given sketch, the one that a plan names, or one found on the row sample."""
    X, plan = sample.X, context.plan
    sketch = oblivious_sketch(plan, context.settings, X.shape[1])
    if sketch is not None:
        return sketch
    few = sketch_class(plan.sketch).found_on_few
    return _directions(context, X[: pca_rows(X.shape[1], plan.n_components)] if few else X)


@dataclass(frozen=True, slots=True)
class Directions:
    """A sketch that was found, and the share of squared distances that it leaves out of these rows."""

    sketch: Sketch
    lost: float = 0.0


def read(context: FitContext) -> NormalizedRows:
    """Read all rows as often as the plan says."""
    plan = context.plan
    if plan.reads_ahead:
        return _read_along(context)
    sketched = read_once(context)
    mapping = context.settings.find_map(context, sketched)
    if mapping is None and not plan.fit_passes and not plan.sketches_later:
        return normalize_rows(context, sketched)
    sketch = _sketch(context, sketched) if mapping is None else mapping.found
    assert not isinstance(sketch, GramFit)  # all rounds are done
    kernel, chunk_rows = None if mapping is None else mapping.kernel, sketched.chunk_rows
    if plan.sketches_later:
        del sketched  # this pass samples the same rows once more
        sketched = _read_again(context, sketch, chunk_rows).sketched
    return NormalizedRows(sketched, sketched, sketch, kernel=kernel)


def _read_again(context: FitContext, sketch: Sketch, chunk_rows: NDArray[np.int64]) -> NormalizedRows:
    """Sketch all rows, which were read before, in another pass."""
    sketched = _sketched(context, sketch, chunk_rows, "sketch-all", len(chunk_rows))
    trim_heap(context.plan.limit_bytes)
    return NormalizedRows(sketched, sketched, sketch)


def _read_along(context: FitContext) -> NormalizedRows:
    """Find directions on rows read ahead and sketch all rows along them; again if they do not fit all rows."""
    plan, writer = context.plan, context.writer
    begun = writer.load("directions", Directions)
    if begun is None:
        needs, n_features = plan.memory_model, context.reader.source.n_features
        assert n_features is not None  # else there would be another plan
        n_wanted = n_rows_ahead(plan.n_rows or 0, n_features, plan.n_components)
        with context.progress.stage("ahead") as stage:
            some = rows_ahead(context, n_wanted, needs.rows.row_bytes, stage)
        if some.shape[0] < plan.n_components:  # hardly any of them is valid
            sketched = read_once(context)
            found, chunk_rows = sketch_of(context, sketched.sample), sketched.chunk_rows
            del sketched
            return _read_again(context, found, chunk_rows)
        found = _directions(context, some)
        begun = Directions(found, _lost(some, found))
        writer.save("directions", begun)
    # a record of the first pass is of rows along the directions before
    name = "sketch" if begun.lost < 1 else "sketch-all"
    sketched = _sketched(context, begun.sketch, None, name, plan.n_chunks)
    check_clusters(context.settings.n_clusters, sketched.n_valid)
    trim_heap(plan.limit_bytes)
    sampled = rows_between(sketched.sample.X, 0, pca_rows(sketched.n_features, plan.n_components))
    lost_now = _lost(sampled, begun.sketch)
    if lost_now <= MORE_LOST * begun.lost + LOST_ANYWAY:
        return NormalizedRows(sketched, sketched, begun.sketch)
    logger.info(
        "directions found on rows read ahead leave out %.1f %% of all rows, not %.1f %%: they are sketched again",
        100 * lost_now,
        100 * begun.lost,
    )
    better, chunk_rows = _directions(context, sampled), sketched.chunk_rows
    writer.save("directions", Directions(better, 1.0))
    del sketched, sampled
    return _read_again(context, better, chunk_rows)


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
    """Read all rows once, after they are counted if need be; sketch them if more than the sample is clustered."""
    plan, n_features = context.plan, context.reader.source.n_features
    later = plan.cluster_on == "sample" or plan.sketches_later
    sketch = None if later else oblivious_sketch(plan, context.settings, n_features)
    chunk_rows = None
    if plan.counts_first:
        with context.progress.stage("count", plan.n_chunks) as counted:
            chunk_rows = count_pass(context, counted)
    sketched = _sketched(context, sketch, chunk_rows, "sketch", plan.n_chunks)
    check_clusters(context.settings.n_clusters, sketched.n_valid)
    trim_heap(plan.limit_bytes)
    return sketched


def _sketched(
    context: FitContext, sketch: Sketch | None, chunk_rows: NDArray[np.int64] | None, name: str, n_chunks: int | None
) -> Sketched:
    """One pass that samples, and may sketch; it resumes an earlier run, unless workers hold sketched rows."""
    plan, settings, source = context.plan, context.settings, context.reader.source
    rule = SampleRule.of(plan.sample_rows, settings.seed64("sample"), source.estimated_rows, context.weights)
    coreset = None if sketch is None else plan.coreset_rule(settings.n_clusters, settings.seed64("coreset"))
    gathered = Gathered(rule, coreset)
    is_lost = sketch is not None and gathered.tree is None and context.spill is None  # with the workers
    saved = None if is_lost or not source.access.replayable else name
    with context.progress.stage(name, n_chunks) as stage:
        return sketch_pass(context, gathered, stage, sketch=sketch, chunk_rows=chunk_rows, record=saved)


def _sketch(context: FitContext, sketched: Sketched) -> Sketch:
    """The sketch that a plan names, or one found on the row sample, or on all rows in a pass of its own."""
    plan, settings, writer = context.plan, context.settings, context.writer
    if not plan.fit_passes:
        return sketch_of(context, sketched.sample)
    begun = writer.load("directions", Directions)
    if begun is not None:
        return begun.sketch
    seed = settings.seed64("sketch")
    sums = first_round(plan.sketch, plan.n_components, seed, sketched.sample.X, settings.n_clusters)
    with context.progress.stage("directions", len(sketched.chunk_rows)) as stage:
        found = context.run(FindSketch(sums), stage, sketched.chunk_rows)
    writer.save("directions", Directions(found))
    return found
