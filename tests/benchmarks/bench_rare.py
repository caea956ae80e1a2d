"""Row x: rows that a uniform sample does not show, against the best of scikit-learn's single starts.

Objectives over five seeds, rows shuffled and with the rare ones last and first; processor seconds of both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.measure import Row, Settings

MEDIAN_MOST, WORST_MOST = 1.005, 1.03
SEEDS, STARTS = 5, 10


def run(settings: Settings) -> list[Row]:
    """Row x."""
    n_rows = 5000 if settings.quick else 100_000
    rare: dict[str, Callable[[], NDArray[np.float32]]] = {
        "0.4 % far away, 100 times as wide": lambda: rare_rows(n_rows),
        "0.05 %, 10 times": lambda: rare_rows(n_rows, share=0.0005, far=10),
        "2 %, 1,000 times": lambda: rare_rows(n_rows, share=0.02, far=1000),
        "0.1 %, 30 times, ten times the rows": lambda: rare_rows(10 * n_rows, share=0.001, far=30),
        "a Pareto tail of exponent 2": lambda: rare_rows(n_rows, share=0, tail=2),
    }
    return [_row(name, make(), settings) for name, make in rare.items()]


def rare_rows(
    n_rows: int, *, share: float = 0.004, far: float = 100, tail: float = 0, groups: int = 20, d: int = 10
) -> NDArray[np.float32]:
    """Standard normal rows, of which some lie in small groups far away, or all have a heavy tail (n, d)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, d))
    n_far = max(groups, int(share * n_rows))
    X[:n_far] += far * rng.normal(size=(groups, d))[np.arange(n_far) * groups // n_far]
    if tail:
        X *= 1 + rng.pareto(tail, size=(n_rows, 1))
    return X.astype(np.float32)


def _row(name: str, X: NDArray[np.float32], settings: Settings) -> Row:
    from sklearn.cluster import KMeans

    from streamkm import StreamKMeans

    k, seeds, starts = 25, 1 if settings.quick else SEEDS, 1 if settings.quick else STARTS
    theirs, theirs_s = _timed(lambda seed: KMeans(k, n_init=1, random_state=seed).fit(X).inertia_, starts)
    far = np.argsort(np.square(X).sum(axis=1))
    orders = [np.random.default_rng(1).permutation(len(X)), far, far[::-1]]
    StreamKMeans(k, progress=False).fit(X[:1000])  # compiles
    ours, ours_s = _timed(
        lambda seed: StreamKMeans(k, random_state=seed, progress=False).fit(X[orders[seed % 3]]).inertia_, seeds
    )
    ratios = [found / min(theirs) for found in ours]
    met = None if settings.quick else median(ratios) <= MEDIAN_MOST and max(ratios) <= WORST_MOST
    said = f"median {median(ratios):.4f}, worst {max(ratios):.4f} of the best of {starts}"
    note = f"{said}, in {ours_s:.2f} of {theirs_s:.2f} s a fit"
    figures = {"ratios": ratios, "seconds": ours_s, "theirs": theirs, "their_seconds": theirs_s}
    return Row("x", f"rare rows: {name}", ratio=f"{median(ratios):.4f}", target=f"<= {MEDIAN_MOST}, worst {WORST_MOST}",
               met=met, note=note, figures=figures)  # fmt: skip


def _timed(fit: Callable[[int], float], n_seeds: int) -> tuple[list[float], float]:
    """Objectives for every seed, and the median of the processor seconds."""
    objectives, seconds = [], []
    for seed in range(n_seeds):
        started = time.process_time()
        objectives.append(float(fit(seed)))
        seconds.append(time.process_time() - started)
    return objectives, median(seconds)
