"""Fits that are killed at any moment go on with the same bits; the first pass of a fit in its checkpoint."""

from __future__ import annotations

import inspect
import logging
import math
import multiprocessing
import os
import signal
import time
from functools import cache, partial

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from streamkm import SketchOptions, StreamKernelKMeans, StreamKMeans
from streamkm.cluster.held_rows import Spill
from streamkm.core.exceptions import CheckpointError
from streamkm.core.locks import remove_dead_folders
from streamkm.core.memory import resident_bytes
from streamkm.planning import memory_budget
from streamkm.sources.memory.arrays import ArraySource
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.make_topics import write as write_topics
from tests.children import (
    assert_same_fit,
    chunks_read,
    fit_killed_behind,
    killed_until_done,
    outcome,
    spill_and_wait,
    started_fit,
    tree,
)
from tests.dask_processes import assert_same_bits
from tests.passes.test_passes import CountingSource
from tests.programs import forking
from tests.tables import slow_but

CASES = {
    "text": ("x.svm", {"n_clusters": 20, "refine": 2, "chunk_bytes": 250_000, "random_state": 3}),
    "dense": ("x.npy", {"n_clusters": 20, "refine": 1, "chunk_bytes": 100_000, "random_state": 3, "tol": 0}),
    "wide": ("wide.npy", {"n_clusters": 20, "refine": 1, "chunk_bytes": 1_000_000, "random_state": 3}),
    "all": ("wide.npy", {"n_clusters": 20, "coreset": None, "chunk_bytes": 1_000_000, "random_state": 3}),
    "even": (
        "x.npy",
        {"n_clusters": 20, "chunk_bytes": 100_000, "random_state": 3, "cluster_size": (0.999, 1.001), "refine": 1},
    ),
    "few": ("wide.npy", {"n_clusters": 8, "sketch": "countsketch", "refine": 2, "random_state": 0}),
}


def write_data(folder, n_texts, n_dense, n_wide):
    rng = np.random.default_rng(0)
    write_topics(str(folder / "x.svm"), Topics(5000, 20), n_texts, kind="svmlight")
    centers = rng.normal(0, 2, (20, 16))
    np.save(folder / "x.npy", (centers[rng.integers(0, 20, n_dense)] + rng.normal(0, 1, (n_dense, 16))).astype("f4"))
    wide = rng.normal(0, 1, (20, 600))
    np.save(folder / "wide.npy", (wide[rng.integers(0, 20, n_wide)] + rng.normal(0, 1, (n_wide, 600))).astype("f4"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data whose fits take long enough to be killed."""
    return write_data(tmp_path_factory.mktemp("data"), 12_000, 1, 10_000)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    """Fewer rows, in eight chunks or more; the dense ones are more than `sample_of_10_000` takes."""
    return write_data(tmp_path_factory.mktemp("small"), 4000, 16_000, 4000)


def fits_of(folder):
    """Fits that nothing happened to, by name; each is made once."""

    @cache
    def fitted(name):
        file, options = CASES[name]
        return StreamKMeans(progress=False, **options).fit(str(folder / file))

    return fitted


@pytest.fixture(scope="module")
def wanted_of_small(small_folder):
    return fits_of(small_folder)


def start(folder, name, place):
    file, options = CASES[name]
    return started_fit(folder / file, place / "state", place / "out.npz", options)


def assert_same(wanted, got):
    with np.load(got) as found:
        assert_same_fit(found, wanted)


def test_killed_fits_end_with_the_same_bits(folder, tmp_path):
    seconds = [0.05, *np.random.default_rng(5).uniform(0.05, 0.8, 2)]
    assert killed_until_done(partial(start, folder, "all", tmp_path), seconds) >= 1
    assert_same(fits_of(folder)("all"), tmp_path / "out.npz")
    assert not (tmp_path / "state").exists()  # of no more use


def test_an_interrupt_keeps_what_was_done(folder, tmp_path):
    child = start(folder, "text", tmp_path)
    wait_for(tmp_path / "state" / "sketch.record")
    os.kill(child.pid, signal.SIGINT)
    child.join()
    assert child.exitcode == 1  # KeyboardInterrupt
    assert (tmp_path / "state" / "sketch.record").exists()
    child = start(folder, "text", tmp_path)
    child.join()
    assert child.exitcode == 0
    assert_same(fits_of(folder)("text"), tmp_path / "out.npz")


def wait_for(path):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.001)


# ---- every stage, in this process


@pytest.mark.parametrize(
    ("name", "record", "read_again"),
    slow_but(
        [
            ("text", "sketch", True), ("text", "polish", False), ("text", "assign-2", False), ("dense", "lloyd", True),
            ("even", "assign-0", False), ("few", "found", False),
        ],
        [
            ("text", "sketch", True), ("text", "seed", False), ("text", "polish", False), ("text", "refined", False),
            ("text", "assign-2", False), ("dense", "lloyd", True), ("wide", "found", False), ("even", "refined", False),
            ("even", "assign-0", False), ("few", "found", False),  # all rows are labelled in the sample
        ],
    ),
)  # fmt: skip
@pytest.mark.usefixtures("sample_of_10_000")
def test_a_fit_goes_on_from_every_record(small_folder, wanted_of_small, tmp_path, stop, name, record, read_again):
    wanted = wanted_of_small(name)
    file, options = CASES[name]
    kmeans = StreamKMeans(progress=False, **options)
    stop(kmeans, str(small_folder / file), tmp_path / "state", record)
    kmeans.fit(str(small_folder / file), checkpoint=tmp_path / "state")
    names = [stage.name for stage in kmeans.stages_]
    assert ("sketch" in names and kmeans.stages_[0].seconds > 0) == (read_again or record in ("seed", "polish"))
    assert_same_bits(kmeans, wanted)


@pytest.mark.usefixtures("sample_of_10_000")
def test_below_a_limit_a_process_that_holds_more_goes_on_as_the_run_began(small_folder, tmp_path, monkeypatch, stop):
    """The plan depends on what the process holds, so the run keeps what that was; another run has a plan of its own."""
    held = resident_bytes()
    monkeypatch.setattr(memory_budget, "resident_bytes", lambda: held)
    path, limit = str(small_folder / "x.npy"), f"{(held >> 20) + 600} MiB"
    options = CASES["dense"][1] | {"progress": False, "memory_limit": limit}
    kmeans = StreamKMeans(**options)
    begun = kmeans.plan(path)
    stop(kmeans, path, tmp_path / "state", "assign-1")
    monkeypatch.setattr(memory_budget, "resident_bytes", lambda: held + (200 << 20))
    assert kmeans.plan(path).process_memory >= begun.process_memory + (100 << 20)
    kmeans.fit(path, checkpoint=tmp_path / "state")
    assert kmeans.plan_.process_memory == begun.process_memory
    given = {"limit": limit, "process_memory": begun.process_memory}
    wanted = clone(kmeans).set_params(memory_limit=given).fit(path)
    assert kmeans.plan_ == wanted.plan_
    assert_same_bits(kmeans, wanted)


@pytest.mark.parametrize("removed", slow_but(["found.record"], ["labels.growing", "found.record", "refined.record"]))
@pytest.mark.usefixtures("sample_of_10_000")
def test_a_state_of_which_a_part_is_gone_does_no_harm(small_folder, wanted_of_small, tmp_path, stop, removed):
    file, options = CASES["dense"]
    kmeans = StreamKMeans(progress=False, **options)
    stop(kmeans, str(small_folder / file), tmp_path / "state", "assign-1")
    (tmp_path / "state" / removed).unlink()
    kmeans.fit(str(small_folder / file), checkpoint=tmp_path / "state")
    assert_same_bits(kmeans, wanted_of_small("dense"))


def test_a_folder_of_the_users_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """With the data in it, and files whose names a checkpoint would use."""
    folder = tmp_path / "dl"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    np.savez(folder / "train.npz", np.random.default_rng(0).random((100, 4)))
    np.save(folder / "labels.npy", np.arange(100, dtype=np.int32))
    (folder / "manifest.json").write_text('{"format": 9, "fingerprint": {}}')
    before = tree(folder)
    kmeans = StreamKMeans(3, progress=False)
    with monkeypatch.context() as patched:
        patched.setattr(ArraySource, "read", None)
        for place in ("dl", "link"):
            told = rf"{place} holds other files \(labels.npy, manifest.json, train.npz"
            with pytest.raises(CheckpointError, match=told):
                kmeans.fit(str(folder / "train.npz"), checkpoint=tmp_path / place)
    kmeans.fit(str(folder / "train.npz"), checkpoint=folder / "state")
    assert tree(folder) == before


def test_without_a_seed_the_same_streams_go_on(small_folder, tmp_path, stop):
    X = np.load(small_folder / "x.npy")[:5000]
    kmeans = StreamKMeans(20, init="random", n_init=1, progress=False)
    stop(kmeans, X, tmp_path / "state", "seed")
    with np.load(tmp_path / "state" / "seed.record") as record:
        start = record["array_value"]
    kmeans.max_iter = 100
    kmeans.fit(X, checkpoint=tmp_path / "state")
    again = StreamKMeans(20, init=start, progress=False).fit(X)
    np.testing.assert_array_equal(kmeans.labels_, again.labels_)


def test_other_data_or_settings_are_refused_by_name(small_folder, tmp_path, stop):
    X = np.load(small_folder / "x.npy")[:5000]
    stop(StreamKMeans(5, progress=False, random_state=0), X, tmp_path, "seed")
    for k, rows, weights, changed in (
        (6, X, None, "n_clusters"), (5, X + 1, None, "source"), (5, X, np.arange(5000), "weights"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=changed):
            StreamKMeans(k, progress=False, random_state=0).fit(rows, sample_weight=weights, checkpoint=tmp_path)
    StreamKMeans(5, progress=True, executor=1, random_state=0).fit(X, checkpoint=tmp_path)  # all the same to it


@pytest.mark.parametrize("estimator", [StreamKMeans, StreamKernelKMeans])
def test_a_checkpoint_is_an_argument_of_fit_and_not_of_the_estimator(estimator, tmp_path):
    assert list(inspect.signature(estimator.fit).parameters)[-1] == "checkpoint"
    with pytest.raises(TypeError, match="unexpected keyword argument 'checkpoint'"):
        estimator(checkpoint=tmp_path / "state")
    fitted = estimator(3, progress=False).fit(np.random.default_rng(0).random((60, 3)), checkpoint=tmp_path / "state")
    assert "checkpoint" not in {**fitted.get_params(), **vars(fitted)}
    assert not list(tmp_path.iterdir())


OPTIONS = {"n_clusters": 12, "coreset": None, "chunk_bytes": 1 << 17, "random_state": 0, "executor": 1}
N_CHUNKS = 10


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Rows far from the origin, which are moved behind the first pass, in a file that must be decoded."""
    rng = np.random.default_rng(3)
    centers = 1e4 + rng.normal(size=(24, 8))
    X = centers[rng.integers(24, size=20_000)] + 0.4 * rng.normal(size=(20_000, 8))
    path = tmp_path_factory.mktemp("rows") / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(2048, 8), compression="gzip", compression_opts=1)
    return path


@pytest.fixture(scope="module")
def wanted(path):
    fitted = StreamKMeans(progress=False, **OPTIONS).fit(str(path))
    assert fitted.plan_.cluster_on == "blocks"
    assert fitted.plan_.n_chunks == N_CHUNKS
    return fitted


@pytest.fixture(params=[pytest.param(math.inf, marks=pytest.mark.slow), 300_000], ids=["in memory", "in both"])
def room(request, monkeypatch):
    """Room for sketched rows in memory; what a plan would say of so few rows does not matter."""
    original = Spill.__init__
    monkeypatch.setattr(Spill, "__init__", lambda self, _, *rest: original(self, request.param, *rest))
    return request.param


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize(
    ("record", "times", "n_read"),
    slow_but(
        [("sketch", 5, 4), ("lloyd", 2, N_CHUNKS)],
        [("sketch", 5, 4), ("seed", 1, N_CHUNKS), ("lloyd", 2, N_CHUNKS)],
        full=True,
    ),
)
def test_a_run_goes_on_with_the_rows_that_were_read(path, wanted, tmp_path, stop, monkeypatch, record, times, n_read):
    kmeans = StreamKMeans(progress=False, **OPTIONS)
    seen = chunks_read(monkeypatch)
    stop(kmeans, str(path), tmp_path / "state", record, times)
    assert len(seen) >= n_read
    seen.clear()
    kmeans.fit(str(path), checkpoint=tmp_path / "state")
    first = N_CHUNKS - n_read
    assert [chunk.index for chunk in seen[:first]] == [*range(n_read, N_CHUNKS)]
    assert len(seen) == first + n_read * (kmeans.n_passes_ - 1)  # what this run decoded is cached
    assert_same_bits(kmeans, wanted)
    assert not list(tmp_path.iterdir())


def test_a_killed_run_leaves_its_rows_in_the_checkpoint_alone(path, wanted, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    state, n_read = tmp_path / "state", 4
    killed = forking().Process(target=fit_killed_behind, args=(path, state, OPTIONS, "sketch", 5, 300_000))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (rows,) = state.glob("*.growing")
    with open(rows, "ab") as file:  # as of a block that was being written
        file.write(bytes(5000))
    seen = chunks_read(monkeypatch)
    resumed = StreamKMeans(progress=False, **OPTIONS).fit(str(path), checkpoint=state)
    assert len(seen) == N_CHUNKS - n_read + n_read * (resumed.n_passes_ - 1)  # what this run decoded is cached
    assert_same_fit(outcome(resumed), wanted)
    assert not list((tmp_path / "temporary").iterdir())
    assert not state.exists()


@pytest.mark.parametrize("harm", slow_but(["cut off", "damaged"], ["removed", "cut off", "a link", "damaged"]))
def test_rows_that_are_gone_are_read_again_and_damaged_ones_named(path, wanted, tmp_path, stop, harm):
    kmeans = StreamKMeans(progress=False, **OPTIONS)
    stop(kmeans, str(path), tmp_path / "state", "seed")
    (rows,) = (tmp_path / "state").glob("*.growing")
    before = rows.read_bytes()
    if harm == "damaged":
        rows.write_bytes(bytes(len(before)))
        with pytest.raises(CheckpointError, match=r"sketch\.growing is damaged.*remove the checkpoint"):
            kmeans.fit(str(path), checkpoint=tmp_path / "state")
        return
    if harm == "cut off":
        rows.write_bytes(before[:-1])
    else:
        rows.rename(tmp_path / "mine")
    if harm == "a link":
        rows.symlink_to(tmp_path / "mine")
    kmeans.fit(str(path), checkpoint=tmp_path / "state")
    assert_same_bits(kmeans, wanted)
    assert harm != "a link" or (tmp_path / "mine").read_bytes() == before


@pytest.mark.usefixtures("room")
def test_chunks_without_valid_rows_are_known_again(tmp_path, stop):
    X = np.random.default_rng(0).normal(size=(700, 5))
    X[100:200] = np.nan
    X[450] = np.nan
    X = sp.csr_array(X)
    kmeans = StreamKMeans(3, coreset=None, sketch="identity", invalid="skip", random_state=0, progress=False)
    wanted = StreamKMeans(**kmeans.get_params()).fit(CountingSource(X))
    stop(kmeans, CountingSource(X), tmp_path / "state", "sketch", 5)
    source = CountingSource(X)
    kmeans.fit(source, checkpoint=tmp_path / "state")
    assert source.read_rows[699] == source.read_rows[150] + 1
    assert_same_bits(kmeans, wanted)


BETTER = {
    "directions": StreamKMeans(6, coreset=None, sketch=SketchOptions("pca", 5), random_state=0),
    "features of a kernel": StreamKernelKMeans(4, fit_on="all", n_landmarks=50, random_state=0),
}


@pytest.mark.parametrize("name", slow_but(["directions"], BETTER, full=True))
def test_rows_in_a_space_that_was_found_in_a_pass_before_are_kept_too(tmp_path, stop, name):
    X = np.random.default_rng(0).normal(size=(2000, 40)) * np.linspace(1, 3, 40)
    kmeans = BETTER[name].set_params(progress=False, executor=1)
    wanted = clone(kmeans).fit(CountingSource(X))
    assert "sketch-all" in [stage.name for stage in wanted.stages_]
    stop(kmeans, CountingSource(X), tmp_path / "state", "sketch-all", 4)
    source = CountingSource(X)
    kmeans.fit(source, checkpoint=tmp_path / "state")
    assert source.read_rows[1999] == source.read_rows[0] + 1
    assert_same_bits(kmeans, wanted)


def test_a_short_pass_writes_no_rows(path, tmp_path, monkeypatch):
    """Rows that memory holds: it would take longer than the pass, which is read again instead."""
    monkeypatch.setattr(Spill, "_write", None)
    StreamKMeans(progress=False, **OPTIONS).fit(str(path), checkpoint=tmp_path / "state")


# ---- temporary folders


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


@pytest.fixture
def spilling(temporary):
    """A process that has put rows into a temporary folder."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = forking().Process(target=spill_and_wait, args=(temporary, there))
    child.start()
    assert here.recv() == "spilled"
    yield child
    child.kill()
    child.join()


def test_a_run_removes_what_killed_runs_left(temporary, spilling, caplog):
    (left,) = temporary.iterdir()
    n_bytes = sum(each.stat().st_size for each in left.iterdir())
    assert n_bytes > 40_000
    caplog.set_level(logging.INFO, "streamkm")
    StreamKMeans(2, progress=False).fit(np.eye(4))
    assert left.exists()  # its process lives
    assert "dead runs" not in caplog.text
    spilling.kill()
    spilling.join()
    StreamKMeans(2, progress=False).fit(np.eye(4))
    assert not list(temporary.iterdir())
    assert f"removed {n_bytes:,} bytes that dead runs had left in {temporary}" in caplog.messages


@pytest.mark.slow
def test_what_may_be_of_others_stays(temporary, tmp_path, spilling, monkeypatch):
    spilling.kill()
    spilling.join()
    (dead,) = temporary.iterdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("streamkm.lock", "rows"):
        (tmp_path / "elsewhere" / name).write_text("1")
    (temporary / "streamkm-link").symlink_to(tmp_path / "elsewhere")
    for name in ("streamkm-mine", "streamkm-begun", "streamkm-lock-is-a-link"):
        (temporary / name).mkdir()
    (temporary / "streamkm-begun" / "streamkm.lock").touch()
    (temporary / "streamkm-lock-is-a-link" / "streamkm.lock").symlink_to(tmp_path / "elsewhere" / "streamkm.lock")
    (temporary / "streamkm-file").touch()
    (dead / "out").symlink_to(tmp_path / "elsewhere")
    with monkeypatch.context() as patched:
        patched.setattr("os.geteuid", lambda: os.getuid() + 1)  # another user, who may remove it
        remove_dead_folders()
    assert dead.exists()
    before = {*temporary.iterdir()} - {dead}
    remove_dead_folders()
    assert {*temporary.iterdir()} == before
    assert len([*(tmp_path / "elsewhere").iterdir()]) == 2
