"""Fits that are killed at any moment and go on: with the bits of a run that nothing happened to."""

from __future__ import annotations

import inspect
import os
import signal
import time
from functools import cache, partial

import numpy as np
import pytest
from sklearn.base import clone

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import CheckpointError
from streamkm.core.memory import resident_bytes
from streamkm.planning import memory_budget
from streamkm.sources.memory.arrays import ArraySource
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.make_topics import write as write_topics
from tests.children import assert_same_fit, killed_until_done, started_fit, tree
from tests.dask_processes import assert_same_bits
from tests.tables import cases, slow_but

CASES = {
    "text": ("x.svm", {"n_clusters": 20, "refine": 2, "chunk_bytes": 250_000, "random_state": 3}),
    "dense": ("x.npy", {"n_clusters": 20, "refine": 1, "chunk_bytes": 100_000, "random_state": 3, "tol": 0}),
    "wide": ("wide.npy", {"n_clusters": 20, "refine": 1, "chunk_bytes": 1_000_000, "random_state": 3}),
    "all": ("wide.npy", {"n_clusters": 20, "coreset": None, "chunk_bytes": 1_000_000, "random_state": 3}),
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


@cases(
    "name, record, read_again",
    [
        ("text", "sketch", True),
        ("text", "seed", False),
        ("text", "polish", False),
        ("text", "refined", False),
        ("text", "assign-2", False),
        ("dense", "lloyd", True),
        ("wide", "found", False),
        ("few", "found", False),  # all rows are labelled in the sample
    ],
)
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
