"""Messages name the column, the row and a remedy; the tests do what the remedy says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.lib.recfunctions import structured_to_unstructured

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.metrics.drift_report import _apart

X = np.random.default_rng(0).normal(size=(40, 2))


def fit(rows, **given):
    return StreamKMeans(2, random_state=0, progress=False, **given).fit(rows)


def refused(rows, *words, **given):
    with pytest.raises(InvalidInputError) as error:
        fit(rows, **given)
    for word in words:
        assert word in str(error.value)


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "x.csv"
        path.write_text(text)
        return str(path)

    return write


def test_values_that_are_missing():
    rows = X.copy()
    rows[5, 1] = np.nan
    refused(rows, "row 5", 'invalid="skip"', 'invalid="mean"')
    assert fit(rows, invalid="mean").missing_.most == 1 / 40
    rows[:, 1] = np.nan
    refused(rows, "column 1 has no value in the first 40 rows: leave it out", invalid="skip")
    refused(pd.DataFrame(rows, columns=["a", "b"]), "column 'b' has no value", invalid="skip")
    with pytest.warns(StreamkmWarning, match="feature b has no value in any row and is filled with 0"):
        fit(pd.DataFrame(rows, columns=["a", "b"]), invalid="mean")
    fit(rows[:, :1], invalid="skip")


def test_masked_blocks_of_dask():
    da = pytest.importorskip("dask.array")
    rows = da.ma.masked_greater(da.from_array(X, chunks=(20, 2)), 1.0)
    refused(rows, "masked", "da.ma.filled(X.astype(float), np.nan)")
    fit(da.ma.filled(rows.astype(float), np.nan), invalid="skip")


def test_records(tmp_path):
    rows = np.array([(1.0, 2.0), (3.0, 5.0)] * 9, dtype=[("a", "<f8"), ("b", "<f8")])
    np.save(tmp_path / "x.npy", rows)
    refused(str(tmp_path / "x.npy"), "holds records", "numpy.lib.recfunctions.structured_to_unstructured(")
    assert fit(structured_to_unstructured(rows)).n_features_in_ == 2


def test_genes_without_names():
    ad = pytest.importorskip("anndata")
    cells = ad.AnnData(np.random.default_rng(0).poisson(1, (50, 20)).astype("f4"))
    with pytest.raises(InvalidParameterError, match=r"set adata\.var_names"):
        open_source(cells, genes=["gene3", "gene1"])
    cells.var_names = [f"gene{i}" for i in range(20)]
    assert fit(open_source(cells, genes=["gene3", "gene1"])).n_features_in_ == 2


def test_decimal_commas(write):
    path = write('a,b\n"1,5",2\n"2,5",3\n')
    refused(path, "column 'a'", "'1,5' in row 0", 'pandas.read_csv(path, decimal=",")')
    fit(pd.read_csv(path, decimal=","))


@pytest.mark.parametrize("mark", [" ", ";", "\t"])
def test_another_delimiter(write, mark):
    path = write("a b\n1 2\n3 4\n5 6\n".replace(" ", mark))
    refused(path, "column 'a", "delimiter=")
    assert fit({"path": path, "delimiter": mark}).n_features_in_ == 2


def test_a_column_of_words_is_not_separated_by_spaces(write):
    path = write("first name\nAnn Lee\nBo Li\n")
    assert fit({"path": path, "categories": "onehot"}).n_features_in_ == 2


def test_a_comment_above_the_names(write):
    path = write("# made by me\na,b\n1,2\n3,4\n")
    refused(path, "line 2", "remove comments above the names")
    fit(write("a,b\n1,2\n3,4\n"))


def test_delimiters_at_the_ends_of_lines(write):
    refused(write("a,b\n1,2,\n3,4,\n"), "line 2", "remove", "a delimiter at the end of a line")
    path = write("a,b,\n1,2,\n3,4,\n")
    refused(path, "column ''", "lines end in a delimiter", "columns=")
    assert fit({"path": path, "columns": ["a", "b"]}).n_features_in_ == 2


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [(1.0, 2.0, "1 to 2"), (18281.2, 18284.9, "18281.2 to 18284.9"), (1.7e9, 1.7e9 + 12, "1700000000 to 1700000012")],
)
def test_means_are_told_apart(before, now, told):
    assert _apart(before, now) == told
