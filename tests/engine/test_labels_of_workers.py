"""Labels of a cluster: those of threads, in files that workers write, or on workers until they are asked for."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from copy import deepcopy

import dask.array as da
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from sklearn.base import clone

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import ClusterError, OutputError, SourceNotFoundError
from streamkm.core.progress import Progress
from streamkm.engine import open_executor
from streamkm.engine.dask import DaskCluster
from streamkm.passes.labels import check_directory, open_labels
from tests.dask_processes import N_WORKERS, Relay, assert_same_bits
from tests.tables import cases, slow_but

N_ROWS, D = 200_000, 4
SKIPPED = [0, 7, 60_000, N_ROWS - 1]
MOST_BYTES = 2 * N_ROWS
"""That the client receives: some two kilobytes about each of 40 calls; labels alone would be twice as many."""
SUFFIXES = (".zarr", ".csv", ".parquet")
PARAMETERS = {"random_state": 0, "max_iter": 3, "n_init": 1, "invalid": "skip", "progress": False}
KMEANS = StreamKMeans(5, chunk_bytes=4 * D * 5_000, **PARAMETERS)


@pytest.fixture(scope="module")
def X():
    """float32 (200,000, 4), four rows of which are invalid."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(N_ROWS, D)) + 6 * rng.integers(0, 5, (N_ROWS, 1))).astype(np.float32)
    X[SKIPPED, 1] = np.nan
    return X


@pytest.fixture(scope="module")
def sources(X, tmp_path_factory):
    """The rows as NPY, and as Parquet with ids."""
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "x.npy", X)
    columns = {f"x{j}": X[:, j] for j in range(D)}
    ids = pa.array([f'row "{number}"' for number in range(N_ROWS)])
    pq.write_table(pa.table({"who": ids, **columns}), folder / "x.parquet", row_group_size=20_000)
    return {"numbers": lambda: folder / "x.npy", "ids": lambda: open_source(folder / "x.parquet", id_column="who")}


@pytest.fixture(scope="module")
def path(sources):
    return sources["numbers"]()


@pytest.fixture(scope="module")
def wanted(path):
    """The fit on threads."""
    return fit_on(2, path)


@pytest.fixture
def counted(cluster):
    """A client behind a relay that counts what it receives; workers are not behind it."""
    relay = Relay(cluster[0].address)
    try:
        with Client(relay.address, set_as_default=False) as client:
            yield relay, client
    finally:
        relay.close()


def fit_on(executor, data, **given):
    return clone(KMEANS).set_params(executor=executor).fit(data, **given)


def assert_same(got, expected):
    if got.suffix == ".csv":
        assert got.read_bytes() == expected.read_bytes()
    elif got.suffix == ".parquet":
        assert pq.read_table(got).equals(pq.read_table(expected), check_metadata=True)
    else:
        np.testing.assert_array_equal(open_labels(got)[:], open_labels(expected)[:])
    assert {each.name for each in got.parent.iterdir()} == {got.name}  # nothing lies beside


@pytest.mark.parametrize(
    ("kind", "suffix"),
    slow_but([("numbers", ".zarr"), ("ids", ".csv")], [*(("numbers", suffix) for suffix in SUFFIXES), ("ids", ".csv")]),
)
def test_labels_of_workers_are_those_of_threads(counted, sources, wanted, tmp_path, kind, suffix):
    relay, client = counted
    on_threads, path = tmp_path / "threads" / f"labels{suffix}", tmp_path / "workers" / f"labels{suffix}"
    for each in (on_threads, path):
        each.parent.mkdir()
    found = wanted if kind == "numbers" else fit_on(2, sources[kind]())
    found.predict_to(sources[kind](), on_threads)
    model = clone(KMEANS).set_params(executor=client)
    vars(model).update({name: value for name, value in vars(found).items() if name.endswith("_")})
    before = relay.n_received
    written = model.predict_to(sources[kind](), path)
    if suffix == ".zarr":
        assert relay.n_received - before < MOST_BYTES
    else:
        assert (written.n_rows, written.n_skipped) == (N_ROWS, len(SKIPPED))
    assert_same(path, on_threads)


@pytest.fixture
def begun(counted, monkeypatch):
    """What the client had received as each stage began."""
    seen, stage = {}, Progress.stage

    def noting(self, name, *rest):
        seen[name] = counted[0].n_received
        return stage(self, name, *rest)

    monkeypatch.setattr(Progress, "stage", noting)
    return seen


def test_a_place_that_workers_do_not_see_is_refused_before_rows_are_read(cluster, path, wanted, tmp_path, monkeypatch):
    """/proc/self/cwd is another folder for each process; one below it is to be made."""
    calls, submit = Counter(), DaskCluster._submit

    def watched(self, stage, *rest, **place):
        calls[stage] += 1
        return submit(self, stage, *rest, **place)

    monkeypatch.setattr(DaskCluster, "_submit", watched)
    monkeypatch.chdir(tmp_path)
    model = clone(KMEANS).set_params(executor=cluster[1])
    with pytest.raises(SourceNotFoundError, match=r"/proc/self/cwd/\.labels\.zarr.* seen from worker tcp://"):
        model.fit(path, labels_to="/proc/self/cwd/new/labels.zarr")
    vars(model).update({name: value for name, value in vars(wanted).items() if name.endswith("_")})
    with pytest.raises(SourceNotFoundError, match=r"/proc/self/cwd/\.labels\.zarr.* seen from worker tcp://"):
        model.predict_to(path, "/proc/self/cwd/labels.zarr")
    assert set(calls) == {"place"}
    assert not list(tmp_path.iterdir())


@cases("suffix", SUFFIXES)
def test_a_place_that_cannot_be_written_to_is_refused_before_rows_are_read(path, monkeypatch, suffix):
    begun = []
    monkeypatch.setattr(Progress, "stage", lambda self, name, *rest: begun.append(name))
    with pytest.raises(OutputError, match=rf"^/proc/labels\{suffix} cannot be written"):
        fit_on(2, path, labels_to=f"/proc/labels{suffix}")
    assert begun == []


def test_every_worker_is_asked_and_says_so_if_it_cannot_write(cluster):
    with open_executor(cluster[1]) as executor:
        asked = Counter()
        finish = executor.finish
        executor.finish = lambda future, fetch: asked.update(finish(future, fetch=fetch))
        executor.everywhere("place", process_of, None)
        assert len(asked) == N_WORKERS
        with pytest.raises(OutputError, match=r"^/proc/self cannot be written: .*, seen from worker tcp://"):
            executor.everywhere("place", check_directory, "/proc/self")


def process_of(item):
    return os.getpid()


def test_the_pass_that_labels_sends_none_and_they_are_gathered_when_asked_for(counted, begun, path, wanted):
    relay, client = counted
    model = fit_on(client, path)
    assert "labels_" not in vars(model)
    before = relay.n_received
    assert before - begun["assign"] < MOST_BYTES
    labels = model.labels_
    assert 4 * N_ROWS <= relay.n_received - before < 5 * N_ROWS
    assert labels.dtype == np.int32
    assert model.labels_ is labels
    assert_same_bits(model, wanted)


@pytest.mark.parametrize("known", slow_but([False], [True, False], full=True))
def test_blocks_are_those_of_a_dask_array(client, X, known):
    array = da.from_array(X, chunks=((70_000, 0, 120_000, 10_000), D))
    if not known:
        array = array[(array[:, 0] > -1e9) | da.isnan(array[:, 1])]
    model, expected = fit_on(client, array), fit_on(2, array)
    labels = model.dask_labels_
    np.testing.assert_array_equal(labels.chunks, array.chunks[:1])
    np.testing.assert_array_equal(client.compute(labels).result(), expected.labels_)
    chosen = client.compute(array[labels == 1]).result()
    np.testing.assert_array_equal(chosen, X[expected.labels_ == 1])
    assert "labels_" not in vars(model)
    np.testing.assert_array_equal(model.labels_, expected.labels_)


@pytest.mark.slow
def test_labels_of_a_lost_worker_are_made_again(cluster, path, wanted):
    started, client = cluster
    model = fit_on(client, path)
    lazy = model.dask_labels_
    for number in started.living()[:-1]:
        started.kill(number)
    np.testing.assert_array_equal(client.compute(lazy).result(), wanted.labels_)
    started.kill(started.living()[0])  # now nobody has any
    started.refill(client, N_WORKERS)
    np.testing.assert_array_equal(model.labels_, wanted.labels_)


def test_what_is_written_of_a_fit_needs_no_labels_and_copies_have_them(client, path, wanted, tmp_path):
    model = fit_on(client, path)
    labels = model.dask_labels_  # as high as the file's chunks
    assert isinstance(labels, da.Array)
    assert labels.dtype == np.int32
    assert labels.chunks == ((5_000,) * (N_ROWS // 5_000),)
    np.testing.assert_array_equal(client.compute(labels).result(), wanted.labels_)
    assert client.compute((labels < 0).sum()).result() == len(SKIPPED)
    model.save(tmp_path / "model")
    model.report(tmp_path / "report.html")
    assert model.incremental().n_samples_seen_ == wanted.incremental().n_samples_seen_ == N_ROWS - len(SKIPPED)
    assert not hasattr(clone(model.set_params(executor=2)), "labels_")
    assert "labels_" not in vars(model)
    np.testing.assert_array_equal(StreamKMeans.load(tmp_path / "model").predict(path), wanted.predict(path))
    for copied in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(copied.labels_, wanted.labels_)
        np.testing.assert_array_equal(copied.dask_labels_.compute(scheduler="sync"), wanted.labels_)


@pytest.mark.slow
def test_labels_are_gone_with_the_client(cluster, path, wanted):
    with Client(cluster[0].address, set_as_default=False) as client:
        model, gathered = fit_on(client, path), fit_on(client, path)
        np.testing.assert_array_equal(gathered.labels_, wanted.labels_)
    message = r"client is closed; ask for labels_ before the client is closed, or .*labels_to=.*; predict finds them"
    for ask in (lambda: model.labels_, lambda: pickle.dumps(model.set_params(executor=2))):
        with pytest.raises(ClusterError, match=message):
            ask()
    np.testing.assert_array_equal(model.set_params(executor=2).predict(path), wanted.labels_)
    np.testing.assert_array_equal(gathered.labels_, wanted.labels_)
    np.testing.assert_array_equal(gathered.dask_labels_.compute(scheduler="sync"), wanted.labels_)
    np.testing.assert_array_equal(model.fit(path).labels_, wanted.labels_)
