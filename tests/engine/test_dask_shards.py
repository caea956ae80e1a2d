"""Shards: few calls a pass however many chunks there are, and the same tree of sums as on threads."""

from __future__ import annotations

import itertools
import pickle
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkm import StreamKMeans
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.engine import Listener, dask_workers, open_executor
from streamkm.engine.dask import DaskCluster
from streamkm.engine.dask_calls import Held, decoded, encode, future_of, work_on_shard
from streamkm.engine.dask_workers import SHARDS
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


def test_shards_of_many_rows_take_more_calls(client, path, monkeypatch):
    """With the bits of threads."""
    settings: dict[str, Any] = {"random_state": 0, "max_iter": 1, "chunk_bytes": 320, "progress": False}
    monkeypatch.setattr(dask_workers, "SHARD_ROWS", 1_000)
    shapes = []
    watched = DaskCluster._submit

    def submit(self, stage, function, *rest, **place):
        if stage == "assign" and function is work_on_shard:
            shapes.append(20 * sum(rest[1]))
        return watched(self, stage, function, *rest, **place)

    monkeypatch.setattr(DaskCluster, "_submit", submit)
    got = StreamKMeans(5, executor=client, **settings).fit(path)
    assert sum(shapes) == 20 * N_CHUNKS
    assert len(shapes) >= 20 * N_CHUNKS / 1_000
    assert max(shapes) <= 1_000 * (1 + 1 / UNITS) + 20 * RUN_LENGTH
    assert_same_bits(got, StreamKMeans(5, executor=2, **settings).fit(path))


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


RESULTS = [Result(number, [[f"{number}:{i}:{j}" for j in range(6)] for i in range(4)]) for number in range(2)]
held_values = st.builds(
    lambda number, path: Held(RESULTS[number], *path),
    st.integers(0, 1),
    st.tuples(st.integers(0, 3), st.integers(0, 5)),
)
in_order = st.builds(
    lambda first, n: [Held(RESULTS[0], 2, j) for j in range(first, first + n)], st.integers(0, 2), st.integers(0, 3)
)
placed = st.builds(
    lambda values, first, step: [[value, first + step * i, None] for i, value in enumerate(values)],
    in_order, st.integers(-3, 3), st.integers(-2, 3),
)  # fmt: skip
cut = st.builds(Chunk, *[st.integers(0, 3) | st.integers(-(2**64), 2**64)] * 5)
read = st.lists(cut | st.tuples(cut, st.integers(0, 3) | st.none(), st.integers(0, 3)), max_size=4)
leaves = st.one_of(
    held_values, st.integers(0, 3), st.booleans(), st.none(), st.text(max_size=1), in_order, placed, cut, read
)


@given(st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner), max_leaves=12))
def test_calls_get_the_items_that_were_packed(items):
    def wanted(item):
        if isinstance(item, Held):
            return item.future.value[item.path[0]][item.path[1]]
        return type(item)(map(wanted, item)) if type(item) in (list, tuple) else item

    packed, futures = encode(items)
    got = decoded(pickle.loads(pickle.dumps(packed)), [future.value for future in futures])
    assert repr(got) == repr(wanted(items))  # True is not 1 here


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


@pytest.mark.parametrize("n_skipped", [0, 1])
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


def test_calls_of_a_pass_do_not_depend_on_the_chunks(client, path):
    settings: dict[str, Any] = {"random_state": 0, "max_iter": 1, "chunk_bytes": 320, "progress": False}
    with watched(client, "n_done") as calls:
        got = StreamKMeans(5, executor=client, **settings).fit(path)
        found = calls()
    assert_same_bits(got, StreamKMeans(5, executor=2, **settings).fit(path))
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
