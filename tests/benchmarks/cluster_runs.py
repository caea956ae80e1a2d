"""What benchmarks of a cluster run in processes of their own: fits on workers, dask-ml's, a graph of many chunks."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from distributed import SchedulerPlugin

from streamkm.sources.base import ChunkedSource, Rows, row_places
from streamkm.sources.chunks import Chunk
from tests.benchmarks.quality import objective

CHUNK_ROWS, WIDTH = 50, 16
ITERATIONS = 3


class Made(ChunkedSource):
    """Rows that are made when they are read: as many chunks as one likes, and no file."""

    name, dtype, is_sparse, n_bytes, n_features = "made rows", np.dtype(np.float32), False, None, WIDTH

    def __init__(self, n_chunks: int):
        self.n_rows = n_chunks * CHUNK_ROWS

    def chunks(self, target_bytes: int) -> tuple[Chunk, ...]:
        """Cut by rows, whatever the target."""
        starts = range(0, self.n_rows, CHUNK_ROWS)
        return tuple(Chunk(i, 0, start, start + CHUNK_ROWS, 4 * CHUNK_ROWS * WIDTH) for i, start in enumerate(starts))

    def read(self, chunk: Chunk) -> Rows:
        """Draw rows of a chunk."""
        X = np.random.default_rng(chunk.index).normal(size=(CHUNK_ROWS, WIDTH)).astype(np.float32)
        return Rows(X, row_places(chunk.start, chunk.stop))


class Finished(SchedulerPlugin):
    """Counts tasks by stage as they finish."""

    name = "finished"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Count one."""
        if start == "processing" and finish == "memory":
            self.counts[(key[0] if isinstance(key, tuple) else key).rsplit("-", 1)[0]] += 1


def graph_of(n_chunks: int) -> dict[str, Any]:
    """Tasks by stage, the scheduler's time, and the most memory that the client held."""
    import resource

    from streamkm import StreamKMeans
    from tests.dask_processes import cluster_of

    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), 2) as (_, client):
        client.register_plugin(Finished())
        before, started = client.run_on_scheduler(time.process_time), time.perf_counter()
        source = Made(n_chunks)
        init = source.read(source.chunks(1)[0]).X[:10]
        StreamKMeans(10, init=init, max_iter=ITERATIONS, tol=0, executor=client, chunk_bytes=1, progress=False).fit(
            source
        )
        seconds = time.perf_counter() - started
        spent = client.run_on_scheduler(time.process_time) - before
        tasks = client.run_on_scheduler(lambda dask_scheduler: dict(dask_scheduler.plugins["finished"].counts))
    return {
        "tasks": tasks,
        "scheduler_us": 1e6 * spent / sum(tasks.values()),
        "client_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seconds": seconds,
    }


def fit_on(path: str, k: int, n_workers: int, warm: str, **parameters: Any) -> dict[str, Any]:
    """A fit on so many workers of one thread, after one of `warm`; 0: on one thread of this process."""
    from streamkm import StreamKMeans
    from tests.dask_processes import cluster_of

    def timed(executor: Any, rows: str) -> dict[str, Any]:
        started = time.perf_counter()
        fitted = StreamKMeans(k, random_state=0, executor=executor, progress=False, **parameters).fit(rows)
        took = time.perf_counter() - started
        stages = {stage.name: stage.seconds for stage in fitted.stages_}
        return {"seconds": took, "inertia": fitted.inertia_, "passes": fitted.n_passes_, "stages": stages}

    if n_workers == 0:
        timed(1, warm)
        return timed(1, path)
    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), n_workers) as (_, client):
        timed(client, warm)
        client.get_task_stream()  # from now on
        started, before = time.time(), _processor(client)
        found = timed(client, path)
        after = _processor(client)
        busy = dict.fromkeys(before["workers"], 0.0)
        for task in client.get_task_stream(start=started):
            busy[task["worker"]] += sum(
                part["stop"] - part["start"] for part in task["startstops"] if part["action"] == "compute"
            )
    return {
        **found,
        "busy": list(busy.values()),
        "worker_processor": [after["workers"][name] - before["workers"][name] for name in busy],
        "scheduler_processor": after["scheduler"] - before["scheduler"],
        "client_processor": after["client"] - before["client"],
    }


def _processor(client: Any) -> dict[str, Any]:
    """Seconds of a processor that each process has had so far."""
    return {
        "workers": client.run(time.process_time),
        "scheduler": client.run_on_scheduler(time.process_time),
        "client": time.process_time(),
    }


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
