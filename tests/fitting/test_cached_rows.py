"""Rows that stay in memory once they are read: what is read, what is said of it, and the same bits as without."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from streamkm import StreamKMeans, open_source
from streamkm.planning.memory_budget import AUTO_BYTES
from streamkm.sources.chunks import Access, ChunkRuns
from streamkm.sources.prepared import CachedRows
from streamkm.sources.row_source import Rows, RowSource, row_places
from tests.limits import limited

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
        return Rows(self.X[chunk.start : chunk.stop], row_places(chunk.start, chunk.stop))


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
