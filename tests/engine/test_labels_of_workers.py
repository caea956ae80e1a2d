"""Labels of a cluster: the files of threads; arrays, which workers write, without labels in the client."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client
from sklearn.base import clone

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import OutputError, SourceNotFoundError
from streamkm.core.progress import Progress
from streamkm.engine import open_executor
from streamkm.engine.dask import DaskCluster
from streamkm.passes.labels import check_directory, count_skipped, open_labels
from tests.dask_processes import N_WORKERS, Relay

N_ROWS, D = 200_000, 4
SKIPPED = [0, 7, 60_000, N_ROWS - 1]
MOST_BYTES = 2 * N_ROWS
"""That the client receives: some two kilobytes about each of 40 calls; labels alone would be twice as many."""
SUFFIXES = (".zarr", ".csv", ".parquet")
PARAMETERS = {"random_state": 0, "max_iter": 3, "n_init": 1, "invalid": "skip", "progress": False}
KMEANS = StreamKMeans(5, chunk_bytes=4 * D * 5_000, **PARAMETERS)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Rows, some of them invalid, as NPY, and as Parquet with ids."""
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(N_ROWS, D)) + 6 * rng.integers(0, 5, (N_ROWS, 1))).astype(np.float32)
    X[SKIPPED, 1] = np.nan
    np.save(folder / "x.npy", X)
    columns = {f"x{j}": X[:, j] for j in range(D)}
    ids = pa.array([f'row "{number}"' for number in range(N_ROWS)])
    pq.write_table(pa.table({"who": ids, **columns}), folder / "x.parquet", row_group_size=20_000)
    return {"numbers": lambda: folder / "x.npy", "ids": lambda: open_source(folder / "x.parquet", id_column="who")}


@pytest.fixture(scope="module")
def wanted(sources, tmp_path_factory):
    """Models, and labels in every format, of threads."""
    folder = tmp_path_factory.mktemp("wanted")
    models = {kind: clone(KMEANS).set_params(executor=2).fit(source()) for kind, source in sources.items()}
    for kind, model in models.items():
        for suffix in SUFFIXES:
            model.predict_to(sources[kind](), folder / f"{kind}{suffix}")
    return folder, models


@pytest.fixture
def counted(cluster):
    """A client behind a relay that counts what it receives; workers are not behind it."""
    relay = Relay(cluster[0].address)
    try:
        with Client(relay.address, set_as_default=False) as client:
            yield relay, client
    finally:
        relay.close()


def assert_same(got, expected):
    if got.suffix == ".csv":
        assert got.read_bytes() == expected.read_bytes()
    elif got.suffix == ".parquet":
        assert pq.read_table(got).equals(pq.read_table(expected), check_metadata=True)
    else:
        np.testing.assert_array_equal(open_labels(got)[:], open_labels(expected)[:])


def assert_alone(path):
    """Demand that nothing lies beside a file of labels."""
    assert {each.name for each in path.parent.iterdir()} <= {path.name}


@pytest.mark.parametrize(("kind", "suffix"), [*(("numbers", suffix) for suffix in SUFFIXES), ("ids", ".csv")])
def test_labels_of_workers_are_those_of_threads(counted, sources, wanted, tmp_path, kind, suffix):
    relay, client = counted
    folder, models = wanted
    path = tmp_path / f"labels{suffix}"
    model = clone(KMEANS).set_params(executor=client)
    vars(model).update({name: value for name, value in vars(models[kind]).items() if name.endswith("_")})
    before = relay.n_received
    written = model.predict_to(sources[kind](), path)
    if suffix == ".zarr":
        assert relay.n_received - before < MOST_BYTES
    else:
        assert (written.n_rows, written.n_skipped) == (N_ROWS, len(SKIPPED))
    assert_same(path, folder / f"{kind}{suffix}")
    assert_alone(path)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_client_receives_counts_only_where_workers_of_a_fit_write_labels(
    counted, sources, wanted, tmp_path, monkeypatch, suffix
):
    """From the pass on that labels rows; sampled rows come before."""
    relay, client = counted
    path, begun = tmp_path / f"labels{suffix}", {}
    stage = Progress.stage

    def watched(self, name, *rest):
        begun[name] = relay.n_received
        return stage(self, name, *rest)

    monkeypatch.setattr(Progress, "stage", watched)
    model = clone(KMEANS).set_params(executor=client).fit(sources["numbers"](), labels_to=path)
    if suffix == ".zarr":
        assert relay.n_received - begun["assign"] < MOST_BYTES
    assert model.labels_.shape == (N_ROWS,)
    np.testing.assert_array_equal(model.labels_[:], wanted[1]["numbers"].labels_)
    np.testing.assert_array_equal(np.asarray(model.labels_), wanted[1]["numbers"].labels_)
    assert count_skipped(model.labels_) == len(SKIPPED)
    assert_same(path, wanted[0] / f"numbers{suffix}")
    assert_alone(path)


def fit_to(client, models, source, path):
    clone(KMEANS).set_params(executor=client).fit(source, labels_to=path)


def predict_to(client, models, source, path):
    model = models["numbers"]
    try:
        model.set_params(executor=client).predict_to(source, path)
    finally:
        model.set_params(executor=2)


@pytest.mark.parametrize("name", ["labels.zarr", "new/labels.zarr"])
@pytest.mark.parametrize("write", [fit_to, predict_to])
def test_a_place_that_workers_do_not_see_is_refused_before_rows_are_read(
    cluster, sources, wanted, tmp_path, monkeypatch, name, write
):
    """/proc/self/cwd is another folder for each process; one below it is to be made."""
    calls, submit = Counter(), DaskCluster._submit

    def watched(self, stage, *rest, **place):
        calls[stage] += 1
        return submit(self, stage, *rest, **place)

    monkeypatch.setattr(DaskCluster, "_submit", watched)
    monkeypatch.chdir(tmp_path)
    message = rf"/proc/self/cwd/\.{name.removeprefix('new/')}.* seen from worker tcp://"
    with pytest.raises(SourceNotFoundError, match=message):
        write(cluster[1], wanted[1], sources["numbers"](), f"/proc/self/cwd/{name}")
    assert set(calls) == {"place"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_place_that_cannot_be_written_to_is_refused_before_rows_are_read(sources, monkeypatch, suffix):
    begun, stage = [], Progress.stage

    def watched(self, name, *rest):
        begun.append(name)
        return stage(self, name, *rest)

    monkeypatch.setattr(Progress, "stage", watched)
    with pytest.raises(OutputError, match=rf"^/proc/labels\{suffix} cannot be written"):
        clone(KMEANS).set_params(executor=2).fit(sources["numbers"](), labels_to=f"/proc/labels{suffix}")
    assert begun == []


def test_workers_that_cannot_write_say_so(cluster):
    with (
        open_executor(cluster[1]) as executor,
        pytest.raises(OutputError, match=r"^/proc/self cannot be written: .*, seen from worker tcp://"),
    ):
        executor.everywhere("place", check_directory, "/proc/self")


def test_every_worker_is_asked(cluster):
    with open_executor(cluster[1]) as executor:
        asked = Counter()
        finish = executor.finish
        executor.finish = lambda future, fetch: asked.update(finish(future, fetch=fetch))
        executor.everywhere("place", process_of, None)
    assert len(asked) == N_WORKERS


def process_of(item):
    return os.getpid()
