"""What benchmarks of a cluster run in processes of their own: fits on workers, and dask-ml's."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.quality import objective


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
