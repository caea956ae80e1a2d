"""Dates and times of tables as days since 1970."""

from __future__ import annotations

import datetime as dt

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
from streamkm.sources.arrow import number_values
from tests.contracts import assemble
from tests.tables import cases

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
    return path if kind in FILES else IN_MEMORY[kind](frame)


FILES = ["csv", "csv.gz", "parquet", "arrow"]
IN_MEMORY = {
    "pandas": lambda frame: frame,
    "pandas days": lambda frame: frame.assign(day=pd.to_datetime(frame["day"])),
    "dask": lambda frame: dd.from_pandas(frame.assign(day=pd.to_datetime(frame["day"])), npartitions=4),
    "lazy": lambda _: pl.from_arrow(TABLE).lazy(),
    "duckdb": lambda _: duckdb.from_arrow(TABLE),
    "pyarrow": lambda _: TABLE,
}


@cases("kind", [*FILES, *IN_MEMORY])
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
