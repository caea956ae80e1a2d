"""The first pass of a fit in its checkpoint: sketched rows in memory or on disk, and what a killed run reads again."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from streamkm import SketchOptions, StreamKernelKMeans, StreamKMeans
from streamkm.cluster.held_rows import Spill
from streamkm.core.exceptions import CheckpointError
from streamkm.core.locks import remove_dead_folders
from tests.children import assert_same_fit, chunks_read, fit_killed_behind, outcome, spill_and_wait
from tests.dask_processes import assert_same_bits
from tests.passes.test_passes import CountingSource
from tests.programs import forking
from tests.tables import slow_but

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
    ("record", "times", "n_read"), [("sketch", 5, 4), ("seed", 1, N_CHUNKS), ("lloyd", 2, N_CHUNKS)]
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


@pytest.mark.parametrize("name", BETTER)
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
