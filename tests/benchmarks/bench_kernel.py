"""Row q: kernel k-means of MNIST against scikit-learn's Nystroem and KMeans."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from tests.benchmarks import data as benchmark_data
from tests.benchmarks.measure import Row, Settings, paired, ratio_of, run_child

FASTER = 5
CLUSTERS, LANDMARKS, RANK = 10, 800, 100


def run(settings: Settings) -> list[Row]:
    """Row q."""
    path = settings.folder / "mnist.npz"
    if not path.exists():
        if settings.mnist is None and not settings.quick:
            return [Row("q", "kernel k-means of MNIST", note="not measured: pass --mnist with an HDF5 file")]
        _write(path, settings)
    return [_contest(path, settings)]


def _contest(path: Path, settings: Settings) -> Row:
    sizes = {"n_landmarks": LANDMARKS, "rank": RANK}
    our_runs, their_runs = paired(
        lambda seed: run_child("call", function="bench_kernel:ours", data=path, seed=seed, **sizes),
        lambda seed: run_child("call", function="bench_kernel:theirs", data=path, seed=seed, **sizes),
        settings,
    )
    ratio = ratio_of(our_runs, their_runs)
    ours, theirs = (mean(run["nmi"] for run in runs) for runs in (our_runs, their_runs))
    first, later = (median(run[key] for run in our_runs) for key in ("seconds", "later"))
    peer = median(run["seconds"] for run in their_runs)
    return Row(
        "q",
        f"kernel k-means in memory, {our_runs[0]['shape']}, k={CLUSTERS}, {LANDMARKS} landmarks, rank {RANK}",
        "scikit-learn Nystroem, TruncatedSVD, KMeans",
        f"{ratio:.1f} x",
        f"NMI {ours:.3f}",
        f"NMI {theirs:.3f}",
        f">= {FASTER} x faster, NMI not below",
        None if settings.quick else ratio >= FASTER and ours >= theirs,
        f"data in memory to labels, first fit of a process, {first:.2f} s to {peer:.2f} s; later fits {later:.2f} s; "
        f"NMI are means of {len(our_runs)} and {len(their_runs)} seeds",
        {"ratio": ratio, "ours": our_runs, "theirs": their_runs},
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
        "shape": f"{X.shape[0]:,} x {X.shape[1]}",
    }


def theirs(data: Path, seed: int, n_landmarks: int, rank: int) -> dict[str, Any]:
    """Seconds of one fit of the pipeline, all threads, and NMI with the digits; gamma by the rule of ours."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.kernel_approximation import Nystroem
    from sklearn.metrics import normalized_mutual_info_score

    X, y = _read(data)
    started = time.perf_counter()
    gamma = 1 / (4 * X.var(axis=0, dtype=np.float64).sum())
    features = Nystroem(gamma=gamma, n_components=n_landmarks, random_state=seed).fit_transform(X)
    features = TruncatedSVD(rank, random_state=seed).fit_transform(features)
    fitted = KMeans(CLUSTERS, random_state=seed).fit(features)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "nmi": float(normalized_mutual_info_score(y, fitted.labels_))}


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
