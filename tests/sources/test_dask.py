"""Dask arrays: dense and sparse blocks, several column blocks, empty blocks, heights that are not known."""

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

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from tests.contracts import Opened, SourceContract, assert_same_rows
from tests.sources.matrices import dense_matrix, sparse_matrix, unknown
from tests.tables import cases

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
        assert_same_rows(type(rows)(block([]), rows.places), rows)


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


@cases("kind", ["array", "frame", "table"])
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
