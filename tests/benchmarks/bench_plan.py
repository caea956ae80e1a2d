"""Row v: what `streamkm plan --workers` predicts, against fits on this machine; and the table of README.md here.

    python -m tests.benchmarks plan --data FOLDER --json OUT.json

What Dask costs here is measured first, by calls that do nothing; then, for each data set, what rows cost; then fits by
1, 2 and 4 workers of one thread, which share the processors of this machine with scheduler and client. All data are
read from the page cache.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import data
from tests.benchmarks.measure import Row, Settings, run_child

WORKERS = (1, 2, 4)
WITHIN = 0.3
FEW_CALLS, MANY_CALLS, ROUND_TRIPS = 100, 1100, 50
LARGE_BYTES = 1 << 26
LARGE_ROWS = (10**9, 10**10, 10**11)
LARGE_WORKERS = 200
CLIENT_MEMORY = "1 TiB"


def run(settings: Settings) -> list[Row]:
    """Row v: predicted and measured seconds of each data set and number of workers; then the table of README.md."""
    costs = run_child("call", function="bench_plan:costs_of_dask")
    costs.pop("process")
    told = ", ".join(f"{name} {value:.3g}" for name, value in costs.items())
    rows = [Row("v", "what Dask costs here", note=told, figures=costs)]
    for path, k, sample in _cases(settings):
        planned = run_child("call", function="bench_plan:predicted", path=path, k=k, sample=sample, costs=costs)
        for n_workers in WORKERS:
            fitted = run_child("call", function="bench_plan:fit_by", path=path, k=k, n_workers=n_workers)
            rows.append(_row(settings, path, sample, planned[str(n_workers)], fitted, n_workers))
    return [*rows, *_large(settings)]


def _cases(settings: Settings) -> list[tuple[Path, int, Path | None]]:
    """Data, k, and the sample that is measured in place of the data, if any."""
    few, many = (data.narrow(settings, n) for n in ((2_000, 20_000) if settings.quick else (100_000, 10_000_000)))
    text, more = (data.topics(settings, kind="svmlight", large=large) for large in (False, True))
    k, groups = 10 if settings.quick else 50, data.NARROW_GROUPS
    return [
        (few, groups, None), (data.digits(settings), k, None), (more, k, text), (many, groups, None),
    ]  # fmt: skip


def _row(
    settings: Settings, path: Path, sample: Path | None, planned: dict[str, Any], fitted: dict[str, Any], n_workers: int
) -> Row:
    ratio = planned["seconds"] / fitted["seconds"]
    took = fitted["stages"]
    stages = ", ".join(f"{name} {took.get(name, 0.0):.2f} s: {told:.2f} s" for name, told in planned["stages"].items())
    scaled = "" if sample is None else f"rates of {sample.name}; "
    return Row(
        "v", f"plan of {path.name}, {n_workers} workers", "the fit", f"{ratio:.2f} x", f"{planned['seconds']:.2f} s",
        f"{fitted['seconds']:.2f} s", f"within {WITHIN:.0%}",
        None if settings.quick else 1 - WITHIN <= ratio <= 1 + WITHIN,
        f"{scaled}measured and predicted: {stages}; {planned['tasks']:,} tasks; a worker's memory at most "
        f"{fitted['worker_bytes'] / 2**20:.0f} MiB: {planned['worker_bytes'] / 2**20:.0f} MiB",
        {"planned": planned, "fitted": fitted},
    )  # fmt: skip


def _large(settings: Settings) -> list[Row]:
    """The table of README.md, by rates of what is here."""
    found = run_child("call", function="bench_plan:large", path=data.digits(settings), k=50)
    return [
        Row("v", f"{row['rows']:.0e} rows like {Path(row['path']).name}, {LARGE_WORKERS} workers", "-", row["time"],
            note=f"{row['passes']} passes, {row['read']} read, {row['worker']} a worker, {row['client']} client, "
            f"{row['network']} network, {row['tasks']:,} tasks", figures=row)
        for row in found["rows"]
    ]  # fmt: skip


def _nothing(item: int) -> int:
    return item


def _zeros(n_bytes: int) -> np.ndarray:
    return np.zeros(n_bytes, np.uint8)


def costs_of_dask() -> dict[str, float]:
    """Processor seconds a call of client, scheduler and worker, seconds of a call there and back, bytes a second.

    By the difference between few and many calls, so that what is constant falls out.
    """
    from streamkm.engine import open_executor
    from tests.dask_processes import cluster_of

    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), 1) as (_, client):

        def spent() -> np.ndarray:
            worker = sum(client.run(time.process_time).values())
            return np.array([client.run_on_scheduler(time.process_time), time.process_time(), worker])

        with open_executor(client) as workers:
            took = []
            for n_calls in (FEW_CALLS, FEW_CALLS, MANY_CALLS):
                before = spent()
                list(workers.map("nothing", _nothing, range(n_calls)))
                took.append(spent() - before)
        started = time.perf_counter()
        for i in range(ROUND_TRIPS):
            client.submit(_nothing, i, pure=False).result()
        latency = (time.perf_counter() - started) / ROUND_TRIPS
        client.submit(_zeros, LARGE_BYTES, pure=False).result()
        made = client.submit(_zeros, LARGE_BYTES, pure=False)
        client.submit(len, made).result()  # it is there
        started = time.perf_counter()
        made.result()
        bandwidth = LARGE_BYTES / max(1e-9, time.perf_counter() - started - latency)
    scheduler, here, worker = np.maximum(0.0, (took[2] - took[1]) / (MANY_CALLS - FEW_CALLS)).tolist()
    found = {"scheduler_s": scheduler, "client_s": here, "worker_s": worker, "latency_s": latency}
    return {**found, "bandwidth": bandwidth}


def predicted(path: str, k: int, sample: str | None, costs: dict[str, float]) -> dict[str, Any]:
    """Forecasts of a fit for each number of workers, by one measurement."""
    from streamkm import StreamKMeans
    from streamkm.planning.forecast import Cluster, forecast
    from streamkm.sources import open_source

    kmeans = StreamKMeans(k, random_state=0, progress=False)
    n_rows = None if sample is None else open_source(path).estimated_rows
    first = kmeans.forecast(sample or path, Cluster(1), n_rows)
    found = {}
    for n_workers in WORKERS:
        made = forecast(first.plan, first.rates, Cluster(n_workers, cores=os.cpu_count(), **costs))
        stages = {stage.name: stage.seconds for stage in made.stages}
        bounds = {stage.name: stage.bound for stage in made.stages}
        found[str(n_workers)] = {
            "seconds": made.seconds, "stages": stages, "bounds": bounds, "tasks": made.total("tasks"),
            "worker_bytes": made.worker_bytes, "rates": made.to_dict()["rates"],
        }  # fmt: skip
    return found


def fit_by(path: str, k: int, n_workers: int) -> dict[str, Any]:
    """Seconds of a fit by so many workers of one thread: the better of two, after one that loads kernels."""
    from streamkm import StreamKMeans
    from tests.dask_processes import cluster_of

    fits = []
    with tempfile.TemporaryDirectory() as folder, cluster_of(Path(folder), n_workers) as (_, client):
        for _ in range(3):
            started = time.perf_counter()
            fitted = StreamKMeans(k, random_state=0, executor=client, progress=False).fit(path)
            stages = {stage.name: stage.seconds for stage in fitted.stages_}
            fits.append({"seconds": time.perf_counter() - started, "stages": stages})
        peaks = client.run(_peak_bytes)
    return {
        **min(fits[1:], key=lambda fit: fit["seconds"]),
        "n_iter": fitted.n_iter_,
        "worker_bytes": max(peaks.values()),
    }


def large(path: str, k: int) -> dict[str, Any]:
    """Forecasts for numbers of rows that are not here, by one measurement, with the defaults of `Cluster`."""
    from streamkm import StreamKMeans
    from streamkm.core.memory import human_bytes
    from streamkm.planning.forecast import Cluster, forecast, human_seconds

    kmeans = StreamKMeans(k, memory_limit=CLIENT_MEMORY, random_state=0, progress=False)
    first = kmeans.forecast(path, Cluster(LARGE_WORKERS), LARGE_ROWS[0])
    rows = []
    for n_rows in LARGE_ROWS:
        found = forecast(kmeans.plan(path, n_rows), first.rates, first.cluster)
        rows.append(
            {"path": path, "rows": n_rows, "time": human_seconds(found.seconds), "passes": found.plan.passes,
             "read": human_bytes(found.total("read_bytes")), "worker": human_bytes(found.worker_bytes),
             "client": human_bytes(found.client_bytes), "network": human_bytes(found.total("network_bytes")),
             "tasks": found.total("tasks"), "forecast": found.to_dict()}
        )  # fmt: skip
    return {"rows": rows}


def _peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
