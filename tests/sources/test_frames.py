"""Frames of named columns by the Arrow protocols, reordered ones refused; dates and times as days since 1970."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.arrow import number_values, validity
from tests.contracts import assemble
from tests.tables import cases

NAMES = ("a", "b", "c")
X = np.arange(12.0).reshape(4, 3)


class OnlyArrow:
    """A frame that offers nothing but an Arrow stream, as those of databases do."""

    def __init__(self, table):
        self._table = table
        self.shape, self.columns = table.shape, table.column_names

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def whole(source):
    return assemble(source.stream(1 << 20), len(NAMES))


def table(values, names=NAMES):
    return pa.table(dict(zip(names, values.T, strict=True)))


FRAMES = {
    "pandas": lambda values, names=NAMES: pd.DataFrame(values, columns=list(names)),
    "polars": lambda values, names=NAMES: pl.DataFrame(values, schema=list(names)),
    "pyarrow": table,
    "arrow alone": lambda values, names=NAMES: OnlyArrow(table(values, names)),
}


@cases("kind", FRAMES)
@cases("dtype", ["f4", "i8"])
def test_values_and_names(kind, dtype):
    source = open_source(FRAMES[kind](X.astype(dtype)))
    assert source.feature_names == NAMES
    assert source.dtype == dtype
    np.testing.assert_array_equal(whole(source), X)


@cases("kind", ["pandas", "arrow alone"])
def test_a_fitted_model_knows_its_columns(kind):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3))
    rows[30:, 2] += 20
    fitted = StreamKMeans(2, random_state=0, progress=False).fit(FRAMES[kind](rows))
    assert tuple(fitted.feature_names_in_) == NAMES
    np.testing.assert_array_equal(fitted.labels_, np.repeat(fitted.labels_[[0, 30]], 30))
    np.testing.assert_array_equal(fitted.predict(FRAMES[kind](rows)), fitted.labels_)
    for method in ("predict", "transform", "score"):
        for names in (("c", "b", "a"), ("a", "b", "z")):
            with pytest.raises(ValueError, match="feature names"):
                getattr(fitted, method)(FRAMES[kind](rows, names))


def test_a_fit_forgets_the_names_of_the_fit_before():
    model = StreamKMeans(2, random_state=0, progress=False).fit(FRAMES["polars"](X))
    model.fit([X[:2], X[2:]])
    assert not hasattr(model, "feature_names_in_")
    with pytest.warns(UserWarning, match="fitted without feature names"):
        model.predict(FRAMES["polars"](X))


def test_frames_one_after_the_other():
    first, second = FRAMES["polars"](X[:2]), FRAMES["polars"](X[2:])
    swapped = second.select(["b", "a", "c"])
    for held in ([first, second], lambda: iter([first, second])):
        assert open_source(held).feature_names == NAMES
        np.testing.assert_array_equal(whole(open_source(held)), X)
    np.testing.assert_array_equal(whole(open_source([first, swapped])), X)
    np.testing.assert_array_equal(whole(open_source(lambda: iter([first, swapped]))), X)


IN_MEMORY = {
    "pyarrow": lambda table: table,
    "polars": pl.from_arrow,
    "pandas of Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas of objects": lambda table: table.to_pandas(),
    "arrow alone": OnlyArrow,
}


@cases("kind", IN_MEMORY)
def test_decimals_are_the_nearest_floats_and_columns_of_nulls_alone_nan(kind):
    decimals = pa.array([Decimal("0.3"), Decimal("-0.7")], pa.decimal128(9, 3))
    frame = IN_MEMORY[kind](pa.table({"a": decimals, "b": pa.nulls(2)}))
    for held in (frame, [frame], lambda: iter([frame])):
        assert open_source(held).feature_names == ("a", "b")
        np.testing.assert_array_equal(assemble(open_source(held).stream(1 << 20), 2), [[0.3, np.nan], [-0.7, np.nan]])
    with pytest.raises(InvalidInputError, match=r"NaN in .*row 0 of data frame"):
        StreamKMeans(1, progress=False).fit(frame)


def test_what_is_refused_in_frames():
    for frame in (pd.DataFrame(X, columns=["a", "b", "a"]), pa.table(list(X.T), names=["a", "b", "a"])):
        with pytest.raises(InvalidInputError, match="data frame: column 'a' is there twice; rename one"):
            open_source(frame)
    numerals = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [None, "12", "13"]})
    with pytest.raises(InvalidInputError, match=r"data frame: column 'b' contains text \('12' in row 1\)"):
        open_source(numerals)


def test_a_frame_of_sparse_columns_is_csr():
    frame = pd.get_dummies(pd.Series(list("abcb") * 5), sparse=True, dtype="bool")
    dense = frame.sparse.to_dense().to_numpy(np.float64)
    for held in (frame, lambda: iter([frame])):
        source = open_source(held)
        assert source.is_sparse
        np.testing.assert_array_equal(assemble(source.stream(64), 3), dense)
    assert open_source(frame).feature_names == tuple("abc")
    fitted = StreamKMeans(3, random_state=0, progress=False).fit(frame)
    assert list(fitted.feature_names_in_) == list("abc")
    assert fitted.inertia_ == 0
    np.testing.assert_array_equal(fitted.predict(frame), fitted.labels_)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[["c", "b", "a"]])


@cases("fill", [0.0, 1.0])
def test_sparse_columns_beside_others_are_csr(fill):
    """Without the whole as one array, of which scikit-learn warns."""
    values = np.random.default_rng(0).integers(0, 2, (40, 2)).astype(float)
    frame = pd.DataFrame(values, columns=["a", "b"]).astype(pd.SparseDtype(float, fill))
    if fill == 0:
        frame = frame.assign(c=np.arange(40))
        values = np.column_stack([values, np.arange(40)])
    source = open_source(frame)
    assert source.is_sparse
    assert len(source.chunks(100)) > 5
    np.testing.assert_array_equal(assemble(source.stream(100), values.shape[1]), values)


def test_a_frame_that_speaks_arrow_alone_asks_for_pyarrow():
    """In a process of its own, which cannot import it."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from streamkm import open_source\n"
        "class Frame:\n"
        "    shape, columns = (2, 1), ['a']\n"
        "    def __arrow_c_stream__(self, requested_schema=None): raise AssertionError\n"
        "try: open_source(Frame())\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Frame is read by pyarrow: pip install 'streamkm[tables]'" in done.stdout


@cases("length", [1, 8, 9, 200])
def test_null_bits_of_any_slice(length):
    """Bits of an Arrow array that begins within a byte."""
    known = np.random.default_rng(0).random(400) < 0.7
    values = pa.array(np.arange(400.0), mask=~known)
    for offset in range(0, 200, 3):
        np.testing.assert_array_equal(validity(values.slice(offset, length)), known[offset : offset + length])


N = 90
START = dt.datetime(2020, 2, 27, 6)
MOMENTS = [START + dt.timedelta(hours=12 * row + 4000 * (row % 3)) for row in range(N)]
DAYS = [moment.date() if row != 4 else None for row, moment in enumerate(MOMENTS)]
NUMBERS = np.arange(N, dtype=float)
TABLE = pa.table({"day": pa.array(DAYS), "moment": pa.array(MOMENTS, pa.timestamp("us")), "x": NUMBERS})


def naive_days(value):
    """Days since 1970 in Python's own arithmetic."""
    if value is None:
        return np.nan
    if isinstance(value, dt.datetime):
        return (value - dt.datetime(1970, 1, 1, tzinfo=value.tzinfo)) / dt.timedelta(days=1)
    if isinstance(value, dt.date):
        return float((value - dt.date(1970, 1, 1)).days)
    if isinstance(value, dt.time):
        value = dt.timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
        )
    return value / dt.timedelta(days=1)


WANTED = np.column_stack([list(map(naive_days, DAYS)), list(map(naive_days, MOMENTS)), NUMBERS])


def written(kind, folder):
    """The table in a file, a frame or a database."""
    frame, path = TABLE.to_pandas(), folder / f"x.{kind}"
    if kind.startswith("csv"):
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        parquet.write_table(TABLE, path, row_group_size=16)
    elif kind == "arrow":
        feather.write_feather(TABLE, path, compression="uncompressed")
    return path if kind in FILES else DATED[kind](frame)


FILES = ["csv", "csv.gz", "parquet", "arrow"]
DATED = {
    "pandas": lambda frame: frame,
    "pandas days": lambda frame: frame.assign(day=pd.to_datetime(frame["day"])),
    "dask": lambda frame: dd.from_pandas(frame.assign(day=pd.to_datetime(frame["day"])), npartitions=4),
    "lazy": lambda _: pl.from_arrow(TABLE).lazy(),
    "duckdb": lambda _: duckdb.from_arrow(TABLE),
    "pyarrow": lambda _: TABLE,
}


@cases("kind", [*FILES, *DATED])
def test_every_kind_of_table_gives_the_same_days(kind, tmp_path):
    source = open_source(written(kind, tmp_path), dates="days")
    assert source.feature_names == ("day", "moment", "x")
    assert source.dtype == np.float64
    np.testing.assert_array_equal(assemble(source.stream(1000), 3), WANTED)


MOMENT = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))


@given(
    st.lists(st.none() | MOMENT, min_size=1, max_size=20),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from([None, "UTC", "Europe/Berlin"]),
)
def test_moments_of_every_unit(values, unit, zone):
    rounded = [value and value.replace(microsecond=0) for value in values]
    found = number_values(pa.array(rounded, pa.timestamp(unit, zone)))
    np.testing.assert_allclose(found, list(map(naive_days, rounded)), rtol=1e-15, atol=1e-15)


@given(st.lists(st.none() | st.times(), min_size=1, max_size=20), st.lists(st.none() | st.dates(), max_size=20))
def test_times_of_day_dates_and_durations(times, dates):
    for unit in ("us", "ns"):
        np.testing.assert_allclose(
            number_values(pa.array(times, pa.time64(unit))), list(map(naive_days, times)), rtol=1e-15
        )
    for kind in (pa.date32(), pa.date64()):
        np.testing.assert_array_equal(number_values(pa.array(dates, kind)), list(map(naive_days, dates)))
    spans = [value and dt.timedelta(hours=value.hour, microseconds=value.microsecond) for value in times]
    found = number_values(pa.array(spans, pa.duration("us")).slice(1))
    np.testing.assert_allclose(found, list(map(naive_days, spans[1:])), rtol=1e-15)
    assert np.isnan(number_values(pa.array([None], pa.timestamp("s")))).all()
    assert number_values(pa.array([dt.date(1970, 1, 3)] * 2).dictionary_encode()).tolist() == [2.0, 2.0]


@cases("kind", [*FILES, "duckdb", "pyarrow", "pandas days"])
def test_without_the_option_they_are_refused(kind, tmp_path):
    with pytest.raises(InvalidInputError, match=r"column 'day' .*dates=\"days\""):
        open_source(written(kind, tmp_path))


def test_refusals(tmp_path):
    with pytest.raises(InvalidParameterError, match=r"dates='months'; needed: \"days\""):
        open_source(TABLE, dates="months")
    with pytest.raises(InvalidParameterError, match=r"dates= does not apply to an array"):
        open_source(np.eye(3), dates="days")
    with pytest.raises(TypeError, match=r"open_source\(X, dates=\"days\"\)"):
        StreamKMeans(3).fit(written("pandas days", tmp_path))
    path = tmp_path / "x.csv"
    path.write_text("day,x\n" + "2020-01-01,1\n" * 100_000 + "soon,2\n")
    with pytest.raises(
        InvalidInputError, match=r"line 100,002 .*column 'day' holds 'soon', and its first rows are of type timestamp"
    ):
        list(open_source(path, dates="days").stream(1 << 30))


def test_later_tables_are_read_alike(tmp_path):
    source = open_source(written("csv", tmp_path), columns=["moment", "x"], dates="days")
    model = StreamKMeans(3, random_state=0, progress=False).fit(source)
    model.save(tmp_path / "model.npz")
    loaded, columns = StreamKMeans.load(tmp_path / "model.npz"), TABLE.select(["moment", "x"])
    for same in (written("parquet", tmp_path), TABLE, columns.to_pandas(), columns, pl.from_arrow(columns)):
        np.testing.assert_array_equal(loaded.predict(same), model.labels_)
    with pytest.raises(InvalidInputError, match="days of dates"):
        model.to_sql("duckdb", table="t")
