"""Workers killed, added, short of memory; a scheduler gone: fits end with the same bits, or with one clear error."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

import h5py
import numpy as np
import psutil
import pytest
import zarr
from sklearn.base import clone
from sklearn.datasets import dump_svmlight_file

from streamkm import SketchOptions, StreamKMeans
from streamkm.cluster.blocks import MOST_LABEL_STEPS
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.core.exceptions import ClusterError, SourceNotFoundError
from streamkm.engine import checkpoint as saving
from streamkm.engine import dask as dask_cluster
from streamkm.engine import open_executor
from streamkm.engine.dask import DaskCluster
from streamkm.passes import labels as labelling
from streamkm.sources import open_source
from tests.dask_processes import N_WORKERS, assert_same_bits, cluster_of, write_rows

PARAMETERS = {"random_state": 0, "max_iter": 4, "tol": 0, "chunk_bytes": 20_000, "progress": False}
FIT_SECONDS = 120  # for what takes some three; workers that were just started import everything first

FULL = (pytest.mark.slow, pytest.mark.full)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """float32 (6,000, 32) in a file of 39 chunks: runs of two."""
    path = tmp_path_factory.mktemp("data") / "x.npy"
    write_rows(path)
    return path


@pytest.fixture(scope="module")
def wanted(data):
    return StreamKMeans(10, executor=1, **PARAMETERS).fit(data)


@pytest.fixture
def at(monkeypatch):
    """Do something when the n-th call of a stage is started."""

    def arrange(stage, number, action):
        seen = Counter()
        submit = DaskCluster._submit

        def watched(self, name, *args, **place):
            seen[name] += 1
            if seen[name] == number and name == stage:
                action()
            return submit(self, name, *args, **place)

        monkeypatch.setattr(DaskCluster, "_submit", watched)
        return seen

    return arrange


@pytest.fixture
def fit_on_fewer(cluster, at):
    """A fit of which workers are killed, all but one if not said, as the n-th call of a stage is started."""

    def fit(kmeans, path, wanted, stage, number, n_killed=N_WORKERS - 1):
        started, client = cluster
        seen = at(stage, number, lambda: [started.kill(worker) for worker in started.living()[:n_killed]])
        got = clone(kmeans).set_params(executor=client).fit(path)
        assert seen[stage] >= number
        assert len(started.living()) == N_WORKERS - n_killed
        assert_same_bits(got, wanted)

    return fit


@pytest.mark.parametrize(
    ("stage", "number", "n_killed"),
    [
        ("lloyd-2", 5, 1),
        pytest.param("share", 1, 1, marks=pytest.mark.slow),
        pytest.param("assign", 8, N_WORKERS - 1, marks=pytest.mark.slow),
        pytest.param("lloyd-2-join", 1, N_WORKERS - 1, marks=FULL),
    ],
)
def test_workers_killed(fit_on_fewer, data, wanted, stage, number, n_killed):
    fit_on_fewer(StreamKMeans(10, **PARAMETERS), data, wanted, stage, number, n_killed)


@pytest.mark.slow
def test_workers_killed_where_a_sketch_is_found_first(fit_on_fewer, data):
    kmeans = StreamKMeans(10, executor=1, sketch=SketchOptions("pca", 8), coreset=None, **PARAMETERS)
    fit_on_fewer(kmeans, data, clone(kmeans).fit(data), "sketch-all", 8)


@pytest.mark.slow
@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.full), MOST_LABEL_STEPS + 2])
def test_workers_killed_that_held_labels_of_many_clusters(fit_on_fewer, data, step):
    """Each step begins with labels that workers hold of the last one."""
    settings = {**PARAMETERS, "init": np.load(data)[:FEWEST_CENTERS], "tol": 1e-12, "max_iter": step + 1}
    kmeans = StreamKMeans(FEWEST_CENTERS, executor=1, sketch="identity", coreset=None, **settings)
    wanted = clone(kmeans).fit(data)
    assert wanted.n_iter_ == step + 1
    fit_on_fewer(kmeans, data, wanted, f"lloyd-{step}-held", 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "number"), [pytest.param("draw", 1, marks=pytest.mark.full), ("draw", 5), ("search", 1)]
)
def test_workers_killed_while_rows_are_drawn_and_searched(fit_on_fewer, tmp_path, stage, number):
    """In the first round of drawing, before and after a call has told its rows; and while one worker searches."""
    n_rows = 80_000  # more than are sampled, and than are all searched
    X = np.random.default_rng(0).standard_t(3, size=(n_rows, 16)) + 4 * (np.arange(n_rows) % 10)[:, None]
    np.save(tmp_path / "x.npy", X.astype(np.float32))
    settings = {**PARAMETERS, "chunk_bytes": 200_000, "max_iter": 2}
    kmeans = StreamKMeans(10, executor=1, sketch="identity", coreset=None, **settings)
    fit_on_fewer(kmeans, tmp_path / "x.npy", clone(kmeans).fit(tmp_path / "x.npy"), stage, number)


@pytest.mark.slow
@pytest.mark.parametrize("place", [pytest.param(("assign", 8), marks=pytest.mark.full), ("labels", 3)], ids=str)
def test_workers_killed_that_held_labels_to_be_written(cluster, at, data, wanted, tmp_path, monkeypatch, place):
    monkeypatch.setattr(labelling, "ROWS_PER_WRITE", 700)
    started, client = cluster
    seen = at(*place, lambda: [started.kill(worker) for worker in started.living()[: N_WORKERS - 1]])
    got = StreamKMeans(10, executor=client, **PARAMETERS).fit(data, labels_to=tmp_path / "labels.zarr")
    assert seen["labels"] == 9
    got.labels_ = got.labels_[:]
    assert_same_bits(got, wanted)
    assert not list((tmp_path / "labels.zarr").rglob("*.partial"))


@pytest.mark.slow
def test_every_worker_killed(cluster, at, data, monkeypatch):
    monkeypatch.setattr(dask_cluster, "NO_WORKERS_SECONDS", 1.0)
    started, client = cluster
    at("lloyd-2", 5, lambda: [started.kill(worker) for worker in started.living()])
    with pytest.raises(ClusterError, match=r"no worker has been connected to tcp://.* for 1 s; start workers"):
        StreamKMeans(10, executor=client, **PARAMETERS).fit(data)


def within(seconds, function, *args):
    """What a function gives, or raises, that must end in time."""
    outcome = Future()

    def call():
        try:
            outcome.set_result(function(*args))
        except BaseException as error:  # noqa: BLE001 - it is raised by whoever waits
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return outcome.result(seconds)


@pytest.mark.parametrize(
    ("stage", "number"),
    [("lloyd-2", 5), *(pytest.param(*place, marks=FULL) for place in (("share", 1), ("sketch-told", 39)))],
)
def test_rows_that_were_sent_are_lost_with_a_worker(cluster, at, data, wanted, stage, number):
    """They are nowhere else: a clear error, and nothing that hangs; the cluster is as good as before."""
    started, client = cluster
    X = np.load(data)
    kmeans = StreamKMeans(10, executor=client, **PARAMETERS)
    seen = at(stage, number, lambda: started.kill(started.living()[0]))
    try:
        got = within(FIT_SECONDS, kmeans.fit, X)
    except ClusterError as error:
        assert "rows that this process had sent to it; fit again" in str(error)  # noqa: PT017 - or the fit ends well
        got = within(FIT_SECONDS, kmeans.fit, X)
    assert seen[stage] >= number
    assert len(started.living()) == N_WORKERS - 1
    assert_same_bits(got, wanted)


def kill_who_takes(workers, n_bytes):
    """Kill the first of some processes whose memory grows by so much; say which it was."""
    before = {worker.pid: psutil.Process(worker.pid).memory_info().rss for worker in workers}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for worker in workers:
            if psutil.Process(worker.pid).memory_info().rss > before[worker.pid] + n_bytes:
                worker.kill()
                worker.wait()
                return worker.pid
    raise TimeoutError(f"no worker took {n_bytes:,} bytes")


@pytest.mark.slow
def test_a_worker_killed_while_it_takes_rows(cluster):
    """The connection that is closed then is the worker's, while the scheduler answers: the rows go to another."""
    started, client = cluster
    source = open_source(np.random.default_rng(0).random((1_000_000, 16)))
    with ThreadPoolExecutor(1) as pool, open_executor(client) as executor:
        killed = pool.submit(kill_who_takes, [started.workers[number] for number in started.living()], 60_000_000)
        ((rows, n_rows),) = within(FIT_SECONDS, lambda: list(executor.items(source, source.n_bytes)))
        assert killed.result()
        assert n_rows == source.n_rows
        assert within(FIT_SECONDS, lambda: list(executor.map("shape", shape_of, [rows]))) == [(1_000_000, 16)]
    assert len(started.living()) == N_WORKERS - 1


def shape_of(rows):
    return rows.X.shape


@pytest.mark.slow
def test_workers_that_take_no_rows_and_say_nothing(cluster, monkeypatch):
    """Nothing waits for them for ever: the rows go to others, as long as there are any."""
    started, client = cluster
    silent, source = [started.workers[number] for number in started.living()], open_source(np.zeros((900, 4)))
    message = r"^workers of tcp://.* did not take rows .* 5 times \(no answer\); .*fit again$"
    try:
        with open_executor(client) as executor:
            monkeypatch.setattr(dask_cluster, "SEND_SECONDS", 0.5)
            silent[0].send_signal(signal.SIGSTOP)
            assert len(within(FIT_SECONDS, lambda: list(executor.items(source, 9_600)))) == 3
            monkeypatch.setattr(dask_cluster, "SEND_SECONDS", 0.1)
            for worker in silent[1:]:
                worker.send_signal(signal.SIGSTOP)
            with pytest.raises(ClusterError, match=message):
                within(FIT_SECONDS, lambda: list(executor.items(source, 9_600)))
    finally:
        for worker in silent:
            worker.kill()
            worker.wait()


KEPT = r"; what was done is kept in .*state: the same fit with this checkpoint, or streamkm fit --resume, goes on"


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [pytest.param(("lloyd-3", 5, "lloyd"), marks=pytest.mark.full), ("assign", 8, "assign-0")], ids=str
)
def test_a_fit_goes_on_without_its_scheduler(tmp_path, at, cluster, data, wanted, monkeypatch, place):
    """From its checkpoint: on threads of this process, and on another cluster."""
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    state, (stage, number, record) = tmp_path / "state", place
    kmeans = StreamKMeans(10, **PARAMETERS)
    with cluster_of(tmp_path, 1) as (started, client):
        at(stage, number, started.scheduler.kill)
        with pytest.raises(ClusterError, match=r"lost the scheduler tcp://.*" + KEPT):
            kmeans.set_params(executor=client).fit(data, checkpoint=state)
    assert (state / f"{record}.record").exists()
    shutil.copytree(state, tmp_path / "copy")
    assert_same_bits(kmeans.set_params(executor=2).fit(data, checkpoint=state), wanted)
    assert not state.exists()
    assert_same_bits(kmeans.set_params(executor=cluster[1]).fit(data, checkpoint=tmp_path / "copy"), wanted)


def end_worker(item):
    os._exit(3)


@pytest.mark.slow
def test_a_worker_that_ends_itself_is_not_said_to_be_out_of_memory(cluster):
    def allow(n_failures, dask_scheduler=None):
        before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, n_failures
        return before

    _, client = cluster
    allowed = client.run_on_scheduler(allow, 0)
    message = r"1 workers of tcp://.* lost .* their logs say why. If it was memory"
    with pytest.raises(ClusterError, match=message), open_executor(client) as executor:
        list(executor.map("end", end_worker, [1]))
    client.run_on_scheduler(allow, allowed)


def test_a_path_that_workers_do_not_see(cluster, data, monkeypatch, tmp_path):
    """/proc/self/cwd is another folder for each process: here it has the file, on workers it does not."""
    X = np.load(data)[:500]
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", X=X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(100, 32))
    dump_svmlight_file(X, np.zeros(len(X)), str(tmp_path / "x.svm"))
    monkeypatch.chdir(tmp_path)
    for name in ("x.npy", "x.npz", "x.h5", "x.zarr", "x.svm"):
        path = f"/proc/self/cwd/{name}"
        with pytest.raises(SourceNotFoundError, match=rf"{path}.* seen from worker tcp://.* same path"):
            StreamKMeans(3, executor=cluster[1], **PARAMETERS).fit(path)
