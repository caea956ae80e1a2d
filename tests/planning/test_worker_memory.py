"""Plans of fits on a Dask cluster: what workers hold counts for them, and what the client holds for the client."""

from __future__ import annotations

import re
from cProfile import Profile
from dataclasses import replace

import numpy as np
import pytest
from distributed import Client, LocalCluster

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import total_memory
from streamkm.engine import cluster_memory
from streamkm.engine.dask_workers import SHARD_ROWS, WorkerMemory
from streamkm.engine.pass_memory import MIB, READ_BYTES
from streamkm.estimators import labelling
from streamkm.estimators.kmeans import settings_of
from streamkm.planning.memory_model import HELD_SHARE, PlannedWorkers
from streamkm.sources.chunks import ChunkRuns
from tests.limits import memory_model
from tests.planning.test_plan import UnreadSource, plan

HELD = 200 * MIB  # resident bytes of a worker
GIB = 1 << 30


def workers_of(limit_bytes, n_workers=2, n_threads=1):
    return (WorkerMemory(n_threads, limit_bytes, HELD),) * n_workers


def planned(source, limit_bytes=64 * GIB, n_workers=2, **changed):
    return plan(source, on_cluster=True, workers=workers_of(limit_bytes, n_workers), **changed)


def test_rows_on_workers_count_for_workers_alone():
    source = UnreadSource(1_000_000, 64)
    here, there = plan(source), planned(source)
    row_bytes = 8 + 64 * 4
    assert here.cluster_on == there.cluster_on == "blocks"
    assert (here.sample_rows, here.drawn_rows) == (there.sample_rows, there.drawn_rows)
    assert here.chunk_bytes == there.chunk_bytes
    assert max(here.memory.values()) - there.memory["sketch"] > 1_000_000 * row_bytes * 0.9
    assert there.workers.memory["lloyd"] - there.workers.base_bytes >= 500_000 * row_bytes
    assert planned(source, n_workers=4).workers.memory["lloyd"] < there.workers.memory["lloyd"]
    assert planned(source, n_workers=4).memory == there.memory
    assert here.workers is None


@pytest.mark.parametrize("n_features", [16, 512])
def test_workers_that_are_too_small_take_the_coreset(n_features):
    source = UnreadSource(256_000_000 // n_features, n_features)
    few = planned(source, 800 * MIB)
    assert few.cluster_on == "coreset"
    assert "workers' memory" in few.why_regime
    assert few.workers.peak_bytes <= few.workers.limit_bytes == int(HELD_SHARE * 800 * MIB)
    assert planned(source, 800 * MIB, n_workers=8).cluster_on == "blocks"


def test_a_refusal_names_the_workers_and_its_remedy_works():
    source = UnreadSource(4_000_000, 64)
    with pytest.raises(MemoryLimitError, match=r"on each of 2 workers .* MiB above the .* that the smallest") as raised:
        planned(source, 800 * MIB, coreset=None)
    remedy = int(re.search(r"at least ([\d,]+) MiB", str(raised.value))[1].replace(",", ""))
    assert planned(source, remedy * MIB, coreset=None).cluster_on == "blocks"
    with pytest.raises(MemoryLimitError, match="workers"):
        planned(source, (remedy - 2) * MIB, coreset=None)


@pytest.mark.parametrize(
    ("n_workers", "n_threads", "shape", "more"),
    [
        (1, 4, (2000, 500_000), {"sketch": "svd"}),
        (2, 1, (300_000, 100_000), {"n_clusters": 3000, "coreset": None}),
        (8, 2, (4_000_000, 64), {"sketch": "svd"}),
    ],
)
def test_workers_of_the_named_limit_are_accepted(n_workers, n_threads, shape, more):
    source = UnreadSource(*shape, sparse=shape[1] > 64)
    for first in (1, 400 * MIB):
        with pytest.raises(MemoryLimitError) as raised:
            plan(source, on_cluster=True, workers=workers_of(first, n_workers, n_threads), **more)
        assert raised.value.on_workers
        named = int(re.search(r"at least ([\d,]+) MiB", str(raised.value))[1].replace(",", "")) * MIB
        plan(source, on_cluster=True, workers=workers_of(named, n_workers, n_threads), **more)


def test_a_refusal_names_the_client():
    with pytest.raises(MemoryLimitError, match=r"in this process, the client of the cluster, above the limit of 300"):
        planned(UnreadSource(1_000_000, 64), memory_limit=300 * MIB)


def test_the_smallest_and_the_fullest_worker_decide():
    large, small = WorkerMemory(4, 8 * GIB, HELD), WorkerMemory(1, 2 * GIB, 0)
    budget = PlannedWorkers.of((large, small, replace(small, held_bytes=GIB)))
    assert (budget.n_workers, budget.n_threads, budget.n_slots) == (3, 4, 6)
    assert budget.limit_bytes == int(HELD_SHARE * 2 * GIB)
    assert budget.base_bytes == GIB + 64 * MIB
    assert PlannedWorkers.of(()) is None


def stages_of(cluster_on="sample", *, n_rows=1_000_000, n_workers=8, n_threads=1, shared_bytes=0, n_chunks=320):
    """Memory of each stage on a worker without anything in it, of rows of 800 bytes in chunks of 16 MiB."""
    sizes = memory_model(
        n_rows=n_rows, sample_rows=50_000, n_clusters=10, n_features=800, n_components=64, n_threads=1, row_bytes=800,
        block_row_bytes=256, sample_floats=0, largest_chunk=16 * MIB, itemsize=4, read_factor=4.0, fitted=False,
        n_chunks=n_chunks, coreset_rows=10_000, shared_bytes=shared_bytes, chunk_bytes=16 * MIB,
    )  # fmt: skip
    workers = PlannedWorkers(
        n_workers=n_workers, n_threads=n_threads, n_slots=n_workers * n_threads, limit_bytes=0, base_bytes=0
    )
    return workers.stages(replace(sizes, cluster_on=cluster_on))


def test_memory_of_a_worker_grows_by_its_labels_alone():
    few, many = (stages_of(n_rows=n * 10**6, n_chunks=n * 320) for n in (10, 100_000))
    assert few["sketch"] == many["sketch"] >= 4 * 16 * MIB + READ_BYTES
    # an eighth of all in whole shards, and those of a shard that is in work: a shard has no more, of however many rows
    more = many["assign"] - few["assign"]
    assert 4 * 99_990 * 10**6 / 8 <= more <= 5 * (99_990 * 10**6 / 8 + 2 * SHARD_ROWS)
    threads = max(stages_of(n_workers=4, n_threads=2).values()) - max(stages_of().values())
    assert threads >= 4 * 16 * MIB + READ_BYTES  # another chunk that is read
    drawn = [stages_of("coreset", n_rows=n * 10**6, n_chunks=n * 320)["sketch"] for n in (1000, 10_000)]
    assert drawn[0] == drawn[1]
    # blocks that are kept are shared out
    held = [stages_of("blocks", n_workers=n)["sketch"] for n in (1, 4)]
    assert held[0] - held[1] == pytest.approx(0.75 * 10**6 * (8 + 256), abs=2)


def test_results_of_stretches_wait_on_a_worker():
    """Where chunks share storage: of two stretches of six shards each, in place of two shards."""
    by_turns, by_stretches = (stages_of(n_workers=2, n_chunks=24, shared_bytes=n) for n in (0, 16 * MIB))
    more, sums = by_stretches["assign"] - by_turns["assign"], 8 * 10 * 800  # labels are those of all its rows in both
    assert 10 * sums <= more <= 40 * sums
    alone = [stages_of(n_workers=1, n_chunks=24, shared_bytes=n) for n in (0, 16 * MIB)]
    assert alone[0] == alone[1]


class ManyRows(UnreadSource):
    """Rows whose chunks are counted, not made."""

    def chunks(self, target_bytes):
        row_bytes = self.n_features * self.dtype.itemsize
        return ChunkRuns.even(self.n_rows, target_bytes // row_bytes, row_bytes)


def test_a_fit_of_1e12_rows_is_planned_in_fewer_calls_than_it_has_chunks():
    """Of 768 float16 values in 65,536 clusters, by 1,000 workers of 16 threads, which hold all sketched rows."""
    with Profile() as profile:
        found = plan(
            ManyRows(10**12, 768, dtype=np.float16), n_clusters=65_536, memory_limit=64 * GIB, gathers_labels=False,
            on_cluster=True, workers=workers_of(640 * GIB, 1000, 16),
        )  # fmt: skip
    assert sum(entry.callcount for entry in profile.getstats()) < found.n_chunks <= 1.001 * 2**23
    assert found.cluster_on == "blocks"
    assert found.peak_bytes <= 16 * GIB
    held = 10**12 * (8 + 4 * 96) / 1000
    assert held < found.workers.peak_bytes < held + 64 * GIB


def test_rows_that_are_not_counted_are_held_by_workers():
    """A fit on threads may write them to disk, so neither runs epochs of moving averages."""
    chunks = [np.zeros((10, 4))]
    got = StreamKMeans(2, coreset=None).plan(lambda: iter(chunks))
    assert got.cluster_on == "spilled"
    assert got.epochs(settings_of(StreamKMeans(70), 0), 10**6, stored=None, here=True) is None


def test_the_scheduler_tells_the_memory_of_workers(client):
    found = cluster_memory(client)
    told = client.scheduler_info()["workers"].values()
    assert [worker.limit_bytes for worker in found] == [worker["memory_limit"] for worker in told]
    assert [worker.n_threads for worker in found] == [1, 1]
    assert all(worker.held_bytes > 50 * MIB for worker in found)
    assert cluster_memory(2) == ()


def started(limit):
    return LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=limit)


@pytest.mark.slow
def test_fits_by_workers_with_little_memory_and_without_a_limit(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).random((1_000_000, 16), np.float32))
    settings = {"n_clusters": 5, "random_state": 0, "progress": False}
    with started(0) as cluster, Client(cluster, set_as_default=False) as client:
        found = cluster_memory(client)
        assert [worker.limit_bytes for worker in found] == [total_memory() // 2] * 2
        base = PlannedWorkers.of(found).base_bytes
    with started(int((base + 36 * MIB) / HELD_SHARE)) as cluster, Client(cluster, set_as_default=False) as client:
        fitted = StreamKMeans(executor=client, **settings).fit(path)
        assert fitted.plan_.cluster_on == "coreset"
        assert len(fitted.labels_) == 1_000_000
        with pytest.raises(MemoryLimitError, match="on each of 2 workers"):
            StreamKMeans(executor=client, coreset=None, **settings).fit(path)


def test_epochs_of_kernel_fits_keep_the_limit_of_workers(monkeypatch):
    source, told = UnreadSource(400_000, 32), {}
    fit = StreamKernelKMeans(100, fit_on="all", n_landmarks=200, random_state=0)
    monkeypatch.setattr(labelling, "is_on_cluster", lambda _: True)
    for mib in (4096, 700, 640):
        monkeypatch.setattr(labelling, "cluster_memory", lambda _, mib=mib: workers_of(mib * MIB))
        found = fit.plan(source)
        told[mib] = found.epoch_room, found.epochs(fit._chosen(source, 0)[1], 400_000, stored=None, here=False)
    rooms = [room.gathered for room, _ in told.values()]
    assert rooms[0] > 400_000 > rooms[1] > rooms[2]
    assert (told[4096][1].place, told[4096][1].n_drawn) == ("worker", None)
    assert told[640][1].n_drawn == 102_400
    monkeypatch.setattr(labelling, "cluster_memory", lambda _: workers_of(400 * MIB))
    with pytest.raises(MemoryLimitError, match="start workers with a memory limit of at least"):
        fit.plan(source)
