"""Estimators inside tasks of Dask workers, whose threads are taken by the tasks: nothing waits for itself."""

from __future__ import annotations

import threading

import dask.array as da
import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_client
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from streamkm import IncrementalKMeans, StreamKernelKMeans, StreamKMeans, sweep
from streamkm.engine import local_threads
from tests.dask_processes import assert_same_bits

SECONDS = 60  # a task that waits for itself never ends
KMEANS = StreamKMeans(3, random_state=0, progress=False, chunk_bytes=5_000)
GRID = {"n_clusters": [2, 3]}


@pytest.fixture(scope="module")
def busy():
    """The active client of one worker with one thread: a task that keeps it leaves none."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        yield client


@pytest.fixture(scope="module")
def X():
    """float64 (600, 4), three groups in turn."""
    return np.random.default_rng(0).normal(size=(600, 4)) + 6 * (np.arange(600) % 3)[:, None]


@pytest.fixture(scope="module")
def wanted(X):
    return clone(KMEANS).set_params(executor=1).fit(X)


def in_task(client, function, *args):
    return client.submit(function, *args, pure=False).result(timeout=SECONDS)


def test_more_fits_than_threads_and_a_task_has_one(busy, X, wanted):
    assert in_task(busy, local_threads) == 1
    futures = [busy.submit(clone(KMEANS).fit, X, pure=False) for _ in range(3)]
    for got in busy.gather(futures):
        assert_same_bits(got, wanted)


def fit_by_client(X):
    """The task asks for the cluster that it runs on."""
    return clone(KMEANS).set_params(executor=get_client()).fit(X).set_params(executor="auto")


def fit_in_thread(X):
    """What runs in a thread that a task starts looks like no task, and finds the worker's client."""
    get_client()
    found = []
    thread = threading.Thread(target=lambda: found.append(clone(KMEANS).fit(X)))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.slow
def test_a_fit_by_the_workers_of_the_task_itself_and_in_a_thread_of_it(busy, X, wanted):
    assert_same_bits(in_task(busy, fit_by_client, X), wanted)
    assert in_task(busy, abs, -1) == 1  # the thread that was given back is there again
    assert_same_bits(in_task(busy, fit_in_thread, X), wanted)


def test_other_fits(busy, X):
    kernel = StreamKernelKMeans(3, random_state=0, n_landmarks=30, rank=8, progress=False)
    got, alone = in_task(busy, kernel.fit, X), clone(kernel).set_params(executor=1).fit(X)
    np.testing.assert_array_equal(got.labels_, alone.labels_)
    assert got.inertia_ == alone.inertia_
    swept = in_task(busy, lambda: sweep(X, [2, 3], random_state=0).best)
    assert swept == sweep(X, [2, 3], random_state=0, executor=1).best


def test_predictions(busy, X, wanted):
    """By blocks, and lazy ones, of an array that is on the workers already, too."""
    array = da.from_array(X, chunks=(150, 4))
    fitted = clone(KMEANS).fit(array)
    assert_same_bits(fitted, clone(KMEANS).set_params(executor=1).fit(array))
    mapped = array.map_blocks(fitted.predict, drop_axis=1, dtype=np.int32)
    np.testing.assert_array_equal(busy.compute(mapped).result(timeout=SECONDS), fitted.labels_)
    scores = busy.gather([busy.submit(fitted.score, X, pure=False) for _ in range(3)])
    assert scores == [fitted.score(X)] * 3
    for made in (array, busy.persist(array * 2) / 2):
        np.testing.assert_array_equal(busy.compute(fitted.predict(made)).result(timeout=SECONDS), fitted.labels_)
        assert_same_bits(in_task(busy, lambda array: clone(KMEANS).fit(array), made), fitted)


@pytest.mark.slow
def test_wrappers_of_dask_ml(busy, X, wanted):
    wrappers = pytest.importorskip("dask_ml.wrappers")
    array = da.from_array(X, chunks=(150, 4))
    parallel = wrappers.ParallelPostFit(clone(KMEANS)).fit(X)
    np.testing.assert_array_equal(busy.compute(parallel.predict(array)).result(timeout=SECONDS), wanted.labels_)
    distances = busy.compute(parallel.transform(array)).result(timeout=SECONDS)
    np.testing.assert_array_equal(distances, wanted.transform(X))
    assert parallel.score(array, None) == wanted.score(X)

    incremental = wrappers.Incremental(IncrementalKMeans(3, random_state=0, progress=False), shuffle_blocks=False)
    alone = IncrementalKMeans(3, random_state=0, progress=False, executor=1)
    for block in np.split(X, 4):
        alone.partial_fit(block)
    incremental.fit(array)
    np.testing.assert_array_equal(incremental.estimator_.cluster_centers_, alone.cluster_centers_)
    labels = busy.compute(incremental.predict(array)).result(timeout=SECONDS)
    np.testing.assert_array_equal(labels, alone.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("package", ["dask_ml", "sklearn"])
def test_grid_searches(busy, X, package):
    search = pytest.importorskip(f"{package}.model_selection").GridSearchCV
    wanted = GridSearchCV(clone(KMEANS).set_params(executor=1), GRID, cv=2).fit(X)
    options = {"scheduler": busy} if package == "dask_ml" else {}
    with joblib.parallel_config(backend="dask", client=busy):
        got = search(clone(KMEANS), GRID, cv=2, **options).fit(X)
    assert got.best_params_ == wanted.best_params_
    np.testing.assert_array_equal(got.cv_results_["mean_test_score"], wanted.cv_results_["mean_test_score"])
