"""Workers that lack the package or have another release are refused before rows are read; schedulers by address."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import numpy as np
import pytest

import streamkm
from streamkm import StreamKMeans
from streamkm.core.exceptions import ClusterError, SourceNotFoundError
from streamkm.engine import executor_choice as opening
from streamkm.engine import open_cluster, open_executor
from streamkm.engine.dask import DaskCluster
from streamkm.sources import open_source
from tests.dask_processes import N_WORKERS, STARTED_SECONDS, certificate, cluster_of, watched, write_rows

SECONDS = 10.0  # until a fit says so
WITHOUT = """\
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "streamkm":
            raise ModuleNotFoundError("No module named 'streamkm'", name="streamkm")
sys.meta_path.insert(0, Without())
"""


@pytest.fixture
def add_unlike(cluster, tmp_path):
    """A function that starts one more worker: a fresh interpreter whose path begins with a folder of its own."""
    (processes, client), folder, started = cluster, tmp_path / "unlike", []
    folder.mkdir()

    def add():
        with open(folder / "log", "wb") as log:
            started.append(subprocess.Popen(
                [sys.executable, "-m", "dask", "worker", processes.address, "--nthreads", "1", "--no-dashboard",
                 "--no-nanny", "--host", "127.0.0.1", "--local-directory", str(folder)],
                cwd=folder, env={**processes.environment, "PYTHONPATH": str(folder)}, stdout=log, stderr=log,
            ))  # fmt: skip
        client.wait_for_workers(N_WORKERS + 1, timeout=STARTED_SECONDS)

    yield folder, add
    for worker in started:
        assert worker.poll() is None  # it was sent no call, which would have ended it
        worker.kill()
        worker.wait()
    while len(client.nthreads()) > N_WORKERS:
        time.sleep(0.05)


def fit(client, X, **settings):
    return StreamKMeans(3, random_state=0, executor=client, progress=False, **settings).fit(X)


def assert_named(client, path, known, fault):
    """Demand that a fit names the one worker that is unlike this process, and soon."""
    write_rows(path)
    begun = time.monotonic()
    with pytest.raises(ClusterError, match=rf"^{fault}; needed: Python .*; install these where workers") as raised:
        fit(client, path)
    assert time.monotonic() < begun + SECONDS
    assert not any(address in str(raised.value) for address in known)


def test_rows_are_sent_to_workers_that_were_looked_at_and_a_fit_names_the_other(cluster, add_unlike, tmp_path):
    """To no worker that has joined since the last look, which may lack the package."""
    (_, client), (folder, add) = cluster, add_unlike
    (folder / "sitecustomize.py").write_text(WITHOUT)
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    with open_executor(client) as executor:
        known = set(client.nthreads())
        add()
        items = [item for item, _ in executor.items(open_source(X), X.nbytes // 20)]
        assert len(items) == 20
        assert {address for where in client.who_has(items).values() for address in where} <= known
    fault = r"workers tcp://\S+ cannot import streamkm \(No module named 'streamkm'\)"
    assert_named(client, tmp_path / "x.npy", known, fault)


@pytest.mark.slow
def test_a_worker_that_joins_later_is_looked_at(cluster, add_unlike, tmp_path):
    """While a fit waits for rows, which come slowly."""
    (_, client), (folder, add) = cluster, add_unlike
    package = Path(streamkm.__file__).parent
    shutil.copytree(package, folder / "streamkm", ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "streamkm" / "passes" / "assign.py", "a", encoding="utf-8") as file:
        file.write("# changed\n")
    known, X = set(client.nthreads()), np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)

    def rows():
        yield X
        add()
        for _ in range(int(SECONDS * 10)):
            time.sleep(0.1)
            yield X

    fault = r"workers tcp://\S+ have streamkm \S+ \(code \w{16}\)"
    with pytest.raises(ClusterError, match=fault):
        fit(client, rows())
    assert_named(client, tmp_path / "x.npy", known, fault)


def test_a_worker_that_says_nothing_is_not_refused(cluster, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("streamkm.engine.dask_workers.ANSWER_SECONDS", 0.5)
    processes, client = cluster
    data = tmp_path / "x.npy"
    write_rows(data)
    silent = processes.workers[processes.living()[0]]
    slow = next(address for address, pid in client.run(os.getpid).items() if pid == silent.pid)
    silent.send_signal(signal.SIGSTOP)
    resumed = threading.Timer(2.0, silent.send_signal, [signal.SIGCONT])
    resumed.start()
    fit(client, data)
    resumed.join()
    assert f"worker {slow} does not say" in caplog.text


def test_a_worker_that_does_not_see_the_file_is_named_before_a_row_is_read(cluster, tmp_path, monkeypatch):
    """/proc/self/cwd is another folder for each process: one of three workers does not have the file in its own."""
    write_rows(tmp_path / "x.npy")
    monkeypatch.chdir(tmp_path)
    processes, client = cluster
    *seeing, blind = sorted(client.nthreads())
    client.run(os.chdir, str(tmp_path), workers=seeing)
    try:
        missing = rf"x\.npy does not exist, seen from worker {blind} .* same path"
        with watched(client) as stages:
            with pytest.raises(SourceNotFoundError, match=missing):
                fit(client, "/proc/self/cwd/x.npy")
            assert "sketch" not in stages()
        client.run(os.chdir, str(tmp_path), workers=[blind])
        assert fit(client, "/proc/self/cwd/x.npy").n_iter_ >= 1
    finally:
        client.run(os.chdir, str(processes.folder))


def double(item):
    return 2 * item


def doubled(client):
    with open_executor(client) as executor:
        return list(executor.map("double", double, range(5)))


def test_a_scheduler_that_runs(cluster):
    started, _ = cluster
    with open_cluster(started.address) as client:
        assert doubled("auto") == doubled(client) == [0, 2, 4, 6, 8]
        with open_executor("auto") as executor:
            assert isinstance(executor, DaskCluster)
    assert client.status == "closed"
    assert started.scheduler.poll() is None
    assert len(started.living()) == N_WORKERS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_a_scheduler_with_encryption(tmp_path):
    files, options, security = certificate(tmp_path)
    with cluster_of(tmp_path, 1, tls=options, security=security) as (started, _):
        names = {"ca-file": "ca", "client.cert": "cert", "client.key": "key"}
        own = {f"distributed.comm.tls.{name}": files[file] for name, file in names.items()}
        with dask.config.set(own), open_cluster(started.address) as client:
            assert doubled(client) == [0, 2, 4, 6, 8]


def test_a_scheduler_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(opening, "CONNECT_SECONDS", 1)
    with (
        pytest.raises(ClusterError, match=r"scheduler tcp://127.0.0.1:1 cannot be reached within 1 s"),
        open_cluster("tcp://127.0.0.1:1"),
    ):
        pass
