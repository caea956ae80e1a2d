"""One fit from a source to labels, as the picture shows it: sketch, start, Lloyd, model, assign, refine.

A sketch that depends on the data is found on the row sample, or on all rows in a pass between the first and the last.

Takes validated values, returns a `Fit`. What was done is kept in a checkpoint, if there is one, and not done again by
the run that continues. Knows nothing of estimators.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.model import Model
from streamkm.cluster.profile import Profile, feature_deviations
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.totals import Totals
from streamkm.core.exceptions import StreamkmWarning
from streamkm.core.matrix import rows_between
from streamkm.core.memory import human_bytes, trim_heap
from streamkm.fitting.centers import find_centers
from streamkm.fitting.clustering import Clustering, SampleView
from streamkm.fitting.context import FitContext
from streamkm.fitting.labelling.inertia_estimate import InertiaEstimate, distortion_of
from streamkm.fitting.labelling.rounds import Labelled, assign_found, warn_of_gain, write_held
from streamkm.fitting.reading import read_once, read_rows
from streamkm.passes.assign import assign_blocks
from streamkm.passes.labels import labels_of
from streamkm.passes.sketch import Sketched

DEVIATION_ROWS = 2000  # of the sample, that standard deviations of features are found on
VIEW_ROWS = 5000  # sketched rows kept for the 2-D picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The result of a fit."""

    model: Model  # its centers made the labels
    labels: Any  # (n,): an array, the Zarr array that they were written to, or `HeldLabels` that stay on workers
    chunk_rows: NDArray[np.int64]  # (chunks,): rows of each chunk
    totals: Totals  # exact sums, counts and objective of the final clusters
    distortion: float | None  # see `fitting.labelling.inertia_estimate`
    lloyd: LloydResult  # of the stage that ended the iterations
    # ``{"stage", "iteration", "inertia"}``. Stages are "epochs", "lloyd", "polish", "sphere" and "refine"; each has
    # rows and a space of its own
    history: tuple[dict[str, Any], ...]
    view: Any  # ndarray or csr_array (at most 5000, m), sketched rows of the sample
    view_labels: NDArray[np.int32]  # int32, their clusters
    promise: InertiaEstimate | None = None
    gain: float | None = None
    n_rounds: int = 0  # as of `rounds.Labelled`
    # (d,): standard deviations of the features over some sampled rows; None where rows were assigned in the sketch
    deviations: NDArray[np.float64] | None = None
    profile: Profile | None = None  # how the rows lie about the centers; None for rows that can be walked once only


def run_fit(context: FitContext) -> Fit:
    """Fit."""
    plan, settings, reader = context.plan, context.settings, context.reader
    sketched = None
    found = context.writer.load("found", Clustering)
    if found is None:
        sketched, framed = read_rows(context)
        found = find_centers(context, framed)
        del framed
        context.writer.save("found", found)
    if plan.chooses_space and found.space == "sketch":
        warnings.warn(_in_the_sketch(context, found.n_features), StreamkmWarning, stacklevel=4)
    if sketched is not None and sketched.blocks is not None and not reader.source.replayable:
        model = found.model(reader.metric)
        with context.progress.stage("label", len(sketched.blocks.handles)) as stage:
            assigned = assign_blocks(sketched, sketched.blocks, model, stage)
        labelled = Labelled(model, assigned, history=found.history)
    else:
        sample = _sample_of_all(context, sketched)
        del sketched  # the passes to come need the memory
        trim_heap(plan.limit_bytes)
        width = found.n_features if found.columns is None else found.columns.n_columns
        with context.of_width(width) as labelling:
            labelled = write_held(labelling, assign_found(labelling, found, sample))
        if settings.searches:
            warn_of_gain(labelled.gain, settings.refine)
    model, assigned = labelled.model, labelled.assigned
    labels = labels_of(found.look.originals(), assigned.labels, model)
    return Fit(
        model=model.indexed() if isinstance(found.look.sample.X, np.ndarray) else model,
        labels=assigned.labels,
        chunk_rows=found.chunk_rows,
        totals=assigned.totals,
        distortion=distortion_of(context.here, found.look, model, assigned.totals, labels),
        lloyd=found.result,
        history=labelled.history,
        view=found.look.sketched.X[:VIEW_ROWS],
        view_labels=labels[:VIEW_ROWS],
        promise=labelled.promise,
        gain=labelled.gain,
        n_rounds=labelled.n_rounds,
        deviations=_deviations(found.look) if model.space == "original" else None,
        profile=assigned.profile,
    )


def _deviations(look: SampleView) -> NDArray[np.float64]:
    """Standard deviations of the features, by a few sampled rows."""
    return feature_deviations(look.frame.original_rows(rows_between(look.sample.X, 0, DEVIATION_ROWS)))


def _in_the_sketch(context: FitContext, n_features: int) -> str:
    """What to say where labels are worse than they would be with more memory."""
    return (
        f"labels, objective and centers are those of the sketch, of {context.plan.n_components:,} components: "
        f"{context.settings.n_clusters:,} centers of {n_features:,} features have no room below the limit of "
        f"{human_bytes(context.plan.limit_bytes)}; raise memory_limit for labels in the original space, or pass "
        f'SketchOptions(assign_space="sketch") if these are meant'
    )


def _sample_of_all(context: FitContext, sketched: Sketched | None) -> Sample | None:
    """The row sample where it has all rows, in original features, as the source in this process would give them again.

    Sums of clusters are then gathered cluster by cluster in one array, not chunk by chunk in many. Rows are read once
    more where an earlier run sampled them.
    """
    plan, source = context.plan, context.reader.source
    fits = plan.n_rows is not None and plan.n_rows <= plan.sample_rows and plan.cluster_on == "sample"
    original = source.n_features is not None and plan.space_for(source.n_features) == "original"
    if not (fits and original and source.in_process) or len(context.weights):
        return None
    return (sketched or read_once(context)).sample
