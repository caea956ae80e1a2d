"""Objective, peak memory and time of many clusters within a memory limit: 1,000,000 x 128 bytes like SIFT, in a file.

    python -m tests.benchmarks.bench_bounded FOLDER   # measures what the CSV lacks, and draws
    python -m tests.benchmarks.bench_bounded          # draws again

Each run is a fresh process, one at a time, with as many threads for each: from the path to the labels of all rows. The
peak is that of resident memory of the whole process. `quality.objective` judges the labels of all methods. A method
that takes rows in memory gets as many, drawn at random, as fill half of what its packages leave of the limit.
"""

from __future__ import annotations

import argparse
import logging
import re
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.bench_curves import THREADS, WAIT, append, commit, read
from tests.benchmarks.chart import draw_bounded as draw
from tests.benchmarks.measure import ROOT, MissingPeerError, machine, run_child
from tests.benchmarks.methods import METHODS, OURS
from tests.benchmarks.quality import objective

RESULTS, PICTURE = Path(__file__).parent / "results" / "bounded.csv", ROOT / "examples" / "bounded.svg"
COLUMNS = (
    "method", "version", "n", "k", "limit_mib", "effort", "seconds_wall", "seconds_cpu", "peak_mib", "objective",
    "note", "processor", "threads", "commit",
)  # fmt: skip
KEY = ("method", "version", "n", "k", "limit_mib", "effort", "threads")
PIECE_ROWS = 8192
PACKAGES_MIB = 100  # that an interpreter and packages take, before rows
EPOCHS, ITERATIONS = 3, 10

log = logging.getLogger(__name__)


def pieces(path: Path, rows: int = PIECE_ROWS) -> Iterator[Any]:
    """Yield rows as float32, some at a time; what was read leaves memory."""
    for start in range(0, len(np.load(path, mmap_mode="r")), rows):
        yield np.load(path, mmap_mode="r")[start : start + rows].astype(np.float32)


def drawn(path: Path, k: int, limit: int) -> Any:
    """Rows in memory as float32: all of them, or a sample that fits the limit."""
    n, d = np.load(path, mmap_mode="r").shape
    room = max(k, (limit - PACKAGES_MIB << 20) // (2 * 4 * d)) if limit else n
    chosen = np.zeros(n, bool)
    chosen[np.random.default_rng(0).choice(n, min(room, n), replace=False)] = True
    X, filled = np.empty((min(room, n), d), np.float32), 0
    for number, piece in enumerate(pieces(path)):
        kept = piece[chosen[number * PIECE_ROWS :][: len(piece)]]
        X[filled : filled + len(kept)] = kept
        filled += len(kept)
    return X


def streamkm(path: Path, k: int, limit: int, threads: int, **effort: Any) -> Any:
    """Its fit of the file within the limit."""
    from streamkm import StreamKMeans

    allowed = f"{limit} MiB" if limit else "auto"
    fitted = StreamKMeans(k, memory_limit=allowed, executor=threads, random_state=0, progress=False, **effort)
    return fitted.fit(path).labels_


def minibatch(path: Path, k: int, limit: int, threads: int) -> Any:
    """Epochs of `partial_fit` over pieces of the file, which hold at least as many rows as there are clusters."""
    from sklearn.cluster import MiniBatchKMeans

    fitted = MiniBatchKMeans(k, n_init=1, init="k-means++" if k <= PIECE_ROWS else "random", random_state=0)
    for _ in range(EPOCHS):
        for piece in pieces(path, max(PIECE_ROWS, k)):
            fitted.partial_fit(piece)
    return np.concatenate([fitted.predict(piece) for piece in pieces(path)])


def faiss(path: Path, k: int, limit: int, threads: int) -> Any:
    """Training on the rows that fit, then a search of all."""
    import faiss as package

    package.omp_set_num_threads(threads)
    X = drawn(path, k, limit)
    found = package.Kmeans(X.shape[1], k, niter=ITERATIONS, max_points_per_centroid=len(X), seed=1)
    found.train(X)
    return np.concatenate([found.assign(piece)[1] for piece in pieces(path)])


def superkmeans(path: Path, k: int, limit: int, threads: int) -> Any:
    """Training on the rows that fit, then the nearest centers of all."""
    from superkmeans import SuperKMeans

    X = drawn(path, k, limit)
    given = {"sampling_fraction": 1.0, "max_points_per_cluster": len(X), "iters": ITERATIONS}
    found = SuperKMeans(k, X.shape[1], n_threads=threads, seed=1, hierarchical=False, **given)
    centers = found.train(X)
    return np.concatenate([np.asarray(found.assign(piece, centers)) for piece in pieces(path)])


def betula(path: Path, k: int, limit: int, threads: int) -> Any:
    """A tree of four leaves a cluster, or of as many as fit half of what is left of the limit, from pieces."""
    from betula_cluster import Betula

    size = {"memory_budget_mb": (limit - PACKAGES_MIB) // 2} if limit else {"max_leaves": max(2000, 4 * k)}
    fitted = Betula(n_clusters=k, feature="spherical", method="kmeans", seed=0, **size)
    for piece in pieces(path):
        fitted.partial_fit(piece)
    fitted.partial_fit()  # clusters the leaves
    return np.concatenate([fitted.predict(piece) for piece in pieces(path)])


def clostera(path: Path, k: int, limit: int, threads: int) -> Any:
    """Lloyd's algorithm after k-means++ on the rows that fit, then the nearest centers of all."""
    from clostera import DenseKMeans

    fitted = DenseKMeans(k=k, seed=0, iterations=ITERATIONS).fit(drawn(path, k, limit))
    return np.concatenate([fitted.predict(piece) for piece in pieces(path)])


METHODS_HERE: dict[str, Callable[..., Any]] = {
    OURS: streamkm, "scikit-learn MiniBatchKMeans": minibatch, "faiss Kmeans": faiss,
    "superkmeans flat": superkmeans, "betula-cluster": betula, "clostera dense": clostera,
}  # fmt: skip


def one(path: str, name: str, k: int, limit: int, threads: int, seconds: int, effort: dict[str, Any]) -> dict[str, Any]:
    """Run a method in this process, which ends after so many processor seconds."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 60))
    wall = time.perf_counter()
    labels = METHODS_HERE[name](Path(path), k, limit, threads, **effort)
    cpu, wall = time.process_time(), time.perf_counter() - wall
    status = Path("/proc/self/status").read_text()
    return {
        "seconds_wall": round(wall, 2),
        "seconds_cpu": round(cpu, 2),
        "peak_mib": round(int(status.split("VmHWM:")[1].split()[0]) / 1024),  # of this process alone
        "objective": objective(Path(path), np.asarray(labels)),
    }


def measure(path: Path, args: argparse.Namespace, out: Path) -> None:
    """Measure what the CSV lacks; a limit that is refused is followed by the limit that the refusal names."""
    versions = {method.name: method.version for method in METHODS}
    todo = [(k, limit, name) for k in args.k for limit in args.limits for name in args.methods if versions[name]]
    effort = {} if args.max_iter is None else {"max_iter": args.max_iter}
    while todo:
        k, limit, name = todo.pop(0)
        given = effort if name == OURS else {}
        row = dict.fromkeys(COLUMNS, "") | {
            "method": name, "version": versions[name], "n": str(args.rows), "k": str(k), "limit_mib": str(limit or ""),
            "effort": ", ".join(f"{key}={value}" for key, value in given.items()), "threads": str(args.threads),
            "processor": machine()["processor"], "commit": commit("streamkm", "tests/benchmarks/bench_bounded.py"),
        }  # fmt: skip
        if any(all(known[each] == row[each] for each in KEY) for known in read(out)):
            continue
        request = {"name": name, "k": k, "limit": limit, "threads": args.threads, "effort": given}
        environment = {**WAIT, **dict.fromkeys(THREADS, str(args.threads))}
        try:
            row |= run_child(
                "call", environment, 12.0 * args.seconds, function="bench_bounded:one", path=path,
                seconds=args.seconds, **request,
            )  # fmt: skip
        except (MissingPeerError, RuntimeError) as error:
            last = str(error).strip().splitlines()[-1]
            row["note"] = f"no result within {args.seconds} processor seconds" if last.endswith("failed:") else last
            if named := re.search(r"raise memory_limit to ([\d,]+) MiB", last):
                row["note"] = f"refused: raise memory_limit to {named[1]} MiB"
                todo.insert(0, (k, int(named[1].replace(",", "")), name))
        append(out, {each: row[each] for each in COLUMNS}, COLUMNS)
        log.info("%s", ", ".join(str(row[each]) for each in COLUMNS[:-3]))


def main(argv: list[str] | None = None) -> None:
    """Measure where a folder is given; draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the data")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--k", nargs="+", type=int, default=[1024, 16_384, 131_072])
    parser.add_argument("--limits", nargs="+", type=int, default=[256, 1024, 0], help="MiB; 0: none")
    parser.add_argument("--methods", nargs="+", default=list(METHODS_HERE), choices=METHODS_HERE)
    parser.add_argument("--max-iter", type=int, help="of streamkm")
    parser.add_argument("--threads", type=int, default=1, help="of each method")
    parser.add_argument("--seconds", type=int, default=600, help="processor time after which a run is given up")
    parser.add_argument("--out", type=Path, default=RESULTS, help="CSV; another one is not drawn")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if args.folder:
        path = args.folder.absolute() / f"gradients-{args.rows}.npy"
        if not path.exists():
            from tests.benchmarks.make_gradients import Gradients, write

            write(path, Gradients(), args.rows)
        measure(path, args, args.out)
    if args.out.absolute() == RESULTS:
        draw(read(RESULTS), PICTURE)


if __name__ == "__main__":
    main()
