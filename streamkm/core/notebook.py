"""Progress in notebooks: one bar for each stage, below the cell that works.

Needs what every notebook has, IPython, and no widgets. Imports it only where it runs already.
"""

from __future__ import annotations

import html
import sys
import time
from typing import Any

SECONDS = 0.2  # between two updates: each is a message to the browser


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def counted(done: float, total: float | None, unit: str = "", seconds: float = 0.0) -> str:
    """What is done: of how many, and how many a second; nothing for a stage that counts none."""
    rate = f" {done / seconds:.3g} {unit}/s" if done and seconds > 0 else ""
    of = "" if total is None else f"/{total:,.0f}"
    return f"{done:,.0f}{of}{rate}" if done or of else ""


class NotebookBar:
    """A bar that a notebook shows: done of total, rate, time taken.

    Parameters
    ----------
    name : str
    total : float or None
        In `unit`; None where it is not known.
    unit : str
    """

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
        """Say that so much more is done."""
        self._done += amount
        if time.perf_counter() - self._shown >= SECONDS:
            self._show()

    def fill(self) -> None:
        """Show the stage as done, also where it needed fewer steps than it might have, or counts none."""
        self._total, self._ended = self._done or None, True

    def stop(self) -> None:
        """Show where it ended."""
        self._show()

    def _show(self) -> None:
        self._shown = time.perf_counter()
        if self._handle is not None:
            self._handle.update(self)
