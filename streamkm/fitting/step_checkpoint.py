"""Steps of Lloyd's algorithm and epochs of moving averages in a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Generic, TypeVar

from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.moving_averages import EpochsResult
from streamkm.core.progress import Stage
from streamkm.engine.saving import CheckpointWriter

EPOCHS = "epochs"  # the record of epochs of moving averages
Result = TypeVar("Result", LloydResult, EpochsResult)


class StepCheckpoint(Generic[Result]):
    """Steps, or batches of epochs, each of which may advance a stage and be saved; `begun` is an earlier run's last."""

    def __init__(self, writer: CheckpointWriter, name: str, stage: Stage, kind: type[Result]):
        self._writer, self._name, self._stage = writer, name, stage
        self.begun: Result | None = writer.load(name, kind)

    def step(self, result: Result) -> None:
        """Take note of a step, or of a batch, which may end an epoch."""
        if not getattr(result, "n_batches", 0):
            self._stage.advance()
        self._writer.save_if_due(self._name, lambda: replace(result, labels=None))  # workers may hold them

    def end(self, result: Result) -> None:
        """Save what all epochs found, so that a run that was killed in the steps behind them need not repeat any."""
        if self.begun is None or self.begun.n_iter < result.n_iter:
            self._writer.save(self._name, result)
