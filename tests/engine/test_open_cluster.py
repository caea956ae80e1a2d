"""Clusters that settings name: processes started here, or a scheduler that runs."""

from __future__ import annotations

import itertools
import shutil

import dask
import pytest

from streamkm.core.exceptions import ClusterError, InvalidParameterError
from streamkm.engine import ClusterSettings, open_cluster, open_executor
from streamkm.engine import open as opening
from streamkm.engine.dask import DaskCluster
from tests.dask_processes import certificate, cluster_of
from tests.tables import cases


def double(item):
    return 2 * item


def doubled(client):
    with open_executor(client) as executor:
        return list(executor.map("double", double, range(5)))


def test_processes_of_this_machine():
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}),  # as without these tests
        open_cluster(ClusterSettings(workers=2, threads=1, memory_limit="1GB")) as client,
    ):
        workers = client.scheduler_info()["workers"].values()
        assert [worker["nthreads"] for worker in workers] == [1, 1]
        assert [worker["memory_limit"] for worker in workers] == [10**9, 10**9]
        assert doubled("auto") == doubled(client) == [0, 2, 4, 6, 8]
        with open_executor("auto") as executor:
            assert isinstance(executor, DaskCluster)
    assert client.status == "closed"


def test_a_scheduler_that_runs(tmp_path):
    with cluster_of(tmp_path, 1) as (started, _):
        with open_cluster(ClusterSettings(scheduler=started.address)) as client:
            assert doubled(client) == [0, 2, 4, 6, 8]
        assert started.scheduler.poll() is None
        assert started.workers[0].poll() is None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_a_scheduler_with_encryption(tmp_path):
    files, options, security = certificate(tmp_path)
    with cluster_of(tmp_path, 1, tls=options, security=security) as (started, _):
        settings = ClusterSettings(
            scheduler=started.address, tls_ca_file=files["ca"], tls_cert=files["cert"], tls_key=files["key"]
        )
        with open_cluster(settings) as client:
            assert doubled(client) == [0, 2, 4, 6, 8]


def test_a_scheduler_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(opening, "CONNECT_SECONDS", 1)
    with (
        pytest.raises(ClusterError, match=r"scheduler tcp://127.0.0.1:1 cannot be reached within 1 s"),
        open_cluster(ClusterSettings(scheduler="tcp://127.0.0.1:1")),
    ):
        pass


@cases(
    "settings, message",
    [
        ({}, "scheduler=None and workers=None; give the address"),
        ({"scheduler": "tcp://x:1", "workers": 2}, "scheduler='tcp://x:1' and workers=2"),
        ({"workers": 0}, "workers=0; needed: a whole number from 1"),
        ({"workers": 1, "threads": 0}, "threads=0; needed"),
        ({"scheduler": "tcp://x:1", "threads": 2}, "threads=2 and memory_limit='auto' are of processes"),
        ({"scheduler": "tcp://x:1", "memory_limit": 7}, "threads=1 and memory_limit=7 are of processes"),
        ({"workers": 1, "memory_limit": "lots"}, "memory_limit='lots'; needed: bytes as 4GB, or auto"),
        ({"scheduler": "tls://x:1", "tls_ca_file": "ca.pem"}, "a tls:// scheduler needs tls_cert, tls_key"),
        ({"scheduler": "tcp://x:1", "tls_key": "k.pem"}, "only a tls:// scheduler has a use for tls_key"),
    ],
)
def test_what_contradicts_itself(settings, message):
    with pytest.raises(InvalidParameterError, match=message):
        ClusterSettings(**settings)


def test_a_report_of_what_ran(tmp_path):
    pytest.importorskip("bokeh")
    page = tmp_path / "report.html"
    with open_cluster(ClusterSettings(workers=1, report=str(page))) as client:
        doubled(client)
    assert "double" in page.read_text()


def killing(process):
    """Items for ever, of which the third kills a process."""
    for item in itertools.count():
        if item == 2:
            process.kill()
        yield item


def test_no_report_of_a_scheduler_that_is_gone(tmp_path, caplog):
    pytest.importorskip("bokeh")
    page = tmp_path / "report.html"
    with cluster_of(tmp_path, 1) as (started, _):
        settings = ClusterSettings(scheduler=started.address, report=str(page))
        with (
            pytest.raises(ClusterError, match="lost the scheduler"),
            open_cluster(settings) as client,
            open_executor(client) as executor,
        ):
            list(executor.map("double", double, killing(started.scheduler)))
    assert not page.exists()
    assert "is not written: the scheduler is out of reach" in caplog.text
