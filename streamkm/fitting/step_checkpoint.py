"""Steps of Lloyd's algorithm and epochs of moving averages in a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.moving_averages import EpochsResult
from streamkm.core.progress import Stage
from streamkm.engine.saving import CheckpointWriter

EPOCHS = "epochs"  # the record of epochs of moving averages


class StepCheckpoint:
    """Steps of Lloyd's algorithm: each advances a stage, and some are saved.

    Parameters
    ----------
    writer : CheckpointWriter
    name : str
        Of the record.
    stage : Stage

    Attributes
    ----------
    begun : LloydResult or None
        Where an earlier run got to.
    """

    def __init__(self, writer: CheckpointWriter, name: str, stage: Stage):
        self._writer, self._name, self._stage = writer, name, stage
        self.begun = writer.load(name, LloydResult)

    def step(self, result: LloydResult) -> None:
        """Take note of a step."""
        self._stage.advance()
        self._writer.save_if_due(self._name, lambda: replace(result, labels=None))  # workers may hold them


class EpochCheckpoint:
    """Epochs of moving averages: each advances a stage, and some batches are saved.

    Parameters
    ----------
    writer : CheckpointWriter
    stage : Stage

    Attributes
    ----------
    begun : EpochsResult or None
        Where an earlier run got to.
    """

    def __init__(self, writer: CheckpointWriter, stage: Stage):
        self._writer, self._stage = writer, stage
        self.begun = writer.load(EPOCHS, EpochsResult)

    def batch(self, result: EpochsResult) -> None:
        """Take note of a batch, which may end an epoch."""
        if not result.n_batches:
            self._stage.advance()
        self._writer.save_if_due(EPOCHS, lambda: result)

    def end(self, result: EpochsResult) -> None:
        """Save what all epochs found, so that a run that was killed in the steps behind them need not repeat any."""
        if self.begun is None or self.begun.n_iter < result.n_iter:
            self._writer.save(EPOCHS, result)
