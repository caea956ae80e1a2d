"""Resident memory of kernel fits in fresh processes, against the limit and the projection."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKernelKMeans
from streamkm.core.exceptions import MemoryLimitError
from tests.fresh import run_compiled
from tests.limits import limited
from tests.passes.test_passes import CountingSource
from tests.planning.test_memory import IMPORTED, images, long_text
from tests.tables import cases

reads_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
FIT = """
import json, sys
path, k, limit, options = sys.argv[1:5]
from streamkm import StreamKernelKMeans
options = {"memory_limit": limit, "progress": False, "random_state": 0} | json.loads(options)
fitted = StreamKernelKMeans(int(k), **options).fit(path)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
plan = fitted.plan_
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024, "projected": plan.peak_bytes,
                  "limit": plan.limit_bytes, "base": plan.base_bytes, "n": fitted.n_samples_}))
"""


def fit(path, n_clusters, limit, **options):
    return run_compiled(FIT, [str(path), str(n_clusters), limit, json.dumps(options)], imported=IMPORTED)


def check(got, data_bytes):
    assert got["limit"] - got["base"] < data_bytes  # the rows would not fit
    assert got["peak"] <= got["limit"]
    assert 0.75 <= got["projected"] / got["peak"] <= 1.25


@pytest.mark.slow
@reads_proc
def test_dense_rows_are_clustered_within_the_limit(disk_path):
    path = images(disk_path / "x.zarr", 160_000, chunk_rows=2048)
    check(fit(path, 20, "406 MiB, process 300 MiB", n_landmarks=200, rank=40), 160_000 * 784)


@reads_proc
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"n_landmarks": 200, "rank": 40, "kernel": "cosine"}, marks=pytest.mark.slow),
        pytest.param({"n_landmarks": 200, "rank": 20, "fit_on": "all"}, marks=pytest.mark.slow),
    ],
)
def test_text_is_clustered_within_the_limit(disk_path, options):
    n_rows = 100_000
    check(fit(long_text(disk_path / "x.svm", n_rows), 20, "356 MiB, process 300 MiB", **options), 12 * 57 * n_rows)


@pytest.mark.slow
@reads_proc
def test_matrices_of_many_landmarks_are_counted(disk_path):
    """They take more than the rows: what finds the leading directions of 1,600 columns above all."""
    np.save(disk_path / "x.npy", np.random.default_rng(0).random((1800, 64)))
    got = fit(disk_path / "x.npy", 10, "4 GiB", n_landmarks=1600, rank=200, executor=2)
    assert got["peak"] <= got["projected"]


@cases("sparse", [False, True])
@cases(
    "options, stage",
    [
        ({"n_landmarks": 1900, "rank": 10}, "gram"),
        ({"n_landmarks": 1000, "rank": 10, "method": "gaussian"}, "landmarks"),
        ({"n_landmarks": 300, "rank": 300, "fit_on": "all"}, "cluster"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_read(options, stage, sparse):
    X = np.ones((40_000, 4), np.float32)
    source = CountingSource(sp.csr_array(X) if sparse else X, estimated=40_000)
    kmeans = StreamKernelKMeans(3, progress=False, executor=2, **options)
    roomy = kmeans.plan(source)
    with pytest.raises(
        MemoryLimitError, match=rf"stage '{stage}'.*raise memory_limit to \d+ MiB, or use fewer n_landmarks"
    ):
        kmeans.set_params(memory_limit=limited(roomy.base_bytes + (80 << 20), roomy.process_memory)).fit(source)
    with pytest.raises(MemoryLimitError, match="are this process and its libraries; raise memory_limit"):
        kmeans.set_params(memory_limit="100 MiB").fit(source)
    assert not source.read_rows
