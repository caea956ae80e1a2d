"""Epochs of moving averages: against a naive loop, the same bits everywhere, never worse than the start."""

from __future__ import annotations

import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.cluster.batches import Batch
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.moving_averages import EPOCHS, MORE_EPOCHS, Schedule, moving_averages
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.compute import open_executor
from streamkm.kernels.cluster.totals import moved_towards
from streamkm.passes import resume
from tests import naive

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


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_epochs_are_those_of_a_naive_loop(weighted, dtype):
    X, weights = made(dtype=dtype)
    block = Block(X, row_d2norms(X), weights if weighted else np.empty(0))
    schedule = Schedule.of(len(X), K, 100, dense=True)
    assert schedule is not None
    assert (schedule.n_epochs, schedule.n_batches) == (MORE_EPOCHS, len(X) // (8 * K))
    with open_executor(2) as executor:
        found = moving_averages(LocalBlocks.of(executor, block), X[:K].astype(float), schedule, seed=5)
    wanted = loop(X, weights if weighted else np.ones(len(X)), X[:K].astype(float), schedule, 5)
    np.testing.assert_allclose(found.centers, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_rows", [1, 7, 100, 4096])
def test_every_row_is_in_one_batch_of_an_epoch(n_rows):
    for epoch in range(3):
        rows = np.concatenate([Batch(number, 9, epoch, 11).rows(40, n_rows) for number in range(9)])
        np.testing.assert_array_equal(np.sort(rows), np.arange(n_rows))


def test_rows_of_a_batch_lie_apart():
    rows = Batch(2, 10, 1, 0).rows(0, 10_000)
    assert np.diff(rows).max() < 60  # a tenth of the rows, spread over all of them
    assert len(np.intersect1d(rows, Batch(2, 10, 2, 0).rows(0, 10_000))) < 300


def test_the_schedule_goes_by_rows_of_a_cluster():
    assert Schedule.of(1_000_000, 63, 100, dense=True) is None
    assert Schedule.of(1_000_000, 64, 100, dense=False) is None
    assert Schedule.of(1_000_000, 64, 4, dense=True) is None
    assert Schedule.of(31 * 64, 64, 100, dense=True) is None
    many, few = (Schedule.of(n_rows, 1000, 100, dense=True) for n_rows in (200_000, 100_000))
    assert (many.n_epochs, few.n_epochs) == (EPOCHS, MORE_EPOCHS)
    assert (many.n_batches, few.n_batches) == (25, 12)
    very_few = Schedule.of(63_000, 1000, 100, dense=True)
    assert (very_few.n_epochs, very_few.n_batches) == (MORE_EPOCHS, 15)  # of 4 rows a center, not 8
    assert Schedule.of(31_000, 1000, 100, dense=True) is None
    assert Schedule.of(500 * 63, 500, 100, dense=True).n_batches == 7
    short = Schedule.of(100_000, 100, 5, dense=True)
    assert 1 + short.n_epochs + short.n_steps <= 5
    rates = [many.rate_of(epoch, batch) for epoch in range(many.n_epochs) for batch in range(many.n_batches)]
    assert rates[0] == 0.4
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 1e-3


@pytest.mark.parametrize("k", [K, 520])
def test_threads_and_workers_give_the_same_bits(client, k):
    X, weights = made(20_000)
    one, *others = (
        StreamKMeans(
            k, random_state=0, executor=executor, coreset=None, sketch="identity", chunk_bytes=1 << 17, progress=False
        ).fit(X, sample_weight=weights)
        for executor in (1, 2, 3, client)
    )
    assert "epochs" in [stage.name for stage in one.stages_]
    assert [step["stage"] for step in one.history_].count("epochs") in (EPOCHS, MORE_EPOCHS)
    for other in others:
        np.testing.assert_array_equal(one.labels_, other.labels_)
        np.testing.assert_array_equal(one.cluster_centers_, other.cluster_centers_)
        assert one.inertia_ == other.inertia_


def test_epochs_end_lower_than_steps_alone():
    X, _ = made(20_000)
    wanted = [StreamKMeans(K, random_state=seed, n_init=1, progress=False).fit(X).inertia_ for seed in range(5)]
    found = [StreamKMeans(K, random_state=seed, progress=False).fit(X).inertia_ for seed in range(5)]
    assert np.mean(found) < np.mean(wanted)


@pytest.mark.parametrize("options", [{"n_init": 1}, {"max_iter": 4}, {"tol": 0.0}, {"init": "random"}])
def test_plain_steps_where_they_are_expected(options):
    X, _ = made()
    fitted = StreamKMeans(K, random_state=0, progress=False, **options).fit(X)
    assert "epochs" not in [stage.name for stage in fitted.stages_]


def test_a_fit_that_ends_between_epochs_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    X, _ = made(20_000)
    monkeypatch.setattr(resume, "INTERVAL_S", 0.0)
    monkeypatch.setattr(resume, "SHARE", 1.0)
    options = {"random_state": 0, "progress": False, "n_clusters": K}
    whole = StreamKMeans(**options).fit(X)
    n_batches = Schedule.of(len(X), K, 100, dense=True).n_batches
    calls = iter(range(2 * n_batches + 3))

    def moved(*given):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        moved_towards(*given)

    monkeypatch.setattr("streamkm.kernels.cluster.totals.moved_towards", moved)
    with pytest.raises(KeyboardInterrupt):
        StreamKMeans(**options, checkpoint=tmp_path / "state").fit(X)
    left = [0]

    def counted(*given):
        left[0] += 1
        moved_towards(*given)

    monkeypatch.setattr("streamkm.kernels.cluster.totals.moved_towards", counted)
    resumed = StreamKMeans(**options, checkpoint=tmp_path / "state").fit(X)
    assert 0 < left[0] <= (EPOCHS - 2) * n_batches or left[0] <= (MORE_EPOCHS - 2) * n_batches
    np.testing.assert_array_equal(resumed.labels_, whole.labels_)
    assert resumed.inertia_ == whole.inertia_


def test_epochs_that_end_higher_are_left_out(monkeypatch, caplog):
    X, _ = made()
    options = {"random_state": 0, "progress": False, "n_clusters": K, "max_iter": 40}
    monkeypatch.setattr(Schedule, "rate_of", lambda self, epoch, batch: 2.5)
    with caplog.at_level("INFO", "streamkm"):
        fitted = StreamKMeans(**options).fit(X)
    assert "epochs did not lower the objective" in caplog.text
    assert fitted.n_iter_ <= 40
    steps = [step["inertia"] for step in fitted.history_ if step["stage"] == "lloyd"]
    assert len(steps) > 4  # as many as are wanted, not the few that come behind epochs
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(("max_iter", "ended"), [(100, True), (6, False)])
def test_a_schedule_that_ends_as_it_should_has_converged(max_iter, ended):
    X, _ = made(20_000)
    fitted = StreamKMeans(520, random_state=0, max_iter=max_iter, tol=1e-9, progress=False).fit(X)
    assert fitted.n_iter_ <= max_iter
    assert fitted.converged_ is ended


def test_searches_are_brief_where_epochs_follow_alone():
    """Rows that no epochs follow on are searched as thoroughly as those of few clusters."""
    X, _ = made(30 * K)  # too few for epochs
    best = StreamKMeans(K, random_state=0, progress=False, n_init=8).fit(X).inertia_
    assert StreamKMeans(K, random_state=0, progress=False).fit(X).inertia_ <= 1.005 * best
