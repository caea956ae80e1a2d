"""Rows y and z: thousands of clusters of embeddings, against faiss; certain assignment, against a look at all centers.

Row y: seconds of a fit from .npy to labels, and objectives of the labels about their own means, as faiss' with 10
iterations on all rows and a search; fresh processes, by turns. Row z: processor seconds of one thread, with and without
the index, on embeddings and on rows made bad on purpose; and how they grow with the number of centers.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding.two_level import two_level_plusplus
from streamkm.core.process import ONE_BLAS_THREAD
from streamkm.engine import open_executor
from tests.benchmarks import data as datasets
from tests.benchmarks.measure import MissingPeerError, Row, Settings, run_child

FITS = {
    (300_000, 1024): (0.9925, 2.0, {"max_iter": 20}),
    (300_000, 4096): (0.9945, 3.0, {"max_iter": 16}),
    (1_000_000, 16_384): (1.0, 6.0, {"max_iter": 8}),
}
"""Objective and speed against faiss, and what is passed, by the numbers of rows and clusters."""
FASTER = {4096: 3.0, 65_536: 8.0}
SLOWER = 1.1  # where nothing can be excluded
LONG = 10_000  # clusters, for which faiss takes minutes
ASSIGNED, SEEDED = 20_000, 131_072


def run(settings: Settings) -> list[Row]:
    """Rows y and z."""
    fits = {(6000, 520): (1.0, 1.0, {"max_iter": 3})} if settings.quick else FITS
    paths = {n_rows: datasets.embeddings(settings, n_rows) for n_rows, _ in fits}
    rows = [_fit(settings, paths[n_rows], k, *given) for (n_rows, k), given in fits.items()]
    return [*rows, *_assignments(settings, np.load(paths[min(paths)]))]


def _fit(settings: Settings, path: Path, k: int, most: float, faster: float, parameters: dict[str, Any]) -> Row:
    """A fit against faiss'."""
    ours, theirs = [], []
    what = f"{path.stem}, k={k:,}, {parameters}"
    for _ in range(1 if settings.quick or k > LONG else settings.runs):
        ours.append(run_child("fit", data=path, k=k, **parameters))
        try:
            peer = {"name": "faiss", "data": path, "k": k, "seed": 0, "effort": {"niter": 10}}
            theirs.append(run_child("peer", limit_s=settings.peer_limit_s, **peer))
        except MissingPeerError as missing:
            return Row("y", what, "faiss, 10 iterations", note=str(missing))
    ratio = median(b["seconds"] / a["seconds"] for a, b in zip(ours, theirs, strict=True))
    objective = median(a["objective"] / b["objective"] for a, b in zip(ours, theirs, strict=True))
    met = None if settings.quick else ratio >= faster and objective <= most
    seconds = [median(each["seconds"] for each in side) for side in (ours, theirs)]
    return Row(
        "y", what, "faiss, 10 iterations", f"{ratio:.2f} x", f"{ours[0]['objective']:.5f}",
        f"{theirs[0]['objective']:.5f}", f">= {faster} x, objective <= {most}", met,
        f"{seconds[0]:.1f} of {seconds[1]:.1f} s; objective {objective:.4f} of theirs",
        {"ours": ours, "theirs": theirs},
    )  # fmt: skip


def _assignments(settings: Settings, X: NDArray[np.float32]) -> list[Row]:
    """Labels by an index, and by a look at all centers."""
    rng = np.random.default_rng(0)
    sphere = rng.normal(size=(ASSIGNED, 256)).astype(np.float32)
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    rows = []
    for k in (520,) if settings.quick else (1024, 4096, 16_384, 65_536):
        centers = _centers(X[:SEEDED], k)
        rows.append(_assigned(settings, f"embeddings, k={k:,}", X[-ASSIGNED:], centers, FASTER.get(k)))
    for k in () if settings.quick else (4096,):
        name = f"uniform on the sphere, k={k:,}"
        rows.append(_assigned(settings, name, sphere, sphere[:k].astype(np.float64), 1 / SLOWER))
    return rows


def _centers(X: NDArray[np.float32], k: int) -> NDArray[np.float64]:
    with ONE_BLAS_THREAD, open_executor(2) as executor:
        block = Block(X, row_d2norms(X), NO_WEIGHTS)
        start = two_level_plusplus(block, k, rng=np.random.default_rng(0), executor=executor)
        return lloyd(LocalBlocks.of(executor, block), start, accelerated=True, max_iter=3, tol=1e-9).centers


def _assigned(settings: Settings, what: str, X: NDArray[np.float32], centers: NDArray[np.float64], least: Any) -> Row:
    table = NearestCenters.build(centers, np.float32)
    with ONE_BLAS_THREAD:
        table.index()
        sides = {"all": lambda: table.nearest(X)[:2], "index": lambda: table.lowest(X)}
        found, seconds = {}, {name: [] for name in sides}
        for _ in range(1 if settings.quick else settings.runs):
            for name, side in sides.items():
                started = time.thread_time()
                found[name] = side()
                seconds[name].append(time.thread_time() - started)
    equal = all(np.array_equal(*pair) for pair in zip(found["all"], found["index"], strict=True))
    ratio = median(a / b for a, b in zip(seconds["all"], seconds["index"], strict=True))
    per_row = {name: 1e6 * median(each) / len(X) for name, each in seconds.items()}
    met = None if settings.quick or least is None else equal and ratio >= least
    note = f"{per_row['index']:.1f} of {per_row['all']:.1f} microseconds a row; {'equal' if equal else 'other'} bits"
    target = "" if least is None else f">= {least:.2f} x, equal bits"
    return Row("z", what, "all centers", f"{ratio:.2f} x", target=target, met=met, note=note, figures=seconds)
