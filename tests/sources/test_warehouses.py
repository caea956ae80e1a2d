"""Tables of Delta Lake and Iceberg: the rows that their logs name, and no others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from streamkm.core.exceptions import SourceError
from streamkm.sources import open_source

N = 300
REGIONS = np.array(["north", "south", "west"])[np.arange(N) % 3]
FRAME = pd.DataFrame({"id": [f"r{row}" for row in range(N)], "x": np.arange(N) * 1.0, "region": REGIONS})
OPTIONS = {"id_column": "id", "categories": "onehot"}


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
