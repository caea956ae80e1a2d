"""Saves the progress of a run at intervals, and restores it in the run that continues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from streamkm.engine.checkpoint import RECORD, Checkpoint, load_record, records
from streamkm.engine.records import pack, unpack

T = TypeVar("T")

BEGIN = "begin"  # the record that every run writes at once
PROCESS = "process"  # what the process held beside data that began the run
RESULTS = "results"  # the place of the results of a run that is complete but for them
INTERVAL_S = 10.0  # between saves within a stage
SHARE = 0.05  # of the time, at most, that saving may take


class CheckpointWriter:
    """Saves progress at intervals, and restores it; without a checkpoint it does neither."""

    def __init__(self, checkpoint: Checkpoint | None = None):
        self.checkpoint = checkpoint
        self._next = time.monotonic() + INTERVAL_S

    def same_seed(self, drawn: int) -> int:
        """The seed of the run that is continued; else the seed that was drawn now."""
        begun = None if self.checkpoint is None else self.checkpoint.load(BEGIN)
        if begun is None and self.checkpoint is not None:
            self.checkpoint.save(BEGIN, {}, {"seed": drawn})
        return drawn if begun is None else int(begun[1]["seed"])

    def load(self, name: str, kind: type[T]) -> T | None:
        """The value that an earlier run saved under a name, or None; see `records.unpack`."""
        record = None if self.checkpoint is None else self.checkpoint.load(name)
        return None if record is None else unpack(kind, record)

    def save_if_due(self, name: str, make: Callable[[], Any]) -> None:
        """Save a value that grows, if a save is due."""
        if self.checkpoint is not None:
            self.when_due(lambda: self.save(name, make()))

    def save(self, name: str, value: Any) -> None:
        """Save a value of a kind that `records.pack` takes now: the result of a stage."""
        if self.checkpoint is not None:
            self.checkpoint.save(name, *pack(value))

    def when_due(self, save: Callable[[], None], *, is_due: bool = False) -> None:
        """Call `save` at most once per interval, and for at most a share of the time, or where `is_due` says so."""
        started = time.monotonic()
        if is_due or started >= self._next:
            save()
            ended = time.monotonic()
            self._next = ended + max(INTERVAL_S, (ended - started) * (1 / SHARE - 1))


def saved_stages(directory: str | os.PathLike[str]) -> list[str]:
    """Names of the records behind a run's beginning, the latest last; see `checkpoint.records` for errors."""
    found = records(directory) - {BEGIN, PROCESS}
    return sorted(found, key=lambda name: (Path(directory) / f"{name}{RECORD}").stat().st_mtime_ns)


def has_placed(directory: str | os.PathLike[str], target: str | os.PathLike[str]) -> bool:
    """Whether an interrupted run has begun to put its results in a place, as the record `RESULTS` says."""
    saved = load_record(Path(directory), RESULTS) if RESULTS in records(directory) else None
    return saved is not None and saved[1]["place"] == os.path.abspath(target)
