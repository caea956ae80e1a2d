"""Tables of Delta Lake and Iceberg: the rows that their logs name, and no others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from streamkm import StreamKMeans
from streamkm.core.exceptions import SourceError
from streamkm.sources import open_source
from tests.contracts import assemble

N = 300
REGIONS = np.array(["north", "south", "west"])[np.arange(N) % 3]
FRAME = pd.DataFrame({"id": [f"r{row}" for row in range(N)], "x": np.arange(N) * 1.0, "region": REGIONS})
OPTIONS = {"id_column": "id", "categories": "onehot"}
FEATURES = ("x", "region=north", "region=south", "region=west")


def check_fit(X):
    """Fit the 200 rows that are left of a table, and label them again."""
    source = open_source(X, **OPTIONS)
    assert source.feature_names == FEATURES
    rows = assemble(source.stream(1000), 4)
    assert sorted(rows[:, 0]) == list(range(100, N))
    wanted = np.column_stack([REGIONS[rows[:, 0].astype(int)] == region for region in ("north", "south", "west")])
    np.testing.assert_array_equal(rows[:, 1:], wanted)
    assert sum(len(piece) for piece in source.ids()) == 200
    model = StreamKMeans(3, random_state=0, progress=False).fit(source)
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_delta_lake(tmp_path):
    deltalake = pytest.importorskip("deltalake")
    table = pa.Table.from_pandas(FRAME)
    deltalake.write_deltalake(tmp_path, table[:200], partition_by=["region"])
    deltalake.write_deltalake(tmp_path, table[200:], mode="append")
    opened = deltalake.DeltaTable(tmp_path)
    opened.delete("x < 100")
    check_fit(opened.to_pyarrow_dataset())
    with pytest.raises(SourceError, match="is a table of Delta Lake"):
        open_source(tmp_path, **OPTIONS)


@pytest.mark.filterwarnings("ignore:Iceberg scan planning", "ignore::DeprecationWarning")
def test_iceberg(tmp_path):
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("sales")
    frame = pa.Table.from_pandas(FRAME)
    table = catalog.create_table("sales.customers", schema=frame.schema)
    table.append(frame[:200])
    table.append(frame[200:])
    table.delete("x < 100")
    check_fit(pl.scan_iceberg(table))
    with pytest.raises(SourceError, match="is a table of Iceberg"):
        open_source(tmp_path / "sales" / "customers", **OPTIONS)


@pytest.mark.parametrize(
    ("log", "name"), [("_delta_log/00000000000000000000.json", "Delta Lake"), ("metadata/v1.metadata.json", "Iceberg")]
)
def test_folders_with_a_log_are_refused(log, name, tmp_path):
    parquet.write_table(pa.Table.from_pandas(FRAME), tmp_path / "part.parquet")
    (tmp_path / log).parent.mkdir()
    assert open_source(tmp_path, **OPTIONS).n_rows == N
    (tmp_path / log).write_text("{}")
    with pytest.raises(SourceError, match=rf"is a table of {name}, .* deleted since; pass .*path\)"):
        open_source(tmp_path, **OPTIONS)
    assert open_source(f"{tmp_path}/**/*.parquet", **OPTIONS).n_rows == N
