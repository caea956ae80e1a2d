"""Row w: nearest centers and row maps by the product kernel, against `matmul` alone and with a search of its products.

Both sides run by turns in one process whose BLAS takes its kernels by itself, or as OPENBLAS_CORETYPE says; the
product kernel has those of NUMBA_CPU_NAME. What is quoted are medians of the ratios of neighbouring runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.kernels.intrinsics.panels import Panels
from tests.benchmarks.measure import Row, Settings

SHAPES = [(d, k) for d in (16, 256, 784) for k in (10, 100, 1024)]
ALONE, SEARCHED, MAPPED, FEWEST = 0.85, {"SkylakeX": 1.0}, 0.8, 50
SEARCHED_ELSEWHERE = 1.5
FLOPS = 1.5e8  # of one run
BATCH_ENTRIES = 1 << 18  # of products that stay in the cache until they are searched


def run(settings: Settings) -> list[Row]:
    """Row w, for one and two threads."""
    kinds = {library["architecture"] for library in threadpool_info() if library.get("internal_api") == "openblas"}
    rows = []
    for n_threads in (1, 2):
        for dtype in (np.float32, np.float64):
            for d, k in SHAPES if not settings.quick else SHAPES[:2]:
                rows.append(_row(d, k, np.dtype(dtype), n_threads, sorted(kinds), 3 if settings.quick else 9))
    return rows


def _row(d: int, k: int, dtype: np.dtype[Any], n_threads: int, kinds: list[str], n_runs: int) -> Row:
    rng = np.random.default_rng(0)
    n_rows = max(384, int(FLOPS / (2 * d * k)) // 96 * 96)
    pieces = [rng.normal(size=(n_rows, d)).astype(dtype) for _ in range(n_threads)]
    centers = rng.normal(size=(k, d))
    table, panels = NearestCenters.build(centers, dtype), Panels.of(np.ascontiguousarray(centers.T, dtype))
    matrix, bias = np.ascontiguousarray(-2 * centers.T, dtype), (centers**2).sum(axis=1).astype(dtype)
    labels = [table.labels(X) for X in pieces]
    agree = all((_searched(X, matrix, bias) == found).mean() > 0.999 for X, found in zip(pieces, labels, strict=True))
    sides: dict[str, Callable[[Any], Any]] = {
        "nearest": table.nearest,
        "labels": table.labels,
        "map": panels.product,
        "matmul": lambda X: np.matmul(X, matrix),
        "searched": lambda X: _searched(X, matrix, bias),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(n_threads) as pool:
        for function in sides.values():
            list(pool.map(function, pieces))
        for _ in range(n_runs):
            for name, function in sides.items():
                start = time.perf_counter()
                list(pool.map(function, pieces))
                seconds[name].append(time.perf_counter() - start)

    def ratio(ours: str, theirs: str) -> float:
        return median(other / own for own, other in zip(seconds[ours], seconds[theirs], strict=True))

    rate = 2 * n_rows * d * k * n_threads / median(seconds["nearest"]) / 1e9
    alone, searched, mapped = ratio("nearest", "matmul"), ratio("nearest", "searched"), ratio("map", "matmul")
    wanted = max(SEARCHED.get(kind, SEARCHED_ELSEWHERE) for kind in kinds) if kinds else 1.0
    met = agree and alone >= ALONE and mapped >= MAPPED if k >= FEWEST else None
    return Row(
        "w",
        f"{dtype}, d={d}, k={k}, {n_threads} threads: {rate:.0f} GFLOP/s",
        f"matmul by {'+'.join(kinds) or 'an unknown BLAS'}",
        f"{alone:.2f} x alone, {searched:.2f} x searched, maps {mapped:.2f} x",
        "same labels" if agree else "OTHER LABELS",
        "",
        f">= {ALONE}, {wanted} (AVX-512) or 0.95, {MAPPED}",
        met,
        f"with exact labels {ratio('labels', 'searched'):.2f} x",
        {"seconds": seconds},
    )


def _searched(X: Any, matrix: Any, bias: Any) -> Any:
    """Labels by products of batches and a search, row by row."""
    n_batch, labels = max(256, BATCH_ENTRIES // max(matrix.shape) // 64 * 64), np.empty(len(X), np.int32)
    for start in range(0, len(X), n_batch):
        products = np.matmul(X[start : start + n_batch], matrix)
        products += bias
        labels[start : start + n_batch] = products.argmin(axis=1)
    return labels
