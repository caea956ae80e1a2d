"""The guide's lines that start clusters: workers compile as they start, and job scripts and specifications are made."""

from __future__ import annotations

import sys

import pytest
from distributed import Client, LocalCluster

from tests.guide import blocks


def block_with(text):
    """The one block of the page that contains a text."""
    (code,) = (code for _, code in blocks("cluster") if text in code)
    return code


def has_warmed():
    return "streamkm.kernels.text.svmlight" in sys.modules


def test_workers_compile_as_they_start(tmp_path):
    preload = tmp_path / "warm_worker.py"
    preload.write_text(block_with("def dask_setup"), "utf-8")
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", preload=str(preload)) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert list(client.run(has_warmed).values()) == [True]


def test_a_job_script_has_the_options_of_the_page(monkeypatch, capsys):
    jobqueue = pytest.importorskip("dask_jobqueue")
    made = []

    class Quiet(jobqueue.SLURMCluster):
        def __init__(self, **options):
            made.append(self)
            super().__init__(**options, scheduler_options={"dashboard_address": ":0"})

    monkeypatch.setattr(jobqueue, "SLURMCluster", Quiet)
    try:
        exec(block_with("import SLURMCluster"), {})
    finally:
        for cluster in made:
            cluster.close()
    script = capsys.readouterr().out
    options = ("--nthreads 1", "--nworkers 4", "--memory-limit 7.45GiB", "--local-directory $TMPDIR")
    for text in (*options, "/shared/kernels"):
        assert text in script


def test_a_specification_for_kubernetes_is_made(monkeypatch):
    operator, given = pytest.importorskip("dask_kubernetes.operator"), []

    def made(custom_cluster_spec):
        given.append(custom_cluster_spec)

    monkeypatch.setattr(operator, "KubeCluster", made)
    exec(block_with("make_cluster_spec"), {})
    (spec,) = given
    assert spec["kind"] == "DaskCluster"
    assert spec["spec"]["worker"]["replicas"] == 20
    (container,) = spec["spec"]["worker"]["spec"]["containers"]
    assert container["args"][-2:] == ["--nthreads", "1"]
    assert container["resources"]["limits"]["memory"] == "8Gi"
