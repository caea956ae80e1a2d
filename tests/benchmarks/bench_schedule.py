"""A grid of schedules of moving averages, and Lloyd's steps alone, on ten data sets of three sizes each.

    python -m tests.benchmarks.bench_schedule FOLDER  # of real data: measures what the CSV lacks, and draws
    python -m tests.benchmarks.bench_schedule         # draws again, and prints a table

A size is a number of rows: all, a half, a quarter. All schedules of a set, a size and a seed begin at the same centers,
found once by the search for starts. They run in one process with one thread, one after the other. The clock is the
processor time of the process, from these centers to the last step: one exact step, epochs, exact steps. Steps behind
epochs are looked at after 2, 4 and 12, in the same run. The objective is the exact one over all rows, a row. Sets,
sizes and seeds that the CSV has for the same code are not measured again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import LloydResult, lloyd
from streamkm.cluster.moving_averages import STEPS_BEFORE, Schedule, moving_averages
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.cluster.seeding.init import Streams, start_centers
from streamkm.cluster.seeding.search_set import Pool
from streamkm.cluster.totals import inertia_of
from streamkm.engine import open_executor
from tests.benchmarks.measure import ROOT, machine, run_child, versions
from tests.benchmarks.raw_rows import append, commit, read
from tests.benchmarks.real_data import SETS, RealData
from tests.benchmarks.schedule_chart import draw, table

RESULTS, PICTURE = Path(__file__).parent / "results" / "schedule_grid.csv", ROOT / "examples" / "schedule.svg"
CODE = ("streamkm/cluster", "streamkm/kernels", "tests/benchmarks/real_data.py")
COLUMNS = (
    "data", "n", "d", "k", "seed", "epochs", "batch_rows", "rate", "steps", "steps_made", "seconds_cpu", "objective",
    "processor", "threads", "versions", "command", "commit",
)  # fmt: skip
COMMAND = "python -m tests.benchmarks.bench_schedule FOLDER"
SHARES = (4, 2, 1)
STEPS, STEPS_ALONE = (2, 4, 12), (12, 25, 100)
TOL = 1e-4  # of a fit, by default
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the grid; without epochs: Lloyd's steps alone.

    Attributes
    ----------
    epochs : int
    batch_rows : int
        For each center.
    rate : float
    """

    epochs: int
    batch_rows: int = 0
    rate: float = 0.0

    def schedule(self, n_rows: int, n_clusters: int) -> Schedule | None:
        """As the algorithm wants it."""
        if not self.epochs:
            return None
        n_batches = max(1, n_rows // (self.batch_rows * n_clusters))
        return Schedule(self.epochs, n_batches, max(STEPS), rate=self.rate)


GRID = (
    Point(0),
    Point(4, 8, 0.4),
    Point(2, 8, 0.4), Point(8, 8, 0.4),
    Point(4, 4, 0.4), Point(4, 16, 0.4),
    Point(4, 8, 0.3), Point(4, 8, 0.5),
    Point(2, 4, 0.4), Point(2, 16, 0.4), Point(8, 4, 0.4), Point(8, 16, 0.4),
    Point(8, 8, 0.3), Point(8, 8, 0.5), Point(8, 16, 0.5),
)  # fmt: skip
MANY_GRID = (*GRID, Point(8, 4, 0.3), Point(8, 4, 0.5), Point(4, 4, 0.3), Point(4, 4, 0.5))
QUICK_GRID = GRID[:2]


@dataclass(slots=True)
class Clock:
    """Processor seconds and means after some of the steps of a run.

    Attributes
    ----------
    stops : tuple of int
        Steps after which to look.
    """

    stops: tuple[int, ...]
    started: float
    seen: dict[int, tuple[float, NDArray[np.float64]]]

    @classmethod
    def begin(cls, stops: tuple[int, ...]) -> Clock:
        """Start it."""
        return cls(stops, time.process_time(), {})

    def step(self, result: LloydResult) -> None:
        """Note a step."""
        if result.n_iter in self.stops:
            means = result.centers if result.means is None else result.means
            self.seen[result.n_iter] = (time.process_time() - self.started, means.copy())

    def end(self, result: LloydResult) -> Iterator[tuple[int, int, float, NDArray[np.float64]]]:
        """Stop it; the steps allowed and made, the seconds and the centers of each stop."""
        last = (time.process_time() - self.started, result.centers)
        for stop in self.stops:
            yield stop, min(stop, result.n_iter), *self.seen.get(stop, last)


def one(name: str, folder: str, n_rows: int, seed: int, quick: bool, k: int = 0) -> list[dict[str, Any]]:
    """All points of the grid on so many rows of a set, in this process."""
    data = next(data for data in SETS if data.name == name and k in (0, data.k))
    X = data.rows(Path(folder))[:n_rows]
    with open_executor(1) as executor:
        block = Block(X, row_d2norms(X), np.empty(0))
        rows = LocalBlocks.of(executor, block)
        streams = Streams(*np.random.default_rng(seed).spawn(2))
        pool = Pool(averaged=True)
        start = start_centers(executor, block, data.k, init="k-means++", n_init="auto", streams=streams, pool=pool)
        for point in GRID[:2]:
            list(_stops(rows, start, point, seed))  # compiles, and finds the rows in the cache
        found = []
        for point in QUICK_GRID if quick else MANY_GRID if data.k >= FEWEST_CENTERS else GRID:
            for steps, made, seconds, centers in list(_stops(rows, start, point, seed)):
                inertia = inertia_of(rows.totals(centers), centers, rows.total_d2norm)
                found.append(
                    {
                        "n": n_rows, "d": X.shape[1], "epochs": point.epochs, "batch_rows": point.batch_rows,
                        "rate": point.rate, "steps": steps, "steps_made": made, "seconds_cpu": f"{seconds:.4f}",
                        "objective": f"{inertia / n_rows:.9g}",
                    }
                )  # fmt: skip
    return found


def _stops(
    rows: LocalBlocks, start: NDArray[np.float64], point: Point, seed: int
) -> Iterator[tuple[int, int, float, NDArray[np.float64]]]:
    """Run a point as a fit would, and stop its clock."""
    schedule = point.schedule(rows.n_rows, len(start))
    run = partial(lloyd, rows, tol=TOL, accelerated=True)
    if schedule is None:
        clock = Clock.begin(STEPS_ALONE)
        return clock.end(run(start, max_iter=max(STEPS_ALONE), on_step=clock.step))
    clock = Clock.begin(STEPS)
    first = run(start, max_iter=STEPS_BEFORE)
    moved = moving_averages(rows, first.centers, schedule, seed=seed, likely=first.labels)
    begun = LloydResult(moved.centers, float("nan"), 0, False, (), labels=first.labels)
    return clock.end(run(begun.centers, max_iter=schedule.n_steps, on_step=clock.step, begun=begun))


@dataclass(frozen=True, slots=True)
class Task:
    """A set, a number of its rows, and a seed."""

    data: RealData
    n_rows: int
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """By which its rows in the CSV are known."""
        found = (self.data.name, self.n_rows, self.data.k, self.seed, machine()["processor"], commit(*CODE))
        return tuple(map(str, found))


def tasks(args: argparse.Namespace, *, quick: bool) -> Iterator[Task]:
    """The small sizes of all sets before the large ones; a set whose files are missing is named and left out."""
    sizes = {}
    for data in SETS:
        if (args.data is None or data.name in args.data) and (args.k is None or data.k in args.k):
            try:
                sizes[data] = len(data.rows(args.folder))
            except OSError as error:
                log.warning("%s is left out: %s", data.name, error)
    for seed in args.seeds:
        for share in args.shares[:1] if quick else args.shares:
            for data, n_rows in sizes.items():
                yield Task(data, n_rows // share, seed)


def measure(todo: Iterator[Task], folder: Path, out: Path, minutes: float, *, quick: bool) -> None:
    """Measure what the CSV lacks, and write the rows of a task when they are known."""
    names = ("data", "n", "k", "seed", "processor", "commit")
    known = {tuple(row[name] for name in names) for row in read(out)}
    stop = time.monotonic() + 60 * minutes
    for task in todo:
        if task.key in known:
            continue
        if time.monotonic() > stop:
            log.info("stopped after %g minutes; the same command goes on", minutes)
            return
        name, seed = task.data.name, task.seed
        request = {
            "name": name,
            "folder": folder,
            "n_rows": task.n_rows,
            "seed": seed,
            "quick": quick,
            "k": task.data.k,
        }
        environment = dict.fromkeys(THREADS, "1")
        found = run_child("call", environment, function="bench_schedule:results_of", request=request)
        shared = {
            **dict(zip(names, task.key, strict=True)),
            "threads": "1",
            "versions": ", ".join(f"{each} {versions()[each]}" for each in ("python", "streamkm", "numpy", "numba")),
            "command": f"{COMMAND} --data {name} --k {task.data.k} --seeds {seed}",
        }
        append(out, COLUMNS, [{**row, **shared} for row in found["rows"]])
        log.info("%s, %d rows, seed %d: %.1f s", name, task.n_rows, seed, found["process"])


def results_of(request: dict[str, Any]) -> dict[str, Any]:
    """As `one`, for the process that asked."""
    return {"rows": one(**request)}


def main(argv: list[str] | None = None) -> None:
    """Measure where a folder is given; draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the files of real data")
    parser.add_argument("--data", nargs="+", metavar="NAME", help="some of the data sets")
    parser.add_argument("--k", nargs="+", type=int, metavar="K", help="some of the numbers of clusters")
    parser.add_argument("--shares", nargs="+", type=int, default=SHARES, metavar="S", help="sizes: 4 is a quarter")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--minutes", type=float, default=600, help="no run starts after so many")
    parser.add_argument(
        "--reduced", type=Path, metavar="OUT", help="few points and rows, with files of their own in OUT"
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    out, picture, quick = RESULTS, PICTURE, args.reduced is not None
    if quick:
        out, picture = args.reduced / RESULTS.name, args.reduced / PICTURE.name
    if args.folder:
        todo = tasks(args, quick=quick)
        measure(todo, args.folder.absolute(), out, args.minutes, quick=quick)
    rows = read(out)
    draw(rows, picture)
    log.info("%s", table(rows))


if __name__ == "__main__":
    main()
