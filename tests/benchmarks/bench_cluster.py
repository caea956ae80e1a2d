"""Row u: a Dask cluster of two processes, against dask-ml on the same.

Scheduler and workers are started from the command line. What is measured runs in a fresh process each.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import data
from tests.benchmarks.measure import MissingPeerError, Row, Settings, run_child
from tests.benchmarks.quality import objective

AGAINST_DASK_ML = 30
PEER_ROWS = (1_000_000, 30_000)
OUR_SETTINGS = {
    "": {},
    ", coreset=None, tol=1e-5": {"coreset": None, "tol": 1e-5},
    ", n_init=4, refine=3": {"n_init": 4, "refine": 3},
}


def run(settings: Settings) -> list[Row]:
    """Row u: rows of the target, where dask-ml may have no result, and fewer, where its objective can be seen."""
    return [row for n_rows in PEER_ROWS[: 1 if settings.quick else 2] for row in _against_dask_ml(settings, n_rows)]


def _call(name: str, *, limit_s: float | None = None, **arguments: Any) -> dict[str, Any]:
    return run_child("call", limit_s=limit_s, function=f"bench_cluster:{name}", **arguments)


def _against_dask_ml(settings: Settings, n_rows: int) -> list[Row]:
    path, k = data.digits(settings, n_rows), 20 if settings.quick else 50
    ours = {what: _call("fit_on", path=path, k=k, n_workers=2, **arguments) for what, arguments in OUR_SETTINGS.items()}
    rows = []
    for oversampling in (2, 2 * k)[: 1 if settings.quick else 2]:
        arguments = {"path": path, "k": k, "n_workers": 2, "oversampling": oversampling}
        try:
            theirs: dict[str, Any] | MissingPeerError = _call("dask_ml_on", limit_s=settings.peer_limit_s, **arguments)
        except MissingPeerError as error:
            theirs = error
        peer = f"dask-ml KMeans, oversampling_factor={oversampling}"
        rows += [
            _faster(settings, f"fit of {path.name}, k={k}{what}, 2 workers", peer, run, theirs)
            for what, run in ours.items()
        ]
    return rows


def _faster(
    settings: Settings, what: str, peer: str, ours: dict[str, Any], theirs: dict[str, Any] | MissingPeerError
) -> Row:
    target = f">= {AGAINST_DASK_ML} x faster, lower objective"
    if isinstance(theirs, MissingPeerError):
        least = theirs.least_s / ours["seconds"]
        note = f"{ours['seconds']:.1f} s; {theirs}, so its objective is not known"
        return Row("u", what, peer, f"> {least:.0f} x", f"{ours['inertia']:.6g}", target=target, note=note)
    ratio = theirs["seconds"] / ours["seconds"]
    met = ratio >= AGAINST_DASK_ML and ours["inertia"] <= theirs["inertia"]
    note = (
        f"{ours['seconds']:.1f} to {theirs['seconds']:.1f} s; objective {ours['inertia'] / theirs['inertia']:.4f} x; "
        f"the data are read {ours['passes']} times and {theirs['passes']:.0f} times"
    )
    return Row(
        "u", what, peer, f"{ratio:.1f} x", f"{ours['inertia']:.6g}", f"{theirs['inertia']:.6g}", target,
        None if settings.quick else met, note, {"ours": ours, "theirs": theirs},
    )  # fmt: skip


def fit_on(path: str, k: int, n_workers: int, **parameters: Any) -> dict[str, Any]:
    """A fit on so many workers of one thread, after another."""
    from streamkm import StreamKMeans
    from tests.dask_processes import cluster_of

    def timed(executor: Any) -> dict[str, Any]:
        started = time.perf_counter()
        fitted = StreamKMeans(k, random_state=0, executor=executor, progress=False, **parameters).fit(path)
        took = time.perf_counter() - started
        stages = {stage.name: stage.seconds for stage in fitted.stages_}
        return {"seconds": took, "inertia": fitted.inertia_, "passes": fitted.n_passes_, "stages": stages}

    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), n_workers) as (_, client):
        timed(client)
        return timed(client)


def dask_ml_on(path: str, k: int, n_workers: int, oversampling: int) -> dict[str, Any]:
    """dask-ml's fit on so many workers, and how often it reads the data: reads of blocks by their number."""
    import dask.array as da
    from dask_ml.cluster import KMeans

    from tests.dask_processes import cluster_of

    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), n_workers) as (_, client):
        array = da.from_zarr(str(path)).astype(np.float32)
        reads = Path(folder) / "reads"
        counted = array.map_blocks(_noted, str(reads), dtype=np.float32, meta=np.empty((0, 0), np.float32))
        with client.as_current():
            started = time.perf_counter()
            fitted = KMeans(n_clusters=k, oversampling_factor=oversampling, random_state=0).fit(counted)
            labels = np.asarray(fitted.labels_)
            took = time.perf_counter() - started
        passes = reads.stat().st_size / array.numblocks[0]
        # its own inertia is a sum of distances, not of their squares, where it did not converge
        return {"seconds": took, "inertia": len(labels) * objective(Path(path), labels), "passes": passes}


def _noted(block: np.ndarray, reads: str) -> np.ndarray:
    """Note that a block was read: one byte at the end of a file that all workers share."""
    file = os.open(reads, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, b".")
    finally:
        os.close(file)
    return block
