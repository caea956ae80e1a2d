"""Many blocks of a Dask array: linear work, few tasks, nothing computed twice; which worker gets which chunks."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from streamkm import SketchOptions, StreamKMeans, engine
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.engine.dask_workers import SHARE, Reading, Turns
from streamkm.engine.reduction import FEW_RUNS, RUNS, run_lengths
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import count_pass
from streamkm.sketches import CountSketch
from streamkm.sources import open_source, row_graphs
from streamkm.sources.binary import csr_groups
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.chunks import Origin
from streamkm.stores.writer import write_store
from tests.dask_processes import assert_same_bits, watched
from tests.sources.counting import logged_csr
from tests.tables import slow_but

KMEANS = {"n_clusters": 3, "random_state": 0, "max_iter": 2, "progress": False}


def many_blocks(n_blocks):
    """A Dask array of blocks of three rows (n, 4)."""
    X = np.random.default_rng(0).normal(size=(3 * n_blocks, 4)) + 6 * (np.arange(3 * n_blocks) % 3)[:, None]
    return da.from_array(X, chunks=(3, 4)) + 1


def test_a_block_costs_the_same_however_many_there_are(monkeypatch):
    n_blocks, walked, whole = 500, [], []
    below, get_deps = row_graphs.RowGraphs._below, row_graphs.get_deps

    def watched_below(self, keys, is_input):
        tasks, inputs = below(self, keys, is_input)
        walked.append(len(tasks) + len(inputs))
        return tasks, inputs

    def watched_deps(tasks):
        whole.append(len(tasks))
        return get_deps(tasks)

    monkeypatch.setattr(row_graphs.RowGraphs, "_below", watched_below)
    monkeypatch.setattr(row_graphs, "get_deps", watched_deps)
    source = open_source(many_blocks(n_blocks))
    chunks = source.chunks(1)
    sizes = []
    for _ in range(2):
        for chunk in chunks:
            source.read(chunk)
            sizes.append(len(source.packed(chunk)[0].args[0]))
    assert len(whole) == 1  # the graph is looked through once,
    assert whole[0] <= 2 * n_blocks
    assert len(walked) == 4 * n_blocks
    assert max(walked) <= 2  # and then a block's tasks alone
    assert max(sizes) < 4_000


@pytest.mark.slow
def test_blocks_go_to_workers_in_runs(client):
    """As chunks of files do: a block of its own would be some 18 transitions a pass."""
    array = many_blocks(500)
    with watched(client, "__dict__") as seen:
        got = StreamKMeans(executor=client, **KMEANS).fit(array)
        found = seen()
    assert_same_bits(got, StreamKMeans(executor=1, **KMEANS).fit(array))
    assert len(found["keys"]) < 1_000
    assert found["n_transitions"] < 8_000


def noted(block, name):
    """A block, and a mark on the cluster that it was computed once more."""
    from distributed import get_worker

    get_worker().log_event(name, 1)
    return block


def matrix_of(item):
    _, block, inputs = item
    return block(inputs)


def test_what_all_blocks_need_is_computed_once_a_pass(client):
    """Such as the means of all rows: once for each block would be all rows for each of them."""
    X = np.random.default_rng(0).normal(size=(300, 4))
    name, seen = f"noted-{time.monotonic()}", []

    def note(block):
        seen.append(len(block))
        return block

    here = da.from_array(X, chunks=(10, 4)).map_blocks(note, meta=np.empty((0, 0)))
    array = da.from_array(X, chunks=(10, 4)).map_blocks(noted, name, meta=np.empty((0, 0)))
    array = array - array.mean(axis=0)
    chunks = open_source(array).chunks(1)
    with open_executor(client) as executor:
        source = open_source(array)
        items = (item for item, _ in executor.items(source, 1))
        parts = list(executor.map("test", matrix_of, items))
    assert len(parts) == len(chunks) == 30
    np.testing.assert_allclose(np.concatenate(parts), X - X.mean(axis=0))
    assert len(client.get_events(name)) <= 2 * 30  # for the mean, and for the block
    rows = [rows.X for rows in open_source(here - here.mean(axis=0)).stream(1)]
    np.testing.assert_allclose(np.concatenate(rows), X - X.mean(axis=0))
    assert len(seen) <= 2 * 30


def test_blocks_that_overlap_and_persisted_ones(client):
    """Each row-block needs parts of two others' inputs: a block of the data is shared by two."""
    X = np.random.default_rng(0).normal(size=(300, 4)) + 6 * (np.arange(300) % 3)[:, None]
    array = da.from_array(X, chunks=(20, 4)).rechunk((15, 4))
    got = StreamKMeans(executor=client, **KMEANS).fit(array)
    wanted = StreamKMeans(executor=2, **KMEANS).fit(da.from_array(X, chunks=(15, 4)))
    assert_same_bits(got, wanted)
    kept = client.persist(da.from_array(X, chunks=(15, 4)))
    for made, executor in ((kept, 2), (client.persist(kept * 2) / 2, client)):
        assert_same_bits(StreamKMeans(executor=executor, **KMEANS).fit(made), wanted)


@pytest.mark.skipif(Version(dask.__version__) < Version("2026.1"), reason="Dask compares frames before it joins files")
@pytest.mark.parametrize("choose", slow_but(["projection"], ["columns", "projection", "drop"]))
def test_labels_fit_frames_of_chosen_columns_of_small_files(tmp_path, choose):
    """Dask reads the files of such frames together, two by two, but the frame says that there are four partitions."""
    pd, frames = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    rng = np.random.default_rng(0)
    for number in range(4):
        columns = {"a": rng.normal(size=50), "b": rng.normal(size=50) + 5 * (number % 2)}
        others = {f"other {i}": rng.normal(size=50) for i in range(8)}
        pd.DataFrame({**columns, **others}).to_parquet(tmp_path / f"{number}.parquet")
    whole = frames.read_parquet(tmp_path)
    X = {
        "columns": frames.read_parquet(tmp_path, columns=["a", "b"]),
        "projection": whole[["a", "b"]],
        "drop": whole.drop(columns=[f"other {i}" for i in range(8)]),
    }[choose]
    model = StreamKMeans(2, random_state=0, progress=False).fit(X)
    assert model.dask_labels_.numblocks == (X.npartitions,) == (4,)
    labelled = [
        X.assign(cluster=model.dask_labels_), model.with_labels(X), X.assign(cluster=model.predict(X)),
        whole.assign(cluster=model.predict(X)),
    ]  # fmt: skip
    for frame in labelled:
        np.testing.assert_array_equal(frame.compute()["cluster"], model.labels_)
    np.testing.assert_array_equal(model.predict(X.compute()), model.labels_)


N_CHUNKS = 120
MOST_READS = 1.05  # of a storage chunk in a pass, on average


def keep(n_bytes):
    csr_groups._KEPT_BOUNDARY_BYTES = n_bytes


async def steal(on, dask_scheduler):
    stealing = dask_scheduler.extensions["stealing"]
    await (stealing.start() if on else stealing.stop())


@pytest.fixture
def workers(client):
    """Processes that hold no more shared storage chunks than they must, and that take no calls from each other."""
    kept = csr_groups._KEPT_BOUNDARY_BYTES
    client.run(keep, 0)
    client.run_on_scheduler(steal, False)  # each theft may cost two reads
    yield client
    client.run_on_scheduler(steal, True)
    client.run(keep, kept)


@pytest.fixture
def stored(tmp_path):
    """A source of `N_CHUNKS` storage chunks that rows cross, and its arrays of values and indices."""
    X = sp.random_array((N_CHUNKS * 50, 300), density=1 / 15, format="csr", rng=np.random.default_rng(0))
    arrays = logged_csr(X.astype(np.float32), X.nnz // N_CHUNKS + 1, tmp_path)
    return CsrSource(*arrays, shape=X.shape, name="x"), arrays[:2]


def reads(arrays, n_passes=1):
    data, indices = (array.reads() / n_passes for array in arrays)
    assert data == indices >= 1
    return data


def test_passes_read_storage_chunks_once_but_for_few(workers, stored, tmp_path):
    source, arrays = stored
    chunk_bytes = 16 * arrays[0].unit_rows
    settings = {"refine": 0, "random_state": 0, "chunk_bytes": chunk_bytes, "progress": False, "executor": workers}
    kmeans = StreamKMeans(3, sketch=SketchOptions(n_components=16), **settings).fit(source)
    assert 2 * len(source.chunks(chunk_bytes)) >= N_CHUNKS
    assert reads(arrays, 2) <= MOST_READS
    for method in (kmeans.predict, kmeans.transform):
        method(source)
        assert reads(arrays) <= MOST_READS
    reader = RowReader(source, 8 * arrays[0].unit_rows, "euclidean", "raise")
    with engine.open_executor(workers) as executor:
        count_pass(PassContext(executor=executor, reader=reader), Stage("count"))
        assert reads(arrays) <= MOST_READS
        source.origin = Origin(files=(str(tmp_path),))  # known by its files: no rows are read to know it again
        write_store(tmp_path / "s.zarr", reader, CountSketch(16, 0), executor, Stage("store"))
        assert reads(arrays) <= MOST_READS


@given(st.integers(1, 3_000), st.integers(1, 12), st.integers(2, 40), st.sampled_from([RUNS, FEW_RUNS]))
def test_stretches_are_long_enough_and_even(n_chunks, n_units, n_workers, n_runs):
    """What two workers share is one part in 24, or less than one part for each; nobody gets a stretch too many."""
    reading = Reading(n_chunks, 1000 * n_units, 1000)
    for lengths in (run_lengths(n_chunks, n_runs), [1] * n_chunks):
        stretch = reading.stretch(len(lengths), n_workers)
        turns, given_items, seen = Turns(stretch), Counter(), []
        addresses = {f"w{i}": 1 for i in range(n_workers)}
        for length in lengths:
            seen.append(turns.place(addresses, length))
            given_items[seen[-1]] += length
        assert sum(given_items.values()) == n_chunks
        longest = stretch * max(lengths)
        assert max(given_items.values()) <= n_chunks / n_workers + longest
        borders = sum(a != b for a, b in pairwise(seen))
        assert borders <= max(n_workers - 1, n_units * n_chunks / SHARE + 1)
        assert longest <= 2 * (SHARE / n_units + 1 + max(lengths))


def test_a_lost_worker_gets_no_more():
    turns = Turns(4)
    assert [turns.place({"a": 1, "b": 1}, 1) for _ in range(6)] == ["a"] * 4 + ["b"] * 2
    assert [turns.place({"a": 1}, 1) for _ in range(2)] == ["a"] * 2
    # a worker that comes catches up; one with two threads gets twice as many
    assert [turns.place({"a": 1, "c": 2}, 1) for _ in range(6)] == ["a"] * 2 + ["c"] * 4
