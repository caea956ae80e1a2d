"""Where clusters are looked for: the frame that rows are brought into, and their sketch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.held_rows import HeldBlock, HeldRows
from streamkm.cluster.normalization import WHOLE, Normalization
from streamkm.cluster.rows import Block
from streamkm.cluster.sampling.row_sample import Sample, sketched_d2norms
from streamkm.core.ordered_sum import added_in_order
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map, held_outputs
from streamkm.fitting.context import FitContext
from streamkm.fitting.settings import Settings
from streamkm.passes.sketch import Sketched
from streamkm.planning.memory import pca_rows
from streamkm.planning.plan import Plan
from streamkm.sketches import Sketch
from streamkm.sketches.registry import DATA_DEPENDENT, find_sketch, make_sketch, sketch_class


@dataclass(frozen=True, slots=True)
class NormalizedRows:
    """What clusters are looked for in.

    Attributes
    ----------
    sketched : Sketched
        Its sample is in the frame.
    sketch : Sketch
        Of rows in the frame.
    frame : Normalization
    """

    sketched: Sketched
    sketch: Sketch
    frame: Normalization


def normalize_rows(context: FitContext, sketched: Sketched) -> NormalizedRows:
    """Bring what was read into a frame, the sample and what there is of sketched rows, and name or find the sketch."""
    plan, settings = context.plan, context.settings
    asked = sketch_class(plan.sketch) if settings.sketch is None else settings.sketch
    frame = WHOLE
    if asked.scales_with_rows:
        frame = Normalization.of(sketched.sample.X, moves=asked.moves_with_rows)
    if frame.is_whole:
        return NormalizedRows(sketched, sketch_of(plan, settings, sketched.sample), frame)
    sample = replace(sketched.sample, X=frame.rows(sketched.sample.X))
    sketch = sketch_of(plan, settings, sample)
    if plan.cluster_on == "sample":
        return NormalizedRows(replace(sketched, sample=sample), sketch, frame)
    offset = np.asarray(sketch.apply(frame.origin[None]), np.float64)[0] if len(frame.origin) else frame.origin
    inner, blocks, coreset = Normalization(offset, frame.scale), sketched.blocks, sketched.coreset
    if blocks is not None:
        blocks = framed_blocks(context, blocks, inner)
    if coreset is not None:
        coreset = replace(coreset, X=inner.rows(coreset.X))
    return NormalizedRows(replace(sketched, sample=sample, blocks=blocks, coreset=coreset), sketch, frame)


@dataclass(frozen=True, slots=True)
class NormalizeBlocks(Map[tuple[Block, tuple[float, float]]]):
    """Held blocks in a frame, which stay where they are, and the total and largest squared norm of each."""

    frame: Normalization

    def output(self, rows: HeldBlock) -> tuple[Block, tuple[float, float]]:
        """Bring one block into the frame."""
        X = self.frame.rows(rows.block.X)
        framed = Block(X, sketched_d2norms(X), rows.block.weights)
        return framed, (framed.total_d2norm(), framed.largest_d2norm())


def framed_blocks(context: FitContext, blocks: Blocks, frame: Normalization) -> Blocks:
    """Bring sketched rows into a frame."""
    handles, norms, workers, spill = [], [], context.executor, context.spill
    for handle, found in held_outputs(NormalizeBlocks(frame), HeldRows(blocks.handles), workers, Stage("frame")):
        handles.append(spill.keep(handle) if spill and isinstance(handle, Block) else handle)
        norms.append(found)
    totals, largest = zip(*norms, strict=True)
    return replace(blocks, handles=tuple(handles), total_d2norm=added_in_order(totals), largest_d2norm=max(largest))


def oblivious_sketch(plan: Plan, settings: Settings, n_features: int | None) -> Sketch | None:
    """The sketch that was given or that a plan names; None for one that is found on rows."""
    if settings.sketch is not None:
        return settings.sketch.made(settings.seed64("sketch"), n_features)
    if plan.sketch in DATA_DEPENDENT:
        return None
    return make_sketch(
        plan.sketch, plan.n_components, settings.seed64("sketch"), n_features, plan.sketching.nnz_per_feature
    )


def sketch_of(plan: Plan, settings: Settings, sample: Sample) -> Sketch:
    """The sketch that was given, that a plan names, or that is found on the row sample."""
    sketch = oblivious_sketch(plan, settings, sample.X.shape[1])
    if sketch is not None:
        return sketch
    X = sample.X
    rows = X[: pca_rows(X.shape[1], plan.n_components)] if sketch_class(plan.sketch).found_on_few else X
    return find_sketch(plan.sketch, plan.n_components, settings.seed64("sketch"), rows, settings.n_clusters)
