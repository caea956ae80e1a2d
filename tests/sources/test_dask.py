"""Dask arrays: dense and sparse blocks, several column blocks, empty blocks, heights that are not known."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from tests.contracts import Opened, SourceContract, assert_same_rows
from tests.sources.matrices import dense_matrix, sparse_matrix, unknown
from tests.tables import cases

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")

ROWS = (20, 0, 13, 20)


class TestDense(SourceContract):
    @pytest.fixture(params=["one column block", "column blocks", "unknown", "filtered", "float16", "lazy"])
    def opened(self, request):
        X = dense_matrix(dtype="f2" if request.param == "float16" else "f4")
        blocks = (ROWS, (7,) if request.param == "one column block" else (3, 4))
        array = da.from_array(X, chunks=blocks)
        if request.param == "unknown":
            array = unknown(array)
        elif request.param == "filtered":
            array = array[array[:, 0] > 30]
            X = X[X[:, 0] > 30]
        elif request.param == "lazy":
            array = array.map_blocks(lambda block: block + 1)
            X = X + 1
        return Opened(open_source(array), X)


class TestSparse(SourceContract):
    @pytest.fixture(params=["csr_matrix", "csr_array", "COO", "column blocks", "unknown"])
    def opened(self, request):
        X = sparse_matrix()
        convert = {"csr_array": sp.csr_array}.get(request.param, sp.csr_matrix)
        if request.param == "COO":
            convert = pytest.importorskip("sparse").COO.from_numpy
        columns = (11, 20) if request.param == "column blocks" else (31,)
        array = da.from_array(X.toarray(), chunks=(ROWS, columns)).map_blocks(convert)
        return Opened(open_source(unknown(array) if request.param == "unknown" else array), X.toarray())


def test_a_read_computes_its_row_block_alone():
    computed = []

    def note(block, block_info=None):
        computed.append(block_info[0]["chunk-location"])
        return block

    source = open_source(
        da.from_array(dense_matrix(), chunks=(ROWS, (3, 4))).map_blocks(note, dtype="f4", meta=np.empty((0, 0), "f4"))
    )
    chunks = source.chunks(1)
    assert len(chunks) == 3
    source.read(chunks[1])
    assert sorted(computed) == [(2, 0), (2, 1)]


@pytest.mark.parametrize("known", [True, False])
def test_what_is_packed_gives_what_read_gives(known):
    array = da.from_array(sparse_matrix().toarray(), chunks=(ROWS, (11, 20))).map_blocks(sp.csr_matrix)
    source = open_source(array if known else unknown(array))
    for chunk in source.chunks(1):
        block, inputs = pickle.loads(pickle.dumps(source.packed(chunk)))
        assert not inputs
        rows = source.read(chunk)
        assert_same_rows(type(rows)(block.compute([]), rows.places), rows)


def test_places_where_heights_are_not_known():
    source = open_source(unknown(da.from_array(dense_matrix(), chunks=(ROWS, 7))))
    assert source.n_rows is None
    places = np.concatenate([rows.places for rows in source.stream(1)])
    assert places[20] == 2 << 40
    assert source.describe((2 << 40) + 5) == "row 5 of block 2 of dask array"


def test_what_was_persisted_on_a_cluster_is_fetched_from_there():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
    ):
        X = dense_matrix()
        for array, wanted in ((da.from_array(X, chunks=(ROWS, 7)).persist(), X), (da.ones((9, 2)).persist() + 1, 2)):
            for rows in open_source(array).stream(1):
                np.testing.assert_array_equal(rows.X, wanted[rows.places] if array.shape == X.shape else wanted)


def test_a_data_frame():
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    X = dense_matrix(dtype="f8")
    source = open_source(dd.from_pandas(pd.DataFrame(X), npartitions=3))
    np.testing.assert_array_equal(np.concatenate([rows.X for rows in source.stream(1)]), X)


@cases(
    "make, message",
    [
        (lambda: da.zeros(3), "1 dimensions"),
        (lambda: da.zeros((0, 3)), "0 rows"),
        (lambda: da.zeros((3, 0)), "0 features"),
        (lambda: da.zeros((3, 3), dtype=complex), "complex"),
        (lambda: da.zeros((3, 3))[:, da.zeros(3) > 0], "unknown number of features"),
        (lambda: dask.delayed(3), "no Dask array"),
    ],
)
def test_what_has_no_rows_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        open_source(make())


@cases(
    "block, message",
    [
        (lambda x: x[:, :-1], r"row-block 1 .* has shape \(13, 6\); the array says \(13, 7\)"),
        (lambda x: x[:-1], r"row-block 1 .* has shape \(12, 7\); the array says \(13, 7\)"),
        (sp.csr_matrix, r"row-block 1 .* is sparse.*meta=scipy"),
    ],
)
def test_a_block_that_is_not_what_the_array_says(block, message):
    array = da.from_array(dense_matrix(), chunks=((20, 13, 20), 7)).map_blocks(block, meta=np.empty((0, 0), "f4"))
    source = open_source(array)
    with pytest.raises(InvalidInputError, match=message):
        source.read(source.chunks(1)[1])


NUMBERS = np.random.default_rng(0).random((30, 3)) + 1


def of_other_type(kind, declared, held):
    """A Dask array or data frame of three blocks that says `declared`; the first holds that, the others `held`."""

    def block(number):
        return NUMBERS[number * 10 : number * 10 + 10].astype(held if number else declared)

    if kind == "array":
        return da.concatenate([da.from_delayed(dask.delayed(block)(i), (10, 3), declared) for i in range(3)])
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    meta = pd.DataFrame(np.empty((0, 3), declared), columns=list("abc"))
    return dd.from_map(lambda i: pd.DataFrame(block(i), columns=list("abc")), range(3), meta=meta)


@cases("declared, held", [("i8", "f8"), ("?", "f8"), ("f4", "f8"), ("i4", "i8"), ("u1", "i8"), ("f4", "i8")])
@cases("kind", ["array", "frame", "table"])
def test_a_block_of_a_type_that_would_be_cast_with_loss(kind, declared, held):
    X = of_other_type(kind, declared, held)
    source = open_source(X, columns=["c", "a"]) if kind == "table" else open_source(X)
    first, second, _ = source.chunks(1)
    assert len(source.read(first).X) == 10
    held, declared = np.dtype(held).name, np.dtype(declared).name
    message = f"row-block 1 of .* holds {held}; the array says {declared}: pass X.astype\\('{held}'\\)"
    if kind != "array":
        message = f"'{'c' if kind == 'table' else 'a'}' holds {held} in partition 1 of the dask data frame"
    with pytest.raises(InvalidInputError, match=message):
        source.read(second)


@cases("declared, held", [("f8", "f4"), ("f8", "i8"), ("f4", "f2"), ("i8", "?"), ("i8", "u4"), ("f4", "u2")])
@cases("kind", ["array", "frame", "table"])
def test_a_block_of_a_type_that_the_declared_one_holds(kind, declared, held):
    X = of_other_type(kind, declared, held)
    source = open_source(X, columns=list("abc")) if kind == "table" else open_source(X)
    for chunk, block in zip(source.chunks(1), np.split(NUMBERS, 3), strict=True):
        got = source.read(chunk).X
        assert got.dtype == source.dtype
        np.testing.assert_array_equal(got, block.astype(held if chunk.start else declared))


@cases("kind", ["array", "frame", "table"])
def test_a_block_of_another_type_on_workers(client, kind):
    X = of_other_type(kind, "i8", "f8")
    X = open_source(X, columns=["c", "a"]) if kind == "table" else X
    with pytest.raises(InvalidInputError, match=r"(row-block|in partition) [12] of"):
        StreamKMeans(2, executor=client, random_state=0).fit(X)
    if kind == "array":
        fixed = X.astype("float64")
        assert StreamKMeans(2, executor=client, random_state=0).fit(fixed).cluster_centers_.dtype == float


def test_words_where_a_data_frame_says_numbers():
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    meta = pd.DataFrame({"a": np.empty(0)})
    X = dd.from_map(lambda i: pd.DataFrame({"a": ["x", "y"] if i else [1.0, 2.0]}), range(2), meta=meta)
    source = open_source(X)
    with pytest.raises(InvalidInputError, match="partition 1 of the dask data frame is not of the types that it says"):
        source.read(source.chunks(1)[1])


@cases("options", [{}, {"name": False}, {"lock": True}, {"inline_array": True}, {"chunks": (30, 3)}])
def test_a_file_that_is_open_goes_to_workers(client, tmp_path, options):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = NUMBERS
    wanted = StreamKMeans(3, executor=1, random_state=0).fit(NUMBERS)
    with h5py.File(tmp_path / "x.h5") as file:
        X = da.from_array(file["X"], **{"chunks": (10, 3), **options})
        got = StreamKMeans(3, executor=client, random_state=0).fit(X)
    np.testing.assert_allclose(got.inertia_, wanted.inertia_)


def test_an_index_out_of_range_names_block_and_row():
    X = sparse_matrix()

    def spoil(block):
        block = sp.csr_matrix(block)
        if block.shape == (13, 31):
            block.indices[block.indptr[4]] = 99
        return block

    source = open_source(da.from_array(X.toarray(), chunks=((20, 13, 20), 31)).map_blocks(spoil))
    with pytest.raises(InvalidInputError, match="index 99 in row 4 of row-block 1"):
        source.read(source.chunks(1)[1])
