"""Lloyd's algorithm and scheduled epochs on the rows that a fit holds; no stage ends worse than it began."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import BlockLabels, Blocks, EvenRows
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.lloyd import LloydResult, lloyd
from streamkm.cluster.moving_averages import STEPS_BEFORE, EpochsResult, Schedule, is_settled, moving_averages
from streamkm.cluster.rows import Block
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.engine.executor_choice import alone
from streamkm.engine.passes import run
from streamkm.fitting.context import FitContext

logger = logging.getLogger(__name__)

EPOCHS = "epochs"  # the record of epochs of moving averages
Result = TypeVar("Result", LloydResult, EpochsResult)


class StepCheckpoint(Generic[Result]):
    """Saves steps, or batches of epochs, and advances a stage; `begun` is the last one of an earlier run."""

    def __init__(self, writer: CheckpointWriter, name: str, stage: Stage, kind: type[Result]):
        self._writer, self._name, self._stage = writer, name, stage
        self.begun: Result | None = writer.load(name, kind)

    def step(self, result: Result) -> None:
        """Count and save a step, or a batch, which may end an epoch."""
        if not getattr(result, "n_batches", 0):
            self._stage.advance()
        self._writer.save_if_due(self._name, lambda: replace(result, labels=None))  # workers may hold them

    def end(self, result: Result) -> None:
        """Save the result of all epochs, so that a run killed in the later steps need not repeat any."""
        if self.begun is None or self.begun.n_iter < result.n_iter:
            self._writer.save(self._name, result)


def iterated(
    context: FitContext,
    rows: Blocks,
    start: NDArray[np.float64],
    schedule: Schedule | None,
) -> tuple[LloydResult, list[dict[str, Any]]]:
    """Lloyd's algorithm, with scheduled epochs between its steps; and the history of both."""
    tol, max_iter, first = context.settings.tol, context.settings.max_iter, None
    if schedule is not None:
        first = lloyd(rows, start, accelerated=True, max_iter=STEPS_BEFORE, tol=tol)
        if not is_settled(rows, first, schedule, context.settings.seed64("epochs")):
            return _averaged(context, rows, first, schedule)
        logger.info("no epochs: rows keep their clusters where centers are moved")
    with context.progress.stage("lloyd", max_iter, "steps") as stage:
        kept = StepCheckpoint(context.writer, "lloyd", stage, LloydResult)
        carries_on = first is not None or (context.settings.accelerated and tol > 0)
        begun = kept.begun or first
        begin = start if begun is None else begun
        result = lloyd(rows, begin, accelerated=carries_on, max_iter=max_iter, tol=tol, on_step=kept.step)
    return result, noted("lloyd", result)


def _averaged(
    context: FitContext, rows: Blocks, first: LloydResult, schedule: Schedule
) -> tuple[LloydResult, list[dict[str, Any]]]:
    """Epochs of moving averages between exact steps, the first of which is given; and the history of both."""
    with context.progress.stage("epochs", schedule.n_epochs, "epochs") as stage:
        kept = StepCheckpoint(context.writer, EPOCHS, stage, EpochsResult)
        moved = _epochs(context, rows, first, schedule, kept)
        kept.end(moved)
    with context.progress.stage("lloyd", schedule.n_steps, "steps") as stage:
        result, n_steps = _steps_behind(context, rows, first, moved, schedule, stage)
    n_iter = moved.n_iter + n_steps
    ended = result.converged or n_iter < context.settings.max_iter  # by the schedule, if not by `tol`
    return replace(result, n_iter=n_iter, converged=ended), [*noted("epochs", moved), *noted("lloyd", result)]


def _epochs(
    context: FitContext, rows: Blocks, first: LloydResult, schedule: Schedule, kept: StepCheckpoint[EpochsResult]
) -> EpochsResult:
    """Epochs after a step, on the workers' rows or on rows gathered in one process."""
    handles, seed = rows.handles, context.settings.seed64("epochs")
    average = partial(moving_averages, schedule=schedule, seed=seed, begun=kept.begun)
    if not schedule.place:
        return average(rows, first.centers, likely=first.labels, on_batch=kept.step)
    if schedule.n_drawn is not None:
        drawn = BlockLabels([None] * len(handles))
        even = EvenRows(-(-rows.n_rows // schedule.n_drawn), seed)
        run(even, rows.placed(), rows.executor, Stage("draw"), sink=drawn)
        handles = drawn.handles
    bare: Any = replace(rows, executor=None, handles=())  # type: ignore[arg-type] # each process has one
    moved = partial(_moved, bare, first.centers, average)
    if schedule.place == "client":
        return moved(context.here, list(rows.executor.values(handles)))
    found: EpochsResult = alone(rows.executor, "epochs", moved, handles)
    return found


def _moved(
    rows: Blocks,
    centers: NDArray[np.float64],
    average: Callable[..., EpochsResult],
    here: Executor,
    blocks: list[Block],
) -> EpochsResult:
    """Epochs on blocks that came to this process, in place of all that workers hold."""
    rows = replace(rows, executor=here, handles=blocks)
    likely = rows.step(centers, None, "epochs")[1] if len(centers) >= FEWEST_CENTERS and rows.dense else None
    return average(rows, centers, likely=likely)


def _steps_behind(
    context: FitContext, rows: Blocks, first: LloydResult, moved: LloydResult, schedule: Schedule, stage: Stage
) -> tuple[LloydResult, int]:
    """Lloyd steps from the end of the epochs (`moved`), or from the step before (`first`) if that was better.

    The first step after the epochs shows their objective. Returns the result, and the number of all steps.
    """
    stepped = partial(lloyd, rows, accelerated=True, tol=context.settings.tol)
    kept = StepCheckpoint(context.writer, "lloyd", stage, LloydResult)
    behind = kept.begun
    if behind is None:
        begun = LloydResult(moved.centers, float("nan"), 0, False, (), labels=first.labels)
        behind = stepped(begun, max_iter=1, on_step=kept.step)
    if behind.history[0] <= first.inertia:
        result = stepped(behind, max_iter=schedule.n_steps, on_step=kept.step)
        return result, STEPS_BEFORE + result.n_iter
    logger.info("epochs did not lower the objective: Lloyd's algorithm goes on from the step before them")
    kept = StepCheckpoint(context.writer, "lloyd-again", stage, LloydResult)
    begun = kept.begun or replace(first, labels=None)  # epochs have overwritten its labels
    n_left = context.settings.max_iter - moved.n_iter - behind.n_iter
    result = stepped(begun, max_iter=n_left, on_step=kept.step)
    return result, result.n_iter + behind.n_iter


def noted(stage: str, result: LloydResult) -> list[dict[str, Any]]:
    """The inertia of each step, for the history of a fit."""
    return [
        {"stage": stage, "iteration": iteration, "inertia": inertia}
        for iteration, inertia in enumerate(result.history, start=1)
    ]
