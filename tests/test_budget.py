"""The plan: sketch, space, chunks and bytes, chosen before the first read, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans, budget
from streamkm.budget import plan_fit
from streamkm.errors import InvalidInputError, InvalidParameterError, MemoryLimitError
from streamkm.sources import open_source
from streamkm.sources.base import Chunk, ChunkedSource

GIB = 1 << 30


class UnreadSource(ChunkedSource):
    """Only a description: reading fails the test."""

    name = "unread"
    n_bytes = 12_345

    def __init__(self, n_rows, n_features, *, sparse=False, dtype=np.float32):
        self.n_rows, self.n_features = n_rows, n_features
        self.is_sparse, self.dtype = sparse, np.dtype(dtype)

    def chunks(self, target_bytes):
        row_bytes = 600 if self.is_sparse else self.n_features * self.dtype.itemsize
        rows = max(1, target_bytes // row_bytes)
        starts = range(0, self.n_rows, rows)
        stops = [min(start + rows, self.n_rows) for start in starts]
        return tuple(
            Chunk(i, 0, start, stop, (stop - start) * row_bytes)
            for i, (start, stop) in enumerate(zip(starts, stops, strict=True))
        )

    def read(self, chunk):
        raise AssertionError("planning must not read")


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """A machine with 8 GiB, whatever this one has."""

    def set_available(n_bytes):
        monkeypatch.setattr(budget, "available_memory", lambda: n_bytes)

    set_available(8 * GIB)
    return set_available


def plan(source, **changed):
    parameters = {
        "n_clusters": 10,
        "sketch": "auto",
        "n_components": "auto",
        "refine": 0,
        "assign_space": "auto",
        "chunk_bytes": "auto",
    }
    return plan_fit(source, **{**parameters, **changed})


def test_few_features_need_no_sketch():
    for sparse in (False, True):
        got = plan(UnreadSource(1000, 20, sparse=sparse))
        assert (got.sketch, got.n_components) == ("identity", 20)


def test_many_features_are_sketched_to_fewer():
    for sparse, kind in ((False, "pca"), (True, "countsketch")):
        got = plan(UnreadSource(1000, 100_000, sparse=sparse))
        assert got.sketch == kind
        assert 1 <= got.n_components < 100_000


def test_components_as_asked_for():
    for kind in ("countsketch", "pca"):
        got = plan(UnreadSource(1000, 20), n_components=7, sketch=kind)
        assert (got.sketch, got.n_components) == (kind, 7)
    assert plan(UnreadSource(1000, 20, sparse=True), n_components=7).n_components == 7
    # nothing to gain where d <= m
    assert plan(UnreadSource(1000, 20), n_components=20).sketch == "identity"
    assert plan(UnreadSource(1000, 20), n_components=21).n_components == 20
    assert plan(UnreadSource(1000, 20), n_components=20, sketch="countsketch").sketch == "countsketch"
    assert plan(UnreadSource(1000, 5000), sketch="identity").n_components == 5000


def test_identity_refuses_other_components():
    with pytest.raises(InvalidParameterError, match=r"n_components=7.*20"):
        plan(UnreadSource(1000, 20), sketch="identity", n_components=7)


def test_pca_refuses_sparse_rows():
    with pytest.raises(InvalidParameterError, match=r"pca.*sparse.*countsketch"):
        plan(UnreadSource(1000, 20, sparse=True), sketch="pca")


def test_identity_needs_the_number_of_features(tmp_path):
    (tmp_path / "x.svm").write_text("1 1:1 5:2\n0 2:3\n")
    with pytest.raises(InvalidParameterError, match="n_features"):
        plan(open_source(tmp_path / "x.svm"), sketch="identity")


@pytest.mark.parametrize("refine", [0, 1, 5])
def test_passes(refine):
    got = plan(UnreadSource(1000, 20), refine=refine)
    assert got.passes == 2 + refine
    assert got.stored_bytes == 12_345


@pytest.mark.parametrize("n_rows", [10, 10_000, 1_000_000])
def test_chunks_depend_on_the_data_alone(n_rows, memory):
    source = UnreadSource(n_rows, 100)
    got = plan(source)
    assert got.n_chunks == len(source.chunks(got.chunk_bytes))
    memory(1 << 50)
    assert plan(source, n_clusters=3).chunk_bytes == got.chunk_bytes
    assert got.chunk_bytes <= 64 << 20
    assert plan(source, chunk_bytes=12_345).chunk_bytes == 12_345


def test_work_is_shared_even_where_the_data_are_few():
    assert plan(UnreadSource(100_000, 100)).n_chunks >= 8


@pytest.mark.parametrize("sparse", [False, True])
def test_refuses_what_does_not_fit_before_reading(sparse, memory):
    source = UnreadSource(1_000_000, 10_000, sparse=sparse)
    needed = sum(plan_bytes(source, memory).values())
    memory(needed - 1)
    with pytest.raises(MemoryLimitError, match=r"needs about .*[GM]iB.*fewer n_components") as caught:
        plan(source, assign_space="sketch")
    assert isinstance(caught.value, MemoryError)
    memory(needed)
    assert plan(source, assign_space="sketch").available_bytes == needed


def plan_bytes(source, memory):
    memory(1 << 60)
    return plan(source, assign_space="sketch").memory


def test_projection_covers_what_must_be_held():
    n, d, k = 1_000_000, 400, 100
    got = plan(UnreadSource(n, d), n_clusters=k)
    assert got.memory["blocks"] >= n * d * 4
    assert got.memory["labels"] >= n * 4
    assert got.memory["centers"] >= 2 * k * d * 8
    assert got.memory["chunks"] >= got.chunk_bytes
    wide = plan(UnreadSource(n, d, dtype=np.float64), n_clusters=k)
    assert wide.memory["blocks"] >= n * d * 8


def test_centers_that_do_not_fit_are_kept_in_the_sketch(memory):
    source = UnreadSource(1000, 1_000_000, sparse=True)
    assert plan(source, n_clusters=10).assign_space == "original"
    got = plan(source, n_clusters=1000)
    assert got.assign_space == "sketch"
    assert got.memory["centers"] < GIB
    assert plan(source, n_clusters=10, assign_space="sketch").assign_space == "sketch"
    memory(1 << 50)
    assert plan(source, n_clusters=1000).assign_space == "original"


def test_sample_holds_many_rows_of_a_cluster_but_not_all_memory():
    got = plan(UnreadSource(10_000_000, 100), n_clusters=50)
    assert got.sample_rows >= 50 * 100
    wide = plan(UnreadSource(100_000, 100_000), n_clusters=50, n_components=16)
    assert 50 <= wide.sample_rows <= GIB // (100_000 * 4)


def test_a_stream_that_cannot_be_replayed_is_refused():
    with pytest.raises(InvalidInputError, match="once only"):
        plan(open_source(iter([np.zeros((3, 2))])))
    assert plan(open_source(lambda: iter([np.zeros((3, 2))]))).n_rows is None


def test_plan_of_text_knows_the_rows_roughly(tmp_path):
    path = tmp_path / "x.svm"
    path.write_text("".join(f"{i % 3} 1:{i} 7:2.5\n" for i in range(5000)))
    got = plan(open_source(path))
    assert got.n_features is None
    assert got.assign_space is None
    assert 2500 < got.n_rows < 10_000


def test_lines_and_values_for_people_and_machines():
    got = plan(UnreadSource(1000, 20), refine=1)
    text = dict(got.lines())
    assert text["passes"] == "3"
    assert "20" in text["features"]
    assert "identity" in text["sketch"]
    assert "available" in text["memory"]
    assert json.loads(json.dumps(got.to_dict()))["n_components"] == 20


def test_estimator_plans_what_it_does():
    X = sp.random_array((300, 5000), density=0.01, format="csr", rng=np.random.default_rng(0))
    estimator = StreamKMeans(3, refine=1, random_state=0)
    planned = estimator.plan(X)
    estimator.fit(X)
    assert planned == estimator.plan_
    assert planned.n_components == estimator.n_components_ == estimator.sketch_.n_components
    assert planned.passes == estimator.n_passes_


def test_estimator_refuses_before_reading(memory):
    memory(1000)
    with pytest.raises(MemoryLimitError):
        StreamKMeans(3).fit(UnreadSource(1000, 20))
