"""From centers to labels of all rows: one pass, and more where they are asked for or would find better clusters."""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.draws import DrawRule
from streamkm.cluster.model import Model
from streamkm.cluster.row_sample import Sample
from streamkm.compute import Executor
from streamkm.core.memory import give_back
from streamkm.core.progress import Progress, Stage
from streamkm.fitting.centers import Found, Settings, assign_sample
from streamkm.fitting.certificate import WORTH, AfterPass, Promise, promise_of
from streamkm.passes.assign import Assigned, assign_pass
from streamkm.passes.labels import HeldLabels, assign_and_hold, n_writes, open_labels, write_labels
from streamkm.passes.reader import Walk
from streamkm.passes.resume import CheckpointWriter, KeptLabels, Record
from streamkm.planning.plan import Plan

WORTH_OF_FEW = 0.002  # share of the objective that is worth another round, where memory left few sampled rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Labelling:
    """What labels all rows.

    Attributes
    ----------
    workers : Executor
    here : Executor
        Of this process.
    walk : Walk
    weights : float64 (n,) or (0,)
    sample : Sample, optional
        That holds all rows: they are labelled in place of the source's.
    """

    workers: Executor
    here: Executor
    walk: Walk
    weights: NDArray[np.float64]
    sample: Sample | None = None


@dataclass(frozen=True, slots=True)
class Further:
    """How to look further after a pass.

    Attributes
    ----------
    settings : Settings
    n_drawn : int
        Rows that each pass draws; 0: none, and nothing is looked for.
    most_rounds : int
        Of looking further.
    worth : float
        Share of the objective that is worth another round.
    searches : bool
        Whether rounds begin with a search on the row sample, which is kept.
    limit_bytes : int or None
        Of memory, which what one step left is given back for.
    """

    settings: Settings
    n_drawn: int = 0
    most_rounds: int = 0
    worth: float = WORTH
    searches: bool = False
    limit_bytes: int | None = None

    @classmethod
    def of(cls, settings: Settings, plan: Plan) -> Further:
        """As a plan says; no rounds where the start was given or drawn at random."""
        most_rounds = plan.more_passes if settings.searches else 0
        worth = WORTH_OF_FEW if plan.few_sampled else WORTH
        return cls(settings, plan.drawn_rows, most_rounds, worth, plan.keeps_sample, plan.limit_bytes)

    def give_back(self) -> None:
        """Give freed memory back to the system where there is a limit to keep."""
        if self.limit_bytes is not None:
            give_back(self.limit_bytes)

    @property
    def n_passes(self) -> int:
        """Passes after the first, whatever is found."""
        return self.settings.refine if isinstance(self.settings.refine, int) else 0


@dataclass(frozen=True, slots=True)
class Labelled:
    """All rows, labelled.

    Attributes
    ----------
    model : Model
        Its centers made the labels.
    assigned : Assigned
    history : tuple of dict
    promise : Promise or None
        What the sample said of the objective; None where nothing was drawn.
    gain : float or None
        Share of the objective that another round could gain, estimated from below.
    n_rounds : int
        Passes beyond those that were asked for.
    """

    model: Model
    assigned: Assigned
    history: tuple[dict[str, Any], ...]
    promise: Promise | None = None
    gain: float | None = None
    n_rounds: int = 0


def assign_found(
    by: Labelling, found: Found, further: Further, writer: CheckpointWriter, progress: Progress
) -> Labelled:
    """Label all rows; then, as often as `refine` says, move the centers to their clusters' means and label again.

    Where it is "auto": while rows drawn in the last pass say that it pays, look for better centers and label again.
    """
    rows, model = found.chunk_rows, found.model(by.walk.metric)
    history = list(found.history)
    index = n_rounds = 0
    record = writer.load("refined")
    if record is not None:
        index, history, n_rounds = record[1]["index"], record[1]["history"], record[1]["n_rounds"]
        model = replace(model, centers=record[0]["centers"])
    gain = None
    total_weight = float(by.weights.sum()) if len(by.weights) else float(rows.sum())
    while True:
        promise = rule = None
        if further.n_drawn and index >= further.n_passes:
            promise = promise_of(by.here, found.look.originals(), model, total_weight)
            seed = further.settings.word("draws") ^ index
            rule = DrawRule.of(further.n_drawn, seed, total_weight, promise.inertia)
        with progress.stage("assign" if index == 0 else f"refine-{index}", len(rows)) as stage:
            assigned, held = _pass(by, model, (rows, index), rule, (writer, stage))
        if promise is not None:  # rows that were skipped count nothing
            promise = promise.times(float(assigned.totals.counts.sum()) / total_weight)
        if index > 0:
            history.append({"stage": "refine", "iteration": index, "inertia": assigned.totals.d2})
        centers = None
        if index < further.n_passes:
            centers = assigned.totals.means(fallback=model.centers)
        elif further.n_drawn or further.most_rounds:
            after = AfterPass(by.here, model, found.look.frame, assigned.totals, rule, assigned.drawn)
            searching = progress.stage(f"search-{n_rounds + 1}")
            gain, centers = _looked_further(by, found, further, after, (promise, n_rounds, searching))
            del after
            n_rounds += centers is not None
        if centers is None:
            break
        index += 1
        model = replace(model, centers=centers)
        meta = {"index": index, "history": list(history), "n_rounds": n_rounds}
        writer.save("refined", partial(_refined, centers, meta))
        del assigned, held  # the next pass needs the memory
        further.give_back()
    if held is not None and writer.labels_to is not None:
        with progress.stage("labels", n_writes(held)) as stage:
            write_labels(by.workers, held, writer.labels_to, stage)
        assigned = replace(assigned, labels=open_labels(writer.labels_to))
    return Labelled(model, replace(assigned, drawn=None), tuple(history), promise, gain, n_rounds)


def warn_of_gain(gain: float | None, refine: int | str) -> None:
    """Warn of clusters that could be better, where that was seen and nothing may be done about it."""
    if gain is None or gain <= WORTH:
        return
    remedy = "" if refine == "auto" else 'refine="auto" looks for them; '
    warnings.warn(
        f"the objective could be at least {gain:.1%} lower, by rows drawn in the last pass: the clusters were looked "
        f'for on rows that do not show it; {remedy}coreset="sensitivity" or more memory may help',
        UserWarning,
        stacklevel=5,
    )


def _pass(
    by: Labelling,
    model: Model,
    which: tuple[NDArray[np.int64], int],
    rule: DrawRule | None,
    told: tuple[CheckpointWriter, Stage],
) -> tuple[Assigned, HeldLabels | None]:
    """Label all rows once, wherever labels are to be.

    Parameters
    ----------
    which : (int64 (chunks,), int)
        Rows of each chunk, and the number of the pass.
    """
    (rows, index), (writer, stage) = which, told
    held, given = None, (by.workers, by.walk, model, (by.weights, rows), stage)
    if writer.labels_to is not None:
        held, assigned = assign_and_hold(*given, rule)
    elif by.sample is None:
        assigned = assign_pass(*given, KeptLabels(writer, f"assign-{index}", int(rows.sum())), rule)
    if by.sample is not None:  # the same sums whoever writes the labels
        assigned = assign_sample(by.here, by.sample, model, int(rows.sum()), stage, rule)
    return assigned, held


def _looked_further(
    by: Labelling,
    found: Found,
    further: Further,
    after: AfterPass,
    so_far: tuple[Promise | None, int, AbstractContextManager[Stage]],
) -> tuple[float, NDArray[np.float64] | None]:
    """What could be gained, and centers for another round where it is worth one.

    Parameters
    ----------
    so_far : (Promise or None, int, context manager)
        What the sample promised, how many rounds were made, and the stage of the next.
    """
    promise, n_before, searching = so_far
    further.give_back()
    outlook = after.outlook(promise)
    further.give_back()
    logger.info("objective %.6g; at least %.3g of it to gain", after.totals.d2, outlook.gain)
    if n_before >= further.most_rounds or outlook.gain <= further.worth:
        return outlook.gain, None
    with searching:
        if not further.searches:
            return outlook.gain, after.swapped(outlook, carried_on=n_before + 1 < further.most_rounds)
        look = found.look
        whole = look.originals() if look.whole is None else look.whole
        sample = whole if look.whole is None else replace(whole, X=look.frame.original_rows(whole.X))
        own = by.weights[sample.rows] if len(by.weights) else np.ones(len(sample.rows))
        rng = np.random.default_rng([further.settings.word("draws"), len(outlook.swaps)])
        return outlook.gain, after.next_centers(sample, own, outlook, rng)


def _refined(centers: NDArray[np.float64], meta: dict[str, Any]) -> Record:
    """Centers for the next pass, as a record."""
    return {"centers": centers}, meta
