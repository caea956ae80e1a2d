"""CSR rows from stored arrays: cuts, shared storage chunks, unsound groups."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.binary import csr_groups
from streamkm.sources.binary.csr_groups import CsrSource
from tests.contracts import Opened, SourceContract, assemble
from tests.sources.counting import CountingArray, counting_csr
from tests.sources.matrices import sparse_matrices, sparse_matrix
from tests.tables import cases


def open_counting(X, unit=16):
    arrays = counting_csr(X, unit)
    return CsrSource(*arrays, shape=X.shape, name="x"), arrays


class _Unlocked(CountingArray):
    """Pickles, which a lock does not."""

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state):
        self.__init__(state["_values"], state["unit_rows"], state["name"])


class TestCsrSource(SourceContract):
    @pytest.fixture(params=[(16, 16, 16), (1000, 1000, 1000), (7, 1000, 1)])
    def opened(self, request, monkeypatch):
        if request.param[2] == 1:  # nothing is kept
            monkeypatch.setattr(csr_groups, "_KEPT_INDPTR_BYTES", 64)
            monkeypatch.setattr(csr_groups, "_KEPT_BOUNDARY_BYTES", 0)
        X = sparse_matrix()
        arrays = [_Unlocked(array._values, array.unit_rows, array.name) for array in counting_csr(X, request.param)]
        return Opened(CsrSource(*arrays, shape=X.shape, name="x"), X.toarray())


@given(sparse_matrices(), st.tuples(*[st.integers(1, 40)] * 3), st.integers(1, 1_500))
def test_any_matrix_any_storage_any_cut(X, units, target_bytes):
    source, _ = open_counting(X, units)
    np.testing.assert_array_equal(assemble(source.stream(target_bytes), X.shape[1]), X.toarray())


@cases("target_bytes", [1, 150, 1_000, 1 << 30])
@cases("n_threads", [1, 4])
def test_every_storage_chunk_is_read_once_a_pass(target_bytes, n_threads):
    X = sparse_matrix(400, 40)
    source, arrays = open_counting(X)
    chunks = source.chunks(target_bytes)
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(source.read, chunks))
    assert len(chunks) > 20 or target_bytes > 150
    assert len(chunks) == 1 or target_bytes <= 1_000
    assert [array.most() for array in arrays] == [1, 1, 1]


def test_a_storage_chunk_that_fails_is_tried_again():
    X = sparse_matrix(400, 40)
    source, (data, _, _) = open_counting(X)
    chunks = source.chunks(150)
    data.read_into, real = lambda *_: (_ for _ in ()).throw(SourceError("disk")), data.read_into
    with pytest.raises(SourceError, match="disk"):
        source.read(chunks[1])
    data.read_into = real
    assert source.read(chunks[1]).X.shape[0] == chunks[1].stop - chunks[1].start


def held_bytes(source):
    with source._boundaries._lock:
        return sum(held.values.result().nbytes for held in source._boundaries._held.values() if held.values.done())


def test_what_is_held_is_bounded(monkeypatch):
    monkeypatch.setattr(csr_groups, "_KEPT_BOUNDARY_BYTES", 500)
    source, _ = open_counting(sparse_matrix(400, 40))
    chunks = source.chunks(150)
    for chunk in list(chunks)[::2]:  # what is left of the storage chunks of both ends is never asked for
        source.read(chunk)
        assert 0 < held_bytes(source) <= 500 + 2 * 16 * 8
    source, _ = open_counting(sparse_matrix(400, 40))
    for chunk in chunks:
        source.read(chunk)
    assert held_bytes(source) == 0


@pytest.mark.parametrize("n_threads", [1, 3])
def test_large_storage_chunks_are_read_once_a_pass_by_threads_that_meet_anywhere(monkeypatch, n_threads):
    """Runs of chunks, as folds cut them; each thread holds the storage chunk that it goes on with, whatever it takes.

    All that may be held besides are the ends of rows where runs meet.
    """
    most = 199 * 8
    monkeypatch.setattr(csr_groups, "_KEPT_BOUNDARY_BYTES", most)
    X = sparse_matrix(8_000, 8)
    chunks = open_counting(X, (200, 200, 16))[0].chunks(150)
    rng = np.random.default_rng(0)

    def run(source, part):
        for chunk in part:
            time.sleep(float(rng.random()) / 2_000)
            got = source.read(chunk).X
            np.testing.assert_array_equal(got.toarray(), X[chunk.start : chunk.stop].toarray())
            assert held_bytes(source) <= most + 3 * 200 * 8 * n_threads

    assert len(chunks) > 50
    for _ in range(3):
        source, arrays = open_counting(X, (200, 200, 16))  # as a worker has it: pointers are not read yet
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(run, [source] * 10, np.array_split(np.array(chunks, object), 10)))
        assert [array.most() for array in arrays] == [1, 1, 1]


def test_many_empty_rows_are_cut_too():
    X = sparse_matrix(5_000, 10, density=0.0)
    source, _ = open_counting(X)
    chunks = source.chunks(800)
    assert len(chunks) == 50
    np.testing.assert_array_equal(assemble(source.stream(800), 10), X.toarray())


def damaged(name, at, value):
    X = sparse_matrix()
    arrays = counting_csr(X, 16)
    values = {array.name: array for array in arrays}[name]._values.copy()
    values[at] = value
    arrays = [CountingArray(values, 16, name) if array.name == name else array for array in arrays]
    return CsrSource(*arrays, shape=X.shape, name="x")


@cases("kept_bytes", [64, 1 << 20])
@cases(
    "name, at, value, message",
    [
        ("indptr", 0, 1, "starts with 1"),
        ("indptr", 20, 0, "to 0 at row 19"),
        ("indptr", 20, 9_999, "row 20"),
        ("indptr", -1, 9_999, "ends with 9,999"),
        ("indices", 40, -1, "index -1 in row"),
        ("indices", 40, 31, "index 31 in row"),
    ],
)
def test_an_unsound_group_is_an_error_with_its_place(name, at, value, message, kept_bytes, monkeypatch):
    monkeypatch.setattr(csr_groups, "_KEPT_INDPTR_BYTES", kept_bytes)
    with pytest.raises(InvalidInputError, match=message):
        list(damaged(name, at, value).stream(200))


def test_a_worker_that_has_not_seen_all_of_indptr_checks_what_it_reads():
    chunk = CsrSource(*counting_csr(sparse_matrix(), 16), shape=(53, 31), name="x").chunks(200)[-1]
    with pytest.raises(InvalidInputError, match="9,999"):
        damaged("indptr", -1, 9_999).read(chunk)
