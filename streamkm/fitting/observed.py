"""A fit of rows with missing values, whose objective counts the values that are there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Model
from streamkm.cluster.observed import ObservedCenters, ObservedTotals, filled_with_means, observed_lloyd
from streamkm.cluster.profile import feature_deviations
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.totals import Totals
from streamkm.fitting.centers import find_centers
from streamkm.fitting.context import FitContext
from streamkm.fitting.iterations import noted
from streamkm.fitting.kmeans import DEVIATION_ROWS, VIEW_ROWS, Fit
from streamkm.fitting.labelling.gain import WORTH
from streamkm.fitting.labelling.rounds import Labelled, write_held
from streamkm.fitting.normalize import normalize_rows
from streamkm.fitting.reading import read_once
from streamkm.passes.assign import Assigned
from streamkm.passes.assign_observed import AssignObserved
from streamkm.passes.label_sinks import GatheredLabels, HeldLabels
from streamkm.passes.reader import changed_source


@dataclass(frozen=True, slots=True)
class _Begun:
    """Where the next pass begins, for a checkpoint."""

    centers: NDArray[np.float64]
    index: int
    history: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Passed:
    """The last pass: its model, labels and sums, its number, and the steps so far."""

    model: Model
    sink: GatheredLabels | HeldLabels
    totals: ObservedTotals
    index: int
    history: list[dict[str, Any]]


def run_observed_fit(context: FitContext) -> Fit:
    """Find centers on a sample, filled first, then by the values that are there; label all rows as often as it pays."""
    sketched = read_once(context)
    sample, settings = sketched.sample, context.settings
    filled = replace(sample, X=filled_with_means(sample.X))
    found = find_centers(context, normalize_rows(context, replace(sketched, sample=filled)))
    with context.progress.stage("observed", settings.max_iter, "steps"):
        own = sample.weights if len(context.weights) else NO_WEIGHTS
        lloyd = observed_lloyd(
            context.here, sample.X, own, found.result.centers, max_iter=settings.max_iter, tol=settings.tol
        )
    model = replace(found.model("euclidean"), centers=lloyd.centers, observed=True)
    history = [*found.history, *noted("observed", lloyd)]
    view, deviations = _view(sample, filled), feature_deviations(filled.X[:DEVIATION_ROWS])
    del sample, filled, sketched
    passed = _assign(context, model, found.chunk_rows, history)
    model, sink, totals = passed.model, passed.sink, passed.totals
    means = totals.means(model.centers)
    assigned = Assigned(sink.labels, Totals(means * totals.counts[:, None], totals.counts, totals.d2))
    labelled = write_held(context, Labelled(model, assigned, passed.index, tuple(passed.history)))
    return Fit(
        model=model,
        labels=labelled.assigned.labels,
        chunk_rows=found.chunk_rows,
        totals=assigned.totals,
        distortion=None,
        lloyd=lloyd,
        history=labelled.history,
        view=view[0],
        view_labels=ObservedCenters.of(model.centers).labels(view[1]),
        n_rounds=passed.index - settings.n_refinements,
        deviations=deviations,
        observed=totals,
    )


def _view(sample: Sample, filled: Sample) -> tuple[Any, Any]:
    """The first sampled rows, filled and as they are."""
    return filled.X[:VIEW_ROWS].copy(), sample.X[:VIEW_ROWS].copy()


def _assign(context: FitContext, model: Model, chunk_rows: NDArray[np.int64], history: list[dict[str, Any]]) -> _Passed:
    """Label all rows; move the centers to the means and label again, as often as `refine` says or as it pays."""
    index, begun = 0, context.writer.load("refined", _Begun)
    if begun is not None:
        model, index, history = replace(model, centers=begun.centers), begun.index, begun.history
    searches = context.settings.refine == "auto"
    while True:
        sink = context.label_sink(chunk_rows)
        record = None if sink.held else f"assign-{index}"
        with context.progress.stage("assign" if index == 0 else f"refine-{index}", len(chunk_rows)) as stage:
            pass_ = AssignObserved(ObservedCenters.of(model.centers))
            totals = context.run(pass_, stage, chunk_rows, sink=sink, record=record)
        if sink.n_taken != len(chunk_rows):
            raise changed_source(context.reader)
        if index:
            history = [*history, {"stage": "refine", "iteration": index, "inertia": totals.d2}]
        worth = index < context.plan.reading.more_passes and totals.gain(model.centers) > WORTH * totals.d2
        if not (worth if searches else index < context.settings.n_refinements):
            return _Passed(model, sink, totals, index, history)
        model, index = replace(model, centers=totals.means(model.centers)), index + 1
        context.writer.save("refined", _Begun(model.centers, index, history), always=True)
