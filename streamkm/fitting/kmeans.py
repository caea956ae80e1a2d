"""One fit from a source to labels: read, find a start, iterate, assign, and refine while it pays."""

from __future__ import annotations

import warnings
from dataclasses import replace

from streamkm.cluster.profile import feature_deviations
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.exceptions import StreamkmWarning
from streamkm.core.matrix import rows_between
from streamkm.core.memory import human_bytes, trim_heap
from streamkm.fitting.assign import assign, distortion_of, written_labels
from streamkm.fitting.centers import find_clusters
from streamkm.fitting.context import FitContext
from streamkm.fitting.reading import read_once, read_rows
from streamkm.fitting.refine import improve, warn_of_gain
from streamkm.fitting.state import Clustering, FitState
from streamkm.passes.assign import assign_blocks
from streamkm.passes.labels import labels_of
from streamkm.passes.sketch import Sketched

DEVIATION_ROWS = 2000  # of the sample, that standard deviations of features are found on
VIEW_ROWS = 5000  # sketched rows kept for the 2-D picture


def run_fit(context: FitContext) -> FitState:
    """Fit."""
    plan, source = context.plan, context.reader.source
    sketched = None
    found = context.writer.load("found", Clustering)
    if found is None:
        sketched, rows = read_rows(context)
        found = find_clusters(context, rows)
        del rows
        context.writer.save("found", found)
    if plan.chooses_space and found.space == "sketch":
        warnings.warn(_in_the_sketch(context, found.n_features), StreamkmWarning, stacklevel=4)
    state = FitState.begun(context, found)
    if sketched is not None and sketched.blocks is not None and not source.replayable:
        with context.progress.stage("label", len(sketched.blocks.handles)) as stage:
            state.assigned = assign_blocks(sketched, sketched.blocks, state.model, stage)
    else:
        sample = _sample_of_all(context, sketched)
        del sketched  # the passes to come need the memory
        trim_heap(plan.limit_bytes)
        width = found.n_features if found.columns is None else found.columns.n_columns
        with context.of_width(width) as labelling:
            assign(labelling, state, sample)
            while improve(labelling, state):
                assign(labelling, state, sample)
            labels = written_labels(labelling, state.assigned.labels)
        state.assigned = replace(state.assigned, labels=labels, drawn=None)
        warn_of_gain(context, state.gain)
    _describe(context, state)
    return state


def _describe(context: FitContext, state: FitState) -> None:
    """Add the sampled rows' statistics of the clusters to the state of the last pass."""
    view, model, assigned = state.found.sample_view, state.model, state.assigned
    labels = labels_of(view.originals(), assigned.labels, model)
    state.view_labels = labels[:VIEW_ROWS]
    state.distortion = distortion_of(context.here, view, model, assigned.totals, labels)
    if model.space == "original":
        some = rows_between(view.sample.X, 0, DEVIATION_ROWS)
        state.deviations = feature_deviations(view.normalization.original_rows(some))


def _in_the_sketch(context: FitContext, n_features: int) -> str:
    """The warning that labels would be better with more memory."""
    return (
        f"labels, objective and centers are those of the sketch, of {context.plan.n_components:,} components: "
        f"{context.settings.n_clusters:,} centers of {n_features:,} features have no room below the limit of "
        f"{human_bytes(context.plan.limit_bytes)}; raise memory_limit for labels in the original space, or pass "
        f'SketchOptions(assign_space="sketch") if these are meant'
    )


def _sample_of_all(context: FitContext, sketched: Sketched | None) -> Sample | None:
    """The row sample in original features, if it holds all rows of a source in this process; else None.

    One array gathers sums cluster by cluster. Rows are read once more if an earlier run sampled them.
    """
    plan, source = context.plan, context.reader.source
    fits = plan.n_rows is not None and plan.n_rows <= plan.sample_rows and plan.cluster_on == "sample"
    original = source.n_features is not None and plan.space_for(source.n_features) == "original"
    if not (fits and original and source.in_process) or len(context.weights):
        return None
    return (sketched or read_once(context)).sample
