"""Saves the progress of a run at intervals, and restores it in the run that continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from streamkm.engine.checkpoint import Checkpoint, Throttle, records
from streamkm.engine.records import pack, unpack

T = TypeVar("T")

BEGIN = "begin"  # the record that every run writes at once
PROCESS = "process"  # what the process held beside data that began the run
INTERVAL_S = 10.0  # between saves; runs that are shorter write nothing
SHARE = 0.05  # of the time, at most, that saving may take


class CheckpointWriter:
    """Saves progress at intervals, and restores it.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        None: nothing is saved or restored.
    """

    def __init__(self, checkpoint: Checkpoint | None = None):
        self.checkpoint = checkpoint
        self._throttle = Throttle(INTERVAL_S, SHARE)
        self._worth_from = time.monotonic() + INTERVAL_S

    def same_seed(self, drawn: int) -> int:
        """The seed of the run that is continued; else the seed that was drawn now."""
        if self.checkpoint is None:
            return drawn
        begun = self.checkpoint.load(BEGIN)
        if begun is not None:
            return int(begun[1]["seed"])
        self.checkpoint.save(BEGIN, {}, {"seed": drawn})
        return drawn

    def load(self, name: str, kind: type[T]) -> T | None:
        """The value that an earlier run saved under a name, or None; see `records.unpack`."""
        record = None if self.checkpoint is None else self.checkpoint.load(name)
        return None if record is None else unpack(kind, record)

    def save_if_due(self, name: str, make: Callable[[], Any]) -> None:
        """Save a value that grows, if a save is due."""
        if self.checkpoint is not None:
            self.when_due(lambda: self.write(name, make()))

    def write(self, name: str, value: Any) -> None:
        """Save a value now."""
        if self.checkpoint is not None:
            self.checkpoint.save(name, *pack(value))

    def when_due(self, save: Callable[[], None]) -> None:
        """Call `save` if a save is due."""
        self._throttle.save_if_due(save)

    def save(self, name: str, value: Any, *, always: bool = False) -> None:
        """Save the result of a stage, unless the run is so young that repeating the stage takes no longer.

        Parameters
        ----------
        value : Any
            Of a kind that `records.pack` takes.
        always : bool
            In a young run too: later records are useless or wrong for a run that repeats this stage.
        """
        if always or time.monotonic() >= self._worth_from:
            self.write(name, value)


def is_worth_resuming(directory: str | os.PathLike[str]) -> bool:
    """Whether a run has saved more than its beginning; see `checkpoint.records` for errors."""
    return bool(records(directory) - {BEGIN, PROCESS})
