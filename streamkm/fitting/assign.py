"""The pass that labels all rows, and the estimate of their objective by the sample."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.in_memory import label_sums, nearest_in
from streamkm.cluster.model import Model
from streamkm.cluster.profile import Profile
from streamkm.cluster.rows import NO_WEIGHTS, Totals, row_d2
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.seeding.draws import DrawRule
from streamkm.core.matrix import rows_between
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.fitting.context import FitContext
from streamkm.fitting.state import FitState, InertiaEstimate, SampleView
from streamkm.kernels.cluster.totals import weighted_sum
from streamkm.passes.assign import Assign, AssignResult, assign_blocks, assign_pass
from streamkm.passes.labels import GatheredLabels, HeldLabels, n_writes, open_labels, write_labels

FEW_JUDGED_ROWS, JUDGED_ROWS = 2500, 10_000  # of the sample, that the objective is estimated by; more if unsure
PRECISE = 0.002  # largest error of an estimate, as a share of it, for which no more rows are read
COCHRAN = 25.0  # squared skewnesses that the number of rows must exceed for intervals by the standard error to hold
ROUNDING = 1e-12  # share of an objective by which sums of the same rows may differ: a pass is worse beyond it

logger = logging.getLogger(__name__)


def assign(context: FitContext, state: FitState) -> None:
    """Label all rows by the centers of the state; keep these centers or the best ones before.

    Rows are drawn by the sample's estimate of the objective, if the plan says so.
    """
    found, settings, n_drawn = state.found, context.settings, context.plan.drawn_rows
    weights, seed = context.weights, settings.seed64("draws") ^ state.index
    total_weight = float(weights.sum()) if len(weights) else float(found.chunk_rows.sum())
    prices = None if state.evened is None else state.evened.table_prices
    state.model = replace(state.model, centers=state.centers, prices=prices)
    model = state.model.with_table()
    state.rule = estimate = None
    n_missing = settings.n_clusters - len(state.centers)
    if n_missing > 0:  # every row that lies on no center is drawn before those that do
        state.rule = DrawRule.of(n_drawn or n_missing, seed, total_weight, 0.0)
    elif n_drawn and state.index >= settings.n_refinements and prices is None:
        looked = found.sample_view.originals()
        own = weights[looked.rows] if len(weights) else NO_WEIGHTS
        estimate = estimate_inertia(context.here, looked, own, model, total_weight)
        del looked
        state.rule = DrawRule.of(n_drawn, seed, total_weight, estimate.inertia)
    state.assigned = _assigned(context, state, model)
    totals = state.assigned.totals
    if estimate is not None:  # rows that were skipped count nothing
        estimate = estimate.times(float(totals.counts.sum()) / total_weight)
    state.inertia_estimate = estimate
    if state.index > 0:
        state.history.append({"stage": "refine", "iteration": state.index, "inertia": totals.d2})
    if state.best is None or prices is not None or totals.d2 <= state.best_inertia * (1 + ROUNDING):
        state.best, state.best_inertia = state.centers, totals.d2
    else:
        logger.info("objective %.6g: worse than %.6g, whose centers are kept", totals.d2, state.best_inertia)
        state.is_final = True


def _assigned(context: FitContext, state: FitState, model: Model) -> AssignResult:
    """Run one pass; labels that will be written or stay on workers are not gathered."""
    index, chunk_rows, sample, once = state.index, state.found.chunk_rows, state.sample, state.once
    edge_rule = None if state.evened is None else state.evened.rule
    pass_ = Assign(model, model.table(), state.rule, edge_rule=edge_rule)
    if once is not None and once.blocks is not None:
        with context.progress.stage("label", len(once.blocks.handles)) as stage:
            return assign_blocks(once, once.blocks, model, stage)
    with context.progress.stage("assign" if index == 0 else f"refine-{index}", len(chunk_rows)) as stage:
        held = (context.labels_stay or context.labels_to is not None) and edge_rule is None
        sink = HeldLabels(chunk_rows, context.executor) if held else GatheredLabels(chunk_rows, context.writer)
        if held or sample is None:
            record = None if held else f"assign-{index}"
            assigned = assign_pass(context, pass_, chunk_rows, stage, sink=sink, record=record)
        if sample is not None:  # the same sums, bit by bit, whether labels are gathered or written
            whole = assign_sample(context.here, sample, pass_, int(chunk_rows.sum()), stage)
            assigned = replace(whole, labels=sink.labels) if held else whole
    return assigned


def assign_sample(executor: Executor, sample: Sample, assign: Assign, n_rows: int, stage: Stage) -> AssignResult:
    """Assign a row sample that holds all valid rows, unweighted, as `assign_pass` does, by threads of this process."""
    table, X, rule, edge_rule = assign.table, assign.model.place(sample.X), assign.rule, assign.edge_rule
    d2, gaps = np.empty(X.shape[0]), np.empty(X.shape[0])
    found = nearest_in(executor, X, table, stage.name, gaps)
    totals = label_sums(executor, X, NO_WEIGHTS, found, table.n_clusters, stage.name, (table, d2))
    drawn = None if rule is None else rule.draw(X, sample.rows, NO_WEIGHTS, d2)
    labels = np.full(n_rows, -1, np.int32)
    labels[sample.rows] = found
    stage.rows = n_rows
    profile = Profile.empty(table.n_clusters)
    profile.add(found, d2, gaps, kept=sample.rows, X=sample.X)
    edges = None if edge_rule is None else edge_rule.edges(X, table, sample.rows, NO_WEIGHTS, (found, gaps))
    return AssignResult(totals, drawn, profile, edges=edges, labels=labels)


def finish_labels(context: FitContext, state: FitState) -> None:
    """Write labels that workers hold, or count their skipped rows; drop rows that were drawn."""
    labels: Any = state.assigned.labels
    if state.evened is not None and (moves := state.evened.rule.moves) is not None:
        labels[moves.moving] = moves.labels[moves.moving]
        if context.labels_to is not None:
            labels = HeldLabels(np.array([len(labels)]), context.here, [labels])
    if isinstance(labels, HeldLabels) and context.labels_to is not None:
        with context.progress.stage("labels", n_writes(labels)) as stage:
            write_labels(context.executor, labels, context.labels_to, stage)
        labels = open_labels(context.labels_to)
    elif isinstance(labels, HeldLabels) and context.reader.invalid == "skip":
        labels = labels.count()
    state.assigned = replace(state.assigned, labels=labels, drawn=None, edges=None)


def estimate_inertia(
    here: Executor, sample: Sample, own_weights: NDArray[np.float64], model: Model, total_weight: float
) -> InertiaEstimate:
    """Estimate the objective of all rows by a few original rows of the sample, or by more if these leave it unsure."""
    table, d2, n_sampled = model.table(), np.empty(0), len(sample.rows)
    whole = sample.complete and n_sampled <= JUDGED_ROWS
    for n_rows in (JUDGED_ROWS,) if whole else (FEW_JUDGED_ROWS, JUDGED_ROWS):
        X = model.place(rows_between(sample.X, len(d2), n_rows))
        d2 = np.concatenate([d2, row_d2(X, nearest_in(here, X, table, "estimate"), table)])
        estimate = _estimated(sample, own_weights, d2, total_weight)
        if estimate.error <= PRECISE * estimate.inertia or len(d2) == n_sampled:
            break
    return estimate


def _estimated(
    sample: Sample, own_weights: NDArray[np.float64], d2: NDArray[np.float64], total_weight: float
) -> InertiaEstimate:
    """The estimate by the squared distances of the first rows."""
    weights, chances = sample.first(len(d2), own_weights, total_weight)
    mean = float(weighted_sum(weights, d2)) / float(weights.sum())
    if sample.complete and len(d2) == len(sample.rows):
        return InertiaEstimate(total_weight * mean, 0.0)
    # the share of a row that was certain to be drawn is known; others may have been missed
    residuals = weights * (d2 - mean)
    variance = float(weighted_sum(1 - chances, np.square(residuals)))
    third = float(weighted_sum(1 - chances, residuals**3))
    error = total_weight * float(np.sqrt(variance)) / float(weights.sum())
    return InertiaEstimate(total_weight * mean, error, COCHRAN * third * third > variance**3)


def distortion_of(
    here: Executor, sample_view: SampleView, model: Model, totals: Totals, labels: NDArray[np.int32]
) -> float | None:
    """``(J' + c) / J`` of the final clusters: J' their objective in the sketch, J that in the original space.

    c is the loss that all clusterings share: the squared lengths cut off by a projection on directions; 0 for other
    sketches. With it the ratio is 1 plus the part cut off the clusters' means over J, which needs no rows; else both
    objectives are the row sample's.
    """
    if model.space == "sketch" or model.sketch.inflates_lengths:
        return None  # a sample of a row's entries keeps the order of distances, not lengths
    directions = model.sketch.basis
    if directions is not None:
        filled = totals.counts > 0
        counts, centers = totals.counts[filled], model.centers[filled]
        means = totals.sums[filled] / counts[:, None]
        original = totals.d2 - float(counts @ np.einsum("ij,ij->i", means - centers, means - centers))
        if original <= 0:
            return 1.0
        between = means - counts @ means / counts.sum() if model.sketch.center is not None else means
        lost = between - (between @ directions) @ directions.T
        return 1 + float(counts @ np.einsum("ij,ij->i", lost, lost)) / original
    n_clusters, sample = len(model.centers), replace(sample_view.sample, X=model.place(sample_view.sample.X))
    within = [
        # squared distances to the means of their clusters
        block.total_d2norm() - label_sums(here, block.X, block.weights, labels[: block.n_rows], n_clusters).explained()
        for block in (sample.original_block(), sample_view.sketched)
    ]
    return within[1] / within[0] if within[0] > 0 else 1.0
