"""Dask arrays of any blocks; rows of this process for workers of another, sent chunk by chunk."""

from __future__ import annotations

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sparse
import xarray as xr
import zarr

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine.dask import DaskCluster
from streamkm.passes.reader import RowReader
from streamkm.sources import open_source
from tests.contracts import Opened, SourceContract, assert_same_rows
from tests.sources.matrices import dense_matrix, sparse_matrix, unknown
from tests.tables import cases, slow_but

ROWS = (20, 0, 13, 20)


class TestDense(SourceContract):
    @pytest.fixture(params=["column blocks", "unknown", "filtered", "float16"])
    def opened(self, request):
        X = dense_matrix(dtype="f2" if request.param == "float16" else "f4")
        array = da.from_array(X, chunks=(ROWS, (3, 4)))
        if request.param == "unknown":
            array = unknown(array)
        elif request.param == "filtered":
            array = array[array[:, 0] > 30]
            X = X[X[:, 0] > 30]
        return Opened(open_source(array), X)


class TestSparse(SourceContract):
    @pytest.fixture(params=["csr_array", "COO", "column blocks", "unknown"])
    def opened(self, request):
        X = sparse_matrix()
        convert = {"csr_array": sp.csr_array}.get(request.param, sp.csr_matrix)
        if request.param == "COO":
            convert = sparse.COO.from_numpy
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
        assert_same_rows(type(rows)(block([]), rows.row_ids), rows)


@cases(
    "make, message",
    [
        (lambda: da.zeros(3), "1 dimensions"),
        (lambda: da.zeros((0, 3)), "0 rows"),
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
    meta = pd.DataFrame(np.empty((0, 3), declared), columns=list("abc"))
    return dd.from_map(lambda i: pd.DataFrame(block(i), columns=list("abc")), range(3), meta=meta)


@cases("declared, held", [("i8", "f8"), ("f4", "f8"), ("u1", "i8"), ("f4", "i8")])
@cases("kind", ["array", "frame", "table"])
def test_a_block_of_a_type_that_would_be_cast_with_loss(kind, declared, held):
    X = of_other_type(kind, declared, held)
    source = open_source(X, columns=["c", "a"]) if kind == "table" else open_source(X)
    first, second, _ = source.chunks(1)
    assert len(source.read(first).X) == 10
    fits = open_source(of_other_type(kind, "f8", "i8"))
    np.testing.assert_array_equal(fits.read(fits.chunks(1)[1]).X, NUMBERS[10:20].astype("i8"))
    held, declared = np.dtype(held).name, np.dtype(declared).name
    message = f"row-block 1 of .* holds {held}; the array says {declared}: pass X.astype\\('{held}'\\)"
    if kind != "array":
        message = f"'{'c' if kind == 'table' else 'a'}' holds {held} in partition 1 of the dask data frame"
    with pytest.raises(InvalidInputError, match=message):
        source.read(second)


@cases("kind", ["array", "table"])
def test_a_block_of_another_type_on_workers(client, kind):
    X = of_other_type(kind, "i8", "f8")
    X = open_source(X, columns=["c", "a"]) if kind == "table" else X
    with pytest.raises(InvalidInputError, match=r"(row-block|in partition) [12] of"):
        StreamKMeans(2, executor=client, random_state=0).fit(X)
    if kind == "array":
        fixed = X.astype("float64")
        assert StreamKMeans(2, executor=client, random_state=0).fit(fixed).cluster_centers_.dtype == float


@cases("options", [{}, {"lock": True}, {"inline_array": True}])
def test_a_file_that_is_open_goes_to_workers(client, tmp_path, options):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = NUMBERS
    wanted = StreamKMeans(3, executor=1, random_state=0).fit(NUMBERS)
    with h5py.File(tmp_path / "x.h5") as file:
        X = da.from_array(file["X"], **{"chunks": (10, 3), **options})
        got = StreamKMeans(3, executor=client, random_state=0).fit(X)
    np.testing.assert_allclose(got.inertia_, wanted.inertia_)


NAMES = list("abcdefg")


def in_memory(X):
    """A pandas frame of the rows, its index that of the rows."""
    return pd.DataFrame(X, columns=NAMES)


def kmeans(**options):
    return StreamKMeans(3, random_state=0, executor=1, progress=False, **options)


class TestFrame(SourceContract):
    @pytest.fixture(params=["mixed", "nullable", "filtered", "bool", "sparse"])
    def opened(self, request):
        X = dense_matrix(dtype="f8")
        frame = in_memory(X)
        if request.param == "mixed":
            frame = frame.astype({"b": "i4", "c": "u1", "d": "f4"})
        elif request.param == "nullable":
            frame = frame.astype({"a": "Int64", "b": "Float32", "c": "UInt8", "d": "double[pyarrow]"})
        elif request.param == "sparse":
            frame = frame.astype({"a": pd.SparseDtype(float, 0)})
        elif request.param == "bool":
            frame = frame > 30
        made = dd.from_pandas(frame, npartitions=4)
        if request.param == "filtered":
            made, frame = made[made["a"] > 30], frame[frame["a"] > 30]
        return Opened(open_source(made), frame.to_numpy("u1" if request.param == "bool" else X.dtype))


@cases(
    "make, message",
    [
        (lambda: dd.from_pandas(pd.DataFrame({"a": [1.0], "t": ["x"]}), npartitions=1), "column 't' contains text"),
        (
            lambda: dd.from_pandas(pd.DataFrame({"t": pd.to_datetime(["2020"])}), npartitions=1),
            "column 't' has type timestamp",
        ),
        (lambda: dd.from_pandas(pd.DataFrame({"c": [1j]}), npartitions=1), "complex.*; rows must be real numbers"),
        (lambda: dd.from_pandas(pd.Series([1.0]), npartitions=1), "no Dask array or data frame"),
        (lambda: xr.DataArray(np.ones((3, 2))).chunk(), r"DataArray is no Dask array or data frame; .*X\.data"),
    ],
)
def test_what_has_no_rows_of_numbers(make, message):
    with pytest.raises(InvalidInputError, match=message):
        open_source(make())


def test_what_is_missing_counts_as_nan():
    X = dense_matrix(dtype="f8")
    X[[5, 30], [0, 3]] = np.nan
    made = dd.from_pandas(in_memory(X).astype({"a": "Int64", "d": "double[pyarrow]"}), npartitions=4)
    with pytest.raises(InvalidInputError, match=r"^NaN in column 'a', row 5 of block 0 of dask data frame; pass"):
        kmeans().fit(made)
    got, wanted = kmeans(invalid="skip").fit(made), kmeans(invalid="skip").fit(X)
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    assert sorted(np.flatnonzero(got.labels_ < 0)) == [5, 30]
    np.testing.assert_array_equal(got.predict(made).compute(scheduler="sync"), wanted.labels_)
    assert np.isnan(got.transform(made).compute(scheduler="sync")[[5, 30]]).all()


def frame_of(X, names=NAMES):
    return dd.from_pandas(pd.DataFrame(X, columns=names), npartitions=4)


def test_predictions_are_lazy_and_names_are_checked():
    X = dense_matrix(dtype="f8")
    made = frame_of(X)
    fitted = kmeans().fit(made)
    wanted = kmeans().fit(made.to_dask_array())
    np.testing.assert_array_equal(fitted.labels_, wanted.labels_)
    assert list(fitted.feature_names_in_) == NAMES
    assert fitted.n_features_in_ == 7
    labels, distances = fitted.predict(made), fitted.transform(made)
    for lazy in (labels, distances, fitted.dask_labels_):
        assert isinstance(lazy, da.Array)
        assert len(lazy.chunks[0]) == 4
    np.testing.assert_array_equal(labels.compute(scheduler="sync"), wanted.labels_)
    np.testing.assert_array_equal(distances.compute(scheduler="sync"), wanted.transform(X))
    np.testing.assert_array_equal(fitted.dask_labels_.compute(scheduler="sync"), wanted.labels_)
    with pytest.raises(ValueError, match="in another order than those of the fit"):
        fitted.predict(frame_of(X, NAMES[::-1]))
    fitted.fit(da.from_array(X, chunks=(20, 7)))
    assert not hasattr(fitted, "feature_names_in_")


def test_labels_are_a_column_of_the_frame():
    frame = frame_of(dense_matrix(dtype="f8"))
    fitted = kmeans().fit(frame)
    for labels in (fitted.predict(frame), fitted.dask_labels_):
        together = frame.assign(cluster=labels).compute(scheduler="sync")
        np.testing.assert_array_equal(together["cluster"], fitted.labels_)
        chosen = frame[frame.assign(cluster=labels)["cluster"] == 1].compute(scheduler="sync")
        assert len(chosen) == np.count_nonzero(fitted.labels_ == 1)


MOST_WALK_BYTES = 100_000
SENT_ROWS = 5_000


@pytest.fixture
def walk_bytes(monkeypatch):
    """Pickled size of every reader that was shared with workers."""
    sizes = []
    share = DaskCluster.share

    def measured(self, value):
        walks = [part for part in value if isinstance(part, RowReader)] if isinstance(value, tuple) else []
        sizes.extend(len(pickle.dumps(reader)) for reader in walks)
        return share(self, value)

    monkeypatch.setattr(DaskCluster, "share", measured)
    return sizes


def groups(n_rows=SENT_ROWS, d=64):
    """float32, 1.3 MB by default."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n_rows, d)) + 6 * (np.arange(n_rows) % 5)[:, None]).astype(np.float32)


def in_blocks(convert=None, columns=(20, 44)):
    """A Dask array (900, 64) with an empty row-block."""
    array = da.from_array(groups(900), chunks=((300, 0, 250, 350), columns))
    return array if convert is None else array.map_blocks(convert)


def frame():
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    return dd.from_pandas(pd.DataFrame(groups(900)), npartitions=4)


def coo(block):
    return pytest.importorskip("sparse").COO.from_numpy(block)


MADE = {
    "dask, heights unknown": lambda: unknown(in_blocks()),
    "dask, csr": lambda: in_blocks(sp.csr_matrix),
    "dask, sparse": lambda: in_blocks(coo),
    "dask frame": frame,
    "array": groups,
    "callable": lambda: lambda: iter(np.array_split(groups(9_000), 7)),
    "dask in a list": lambda: [da.from_array(groups(900), chunks=(300, 64)), groups(500)],
}


@pytest.mark.parametrize("kind", slow_but(["dask, csr", "dask frame", "array", "callable"], MADE))
def test_walks_are_small_and_results_the_same(client, walk_bytes, kind):
    X = MADE[kind]()
    got, wanted = (
        StreamKMeans(3, random_state=0, n_init=1, max_iter=5, tol=0, executor=executor).fit(X)
        for executor in (client, 2)
    )
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, wanted.cluster_centers_)
    assert got.inertia_ == wanted.inertia_
    np.testing.assert_array_equal(got.predict(X), wanted.labels_)
    assert len(walk_bytes) >= 2
    assert max(walk_bytes) < MOST_WALK_BYTES


def test_kernels_on_dask_arrays(client):
    array = in_blocks(sp.csr_matrix)
    options = {"n_landmarks": 60, "rank": 16, "random_state": 0, "progress": False}
    got, wanted = (StreamKernelKMeans(3, executor=executor, **options).fit(array) for executor in (client, 2))
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, wanted.cluster_centers_)
    assert got.inertia_ == wanted.inertia_
    lazy = got.predict(array)
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == array.chunks[:1]
    np.testing.assert_array_equal(client.compute(lazy).result(), wanted.labels_)


def spoiled(row=777, n_rows=1000):
    X = groups(n_rows, 4)
    X[row, 2] = np.nan
    return X


SPOILED = {
    "array": (spoiled, "row 777 of array"),
    "list": (lambda: [groups(500, 4), spoiled(7)], r"row 7 of array \(number 1 of the list\)"),
    "callable": (lambda: lambda: iter([groups(500, 4), spoiled(277)]), "row 777 of iterable of chunks"),
    "dask, unknown": (lambda: unknown(da.from_array(spoiled(), chunks=(250, 4))), "row 27 of block 3 of dask array"),
}


@pytest.mark.parametrize(
    ("where", "kind"),
    [("threads", "array"), ("threads", "list"), ("cluster", "callable"), ("cluster", "dask, unknown")],
)
def test_errors_on_workers_name_the_row(request, kind, where):
    make, place = SPOILED[kind]
    executor = request.getfixturevalue("client") if where == "cluster" else 2
    with pytest.raises(InvalidInputError, match=f"^NaN in {place}; pass invalid"):
        StreamKMeans(2, executor=executor, chunk_bytes=2_000).fit(make())


def test_what_lies_in_this_process(tmp_path):
    X, path = dense_matrix(), str(tmp_path / "x.npy")
    np.save(path, X)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = X
        assert open_source(file["X"]).access.in_process
    in_memory = zarr.storage.MemoryStore()
    zarr.create_array(in_memory, name="X", data=X)
    for held in (X, X.tolist(), sparse_matrix(), [X, X], iter([X]), lambda: iter([X]), zarr.open_group(in_memory)):
        assert open_source(held).access.in_process
    for stored in (path, [path] * 2, np.load(path, mmap_mode="r"), h5py.File(tmp_path / "x.h5", "r")):
        assert not open_source(stored).access.in_process


def test_blocks_that_lie_on_workers_are_read_there(client, monkeypatch):
    """Dask chooses the workers: this process would send blocks from one to another."""
    places = []
    submit = DaskCluster._submit

    def watched(self, stage, *rest, place=None):
        places.append((stage, place))
        return submit(self, stage, *rest, place=place)

    monkeypatch.setattr(DaskCluster, "_submit", watched)
    array = client.persist(da.from_array(groups(900), chunks=(90, 64)))
    StreamKMeans(5, random_state=0, progress=False, executor=client).fit(array)
    assert {place for stage, place in places if stage in ("sketch", "assign")} == {None}
