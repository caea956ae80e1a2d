"""Progress of long work: bars on a terminal and in notebooks, otherwise one log line a stage.

A stage is entered with ``with progress.stage(...)``; the work calls `advance` on the stage. Nothing here knows what the
stages do. rich is imported only when a bar is drawn.
"""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

logger = logging.getLogger(__name__)
TOLD_EVERY_S = 30.0
"""Seconds between log lines on a running stage, where there is no bar."""


@dataclass
class Stage:
    """One stage of a run and its figures."""

    name: str  # ``sketch``, ``seed``, ``epochs``, ``lloyd``, ``polish``, ``assign``, ``refine-1``
    seconds: float = 0.0  # wall time, without that of `COMPILING`
    read_bytes: int = 0  # stored bytes read from the source; 0 for stages that work in memory
    rows: int = 0  # rows that passed through
    # tuple of float, the objective of each epoch or step of the stage, as `history_` has it; see there
    inertias: tuple[float, ...] = ()
    done: float = field(default=0.0, repr=False, compare=False)
    on_advance: Callable[[float], None] | None = field(default=None, repr=False, compare=False)
    after_advance: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def advance(self, amount: float = 1.0) -> None:
        """Add `amount` to the finished part of the total."""
        self.done += amount
        if self.on_advance is not None:
            self.on_advance(amount)
        if self.after_advance is not None:
            self.after_advance()


COMPILING = Stage("compiling")
"""Kernels that this process has compiled so far; no other stage counts their time."""


class Progress:
    """Records the stages of one run and shows them.

    `show`: bool or "auto". Both True and "auto" draw bars, below the cell of a notebook or on stderr if it is a
    terminal. Elsewhere True writes a line on stderr for each finished stage, unless the log takes it. Every finished
    stage is logged; without a bar, a long stage logs its progress every 30 s.
    """

    latest: ClassVar[Progress]  # that of the latest run, which says what no stage does

    def __init__(self, show: bool | str = "auto"):
        self.stages: list[Stage] = []
        self._notebook = in_notebook()
        self._bars = bool(show) and (self._notebook or _on_terminal())
        self._lines = bool(show) and show != "auto" and not self._bars
        Progress.latest = self

    @contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "chunks") -> Iterator[Stage]:
        """Time one stage. `total` is in `unit`; None if it is not known beforehand."""
        stage, ended = Stage(name), threading.Event()
        started = time.perf_counter() - COMPILING.seconds
        bar = (NotebookBar if self._notebook else _Bar)(name, total, unit) if self._bars else None
        try:
            if bar is not None:
                stage.on_advance = bar.advance
            elif self._lines or logger.isEnabledFor(logging.INFO):
                threading.Thread(target=self._tell_until, args=(ended, stage, total, unit), daemon=True).start()
            yield stage
            if bar is not None:
                bar.fill()
        finally:
            ended.set()
            stage.seconds = max(0.0, time.perf_counter() - COMPILING.seconds - started)
            stage.on_advance = stage.after_advance = None  # stages are kept, and what these refer to is not
            if bar is not None:
                bar.stop()
        self.stages.append(stage)
        read = f", {stage.rows:,} rows, {stage.read_bytes:,} bytes read" if stage.rows else ""
        self._tell(f"{name}: {stage.seconds:.2f} s{read}", on_stderr=self._lines)

    def _tell_until(self, ended: threading.Event, stage: Stage, total: float | None, unit: str) -> None:
        """Log the progress of a stage every half minute until it has ended."""
        started = time.perf_counter()
        while not ended.wait(TOLD_EVERY_S):
            seconds = time.perf_counter() - started
            done = counted(stage.done, total, unit, seconds)
            self._tell(f"{stage.name}: {done}{', ' if done else ''}{seconds:.0f} s so far", on_stderr=self._lines)

    def say(self, line: str) -> None:
        """Log a line; write it on stderr if stages are shown and the log does not take it."""
        self._tell(line, on_stderr=self._bars or self._lines)

    def _tell(self, line: str, *, on_stderr: bool) -> None:
        """Log a line; write it on stderr instead if it belongs there and the log does not take it."""
        if on_stderr and sys.stderr is not None and not logger.isEnabledFor(logging.INFO):
            sys.stderr.write(f"{line}\n")
        logger.info("%s", line)


def _on_terminal() -> bool:
    """Whether stderr is a terminal; a process started without stderr has none."""
    return sys.stderr is not None and sys.stderr.isatty()


class _Bar:
    """A rich progress bar: done of total, rate, time taken and left."""

    def __init__(self, name: str, total: float | None, unit: str):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(TextColumn("{task.description:<10}"), *columns, console=Console(stderr=True))
        self._done, self._total, self._unit, self._started = 0.0, total, unit, time.perf_counter()
        self._task = self._progress.add_task(name, total=total, count=counted(0, total))
        self._progress.start()

    def advance(self, amount: float) -> None:
        self._done += amount
        self._show(self._total)

    def _show(self, total: float | None) -> None:
        count = counted(self._done, total, self._unit, time.perf_counter() - self._started)
        self._progress.update(self._task, completed=self._done, count=count)

    def fill(self) -> None:
        """Show the stage as done, even if it needed fewer steps than planned or counts none."""
        self._show(self._done or None)
        self._progress.update(self._task, total=self._done or 1, completed=self._done or 1)

    def stop(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


SECONDS = 0.2  # between two updates: each is a message to the browser


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def counted(done: float, total: float | None, unit: str = "", seconds: float = 0.0) -> str:
    """The finished part, the total and the rate of a stage; "" for a stage that counts nothing."""
    rate = f" {done / seconds:.3g} {unit}/s" if done and seconds > 0 else ""
    of = "" if total is None else f"/{total:,.0f}"
    return f"{done:,.0f}{of}{rate}" if done or of else ""


class NotebookBar:
    """Notebook bar: done of total, rate, time taken. `total` is in `unit`; None if it is not known."""

    def __init__(self, name: str, total: float | None, unit: str):
        from IPython.display import display

        self._name, self._total, self._unit = name, total, unit
        self._done, self._started, self._shown, self._ended = 0.0, time.perf_counter(), 0.0, False
        self._handle: Any = display(self, display_id=True)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        seconds = time.perf_counter() - self._started
        text = f"{self._name:<10} {counted(self._done, self._total, self._unit, seconds)} {seconds:.1f} s"
        value = "" if self._total is None else f' value="{self._done:g}" max="{self._total or 1:g}"'
        value = ' value="1" max="1"' if self._ended else value
        bar = f"<progress{value}></progress>"
        return {"text/plain": text, "text/html": f"<div>{bar} <code>{html.escape(text)}</code></div>"}

    def advance(self, amount: float) -> None:
        """Add an amount to the finished part."""
        self._done += amount
        if time.perf_counter() - self._shown >= SECONDS:
            self._show()

    def fill(self) -> None:
        """Show the stage as done, even if it needed fewer steps than planned or counts none."""
        self._total, self._ended = self._done or None, True

    def stop(self) -> None:
        """Show the final state."""
        self._show()

    def _show(self) -> None:
        self._shown = time.perf_counter()
        if self._handle is not None:
            self._handle.update(self)


Progress(show=False)  # the latest, before any run
