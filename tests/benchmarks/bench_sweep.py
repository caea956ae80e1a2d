"""Row s: k = 2..200 swept on 200,000 sparse rows, scores included, against one fit at the largest k."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.data import topics
from tests.benchmarks.measure import Row, Settings, run_child

MOST = 5.0  # times one fit
WORST = 1.02  # times the objective of an independent fit
COMPARED = (10, 50, 100, 200)


def run(settings: Settings) -> list[Row]:
    """Row s."""
    most = 20 if settings.quick else 200
    path = topics(settings)
    compared = [k for k in COMPARED if k <= most]
    found = run_child(
        "call", function="bench_sweep:measured", data=str(path), most=most, compared=compared,
        runs=1 if settings.quick else settings.runs,
    )  # fmt: skip
    ratio, cpu = found["seconds"] / found["fit_seconds"], found["cpu"] / found["fit_cpu"]
    worst = max(found["quality"].values())
    verdict = None if settings.quick else True
    return [
        Row("s", f"sweep k=2..{most}, two seeds, {path.stem}", f"one fit, k={most}", f"{ratio:.2f} times",
            f"{found['seconds']:.1f} s", f"{found['fit_seconds']:.1f} s", f"<= {MOST:g} times one fit",
            verdict and ratio <= MOST, f"processor seconds: {cpu:.2f} times; elbow at k={found['best']}", found),
        Row("s", "objective of its centers over all rows, worst k", "independent fits", f"{worst:.4f}",
            ", ".join(f"k={k} {value:.4f}" for k, value in found["quality"].items()), "1", f"<= {WORST:g}",
            verdict and worst <= WORST),
    ]  # fmt: skip


def measured(data: str, most: int, compared: list[int], runs: int) -> dict[str, Any]:
    """Seconds of sweeps and fits by turns, after one of each; objectives of assigning all rows to both's centers."""
    import scipy.sparse as sp

    from streamkm import StreamKMeans, sweep
    from tests.benchmarks.quality import objective

    X = sp.load_npz(data)

    def fit(k: int, **options: Any) -> Any:
        return StreamKMeans(k, random_state=0, progress=False, **options).fit(X)

    def swept() -> Any:
        return sweep(X, range(2, most + 1), random_state=0, progress=False)

    took: dict[str, list[float]] = {"seconds": [], "cpu": [], "fit_seconds": [], "fit_cpu": []}
    for run in range(runs + 1):
        for name, work in (("fit_", lambda: fit(most)), ("", swept)):
            wall, processor = time.perf_counter(), time.process_time()
            result = work()
            if run:  # the first compiles
                took[f"{name}seconds"].append(time.perf_counter() - wall)
                took[f"{name}cpu"].append(time.process_time() - processor)
    quality = {}
    for k in compared:
        ours = fit(k, init=result.centers(k), max_iter=1)
        quality[k] = objective(Path(data), ours.labels_) / objective(Path(data), fit(k).labels_)
    return {**{name: median(values) for name, values in took.items()}, "best": result.best, "quality": quality}
