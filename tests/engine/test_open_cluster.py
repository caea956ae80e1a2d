"""Clusters that settings name by the address of a scheduler."""

from __future__ import annotations

import shutil

import dask
import pytest

from streamkm.core.exceptions import ClusterError
from streamkm.engine import executor_choice as opening
from streamkm.engine import open_cluster, open_executor
from streamkm.engine.dask import DaskCluster
from tests.dask_processes import N_WORKERS, certificate, cluster_of


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
