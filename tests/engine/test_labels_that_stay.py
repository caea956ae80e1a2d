"""Labels that stay on the workers of a cluster until they are asked for: those of threads, also if a worker is lost."""

from __future__ import annotations

import pickle
from copy import deepcopy

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone

from streamkm import StreamKMeans
from streamkm.core.exceptions import ClusterError
from tests.dask_processes import N_WORKERS, Relay, assert_same_bits

N_ROWS, D = 200_000, 4
SKIPPED = [0, 7, 60_000, N_ROWS - 1]
CHUNK_ROWS = 5_000
KMEANS = StreamKMeans(
    5, chunk_bytes=4 * D * CHUNK_ROWS, random_state=0, max_iter=3, n_init=1, invalid="skip", progress=False
)


@pytest.fixture(scope="module")
def X():
    """float32 (200,000, 4), four rows of which are invalid."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(N_ROWS, D)) + 6 * rng.integers(0, 5, (N_ROWS, 1))).astype(np.float32)
    X[SKIPPED, 1] = np.nan
    return X


@pytest.fixture(scope="module")
def path(X, tmp_path_factory):
    """The rows in a file."""
    name = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(name, X)
    return name


@pytest.fixture(scope="module")
def wanted(path):
    """A fit on threads."""
    return clone(KMEANS).set_params(executor=2).fit(path)


def fit_on(client, data, **given):
    return clone(KMEANS).set_params(executor=client, **given).fit(data)


def test_labels_are_gathered_when_they_are_asked_for(cluster, path, wanted):
    relay = Relay(cluster[0].address)
    try:
        with Client(relay.address, set_as_default=False) as client:
            model = fit_on(client, path)
            assert "labels_" not in vars(model)
            before = relay.n_received
            labels = model.labels_
            assert 4 * N_ROWS <= relay.n_received - before < 5 * N_ROWS
            assert labels.dtype == np.int32
            assert model.labels_ is labels
            assert_same_bits(model, wanted)
    finally:
        relay.close()


def test_the_pass_that_labels_sends_no_labels(cluster, path, monkeypatch):
    from streamkm.core.progress import Progress

    relay, begun = Relay(cluster[0].address), {}
    stage = Progress.stage

    def watched(self, name, *rest):
        begun[name] = relay.n_received
        return stage(self, name, *rest)

    monkeypatch.setattr(Progress, "stage", watched)
    try:
        with Client(relay.address, set_as_default=False) as client:
            fit_on(client, path)
            assert relay.n_received - begun["assign"] < 2 * N_ROWS  # labels alone would be twice as many
    finally:
        relay.close()


def test_blocks_of_a_file_are_as_high_as_its_chunks(client, path, wanted):
    model = fit_on(client, path)
    labels = model.dask_labels_
    assert isinstance(labels, da.Array)
    assert labels.dtype == np.int32
    assert labels.chunks == ((CHUNK_ROWS,) * (N_ROWS // CHUNK_ROWS),)
    np.testing.assert_array_equal(client.compute(labels).result(), wanted.labels_)
    assert client.compute((labels < 0).sum()).result() == len(SKIPPED)
    assert "labels_" not in vars(model)


@pytest.mark.parametrize("heights", [(70_000, 0, 120_000, 10_000), (50_000,) * 4])
@pytest.mark.parametrize("known", [True, False])
def test_blocks_are_those_of_a_dask_array(client, X, heights, known):
    array = da.from_array(X, chunks=(heights, D))
    if not known:
        array = array[(array[:, 0] > -1e9) | da.isnan(array[:, 1])]
    model, expected = fit_on(client, array), clone(KMEANS).set_params(executor=2).fit(array)
    labels = model.dask_labels_
    np.testing.assert_array_equal(labels.chunks, array.chunks[:1])
    np.testing.assert_array_equal(client.compute(labels).result(), expected.labels_)
    chosen = client.compute(array[labels == 1]).result()
    np.testing.assert_array_equal(chosen, X[expected.labels_ == 1])
    assert "labels_" not in vars(model)
    np.testing.assert_array_equal(model.labels_, expected.labels_)


def test_rows_of_this_process_leave_labels_here(client, X, wanted):
    model = fit_on(client, X)
    assert_same_bits(model, wanted)
    np.testing.assert_array_equal(client.compute(model.dask_labels_).result(), wanted.labels_)


def test_a_checkpoint_gathers_labels(client, path, wanted, tmp_path):
    model = clone(KMEANS).set_params(executor=client).fit(path, checkpoint=tmp_path / "saved")
    assert "labels_" in vars(model)
    assert_same_bits(model, wanted)


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


def test_what_is_written_of_a_fit_needs_no_labels(client, path, wanted, tmp_path):
    model = fit_on(client, path)
    model.save(tmp_path / "model")
    model.report(tmp_path / "report.html")
    assert model.incremental().n_samples_seen_ == wanted.incremental().n_samples_seen_ == N_ROWS - len(SKIPPED)
    copied = clone(model.set_params(executor=2))
    assert not hasattr(copied, "labels_")
    assert "labels_" not in vars(model)
    np.testing.assert_array_equal(StreamKMeans.load(tmp_path / "model").predict(path), wanted.predict(path))


@pytest.mark.parametrize("copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_the_labels(client, path, wanted, copy):
    model = fit_on(client, path).set_params(executor=2)
    copied = copy(model)
    np.testing.assert_array_equal(copied.labels_, wanted.labels_)
    np.testing.assert_array_equal(copied.dask_labels_.compute(scheduler="sync"), wanted.labels_)


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
