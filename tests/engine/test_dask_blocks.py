"""What many blocks of a Dask array cost: linear work here, few tasks for a scheduler, nothing computed twice."""

from __future__ import annotations

import time

import dask
import dask.array as da
import numpy as np
import pytest
from packaging.version import Version

from streamkm import StreamKMeans
from streamkm.engine import open_executor
from streamkm.sources import open_source, row_graphs
from tests.dask_processes import assert_same_bits, watched
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
    for made, executor in ((kept, client), (kept, 2), (client.persist(kept * 2) / 2, client)):
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
