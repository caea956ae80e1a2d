"""Kernel fits on a cluster of processes whose workers are killed in every stage: with the bits of one thread."""

from __future__ import annotations

import numpy as np
import pytest

from streamkm import StreamKernelKMeans
from streamkm.engine import saving
from streamkm.engine.dask import DaskCluster
from streamkm.fitting.kernel import fit as fitting
from tests.children import StoppedError, stopped_after
from tests.dask_processes import N_WORKERS, assert_same_bits, write_rows

PARAMETERS = {"fit_on": "all", "n_landmarks": 80, "rank": 20, "tol": 0, "max_iter": 3, "chunk_bytes": 20_000}


def kernel_kmeans(**parameters):
    return StreamKernelKMeans(10, random_state=0, progress=False, **PARAMETERS, **parameters)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """float32 (6,000, 32) in a file of 20 chunks."""
    path = tmp_path_factory.mktemp("data") / "x.npy"
    write_rows(path)
    return path


@pytest.fixture(scope="module")
def wanted(data):
    return kernel_kmeans(executor=1).fit(data)


def assert_same(got, wanted):
    assert_same_bits(got, wanted)
    np.testing.assert_array_equal(got.sketch_.projection, wanted.sketch_.projection)
    assert got.trace_residual_ == wanted.trace_residual_


@pytest.mark.parametrize("record", ["gram", pytest.param("assign-0", marks=pytest.mark.slow)])
def test_what_a_cluster_began_goes_on_elsewhere(cluster, monkeypatch, tmp_path, data, wanted, record):
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    kmeans = kernel_kmeans(executor=cluster[1])
    with monkeypatch.context() as patched:
        stopped_after(patched, record)
        with pytest.raises(StoppedError):
            kmeans.fit(data, checkpoint=tmp_path / "state")
    assert_same(kmeans.set_params(executor=2).fit(data, checkpoint=tmp_path / "state"), wanted)


# calls of a stage on the cluster; landmarks are chosen here, while workers wait
FULL = (pytest.mark.slow, pytest.mark.full)  # fits without a kernel have these stages too
KILLED = [
    pytest.param("sample", 8, marks=FULL),
    pytest.param("landmarks", 1, marks=pytest.mark.slow),
    ("gram", 4),
    pytest.param("features", 8, marks=pytest.mark.slow),  # blocks of them, which workers hold
    pytest.param("lloyd-2", 5, marks=FULL),
    pytest.param("assign", 8, marks=FULL),
]


@pytest.mark.parametrize(("stage", "number"), KILLED)
def test_a_worker_killed_in_every_stage(cluster, monkeypatch, data, wanted, stage, number):
    started, client = cluster
    seen = dict.fromkeys(("sample", "features", "landmarks", "gram", "lloyd-2", "assign"), 0)

    def count(name):
        seen[name] = seen.get(name, 0) + 1
        if name == stage and seen[name] == number:
            started.kill(started.living()[0])

    submit, choose = DaskCluster._submit, fitting.first_round
    monkeypatch.setattr(
        DaskCluster, "_submit", lambda self, name, *rest, **place: (count(name), submit(self, name, *rest, **place))[1]
    )
    monkeypatch.setattr(fitting, "first_round", lambda *given: (count("landmarks"), choose(*given))[1])
    got = kernel_kmeans(executor=client).fit(data)
    assert seen[stage] >= number
    assert len(started.living()) == N_WORKERS - 1
    assert_same(got, wanted)
