"""Row l: a Dask cluster of processes, against local threads, against itself with fewer workers, against dask-ml.

Scheduler and workers are started from the command line, so that the scheduler's processor time and the client's memory
are their own. What is measured runs in a fresh process each.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from distributed import SchedulerPlugin

from streamkm.sources.base import Chunk, ChunkedSource, Rows, row_places
from tests.benchmarks import data
from tests.benchmarks.measure import MissingPeerError, Row, Settings, run_child

MOST_CLIENT_BYTES = 500e6
SPEEDUP, OVERHEAD, AGAINST_DASK_ML = 1.7, 1.15, 30
THREADS = "1 local thread"
CHUNK_ROWS, WIDTH = 50, 16
ITERATIONS = 3
MINUTE_ROWS = 8_100_000  # a fit of a minute on one thread
PEER_ROWS = (1_000_000, 30_000)


def run(settings: Settings) -> list[Row]:
    """Row l: the graph of many chunks, two workers and one, one worker and a thread, dask-ml."""
    return [_graph(settings), *_speed(settings), *_peer(settings)]


def _call(name: str, *, limit_s: float | None = None, **arguments: Any) -> dict[str, Any]:
    return run_child("call", limit_s=limit_s, function=f"bench_cluster:{name}", **arguments)


def _graph(settings: Settings) -> Row:
    n_chunks = 400 if settings.quick else 20_000
    found = _call("graph_of", n_chunks=n_chunks)
    tasks = ", ".join(f"{name} {count:,}" for name, count in found["tasks"].items())
    return Row(
        "u",
        f"fit of {n_chunks:,} chunks on 2 workers, {ITERATIONS} iterations",
        "client",
        f"{found['client_bytes'] / 1e6:.0f} MB",
        target=f"client < {MOST_CLIENT_BYTES / 1e6:.0f} MB",
        met=None if settings.quick else found["client_bytes"] < MOST_CLIENT_BYTES,
        note=f"tasks: {tasks}; {found['scheduler_us']:.0f} us of the scheduler's processor time a task; "
        f"{found['seconds']:.1f} s; the client's resident memory at most",
        figures=found,
    )


def _speed(settings: Settings) -> list[Row]:
    path, k = data.digits(settings, MINUTE_ROWS), 20
    took = {
        name: _call("fit_on", path=path, k=k, n_workers=n_workers, warm=data.digits(settings))["seconds"]
        for name, n_workers in ((THREADS, 0), ("1 worker", 1), ("2 workers", 2))
    }
    speedup, overhead = took["1 worker"] / took["2 workers"], took["1 worker"] / took[THREADS]
    note = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items())
    pairs = (
        ("2 workers", "1 worker", speedup, f">= {SPEEDUP} x faster", speedup >= SPEEDUP),
        ("1 worker", THREADS, overhead, f"<= {OVERHEAD} x the time", overhead <= OVERHEAD),
    )
    return [
        Row("u", f"fit of {path.name}, k={k}: {what}", peer, f"{ratio:.2f} x", target=target, note=note, figures=took,
            met=None if settings.quick else met)
        for what, peer, ratio, target, met in pairs
    ]  # fmt: skip


def _peer(settings: Settings) -> list[Row]:
    """dask-ml on the rows of the target, where it may have no result, and on fewer, where its objective can be seen."""
    return [row for n_rows in PEER_ROWS for row in _against_dask_ml(settings, n_rows)][: 2 if settings.quick else None]


def _against_dask_ml(settings: Settings, n_rows: int) -> list[Row]:
    path, k = data.digits(settings, n_rows), 20 if settings.quick else 50
    ours = _call("fit_on", path=path, k=k, n_workers=2, warm=path)
    rows = []
    for oversampling in (2, 2 * k):
        what, peer = f"fit of {path.name}, k={k}, 2 workers", f"dask-ml KMeans, oversampling_factor={oversampling}"
        target = f">= {AGAINST_DASK_ML} x faster, lower objective"
        arguments = {"path": path, "k": k, "n_workers": 2, "oversampling": oversampling}
        try:
            theirs = _call("dask_ml_on", limit_s=settings.peer_limit_s, **arguments)
        except MissingPeerError as error:
            least = error.least_s / ours["seconds"]
            note = f"{ours['seconds']:.1f} s; {error}, so its objective is not known"
            rows.append(Row("u", what, peer, f"> {least:.0f} x", f"{ours['inertia']:.6g}", target=target, note=note))
            continue
        ratio = theirs["seconds"] / ours["seconds"]
        met = ratio >= AGAINST_DASK_ML and ours["inertia"] <= theirs["inertia"]
        rows.append(
            Row("u", what, peer, f"{ratio:.1f} x", f"{ours['inertia']:.6g}", f"{theirs['inertia']:.6g}",
                target, None if settings.quick else met,
                f"{ours['seconds']:.1f} to {theirs['seconds']:.1f} s; the data are read {ours['passes']} times and "
                f"{theirs['passes']:.0f} times", {"ours": ours, "theirs": theirs})
        )  # fmt: skip
    return rows


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


def fit_on(path: str, k: int, n_workers: int, warm: str) -> dict[str, Any]:
    """A fit on so many workers of one thread, after one of `warm`; 0: on one thread of this process."""
    from streamkm import StreamKMeans
    from tests.dask_processes import cluster_of

    def timed(executor: Any) -> dict[str, Any]:
        for rows in (warm, path):
            started = time.perf_counter()
            fitted = StreamKMeans(k, random_state=0, executor=executor, progress=False).fit(rows)
            took = time.perf_counter() - started
        return {"seconds": took, "inertia": fitted.inertia_, "passes": fitted.n_passes_}

    if n_workers == 0:
        return timed(1)
    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), n_workers) as (_, client):
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
            np.asarray(fitted.labels_)
            took = time.perf_counter() - started
        passes = reads.stat().st_size / array.numblocks[0]
        return {"seconds": took, "inertia": float(fitted.inertia_), "passes": passes}


def _noted(block: np.ndarray, reads: str) -> np.ndarray:
    """Note that a block was read: one byte at the end of a file that all workers share."""
    file = os.open(reads, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, b".")
    finally:
        os.close(file)
    return block
