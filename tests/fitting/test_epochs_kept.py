"""Epochs of moving averages that are killed, and stages that end worse than they began: what is kept."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.cluster.moving_averages import EpochsResult, Schedule
from streamkm.engine.checkpoint import load_record
from streamkm.engine.records import unpack
from streamkm.fitting import iterations
from streamkm.fitting.iterations import EPOCHS
from streamkm.kernels.cluster import totals
from tests.children import assert_same_fit, fit_killed_within_epochs, outcome
from tests.programs import forking

N_ROWS, K, MANY = 20_000, 70, 520


def options_of(k):
    return {"n_clusters": k, "random_state": 0, "sketch": "identity", "coreset": None, "chunk_bytes": 1 << 17}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(2 * K, 12))
    X = centers[rng.integers(2 * K, size=N_ROWS)] + 0.4 * rng.normal(size=(N_ROWS, 12))
    path = tmp_path_factory.mktemp("epochs") / "x.npy"
    np.save(path, X.astype(np.float32))
    return path


@pytest.fixture(scope="module")
def wanted(path):
    """Fits that nothing happened to, by the number of clusters."""
    return {k: StreamKMeans(progress=False, **options_of(k)).fit(str(path)) for k in (K, MANY)}


@pytest.fixture
def batches(monkeypatch):
    """A list that gets an entry for each batch from now on."""
    seen, moved = [], totals.moved_towards

    def counted(*given):
        seen.append(None)
        moved(*given)

    monkeypatch.setattr(totals, "moved_towards", counted)
    return seen


@pytest.mark.parametrize(("k", "n_epochs", "n_more"), [(K, 2, 3), (MANY, 1, 2)])
def test_a_fit_that_is_killed_within_an_epoch_goes_on_with_the_same_bits(
    path, wanted, tmp_path, batches, k, n_epochs, n_more
):
    """Also with many clusters, where a run that goes on lacks the labels that the epochs before had left."""
    schedule = Schedule.of(N_ROWS, k, 100)
    assert n_more < schedule.n_batches
    n_done = n_epochs * schedule.n_batches + n_more
    child = forking().Process(target=fit_killed_within_epochs, args=(path, tmp_path / "state", options_of(k), n_done))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    left = unpack(EpochsResult, load_record(tmp_path / "state", EPOCHS))
    assert (left.n_iter, left.n_batches) == (n_epochs, n_more)
    resumed = StreamKMeans(progress=False, **options_of(k)).fit(str(path), checkpoint=tmp_path / "state")
    assert len(batches) == schedule.n_epochs * schedule.n_batches - n_done
    assert_same_fit(outcome(resumed), wanted[k])


def test_a_fit_that_stops_within_an_epoch_goes_on_in_a_worker_with_the_bits_of_threads(path, client, tmp_path, stop):
    """The checkpoint says nothing of what holds the rows. Epochs in a worker are one call, which saves their end."""
    np.save(tmp_path / "x.npy", np.load(path)[:6000])
    wanted = StreamKMeans(progress=False, **options_of(K)).fit(str(tmp_path / "x.npy"))
    n_batches = Schedule.of(6000, K, 100).n_batches
    fitted = StreamKMeans(progress=False, executor=2, **options_of(K))
    stop(fitted, str(tmp_path / "x.npy"), tmp_path / "state", EPOCHS, times=n_batches + 2)
    assert unpack(EpochsResult, load_record(tmp_path / "state", EPOCHS)).n_batches == 2
    fitted.set_params(executor=client).fit(str(tmp_path / "x.npy"), checkpoint=tmp_path / "state")
    assert_same_fit(outcome(fitted), wanted)


# ---- the best of two


def worse(path, schedule):
    """What epochs find that go astray: rows, which the steps behind them mend in part."""
    X = np.load(path).astype(np.float64)
    return EpochsResult(X[:K], 1.0, schedule.n_epochs, False, (1.0,) * schedule.n_epochs)


@pytest.mark.parametrize("resumes", [False, True])
def test_epochs_that_end_higher_are_left_out_though_steps_would_mend_them(
    path, tmp_path, monkeypatch, stop, caplog, resumes
):
    """The first step behind them tells, and it is the only one that they cost."""
    monkeypatch.setattr(iterations, "moving_averages", lambda rows, centers, schedule, **_: worse(path, schedule))
    fitted = StreamKMeans(progress=False, **options_of(K))
    with caplog.at_level("INFO", "streamkm"):
        if resumes:
            stop(fitted, str(path), tmp_path / "state", "lloyd-again", times=2)
        fitted.fit(str(path), checkpoint=tmp_path / "state")
    assert "epochs did not lower the objective" in caplog.text
    lloyd = [step["inertia"] for step in fitted.history_ if step["stage"] == "lloyd"]
    assert lloyd == sorted(lloyd, reverse=True)
    n_epochs = Schedule.of(N_ROWS, K, 100).n_epochs
    assert fitted.n_iter_ == len(lloyd) + n_epochs + 1


@pytest.mark.slow
@pytest.mark.parametrize(("sketch", "max_iter"), [("pca", 1), ("svd", 2), ("pca", 100)])
def test_polishing_on_all_rows_never_raises_the_objective(sketch, max_iter):
    """Directions that all rows were iterated along have nothing to add to means of all rows."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3000, 300)) + 2 * rng.normal(size=(40, 300))[rng.integers(40, size=3000)] * (
        rng.random(300) < 0.1
    )
    options = {"sketch": sketch, "random_state": 0, "refine": 0, "max_iter": max_iter, "progress": False}
    found = StreamKMeans(20, coreset=None, n_init=1, init="random", **options).fit(X.astype(np.float32))
    assert found.plan_.cluster_on == "blocks"
    polished = [step["inertia"] for step in found.history_ if step["stage"] == "polish"]
    assert polished
    assert np.all(np.diff(polished) <= 1e-12 * polished[0])
    assert found.inertia_ <= polished[0] * (1 + 1e-12)
