"""Rows that are prepared as they are read keep the contract of sources, whatever they are read from."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import open_documents
from streamkm.preparation import Preparation
from streamkm.preparation.preparation import Scaling
from streamkm.sources import open_source
from streamkm.sources.documents.hashed import TfIdfRows, hashed_text
from streamkm.sources.memory.arrays import ArraySource
from streamkm.sources.prepared import PreparedRows, cached_rows
from streamkm.text import TfIdf
from streamkm.text.tfidf import Frequencies
from tests.contracts import Opened, RowSourceContract, SourceContract

SHIFT, FACTOR = np.arange(7.0), np.linspace(0.5, 2, 7)
STANDARDIZED = Preparation(("standardize",), (Scaling(SHIFT, FACTOR),))
SCALED = Preparation(("standardize",), (Scaling(np.empty(0), FACTOR),))


def small(kind=np.float32):
    return np.random.default_rng(0).integers(0, 9, (40, 7)).astype(kind)


class TestDense(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        X = small()
        np.save(tmp_path / "x.npy", X)
        wanted = ((X - SHIFT) * FACTOR).astype(np.float32)
        return Opened(PreparedRows(open_source(tmp_path / "x.npy"), STANDARDIZED), wanted)


class TestBytes(SourceContract):
    """Prepared rows take four times the memory of those that are read."""

    @pytest.fixture
    def opened(self, tmp_path):
        X = small(np.uint8)
        np.save(tmp_path / "x.npy", X)
        wanted = ((X - SHIFT) * FACTOR).astype(np.float32)
        return Opened(PreparedRows(open_source(tmp_path / "x.npy"), STANDARDIZED), wanted)

    def test_chunks_count_what_they_become(self, opened):
        for target in (100, 560, 1 << 20):
            chunks = opened.source.chunks(target)
            assert sum(chunk.n_bytes for chunk in chunks) == opened.X.nbytes
            assert max(chunk.n_bytes for chunk in chunks) <= max(target, 7 * 4)


class TestSparse(SourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        lines = [" ".join(["1", *(f"{j + 1}:{v}" for j, v in enumerate(row) if v)]) for row in small()]
        (tmp_path / "x.svm").write_text("\n".join(lines) + "\n")
        return Opened(PreparedRows(open_source(tmp_path / "x.svm"), SCALED), small(np.float64) * FACTOR)


class TestInMemory(SourceContract):
    @pytest.fixture
    def opened(self):
        X = sp.csr_array(small(np.float64))
        return Opened(PreparedRows(open_source(X), SCALED), X.toarray() * FACTOR)


class TestOnce(RowSourceContract):
    @pytest.fixture
    def opened(self):
        X = small()
        source = open_source(lambda: iter([X[:11], X[11:]]))
        assert source.access.streams
        return Opened(PreparedRows(source, STANDARDIZED), ((X - SHIFT) * FACTOR).astype(np.float32))


def test_rows_are_not_written_to():
    X = small(np.float64)
    before = X.copy()
    for steps in (("unit",), ("log1p", "total"), ("total", "log1p", "unit")):
        for each in (X, sp.csr_array(X)):
            Preparation(steps).apply(each)
    np.testing.assert_array_equal(X, before)


def test_prepared_rows_tell_what_they_are_made_of():
    source, preparation = ArraySource(np.ones((9, 4), np.float32)), Preparation(("unit",))
    rows = PreparedRows(source, preparation)
    assert rows.origin.prepared_by is preparation
    assert rows.original is source
    assert hashed_text(rows) is None
    text = open_documents(["a b", "b c"], tfidf=False)
    assert hashed_text(text) is text
    assert hashed_text(PreparedRows(text, preparation)) is text
    assert hashed_text(cached_rows(text, 1 << 20, 1 << 20)) is text
    assert hashed_text(TfIdfRows(text, TfIdf(Frequencies(2, np.array([1]), np.array([2]))))) is text


def test_what_goes_to_a_cluster_carries_no_rows(tmp_path):
    """Rows of this process are left behind; a file is opened by the worker."""
    X = np.zeros((50_000, 7), np.float32)
    here = PreparedRows(ArraySource(X), STANDARDIZED)
    assert len(pickle.dumps(here.remote_view())) < 10_000 < X.nbytes
    assert here.remote_view().describe(3) == here.describe(3)
    np.save(tmp_path / "x.npy", X)
    file = PreparedRows(open_source(tmp_path / "x.npy"), STANDARDIZED)
    assert file.remote_view() is file
