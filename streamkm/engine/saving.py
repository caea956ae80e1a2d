"""Saving what a run has done, now and then, and giving it back to the run that continues."""

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
    """Saves what was done, not too often, and gives it back.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        None: nothing is saved, nothing comes back.
    """

    def __init__(self, checkpoint: Checkpoint | None = None):
        self.checkpoint = checkpoint
        self._throttle = Throttle(INTERVAL_S, SHARE)
        self._worth_from = time.monotonic() + INTERVAL_S

    def same_seed(self, drawn: int) -> int:
        """The seed of the run that is continued, or what was drawn now."""
        if self.checkpoint is None:
            return drawn
        begun = self.checkpoint.load(BEGIN)
        if begun is not None:
            return int(begun[1]["seed"])
        self.checkpoint.save(BEGIN, {}, {"seed": drawn})
        return drawn

    def load(self, name: str, kind: type[T]) -> T | None:
        """What was saved under a name by the run that is continued, if it got so far; see `records.unpack`."""
        record = None if self.checkpoint is None else self.checkpoint.load(name)
        return None if record is None else unpack(kind, record)

    def save_if_due(self, name: str, make: Callable[[], Any]) -> None:
        """Save a value that changes all the time, if the last save is long enough ago."""
        if self.checkpoint is not None:
            self.when_due(lambda: self.write(name, make()))

    def write(self, name: str, value: Any) -> None:
        """Save a value now."""
        if self.checkpoint is not None:
            self.checkpoint.save(name, *pack(value))

    def when_due(self, save: Callable[[], None]) -> None:
        """Call `save` if the last one is long enough ago."""
        self._throttle.save_if_due(save)

    def save(self, name: str, value: Any, *, always: bool = False) -> None:
        """Save what ends a stage, unless the run is young: doing it again would take no longer.

        Parameters
        ----------
        value : Any
            Of a kind that `records.pack` takes.
        always : bool
            Of a young run too: what is saved next is of no use, or does harm, to a run that does this stage again.
        """
        if always or time.monotonic() >= self._worth_from:
            self.write(name, value)


def is_worth_resuming(directory: str | os.PathLike[str]) -> bool:
    """Whether a run has left more than its beginning there; see `checkpoint.records` for errors."""
    return bool(records(directory) - {BEGIN, PROCESS})
