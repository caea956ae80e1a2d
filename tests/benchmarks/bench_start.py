"""Row k: how long it takes to start: import, --help, the first fit of an environment, the first fit of a process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import make_digits, make_topics
from tests.benchmarks.data import small_images
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.measure import ROOT, Row, Settings, run_child

IMPORT_MOST, HELP_MOST, COMPILE_MOST, CACHED_MOST = 0.2, 0.35, 20.0, 1.0
RUNS = 5
K = 8
SMALL_ROWS, SMALL_FEATURES = 2000, 5000
LATER = 4


def run(settings: Settings) -> list[Row]:
    """Row k."""
    runs = 1 if settings.quick else RUNS
    imported = _import_seconds(runs)
    helped = median(_seconds([sys.executable, "-m", "streamkm", "--help"]) for _ in range(runs))
    bare = median(_seconds([sys.executable, "-c", "pass"]) for _ in range(runs))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.svm"
        make_topics.write(str(path), Topics(SMALL_FEATURES, K), SMALL_ROWS, kind="svmlight")
        kinds = {"svmlight": path}
        if not settings.quick:
            kinds["Zarr"] = Path(folder) / "small.zarr"
            make_digits.write(str(kinds["Zarr"]), small_images(), SMALL_ROWS)
        fresh = {kind: _fresh(each, folder, settings) for kind, each in kinds.items()}
        cached = {kind: [_cached(each) for _ in range(1 + runs)][1:] for kind, each in kinds.items()}
    worst = max(run["seconds"] for run in fresh.values())
    beyond = {kind: median(run["beyond"] for run in found) for kind, found in cached.items()}
    first = max(beyond.values())
    compiled = "; ".join(
        f"{kind}: fit {one['seconds']:.1f} s, process {one['whole']:.1f} s" for kind, one in fresh.items()
    )
    loaded = "; ".join(f"{kind} {seconds:.2f} s" for kind, seconds in beyond.items())
    return [
        _row("import streamkm", imported, IMPORT_MOST, settings,
             f"inside, interpreter's own {bare:.2f} s not counted"),
        _row("streamkm --help", helped, HELP_MOST, settings, f"whole process, {bare:.2f} s of it the bare interpreter"),
        _row("first fit, nothing compiled yet", worst, COMPILE_MOST, settings, compiled, fresh),
        _row("first fit of a process over later ones", first, CACHED_MOST, settings, loaded, cached),
    ]  # fmt: skip


def _row(
    what: str, seconds: float, most: float, settings: Settings, note: str, figures: dict[str, Any] | None = None
) -> Row:
    met = None if settings.quick else seconds <= most
    return Row("k", what, ratio=f"{seconds:.2f} s", target=f"<= {most:g} s", met=met, note=f"{what}: {note}",
               figures={"seconds": seconds, **(figures or {})})  # fmt: skip


def _import_seconds(runs: int) -> float:
    code = "import time; t = time.perf_counter(); import streamkm; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    took = [float(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout) for _ in range(runs + 1)]
    return median(took[1:])  # the first may write bytecode


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - started


def _fresh(path: Path, folder: str, settings: Settings) -> dict[str, Any]:
    """The first fit of all, with no compiled kernels anywhere; quick runs do not wait for the compiler."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        environment = {} if settings.quick else {"NUMBA_CACHE_DIR": cache}
        return run_child("first_fits", environment, data=path, k=K, count=1)


def _cached(path: Path) -> dict[str, Any]:
    """A new process with compiled kernels: its first fit over the median of the later ones."""
    found = run_child("first_fits", data=path, k=K, count=1 + LATER)
    return {**found, "beyond": found["seconds"] - median(found["fits"][1:])}
