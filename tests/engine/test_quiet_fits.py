"""Fits of every kind on processes of a cluster write nothing to standard error, and nor do the workers."""

from __future__ import annotations

import os
import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster

from streamkm import SketchOptions, StreamKernelKMeans, StreamKMeans, sweep
from tests.dask_processes import ROOT

# Dask's words on a slow machine
BUSY = ("still alive after", "garbage collections took", "Event loop was unresponsive")
COMMON = {"random_state": 0, "max_iter": 2, "progress": False, "chunk_bytes": 100_000}


def cases():
    """Rows to be sent and Dask arrays, dense, CSR and CSC, each with a sketch that takes them."""
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(1_000, 60)) + 6 * (np.arange(1_000) % 3)[:, None]
    sparse = sp.random_array((1_000, 300), density=0.05, format="csr", rng=rng, dtype=np.float32)
    blocks = da.from_array(sparse.toarray(), chunks=(200, 150))
    yield dense, "pca"
    yield da.from_array(dense, chunks=(200, 60)), "identity"
    yield sparse, "countsketch"
    yield sparse.tocsc(), "identity"
    yield blocks.map_blocks(sp.csr_array), "svd"
    yield blocks.map_blocks(sp.csr_matrix), "countsketch"
    yield blocks.map_blocks(sp.csc_array), "identity"
    yield blocks.map_blocks(sp.csc_matrix), "svd"


def fit_in_every_way() -> None:
    """As a process of its own does."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        for X, sketch in cases():
            options = {} if sketch == "identity" else {"n_components": 20}
            StreamKMeans(3, executor=client, sketch=SketchOptions(sketch, **options), **COMMON).fit(X)
            if sketch != "identity":
                StreamKernelKMeans(3, executor=client, n_landmarks=40, rank=10, **COMMON).fit(X)
        sweep(X, [2, 3], executor=client, random_state=0, progress=False)


@pytest.mark.slow
def test_fits_on_a_cluster_write_nothing():
    """No warning of a large graph, wherever the limit, nor of an object whose size Dask cannot tell."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.test_quiet_fits"],
        check=True, cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "DASK_DISTRIBUTED__ADMIN__LARGE_GRAPH_WARNING_THRESHOLD": "1kB"},
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not any(words in line for words in BUSY)]
    assert not lines


if __name__ == "__main__":
    fit_in_every_way()
