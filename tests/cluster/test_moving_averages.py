"""Epochs of moving averages: against a naive loop, the same bits everywhere, never worse than the start."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans
from streamkm.cluster.blocks import Batch
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.moving_averages import EPOCHS, MORE_EPOCHS, Schedule, moving_averages
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.engine import open_executor
from streamkm.engine.dask import DaskCluster
from streamkm.estimators.kmeans import settings_of
from streamkm.planning.memory_model import EpochRoom, PlannedWorkers
from tests import naive
from tests.dask_processes import assert_same_bits
from tests.planning.test_plan import UnreadSource
from tests.planning.test_worker_memory import GIB, planned
from tests.tables import slow_but

K = 70


def made(n_rows=6000, n_features=12, dtype=np.float32):
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(2 * K, n_features))
    rows = centers[rng.integers(2 * K, size=n_rows)] + 0.4 * rng.normal(size=(n_rows, n_features))
    return rows.astype(dtype), rng.uniform(0.5, 2, n_rows)


def loop(X, weights, centers, schedule, seed):
    """The algorithm as it is written down, row by row of each batch."""
    centers = centers.copy()
    for epoch in range(schedule.n_epochs):
        for number in range(schedule.n_batches):
            rows = Batch(number, schedule.n_batches, epoch, seed).rows(0, len(X))
            labels, _ = naive.nearest(X[rows], centers)
            for c in np.unique(labels):
                own = labels == c
                mean = np.average(X[rows][own].astype(np.float64), axis=0, weights=weights[rows][own])
                centers[c] += schedule.rate_of(epoch, number) * (mean - centers[c])
    return centers


@pytest.mark.parametrize(
    ("dtype", "weighted"), slow_but([(np.float32, True)], [(np.float32, True), (np.float64, False)], full=True)
)
def test_epochs_are_those_of_a_naive_loop(weighted, dtype):
    X, weights = made(dtype=dtype)
    block = Block(X, row_d2norms(X), weights if weighted else np.empty(0))
    schedule = Schedule.of(len(X), K, 100)
    assert schedule is not None
    assert (schedule.n_epochs, schedule.n_batches) == (MORE_EPOCHS, len(X) // (8 * K))
    with open_executor(2) as executor:
        found = moving_averages(LocalBlocks.of(executor, block), X[:K].astype(float), schedule, seed=5)
    wanted = loop(X, weights if weighted else np.ones(len(X)), X[:K].astype(float), schedule, 5)
    np.testing.assert_allclose(found.centers, wanted, rtol=0, atol=1e-10)


def made_sparse(n_rows=3000, n_features=90, dtype=np.float32):
    rng = np.random.default_rng(4)
    X, weights = made(n_rows, n_features, dtype)
    return sp.csr_array(np.where(rng.random(X.shape) < 0.25, X, 0)), weights


@pytest.mark.parametrize(
    ("dtype", "offset", "tiled", "weighted"),
    [(np.float32, 0, 1 << 23, True), (np.float64, 0, 0, False), (np.float32, 500, 0, True)],
)
def test_sparse_epochs_are_those_of_a_naive_loop(monkeypatch, weighted, dtype, offset, tiled):
    """Also where a table lies in tiles, and where rows lie far from the origin, as all do in one feature."""
    monkeypatch.setattr("streamkm.cluster.centers.packed.TILED_BYTES", tiled)
    rows, weights = made_sparse(dtype=dtype)
    X = rows.toarray()
    X[:, 7] += offset
    rows, start, schedule = sp.csr_array(X), X[:K].astype(float), Schedule(3, 6, 4)
    block = Block(rows, row_d2norms(rows), weights if weighted else np.empty(0))
    with open_executor(2) as executor:
        found = moving_averages(LocalBlocks.of(executor, block), start, schedule, seed=5)
        once = moving_averages(LocalBlocks.of(executor, block), start, Schedule(1, 1, 4), seed=5)
    weights = weights if weighted else np.ones(len(X))
    np.testing.assert_allclose(found.centers, loop(X, weights, start, schedule, 5), rtol=1e-13, atol=1e-10)
    assert once.inertia == pytest.approx(weights @ naive.nearest(X, start)[1], rel=1e-9)


@pytest.mark.parametrize("n_clusters", [64, 100, 600, 65_536])
def test_more_rows_make_larger_batches_but_no_more_than_1024(n_clusters):
    smallest = 16 * n_clusters
    at, beyond, twice, many = (
        Schedule.of(n_rows, n_clusters, 100)
        for n_rows in (1024 * smallest, 1025 * smallest, 2048 * smallest, 10**6 * smallest)
    )
    assert [schedule.n_batches for schedule in (at, beyond, twice, many)] == [1024] * 4
    assert [schedule.rate for schedule in (at, twice, many)] == [0.4, 0.8, 0.9]  # grows with the batches
    assert 0.4 < beyond.rate < 0.401


def test_the_schedule_goes_by_rows_of_a_cluster():
    assert Schedule.of(1_000_000, 63, 100) is None
    assert Schedule.of(1_000_000, 64, 100, stored=0.1) is None
    assert Schedule.of(1_000_000, 64, 4) is None
    assert Schedule.of(31 * 64, 64, 100) is None
    many, few = (Schedule.of(n_rows, 1000, 100) for n_rows in (200_000, 100_000))
    assert (many.n_epochs, few.n_epochs) == (EPOCHS, MORE_EPOCHS)
    assert (many.n_batches, few.n_batches) == (25, 12)
    roomy = Schedule.of(300_000, 100, 100)
    assert (roomy.n_epochs, roomy.n_batches) == (2, 187)  # of 16 rows a center
    very_few = Schedule.of(63_000, 1000, 100)
    assert (very_few.n_epochs, very_few.n_batches) == (MORE_EPOCHS, 15)  # of 4 rows a center, not 8
    assert Schedule.of(31_000, 1000, 100) is None
    assert Schedule.of(500 * 63, 500, 100).n_batches == 7
    short = Schedule.of(100_000, 100, 5)
    assert 1 + short.n_epochs + short.n_steps <= 5
    rates = [many.rate_of(epoch, batch) for epoch in range(many.n_epochs) for batch in range(many.n_batches)]
    assert rates[0] == 0.4
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 1e-3


@pytest.mark.parametrize(("n_rows", "sparse"), slow_but([(6_000, False)], [(6_000, False), (4_000, True)], full=True))
def test_threads_and_workers_give_the_same_bits(client, n_rows, sparse):
    X, weights = made_sparse(n_rows, 40) if sparse else made(n_rows)
    one, *others = (
        StreamKMeans(
            K, random_state=0, executor=executor, coreset=None, sketch="identity", chunk_bytes=1 << 17, progress=False
        ).fit(X, sample_weight=weights)
        for executor in (1, 3, client)
    )
    assert "epochs" in [stage.name for stage in one.stages_]
    assert [step["stage"] for step in one.history_].count("epochs") in (EPOCHS, MORE_EPOCHS)
    for other in others:
        assert_same_bits(one, other)


@pytest.fixture
def calls(monkeypatch):
    """Stages of the calls that a cluster gets, in order."""
    stages, submit = [], DaskCluster._submit

    def counted(self, stage, *given, **where):
        stages.append(stage)
        return submit(self, stage, *given, **where)

    monkeypatch.setattr(DaskCluster, "_submit", counted)
    return stages


def few_rows(monkeypatch, gathered=100, drawn=80):
    monkeypatch.setattr("streamkm.planning.plan.GATHERED_ROWS", gathered)
    monkeypatch.setattr("streamkm.planning.plan.DRAWN_ROWS", drawn)


def on_cluster(client):
    return StreamKMeans(K, random_state=0, executor=client, coreset=None, chunk_bytes=1 << 17, progress=False)


@pytest.mark.slow
def test_epochs_take_one_call_of_a_cluster(client, calls):
    X, _ = made(12_000)
    planned = on_cluster(client).plan(X).epochs(settings_of(on_cluster(client), 0), len(X), stored=None, here=False)
    assert (planned.n_drawn, planned.place, planned.n_steps) == (None, "worker", 12)
    assert "epochs" not in dict(on_cluster(client).plan(X).lines())
    there = on_cluster(client).fit(X)
    assert [stage for stage in calls if "epoch" in stage] == ["epochs"]
    here = on_cluster(2).fit(X)
    assert here.inertia_ == there.inertia_
    np.testing.assert_array_equal(here.labels_, there.labels_)


@pytest.mark.slow
def test_epochs_on_drawn_rows_have_the_same_bits_in_a_worker_and_in_the_client(client, calls, monkeypatch):
    X, weights = made(12_000)
    few_rows(monkeypatch)
    planned = on_cluster(client).plan(X)
    assert "any epochs on 5,600 rows drawn evenly, not on all as with threads" in str(planned)
    settings = settings_of(on_cluster(client), 0)
    epochs = partial(planned.epochs, settings, len(X), stored=None, here=False)
    assert (epochs().n_drawn, epochs().place, epochs().n_steps) == (5_600, "worker", 12)
    there = on_cluster(client).fit(X, sample_weight=weights)
    assert [stage for stage in calls if "epoch" in stage] == ["epochs"]
    monkeypatch.setattr(PlannedWorkers, "epoch_room", lambda *_: EpochRoom(0, 0, 10**6))
    assert (epochs().n_drawn, epochs().place) == (5_600, "client")
    calls.clear()
    here = on_cluster(client).fit(X, sample_weight=weights)
    assert not [stage for stage in calls if "epoch" in stage]
    assert here.inertia_ == there.inertia_ <= 1.005 * on_cluster(2).fit(X, sample_weight=weights).inertia_
    np.testing.assert_array_equal(here.cluster_centers_, there.cluster_centers_)
    monkeypatch.setattr(PlannedWorkers, "epoch_room", lambda *_: EpochRoom(0, 0, 31 * K))
    assert epochs() is None  # no process has room


def test_room_for_all_rows_does_not_depend_on_the_number_of_workers():
    source = UnreadSource(4_000_000, 64)
    two, eight = (planned(source, n_workers=n).epoch_room for n in (2, 8))
    assert two.gathered == eight.gathered > 4_000_000
    assert two.drawn < eight.drawn < eight.gathered
    assert 0 < planned(source, 4 * GIB).epoch_room.gathered < two.gathered


@pytest.mark.parametrize(
    ("spread", "n_groups", "settled"),
    slow_but(
        [(0.05, K, True), (0.3, 2 * K, False)], [(0.05, K, True), (0.3, 2 * K, False), (0.8, K, False)], full=True
    ),
)
def test_no_epochs_where_clusters_lie_apart(spread, n_groups, settled):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(n_groups, 8))
    X = (centers[rng.integers(n_groups, size=20_000)] + spread * rng.normal(size=(20_000, 8))).astype(np.float32)
    fitted = StreamKMeans(K, random_state=0, progress=False).fit(X)
    assert ("epochs" not in [stage.name for stage in fitted.stages_]) == settled
    if settled:
        assert fitted.inertia_ == pytest.approx(20_000 * 8 * spread**2, rel=0.02)
        assert fitted.converged_


@pytest.mark.slow
@pytest.mark.parametrize(("max_iter", "ended"), [(100, True), (6, False)])
def test_a_schedule_that_ends_as_it_should_has_converged(max_iter, ended):
    X, _ = made(20_000)
    fitted = StreamKMeans(520, random_state=0, max_iter=max_iter, tol=1e-9, progress=False).fit(X)
    assert fitted.n_iter_ <= max_iter
    assert fitted.converged_ is ended
