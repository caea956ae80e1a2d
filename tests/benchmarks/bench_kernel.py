"""Rows l and m: kernel k-means of MNIST against scikit-learn's Nystroem and KMeans; features against their products."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from tests.benchmarks import data as benchmark_data
from tests.benchmarks.measure import Row, Settings, paired, ratio_of, run_child

FASTER, SHARE = 5, 0.7
CLUSTERS, LANDMARKS, RANK = 10, 800, 100
RATE_ROWS = 16_384


def run(settings: Settings) -> list[Row]:
    """Rows l, with the peer's truncated SVD and without it, and m."""
    path = settings.folder / "mnist.npz"
    if not path.exists():
        if settings.mnist is None and not settings.quick:
            return [Row("q", "kernel k-means of MNIST", note="not measured: pass --mnist with an HDF5 file")]
        _write(path, settings)
    return [*(_contest(path, settings, svd) for svd in (True, False)), _rate(settings)]


def _contest(path: Path, settings: Settings, svd: bool) -> Row:
    sizes = {"n_landmarks": LANDMARKS, "rank": RANK}
    our_runs, their_runs = paired(
        lambda seed: run_child("call", function="bench_kernel:ours", data=path, seed=seed, **sizes),
        lambda seed: run_child("call", function="bench_kernel:theirs", data=path, seed=seed, svd=svd, **sizes),
        settings,
    )
    ratio = ratio_of(our_runs, their_runs)
    ours, theirs = (mean(run["nmi"] for run in runs) for runs in (our_runs, their_runs))
    first, later = (median(run[key] for run in our_runs) for key in ("seconds", "later"))
    peer = median(run["seconds"] for run in their_runs)
    return Row(
        "q",
        f"kernel k-means in memory, {our_runs[0]['shape']}, k={CLUSTERS}, {LANDMARKS} landmarks, rank {RANK}",
        f"scikit-learn Nystroem, {'TruncatedSVD, ' if svd else ''}KMeans",
        f"{ratio:.1f} x",
        f"NMI {ours:.3f}",
        f"NMI {theirs:.3f}",
        f">= {FASTER} x faster, NMI not below",
        None if settings.quick else ratio >= FASTER and ours >= theirs,
        f"data in memory to labels, first fit of a process, {first:.2f} s to {peer:.2f} s; later fits {later:.2f} s; "
        f"NMI are means of {len(our_runs)} and {len(their_runs)} seeds",
        {"ratio": ratio, "ours": our_runs, "theirs": their_runs},
    )


def _rate(settings: Settings) -> Row:
    repeats = 2 if settings.quick else max(5, settings.runs)
    took = run_child("call", function="bench_kernel:rates", repeats=repeats)
    share = median(gemm / ours for gemm, ours in zip(took["products"], took["features"], strict=True))
    rows, products = (RATE_ROWS / median(took[name]) for name in ("features", "products"))
    return Row(
        "r",
        f"feature rows, 784 features, {LANDMARKS} landmarks, rank {RANK}, one thread",
        "the two matrix products alone",
        f"{share:.0%} of the rate",
        "",
        "",
        f">= {SHARE:.0%}",
        None if settings.quick else share >= SHARE,
        f"{rows:,.0f} rows/s to {products:,.0f} rows/s; whole numbers of one byte "
        f"{RATE_ROWS / median(took['bytes']):,.0f} rows/s",
        took,
    )


def ours(data: Path, seed: int, n_landmarks: int, rank: int) -> dict[str, Any]:
    """Seconds of the first fit and of the next, and NMI with the digits."""
    from sklearn.metrics import normalized_mutual_info_score

    from streamkm import StreamKernelKMeans

    X, y = _read(data)
    took = []
    for _ in range(2):
        started = time.perf_counter()
        fitted = StreamKernelKMeans(
            CLUSTERS, n_landmarks=n_landmarks, rank=rank, random_state=seed, progress=False
        ).fit(X)
        took.append(time.perf_counter() - started)
    return {
        "seconds": took[0],
        "later": took[1],
        "nmi": float(normalized_mutual_info_score(y, fitted.labels_)),
        "inertia": fitted.inertia_ / len(X),
        "stages": {stage.name: stage.seconds for stage in fitted.stages_},
        "shape": f"{X.shape[0]:,} x {X.shape[1]}",
    }


def theirs(data: Path, seed: int, n_landmarks: int, rank: int, svd: bool) -> dict[str, Any]:
    """Seconds of one fit of the pipeline, all threads, and NMI with the digits; gamma by the rule of ours."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.kernel_approximation import Nystroem
    from sklearn.metrics import normalized_mutual_info_score

    X, y = _read(data)
    started = time.perf_counter()
    gamma = 1 / (4 * X.var(axis=0, dtype=np.float64).sum())
    features = Nystroem(gamma=gamma, n_components=n_landmarks, random_state=seed).fit_transform(X)
    if svd:
        features = TruncatedSVD(rank, random_state=seed).fit_transform(features)
    fitted = KMeans(CLUSTERS, random_state=seed).fit(features)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "nmi": float(normalized_mutual_info_score(y, fitted.labels_))}


def rates(repeats: int) -> dict[str, list[float]]:
    """Seconds of features of float32 rows, of bytes, and of the same matrix products alone, by turns, one thread."""
    from threadpoolctl import threadpool_limits

    from streamkm.sketches import Kernel, KernelMap
    from streamkm.sketches.kernel_columns import BATCH_ROWS

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (RATE_ROWS, 784)).astype(np.uint8)
    X = images.astype(np.float32)
    sketch = KernelMap.of(Kernel("rbf", 1e-7), X[:LANDMARKS].copy(), rng.normal(size=(LANDMARKS, RANK)))
    table = np.ascontiguousarray(X[:LANDMARKS].T)
    values, out = np.empty((BATCH_ROWS, LANDMARKS), np.float32), np.empty((BATCH_ROWS, RANK), np.float32)

    def products() -> None:
        for start in range(0, RATE_ROWS, BATCH_ROWS):
            np.matmul(X[start : start + BATCH_ROWS], table, out=values)
            np.matmul(values, sketch.projection, out=out)

    ways = {"features": lambda: sketch.apply(X), "bytes": lambda: sketch.apply(images), "products": products}
    took: dict[str, list[float]] = {name: [] for name in ways}
    with threadpool_limits(1):
        for run in range(repeats + 1):
            for name, work in ways.items():
                started = time.perf_counter()
                work()
                if run:  # the first compiles
                    took[name].append(time.perf_counter() - started)
    return took


def _read(data: Path) -> tuple[Any, Any]:
    with np.load(data) as stored:
        return stored["X"].astype(np.float32), stored["y"]


def _write(path: Path, settings: Settings) -> None:
    """Images and digits as they are, in a file that any process reads quickly."""
    if settings.quick:
        small = benchmark_data.small_images()
        X, y = small.images, small.digits
    else:
        import h5py

        with h5py.File(settings.mnist) as file:
            X, y = file["X"][:], file["y"][:]
    np.savez(path, X=X.reshape(len(X), -1), y=np.ravel(y))
