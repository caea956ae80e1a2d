"""Telling people how far long work is: bars on a terminal and in notebooks, one log line a stage otherwise.

A stage is entered with ``with progress.stage(...)``; the work calls `advance` on what it gets. Nothing here knows what
the stages do. rich is imported only when a bar is drawn.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamkm.core.notebook import NotebookBar, in_notebook

if TYPE_CHECKING:
    from rich.progress import TaskID

logger = logging.getLogger(__name__)


@dataclass
class Stage:
    """One stage of a run, as it went.

    Attributes
    ----------
    name : str
        ``sketch``, ``seed``, ``epochs``, ``lloyd``, ``polish``, ``assign``, ``refine-1``.
    seconds : float
        Wall time.
    read_bytes : int
        Stored bytes read from the source; 0 for stages that work in memory.
    rows : int
        Rows that passed through.
    inertias : tuple of float
        The objective of each epoch or step of the stage, as `history_` has it; see there.
    """

    name: str
    seconds: float = 0.0
    read_bytes: int = 0
    rows: int = 0
    inertias: tuple[float, ...] = ()
    on_advance: Callable[[float], None] | None = field(default=None, repr=False, compare=False)
    after_advance: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def advance(self, amount: float = 1.0) -> None:
        """Say that `amount` more of the stage's total is done."""
        if self.on_advance is not None:
            self.on_advance(amount)
        if self.after_advance is not None:
            self.after_advance()


class Progress:
    """Records the stages of one run and shows them.

    Parameters
    ----------
    show : bool or "auto"
        Draw bars below the cell of a notebook, or on stderr if it is a terminal. Elsewhere True writes a line on
        stderr for each finished stage, unless the log takes it, and "auto" writes nothing there. Every finished stage
        is one line of the log, whatever is shown.
    """

    def __init__(self, show: bool | str = "auto"):
        self.stages: list[Stage] = []
        self._notebook = in_notebook()
        self._bars = bool(show) and (self._notebook or _on_terminal())
        self._lines = bool(show) and show != "auto" and not self._bars
        self._bar: NotebookBar | _Bar | None = None
        self._beside: tuple[str, int, int | None] | None = None

    @contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "chunks") -> Iterator[Stage]:
        """Time one stage. `total` is in `unit`; None where it is not known beforehand."""
        stage = Stage(name)
        started = time.perf_counter()
        bar = (NotebookBar if self._notebook else _Bar)(name, total, unit) if self._bars else None
        around, self._bar = self._bar, bar
        try:
            if bar is not None:
                stage.on_advance = bar.advance
            if self._beside is not None:
                self.count(*self._beside)
            yield stage
            if bar is not None:
                bar.fill()
        finally:
            stage.seconds = time.perf_counter() - started
            stage.on_advance = stage.after_advance = None  # stages are kept, and what these refer to is not
            self._bar = around
            if bar is not None:
                bar.stop()
        self.stages.append(stage)
        read = f", {stage.rows:,} rows, {stage.read_bytes:,} bytes read" if stage.rows else ""
        self._tell(f"{name}: {stage.seconds:.2f} s{read}", on_stderr=self._lines)

    def say(self, line: str) -> None:
        """Log a line; write it on stderr where stages are shown and the log does not take it."""
        self._tell(line, on_stderr=self._bars or self._lines)

    def count(self, name: str, done: int, total: int | None) -> None:
        """Show on a terminal what is done beside the stages, below the bar of each until all is done."""
        self._beside = None if done == total else (name, done, total)
        if isinstance(self._bar, _Bar):
            self._bar.count(name, done, total)

    def _tell(self, line: str, *, on_stderr: bool) -> None:
        """Log a line; write it on stderr instead if it belongs there and the log does not take it."""
        if on_stderr and not logger.isEnabledFor(logging.INFO):
            _write(line)
        logger.info("%s", line)


def _on_terminal() -> bool:
    """Whether stderr is a terminal; a process that was started without it has none."""
    return sys.stderr is not None and sys.stderr.isatty()


def _write(line: str) -> None:
    """Write a line on stderr, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")


class _Bar:
    """A rich progress bar: done of total, rate, time taken and left."""

    def __init__(self, name: str, total: float | None, unit: str):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        class Count(ProgressColumn):
            """What is done, of how many; nothing for a stage that counts none."""

            def render(self, task: Task) -> Text:
                total = "?" if task.total is None else f"{task.total:,.0f}"
                counted = f"{task.completed:,.0f}/{total}" if task.fields["counts"] else ""
                return Text(counted, style="progress.download")

        class Rate(ProgressColumn):
            """What is done a second, of what has a unit."""

            def render(self, task: Task) -> Text:
                speed = task.finished_speed or task.speed
                known = task.fields["counts"] and task.fields["unit"] and speed is not None
                return Text(f"{speed:.3g} {task.fields['unit']}/s" if known else "", style="progress.data.speed")

        columns = (BarColumn(), Count(), Rate(), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(TextColumn("{task.description:<10}"), *columns, console=Console(stderr=True))
        self._task = self._progress.add_task(name, total=total, counts=total is not None, unit=unit)
        self._beside: TaskID | None = None
        self._progress.start()

    def advance(self, amount: float) -> None:
        self._progress.update(self._task, advance=amount, counts=True)

    def count(self, name: str, done: int, total: int | None) -> None:
        """Show a second count below that of the stage."""
        if self._beside is None:
            self._beside = self._progress.add_task(name, total=total, counts=True, unit="")
        self._progress.update(self._beside, completed=done, total=total)

    def fill(self) -> None:
        """Show the stage as done, also where it needed fewer steps than it might have, or counts none."""
        done = self._progress.tasks[0].completed or 1
        self._progress.update(self._task, total=done, completed=done)

    def stop(self) -> None:
        """Leave the bar as it is; a second count that goes on is left to the next stage."""
        if self._beside is not None and not self._progress.tasks[1].finished:
            self._progress.remove_task(self._beside)
        self._progress.stop()
