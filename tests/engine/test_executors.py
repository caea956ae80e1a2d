"""Executors: results in order, one fixed tree of sums, few results in flight, errors; on threads and a Dask cluster."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, get_worker

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.engine import Listener, local_executor, open_executor
from streamkm.engine import reduction as runs
from streamkm.engine.base import LocalThreads
from streamkm.engine.dask import DaskCluster
from streamkm.engine.dask_workers import SHARDS
from streamkm.sources import open_source
from tests.dask_processes import assert_same_bits
from tests.tables import cases

TOP = Path(__file__).parents[2]
EXECUTORS = (1, 2, 4, "cluster")
NUMBERS = (1, 2, 7, 8, 9, 24, 25, 193, 700)


def ignoring(combine, first, second, *_shared):
    return combine([first, second])


def joining(combine):
    """States joined by a function of a list of them, which needs nothing that calls share."""
    return partial(ignoring, combine)


@pytest.fixture(params=EXECUTORS)
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


def keep_where(chunk, slow):
    """Say which worker keeps the rows of a chunk; one of them takes its time."""
    address = get_worker().address
    time.sleep(0.02 if address == slow else 0.0)
    return chunk, (address, chunk.stop - chunk.start)


def add_step(state, item, factor):
    """Floats whose sum depends on the order of additions."""
    time.sleep(0.0005 * (item * 7 % 3))
    value = factor / (1 + item) ** 1.5
    return (value if state is None else state + value), item


def add_combine(states):
    total = states[0]
    for state in states[1:]:
        total += state
    return total


def trace_step(state, item):
    return f"{state or ''}{item},", None


def trace_combine(states):
    """What adding from the left does: each pair of brackets is one addition."""
    return reduce(lambda left, right: f"({left}|{right})", states)


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


def test_map_is_in_order(executor):
    assert list(executor.map("test", slow_square, range(40))) == [i * i for i in range(40)]
    assert list(executor.map("test", square, [], 1)) == []


def test_map_passes_what_is_shared(executor):
    shared = executor.share(100)
    assert list(executor.map("test", square, iter(range(5)), shared, 1)) == [101, 102, 105, 110, 117]


@cases("n_items", [0, 1, 2, 3, 20])
def test_each_is_in_order(executor, n_items):
    assert executor.each("s", slow_square, range(n_items)) == [i * i for i in range(n_items)]
    assert executor.each("s", square, list(range(n_items)), 3, 4) == [i * i + 7 for i in range(n_items)]


@cases("n_threads", [1, 2, 3])
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


@cases("n_threads", [1, 2, 3])
def test_an_error_of_each_stops_all_threads(n_threads):
    done = []

    def fail_at_3(item):
        if item == 3:
            raise KeyError("three")
        time.sleep(0.002)
        done.append(item)

    with open_executor(n_threads) as executor, pytest.raises(KeyError, match="three"):
        executor.each("s", fail_at_3, range(1_000))
    assert len(done) < 50


def test_what_is_held_can_be_used_again(executor):
    handles, infos = zip(*executor.hold("test", keep, range(10)), strict=True)
    assert infos == tuple(range(10))
    for _ in range(2):
        assert list(executor.map("test", add_kept, handles, 1)) == [3 * i + 1 for i in range(10)]


def test_workers_hold_the_same_share_however_fast_they_are(client, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3_900, 2)))
    source = open_source(tmp_path / "x.npy")
    slow, _ = workers = sorted(client.nthreads())
    with open_executor(client) as executor:
        held, chunks = Counter(), (chunk for chunk, _ in executor.items(source, 1_600))
        for _, (address, n_rows) in executor.hold("test", keep_where, chunks, slow):
            held[address] += n_rows
    assert held.total() == 3_900
    assert sorted(held) == workers
    assert max(held.values()) - min(held.values()) <= 100 * -(-39 // SHARDS)  # one call


def keep_step(state, item):
    return (state or 0) + item, np.full(3, item)


def sum_of(items, addend):
    return float(sum(item.sum() for item in items)) + addend


def test_outputs_of_a_fold_can_stay_where_they_are(executor):
    """And several of what is held can be an item of later calls."""
    handles = []
    total = executor.fold("test", keep_step, joining(sum), range(50), 50, listener=Listener(handles.append, held=True))
    assert total == sum(range(50))
    assert list(executor.map("test", add_kept, handles, 1)) == [3 * i + 1 for i in range(50)]
    lists = [handles[3:40], handles[:1], []]
    assert list(executor.map("test", sum_of, lists, 1)) == [3 * sum(range(3, 40)) + 1, 1, 1]


@pytest.mark.parametrize("large", [None, "state", "items"])
def test_shape_of_the_tree_depends_on_the_number_alone(large, client):
    for n_items in NUMBERS:
        shapes = set()
        for chosen in (1, 2, 4, client) if n_items < 30 else (1, 4):
            with open_executor(chosen) as executor:
                shapes.add(
                    executor.fold("t", trace_step, joining(trace_combine), iter(range(n_items)), n_items, large=large)
                )
        assert len(shapes) == 1, shapes
        shape = shapes.pop()
        flat = shape.replace("(", "").replace(")", "").replace("|", "")
        assert flat == "".join(f"{i}," for i in range(n_items))  # every item once, in order


@pytest.mark.parametrize("n_runs", [runs.RUNS, runs.FEW_RUNS])
def test_runs_are_short_and_equal(n_runs):
    for n_items in (*range(1, 900), 10_000, 99_999):
        lengths = runs.run_lengths(n_items, n_runs)
        assert sum(lengths) == n_items
        assert len(lengths) == runs.count_runs(n_items, n_runs)
        assert 1 <= min(lengths) <= max(lengths) <= min(lengths) + 1
        assert max(lengths) <= runs.run_length(n_items, n_runs) <= runs.RUN_LENGTH
        assert len(lengths) == n_items or len(lengths) % n_runs == 0


def test_what_nobody_counted_runs_alone():
    assert list(runs.runs_of(iter("abcdefg"), [2, 3])) == [["a", "b"], ["c", "d", "e"], ["f"], ["g"]]
    assert list(runs.runs_of(iter("abc"), [2, 3])) == [["a", "b"], ["c"]]


class CountedState:
    """A state that says how many of its kind are alive."""

    alive = 0
    most = 0
    lock = threading.Lock()

    def __init__(self):
        with self.lock:
            CountedState.alive += 1
            CountedState.most = max(CountedState.most, CountedState.alive)

    def __del__(self):
        with self.lock:
            CountedState.alive -= 1


def counted_step(state, item):
    return state or CountedState(), None


def counted_combine(states):
    return CountedState()


@pytest.mark.parametrize("n_threads", [1, 4])
def test_few_states_are_alive(n_threads):
    """1,000 states of k centers by d features would fill any memory."""
    gc.collect()
    CountedState.alive = CountedState.most = 0
    with open_executor(n_threads) as executor:
        total = executor.fold("t", counted_step, joining(counted_combine), range(16_000), 16_000)
    assert isinstance(total, CountedState)
    levels = 4  # 1,000 runs, joined by eights
    assert CountedState.most <= 2 * n_threads + 2 + levels * runs.ARITY


@cases("n_threads", [1, 2, 4])
@cases("method", ["map", "hold"])
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


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_stops_the_work(n_threads):
    started = Counter()

    def work(item):
        started["calls"] += 1
        return fail_at_7(item)

    with pytest.raises(KeyError, match="seven"), open_executor(n_threads) as executor:
        list(executor.map("t", work, range(10_000)))
    assert started["calls"] < 30
    time.sleep(0.01)
    assert started["calls"] < 30


def test_errors_keep_their_type(executor):
    with pytest.raises(KeyError, match="seven"):
        list(executor.map("t", fail_at_7, range(20)))
    with pytest.raises(KeyError, match="seven"):
        executor.fold("t", fail_step, joining(add_combine), range(20), 20)
    with pytest.raises(ArithmeticError, match="cannot join"):
        executor.fold("t", trace_step, joining(fail_combine), range(200), 200)
    assert list(executor.map("t", square, [3])) == [9]  # still of use


def test_an_error_of_the_items_reaches_the_caller(executor):
    def items():
        yield from range(3)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        list(executor.map("t", square, items()))


def test_threads_end_with_the_executor():
    before = threading.active_count()
    with open_executor(3) as executor:
        list(executor.map("t", slow_square, range(10)))
        assert threading.active_count() > before
    assert threading.active_count() == before


@cases("executor", [0, -1, 1.5, True, "threads", None, object()])
def test_refuses_what_it_does_not_know(executor):
    with pytest.raises(InvalidParameterError, match="executor="), open_executor(executor):
        pass


def test_an_int_is_a_number_of_threads():
    with open_executor(3) as executor:
        assert isinstance(executor, LocalThreads)
        assert executor.n_workers == 3


def test_auto_is_threads_without_a_client():
    with open_executor("auto") as executor:
        assert isinstance(executor, LocalThreads)
        assert executor.n_workers >= 1


def test_auto_is_the_active_client(client):
    with client.as_current(), open_executor("auto") as executor:
        assert isinstance(executor, DaskCluster)
        assert executor.n_workers == 2
        with local_executor(executor) as here:
            assert isinstance(here, LocalThreads)


def test_blas_has_one_thread_inside_only():
    from threadpoolctl import threadpool_info

    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    np.ones((2, 2)) @ np.ones((2, 2))
    before = threads()
    with open_executor(2):
        assert set(threads()) <= {1}
    assert threads() == before


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
    with open_executor(client) as executor:
        handles = [handle for handle, _ in executor.hold("held", keep, range(10))]
        executor.fold("folded", add_step, joining(add_combine), range(50), 50, 1.0)
    assert not keys_left(client, "folded")
    assert sum(map(len, client.has_what().values())) >= 10
    del handles
    assert not keys_left(client, "held")


def test_nothing_stays_on_the_cluster_after_an_error(client):
    """A cluster outlives a fit that failed: blocks must not fill its memory."""

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
        "refused": SourceError("s3://bucket/x.npy: access refused (NoCredentialsError); give credentials"),
        "gone": SourceNotFoundError("s3://bucket/x.npy does not exist"),
        "torn": SourceError("/data/x.npy is cut short: 7 of 9 bytes"),
        "missing": SourceNotFoundError("/data/x.npy does not exist"),
    }[item]


@pytest.mark.parametrize("item", ["changed", "refused", "gone", "torn", "missing"])
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
