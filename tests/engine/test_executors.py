"""Executors: results in order, one fixed tree of sums, few results in flight, errors; shards make few calls a pass."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from streamkm import StreamKMeans
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.engine import Listener, dask_workers, local_executor, open_executor
from streamkm.engine import reduction as runs
from streamkm.engine.dask import DaskCluster
from streamkm.engine.dask_calls import Held, decoded, encode, future_of, work_on_shard
from streamkm.engine.dask_workers import SHARDS
from streamkm.engine.executor import LocalThreads
from streamkm.engine.reduction import (
    ARITY,
    RUN_LENGTH,
    UNITS,
    JoinTree,
    fold_shard,
    shard_stop,
    shards_of,
    subtree_levels,
)
from streamkm.sources import open_source
from streamkm.sources.chunks import Chunk
from tests.dask_processes import assert_same_bits, watched
from tests.tables import cases, slow_but


def joining(combine):
    """States joined by a function of a list of them, which needs nothing that calls share."""
    return lambda first, second, *shared: combine([first, second])


@pytest.fixture(params=[1, 4, "cluster"])
def executor(request):
    chosen = request.getfixturevalue("client") if request.param == "cluster" else request.param
    with open_executor(chosen) as opened:
        yield opened


def square(item, *shared):
    return item * item + sum(shared)


def slow_square(item):
    time.sleep(0.001 * (item * 7 % 5))
    return item * item


def keep(item):
    return np.full(3, item), item


def trace_step(state, item):
    return f"{state or ''}{item},", None


def trace_combine(states):
    """Each pair of brackets is one addition."""
    first, second = states
    return f"({first}|{second})"


def fail_at_7(item):
    if item == 7:
        raise KeyError("seven")
    return item


def fail_step(state, item):
    return fail_at_7(item), None


def fail_combine(states):
    raise ArithmeticError("cannot join")


def add_kept(item, addend):
    return float(item.sum()) + addend


def test_calls_are_in_order_and_get_what_is_shared(executor):
    assert list(executor.map("test", slow_square, range(40))) == [i * i for i in range(40)]
    shared = executor.share(100)
    assert list(executor.map("test", square, iter(range(5)), shared, 1)) == [101, 102, 105, 110, 117]
    assert list(executor.map("test", square, [], 1)) == []
    for n_items in (0, 1, 3, 20):
        assert executor.each("s", slow_square, range(n_items)) == [i * i for i in range(n_items)]
        assert executor.each("s", square, list(range(n_items)), 3, 4) == [i * i + 7 for i in range(n_items)]


@cases("n_threads", [1, 3])
def test_each_takes_as_many_threads_as_there_are_workers_the_callers_too(n_threads):
    met = threading.Barrier(n_threads, timeout=30)

    def who(item):
        met.wait()  # until so many of them are inside
        return threading.get_ident()

    with open_executor(n_threads) as executor:
        threads = executor.each("s", who, range(n_threads))
        assert len(set(threads)) == n_threads
        assert threading.get_ident() in threads
        busy = threading.Event()
        for _ in range(n_threads):  # the others have work: the caller does not wait for them
            executor._submit("s", busy.wait, 30)
        assert set(executor.each("s", lambda item: threading.get_ident(), range(5))) == {threading.get_ident()}
        busy.set()


def keep_step(state, item):
    return (state or 0) + item, np.full(3, item)


def sum_of(items, addend):
    return float(sum(item.sum() for item in items)) + addend


def test_outputs_of_a_fold_can_stay_where_they_are(executor):
    """As results that are held: used again, and several of them an item of later calls."""
    handles, infos = zip(*executor.hold("test", keep, range(10)), strict=True)
    assert infos == tuple(range(10))
    for _ in range(2):
        assert list(executor.map("test", add_kept, handles, 1)) == [3 * i + 1 for i in range(10)]
    handles = []
    total = executor.fold("test", keep_step, joining(sum), range(50), 50, listener=Listener(handles.append, held=True))
    assert total == sum(range(50))
    assert list(executor.map("test", add_kept, handles, 1)) == [3 * i + 1 for i in range(50)]
    lists = [handles[3:40], handles[:1], []]
    assert list(executor.map("test", sum_of, lists, 1)) == [3 * sum(range(3, 40)) + 1, 1, 1]


@pytest.mark.parametrize("large", [None, "state", "items"])
def test_shape_of_the_tree_depends_on_the_number_alone(large, client):
    for n_items in (1, 8, 9, 25, 193, 700):
        shapes = set()
        for chosen in (1, 2, 4, client) if n_items < 30 else (1, 4):
            with open_executor(chosen) as executor:
                items = iter(range(n_items))
                shapes.add(executor.fold("t", trace_step, joining(trace_combine), items, n_items, large=large))
        (shape,) = shapes
        assert re.sub("[(|)]", "", shape) == "".join(f"{i}," for i in range(n_items))  # every item once, in order


@pytest.mark.parametrize("n_runs", [runs.RUNS, runs.FEW_RUNS])
def test_runs_are_short_and_equal(n_runs):
    for n_items in (*range(1, 450), 99_999):
        lengths = runs.run_lengths(n_items, n_runs)
        assert sum(lengths) == n_items
        assert len(lengths) == runs.count_runs(n_items, n_runs)
        assert 1 <= min(lengths) <= max(lengths) <= min(lengths) + 1
        assert max(lengths) <= runs.run_length(n_items, n_runs) <= runs.RUN_LENGTH
        assert len(lengths) == n_items or len(lengths) % n_runs == 0
        assert len(lengths) < n_items / runs.RUN_LENGTH + n_runs  # as few as that allows
    # what nobody counted runs alone
    assert list(runs.runs_of(iter("abcdefg"), [2, 3])) == [["a", "b"], ["c", "d", "e"], ["f"], ["g"]]
    assert list(runs.runs_of(iter("abc"), [2, 3])) == [["a", "b"], ["c"]]


@cases("n_threads, method", [(1, "map"), (4, "map"), (4, "hold")])
def test_few_results_are_in_flight(n_threads, method):
    """Work does not run ahead of whoever takes the results, and items are drawn as they are needed."""
    drawn, done = Counter(), Counter()

    def items():
        for i in range(100):
            drawn["items"] += 1
            yield i

    def work(item):
        done["calls"] += 1
        return item, item

    with open_executor(n_threads) as executor:
        results = getattr(executor, method)("t", work, items())
        assert drawn["items"] == 0
        for taken in range(1, 101):
            next(results)
            if taken % 10 == 0:
                time.sleep(0.002)
            assert drawn["items"] <= taken + 2 * n_threads + 2
            assert done["calls"] <= drawn["items"]
    assert done["calls"] == 100


def large_result(item):
    return np.zeros(200_000) if isinstance(item, int) else np.zeros((item.stop - item.start, 200))


def held_bytes(dask_scheduler):
    """Bytes of all results that workers hold."""
    return sum(task.nbytes for task in dask_scheduler.tasks.values() if task.state == "memory")


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [False, True], ids=["items", "chunks that share storage"])
def test_few_large_results_are_on_workers(client, monkeypatch, chunks):
    """However slowly they are taken; where neighbours go to one worker, too."""
    source = open_source(np.zeros((60_000, 4), np.float32))
    source.access, n_bytes = replace(source.access, in_process=False, shared_bytes=16_000), 8 * 200_000
    monkeypatch.setattr("streamkm.engine.dask_workers.LARGE_BYTES", 64_000)
    with open_executor(client) as workers:
        items = (chunk for chunk, _ in workers.items(source, 16_000)) if chunks else range(60)
        before, most, count = client.run_on_scheduler(held_bytes), 0, 0
        for _ in workers.map("large", large_result, items, large=True):
            time.sleep(0.02)
            most, count = max(most, client.run_on_scheduler(held_bytes) - before), count + 1
    assert count == 60
    # those that both workers are at, or have before them in stretches of twice LARGE_BYTES at most; half as many more,
    # or two; the one that was taken
    assert n_bytes <= most <= (2 * 8 * 1.5 + 1 if chunks else 5) * 1.01 * n_bytes


@cases("method", ["map", "each"])
def test_an_error_stops_the_work(method):
    started = Counter()

    def work(item):
        started["calls"] += 1
        time.sleep(0.002)
        return fail_at_7(item)

    with pytest.raises(KeyError, match="seven"), open_executor(3) as executor:
        list(getattr(executor, method)("t", work, range(10_000)))
    assert started["calls"] < 30
    time.sleep(0.01)
    assert started["calls"] < 30


def test_errors_keep_their_type(executor):
    with pytest.raises(KeyError, match="seven"):
        list(executor.map("t", fail_at_7, range(20)))
    with pytest.raises(KeyError, match="seven"):
        executor.fold("t", fail_step, joining(trace_combine), range(20), 20)
    with pytest.raises(ArithmeticError, match="cannot join"):
        executor.fold("t", trace_step, joining(fail_combine), range(200), 200)

    def items():
        yield from range(3)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(executor.map("t", square, items()))
    assert list(executor.map("t", square, [3])) == [9]  # still of use


def test_threads_end_with_the_executor_and_blas_has_one_inside_only():
    def of_blas():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    np.ones((2, 2)) @ np.ones((2, 2))
    before, n_threads = of_blas(), threading.active_count()
    for chosen in (3, "auto"):
        with open_executor(chosen) as executor:
            assert isinstance(executor, LocalThreads)
            assert executor.n_workers == 3 or chosen == "auto"
            list(executor.map("t", slow_square, range(10)))
            assert threading.active_count() > n_threads or executor.n_workers == 1
            assert set(of_blas()) <= {1}
        assert of_blas() == before
        assert threading.active_count() == n_threads


def test_auto_is_the_active_client(client):
    with client.as_current(), open_executor("auto") as executor:
        assert isinstance(executor, DaskCluster)
        assert executor.n_workers == 2
        with local_executor(executor) as here:
            assert isinstance(here, LocalThreads)


def keys_left(client, stage):
    """Keys of a stage that are still on the workers after a while."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        gc.collect()
        left = [key for keys in client.has_what().values() for key in keys if key[0].startswith(stage)]
        if not left:
            break
        time.sleep(0.05)
    return left


def test_nothing_stays_on_the_cluster(client):
    """It outlives a fit that failed, too: blocks must not fill its memory."""
    with open_executor(client) as executor:
        handles = [handle for handle, _ in executor.hold("held", keep, range(10))]
        executor.fold("folded", trace_step, joining(trace_combine), range(50), 50)
    assert not keys_left(client, "folded")
    assert sum(map(len, client.has_what().values())) >= 10
    del handles
    assert not keys_left(client, "held")

    def work():
        with open_executor(client) as executor:
            handles = [handle for handle, _ in executor.hold("before", keep, range(10))]
            executor.fold("failing", trace_step, joining(fail_combine), range(100), 100)
            return handles

    with pytest.raises(ArithmeticError):
        work()
    assert not keys_left(client, "before")
    assert not keys_left(client, "failing")


def fail_as(item):
    raise {
        "changed": SourceError("s3://bucket/x.npy was changed while it was in use: it was 7 bytes"),
        "gone": SourceNotFoundError("s3://bucket/x.npy does not exist"),
        "torn": SourceError("/data/x.npy is cut short: 7 of 9 bytes"),
        "missing": SourceNotFoundError("/data/x.npy does not exist"),
    }[item]


@cases("item", ["changed", "gone", "torn", "missing"])
def test_errors_of_workers_say_what_would_help(client, item):
    """Another path helps where a file is missing, not where an object was changed or credentials are."""
    with pytest.raises(SourceError, match=r", seen from worker tcp://") as caught, open_executor(client) as executor:
        list(executor.map("t", fail_as, [item]))
    assert ("under the same path" in str(caught.value)) == (item == "missing")
    assert isinstance(caught.value, SourceNotFoundError) == (item in ("gone", "missing"))


def test_a_client_that_cannot_work_is_refused(client, tmp_path):
    address, X = client.scheduler.address, np.zeros((9, 2))
    with Client(address, set_as_default=False) as closed:
        pass
    with pytest.raises(InvalidParameterError, match=r"^the Dask client is closed; pass executor= .*threads$"):
        StreamKMeans(2, executor=closed).fit(X)

    async def fit_awaited():
        async with Client(address, set_as_default=False, asynchronous=True) as awaited:
            kmeans = StreamKMeans(2, executor=awaited, progress=False, random_state=0)
            with pytest.raises(InvalidParameterError, match=r"^the Dask client's calls must be awaited .*to_thread"):
                kmeans.fit(np.eye(9))
            return await asyncio.to_thread(kmeans.fit, np.eye(9))

    assert_same_bits(asyncio.run(fit_awaited()), StreamKMeans(2, executor=1, random_state=0).fit(np.eye(9)))


N_CHUNKS = 1_600  # 120 runs, of which shards have several
MOST_CALLS = 40  # of a pass on a cluster of four threads or fewer


def brackets(states):
    """What adding from the left does: each pair of brackets is one addition."""
    return reduce(lambda left, right: f"({left}|{right})", states)


def append(state, item):
    return f"{state or ''}{item},", item


@given(n_runs=st.integers(1, 3_000), n_shards=st.integers(1, 400))
def test_shards_are_about_equal_and_cut_between_subtrees(n_runs, n_shards):
    stops = [0]
    while stops[-1] < n_runs:
        stops.append(shard_stop(stops[-1], n_runs, n_shards))
    lengths = np.diff(stops)
    assert stops[-1] == n_runs
    assert lengths.min() >= 1
    assert len(lengths) <= n_shards
    assert lengths.max() <= -(-n_runs // n_shards) * (1 + 1 / UNITS) + 1
    if n_runs >= UNITS * ARITY * n_shards:
        assert all(stop % ARITY == 0 for stop in stops[:-1])


SETTINGS: dict[str, Any] = {"random_state": 0, "max_iter": 1, "chunk_bytes": 320, "progress": False}


@pytest.fixture(scope="module")
def on_threads(path):
    """A fit of 1,600 chunks by threads."""
    return StreamKMeans(5, executor=2, **SETTINGS).fit(path)


@pytest.mark.slow
def test_shards_of_many_rows_take_more_calls(client, path, on_threads, monkeypatch):
    """With the bits of threads."""
    monkeypatch.setattr(dask_workers, "SHARD_ROWS", 1_000)
    shapes = []
    watched = DaskCluster._submit

    def submit(self, stage, function, *rest, **place):
        if stage == "assign" and function is work_on_shard:
            shapes.append(20 * sum(rest[1]))
        return watched(self, stage, function, *rest, **place)

    monkeypatch.setattr(DaskCluster, "_submit", submit)
    got = StreamKMeans(5, executor=client, **SETTINGS).fit(path)
    assert sum(shapes) == 20 * N_CHUNKS
    assert len(shapes) >= 20 * N_CHUNKS / 1_000
    assert max(shapes) <= 1_000 * (1 + 1 / UNITS) + 20 * RUN_LENGTH
    assert_same_bits(got, on_threads)


@given(n_runs=st.integers(1, 700), cuts=st.lists(st.integers(1, 699)))
def test_states_of_shards_make_the_tree_of_runs(n_runs, cuts):
    """However runs are cut."""
    runs = [[2 * i, 2 * i + 1] for i in range(n_runs)]
    wanted, got, made = JoinTree(brackets, eager=True), JoinTree(brackets, eager=False), []
    for items in runs:
        wanted.add(f"{items[0]},{items[1]},")
    bounds = sorted({0, n_runs, *(cut for cut in cuts if cut < n_runs)})
    for first, last in itertools.pairwise(bounds):
        states, outputs = fold_shard(runs[first:last], first, append, brackets)
        made += outputs
        for level, state in zip(subtree_levels(first, last), states, strict=True):
            got.add(state, level)
    assert got.total() == wanted.total()
    assert made == list(range(2 * n_runs))


def test_held_blocks_of_one_future_are_a_shard():
    """Runs whose blocks lie in several are shards of their own, and so is what is not held."""
    a, b = object(), object()
    runs = [[Held(a, 0), Held(a, 1)], [Held(a, 2)], [Held(a, 3), Held(b, 0)], [[Held(b, 1), 7]], [3], [4]]
    shards = list(shards_of(iter(runs), 5, lambda first: first + 8, future_of))
    assert [(shard.first, len(shard.runs)) for shard in shards] == [(5, 2), (7, 1), (8, 1), (9, 1), (10, 1)]
    assert [shard.first for shard in shards_of(runs, 0, lambda first: first + 4, lambda _: runs)] == [0, 4]


class Result:
    """A future, as far as packing sees it: what its call returned."""

    status = "finished"

    def __init__(self, key, value):
        self.key, self.value = key, value


def test_items_are_packed_in_a_few_bytes():
    """The scheduler keeps the arguments of calls: an object for each chunk would be some 300 bytes."""
    blocks, labels = Result(0, []), Result(1, [])
    rows = [[Held(blocks, i), i << 40, Held(labels, i)] for i in range(5_000)]
    assert len(encode(rows)[0]) < 10 * len(rows)
    assert len(encode([Held(blocks, 0, i) for i in range(5_000)])[0]) < 3 * len(rows)
    chunks = [
        [(Chunk(i, 0, 20 * i, 20 * i + 20, 80), 20, weights, 20 * i) for i in range(5_000)]
        for weights in (NO_WEIGHTS, None)
    ]
    for items in (*chunks, [Chunk(i, i // 99, i * i, (i + 1) ** 2, 80) for i in range(5_000)]):
        packed = encode(items)[0]
        assert len(packed) < 12 * len(items)
        assert repr(decoded(packed, [])) == repr(items)


def index_and_keep(chunk):
    return chunk.index, chunk.index


def append_chunk(state, chunk):
    return append(state, chunk.index)


def joined(*states):
    return brackets(states)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """float32 (32,000, 4) in a file of 1,600 chunks."""
    name = tmp_path_factory.mktemp("data") / "x.npy"
    X = np.random.default_rng(0).normal(size=(20 * N_CHUNKS, 4)) + 3 * (np.arange(20 * N_CHUNKS) % 5)[:, None]
    np.save(name, X.astype(np.float32))
    return name


def chunks_of(executor, source):
    """Chunks of 20 rows as the executor's items."""
    return (chunk for chunk, _ in executor.items(source, 320))


@pytest.mark.parametrize("n_skipped", slow_but([1], [0, 1], full=True))
def test_the_tree_of_a_fold_is_that_of_threads(client, path, n_skipped):
    """Of chunks and of held blocks, also where the shards of the blocks are not those of the fold."""
    source = open_source(path)
    shapes, n = set(), N_CHUNKS - n_skipped
    for chosen in (2, client):
        outputs: list[Any] = []
        with open_executor(chosen) as executor:
            listener, chunks = Listener(outputs.append), chunks_of(executor, source)
            read = executor.fold("read", append_chunk, joined, chunks, N_CHUNKS, listener=listener)
            chunks = chunks_of(executor, source)
            handles = [handle for handle, _ in executor.hold("hold", index_and_keep, chunks)][n_skipped:]
            held = executor.fold("held", append, joined, handles, n)
        assert outputs == list(range(N_CHUNKS))
        shapes.add((read, held))
    assert len(shapes) == 1


def test_calls_of_a_pass_do_not_depend_on_the_chunks(client, path, on_threads):
    with watched(client, "n_done") as calls:
        got = StreamKMeans(5, executor=client, **SETTINGS).fit(path)
        found = calls()
    assert_same_bits(got, on_threads)
    assert {"sketch", "lloyd", "assign"} <= found.keys()
    assert min(found[stage] for stage in ("sketch", "lloyd", "assign")) >= SHARDS
    assert max(found.values()) <= MOST_CALLS, found


def identity(item):
    return item


def keep_and_tell(chunk):
    return chunk.index, f"{chunk.index},"


def added(*states):
    return "".join(states)


def test_maps_take_a_call_for_each_shard_and_infos_are_joined_on_the_workers(client, path):
    """Of chunks and of held blocks."""
    source = open_source(path)
    with watched(client, "n_done") as calls, open_executor(client) as executor:
        read = executor.map("read", identity, chunks_of(executor, source))
        assert [chunk.index for chunk in read] == list(range(N_CHUNKS))
        pairs = list(executor.hold("hold", keep_and_tell, chunks_of(executor, source), join=added))
        assert list(executor.map("held", identity, [handle for handle, _ in pairs])) == list(range(N_CHUNKS))
        found = calls()
    assert found["read"] == found["held"] == SHARDS
    told = [(number, info) for number, (_, info) in enumerate(pairs) if info is not None]
    assert len(told) == SHARDS
    first = 0
    for number, info in told:  # it comes with the last of its items
        assert info == "".join(f"{index}," for index in range(first, number + 1))
        first = number + 1
    assert first == N_CHUNKS
