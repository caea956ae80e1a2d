"""One fit from a source to labels: read, find a start, iterate, assign, and refine while it pays."""

from __future__ import annotations

import warnings

from streamkm.cluster.profile import feature_deviations
from streamkm.core.exceptions import StreamkmWarning
from streamkm.core.matrix import rows_between
from streamkm.core.memory import human_bytes, trim_heap
from streamkm.fitting.assign import assign, distortion_of, finish_labels
from streamkm.fitting.centers import find_start, iterate
from streamkm.fitting.context import FitContext
from streamkm.fitting.reading import read, read_once
from streamkm.fitting.refine import improve, warn_of_gain
from streamkm.fitting.state import Clustering, FitState
from streamkm.passes.labels import labels_of
from streamkm.passes.sketch import Sketched

DEVIATION_ROWS = 2000  # of the sample, that standard deviations of features are found on
VIEW_ROWS = 5000  # sketched rows kept for the 2-D picture


def run_fit(context: FitContext) -> FitState:
    """Fit. What an earlier run has saved in the checkpoint is not done again."""
    found, as_read = context.writer.load("found", Clustering), None
    if found is None:
        rows = read(context)
        start = find_start(context, rows)
        found, as_read = iterate(context, rows, start), rows.as_read
        del rows, start
    if context.plan.chooses_space and found.space == "sketch":
        warnings.warn(_in_the_sketch(context, found.n_features), StreamkmWarning, stacklevel=4)
    state = FitState.begun(context, found)
    _choose_rows(context, state, as_read)
    del as_read  # the passes to come need the memory
    trim_heap(context.plan.limit_bytes)
    width = found.n_features if found.columns is None else found.columns.n_columns
    with context.of_width(width) as labelling:
        assign(labelling, state)
        while improve(labelling, state):
            assign(labelling, state)
        finish_labels(labelling, state)
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
        f"{context.settings.n_clusters:,} centers of {n_features:,} features do not fit below memory_limit="
        f"{human_bytes(context.plan.limit_bytes)}, so rows were assigned in the sketch "
        f"({context.plan.n_components:,} components). Raise memory_limit to assign in the original space, or pass "
        'SketchOptions(assign_space="sketch") if that is meant'
    )


def _choose_rows(context: FitContext, state: FitState, as_read: Sketched | None) -> None:
    """Choose the rows that are labelled: those of the source, or sketched ones that cannot be read again.

    A sample of original features that holds all rows in this process stands for them: one array gathers sums cluster
    by cluster. They are read once more if an earlier run sampled them.
    """
    plan, source = context.plan, context.reader.source
    fits = plan.n_rows is not None and plan.n_rows <= plan.sample_rows and plan.cluster_on == "sample"
    original = source.n_features is not None and plan.space_for(source.n_features) == "original"
    if as_read is not None and as_read.blocks is not None and not source.access.replayable:
        state.once = as_read
    elif fits and original and source.access.in_process and not len(context.weights):
        state.sample = (as_read or read_once(context)).sample
