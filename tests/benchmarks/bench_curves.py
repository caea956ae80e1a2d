"""Objective against processor seconds, a curve a method by its effort, on three data sets.

    python -m tests.benchmarks.bench_curves FOLDER --mnist mnist.h5   # measures what the CSV lacks, and draws
    python -m tests.benchmarks.bench_curves                           # draws again

Data that FOLDER lacks are made there. Each run is a process of its own, one at a time, methods by turns, with as many
threads for each. Clocks start with the rows in memory and the packages imported, and end at the labels of all rows.
`quality.objective` judges the labels of all methods. Runs that the CSV has for the same code are not made again, so a
run that was stopped goes on with the same command. The commit of a row is the last one that changed the code measured.
"""

from __future__ import annotations

import argparse
import csv
import logging
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.chart import draw
from tests.benchmarks.measure import ROOT, MissingPeerError, Settings, machine, run_child
from tests.benchmarks.methods import METHODS, OURS, Method
from tests.benchmarks.peers import load
from tests.benchmarks.quality import objective

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "results" / "curves.csv", ROOT / "examples" / "curves.svg"
CODE = ("streamkm", "tests/benchmarks/methods.py")
COLUMNS = (
    "data", "n", "d", "k", "method", "version", "effort", "seed", "seconds_cpu", "seconds_wall", "objective",
    "processor", "threads", "command", "commit",
)  # fmt: skip
COMMAND = "python -m tests.benchmarks.bench_curves FOLDER"
KEY = ("data", "k", "method", "version", "effort", "seed", "processor", "threads", "commit")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")
WAIT = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}  # threads that wait sleep at once

WARM_ROWS = 2000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """Rows and the number of clusters."""

    name: str
    path: Path
    k: int

    @property
    def sparse(self) -> bool:
        return self.path.suffix == ".npz"


@dataclass(frozen=True, slots=True)
class Limits:
    """Of what runs may take."""

    threads: int
    run_s: float  # seconds of a run
    all_s: float  # after which no run starts


def tasks(settings: Settings) -> list[Task]:
    """The three data sets."""
    from tests.benchmarks import data as datasets  # Zarr and SciPy's filters, which processes of runs do not need

    k_embeddings, k_images = (64, 20) if settings.quick else (1024, 100)
    return [
        Task("embeddings", datasets.embeddings(settings), k_embeddings),
        Task("MNIST" if settings.mnist else "images", datasets.images(settings), k_images),
        Task("topics", datasets.topics(settings), 50),
    ]


def one(path: str, k: int, index: int, effort: int, seed: int, threads: int) -> dict[str, Any]:
    """Run an effort of a method in this process."""
    chosen = METHODS[index]
    X = load(Path(path))
    warm_up(chosen, X)
    wall, cpu = time.perf_counter(), time.process_time()
    labels = chosen.run(X, k, seed, threads, **chosen.efforts[effort])
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "n": X.shape[0],
        "d": X.shape[1],
        "seconds_cpu": round(cpu, 3),
        "seconds_wall": round(wall, 3),
        "objective": objective(Path(path), np.asarray(labels)),
    }


def warm_up(method: Method, X: Any) -> None:
    """Import what the method imports and start its threads, by a run on few rows."""
    method.run(X[:WARM_ROWS].copy(), 4, 0, 1, **method.efforts[0])


def measure(todo: Sequence[Task], methods: Sequence[Method], seeds: Sequence[int], limits: Limits, out: Path) -> None:
    """Measure what the CSV lacks, and write each row when it is known."""
    known = {tuple(row[name] for name in KEY) for row in read(out)}
    given_up: set[tuple[str, str]] = set()
    ready: set[str] = set()
    stop = time.monotonic() + limits.all_s
    for task, method, effort, seed in _turns(todo, methods, seeds):
        row = _row(task, method, effort, seed, limits.threads)
        if tuple(row[name] for name in KEY) in known or (task.name, method.name) in given_up:
            continue
        if time.monotonic() > stop:
            log.info("stopped after %g s; the same command goes on", limits.all_s)
            return
        request = {"path": task.path, "k": task.k, "index": METHODS.index(method), "seed": seed}
        if method.name == OURS and task.name not in ready:  # kernels are compiled before
            _child(limits, effort=0, **request)
            ready.add(task.name)
        try:
            found = _child(limits, effort=effort, **request)
        except (MissingPeerError, RuntimeError) as error:
            log.warning("%s, %s, %s: left out: %s", task.name, method.name, row["effort"], str(error).splitlines()[-1])
            given_up.add((task.name, method.name))  # more of it would take longer
            continue
        row |= {name: str(found[name]) for name in ("n", "d", "seconds_cpu", "seconds_wall", "objective")}
        append(out, row)
        log.info("%s", ", ".join(row[name] for name in ("data", "method", "effort", "seconds_cpu", "objective")))


def _turns(
    todo: Sequence[Task], methods: Sequence[Method], seeds: Sequence[int]
) -> Iterator[tuple[Task, Method, int, int]]:
    """Cheap efforts of all methods before dear ones; a method that is not installed is named and left out."""
    missing = {method.name: method.package for method in methods if method.version is None}
    for name, package in missing.items():
        log.warning("%s is left out: %s is not installed", name, package)
    for seed in seeds:
        for effort in range(max(len(method.efforts) for method in methods)):
            for task in todo:
                for method in methods:
                    takes = method.sparse if task.sparse else method.dense
                    if takes and method.name not in missing and effort < len(method.efforts):
                        yield task, method, effort, seed


def said(method: Method, effort: int) -> str:
    """An effort for people, and for the CSV."""
    return ", ".join(f"{name}={value!r}" for name, value in method.efforts[effort].items()) or "default"


def _row(task: Task, method: Method, effort: int, seed: int, threads: int) -> dict[str, str]:
    """What is known of a run before it is made."""
    return {
        "data": task.name,
        "k": str(task.k),
        "method": method.name,
        "version": method.version or "",
        "effort": said(method, effort),
        "seed": str(seed),
        "processor": machine()["processor"],
        "threads": str(threads),
        "command": f'{COMMAND} --data {task.name} --methods "{method.name}" --seeds {seed} --threads {threads}',
        "commit": commit(*CODE),
    }


def _child(limits: Limits, **request: Any) -> dict[str, Any]:
    environment = {**WAIT, **dict.fromkeys(THREADS, str(limits.threads))}
    return run_child("call", environment, limits.run_s, function="bench_curves:one", threads=limits.threads, **request)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV of runs; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, row: dict[str, str], columns: Sequence[str] = COLUMNS) -> None:
    """Write a row behind those of a file, which is made where there is none."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


@lru_cache
def commit(*code: str) -> str:
    """The last commit that changed these paths, with a plus if they were changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words, "--", *code], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    try:
        return git("log", "-1", "--format=%h").strip() + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning("the commit is written as unknown: %s", error)
        return "unknown"


def main(argv: list[str] | None = None) -> None:
    """Measure where a folder is given; draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the data")
    parser.add_argument("--mnist", type=Path, help="HDF5 file of images X")
    parser.add_argument("--data", nargs="+", metavar="NAME", help="some of the data sets")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="some of the methods")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--threads", type=int, default=1, help="of each method")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a run is given up")
    parser.add_argument("--minutes", type=float, default=600, help="no run starts after so many")
    parser.add_argument("--reduced", action="store_true", help="small data, in FOLDER/reduced, with a CSV of their own")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    out, picture = RESULTS, PICTURE
    if args.folder:
        folder = args.folder.absolute() / ("reduced" if args.reduced else "")
        folder.mkdir(parents=True, exist_ok=True)
        if args.reduced:
            out, picture = folder / RESULTS.name, folder / PICTURE.name
        todo = [task for task in tasks(Settings(folder, args.reduced, mnist=args.mnist)) if _named(task, args.data)]
        methods = [method for method in METHODS if _named(method, args.methods)]
        if not todo or not methods:
            parser.error(f"nothing is called {args.data or ''} {args.methods or ''}")
        measure(todo, methods, args.seeds, Limits(args.threads, args.limit, 60 * args.minutes), out)
    draw(read(out), picture)


def _named(what: Task | Method, names: list[str] | None) -> bool:
    return names is None or what.name in names


if __name__ == "__main__":
    main()
