"""A search divided among cells, whose rows come to one worker each: planned, exact in its parts, the same bits."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.testing import assert_allclose, assert_array_equal

from streamkm import StreamKMeans
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding import divided
from streamkm.cluster.seeding.divided import SplitRows, n_cells_of
from streamkm.engine.dask import DaskCluster
from streamkm.planning import cells as planning
from streamkm.planning.cells import divides
from tests.dask_processes import assert_same_bits

N, M, K = 20_000, 8, 128
KMEANS = {"random_state": 0, "chunk_bytes": 40_000, "progress": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """float32 (20,000, 8) in 500 groups, in a file of 16 chunks."""
    rng = np.random.default_rng(0)
    X = 3 * rng.normal(size=(500, M))[rng.integers(500, size=N)] + rng.normal(size=(N, M))
    path = tmp_path_factory.mktemp("data") / "x.npy"
    np.save(path, X.astype(np.float32))
    return path


@pytest.fixture
def in_cells(monkeypatch):
    """Fits on a cluster search centers in four cells, however few there are."""
    monkeypatch.setattr(divided, "CELL_CENTERS", K // 4)
    monkeypatch.setattr(planning, "divides", lambda *_: True)


def fitted(data, executor, n_clusters=K):
    return StreamKMeans(n_clusters, executor=executor, **KMEANS).fit(data)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_a_cell_keep_their_order(weighted):
    rng = np.random.default_rng(0)
    X, cells = rng.normal(size=(300, 4)).astype(np.float32), rng.normal(size=(5, 4))
    weights = rng.random(300) if weighted else NO_WEIGHTS
    split = SplitRows(NearestCenters.build(cells, np.float32, around_origin=True))
    block = Block(X, row_d2norms(X), weights)
    (sizes, shares), parts = split.step(split.start(), HeldBlock(block))
    d2 = ((X[:, None].astype(float) - cells) ** 2).sum(axis=2)
    labels = d2.argmin(axis=1)
    for cell, part in enumerate(parts):
        here = labels == cell
        assert_array_equal(part.X, X[here])
        assert_array_equal(part.d2norms, block.d2norms[here])
        assert_array_equal(part.weights, weights[here] if weighted else NO_WEIGHTS)
        assert sizes[cell] == here.sum()
        assert_allclose(shares[cell], (d2.min(axis=1) * (weights if weighted else 1))[here].sum(), rtol=1e-5)


@pytest.mark.usefixtures("in_cells")
def test_same_bits_for_one_two_and_three_workers(client, cluster, data):
    _, three = cluster
    got = fitted(data, client)
    assert got.plan_.clustering.n_cells == 4
    assert_same_bits(fitted(data, three), got)
    quiet = {"dashboard": False, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=True, scheduler_kwargs=quiet) as alone,
        Client(alone, set_as_default=False) as one,
    ):
        assert_same_bits(fitted(data, one), got)


def test_objective_near_that_of_the_undivided_search(client, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "divides", lambda *_: True)
    rng = np.random.default_rng(0)
    X = 3 * rng.normal(size=(6_000, M))[rng.integers(6_000, size=60_000)] + rng.normal(size=(60_000, M))
    path = tmp_path / "x.npy"
    np.save(path, X.astype(np.float32))
    got, undivided = fitted(path, client, 2048), fitted(path, 1, 2048)
    assert got.plan_.clustering.n_cells == 4
    assert undivided.plan_.clustering.n_cells == 0
    assert len(got.cluster_centers_) == 2048
    assert got.inertia_ <= 1.005 * undivided.inertia_


@pytest.mark.usefixtures("in_cells")
@pytest.mark.parametrize("stage", ["split", "gather", "cells"])
def test_worker_killed_while_rows_travel(cluster, client, data, monkeypatch, stage):
    started, three = cluster
    submit, killed = DaskCluster._submit, []

    def watched(self, name, *args, **place):
        if name == stage and not killed:
            killed.append(started.living()[0])
            started.kill(killed[0])
        return submit(self, name, *args, **place)

    wanted = fitted(data, client)
    monkeypatch.setattr(DaskCluster, "_submit", watched)
    got = fitted(data, three)
    assert killed
    assert_same_bits(got, wanted)


@pytest.mark.usefixtures("in_cells")
def test_equal_rows_leave_distinct_centers(client, tmp_path):
    X = np.repeat(np.random.default_rng(0).normal(size=(K, M)), 40, axis=0).astype(np.float32)
    np.save(tmp_path / "x.npy", np.random.default_rng(1).permutation(X))
    got = fitted(tmp_path / "x.npy", client)
    assert len(np.unique(got.cluster_centers_, axis=0)) == K
    assert_allclose(got.inertia_, 0, atol=1e-4)


def test_planned_where_tables_of_centers_are_more_bytes_than_rows(client, tmp_path, caplog):
    X = np.random.default_rng(0).normal(size=(20_000, M)).astype(np.float32)
    np.save(tmp_path / "many.npy", X)
    np.save(tmp_path / "few.npy", X[:6_000])  # 2 x 2,048 centers of float64 are more
    with caplog.at_level(logging.INFO, "streamkm"):
        got = fitted(tmp_path / "few.npy", client, 2048)
    assert got.plan_.clustering.n_cells == n_cells_of(2048) == 4
    assert "clustered in 4 cells" in str(got.plan_)
    assert got.plan_.workers.memory["cells"] <= got.plan_.workers.limit_bytes
    assert "searched in 4 cells" in caplog.text
    model = StreamKMeans(2048, **KMEANS)
    for path, executor in (("few.npy", 1), ("many.npy", client)):
        plan = model.set_params(executor=executor).plan(tmp_path / path)
        assert plan.clustering.n_cells == 0
        assert "cells" not in str(plan)


@pytest.mark.parametrize(
    "changed", [{"n_clusters": 2047}, {"n_init": 3}, {"tol": 0.0}, {"searches": False}, {"held_bytes": 1 << 20}]
)
def test_not_divided_where_it_saves_nothing_or_was_not_asked_for(changed):
    asked = {"n_clusters": 2048, "n_init": "auto", "tol": 1e-4, "searches": True, "held_bytes": (1 << 20) - 1}
    assert divides(SimpleNamespace(**asked), 64, 1, asked["held_bytes"])
    asked |= changed
    assert not divides(SimpleNamespace(**asked), 64, 1, asked["held_bytes"])
