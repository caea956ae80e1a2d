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

from streamkm.core.notebook import NotebookBar, in_notebook

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

    @contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "chunks") -> Iterator[Stage]:
        """Time one stage. `total` is in `unit`; None where it is not known beforehand."""
        stage = Stage(name)
        started = time.perf_counter()
        bar = (NotebookBar if self._notebook else _Bar)(name, total, unit) if self._bars else None
        try:
            if bar is not None:
                stage.on_advance = bar.advance
            yield stage
            if bar is not None:
                bar.fill()
        finally:
            stage.seconds = time.perf_counter() - started
            stage.on_advance = stage.after_advance = None  # stages are kept, and what these refer to is not
            if bar is not None:
                bar.stop()
        self.stages.append(stage)
        read = f", {stage.rows:,} rows, {stage.read_bytes:,} bytes read" if stage.rows else ""
        self._tell(f"{name}: {stage.seconds:.2f} s{read}", on_stderr=self._lines)

    def say(self, line: str) -> None:
        """Log a line; write it on stderr where stages are shown and the log does not take it."""
        self._tell(line, on_stderr=self._bars or self._lines)

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
                return Text(f"{task.completed:,.0f}/{total}" if counted() else "", style="progress.download")

        class Rate(ProgressColumn):
            """What is done a second."""

            def render(self, task: Task) -> Text:
                speed = (task.finished_speed or task.speed) if counted() else None
                return Text("" if speed is None else f"{speed:.3g} {unit}/s", style="progress.data.speed")

        def counted() -> bool:
            return total is not None or self._counts

        self._counts = False
        columns = (BarColumn(), Count(), Rate(), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(TextColumn("{task.description:<10}"), *columns, console=Console(stderr=True))
        self._task = self._progress.add_task(name, total=total)
        self._progress.start()

    def advance(self, amount: float) -> None:
        self._counts = True
        self._progress.update(self._task, advance=amount)

    def fill(self) -> None:
        """Show the stage as done, also where it needed fewer steps than it might have, or counts none."""
        done = self._progress.tasks[0].completed or 1
        self._progress.update(self._task, total=done, completed=done)

    def stop(self) -> None:
        self._progress.stop()
