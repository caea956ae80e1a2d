"""The cost model against values computed by hand, what may not grow or fall, the measurement, the command."""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import suppress
from cProfile import Profile
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner

from streamkm import SketchOptions, StreamKMeans
from streamkm.cli.main import main
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError
from streamkm.core.memory import human_bytes
from streamkm.engine.dask_shards import SHARD_ROWS, count_shards, states_of_shards
from streamkm.engine.memory import READ_BYTES
from streamkm.engine.reduction import fold_run, run_lengths, runs_of
from streamkm.planning.forecast import Cluster, Cost, HypotheticalSource, Rates, cost_model, forecast, human_seconds
from streamkm.planning.forecast.cost_model import count_joins
from streamkm.planning.forecast.values import CLIENT_CHUNK_BYTES, CLIENT_CHUNK_S, TOLD_CHUNK_BYTES
from streamkm.planning.memory_budget import MemoryBudget
from streamkm.planning.plan import Plan
from streamkm.planning.plan_parts import PlannedClustering, PlannedReading, PlannedSample, PlannedSketch
from streamkm.sources import open_source
from streamkm.sources.chunking import default_chunk_bytes
from tests.benchmarks.cluster_runs import Finished, Made
from tests.dask_processes import cluster_of
from tests.limits import PROCESS_MEMORY, limited, memory_model
from tests.tables import cases

MIB = 1 << 20
N, K, D, M = 1_000_000, 10, 800, 64
RATES = Rates(
    sample=Cost(0.0, 0.0), sketch=Cost(2e-6, 3e-6), assign=Cost(4e-6, 4e-6, 1.5), step=Cost(1e-6, 1e-6),
    gather_s=0.001, join_s=0.002,
    client={"seed": 1.0, "lloyd": 2.0, "polish": 0.5}, sampled=25_000, iterations=7, chunk_rows=20_000.0,
)  # fmt: skip
FREE = {"scheduler_s": 0.0, "client_s": 0.0, "worker_s": 0.0, "latency_s": 0.0, "bandwidth": math.inf}


def plan_of(n_rows=N, n_chunks=320, cluster_on="sample", **changed):
    needs = memory_model(
        n_rows=n_rows, sample_rows=50_000, n_clusters=K, n_features=D, n_components=M, n_threads=1, row_bytes=D,
        block_row_bytes=4 * M, sample_floats=0, largest_chunk=16 * MIB, itemsize=4, read_factor=4.0, fitted=False,
        n_chunks=n_chunks, coreset_rows=10_000,
    )  # fmt: skip
    plan = Plan(
        source="made", n_rows=n_rows, n_features=D, stored_bytes=300 * n_rows,
        sketching=PlannedSketch("countsketch", M, ""), sampling=PlannedSample(sample_rows=50_000),
        clustering=PlannedClustering(
            cluster_on=cluster_on, why_regime="", coreset="sensitivity", assign_space="original"
        ),
        reading=PlannedReading(passes=2, counts_first=False, chunk_bytes=16 * MIB, n_chunks=n_chunks, n_threads=1),
        memory={"sketch": 600 * MIB}, memory_model=needs, limit_bytes=1 << 40, base_bytes=300 * MIB,
        process_memory=300 * MIB,
    )  # fmt: skip
    return replace(plan, **changed)


def stage(found, name):
    (step,) = (step for step in found.stages if step.name == name)
    return step


def seconds(cluster, plan=None, rates=RATES):
    return forecast(plan or plan_of(), rates, cluster).seconds


def test_one_free_worker_takes_what_its_rows_cost():
    found = forecast(plan_of(), replace(RATES, gather_s=0.0, join_s=0.0), Cluster(1, **FREE))
    assert stage(found, "sketch").seconds == pytest.approx(3e-6 * N)  # processors are busier than the thread
    assert stage(found, "assign").seconds == pytest.approx(4e-6 * N)  # alone: no crowd
    assert [stage(found, name).seconds for name in ("seed", "lloyd", "polish")] == [2.0, 4.0, 1.0]  # twice the sample
    assert found.seconds == pytest.approx(3 + 4 + 7)


def test_stages_by_hand():
    cluster = Cluster(
        4, 2, scheduler_s=0.001, client_s=0.002, worker_s=0.003, latency_s=0.005, bandwidth=1e9, storage=1e8
    )
    found = forecast(plan_of(), RATES, cluster)
    # 320 chunks in 24 runs, each a shard of three tasks, four joins, and what is shared; eight threads take three turns
    assert len(run_lengths(320, 24)) == 24
    sketch, tasks = stage(found, "sketch"), 3 * 24 + 4 + 1
    assert sketch.tasks == tasks
    workers = max(3 * N / 24 * 2e-6, N * 3e-6 / 8) + (tasks * 0.003 + 320 * 0.001) / 8  # that join what chunks tell
    client = tasks * 0.002 + 320 * CLIENT_CHUNK_S
    storage = 300 * N / 1e8
    assert sketch.bound == "storage"
    assert storage > workers > client
    told = 75_000 * (D + 16) + 320 * TOLD_CHUNK_BYTES
    bounds = {"workers": workers, "client": client, "storage": storage, "scheduler": tasks * 0.001}
    assert sketch.bounds == pytest.approx({**bounds, "network": 2 * told / 1e9})
    assert sketch.seconds == pytest.approx(2 * 0.005 + storage + 0.005)
    assert sketch.read_bytes == 300 * N
    # a result goes to the scheduler first, and then to the client
    assert (sketch.client_bytes, sketch.network_bytes, sketch.scheduler_bytes) == (told, 2 * told, told)
    # sums of 64,000 bytes: 24 runs, three joins of eight, one of what these give
    f, u = 8 * K * D, 8 * K * D / 1e9
    assert count_joins(24 * [[0]]) == 4
    quick = forecast(plan_of(), RATES, replace(cluster, storage=math.inf))
    assign, tasks = stage(quick, "assign"), 2 * 24 + 4 + 1
    shared = f + 4 * D * 16  # the table is padded to 16 lanes
    work = max(3 * N / 24 * 4e-6 * 1.5, N * 4e-6 * 1.5 / 8) + (tasks * 0.003 + 23 * 0.002) / 8
    work += 23 * u / 4  # threads of a worker share its network
    send = (2 + 2) * shared / 1e9 + 2 * 0.005
    assert (assign.tasks, assign.bound) == (tasks, "workers")
    assert assign.seconds == pytest.approx(send + work + 2 * (0.002 + 8 * u + 0.005))
    assert assign.client_bytes == shared + f  # labels stay on the workers
    assert assign.network_bytes == (4 + 1) * shared + 2 * f + 23 * f
    assert assign.scheduler_bytes == shared + f
    assert stage(quick, "sketch").bound == "workers"


def test_joins_that_lie_one_above_the_other():
    runs = (1, 2, 8, 9, 64, 65, 512, 513)
    assert [cost_model._levels(n_runs) for n_runs in runs] == [1, 1, 1, 2, 2, 3, 3, 4]


def test_steps_on_all_rows_by_hand():
    cluster = Cluster(2, scheduler_s=0.5, bandwidth=1e9, latency_s=0.01)
    found = forecast(plan_of(cluster_on="blocks"), RATES, cluster)
    lloyd, tasks = stage(found, "lloyd"), 12 + 4 + 1
    f = 8 * K * M
    shared, add = f + 4 * M * 16, 0.002 * M / D
    step = 3 * shared / 1e9 + 0.02 + tasks * 0.5 + 2 * (add + 8 * f / 1e9 + 0.01)
    assert (lloyd.tasks, lloyd.bound, lloyd.read_bytes) == (7 * tasks, "scheduler", 0)
    assert lloyd.seconds == pytest.approx(7 * step)


def test_one_machine_shares_its_processors():
    rates = replace(RATES, gather_s=0.0, join_s=0.0)
    two, four = (stage(forecast(plan_of(), rates, Cluster(w, cores=2, **FREE)), "assign") for w in (2, 4))
    assert two.seconds == pytest.approx(12 * N / 24 * 4e-6 * 1.5)  # 24 runs, two at once
    assert four.seconds == two.seconds
    costly = Cluster(2, cores=2, **{**FREE, "scheduler_s": 0.1, "client_s": 0.2, "worker_s": 0.3})
    shared = stage(forecast(plan_of(), rates, costly), "assign")
    tasks = 2 * 12 + 4 + 1
    assert shared.bound == "machine"
    assert shared.seconds == pytest.approx((N * 4e-6 * 1.5 + tasks * 0.6) / 2)
    assert stage(forecast(plan_of(), rates, replace(costly, cores=None, client_s=2.0)), "assign").bound == "client"


@cases("n_runs", [1, 2, 7, 8, 9, 63, 64, 65, 513])
def test_joins_are_those_of_a_fold(n_runs):
    def folded(n):  # level by level, eight at a time; what is left joins at the end
        joins, left = 0, 0
        while n:
            joins, n, rest = joins + n // 8, n // 8, n % 8
            joins, left = joins + (rest + left > 1), 1 if rest + left else 0
        return joins

    assert count_joins(n_runs * [[0]]) == folded(n_runs)


def test_runs_are_those_of_a_fold():
    found = forecast(plan_of(n_chunks=1000), RATES, Cluster(3))
    runs = list(runs_of(range(1000), run_lengths(1000, 24)))
    assert fold_run(runs[0], lambda state, item: ((state or 0) + 1, None))[0] == 13  # 1,000 chunks in 72 runs
    assert len(runs) == 72  # in 12 shards, of which eight are joined, then four, then both
    assert stage(found, "sketch").tasks == 3 * 12 + 3 + 1


def test_more_workers_are_never_slower_until_something_else_is():
    plan = plan_of(n_rows=100 * N, n_chunks=32_000)
    rates = replace(RATES, gather_s=0.0)
    took = [seconds(Cluster(w, **{**FREE, "scheduler_s": 1e-4}), plan, rates) for w in (1, 2, 4, 8, 16, 32, 64, 4000)]
    assert all(more <= fewer for fewer, more in pairwise(took))
    for fewer, more in pairwise(took[1:6]):  # well below the limit, work is halved
        assert more - 7 == pytest.approx((fewer - 7) / 2, rel=0.05)
    # then the client's work, the scheduler's, one turn of runs and the sums are left
    last = forecast(plan, rates, Cluster(4000, **{**FREE, "scheduler_s": 1e-4}))
    assert {stage(last, name).bound for name in ("sketch", "assign")} == {"scheduler"}
    assert last.seconds > 7 + (5 * 2000) * 1e-4


def test_time_and_bytes_are_linear_in_the_rows():
    cluster = Cluster(50)
    few, many = (forecast(plan_of(n_rows=s * N, n_chunks=s * 320), RATES, cluster) for s in (1000, 10_000))
    for name in ("sketch", "assign"):
        assert stage(many, name).seconds == pytest.approx(10 * stage(few, name).seconds, rel=0.01)
    assert many.total("read_bytes") == 10 * few.total("read_bytes")
    # shards: a few a thread, or one for 64 MiB of labels; each takes three calls and two, and few joins
    for found, n_shards in ((few, 150), (many, 10_000 * N / 2**24)):
        assert 5 * n_shards <= found.total("tasks") <= 6.5 * n_shards
    assert [stage(many, name).seconds for name in ("seed", "polish")] == [2.0, 1.0]


def test_memory_of_a_worker_grows_by_its_labels_alone():
    sizes = [forecast(plan_of(n_rows=s * N, n_chunks=s * 320), RATES, Cluster(8)).worker_memory for s in (10, 100_000)]
    assert sizes[0]["sketch"] == sizes[1]["sketch"]
    # an eighth of all in whole shards, and those of a shard that is in work: a shard has no more, of however many rows
    more = sizes[1]["assign"] - sizes[0]["assign"]
    assert 4 * 99_990 * N / 8 <= more <= 5 * (99_990 * N / 8 + 2 * SHARD_ROWS)
    assert sizes[0]["sketch"] >= 300 * MIB + 4 * 16 * MIB + READ_BYTES
    threads = (
        forecast(plan_of(), RATES, Cluster(4, 2)).worker_bytes - forecast(plan_of(), RATES, Cluster(8)).worker_bytes
    )
    assert threads >= 4 * 16 * MIB + READ_BYTES  # another chunk that is read
    coreset = forecast(plan_of(1000 * N, 320_000, "coreset"), RATES, Cluster(8)).worker_memory
    many = forecast(plan_of(10_000 * N, 3_200_000, "coreset"), RATES, Cluster(8)).worker_memory
    assert coreset["sketch"] == many["sketch"]
    # blocks that are kept are shared out
    held = [forecast(plan_of(cluster_on="blocks"), RATES, Cluster(w)).worker_memory["sketch"] for w in (1, 4)]
    assert held[0] - held[1] == pytest.approx(0.75 * N * (8 + 4 * M), abs=2)


def test_results_of_stretches_wait_on_a_worker():
    """Where chunks share storage: of two stretches of six shards each, in place of two shards."""
    plain = shared = plan_of(n_chunks=24)
    reading = replace(shared.memory_model.reading, shared_bytes=16 * MIB)
    shared = replace(shared, memory_model=replace(shared.memory_model, reading=reading))
    by_turns, by_stretches = (forecast(plan, RATES, Cluster(2)).worker_memory for plan in (plain, shared))
    more, sums = by_stretches["assign"] - by_turns["assign"], 8 * K * D  # labels are those of all its rows in both
    assert 10 * sums <= more <= 40 * sums
    assert forecast(shared, RATES, Cluster(1)).worker_memory == forecast(plain, RATES, Cluster(1)).worker_memory


def test_client_and_scheduler_grow_by_chunks():
    few, many = (forecast(plan_of(n_chunks=n), RATES, Cluster(8)) for n in (1000, 2000))
    assert many.client_bytes - few.client_bytes == 1000 * CLIENT_CHUNK_BYTES
    assert many.client_bytes > 600 * MIB
    assert many.labelled_client_bytes == many.client_bytes  # of few labels
    rows = forecast(plan_of(n_rows=1000 * N), RATES, Cluster(8))
    assert rows.client_bytes == forecast(plan_of(), RATES, Cluster(8)).client_bytes
    assert rows.labelled_client_bytes >= 4000 * N
    assert many.scheduler_bytes > few.scheduler_bytes


def test_other_machines_are_planned_whatever_this_one_has(file):
    """The client's need is marked, with the remedy; only a fit on this machine is refused."""
    kmeans = StreamKMeans(8, random_state=0, memory_limit=limited("1 GiB"))
    found = kmeans.forecast(file, Cluster(200), 10**9)
    told = dict(found.lines())["client memory"]
    assert told.startswith(f"{human_bytes(found.client_bytes)}; {human_bytes(found.labelled_client_bytes)} if labels_")
    assert told.endswith("leave labels on workers (dask_labels_), or write them (fit(..., labels_to=...))")
    assert found.labelled_client_bytes >= 4 * 10**9
    assert found.plan.assign_space == "original"  # labels decide nothing
    few = kmeans.forecast(file, Cluster(2))
    assert dict(few.lines())["client memory"].endswith("if labels_ is asked for")
    hopeless = replace(found, client_bytes=2 << 30)
    assert "2.0 GiB, above the limit of 1.0 GiB: a client of more memory" in dict(hopeless.lines())["client memory"]
    # the remedy: such a fit is planned without the labels
    assert kmeans.plan(file, 10**9, gathers_labels=False).peak_bytes < 1 << 30
    with pytest.raises(MemoryLimitError, match="above the limit"):
        kmeans.plan(file, 10**9)


def test_coresets_pass_by_the_client():
    plan = plan_of(1000 * N, 320_000, "coreset")
    sketch = stage(forecast(plan, RATES, Cluster(100)), "sketch")
    parts = 320_000 * 3125 * (16 + 4 * M)
    assert sketch.client_bytes == pytest.approx(parts + 320_000 * (64 * (D + 16) + TOLD_CHUNK_BYTES))
    assert sketch.bound == "network"  # twice, by way of the scheduler
    assert sketch.bounds["network"] == 2 * sketch.client_bytes / Cluster(100).bandwidth
    assert sketch.bounds["client"] >= 320


def test_workers_are_planned_by_their_limit(file):
    """They hold the sketched rows, or a coreset of these is clustered; the client's memory has no part in it."""
    kmeans = StreamKMeans(8, random_state=0, coreset=None, memory_limit=limited("1 GiB"))
    found = kmeans.forecast(file, Cluster(4, worker_limit=64 << 30), 10**8)
    assert found.plan.cluster_on == "blocks"
    assert found.client_bytes < 1 << 30
    assert found.worker_memory["sketch"] > 10**8 * 64 * 4 // 4
    assert "above" not in dict(found.lines())["worker memory"]
    small = kmeans.forecast(file, Cluster(4), 10**8)
    assert ", above 70% of their limit of 4.0 GiB: workers with a limit of " in dict(small.lines())["worker memory"]


@cases(
    "changed, message",
    [
        ({"worker_limit": 0}, "worker_limit=0; needed: a whole number from 1"),
        ({"workers": 0}, "workers=0; needed: a whole number from 1"),
        ({"threads": 1.5}, "threads=1.5"),
        ({"cores": -1}, "cores=-1"),
        ({"latency_s": -1.0}, "latency_s=-1.0; needed: seconds from 0"),
        ({"scheduler_s": math.inf}, "scheduler_s=inf"),
        ({"bandwidth": 0.0}, "bandwidth=0.0; needed: bytes a second"),
        ({"storage": math.nan}, "storage=nan"),
    ],
)
def test_clusters_that_cannot_be(changed, message):
    with pytest.raises(InvalidParameterError, match=message):
        Cluster(**{"workers": 1, **changed})


def test_seconds_for_people():
    assert [human_seconds(s) for s in (0.1234, 119, 120, 7200, 200_000)] == [
        "0.123 s",
        "119 s",
        "2 min",
        "2 h",
        "2.31 d",
    ]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Dense rows: 4 MB of 64 features around eight points."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(16_000, 64)) + 9 * rng.normal(size=(8, 64))[rng.integers(8, size=16_000)]).astype(np.float32)
    path = tmp_path_factory.mktemp("planning") / "x.npy"
    np.save(path, X)
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Sparse text: 3,000 rows of some 40 words."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("planning") / "x.svm"
    lines = ("0 " + " ".join(f"{j}:1" for j in np.unique(rng.zipf(1.3, 40) % 9000 + 1)) for _ in range(3000))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_source_of_its_own_size_is_cut_as_it_is(file, wide):
    for path in (file, wide):
        source = open_source(str(path))
        scaled = HypotheticalSource(source, source.estimated_rows)
        for target in (10_000, 100_000, 1 << 20):
            cut, found = source.chunks(target), list(scaled.chunks(target))
            assert len(scaled.chunks(target)) == len(found)
            assert sum(chunk.n_bytes for chunk in found) == sum(chunk.n_bytes for chunk in cut)
            assert abs(len(found) - len(cut)) <= 1
        assert scaled.n_bytes == source.n_bytes
        assert scaled.estimated_features == source.estimated_features
        with pytest.raises(TypeError, match="cannot be read"):
            scaled.read(found[0])


def test_the_plan_of_a_scaled_source_is_that_of_a_real_one(tmp_path, file):
    kmeans = StreamKMeans(8, memory_limit="8 GiB")
    X = np.load(file)
    np.save(tmp_path / "more.npy", np.concatenate([X] * 5))
    real, scaled = kmeans.plan(tmp_path / "more.npy"), kmeans.plan(file, 80_000)
    same = replace(scaled, source=real.source, base_bytes=real.base_bytes, memory=real.memory, stored_bytes=0)
    assert replace(same, limit_bytes=real.limit_bytes) == replace(real, stored_bytes=0)
    assert scaled.stored_bytes == pytest.approx(real.stored_bytes, rel=1e-3)


def test_what_cannot_be_scaled(file):
    with pytest.raises(InvalidParameterError, match="n_rows=0; needed: a whole number"):
        StreamKMeans(2).plan(file, 0)
    with pytest.raises(InvalidInputError, match="does not say how many rows"):
        StreamKMeans(2).plan((chunk for chunk in [np.eye(3)]), 10)
    counted = open_source(chunk for chunk in [np.eye(3)])
    counted.n_rows = 3  # known, but there are no chunks that could be more
    with pytest.raises(InvalidInputError, match="cannot be scaled to 10; give a file whose chunks"):
        HypotheticalSource(counted, 10)
    for wrong in (True, 1.5, 2.0, "3", None, -1):
        with pytest.raises(InvalidParameterError, match="needed: a whole number from 1"):
            HypotheticalSource(open_source(file), wrong)
    with pytest.raises(InvalidInputError, match="lies in this process"):
        StreamKMeans(2).forecast(np.eye(30), Cluster(2))
    with pytest.raises(MemoryLimitError, match="above the limit"):
        StreamKMeans(8, memory_limit="1 GiB").plan(file, 10**10)


@pytest.mark.parametrize(
    "options", [{}, {"coreset": "sensitivity"}, {"sketch": SketchOptions("pca", 8)}, {"refine": 1, "coreset": None}]
)
def test_what_is_measured_is_the_fit(file, options):
    kmeans = StreamKMeans(8, random_state=0, memory_limit="8 GiB", **options)
    found = kmeans.forecast(file, Cluster(2))
    fitted = kmeans.fit(file)
    assert [step.name for step in found.stages] == [stage.name for stage in fitted.stages_]
    assert found.total("read_bytes") == fitted.n_passes_ * found.plan.stored_bytes
    assert found.rates.sampled == 16_000
    assert found.rates.sketch.wall > 0
    assert found.rates.assign.cpu > 0
    assert (found.rates.step.wall > 0) == (found.plan.cluster_on == "blocks")
    if found.plan.cluster_on == "blocks":
        assert found.rates.iterations == fitted.n_iter_  # the sample is all rows
    assert all(step.seconds > 0 for step in found.stages)


def test_sparse_rows_are_measured(wide):
    kmeans = StreamKMeans(5, random_state=0, memory_limit="8 GiB")
    found = kmeans.forecast(wide, Cluster(200), 10**9)
    assert found.plan.sketch == "countsketch"
    assert found.plan.n_rows == 10**9
    assert found.plan.n_chunks == found.plan.memory_model.reading.n_chunks
    assert stage(found, "assign").client_bytes < 10**7  # centers and sums
    assert found.labelled_client_bytes > 4 * 10**9
    assert 0 < kmeans.estimate_seconds(wide) < 60
    with pytest.raises(InvalidInputError, match="n_clusters=4000"):
        StreamKMeans(4000).forecast(wide, Cluster(2))


@pytest.mark.slow
def test_tasks_are_those_of_a_real_cluster(tmp_path, reduced):
    def done():
        return Counter(client.run_on_scheduler(lambda dask_scheduler: dict(dask_scheduler.plugins["finished"].counts)))

    kmeans = StreamKMeans(8, random_state=0, chunk_bytes=4 * D, progress=False)
    with cluster_of(tmp_path, 2) as (_, client):
        client.register_plugin(Finished())
        many = 200 if reduced else 400
        for source, changed in ((Made(60), {}), (Made(many), {"refine": 1}), (Made(many), {"coreset": "sensitivity"})):
            kmeans.set_params(coreset="auto", refine=0, executor="auto").set_params(**changed)
            found, before = kmeans.forecast(source, Cluster(2)), done()
            fitted = kmeans.set_params(executor=client).fit(source)
            counts = done() - before
            iterations = fitted.n_iter_ if found.plan.cluster_on == "blocks" else 1
            found = forecast(found.plan, replace(found.rates, iterations=iterations), Cluster(2))
            assert found.total("tasks") == counts.total()
            for step in found.stages:
                called = sum(count for name, count in counts.items() if f"{name}-".startswith(f"{step.name}-"))
                n_shared = iterations if step.name == "lloyd" else 1
                assert called == max(0, step.tasks - n_shared)


def test_batches_of_epochs_are_those_of_a_real_cluster(tmp_path, file):
    def done():
        return Counter(client.run_on_scheduler(lambda dask_scheduler: dict(dask_scheduler.plugins["finished"].counts)))

    kmeans = StreamKMeans(64, random_state=0, coreset=None, chunk_bytes=256 * 500, progress=False)
    found = stage(kmeans.forecast(file, Cluster(2)), "epochs")
    n_batches = 4 * (16_000 // (8 * 64))
    with cluster_of(tmp_path, 2) as (_, client):
        client.register_plugin(Finished())
        fitted = kmeans.set_params(executor=client).fit(file)
        called = sum(count for name, count in done().items() if name.startswith("epoch"))
    assert "epochs" in [step.name for step in fitted.stages_]
    assert called == found.tasks - n_batches  # what is shared is no call


def command(*arguments, code=0):
    result = CliRunner().invoke(main, ["plan", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_command(file):
    output = command(file, "-k", 8, "--workers", 4, "--cores", 2, "--task-time", 0.002, "--worker-memory", "9 MiB")
    for text in (
        "4 workers x 1 threads, one machine of 2 processors",
        "scheduler 2 ms",
        "worker memory",
        "tasks",
        "limit of 9.0 MiB",
    ):
        assert text in output
    found = json.loads(
        command(file, "-k", 8, "--workers", 200, "--rows", "1e9", "--threads", 2, "--storage", 5e9, "--json")
    )
    assert (found["n_rows"], found["cluster"]["threads"], found["cluster"]["storage"]) == (10**9, 2, 5e9)
    assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["stages"]))
    assert found["read_bytes"] == 2 * found["stored_bytes"]
    assert json.loads(command(file, "-k", 8, "--rows", "32000", "--json"))["n_rows"] == 32_000
    assert "from a measurement" in command(file, "-k", 8, "--rows", "32000", "--measure")


@cases(
    "arguments, message",
    [
        (["--workers", 0], "0 is not in the range x>=1"),
        (["--workers", 2, "--threads", 0], "0 is not in the range x>=1"),
        (["--workers", 2, "--rows", "abc"], "'abc' is no whole number from 1"),
        (["--rows", "0"], "'0' is no whole number from 1"),
        (["--rows", "1.5"], "'1.5' is no whole number from 1"),
        (["--rows", "nan"], "'nan' is no whole number from 1"),
        (["--rows", "1e30"], "'1e30' is no whole number"),
        (["--workers", 2, "--bandwidth", 0], "bandwidth=0.0; needed"),
        (["--workers", 2, "--worker-memory", "much"], "memory_limit='much'"),
        (["--cores", 2], "--cores is of use with --workers only"),
        (["--task-time", 2], "--task-time is of use with --workers only"),
    ],
)
def test_command_errors(file, arguments, message):
    assert message in command(file, "-k", 8, *arguments, code=2)


def test_passes_that_label_keep_the_limit_by_chunks_and_then_by_threads(tmp_path):
    np.save(tmp_path / "narrow.npy", np.zeros((400_000, 2), np.float32))
    np.save(tmp_path / "wide.npy", np.zeros((2_000, 400), np.float32))
    narrow, wide = open_source(str(tmp_path / "narrow.npy")), open_source(str(tmp_path / "wide.npy"))

    def sizes(source, limit, asked="auto", n_columns=0, centers_bytes=0, n_threads=8):
        return MemoryBudget.of(limited(limit), source).labelling(
            source, asked, n_threads, centers_bytes=centers_bytes, n_columns=n_columns
        )[:2]

    assert sizes(wide, "4 GiB") == (default_chunk_bytes(wide), 8)
    # a row of 8 bytes gets 32 for its label, and 8 for each further value
    assert sizes(narrow, "4 GiB") == (default_chunk_bytes(narrow) * 8 // 32, 8)
    assert sizes(narrow, "4 GiB", n_columns=4) == (default_chunk_bytes(narrow) * 8 // 64, 8)
    assert sizes(wide, "4 GiB", 3_000_000) == (3_000_000, 8)
    wide.read_factor, wide.producer_bytes = 20.0, 10 << 20
    tight = PROCESS_MEMORY + (60 << 20)
    chunk, n_threads = sizes(wide, tight)
    assert (chunk, n_threads) == (1 << 20, 1)
    assert sizes(wide, tight, centers_bytes=1 << 30) == (1 << 20, 1)  # nothing smaller: not refused
    assert sizes(wide, tight, 3_000_000) == (3_000_000, 1)
    np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float32, (1_000_000, 100))
    large = open_source(str(tmp_path / "large.npy"))
    for limit in (tight, tight + (40 << 20), tight + (200 << 20)):
        assert len({sizes(large, limit, n_threads=count)[0] for count in (1, 2, 4, 8)}) == 1


def test_the_smallest_limit_costs_no_quality(tmp_path):
    """What a sample of the rows there is room for would miss, far groups, is found; or the limit is refused."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 6)).astype(np.float32)
    X[rng.choice(len(X), 240, replace=False)] += np.repeat(100 * rng.normal(size=(12, 6)), 20, axis=0)
    np.save(tmp_path / "x.npy", X)
    path, accepted = str(tmp_path / "x.npy"), []
    for limit in range(300, 400):
        with suppress(MemoryLimitError):
            accepted.append(StreamKMeans(15, memory_limit=limited(f"{limit} MiB")).plan(path))
    assert all(
        plan.sampling.drawn_rows and plan.sampling.keeps_sample and plan.cluster_on != "sample" for plan in accepted
    )
    tight, free = (
        np.median([StreamKMeans(15, memory_limit=limit, random_state=seed, progress=False).fit(path).inertia_
                   for seed in range(3)])
        for limit in (limited(accepted[0].limit_bytes), "auto")
    )  # fmt: skip
    assert tight <= 1.005 * free


def test_a_limit_leaves_the_same_fit_to_any_number_of_threads(tmp_path):
    """Below it, fewer threads run; chunks, and with them coresets, stay what they are for one."""
    X = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (1_500_000, 8))
    X[:] = np.random.default_rng(0).normal(size=(len(X), 8))
    limit = limited(PROCESS_MEMORY + (100 << 20))
    fits = [
        StreamKMeans(5, memory_limit=limit, executor=n, random_state=0, refine=0, progress=False)
        .fit(str(tmp_path / "x.npy"))
        for n in (1, 2, 4)
    ]  # fmt: skip
    for fit in fits[1:]:
        np.testing.assert_array_equal(fit.cluster_centers_, fits[0].cluster_centers_)
        np.testing.assert_array_equal(fit.labels_, fits[0].labels_)
        assert fit.inertia_ == fits[0].inertia_


def test_a_fit_of_1e11_rows_leaves_client_and_scheduler_small():
    """Of bytes of 784 features in chunks of 16 MiB: what both hold of each chunk decides."""
    plan = plan_of(n_rows=10**11, n_chunks=4_673_116)
    found = forecast(plan, RATES, Cluster(200))
    assert found.client_bytes <= 4 << 30
    assert found.scheduler_bytes <= 1 << 30
    assert found.total("tasks") < 40_000
    assert {step.bound for step in found.stages if step.tasks} == {"workers"}


def test_chunks_grow_with_the_largest_sources_alone(file):
    row_bytes = 256
    at_16_mib = 2**23 * 16 * MIB // row_bytes  # rows of as many chunks as are wanted at most

    def chunk_bytes(n_rows):
        return default_chunk_bytes(HypotheticalSource(open_source(file), n_rows))

    assert [chunk_bytes(n) for n in (10**8, 10**11, at_16_mib)] == 3 * [16 * MIB]
    assert chunk_bytes(10 * at_16_mib) == 160 * MIB
    assert default_chunk_bytes(HypotheticalSource(open_source(file), 10 * at_16_mib), largest=64 * MIB) == 64 * MIB


def test_cuts_are_those_of_the_chunks(file, wide):
    for path in (file, wide):
        source = open_source(path)
        for one in (source, HypotheticalSource(source, 10**6)):
            for target in (10_000, 1 << 20):
                sizes = [chunk.n_bytes for chunk in one.chunks(target)]
                assert (len(one.cut(target)), one.cut(target).largest_bytes) == (len(sizes), max(sizes))
                assert one.cut(target).total_bytes == sum(sizes)
    assert open_source(chunk for chunk in [np.eye(3)]).cut(100) == ()


@cases("n_runs", [1, 7, 100, 1000, 20_000, 20_001, 300_000])
def test_workers_are_planned_for_the_calls_of_a_pass(n_runs):
    for n_threads in (1, 8, 300):
        for n_rows in (0, 10**11):
            n_calls = len(states_of_shards(n_runs, n_threads, n_rows))
            assert n_calls == min(n_runs, count_shards(n_threads, n_rows, n_runs))


def test_steps_on_a_few_rows_do_not_grow_with_all():
    """Labels of many clusters are those of the rows that a step looks at: sampled rows, or a coreset."""
    few, many = (memory_of_many(n_rows) for n_rows in (10**7, 10**12))
    for cluster_on, names in (("sample", ("cluster", "polish", "search")), ("coreset", ("cluster", "search"))):
        small, large = few.stages(cluster_on, "original", 0), many.stages(cluster_on, "original", 0)
        assert [small[name] for name in names] == [large[name] for name in names]


def memory_of_many(n_rows):
    return memory_model(
        n_rows=n_rows, sample_rows=50_000, n_clusters=4096, n_features=768, n_components=96, n_threads=1,
        row_bytes=3072, block_row_bytes=384, sample_floats=0, largest_chunk=16 * MIB, itemsize=4, read_factor=4.0,
        fitted=True, n_chunks=320, coreset_rows=10_000, dense=True, labels=False, keeps_sample=True,
    )  # fmt: skip


LARGE_CLUSTER = Cluster(1000, 16, worker_limit=640 << 30, storage=1e12)


@pytest.fixture(scope="module")
def largest(tmp_path_factory):
    """The plan of 1e12 rows of 768 float16 in 65,536 clusters, by 1,000 workers, and the calls that it took."""
    path = tmp_path_factory.mktemp("largest") / "x.npy"
    np.save(path, np.zeros((100_000, 768), np.float16))
    kmeans = StreamKMeans(65_536, n_init=1, random_state=0, memory_limit="64 GiB")
    source = HypotheticalSource(open_source(path), 10**12)
    with Profile() as profile:
        plan = kmeans.plan_for(
            source, n_threads=1, gathers_labels=False, refuses=False, workers=LARGE_CLUSTER.workers_memory
        )
        found = forecast(plan, RATES, LARGE_CLUSTER)
    return path, found, sum(entry.callcount for entry in profile.getstats())


def test_a_fit_of_1e12_rows_is_planned_in_fewer_calls_than_it_has_chunks(largest):
    _, found, n_calls = largest
    assert n_calls < found.plan.n_chunks


def test_a_fit_of_1e12_rows_leaves_client_and_scheduler_small(largest):
    _, found, _ = largest
    assert found.plan.stored_bytes == pytest.approx(1536e12, rel=1e-4)
    assert found.plan.n_chunks <= 1.001 * 2**23
    assert found.client_bytes <= 16 << 30
    assert found.scheduler_bytes <= 2 << 30
    held = 10**12 * (8 + 4 * 96) / 1000
    assert held < found.worker_bytes < held + (64 << 30)
    assert "above" not in dict(found.lines())["worker memory"]


def test_what_does_not_fit_is_forecast_as_with_memory_enough(largest):
    """Portions and small chunks that save some of the memory cost far more than they save."""
    path, kept, _ = largest
    source = HypotheticalSource(open_source(path), 10**12)
    kmeans = StreamKMeans(65_536, n_init=1, random_state=0, memory_limit="64 GiB")
    small = kmeans.plan_for(
        source, n_threads=1, gathers_labels=False, refuses=False,
        workers=replace(LARGE_CLUSTER, worker_limit=64 << 30).workers_memory,
    )  # fmt: skip
    assert small.memory == kept.plan.memory
    assert small.n_chunks == kept.plan.n_chunks
