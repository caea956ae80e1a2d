"""Row s: k = 2..50 swept on 200,000 sparse rows, scores included, against one fit at the largest k."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from tests.benchmarks.data import topics
from tests.benchmarks.measure import Row, Settings, run_child

MOST = 30.0  # times one fit: three fits of a sample for each k


def run(settings: Settings) -> list[Row]:
    """Row s."""
    most, path = 10 if settings.quick else 50, topics(settings)
    runs = 1 if settings.quick else settings.runs
    found = run_child("call", function="bench_sweep:measured", data=str(path), most=most, runs=runs)
    ratio, cpu = found["seconds"] / found["fit_seconds"], found["cpu"] / found["fit_cpu"]
    return [
        Row("s", f"sweep k=2..{most}, {path.stem}", f"one fit, k={most}", f"{ratio:.2f} times",
            f"{found['seconds']:.1f} s", f"{found['fit_seconds']:.1f} s", f"<= {MOST:g} times one fit",
            None if settings.quick else ratio <= MOST,
            f"processor seconds: {cpu:.2f} times; k={found['best']} suggested", found),
    ]  # fmt: skip


def measured(data: str, most: int, runs: int) -> dict[str, Any]:
    """Seconds of sweeps and fits by turns, after one of each."""
    import scipy.sparse as sp

    from streamkm import StreamKMeans, sweep

    X = sp.load_npz(data)

    def fit() -> Any:
        return StreamKMeans(most, random_state=0, progress=False).fit(X)

    def swept() -> Any:
        return sweep(X, range(2, most + 1), random_state=0, progress=False)

    took: dict[str, list[float]] = {"seconds": [], "cpu": [], "fit_seconds": [], "fit_cpu": []}
    for run in range(runs + 1):
        for name, work in (("fit_", fit), ("", swept)):
            wall, processor = time.perf_counter(), time.process_time()
            result = work()
            if run:  # the first compiles
                took[f"{name}seconds"].append(time.perf_counter() - wall)
                took[f"{name}cpu"].append(time.process_time() - processor)
    return {**{name: median(values) for name, values in took.items()}, "best": result.best}
