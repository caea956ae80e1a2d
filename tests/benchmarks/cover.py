"""The chart of the README: time against objective, ours and the peers', on one file of dense rows.

    python -m tests.benchmarks.cover mnist.h5 -k 100    # measures; writes results/cover.json and examples/cover.svg
    python -m tests.benchmarks.cover                    # draws the chart again

Each run is a process of its own, one after the other. Clocks start where packages are imported and end at the labels of
all rows: reading the file counts. Objectives are exact sums of squared distances to the centers found, by one function
for all. Kernels are compiled before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.benchmarks.measure import machine, versions

HERE = Path(__file__).parent
RESULTS, PICTURE = HERE / "results" / "cover.json", HERE.parents[1] / "examples" / "cover.svg"
SEEDS = (0, 1, 2)
LIMIT_S = 60.0


def ours(path: str, k: int, seed: int) -> Any:
    from streamkm import StreamKMeans

    return lambda: StreamKMeans(k, random_state=seed, progress=False).fit(f"{path}:/X").cluster_centers_


def kmeans(path: str, k: int, seed: int) -> Any:
    import h5py  # noqa: F401 - imported before the clock starts
    from sklearn.cluster import KMeans

    return lambda: KMeans(k, random_state=seed).fit(rows(path)).cluster_centers_


def minibatch(path: str, k: int, seed: int) -> Any:
    import h5py  # noqa: F401
    from sklearn.cluster import MiniBatchKMeans

    return lambda: MiniBatchKMeans(k, random_state=seed).fit(rows(path)).cluster_centers_


def faiss(path: str, k: int, seed: int) -> Any:
    import faiss as library
    import h5py  # noqa: F401

    def run() -> Any:
        X = rows(path)
        found = library.Kmeans(X.shape[1], k, seed=seed, niter=25)
        found.train(X)
        found.index.search(X, 1)
        return found.centroids

    return run


def dask_ml(path: str, k: int, seed: int) -> Any:
    import dask.array as da
    from dask_ml.cluster import KMeans

    def run() -> Any:
        X = rows(path)
        found = KMeans(k, random_state=seed).fit(da.from_array(X, chunks=(10_000, X.shape[1])))
        found.labels_.compute()
        return found.cluster_centers_

    return run


METHODS = {
    "streamkm": ours,
    "scikit-learn KMeans": kmeans,
    "MiniBatchKMeans": minibatch,
    "faiss, 25 iterations": faiss,
    "dask-ml KMeans": dask_ml,
}


def rows(path: str) -> Any:
    """All rows of the dataset X, as float32."""
    import h5py

    with h5py.File(path) as file:
        return file["X"][:].astype(np.float32)


def objective(X: Any, centers: Any) -> float:
    """Sum of squared distances of rows to their nearest centers, in float64, some rows at a time."""
    C, total = np.asarray(centers, np.float64), 0.0
    norms = (C * C).sum(axis=1)
    for start in range(0, len(X), 5_000):
        part = X[start : start + 5_000].astype(np.float64)
        nearest = (norms - 2 * part @ C.T).argmin(axis=1)
        total += ((part - C[nearest]) ** 2).sum()
    return total


def one(name: str, path: str, k: int, seed: int) -> dict[str, float]:
    """Run a method in this process."""
    import resource

    run = METHODS[name](path, k, seed)
    started = time.perf_counter()
    centers = run()
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seed": seed, "seconds": seconds, "peak_mib": peak, "objective": objective(rows(path), centers)}


def measure(path: str, k: int) -> dict[str, Any]:
    """Run all methods with all seeds; those that take too long are given up."""
    found: dict[str, Any] = {}
    one_of = [sys.executable, "-m", "tests.benchmarks.cover", path, "-k", str(k), "--one"]
    subprocess.run([*one_of, "streamkm", "0"], check=True, capture_output=True)  # compiles
    for name in METHODS:
        found[name] = []
        for seed in SEEDS:
            try:
                done = subprocess.run([*one_of, name, str(seed)], check=True, capture_output=True, timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                break
            found[name].append(json.loads(done.stdout))
            print(name, found[name][-1], flush=True)
    X = rows(path)
    data = f"{Path(path).stem}, {X.shape[0]:,} x {X.shape[1]}"
    return {
        "data": data,
        "n_clusters": k,
        "limit_s": LIMIT_S,
        "runs": found,
        "machine": machine(),
        "versions": versions(),
    }


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw medians: seconds across, on a logarithmic scale, and how far above the best objective."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    done = {name: runs for name, runs in results["runs"].items() if runs}
    best = min(median(run["objective"] for run in runs) for runs in done.values())
    with mpl.rc_context({"svg.hashsalt": "streamkm", "font.size": 10, "svg.fonttype": "path"}):
        figure = Figure((7.2, 3.4), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        for name, runs in done.items():
            seconds = median(run["seconds"] for run in runs)
            above = 100 * (median(run["objective"] for run in runs) / best - 1)
            mine = name.startswith("streamkm")
            axes.plot(seconds, above, "o" if mine else "s", color="#0b6e4f" if mine else "#555555", markersize=8)
            axes.annotate(
                f"{name}\n{seconds:.2g} s", (seconds, above), xytext=(10, 0), textcoords="offset points", va="center",
                color="#0b6e4f" if mine else "#333333", fontweight="bold" if mine else "normal", fontsize=9,
            )  # fmt: skip
        late = [name for name, runs in results["runs"].items() if not runs]
        if late:
            text = f"{', '.join(late)}: no result in {results['limit_s']:g} s"
            axes.text(0.99, 0.97, text, transform=axes.transAxes, ha="right", va="top", color="#333333", fontsize=9)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.margins(y=0.15)
        axes.set_xticks([1, 2, 5, 10, 20, 50, 100], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlim(low / 1.3, high * 3)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.set_xlabel("seconds from file to labels (median of 3)")
        axes.set_ylabel("objective, % above the best")
        axes.set_title(f"{results['data']}, k={results['n_clusters']}, 2 cores", fontsize=10, loc="left")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))


def main() -> None:
    """Measure where data are given; draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="HDF5 file with rows in the dataset X")
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "SEED"), help="run one, and print what it took")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one[0], args.data, args.k, int(args.one[1]))))
        return
    if args.data:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(measure(args.data, args.k), indent=1) + "\n")
    draw(json.loads(RESULTS.read_text()), PICTURE)


if __name__ == "__main__":
    main()
