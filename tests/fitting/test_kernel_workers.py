"""Kernel fits on a cluster whose workers are killed in stages that other fits lack: with the bits of one thread."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from streamkm import StreamKernelKMeans
from streamkm.engine.dask import DaskCluster
from streamkm.fitting.kernel import kernel_fit as fitting
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


def test_what_a_cluster_began_goes_on_elsewhere(cluster, stop, tmp_path, data, wanted):
    kmeans = kernel_kmeans(executor=cluster[1])
    stop(kmeans, data, tmp_path / "state", "gram")
    assert_same(kmeans.set_params(executor=2).fit(data, checkpoint=tmp_path / "state"), wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "number"),  # calls of it on the cluster; landmarks are chosen here, while workers wait
    [
        ("gram", 4),
        ("landmarks", 1),
        ("sketch-all", 8),  # blocks of them, which workers hold
    ],
)
def test_a_worker_killed_in_stages_of_kernels(cluster, monkeypatch, data, wanted, stage, number):
    started, client = cluster
    seen = Counter()

    def count(name):
        seen[name] += 1
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
