"""Workers that lack the package, or have another release of it, are refused before anything is read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import streamkm
from streamkm import StreamKMeans
from streamkm.core import environment
from streamkm.core.exceptions import ClusterError, SourceNotFoundError
from streamkm.engine import open_executor
from streamkm.sources import open_source
from tests.dask_processes import STARTED_SECONDS, Cluster, cluster_of, watched, write_rows

SECONDS = 10.0  # until a fit says so
WITHOUT = """\
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "streamkm":
            raise ModuleNotFoundError("No module named 'streamkm'", name="streamkm")
sys.meta_path.insert(0, Without())
"""


def add_unlike(cluster: Cluster, folder: Path, kind: str) -> subprocess.Popen[bytes]:
    """Start a worker in a fresh interpreter whose path begins with a folder of its own."""
    folder.mkdir()
    if kind == "without":
        (folder / "sitecustomize.py").write_text(WITHOUT)
    else:
        package = Path(streamkm.__file__).parent
        shutil.copytree(package, folder / "streamkm", ignore=shutil.ignore_patterns("__pycache__"))
        with open(folder / "streamkm" / "passes" / "assign.py", "a", encoding="utf-8") as file:
            file.write("# changed\n")
    with open(folder / "log", "wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "dask", "worker", cluster.address, "--nthreads", "1", "--no-dashboard",
             "--no-nanny", "--host", "127.0.0.1", "--local-directory", str(folder)],
            cwd=folder, env={**cluster.environment, "PYTHONPATH": str(folder)}, stdout=log, stderr=log,
        )  # fmt: skip
    cluster.workers.append(started)
    return started


def fit(client, X, **settings):
    return StreamKMeans(3, random_state=0, executor=client, progress=False, **settings).fit(X)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("without", r"workers tcp://\S+ cannot import streamkm \(No module named 'streamkm'\)"),
        ("changed", r"workers tcp://\S+ have streamkm \S+ \(code \w{16}\)"),
    ],
)
def test_a_worker_unlike_this_process_is_named(tmp_path, kind, fault):
    data = tmp_path / "x.npy"
    write_rows(data)
    with cluster_of(tmp_path, 1) as (cluster, client):
        add_unlike(cluster, tmp_path / kind, kind)
        client.wait_for_workers(2, timeout=STARTED_SECONDS)
        begun = time.monotonic()
        with pytest.raises(ClusterError, match=rf"^{fault}; needed: Python .*; install these where workers run"):
            fit(client, data)
        assert time.monotonic() < begun + SECONDS
        assert cluster.workers[1].poll() is None  # it was sent no call, which would have ended it
        # those that are as this process are not blamed
        first, second = (worker for worker in client.run(lambda dask_worker: dask_worker.address))
        with pytest.raises(ClusterError) as raised:
            fit(client, data)
        assert (first in str(raised.value)) != (second in str(raised.value))


def test_a_worker_that_joins_later_is_looked_at(tmp_path):
    """While a fit waits for rows, which come slowly."""
    X = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    with cluster_of(tmp_path, 1) as (cluster, client):

        def rows():
            yield X
            add_unlike(cluster, tmp_path / "joined", "without")
            client.wait_for_workers(2, timeout=STARTED_SECONDS)
            for _ in range(int(SECONDS * 10)):
                time.sleep(0.1)
                yield X

        with pytest.raises(ClusterError, match="cannot import streamkm"):
            fit(client, rows())


def test_rows_are_sent_to_workers_that_were_looked_at(tmp_path):
    """To no worker that has joined since the last look, which may lack the package."""
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    with cluster_of(tmp_path, 1) as (cluster, client), open_executor(client) as executor:
        known = set(client.nthreads())
        add_unlike(cluster, tmp_path / "joined", "without")
        client.wait_for_workers(2, timeout=STARTED_SECONDS)
        items = [item for item, _ in executor.items(open_source(X), X.nbytes // 20)]
        assert len(items) == 20
        assert {address for where in client.who_has(items).values() for address in where} == known


def test_a_worker_that_says_nothing_is_not_refused(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("streamkm.engine.dask_workers.ANSWER_SECONDS", 0.5)
    data = tmp_path / "x.npy"
    write_rows(data)
    with cluster_of(tmp_path, 2) as (cluster, client):
        slow = next(address for address, pid in client.run(os.getpid).items() if pid == cluster.workers[0].pid)
        cluster.workers[0].send_signal(signal.SIGSTOP)
        resumed = threading.Timer(2.0, cluster.workers[0].send_signal, [signal.SIGCONT])
        resumed.start()
        fit(client, data)
        resumed.join()
    assert f"worker {slow} does not say" in caplog.text


def test_the_environment_of_this_process():
    here = environment()
    assert here["Python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert np.__version__.startswith(here["NumPy"] + ".")
    assert here["streamkm"].startswith(streamkm.__version__)


def test_a_worker_that_does_not_see_the_file_is_named_before_a_row_is_read(tmp_path, monkeypatch):
    """/proc/self/cwd is another folder for each process: one of three workers does not have the file in its own."""
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "x.npy")
    monkeypatch.chdir(tmp_path / "data")
    with cluster_of(tmp_path, 3) as (_, client), watched(client) as stages:
        seeing, blind = sorted(client.nthreads())[:2], sorted(client.nthreads())[2]
        client.run(os.chdir, str(tmp_path / "data"), workers=seeing)
        with pytest.raises(SourceNotFoundError, match=rf"x\.npy does not exist, seen from worker {blind} .* same path"):
            fit(client, "/proc/self/cwd/x.npy")
        assert "sketch" not in stages()
        client.run(os.chdir, str(tmp_path / "data"), workers=[blind])
        assert fit(client, "/proc/self/cwd/x.npy").n_iter_ >= 1
