"""Tables end to end: a file, k-means, the label of every row; against what reads such files by pieces otherwise.

``python -m tests.benchmarks.bench_tables [ROWS]``, by hand on an idle machine: each run is a process of its own, and
counts from its start, and from where packages are imported; and the processor seconds of all of it, which other
processes change less. "command" is ``streamkm fit``, which writes labels and a model as well.
The peers read CSV by `pandas.read_csv` in chunks and Parquet by batches of pyarrow (pandas) or polars, give each to
`MiniBatchKMeans.partial_fit`, and read once more to predict and score. Threads of peers that wait do so asleep, with
one thread of BLAS: otherwise what they wait would count as work.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil

K, D, ROWS = 20, 16, 2_000_000


def write(folder: Path, n_rows: int) -> None:
    """Groups of unequal size, as CSV and as Parquet."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    rng = np.random.default_rng(0)
    centers = 4 * rng.normal(size=(K, D))
    group = rng.choice(K, n_rows, p=np.arange(1, K + 1) / (K * (K + 1) / 2))
    X = (centers[group] + rng.normal(size=(n_rows, D))).astype(np.float32).round(4)
    table = pa.table({f"x{j}": X[:, j] for j in range(D)})
    csv.write_csv(table, folder / "x.csv")
    parquet.write_table(table, folder / "x.parquet")


def ours(path: str) -> float:
    """Fit and label; give the objective."""
    from streamkm import StreamKMeans

    return StreamKMeans(K, random_state=0, progress=False).fit(path).inertia_


def command(path: str) -> float:
    """The same on the command line, whose commands import less; give the objective."""
    from streamkm.cli.main import main as streamkm

    out = f"{path}.out"
    options = ["-k", str(K), "--seed", "0", "-q", "--no-report", "--no-checkpoint", "--overwrite", "-o", out]
    streamkm(["fit", path, *options], standalone_mode=False)
    return json.loads(Path(out, "streamkm.json").read_text())["result"]["objective"]


def by_pieces(pieces) -> float:
    """Fit and label by mini-batches; give the objective."""
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(K, random_state=0, n_init=3)
    for X in pieces():
        model.partial_fit(X)
    return -sum(float(model.score(X)) for X in pieces() if len(model.predict(X)))


def pandas_csv(path: str) -> float:
    import pandas as pd

    return by_pieces(lambda: (frame.to_numpy() for frame in pd.read_csv(path, chunksize=50_000)))


def pandas_parquet(path: str) -> float:
    from pyarrow import parquet

    return by_pieces(lambda: (batch.to_pandas().to_numpy() for batch in parquet.ParquetFile(path).iter_batches(50_000)))


def polars_parquet(path: str) -> float:
    import polars as pl

    lazy = pl.scan_parquet(path)
    return by_pieces(lambda: (frame.to_numpy(order="c") for frame in lazy.collect_batches(chunk_size=50_000)))


PACKAGES = {
    "ours": ("streamkm", "pyarrow"),
    "command": (),
    "pandas_csv": ("pandas", "sklearn.cluster"),
    "pandas_parquet": ("pandas", "pyarrow.parquet", "sklearn.cluster"),
    "polars_parquet": ("polars", "sklearn.cluster"),
}
RUNS = {"csv": (ours, command, pandas_csv), "parquet": (ours, command, pandas_parquet, polars_parquet)}


def measured(name: str, path: str) -> dict[str, float]:
    """Run one in a process of its own, which keeps the bytecode of what it imports, as it is kept for any package."""
    program = [sys.executable, "-m", "tests.benchmarks.bench_tables", "--run", name, path]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if name not in {"ours", "command"}:
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(subprocess.run(program, capture_output=True, check=True, env=environment).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {**told, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def run(name: str, path: str) -> None:
    """Run one in this process and print what it took."""
    for package in PACKAGES[name]:
        import_module(package)
    if name == "ours":
        import_module("streamkm").StreamKMeans  # noqa: B018 - which imports what it needs
    started = time.perf_counter()
    objective = globals()[name](path)
    seconds, whole_process = time.perf_counter() - started, time.time() - psutil.Process().create_time()
    print(json.dumps({"whole": whole_process, "seconds": seconds, "objective": objective}))


def main() -> None:
    """Run all, or those that are named, in processes of their own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=int, nargs="?", default=ROWS)
    parser.add_argument("--runs", type=int, default=2, help="runs of each, of which the fastest is told")
    parser.add_argument("--run", nargs=2, metavar=("NAME", "PATH"), help="one, in this process")
    options = parser.parse_args()
    if options.run:
        run(*options.run)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.rows)
        for form, functions in RUNS.items():
            mine = None
            for name in (function.__name__ for function in functions):
                runs = [measured(name, f"{folder}/x.{form}") for _ in range(options.runs)]
                best = min(runs, key=lambda each: each["seconds"])
                mine = mine or best
                kinds = ("whole", "seconds", "processor")
                times = (f"{best[each]:7.2f} s ({best[each] / mine[each]:5.1f} x)" for each in kinds)
                gain = best["objective"] / mine["objective"]
                print(f"{form:8} {name:15} {'  '.join(times)}  objective {gain:.4f} of ours", flush=True)


if __name__ == "__main__":
    main()
