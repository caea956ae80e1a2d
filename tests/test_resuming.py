"""Fits that are killed at any moment and go on: with the bits of a run that nothing happened to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans, keeping
from streamkm.errors import CheckpointError, DiskFullError, InUseError
from tests.benchmarks.make_topics import Topics
from tests.benchmarks.make_topics import write as write_topics

FIT = """
import json, sys
import numpy as np
from streamkm import StreamKMeans, keeping
path, checkpoint, out, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
keeping.INTERVAL_S, keeping.SHARE = 0.0, 0.3
print("begun", flush=True)
fitted = StreamKMeans(checkpoint=checkpoint, progress=False, **options).fit(path)
np.savez(out, labels=fitted.labels_, centers=fitted.cluster_centers_, means=fitted.cluster_means_,
         inertia=fitted.inertia_, history=[step["inertia"] for step in fitted.history_],
         distortion=-1 if fitted.distortion_ is None else fitted.distortion_)
"""
CASES = {
    "text": ("x.svm", {"n_clusters": 20, "refine": 2, "chunk_bytes": 200_000, "random_state": 3}),
    "dense": ("x.npy", {"n_clusters": 20, "refine": 1, "chunk_bytes": 1_000_000, "random_state": 3, "tol": 0}),
    "wide": ("wide.npy", {"n_clusters": 20, "refine": 1, "chunk_bytes": 4_000_000, "random_state": 3}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    write_topics(str(folder / "x.svm"), Topics(5000, 20), 40_000, kind="svmlight")
    centers = rng.normal(0, 2, (20, 16))
    np.save(folder / "x.npy", (centers[rng.integers(0, 20, 200_000)] + rng.normal(0, 1, (200_000, 16))).astype("f4"))
    wide = rng.normal(0, 1, (20, 600))
    np.save(folder / "wide.npy", (wide[rng.integers(0, 20, 40_000)] + rng.normal(0, 1, (40_000, 600))).astype("f4"))
    return folder


def start(folder, name, checkpoint, out):
    import json

    file, options = CASES[name]
    command = [sys.executable, "-c", FIT, folder / file, checkpoint, out, json.dumps(options)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"  # imports are done
    return child


def killed_until_done(folder, name, tmp_path, seconds, kill=signal.SIGKILL):
    """Kill a fit after each of some times in turn, then let it end; how often it was killed before it was done."""
    out, n_killed = tmp_path / "out.npz", 0
    for wait in seconds:
        child = start(folder, name, tmp_path / "state", out)
        time.sleep(wait)
        child.send_signal(kill)
        _, said = child.communicate()
        if child.returncode == 0:
            return n_killed
        assert child.returncode in (-kill, 1), said
        n_killed += 1
    child = start(folder, name, tmp_path / "state", out)
    _, said = child.communicate()
    assert child.returncode == 0, said
    return n_killed


def assert_same(folder, name, got):
    file, options = CASES[name]
    wanted = StreamKMeans(progress=False, **options).fit(str(folder / file))
    with np.load(got) as found:
        np.testing.assert_array_equal(found["labels"], wanted.labels_)
        np.testing.assert_array_equal(found["centers"], wanted.cluster_centers_)
        np.testing.assert_array_equal(found["means"], wanted.cluster_means_)
        assert found["inertia"] == wanted.inertia_
        assert found["history"].tolist() == [step["inertia"] for step in wanted.history_]
        assert found["distortion"] == wanted.distortion_


@pytest.mark.parametrize("name", CASES)
def test_killed_fits_end_with_the_same_bits(folder, name, tmp_path):
    seconds = np.random.default_rng(5).uniform(0.05, 1.2, 4)
    assert killed_until_done(folder, name, tmp_path, seconds) >= 1
    assert_same(folder, name, tmp_path / "out.npz")
    assert not (tmp_path / "state").exists()  # of no more use


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_fits_killed_twenty_times_end_with_the_same_bits(folder, name, tmp_path):
    rng, n_killed, round_ = np.random.default_rng(7), 0, 0
    while n_killed < 20:
        place = tmp_path / str(round_)
        place.mkdir()
        n_killed += killed_until_done(folder, name, place, rng.uniform(0.02, 1.5, 4))
        assert_same(folder, name, place / "out.npz")
        round_ += 1


def test_an_interrupt_keeps_what_was_done(folder, tmp_path):
    assert killed_until_done(folder, "text", tmp_path, (0.4, 0.5), signal.SIGINT) >= 1
    assert_same(folder, "text", tmp_path / "out.npz")


# ---- every stage, in this process


class StoppedError(Exception):
    """What these tests stop a fit with."""


def stopped_after(monkeypatch, name, times=1):
    """Stop a fit behind the save of a record."""
    original, seen = keeping.Checkpoint.save, []

    def save(self, record, *rest):
        original(self, record, *rest)
        seen.append(record)
        if seen.count(name) == times:
            raise StoppedError(name)

    monkeypatch.setattr(keeping.Checkpoint, "save", save)
    return original


@pytest.mark.parametrize(
    ("name", "record", "read_again"),
    [
        ("text", "begin", True),
        ("text", "sketch", True),
        ("text", "seed", False),
        ("text", "polish", False),
        ("text", "found", False),
        ("text", "assign-0", False),
        ("text", "refined", False),
        ("text", "assign-2", False),
        ("dense", "seed", True),
        ("dense", "lloyd", True),
        ("dense", "assign-0", False),
        ("wide", "found", False),
    ],
)
def test_a_fit_goes_on_from_every_record(folder, tmp_path, monkeypatch, name, record, read_again):
    monkeypatch.setattr(keeping, "INTERVAL_S", 0.0)
    monkeypatch.setattr(keeping, "SHARE", 1.0)
    file, options = CASES[name]
    kmeans = StreamKMeans(progress=False, checkpoint=tmp_path / "state", **options)
    with monkeypatch.context() as patched:
        stopped_after(patched, record)
        with pytest.raises(StoppedError):
            kmeans.fit(str(folder / file))
    kmeans.fit(str(folder / file))
    names = [stage.name for stage in kmeans.stages_]
    assert ("sketch" in names and kmeans.stages_[0].seconds > 0) == (read_again or record in ("seed", "polish"))
    wanted = StreamKMeans(progress=False, **options).fit(str(folder / file))
    np.testing.assert_array_equal(kmeans.labels_, wanted.labels_)
    np.testing.assert_array_equal(kmeans.cluster_centers_, wanted.cluster_centers_)
    assert kmeans.inertia_ == wanted.inertia_
    assert kmeans.history_ == wanted.history_


@pytest.mark.parametrize("removed", ["manifest.json", "labels.npy", "found.npz", "refined.npz"])
def test_a_state_of_which_a_part_is_gone_does_no_harm(folder, tmp_path, monkeypatch, removed):
    monkeypatch.setattr(keeping, "INTERVAL_S", 0.0)
    monkeypatch.setattr(keeping, "SHARE", 1.0)
    file, options = CASES["dense"]
    kmeans = StreamKMeans(progress=False, checkpoint=tmp_path / "state", **options)
    with monkeypatch.context() as patched:
        stopped_after(patched, "assign-1")
        with pytest.raises(StoppedError):
            kmeans.fit(str(folder / file))
    (tmp_path / "state" / removed).unlink()
    kmeans.fit(str(folder / file))
    wanted = StreamKMeans(progress=False, **options).fit(str(folder / file))
    np.testing.assert_array_equal(kmeans.labels_, wanted.labels_)
    assert kmeans.inertia_ == wanted.inertia_


def test_chunks_done_are_not_read_again(folder, tmp_path, monkeypatch):
    from streamkm.sources.svmlight import SvmlightSource

    monkeypatch.setattr(keeping, "INTERVAL_S", 0.0)
    monkeypatch.setattr(keeping, "SHARE", 1.0)
    file, options = CASES["text"]
    kmeans = StreamKMeans(progress=False, checkpoint=tmp_path / "state", executor=1, **options)
    read = []
    original = SvmlightSource.read

    def counting(self, chunk):
        read.append(chunk.index)
        return original(self, chunk)

    monkeypatch.setattr(SvmlightSource, "read", counting)
    with monkeypatch.context() as patched:
        stopped_after(patched, "assign-0", times=1)
        with pytest.raises(StoppedError):
            kmeans.fit(str(folder / file))
    n_chunks = max(read) + 1
    assert len(read) > n_chunks
    read.clear()
    kmeans.fit(str(folder / file))
    assert len(read) < 3 * n_chunks  # the rest of one pass, and two refining passes
    assert read[0] > 0


def test_without_a_seed_the_same_streams_go_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "INTERVAL_S", 0.0)
    monkeypatch.setattr(keeping, "SHARE", 1.0)
    X = np.load(folder / "x.npy")[:5000]
    kmeans = StreamKMeans(20, init="random", n_init=1, progress=False, checkpoint=tmp_path / "state")
    with monkeypatch.context() as patched:
        stopped_after(patched, "seed")
        with pytest.raises(StoppedError):
            kmeans.fit(X)
    with np.load(tmp_path / "state" / "seed.npz") as record:
        start = record["array_centers"]
    kmeans.max_iter = 100
    kmeans.fit(X)
    again = StreamKMeans(20, init=start, progress=False).fit(X)
    np.testing.assert_array_equal(kmeans.labels_, again.labels_)


def test_other_data_or_settings_are_refused_by_name(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "INTERVAL_S", 0.0)
    monkeypatch.setattr(keeping, "SHARE", 1.0)
    X = np.load(folder / "x.npy")[:5000]
    with monkeypatch.context() as patched:
        stopped_after(patched, "seed")
        with pytest.raises(StoppedError):
            StreamKMeans(5, progress=False, random_state=0, checkpoint=tmp_path).fit(X)
    with pytest.raises(CheckpointError, match=r"n_clusters"):
        StreamKMeans(6, progress=False, random_state=0, checkpoint=tmp_path).fit(X)
    with pytest.raises(CheckpointError, match=r"source"):
        StreamKMeans(5, progress=False, random_state=0, checkpoint=tmp_path).fit(X + 1)
    with pytest.raises(CheckpointError, match=r"weights"):
        StreamKMeans(5, progress=False, random_state=0, checkpoint=tmp_path).fit(X, sample_weight=np.ones(5000))
    StreamKMeans(5, progress=True, executor=1, random_state=0, checkpoint=tmp_path).fit(X)  # all the same to it


def test_two_fits_on_one_checkpoint(folder, tmp_path):
    child = start(folder, "text", tmp_path / "state", tmp_path / "out.npz")
    file, options = CASES["text"]
    deadline = time.monotonic() + 30
    while not (tmp_path / "state" / "begin.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(InUseError, match=str(child.pid)):
        StreamKMeans(progress=False, checkpoint=tmp_path / "state", **options).fit(str(folder / file))
    _, said = child.communicate()
    assert child.returncode == 0, said


def test_short_fits_write_no_records(tmp_path, monkeypatch):
    saved = []
    original = keeping.Checkpoint.save
    monkeypatch.setattr(keeping.Checkpoint, "save", lambda self, *rest: (saved.append(rest[0]), original(self, *rest)))
    X = sp.random_array((500, 3000), density=0.01, format="csr", rng=np.random.default_rng(0))
    StreamKMeans(3, progress=False, checkpoint=tmp_path / "state").fit(X)
    assert saved == ["begin"]
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_said_and_survived(folder, tmp_path, monkeypatch):
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    monkeypatch.setattr(keeping, "INTERVAL_S", 0.0)
    monkeypatch.setattr(keeping, "SHARE", 1.0)
    file, options = CASES["text"]
    try:
        kmeans = StreamKMeans(progress=False, checkpoint=place / "state", **options)
        with pytest.raises(DiskFullError, match=r"small.*full|no space"):
            kmeans.fit(str(folder / file))
        subprocess.run(["mount", "-o", "remount,size=500m", place], check=True)
        kmeans.fit(str(folder / file))
    finally:
        subprocess.run(["umount", place], check=True)
    wanted = StreamKMeans(progress=False, **options).fit(str(folder / file))
    np.testing.assert_array_equal(kmeans.labels_, wanted.labels_)
