"""Dates and times of tables as days since 1970."""

from __future__ import annotations

import datetime as dt
import gzip

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

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources import open_source
from streamkm.sources.arrow import kind_of_column, number_values
from tests.contracts import Opened, SourceContract, assemble

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
    frame = TABLE.to_pandas()
    if kind == "csv":
        frame.to_csv(folder / "x.csv", index=False)
        return folder / "x.csv"
    if kind == "csv.gz":
        (folder / "x.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
        return folder / "x.csv.gz"
    if kind == "parquet":
        parquet.write_table(TABLE, folder / "x.parquet", row_group_size=16)
        return folder / "x.parquet"
    if kind == "arrow":
        feather.write_feather(TABLE, folder / "x.arrow", compression="uncompressed")
        return folder / "x.arrow"
    if kind == "dask":
        return dd.from_pandas(frame.assign(day=pd.to_datetime(frame["day"])), npartitions=4)
    return {
        "pandas": lambda: frame,
        "pandas days": lambda: frame.assign(day=pd.to_datetime(frame["day"])),
        "polars": lambda: pl.from_arrow(TABLE),
        "lazy": lambda: pl.from_arrow(TABLE).lazy(),
        "duckdb": lambda: duckdb.from_arrow(TABLE),
        "pyarrow": lambda: TABLE,
    }[kind]()


FILES = ["csv", "parquet", "arrow"]
OTHERS = ["csv.gz", "pandas", "pandas days", "polars", "lazy", "duckdb", "pyarrow", "dask"]


class TestFiles(SourceContract):
    @pytest.fixture(params=FILES)
    def opened(self, request, tmp_path):
        return Opened(open_source(written(request.param, tmp_path), dates="days"), WANTED)


@pytest.mark.parametrize("kind", [*FILES, *OTHERS])
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


def test_months_are_no_days():
    assert kind_of_column(pa.month_day_nano_interval())[0] == ""
    assert kind_of_column(pa.dictionary(pa.int8(), pa.date32()))[0] == "date"


@pytest.mark.parametrize("kind", [*FILES, "csv.gz", "duckdb", "pyarrow", "polars", "pandas days"])
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


def test_dates_as_text_are_told_from_categories():
    """A frame that pandas read without parse_dates has text, which dates="days" does not take."""
    frame = pd.DataFrame({"day": ["2024-01-31", "2024-02-01"], "x": [1.0, 2.0]})
    with pytest.raises(InvalidInputError, match=r"contains text .'2024-01-31' in row 0"):
        open_source(frame, dates="days")
    converted = frame.assign(day=pd.to_datetime(frame["day"]))
    np.testing.assert_array_equal(next(open_source(converted, dates="days").stream(1 << 20)).X[:, 0], [19753, 19754])


class TestModels:
    @pytest.mark.parametrize("kind", ["csv", "parquet", "pandas"])
    def test_later_tables_are_read_alike(self, kind, tmp_path):
        source = open_source(written(kind, tmp_path), columns=["moment", "x"], dates="days")
        model = StreamKMeans(3, random_state=0, progress=False).fit(source)
        model.save(tmp_path / "model.npz")
        loaded = StreamKMeans.load(tmp_path / "model.npz")
        np.testing.assert_array_equal(loaded.predict(written(kind, tmp_path)), model.labels_)
        np.testing.assert_array_equal(loaded.predict(TABLE), model.labels_)
        columns = TABLE.select(["moment", "x"])
        for same in (columns.to_pandas(), columns, pl.from_arrow(columns)):
            np.testing.assert_array_equal(loaded.predict(same), model.labels_)
        with pytest.raises(InvalidInputError, match="days of dates"):
            model.to_sql("duckdb", table="t")
