"""Steps of Lloyd's algorithm and epochs of moving averages as records of a checkpoint, and how often they are saved.

Bit by bit: a run that goes on from a record ends as one that was never stopped. Knows no rows.
"""

from __future__ import annotations

import numpy as np

from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.moving_averages import EpochsResult
from streamkm.core.progress import Stage
from streamkm.passes.resume import CheckpointWriter, Record

EPOCHS = "epochs"  # the record of epochs of moving averages


def pack_lloyd(result: LloydResult) -> Record:
    """Where Lloyd's algorithm is, as a record."""
    arrays = {"centers": result.centers, "history": np.array(result.history)}
    if result.means is not None:
        arrays["means"] = result.means
    if result.labels is not None:
        arrays["labels"] = np.concatenate(result.labels)
        arrays["label_rows"] = np.array([len(part) for part in result.labels])
    return arrays, {"converged": result.converged, "pace": result.pace}


def unpack_lloyd(record: Record | None) -> LloydResult | None:
    """The inverse of `pack_lloyd`."""
    if record is None:
        return None
    arrays, meta = record
    history = tuple(arrays["history"].tolist())
    inertia = history[-1] if history else float("nan")
    converged, pace, labels = bool(meta["converged"]), int(meta["pace"]), None
    if "labels" in arrays:
        labels = np.split(arrays["labels"], np.cumsum(arrays["label_rows"])[:-1])
    state = (inertia, len(history), converged, history, arrays.get("means"), pace)
    return LloydResult(arrays["centers"], *state, labels)


def pack_epochs(result: EpochsResult) -> Record:
    """Where epochs are, as a record: centers, the inertia of each epoch, and how far the next one has come."""
    arrays = {"centers": result.centers, "history": np.array(result.history), "partial": np.array(result.partial)}
    return arrays, {"n_batches": result.n_batches}


def unpack_epochs(record: Record | None) -> EpochsResult | None:
    """The inverse of `pack_epochs`."""
    if record is None:
        return None
    arrays, meta = record
    history = tuple(arrays["history"].tolist())
    inertia = history[-1] if history else float("nan")
    done = (int(meta["n_batches"]), float(arrays["partial"]))
    return EpochsResult(arrays["centers"], inertia, len(history), False, history, None, 0, None, *done)


class KeptSteps:
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
        self.begun = unpack_lloyd(writer.load(name))

    def step(self, result: LloydResult) -> None:
        """Take note of a step."""
        self._stage.advance()
        self._writer.save_if_due(self._name, lambda: pack_lloyd(result))


class KeptEpochs:
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
        self.begun = unpack_epochs(writer.load(EPOCHS))

    def batch(self, result: EpochsResult) -> None:
        """Take note of a batch, which may end an epoch."""
        if not result.n_batches:
            self._stage.advance()
        self._writer.save_if_due(EPOCHS, lambda: pack_epochs(result))

    def end(self, result: EpochsResult) -> None:
        """Save what all epochs found, so that a run that was killed in the steps behind them need not repeat any."""
        if self.begun is None or self.begun.n_iter < result.n_iter:
            self._writer.save(EPOCHS, lambda: pack_epochs(result))
