"""Dask data frames: read by blocks, with names, never loaded whole."""

from __future__ import annotations

import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from tests.contracts import Opened, SourceContract
from tests.sources.matrices import dense_matrix
from tests.tables import cases

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
xr = pytest.importorskip("xarray")

NAMES = list("abcdefg")


def in_memory(X):
    """A pandas frame of the rows, its index that of the rows."""
    return pd.DataFrame(X, columns=NAMES)


def kmeans(**options):
    return StreamKMeans(3, random_state=0, executor=1, progress=False, **options)


class TestFrame(SourceContract):
    @pytest.fixture(params=["float32", "mixed", "nullable", "arrow", "filtered", "bool", "sparse"])
    def opened(self, request):
        X = dense_matrix(dtype="f4" if request.param == "float32" else "f8")
        frame = in_memory(X)
        if request.param == "mixed":
            frame = frame.astype({"b": "i4", "c": "u1", "d": "f4"})
        elif request.param == "nullable":
            frame = frame.astype({"a": "Int64", "b": "Float32", "c": "UInt8"})
        elif request.param == "sparse":
            frame = frame.astype({"a": pd.SparseDtype(float, 0)})
        elif request.param == "arrow":
            frame = frame.astype({"a": "int64[pyarrow]", "b": "double[pyarrow]"})
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
        (lambda: xr.DataArray(np.ones((3, 2))), r"DataArray is no Dask array or data frame; .*X\.data"),
        (lambda: xr.DataArray(np.ones((3, 2))).chunk(), r"DataArray is no Dask array or data frame; .*X\.data"),
    ],
)
def test_what_has_no_rows_of_numbers(make, message):
    with pytest.raises(InvalidInputError, match=message):
        open_source(make())


def test_partitions_are_read_one_by_one():
    """And never together: a frame may be larger than memory."""
    read = []

    def note(part, partition_info=None):
        read.append(partition_info["number"] if partition_info else None)
        return part

    frame = dd.from_pandas(in_memory(dense_matrix(dtype="f8")), npartitions=4)
    source = open_source(frame.map_partitions(note, meta=frame._meta))
    chunks = source.chunks(1)
    assert not read
    source.read(chunks[2])
    assert read == [2]


def spoiled(dtypes):
    """Integers that may be missing: in rows 5 and 30 they are."""
    X = dense_matrix(dtype="f8").round()
    X[[5, 30], [0, 3]] = np.nan
    return X, in_memory(X).astype(dtypes)


@pytest.mark.parametrize("dtypes", ["Int64", {"a": "Int64", "d": "double[pyarrow]"}])
def test_what_is_missing_counts_as_nan(dtypes):
    X, frame = spoiled(dtypes)
    made = dd.from_pandas(frame, npartitions=4)
    with pytest.raises(
        InvalidInputError, match=r"^NaN in column 'a', row 5 of block 0 of dask data frame; pass invalid"
    ):
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
    with pytest.raises(ValueError, match="in another order than those of the fit"):
        fitted.score(frame_of(X, NAMES[::-1]))
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(in_memory(X)[NAMES[::-1]])
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
