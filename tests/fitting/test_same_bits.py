"""The same bits for any number of threads and workers, just above the sizes that change what is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster

from streamkm import SketchOptions, StreamKernelKMeans, StreamKMeans
from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.seeding.search_set import SMALL_ENTRIES, SMALLEST_SEARCH_ROWS
from streamkm.engine.reduction import RUN_LENGTH, RUNS
from streamkm.planning import request as fit_request
from tests.dask_processes import assert_same_bits
from tests.limits import limited
from tests.tables import row, slow_but

N_ROWS = 2 * SMALLEST_SEARCH_ROWS
WIDTH = 3 * SMALL_ENTRIES // (2 * N_ROWS)
FAR_ROWS = 30
LONG = RUNS * RUN_LENGTH + 16  # chunks: more than 24 runs have room for
MANY, FEW_STEPS = FEWEST_CENTERS + 8, {"max_iter": 6, "n_init": 1}


@dataclass(frozen=True)
class Case:
    """What is fitted, and the cluster_on that its plan must choose for it to test what it says."""

    cluster_on: str
    kind: str = "f4"
    n_rows: int = N_ROWS
    width: int = WIDTH
    n_clusters: int = 20
    parameters: dict[str, Any] = field(default_factory=dict)
    kernel: bool = False
    weighted: bool = False
    sample_rows: int | None = None
    spare_bytes: int | None = None

    def rows(self, *, far: bool, seed: int = 0) -> np.ndarray | sp.csr_array:
        """Overlapping groups; some rows lie far from all others if asked for."""
        rng = np.random.default_rng(seed)
        if self.kind.startswith("csr"):
            X = sp.random_array((self.n_rows, self.width), density=8 / self.width, rng=rng, format="csr")
            X.data[: 8 * FAR_ROWS if far else 0] *= 50
            return sp.csr_array(X.astype(self.kind.removeprefix("csr ")))
        centers = 2 * rng.normal(size=(15, self.width))
        X = centers[rng.integers(0, 15, self.n_rows)] + rng.normal(size=(self.n_rows, self.width))
        X[5 : 5 + FAR_ROWS if far else 5] *= 10
        return (np.clip(4 * X + 128, 0, 255) if self.kind == "u1" else X).astype(self.kind)

    def fit(self, data: Any, executor: Any) -> StreamKMeans | StreamKernelKMeans:
        """Fit; the plan must be the case's."""
        estimator = (StreamKernelKMeans if self.kernel else StreamKMeans)(self.n_clusters, **self.parameters)
        estimator.set_params(random_state=0, progress=False, executor=1)
        if self.spare_bytes is not None:
            roomy = estimator.plan(data)
            estimator.set_params(memory_limit=limited(roomy.peak_bytes - self.spare_bytes, roomy.process_memory))
        estimator.set_params(executor=executor)
        weights = np.random.default_rng(1).gamma(2, size=self.n_rows) if self.weighted else None
        estimator.fit(data, sample_weight=weights)
        on_cluster = estimator.plan_.workers is not None  # whose workers hold what the limit of this process does not
        assert estimator.plan_.cluster_on == (
            "blocks" if on_cluster and self.cluster_on == "spilled" else self.cluster_on
        )
        return estimator


def in_chunks(n_chunks: int, width: int = WIDTH, **parameters: Any) -> dict[str, Any]:
    """Parameters with which float32 rows come in so many chunks, or a few more."""
    return {"chunk_bytes": N_ROWS // n_chunks * width * 4, **parameters}


UNIFORM = {"coreset": "uniform"}
CASES = {
    "sample, f4": Case("sample", parameters=UNIFORM),
    "sample, f8": Case("sample", "f8", parameters=UNIFORM),
    "sample, u1": Case("sample", "u1", parameters=UNIFORM),
    "sample, weights": Case("sample", parameters=UNIFORM, weighted=True),
    "sample, k-means||": Case("sample", parameters=UNIFORM | {"init": "k-means||"}),
    "sample, LS++": Case("sample", parameters=UNIFORM | {"init": "ls++"}),
    "sample, CSR f4": Case("sample", "csr f4", width=2000, parameters=UNIFORM),
    "sample, CSR f8 sketched": Case(
        "sample", "csr f8", width=2000, parameters={"sketch": SketchOptions("countsketch", 2048)}
    ),
    "sample, many clusters": Case("sample", n_rows=70_000, width=16, n_clusters=MANY, parameters=FEW_STEPS | UNIFORM),
    "blocks": Case("blocks", parameters=in_chunks(LONG)),
    "blocks, f8": Case("blocks", "f8", parameters=in_chunks(LONG // 2)),
    "blocks, sketched": Case(
        "blocks", parameters=in_chunks(LONG, coreset=None, sketch=SketchOptions("countsketch", 32))
    ),
    "blocks, many clusters": Case("blocks", n_rows=70_000, width=16, n_clusters=MANY, parameters=FEW_STEPS),
    "blocks, drawn from": Case("blocks", parameters=in_chunks(LONG, coreset=None), sample_rows=2_000),
    "blocks, read ahead": Case("blocks", parameters=in_chunks(50, sketch=SketchOptions("pca", 16)), sample_rows=2_000),
    "spilled": Case(
        "spilled",
        width=600,
        parameters=in_chunks(50, 600, sketch=SketchOptions("countsketch", 256), max_iter=3, n_init=1, coreset=None),
        sample_rows=300,
        spare_bytes=12 << 20,
    ),
    "coreset, sensitivity": Case("coreset", parameters=in_chunks(LONG, coreset="sensitivity")),
    "kernel, sample": Case("sample", width=24, n_clusters=50, parameters={"n_landmarks": 64}, kernel=True),
    "kernel, all rows": Case(
        "blocks", width=24, parameters=in_chunks(50, 24, n_landmarks=64, fit_on="all"), kernel=True
    ),
}
FROM_FILES = {"blocks, read ahead", "spilled"}
LIKE_OTHERS = {
    "sample, f4", "sample, f8", "sample, u1", "sample, k-means||", "sample, LS++", "sample, CSR f8 sketched",
    "sample, many clusters", "blocks, f8", "blocks, sketched", "blocks, many clusters", "kernel, sample",
}  # fmt: skip
"""Cases that have another type, start, sketch or coreset than one that every run has: slow tests have all."""
ON_A_CLUSTER = "sample, CSR f4"
WHERE_REDUCED = LIKE_OTHERS | {"blocks", ON_A_CLUSTER}
"""Cases of slow tests of reduced runs: tests on threads have the others."""
QUICK = ("sample, weights", "blocks", "blocks, read ahead")


@pytest.fixture
def fitted(tmp_path, monkeypatch):
    """A function that fits a case by an executor, and one that gives what was found."""

    def fit(name: str, executor: Any, *, far: bool, seed: int = 0) -> StreamKMeans | StreamKernelKMeans:
        case = CASES[name]
        data: Any = case.rows(far=far, seed=seed)
        if name in FROM_FILES:
            np.save(tmp_path / "x.npy", data)
            data = str(tmp_path / "x.npy")
        with monkeypatch.context() as patched:
            if case.sample_rows is not None:
                patched.setattr(fit_request, "SMALLEST_SAMPLE_ROWS", case.sample_rows)
                patched.setattr(fit_request, "SAMPLE_ROWS_PER_CLUSTER", 1)
            return case.fit(data, executor)

    return fit


@pytest.mark.parametrize("name", slow_but(QUICK, [name for name in CASES if name not in LIKE_OTHERS | {ON_A_CLUSTER}]))
def test_threads_change_no_bit(fitted, name):
    assert_same_bits(fitted(name, 3, far=True), fitted(name, 1, far=True))


def test_threads_and_a_cluster_find_the_bits_of_a_thread(fitted, client):
    wanted = fitted(ON_A_CLUSTER, 1, far=True)
    for executor in (3, client):
        assert_same_bits(fitted(ON_A_CLUSTER, executor, far=True), wanted)


@pytest.mark.slow
def test_two_workers_find_2048_clusters_with_the_bits_of_a_thread(client, tmp_path):
    """A table of these centers for each worker is more bytes than the rows that workers hold."""
    path, given = tmp_path / "x.npy", {"random_state": 0, "chunk_bytes": 40_000, "progress": False}
    np.save(path, np.random.default_rng(0).normal(size=(6_000, 8)).astype(np.float32))
    got, wanted = (StreamKMeans(2048, executor=executor, **given).fit(path) for executor in (client, 1))
    assert got.plan_.cluster_on == "blocks"
    assert_same_bits(got, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in WHERE_REDUCED else pytest.mark.full) for name in CASES]
)
def test_no_executor_changes_a_bit(fitted, client, one_worker, reduced, name):
    wanted = fitted(name, 1, far=False, seed=1)
    for executor in (7, one_worker) if reduced else (2, 3, 4, 7, one_worker, client):
        with row(executor=executor):
            assert_same_bits(fitted(name, executor, far=False, seed=1), wanted)


@pytest.fixture(scope="module")
def one_worker():
    """A Dask cluster of one process of two threads."""
    quiet = {"dashboard": False, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=True, scheduler_kwargs=quiet) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
