"""Stores in any order of what can be done with them, against plain NumPy.

Rows are whole numbers, so that sums are exact in any order. Appends are killed in processes of their own.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sklearn.base import clone

from streamkm import StreamKMeans
from streamkm.core.exceptions import CheckpointError, StoreError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.engine.checkpoint import records
from streamkm.sources import open_source
from streamkm.stores.operations import append_rows, write_store
from tests import children
from tests.children import SKETCH, StoppedError, reader_of, stopped_after
from tests.naive import countsketch_matrix, dense
from tests.programs import forking

D, K = 12, 3
SKETCHED = countsketch_matrix(SKETCH.seed, D, SKETCH.n_components)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 900)


def whole_rows(seed, n_rows):
    """Dense float32 (n, d): whole numbers in three groups."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-5, 6, (n_rows, D)) + 40 * rng.integers(0, K, (n_rows, 1))).astype(np.float32)


def nearest(X, centers):
    """Labels and the sum of squared distances, by all pairs."""
    d2 = ((X.astype(np.float64)[:, None] - centers[None]) ** 2).sum(axis=2)
    return d2.argmin(axis=1), d2.min(axis=1).sum()


@pytest.fixture(scope="module")
def killer():
    """Does what it is told to a store in a process that is killed at a moment; gives whether it was."""
    here, there = multiprocessing.Pipe()
    child = forking().Process(target=children.serve_kills, args=(there,))
    child.start()

    def kill(*told):
        here.send(told)
        return here.recv()

    yield kill
    here.send(None)
    child.join()


class Machine(RuleBasedStateMachine):
    """A store that takes rows, is killed while it does, and is clustered."""

    kill = None

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="streamkm-test-"))
        self.patched = pytest.MonkeyPatch()
        for module, name, value in (
            ("stores.writer", "CHUNK_BYTES", 1 << 15), ("stores.write", "INTERVAL_S", 0.0),
            ("engine.saving", "INTERVAL_S", 0.0), ("engine.saving", "SHARE", 1.0),
        ):  # fmt: skip
            self.patched.setattr(f"streamkm.{module}.{name}", value)
        self.n_files = 0
        self.stored = np.empty((0, D), np.float32)
        self.pending = None  # rows and file of an append that was killed before it was done
        self.done = []  # files that are in the store

    def teardown(self):
        self.patched.undo()
        shutil.rmtree(self.folder)

    def file(self, X):
        self.n_files += 1
        path = self.folder / f"{self.n_files}.npy"
        np.save(path, X)
        return path

    def add(self, path, **options):
        store = self.folder / "s"
        with open_executor(1) as executor:
            if store.exists():
                append_rows(store, reader_of(path), executor, Stage("append"), **options)
            else:
                write_store(store, reader_of(path), SKETCH, executor, Stage("write"), **options)

    @rule(seed=seeds, n_rows=sizes)
    def append(self, seed, n_rows):
        X = whole_rows(seed, n_rows)
        path = self.file(X)
        if self.pending is not None and records(self.folder / ".s.work"):
            with pytest.raises(CheckpointError, match="is of another run"):
                self.add(path)
        self.add(path, restart=self.pending is not None)
        self.stored, self.pending = np.concatenate([self.stored, X]), None
        self.done.append(path)

    @precondition(lambda self: self.pending is None)
    @rule(seed=seeds, n_rows=sizes, moment=st.integers(0, 40))
    def append_and_kill(self, seed, n_rows, moment):
        X = whole_rows(seed, n_rows)
        path, store = self.file(X), self.folder / "s"
        operation = "rows" if store.exists() else "write"
        type(self).kill(moment, operation, store, path)
        if store.exists() and open_source(store).n_rows == len(self.stored) + n_rows:
            self.stored = np.concatenate([self.stored, X])
            self.done.append(path)
        else:
            self.pending = (X, path)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def resume(self):
        X, path = self.pending
        self.add(path)
        self.stored, self.pending = np.concatenate([self.stored, X]), None
        self.done.append(path)

    @precondition(lambda self: self.done and self.pending is None)
    @rule(data=st.data())
    def append_again(self, data):
        with pytest.raises(StoreError, match="already, among rows"):
            self.add(data.draw(st.sampled_from(self.done)))

    @precondition(lambda self: len(self.stored) >= K)
    @rule(record=st.sampled_from(["begin", "seed", "found", "assign-0"]))
    def cluster_stopped_and_resumed(self, record):
        """To the bits of a run that nothing happened to, whose labels are the nearest centers."""
        kmeans = StreamKMeans(K, random_state=1, executor=1, chunk_bytes=50_000, progress=False)
        wanted = kmeans.fit(open_source(self.folder / "s"))
        labels, inertia = nearest(self.stored @ SKETCHED, wanted.cluster_centers_)
        np.testing.assert_array_equal(wanted.labels_, labels)
        np.testing.assert_allclose(wanted.inertia_, inertia, rtol=1e-6)
        again, state = clone(kmeans), self.folder / "state"
        with pytest.MonkeyPatch.context() as patched:
            stopped_after(patched, record)
            try:
                again.fit(open_source(self.folder / "s"), checkpoint=state)
            except StoppedError:
                assert bool(records(state)) == (record != "begin")  # which is not worth keeping
        again.fit(open_source(self.folder / "s"), checkpoint=state)
        np.testing.assert_array_equal(again.labels_, wanted.labels_)
        np.testing.assert_array_equal(again.cluster_centers_, wanted.cluster_centers_)
        assert not state.exists()

    @invariant()
    def the_store_has_its_rows(self):
        if len(self.stored):
            found = np.concatenate([dense(rows.X) for rows in open_source(self.folder / "s").stream(30_000)])
            np.testing.assert_array_equal(found, self.stored @ SKETCHED)


def test_any_order_of_what_can_be_done(killer):
    Machine.kill = staticmethod(killer)
    Machine.TestCase.settings = settings(
        max_examples=settings.default.max_examples // 4,
        stateful_step_count=12,
        phases=(Phase.explicit, Phase.generate),  # steps take long: no shrinking
    )
    Machine.TestCase("runTest").runTest()
