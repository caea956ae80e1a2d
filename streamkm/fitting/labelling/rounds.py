"""From centers to labels of all rows: one pass, and more where they are asked for or would find better clusters."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Model
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.cluster.seeding.draws import DrawRule
from streamkm.cluster.spherical import on_sphere
from streamkm.core.exceptions import StreamkmWarning
from streamkm.core.memory import trim_heap
from streamkm.fitting.clustering import Clustering
from streamkm.fitting.context import FitContext
from streamkm.fitting.labelling.gain import ANEW, WORTH, GlobalSearch
from streamkm.fitting.labelling.inertia_estimate import InertiaEstimate, estimate_inertia
from streamkm.fitting.labelling.one_pass import label_once
from streamkm.passes.assign import Assigned
from streamkm.passes.labels import HeldLabels, n_writes, open_labels, write_labels

WORTH_OF_FEW = 0.002  # share of the objective that is worth another round, where memory left few sampled rows
ROUNDING = 1e-12  # share of an objective by which sums of the same rows may differ: a pass is worse beyond it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Labelled:
    """All rows, labelled."""

    model: Model  # its centers made the labels
    assigned: Assigned
    history: tuple[dict[str, Any], ...] = ()
    # what the sample said of the objective; None where nothing was drawn, or too few rows decide it
    promise: InertiaEstimate | None = None
    gain: float | None = None  # share of the objective that another round could gain, estimated from below
    n_rounds: int = 0  # passes beyond those that were asked for


@dataclass(frozen=True, slots=True)
class _Best:
    """The pass with the lowest objective so far."""

    centers: NDArray[np.float64]  # (k, m)
    inertia: float
    # whether a later pass was worse, so that the search has ended and these centers label all rows once more
    is_final: bool = False

    @classmethod
    def after(cls, before: _Best | None, centers: NDArray[np.float64], inertia: float) -> _Best:
        """The better one of what was best before and the last pass."""
        if before is None or inertia <= before.inertia * (1 + ROUNDING):
            return cls(centers, inertia, before is not None and before.is_final)
        logger.info("objective %.6g: worse than %.6g, whose centers are kept", inertia, before.inertia)
        return replace(before, is_final=True)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Where the next pass begins, for a checkpoint; `centers` are its own."""

    centers: NDArray[np.float64]
    best: _Best
    index: int
    history: list[dict[str, Any]]
    n_rounds: int


def assign_found(context: FitContext, found: Clustering, sample: Sample | None = None) -> Labelled:
    """Label all rows; then, as often as `refine` says, move the centers to their clusters' means and label again.

    Where it is "auto": while rows drawn in the last pass say that it pays, look for better centers and label again.
    The best pass counts: if one is worse than a pass before, the better centers label all rows once more, and no
    further round follows.

    `sample`: that holds all rows: they are labelled in place of the source's.
    """
    rows, model, plan = found.chunk_rows, found.model(context.reader.metric), context.plan
    spherical, n_clusters = context.settings.spherical, context.settings.n_clusters
    history, n_asked = list(found.history), context.settings.n_refinements
    most_rounds = plan.more_passes if context.settings.searches else 0  # beyond those asked for
    index = n_rounds = 0
    best: _Best | None = None
    begun = context.writer.load("refined", _Begun)
    if begun is not None:
        index, history, n_rounds, best = begun.index, begun.history, begun.n_rounds, begun.best
        model = replace(model, centers=begun.centers)
    gain = None
    total_weight = float(context.weights.sum()) if len(context.weights) else float(rows.sum())
    while True:
        assigned, rule, promise = _one_pass(context, found, model, index, sample, total_weight)
        if index > 0:
            history.append({"stage": "refine", "iteration": index, "inertia": assigned.totals.d2})
        best = _Best.after(best, model.centers, assigned.totals.d2)
        centers = None
        frame = found.look.frame if model.columns is None else model.columns.frame(found.look.frame)
        after = GlobalSearch(context.here, model, frame, assigned.totals, rule, assigned.drawn, spherical)
        if best.centers is not model.centers:
            centers = best.centers
            n_rounds += index >= n_asked
        elif len(model.centers) < n_clusters and len(more := after.filled(n_clusters)) > len(model.centers):
            centers = more
            n_rounds += index >= n_asked
        elif index < n_asked and not best.is_final:
            centers = assigned.totals.means(fallback=model.centers)
        elif plan.drawn_rows or most_rounds:
            most = 0 if best.is_final else most_rounds
            gain, centers = _looked_further(context, found, after, promise, n_rounds, most)
            n_rounds += centers is not None
        del after
        if centers is None:
            break
        if spherical and centers is not best.centers:
            centers = on_sphere(centers)
        index += 1
        model = replace(model, centers=centers)
        # a run that makes this pass again would write its labels over those that the next pass has saved
        context.writer.save("refined", _Begun(centers, best, index, history, n_rounds))
        del assigned  # the next pass needs the memory
        trim_heap(plan.limit_bytes)
    if promise is not None and promise.few_decide:
        logger.info("no objective is predicted: too few rows of the sample decide it")
        promise = None
    return Labelled(model, replace(assigned, drawn=None), tuple(history), promise, gain, n_rounds)


def _one_pass(
    context: FitContext, found: Clustering, model: Model, index: int, sample: Sample | None, total_weight: float
) -> tuple[Assigned, DrawRule | None, InertiaEstimate | None]:
    """Label all rows once; draw some of them by what the sample promises of the objective, where the plan says so."""
    promise = rule = None
    tabled = model.with_table()
    n_missing = context.settings.n_clusters - len(model.centers)
    n_drawn = context.plan.drawn_rows
    if n_missing > 0:  # every row that lies on no center is drawn before those that do
        rule = DrawRule.of(n_drawn or n_missing, context.settings.seed64("draws") ^ index, total_weight, 0.0)
    elif n_drawn and index >= context.settings.n_refinements:
        looked = found.look.originals()
        own = context.weights[looked.rows] if len(context.weights) else NO_WEIGHTS
        promise = estimate_inertia(context.here, looked, own, tabled, total_weight)
        del looked
        rule = DrawRule.of(n_drawn, context.settings.seed64("draws") ^ index, total_weight, promise.inertia)
    assigned = label_once(context, tabled, found.chunk_rows, index, sample, rule)
    if promise is not None:  # rows that were skipped count nothing
        promise = promise.times(float(assigned.totals.counts.sum()) / total_weight)
    return assigned, rule, promise


def write_held(context: FitContext, labelled: Labelled) -> Labelled:
    """Have labels that are where they were made written, or those of skipped rows counted; others are as they are."""
    held: Any = labelled.assigned.labels
    if not isinstance(held, HeldLabels):
        return labelled
    labels: Any
    if context.labels_to is None:
        labels = held.count() if context.reader.invalid == "skip" else held
    else:
        with context.progress.stage("labels", n_writes(held)) as stage:
            write_labels(context.executor, held, context.labels_to, stage)
        labels = open_labels(context.labels_to)
    return replace(labelled, assigned=replace(labelled.assigned, labels=labels))


def warn_of_gain(gain: float | None, refine: int | str) -> None:
    """Warn of clusters that could be better, where that was seen and nothing may be done about it."""
    if gain is None or gain <= WORTH:
        return
    remedy = "" if refine == "auto" else 'refine="auto" looks for them; '
    warnings.warn(
        f"the objective could be at least {gain:.1%} lower, by rows drawn in the last pass: the clusters were looked "
        f'for on rows that do not show it; {remedy}coreset="sensitivity" or more memory may help',
        StreamkmWarning,
        stacklevel=5,
    )


def _looked_further(
    context: FitContext,
    found: Clustering,
    after: GlobalSearch,
    promise: InertiaEstimate | None,
    n_rounds: int,
    most_rounds: int,
) -> tuple[float, NDArray[np.float64] | None]:
    """What could be gained, and centers for another round where it is worth one.

    `promise`: of the sample, for the pass that was made. `n_rounds`, `most_rounds`: that were made before, and that may
    be made in all.
    """
    plan = context.plan
    trim_heap(plan.limit_bytes)
    outlook = after.outlook(promise, n_rows := int(found.chunk_rows.sum()))
    gain, few = outlook.gain, plan.few_sampled
    trim_heap(plan.limit_bytes)
    logger.info(
        "objective %.6g; moving one center elsewhere would lower it by at least %.2f %%", after.totals.d2, 100 * gain
    )
    # one split and merge shows nothing where a small sample missed several groups: starts among drawn rows may
    blind = few and plan.keeps_sample and promise is not None and not promise.is_kept(after.totals.d2)
    if n_rounds >= most_rounds or (gain <= (worth := WORTH_OF_FEW if few else WORTH) and not blind):
        return gain, None
    with context.progress.stage(f"search-{n_rounds + 1}"):
        # a search ends at means of sampled rows: those of all rows are better where little but moving gains
        if not plan.keeps_sample or (worth < gain <= ANEW and outlook.by_swaps < outlook.by_moving):
            return gain, after.swapped(outlook, carried_on=n_rounds + 1 < most_rounds)
        look, whole = found.look, found.look.whole
        sample = look.originals() if whole is None else replace(whole, X=look.frame.original_rows(whole.X))
        own = context.weights[sample.rows] if len(context.weights) else np.ones(len(sample.rows))
        rng = np.random.default_rng([context.settings.seed64("draws"), len(outlook.swaps)])
        centers, gained = after.next_centers(sample, own, outlook, rng, n_rows, anew=blind or gain > ANEW)
        return gain, centers if gained > worth else None
