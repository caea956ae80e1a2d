"""Arrays, sparse matrices, memory maps and lists of them; iterables of chunks, read once or again."""

from __future__ import annotations

import pickle
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import sparse
from dask.array import from_array
from hypothesis import given
from hypothesis import strategies as st

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources import open_source
from streamkm.sources.memory.iterables import MADE_COPIES
from streamkm.sources.stored import csr_rows
from tests.contracts import OnePassContract, Opened, RowSourceContract, SourceContract, assemble
from tests.fresh import run_fresh
from tests.sources.matrices import dense_matrix, sparse_matrices, sparse_matrix
from tests.tables import cases, slow_but


class TestArrays(SourceContract):
    @pytest.fixture(params=["?", ">u4", "f2", "<i8", "by columns"])
    def opened(self, request):
        if request.param == "by columns":
            return Opened(open_source(np.asfortranarray(dense_matrix())), dense_matrix())
        X = dense_matrix(dtype=request.param)
        return Opened(open_source(X), X)


class TestMemmap(SourceContract):
    @pytest.fixture(params=["F", "copy on write"])
    def opened(self, request, tmp_path):
        X, order = dense_matrix(dtype=">f4"), "F" if request.param == "F" else "C"
        (tmp_path / "x.bin").write_bytes(b"\0" * 24 + X.tobytes(order))
        mode = "c" if request.param == "copy on write" else "r"
        return Opened(open_source(np.memmap(tmp_path / "x.bin", X.dtype, mode, 24, X.shape, order)), X)


class TestSparse(SourceContract):
    @pytest.fixture(params=["csr64", "coo", "bool", "float16"])
    def opened(self, request):
        X = sparse_matrix()
        if request.param == "csr64":
            X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
        elif request.param == "bool":
            X = X.astype(bool)
        elif request.param == "float16":
            # SciPy itself refuses to densify it
            narrow = sp.csr_array(X)
            narrow.data = X.data.astype(np.float16)
            return Opened(open_source(narrow), X.toarray())
        else:
            X = X.tocoo()
        return Opened(open_source(X), X.toarray())


class TestListOfMatrices(SourceContract):
    @pytest.fixture(params=["dense", "sparse", "dtypes"])
    def opened(self, request):
        if request.param == "sparse":
            X = sparse_matrix()
            narrow = sp.csr_array(X[20:, :-1])
            return Opened(open_source([X[:20], narrow]), X.toarray())
        X = dense_matrix()
        first = X[:11].astype(np.uint8) if request.param == "dtypes" else X[:11]
        return Opened(open_source((first, X[11:12], X[12:])), X)


@given(sparse_matrices(), st.integers(1, 2_000))
def test_any_sparse_matrix_in_any_cut(X, target_bytes):
    source = open_source(X)
    np.testing.assert_array_equal(assemble(source.stream(target_bytes), X.shape[1]), X.toarray())


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 3_000))
def test_any_array_in_any_cut(n_rows, n_features, target_bytes):
    X = dense_matrix(n_rows, n_features)
    source = open_source(X)
    np.testing.assert_array_equal(assemble(source.stream(target_bytes), n_features), X)
    assert all(chunk.n_bytes <= max(target_bytes, X[0].nbytes) for chunk in source.chunks(target_bytes))


def test_an_array_in_memory_is_not_copied():
    X = dense_matrix()
    source = open_source(X)
    assert np.shares_memory(source.read(source.chunks(300)[1]).X, X)


def test_a_pickled_memmap_is_a_path(tmp_path):
    X = np.memmap(tmp_path / "x.bin", np.float64, "w+", shape=(5_000, 10))
    X[:] = 3
    pickled = pickle.dumps(open_source(X))
    assert len(pickled) < 2_000
    source = pickle.loads(pickled)
    assert source.read(source.chunks(1 << 30)[0]).X.sum() == 3 * X.size


def test_a_memmap_that_is_cut_short_is_an_error_and_no_crash(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(dense_matrix().tobytes())
    source = open_source(np.memmap(path, np.float32, "r", shape=(53, 7)))
    with path.open("r+b") as file:
        file.truncate(1_000)
    with pytest.raises(
        SourceError, match=r"x\.bin was changed while it was in use: it was 1,484 bytes, .* and is 1,000 bytes"
    ):
        source.read(source.chunks(1 << 30)[0])


@cases(
    "X, message",
    [
        (np.zeros(3), "1 dimensions"),
        (np.zeros((0, 3)), "0 rows"),
        (np.zeros((3, 0)), "0 features"),
        (np.zeros((2, 2), complex), "complex"),
        (np.array([["a", "b"]]), "strings"),
        (np.array([[1, None]]), "Python objects"),
        (np.zeros((2, 2), "M8[s]"), "real numbers"),
        (sp.csr_array((3, 3), dtype=complex), "complex"),
        (memoryview(b"abc"), "1 dimensions"),
        ([1.0, 2.0], "1 dimensions"),
        ([[1.0, 2.0], [3.0]], "cannot be made an array"),
        ([], "empty list"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "part 1 .* has 4 dense features"),
        ([np.zeros((2, 3)), sp.csr_array((2, 3))], "part 1 .* has 3 sparse features"),
        ([np.zeros((2, 3)), "x.h5"], "item 1 of the list"),
        ([np.zeros((2, 3)), iter([np.zeros((2, 3))])], "item 1 of the list"),
        (b"bytes", "not a supported type of rows"),
    ],
)
def test_what_has_no_rows_is_refused(X, message):
    with pytest.raises(InvalidInputError, match=message):
        open_source(X)


MASKED = np.ma.masked_greater(np.arange(12.0).reshape(4, 3), 9)


@cases(
    "rows, invalid",
    [
        (MASKED, "raise"),
        ([MASKED, MASKED], "raise"),
        (list(MASKED), "raise"),
        (lambda: iter([MASKED]), "skip"),
        (from_array(MASKED, chunks=(2, 3)), "skip"),
    ],
)
def test_masked_values_are_refused(rows, invalid):
    """What lies behind a mask is a number that means nothing."""
    model = StreamKMeans(2, progress=False, invalid=invalid).fit(MASKED.data)
    for method in (model.fit, model.predict, model.incremental().partial_fit):
        with pytest.raises(InvalidInputError, match=r"masked values?, the first at .*filled\(.*np\.nan\), and invalid"):
            np.asarray(method(rows))  # of a Dask array, predict gives another, whose values are asked for here


def test_masked_weights_and_centers_are_refused_and_masks_of_nothing_are_none():
    model = StreamKMeans(2, progress=False, random_state=0)
    np.testing.assert_array_equal(model.fit(np.ma.masked_greater(MASKED.data, 99)).labels_, model.predict(MASKED.data))
    weights = np.ma.masked_greater(np.arange(4.0), 2)
    with pytest.raises(InvalidInputError, match=r"sample_weight has 1 masked value, the first at \[3\]; .*filled\(0\)"):
        StreamKMeans(2, progress=False).fit(MASKED.data, sample_weight=weights)
    with pytest.raises(InvalidInputError, match=r"init has 2 masked values, the first at \[1, 1\]"):
        StreamKMeans(2, progress=False, init=MASKED[2:]).fit(MASKED.data)


@pytest.mark.parametrize("kind", slow_but(["COO"], ["COO", "GCXS"]))
def test_matrices_of_the_package_sparse(kind):
    X = sparse_matrix().toarray()
    made = getattr(sparse, kind).from_numpy(X)
    for rows in (made, [made], lambda: iter([made])):
        source = open_source(rows)
        assert source.is_sparse
        np.testing.assert_array_equal(assemble(source.stream(1 << 20), X.shape[1]), X)
    with pytest.raises(InvalidInputError, match=r"sparse matrix cannot be made .* SciPy: .*fill"):
        open_source(sparse.COO.from_numpy(np.eye(3), fill_value=1))


class SparseTensor:
    """What a sparse tensor of PyTorch tells of itself; making an array of it fails."""

    shape, dtype, layout = (2, 3), "torch.float32", "torch.sparse_csr"

    def detach(self):
        return self

    def cpu(self):
        return self

    def __array__(self, *args, **kwargs):
        raise TypeError("can't convert SparseCsr layout tensor to numpy")


def test_sparse_tensors_are_refused_with_what_to_do():
    for call in (open_source, StreamKMeans(2, progress=False).fit):
        with pytest.raises(InvalidInputError, match=r"array of rows: can't convert SparseCsr layout tensor to numpy"):
            call(SparseTensor())


def test_indptr_that_falls_is_refused():
    X = sparse_matrix()
    X.indptr = X.indptr.copy()
    X.indptr[10] = 0
    with pytest.raises(InvalidInputError, match="row 9"):
        open_source(X)


def test_duplicates_and_disorder_are_repaired_in_a_copy():
    X = sp.csr_array((np.array([1, 2, 4, 8.0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3))
    source = open_source(X)
    (rows,) = source.stream(1 << 20)
    np.testing.assert_array_equal(rows.X.toarray(), [[2, 0, 5], [0, 8, 0]])
    assert rows.X.has_canonical_format
    np.testing.assert_array_equal(X.indices, [2, 0, 2, 1])


@cases("dtype, values", [("uint8", [200, 100]), ("int8", [100, 100]), ("int8", [-100, -100])])
def test_duplicates_that_overflow_are_refused(dtype, values):
    with pytest.raises(InvalidInputError, match=f"more than {dtype} holds"):
        csr_rows(np.array(values, dtype), np.array([1, 1]), np.array([0, 2]), n_features=3, name="x", first_row=0)


def test_more_features_than_32_bits_count():
    X = sp.csr_array((np.ones(2), np.array([0, 1 << 40]), np.array([0, 2])), shape=(1, (1 << 40) + 1))
    (rows,) = open_source(X).stream(1 << 20)
    assert rows.X.indices.dtype == np.int64
    assert rows.X.indices[1] == 1 << 40


VIEWS = {
    "array": np.asarray,
    "rows": lambda X: X[100:-5],
    "some columns": lambda X: X[:, 3:9],
    "every other row, backwards": lambda X: X[::-2],
    "transposed": lambda X: X.reshape(16, -1).T,
}


class TestViewsOfMaps(SourceContract):
    @pytest.fixture(params=VIEWS)
    def opened(self, request, tmp_path):
        path, X = tmp_path / "x.bin", np.arange(160 * 16, dtype=np.float32).reshape(-1, 16)
        path.write_bytes(bytes(24) + X.tobytes())
        mapped = np.memmap(path, np.float32, "r", offset=24, shape=X.shape)
        view = VIEWS[request.param]
        return Opened(open_source(view(mapped)), np.ascontiguousarray(view(X)))


READ = """
import sys, json
import numpy as np
from streamkm.sources import open_source
from tests.sources.test_arrays import VIEWS

def resident():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmRSS"].split()[0]) * 1024

mapped = np.memmap(sys.argv[1], np.float32, "r+", shape=(1_000_000, 16))
grown = {}
for name in ("array", "some columns", "transposed"):
    source = open_source(VIEWS[name](mapped))
    before = resident()
    for chunk in source.chunks(8 << 20):
        source.read(chunk)
    grown[name] = resident() - before
print(json.dumps(grown))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured by Linux's /proc")
def test_pages_of_maps_do_not_stay(disk_path):
    path = disk_path / "x.bin"
    with path.open("wb") as file:
        file.truncate(64_000_000)
    grown = run_fresh(READ, [str(path)])
    assert max(grown.values()) < 40_000_000, grown


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


class TestSparseChunks(RowSourceContract):
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
    np.testing.assert_array_equal(np.concatenate([rows.row_ids for rows in got]), np.arange(X.shape[0]))


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
