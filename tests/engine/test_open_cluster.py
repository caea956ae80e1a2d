"""Clusters that settings name by the address of a scheduler."""

from __future__ import annotations

import shutil

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


def test_a_scheduler_that_runs(tmp_path):
    with cluster_of(tmp_path, 1) as (started, _):
        with open_cluster(ClusterSettings(scheduler=started.address)) as client:
            assert doubled("auto") == doubled(client) == [0, 2, 4, 6, 8]
            with open_executor("auto") as executor:
                assert isinstance(executor, DaskCluster)
        assert client.status == "closed"
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
        ({"scheduler": "tls://x:1", "tls_ca_file": "ca.pem"}, "a tls:// scheduler needs tls_cert, tls_key"),
        ({"scheduler": "tcp://x:1", "tls_key": "k.pem"}, "only a tls:// scheduler has a use for tls_key"),
        ({"tls_key": "k.pem"}, "only a tls:// scheduler has a use for tls_key"),
    ],
)
def test_what_contradicts_itself(settings, message):
    with pytest.raises(InvalidParameterError, match=message):
        ClusterSettings(**settings)
