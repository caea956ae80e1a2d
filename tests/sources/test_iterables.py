"""Iterables of chunks: read once or again, merged and cut, checked against each other."""

from __future__ import annotations

import weakref
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from streamkm.sources.memory.iterables import MADE_COPIES
from tests.contracts import OnePassContract, Opened, RowSourceContract, assemble
from tests.sources.matrices import dense_matrix, sparse_matrices, sparse_matrix
from tests.tables import cases

CUTS = (0, 3, 3, 30, 31, 53)


def pieces(X, cuts=CUTS):
    return [X[a:b] for a, b in pairwise(cuts)]


class Again:
    """An iterable that starts anew and is no list."""

    def __init__(self, chunks):
        self.chunks = chunks

    def __iter__(self):
        return iter(self.chunks)


class TestDense(RowSourceContract):
    @pytest.fixture(params=["callable of lists", "iterable", "big-endian"])
    def opened(self, request):
        X = dense_matrix(dtype=">f4" if request.param == "big-endian" else "f4")
        chunks = pieces(X)
        if request.param == "callable of lists":
            return Opened(open_source(lambda: [chunk.tolist() for chunk in chunks]), X)
        return Opened(open_source(Again(chunks) if request.param == "iterable" else lambda: iter(chunks)), X)


class TestSparse(RowSourceContract):
    @pytest.fixture
    def opened(self):
        X = sparse_matrix()
        return Opened(open_source(lambda: (chunk.asformat("coo") for chunk in pieces(X))), X.toarray())


class TestGenerator(OnePassContract):
    @pytest.fixture
    def opened(self):
        X = dense_matrix()
        return Opened(open_source(iter(pieces(X))), X)


@given(sparse_matrices(), st.lists(st.integers(0, 40), max_size=6), st.integers(1, 2_000), st.booleans())
def test_any_partition_in_any_cut(X, cuts, target_bytes, dense):
    X = X.toarray() if dense else X
    chunks = pieces(X, sorted({0, *(min(cut, X.shape[0]) for cut in cuts), X.shape[0]}))
    got = list(open_source(lambda: iter(chunks)).stream(target_bytes))
    np.testing.assert_array_equal(assemble(got, X.shape[1]), X if dense else X.toarray())
    np.testing.assert_array_equal(np.concatenate([rows.places for rows in got]), np.arange(X.shape[0]))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_chunk_is_let_go_before_the_next_one_is_made(sparse):
    left = []

    def make():
        before = None
        for chunk in pieces(sparse_matrix() if sparse else dense_matrix(), (0, 10, 20, 53)):
            left.append(before is not None and before() is not None)
            values = chunk.data if sparse else chunk.copy()
            made = sp.csr_array((values, chunk.indices, chunk.indptr), chunk.shape) if sparse else values
            before = weakref.ref(made)
            del values, chunk
            yield made
            del made

    list(open_source(make).stream(100))
    assert left == [False] * 3


def test_only_chunks_that_are_made_take_more_memory():
    chunks = pieces(dense_matrix())
    for made in (iter(chunks), lambda: iter(chunks)):
        assert open_source(made).access.producer_bytes == MADE_COPIES * chunks[0].nbytes
    assert open_source(Again(chunks)).access.producer_bytes == 0


def test_small_chunks_are_merged_and_large_ones_cut():
    X = dense_matrix(1_000, 4)
    for make in (lambda: (row[None] for row in X), lambda: iter([X])):
        assert [len(rows.X) for rows in open_source(make).stream(1_600)] == [100] * 10


def test_a_buffer_may_be_filled_again():
    X = dense_matrix()

    def refill():
        buffer = np.empty((1, 7), np.float32)
        for row in X:
            buffer[:] = row
            yield buffer

    for target_bytes in (1, 300, 1 << 20):
        np.testing.assert_array_equal(assemble(open_source(refill).stream(target_bytes), 7), X)


def test_sparse_chunks_of_different_width():
    chunks = [sp.csr_array((2, 3)), sp.csr_array(np.ones((1, 5)))]
    with pytest.raises(InvalidInputError, match=r"chunk 1 of .* has 5 sparse features; 3 .*pass n_features="):
        list(open_source(iter(chunks)).stream(1))
    source = open_source(iter(chunks), n_features=6)
    assert source.n_features == 6
    assert [rows.X.shape for rows in source.stream(1)] == [(1, 6)] * 3
    with pytest.raises(InvalidInputError, match=r"chunk 0 .* has 3 sparse features; 2 sparse ones are needed"):
        open_source(iter(chunks), n_features=2)


@cases(
    "chunks, message",
    [
        ([], "gives no rows"),
        ([np.zeros((0, 3))], "gives no rows"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "chunk 1 of .* has 4 dense features; 3"),
        ([np.zeros((2, 3)), sp.csr_array((2, 3))], "chunk 1 of .* has 3 sparse features; 3 dense ones"),
        ([np.zeros((2, 3), int), np.zeros((2, 3))], "chunk 1 of .* holds float64, which the int64 of chunk 0"),
        ([np.zeros((2, 3)), np.array([["a", "b", "c"]])], "chunk 1 of .* strings"),
    ],
)
def test_chunks_that_do_not_fit(chunks, message):
    with pytest.raises(InvalidInputError, match=message):
        list(open_source(iter(chunks)).stream(1 << 20))


def test_callables_that_give_none():
    with pytest.raises(InvalidInputError, match="gives int; a callable must return an iterator"):
        open_source(lambda: 3)
    iterator = iter(pieces(dense_matrix()))
    source = open_source(lambda: iterator)
    list(source.stream(300))
    with pytest.raises(InvalidInputError, match="gave other rows in this pass than before"):
        list(source.stream(300))


class Tensor:
    """What of a tensor is needed here: it may belong to a gradient, and lie elsewhere."""

    def __init__(self, values, ready=False):
        self.values, self.ready, self.shape = values, ready, values.shape

    def detach(self):
        return Tensor(self.values)

    def cpu(self):
        return Tensor(self.values, ready=True)

    def __array__(self, dtype=None, copy=None):
        if not self.ready:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        return np.array(self.values, dtype)


class Loader(Again):
    """A data loader: no list, no iterator, and with a sampler."""

    sampler = "in order"


class RandomSampler:
    """As that of PyTorch is called."""


class TestLoader(RowSourceContract):
    @pytest.fixture
    def opened(self):
        X = dense_matrix()
        batches = [(Tensor(rows), np.zeros(len(rows))) for rows in pieces(X)]
        return Opened(open_source(Loader(batches)), X)


def test_a_loader_that_shuffles_is_refused():
    loader = Loader([(dense_matrix(), None)])
    loader.sampler = RandomSampler()
    with pytest.raises(InvalidInputError, match=r"a Loader that shuffles: .* make it with shuffle=False"):
        open_source(loader)
