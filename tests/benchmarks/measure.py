"""Timing in fresh processes, paired runs, medians, and the table of results with the machine it was made on.

A measured thing is a method of `child`, run as ``python -m tests.benchmarks.child``: an interpreter of its own that
says how long the work took inside (from data ready to labels) and since it was spawned (the whole process). What is
compared runs by turns. Nothing here knows what is measured.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

SLOW_SECONDS = 60.0  # a peer slower than this runs once
MISSING = "missing"
ROOT = Path(__file__).parents[2]
PACKAGES = (
    "streamkm", "numpy", "scipy", "numba", "scikit-learn", "dask", "dask-ml", "faiss-cpu", "superkmeans",
    "betula-cluster", "clostera", "sparsekmeans", "zarr",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure."""

    folder: Path  # of the data
    quick: bool = False  # small data, one run of each thing: shows that the scripts work, not how fast anything is
    runs: int = 3  # of each thing; peers that take over `SLOW_SECONDS` run once
    mnist: Path | None = None  # HDF5 file with images ``X`` and digits ``y``, for data that must be made
    peer_limit_s: float = 600.0  # after which a peer is given up


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    row: str  # letter in the list of targets
    what: str
    peer: str = "-"
    ratio: str = ""  # the figure that the target is about
    ours: str = ""  # quality
    theirs: str = ""
    target: str = ""
    met: bool | None = None  # None: no target, or nothing measured
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)  # all numbers, for the JSON


class MissingPeerError(RuntimeError):
    """The peer has no result: its package is not installed, it failed, or it took `least_s` seconds at least."""

    def __init__(self, problem: str, least_s: float = 0.0):
        super().__init__(problem)
        self.least_s = least_s


def run_child(
    method: str, environment: dict[str, str] | None = None, limit_s: float | None = None, **arguments: Any
) -> dict[str, Any]:
    """Run one method of `child` in a fresh interpreter; what it returned, with ``whole`` and ``process`` seconds.

    ``process`` ends when the process has; ``whole`` when the work was done, before its quality was looked at.
    """
    request = json.dumps({"method": method, **arguments}, default=str)
    started = time.time()
    variables = {**os.environ, **(environment or {}), "BENCHMARK_SPAWNED": repr(started)}
    command = [sys.executable, "-m", "tests.benchmarks.child", request]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            printed, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _give_up(child)
            raise MissingPeerError(f"no result within {limit_s:.0f} s", limit_s or 0.0) from None
    took = time.time() - started
    if child.returncode and method == "peer":
        raise MissingPeerError(f"it failed: {(errors.splitlines() or ['no message'])[-1]}")
    if child.returncode:
        raise RuntimeError(f"{method} failed:\n{errors[-4000:]}")
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    if MISSING in result:
        raise MissingPeerError(result[MISSING])
    return {**result, "process": took}


def _give_up(child: subprocess.Popen[str]) -> None:
    """Interrupt a process, so that it ends those that it started; kill it if it does not listen."""
    child.send_signal(signal.SIGINT)
    try:
        child.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()


def paired(
    ours: Callable[[int], dict[str, Any]], theirs: Callable[[int], dict[str, Any]], settings: Settings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run both by turns, each with the number of the run; a slow peer not every time."""
    our_runs, their_runs = [], []
    for run in range(1 if settings.quick else settings.runs):
        our_runs.append(ours(run))
        if not their_runs or their_runs[-1]["seconds"] <= SLOW_SECONDS:
            their_runs.append(theirs(run))
    return our_runs, their_runs


def ratio_of(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], key: str = "seconds") -> float:
    """Median over pairs of their seconds by ours; a single run of the peer is paired with all of ours."""
    pairs = [
        their_run[key] / our_run[key]
        for our_run, their_run in zip(ours, [*theirs, *[theirs[-1]] * (len(ours) - len(theirs))], strict=True)
    ]
    return median(pairs)


def middle(runs: Sequence[dict[str, Any]], key: str) -> float:
    """Median of a figure; NaN where runs do not have it."""
    values = [run[key] for run in runs if run.get(key) is not None]
    return median(values) if values else math.nan


def versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory."""
    import psutil

    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    memory = psutil.virtual_memory().total / 2**30
    return {"processor": name, "cores": os.cpu_count(), "memory_gib": round(memory, 1), "load": os.getloadavg()[0]}


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, notes below."""
    names = ("row", "what", "peer", "ratio", "ours", "theirs", "target", "met")
    cells = [[_cell(getattr(row, name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells), 3) for i, name in enumerate(names)]
    lines = [names, tuple("-" * width for width in widths), *cells]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    notes = [f"- {row.row}, {row.peer}: {row.note}" for row in rows if row.note]
    return "\n".join([*text, "", *notes])


def to_json(rows: Sequence[Row]) -> str:
    """Everything, for machines."""
    content = {"machine": machine(), "versions": versions(), "rows": [asdict(row) for row in rows]}
    return json.dumps(content, indent=1, default=str) + "\n"


def missing(row: str, what: str, peer: str, error: MissingPeerError) -> Row:
    """The line of a peer without a result."""
    return Row(row, what, peer, note=f"not measured: {error}")


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "NO", None: ""}[value]
    return str(value)
