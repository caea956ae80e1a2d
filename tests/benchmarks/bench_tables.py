"""Tables end to end: a file, k-means, the label of every row; against what reads such files by pieces otherwise.

``python -m tests.benchmarks.bench_tables [ROWS]``, by hand on an idle machine: each run is a process of its own, and
counts from its start, and from where packages are imported; and the processor seconds of all of it, which other
processes change less. "command" is ``streamkm fit``, which writes labels and a model as well.
The peers read CSV by `pandas.read_csv` in chunks and Parquet by batches of pyarrow (pandas) or polars, give each to
`MiniBatchKMeans.partial_fit`, and read once more to predict and score.
"""

from __future__ import annotations

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
    return json.loads(Path(out, "summary.json").read_text())["result"]["objective"]


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
    "ours": ("streamkm.estimators.kmeans", "pyarrow"),
    "command": (),
    "pandas_csv": ("pandas", "sklearn.cluster"),
    "pandas_parquet": ("pandas", "pyarrow.parquet", "sklearn.cluster"),
    "polars_parquet": ("polars", "sklearn.cluster"),
}
RUNS = {
    "csv": (ours, command, pandas_csv),
    "parquet": (ours, command, pandas_parquet, polars_parquet),
}


def measured(name: str, path: str) -> dict[str, float]:
    """Run one in a process of its own, which keeps the bytecode of what it imports, as it is kept for any package."""
    program = [sys.executable, "-m", "tests.benchmarks.bench_tables", name, path]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(subprocess.run(program, capture_output=True, check=True, env=environment).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {**told, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def main() -> None:
    """Run one in this process, or all in processes of their own."""
    if len(sys.argv) == 3:
        name, path = sys.argv[1:]
        for package in PACKAGES[name]:
            import_module(package)
        started = time.perf_counter()
        objective = globals()[name](path)
        seconds, whole = time.perf_counter() - started, time.time() - psutil.Process().create_time()
        print(json.dumps({"whole": whole, "seconds": seconds, "objective": objective}))
        return
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), n_rows)
        for form, functions in RUNS.items():
            found = {}
            for function in functions:
                runs = [measured(function.__name__, f"{folder}/x.{form}") for _ in range(2)]
                found[function.__name__] = min(runs, key=lambda run: run["seconds"])
            mine = found["ours"]
            for name, run in found.items():
                kinds = ("whole", "seconds", "processor")
                times = (f"{run[each]:7.2f} s ({run[each] / mine[each]:4.1f} x)" for each in kinds)
                gain = run["objective"] / mine["objective"]
                print(f"{form:8} {name:15} {'  '.join(times)}  objective {gain:.4f} of ours", flush=True)


if __name__ == "__main__":
    main()
