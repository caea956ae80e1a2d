"""What the machine allows: bytes of a file over read bandwidth, non-zeros over memory bandwidth, products over the GEMM
rate; and how many times the work of one assignment of all rows the clustering of a fit costs.

    python -m tests.benchmarks limits --data FOLDER
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

from tests.benchmarks import data as datasets
from tests.benchmarks.measure import Row, Settings, run_child

CLUSTERING = ("seed", "lloyd", "polish")
PIECE_BYTES = 16 << 20
COPY_BYTES = 256 << 20
GEMM_ROWS, GEMM_BATCH = 16_384, 1024
ASSIGNED_ROWS, ASSIGNED_PIECE = 65_536, 4096
REPEATS = 3


def run(settings: Settings) -> list[Row]:
    """The limits of e, g and h."""
    jobs = [
        ("e", datasets.topics(settings), 50),
        ("g", datasets.digits(settings), 20 if settings.quick else 100),
        ("h", datasets.topics(settings, kind="svmlight", large=True), 50),
    ]
    rows = []
    for letter, path, k in jobs[1:] if settings.quick else jobs:
        found = run_child("call", function="limits:limits_of", data=path, k=k)
        ours = f"{found['equivalents']:.1f} assignments"
        met = None if settings.quick else found["equivalents"] <= 8
        text = ", ".join(f"{name} {value:.3g}" for name, value in found.items() if isinstance(value, float))
        rows.append(Row(letter, f"clustering of {path.name}, k={k}", "one assignment of all rows", ours, "", "", "<= 8",
                        met, text, found))  # fmt: skip
    return rows


def limits_of(data: str, k: int) -> dict[str, Any]:
    """Limits of one fit (seconds), what it took, and its clustering in assignments of all rows."""
    from streamkm import StreamKMeans

    path = Path(data)
    X: Any = sp.csr_array(sp.load_npz(path)) if path.suffix == ".npz" else path
    fits = [StreamKMeans(k, random_state=0, progress=False).fit(X) for _ in range(2)]
    fitted = fits[-1]
    stages = {stage.name: stage.seconds for stage in fitted.stages_}
    some = X[:ASSIGNED_ROWS] if path.suffix == ".npz" else _first_rows(path)
    scale = fitted.n_samples_ / some.shape[0]
    one = scale * _one_assignment(fitted.model_, some)
    values = scale * (some.nnz if sp.issparse(some) else some.size)
    n_bytes = 0 if path.suffix == ".npz" else _stored_bytes(path)
    bandwidth = _memory_bandwidth()
    limits = {
        "fit_s": sum(stages.values()),
        "clustering_s": sum(stages.get(name, 0.0) for name in CLUSTERING),
        "one_assignment_s": one,
        "memory_gb_per_s": bandwidth / 1e9,
        "values_over_memory_s": values * (8 if sp.issparse(some) else some.itemsize) / bandwidth,
        "multiply_adds_of_one_assignment": values * k,
    }
    if n_bytes:
        limits["read_s"] = _read_seconds(path)
        limits["read_gb_per_s"] = n_bytes / limits["read_s"] / 1e9
    if not sp.issparse(some):
        rate = _gemm_rate(fitted.n_features_in_, k)
        limits["gemm_gflop_per_s"] = rate / 1e9
        limits["products_over_gemm_s"] = 2 * values * k / rate
    return {**limits, "equivalents": limits["clustering_s"] / one, "stages": stages}


def _one_assignment(model: Any, X: Any) -> float:
    """Seconds to find the nearest center of each row, all threads, rows in memory as the reader gives them."""
    table = model.table(X.dtype, sparse=sp.issparse(X))
    parts = [X[start : start + ASSIGNED_PIECE] for start in range(0, X.shape[0], ASSIGNED_PIECE)]
    from streamkm.engine import open_executor

    with open_executor(os.cpu_count()), ThreadPoolExecutor(os.cpu_count()) as pool:
        return _median_seconds(lambda: list(pool.map(table.nearest, parts)))


def _first_rows(path: Path) -> Any:
    from streamkm.sources import open_source

    parts, n_rows = [], 0
    for rows in open_source(path).stream(PIECE_BYTES):
        parts.append(rows.X)
        n_rows += rows.X.shape[0]
        if n_rows >= ASSIGNED_ROWS:
            break
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return sp.vstack([sp.csr_array((part.data, part.indices, part.indptr), (part.shape[0], width)) for part in parts],
                     format="csr")  # fmt: skip


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _stored_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in _files(path))


def _read_seconds(path: Path) -> float:
    """Read the stored bytes, from the cache of files as the fits do."""
    buffer = bytearray(PIECE_BYTES)

    def read() -> None:
        for file in _files(path):
            with open(file, "rb", buffering=0) as opened:
                while opened.readinto(buffer):
                    pass

    return _median_seconds(read)


def _memory_bandwidth() -> float:
    """Bytes read and written a second, all threads copying."""
    count = os.cpu_count() or 1
    pairs = [np.ones((2, COPY_BYTES // 16), np.float64) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        took = _median_seconds(lambda: list(pool.map(lambda pair: np.copyto(pair[0], pair[1]), pairs)))
    return count * COPY_BYTES / took


def _gemm_rate(d: int, k: int) -> float:
    """Floating-point operations a second of float32 products in row blocks, BLAS with its own threads."""
    X, C = np.ones((GEMM_ROWS, d), np.float32), np.ones((d, k), np.float32)
    out = np.empty((GEMM_BATCH, k), np.float32)

    def multiply() -> None:
        for start in range(0, GEMM_ROWS, GEMM_BATCH):
            np.matmul(X[start : start + GEMM_BATCH], C, out=out)

    return 2 * GEMM_ROWS * d * k / _median_seconds(multiply)


def _median_seconds(work: Callable[[], Any]) -> float:
    work()
    took = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return median(took)
