"""Epochs that are killed, and stages that end worse than they began; rows that stay in memory once they are read."""

from __future__ import annotations

import signal

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from streamkm import StreamKMeans, open_source
from streamkm.cluster.moving_averages import EpochsResult, Schedule
from streamkm.engine.checkpoint import load_record
from streamkm.engine.records import unpack
from streamkm.fitting import iterations
from streamkm.fitting.iterations import EPOCHS
from streamkm.kernels.cluster import totals
from streamkm.planning.memory_budget import AUTO_BYTES
from streamkm.sources.chunks import Access, ChunkRuns
from streamkm.sources.prepared import CachedRows
from streamkm.sources.row_source import Rows, RowSource, row_ids_between
from tests.children import assert_same_fit, fit_killed_within_epochs, outcome
from tests.limits import limited
from tests.programs import forking
from tests.tables import slow_but

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


@pytest.mark.parametrize(("k", "n_epochs", "n_more"), slow_but([(MANY, 1, 2)], [(K, 2, 3), (MANY, 1, 2)], full=True))
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


@pytest.mark.parametrize("resumes", slow_but([True], [False, True], full=True))
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


PER_CHUNK = 100


class SlowRows(RowSource):
    """Rows that count how often each chunk of them is read; reading is said to take long."""

    name, is_sparse, access = "slow", False, Access(decodes=True)

    def __init__(self, X):
        self.X, self.dtype = X, X.dtype
        self.n_rows, self.n_features = X.shape
        self.n_bytes = X.nbytes // 3
        self.reads: list[int] = []

    def chunks(self, target_bytes):
        starts = range(0, len(self.X), PER_CHUNK)
        row_bytes = self.X.itemsize * self.n_features
        return ChunkRuns.of((0, s, min(s + PER_CHUNK, self.n_rows), PER_CHUNK * row_bytes) for s in starts)

    def read(self, chunk):
        self.reads.append(chunk.index)
        return Rows(self.X[chunk.start : chunk.stop], row_ids_between(chunk.start, chunk.stop))


def rows(n=1500, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) + 4 * rng.integers(0, 3, (n, 1))).astype(np.float32)


def kmeans(**parameters):
    return StreamKMeans(4, **{"random_state": 0, "executor": 2, "progress": False, **parameters})


@pytest.mark.parametrize("steps", [None, ["standardize"], ["standardize", "robust"]])
def test_rows_with_room_are_read_once(steps):
    source = SlowRows(rows())
    estimator = kmeans(preprocess=steps, refine=1)
    plan = estimator.plan(source)
    assert plan.cached_bytes == 1500 * (6 * 4 + 8)
    assert dict(plan.lines())["bytes read"].endswith("(1 x 11.7 KiB); rows stay in memory, up to 46.9 KiB")
    fitted = estimator.fit(source)
    assert sorted(source.reads) == list(range(15))
    assert fitted.n_passes_ == 3 + len(steps or ())
    read = [stage.read_bytes for stage in fitted.stages_ if stage.rows]
    assert (read[0], sum(read)) == (source.n_bytes, source.n_bytes)
    assert len(read) == fitted.n_passes_


def test_what_has_no_room_is_read_in_every_pass(monkeypatch):
    source = SlowRows(rows())
    tight = kmeans(memory_limit=limited(kmeans().plan(source).peak_bytes - 1, AUTO_BYTES))
    assert tight.plan(source).cached_bytes == 0
    fitted = tight.fit(source)
    assert sorted(source.reads) == sorted([*range(15)] * 2)
    assert [stage.read_bytes for stage in fitted.stages_ if stage.rows] == [source.n_bytes] * 2
    enough = kmeans(memory_limit=limited(kmeans().plan(source).peak_bytes, AUTO_BYTES)).fit(source)
    assert len(source.reads) == 30 + 15
    np.testing.assert_array_equal(enough.labels_, fitted.labels_)


def test_plain_values_and_single_walks_are_not_kept(tmp_path):
    X = rows()
    np.save(tmp_path / "x.npy", X)
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["X"] = X
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(PER_CHUNK, 6), compression="gzip")
    kept = {name: kmeans().plan(tmp_path / name).cached_bytes > 0 for name in ("x.npy", "plain.h5", "packed.h5")}
    assert kept == {"x.npy": False, "plain.h5": False, "packed.h5": True}
    assert kmeans().plan(X).cached_bytes == 0
    assert kmeans().plan(iter([X])).cached_bytes == 0


@pytest.mark.slow
def test_rows_of_another_process_and_of_a_task_beside_others_are_not_kept(client, tmp_path):
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        file.create_dataset("X", data=rows(), chunks=(PER_CHUNK, 6), compression="gzip")
    fitted = kmeans(executor=client).fit(tmp_path / "packed.h5")
    assert fitted.plan_.cached_bytes == 0
    np.testing.assert_array_equal(fitted.labels_, kmeans().fit(tmp_path / "packed.h5").labels_)
    plan = client.submit(lambda path: kmeans().plan(path), tmp_path / "packed.h5").result()
    assert plan.cached_bytes == 0


@pytest.mark.parametrize("room", [0, 3 * PER_CHUNK * 32, 1 << 30])
def test_any_room_gives_the_same_rows(room):
    given, kept = SlowRows(rows()), CachedRows(SlowRows(rows()), 1, room)
    for _ in range(3):
        for chunk in given.chunks(1):
            np.testing.assert_array_equal(kept.read(chunk).X, given.read(chunk).X)
    n_kept = min(15, room // (PER_CHUNK * 32))
    assert len(kept.source.reads) == 15 + 2 * (15 - n_kept)
    assert kept.take_read_bytes() == kept.source.n_bytes
    assert kept.take_read_bytes() == 0


def test_rows_of_unknown_width_are_not_kept_under_a_limit(tmp_path):
    """More features than the head of the text shows may need all of the limit."""
    path = tmp_path / "x.svm"
    dump_svmlight_file(sp.csr_array(np.maximum(rows(), 0)), np.zeros(1500), str(path))
    assert kmeans().plan(path).cached_bytes > 0
    assert kmeans(memory_limit=limited("2 GiB")).plan(path).cached_bytes == 0
    known = open_source(path, n_features=6)
    assert kmeans(memory_limit=limited("2 GiB")).plan(known).cached_bytes > 0
