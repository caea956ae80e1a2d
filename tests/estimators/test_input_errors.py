"""Wrong values in memory: one line that names the place and a remedy; tests do what the remedy says; missing values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.lib.recfunctions import structured_to_unstructured

from streamkm import IncrementalKMeans, StreamKernelKMeans, StreamKMeans, open_source, sweep
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.metrics.drift_report import _apart
from tests.tables import cases

ROWS = np.random.default_rng(0).normal(size=(40, 3))


def objects(value):
    X = ROWS.astype(object)
    X[5, 1] = value
    return X


TRIPS = pd.DataFrame({"miles": ROWS[:, 0], "payment": ["card", "cash"] * 20, "fare": ROWS[:, 1]})
REFUSED = {
    "text": (
        np.array([["1", "a"], ["2", "b"]]),
        r"column 1 of the array contains the text 'a' in row 0; features must be numbers.*Drop or encode",
    ),
    "bytes": (np.array([[b"x", b"2"]]), r"column 0 of the array contains b'x' in row 0"),
    "text among objects": (objects("card"), r"column 1 of the array contains the text 'card' in row 5"),
    "frame of text": (
        TRIPS,
        r"column 'payment' of the data frame contains the text 'card' in row 0.*Drop or encode.*open_source\(X,",
    ),
}


def fit(X):
    StreamKMeans(2, random_state=0, progress=False).fit(X)


def predict(X):
    fitted = pd.DataFrame(ROWS[:, : X.shape[1]], columns=X.columns) if isinstance(X, pd.DataFrame) else ROWS
    StreamKMeans(2, random_state=0, progress=False).fit(fitted).predict(X)


def plan(X):
    StreamKMeans(2, random_state=0, progress=False).plan(X)


def fit_by_kernel(X):
    StreamKernelKMeans(2, random_state=0, progress=False).fit(X)


@cases("name", list(REFUSED))
@cases("method", [fit, predict, plan, fit_by_kernel])
def test_what_is_wrong_is_one_clear_line(name, method):
    X, wanted = REFUSED[name]
    with pytest.raises(InvalidInputError, match=wanted) as caught:
        method(X)
    assert "\n" not in str(caught.value)


DATES = pd.DataFrame({"x": ROWS[:, 0], "day": pd.date_range("2020-01-01", periods=40)})


@cases(
    "X, wanted",
    [
        (objects({"a": 1}), r"^column 1 of the array contains \{'a': 1\} in row 5; .*argument must be a string or"),
        (DATES, r"column 'day' of the data frame has type datetime64.*Drop or convert that column"),
    ],
)
def test_what_can_be_no_number_stays_a_type_error(X, wanted):
    with pytest.raises(TypeError, match=wanted) as caught:
        fit(X)
    assert "\n" not in str(caught.value)


@cases(
    "X, wanted",
    [
        (ROWS[:, 0], "Expected 2D array, got 1D"),
        (ROWS[:, :, None], "Found array with dim 3"),
        (ROWS + 1j, "Complex data not supported"),
        (sp.csr_array(ROWS + 1j), "Complex data not supported"),
        ([[1.0, 2.0], [1.0, 2.0], [3.0]], "inhomogeneous shape"),
    ],
)
def test_other_layouts_are_refused_in_the_words_of_scikit_learn(X, wanted):
    with pytest.raises(ValueError, match=wanted):
        fit(X)


def test_what_is_right_is_not_looked_at_again():
    """Numbers as objects, missing values among them, and frames: as before."""
    with pytest.raises(InvalidInputError, match=r"NaN in row 5 of array"):
        fit(objects(None))
    frame = pd.DataFrame(ROWS, columns=["a", "b", "c"])
    assert StreamKMeans(2, random_state=0, progress=False).fit(frame.astype(object)).n_features_in_ == 3
    with pytest.raises(ValueError, match="X has 2 features, but StreamKMeans is expecting 3"):
        predict(ROWS[:, :2])


def test_frames_are_called_frames():
    """In what a model remembers, in plans and in messages; an array is an array."""
    frame = pd.DataFrame(ROWS, columns=["a", "b", "c"])
    fitted = StreamKMeans(2, random_state=0, progress=False).fit(frame)
    assert fitted.fitted_on_["name"] == fitted.plan_.source == fitted.plan(frame).source == "data frame"
    assert StreamKMeans(2, random_state=0, progress=False).fit(ROWS).fitted_on_["name"] == "array"
    assert np.array_equal(fitted.labels_, StreamKMeans(2, random_state=0, progress=False).fit(ROWS).labels_)
    frame.iloc[7, 1] = np.nan
    with pytest.raises(InvalidInputError, match=r"NaN in .*row 7 of data frame"):
        fitted.fit(frame)


X = np.random.default_rng(0).normal(size=(40, 2))


def plain_fit(rows, **given):
    return StreamKMeans(2, random_state=0, progress=False, **given).fit(rows)


def refused(rows, *words, **given):
    with pytest.raises(InvalidInputError) as error:
        plain_fit(rows, **given)
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
    assert plain_fit(rows, invalid="mean").missing_.most == 1 / 40
    rows[:, 1] = np.nan
    refused(rows, "column 1 has no value in the first 40 rows: leave it out", invalid="skip")
    refused(pd.DataFrame(rows, columns=["a", "b"]), "column 'b' has no value", invalid="skip")
    with pytest.warns(StreamkmWarning, match="feature b has no value in any row and is filled with 0"):
        plain_fit(pd.DataFrame(rows, columns=["a", "b"]), invalid="mean")
    plain_fit(rows[:, :1], invalid="skip")


def test_masked_blocks_of_dask():
    da = pytest.importorskip("dask.array")
    rows = da.ma.masked_greater(da.from_array(X, chunks=(20, 2)), 1.0)
    refused(rows, "masked", "da.ma.filled(X.astype(float), np.nan)")
    plain_fit(da.ma.filled(rows.astype(float), np.nan), invalid="skip")


def test_records(tmp_path):
    rows = np.array([(1.0, 2.0), (3.0, 5.0)] * 9, dtype=[("a", "<f8"), ("b", "<f8")])
    np.save(tmp_path / "x.npy", rows)
    refused(str(tmp_path / "x.npy"), "holds records", "numpy.lib.recfunctions.structured_to_unstructured(")
    assert plain_fit(structured_to_unstructured(rows)).n_features_in_ == 2


def test_genes_without_names():
    ad = pytest.importorskip("anndata")
    cells = ad.AnnData(np.random.default_rng(0).poisson(1, (50, 20)).astype("f4"))
    with pytest.raises(InvalidParameterError, match=r"set adata\.var_names"):
        open_source(cells, genes=["gene3", "gene1"])
    cells.var_names = [f"gene{i}" for i in range(20)]
    assert plain_fit(open_source(cells, genes=["gene3", "gene1"])).n_features_in_ == 2


def test_decimal_commas(write):
    path = write('a,b\n"1,5",2\n"2,5",3\n')
    refused(path, "column 'a'", "'1,5' in row 0", 'pandas.read_csv(path, decimal=",")')
    plain_fit(pd.read_csv(path, decimal=","))


@pytest.mark.parametrize("mark", [" ", ";", "\t"])
def test_another_delimiter(write, mark):
    path = write("a b\n1 2\n3 4\n5 6\n".replace(" ", mark))
    refused(path, "column 'a", "delimiter=")
    assert plain_fit({"path": path, "delimiter": mark}).n_features_in_ == 2


def test_a_column_of_words_is_not_separated_by_spaces(write):
    path = write("first name\nAnn Lee\nBo Li\n")
    assert plain_fit({"path": path, "categories": "onehot"}).n_features_in_ == 2


def test_a_comment_above_the_names(write):
    path = write("# made by me\na,b\n1,2\n3,4\n")
    refused(path, "line 2", "remove comments above the names")
    plain_fit(write("a,b\n1,2\n3,4\n"))


def test_delimiters_at_the_ends_of_lines(write):
    refused(write("a,b\n1,2,\n3,4,\n"), "line 2", "remove", "a delimiter at the end of a line")
    path = write("a,b,\n1,2,\n3,4,\n")
    refused(path, "column ''", "lines end in a delimiter", "columns=")
    assert plain_fit({"path": path, "columns": ["a", "b"]}).n_features_in_ == 2


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [(1.0, 2.0, "1 to 2"), (18281.2, 18284.9, "18281.2 to 18284.9"), (1.7e9, 1.7e9 + 12, "1700000000 to 1700000012")],
)
def test_means_are_told_apart(before, now, told):
    assert _apart(before, now) == told


PAGE = Path(__file__).parents[2] / "examples" / "guide" / "scaling.md"
QUIET = {"random_state": 0, "progress": False}


def holed(n_rows=400):
    """Three groups with holes; every row has a value."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 5)) + 6 * rng.integers(0, 3, (n_rows, 1))
    X[:, 1:][rng.random((n_rows, 4)) < 0.1] = np.nan
    return X


GROUPS = holed()
FRAME = pd.DataFrame(GROUPS, columns=list("abcde"))


def fitted(invalid, rows=GROUPS, weights=None, **given):
    return StreamKMeans(3, invalid=invalid, **QUIET, **given).fit(rows, sample_weight=weights).labels_


TRIED = {
    "dense rows": fitted,
    "tables": lambda invalid: fitted(invalid, FRAME),
    "sparse rows": lambda invalid: fitted(invalid, sp.csr_array(GROUPS)),
    "rows that can be read only once": lambda invalid: fitted(invalid, iter([GROUPS])),
    "`sample_weight`": lambda invalid: fitted(invalid, weights=np.arange(1.0, 401)),
    "`preprocess`": lambda invalid: fitted(invalid, preprocess=["standardize", "unit"]),
    '`metric="cosine"`': lambda invalid: fitted(invalid, metric="cosine"),
    '`metric="spherical"`': lambda invalid: fitted(invalid, metric="spherical"),
    'a sketch, such as `sketch="countsketch"`': lambda invalid: fitted(invalid, sketch="countsketch"),
    '`coreset="sensitivity"`': lambda invalid: fitted(invalid, coreset="sensitivity"),
    "`sweep`": lambda invalid: np.zeros(sweep(GROUPS, [2, 3], invalid=invalid, **QUIET).n_sampled),
    "`incremental()` of a fit": lambda invalid: (
        StreamKMeans(3, invalid=invalid, **QUIET).fit(GROUPS).incremental().partial_fit(GROUPS).labels_
    ),
    "`IncrementalKMeans` by itself": lambda invalid: (
        IncrementalKMeans(3, invalid=invalid, **QUIET).partial_fit(GROUPS).labels_
    ),
    "`to_sql`": lambda invalid: StreamKMeans(3, invalid=invalid, **QUIET).fit(FRAME).to_sql(table="t"),
}


def cells():
    """The cells of the guide's table: what is named first in a row, a value of `invalid`, and yes or no."""
    lines = PAGE.read_text().partition("| `invalid` |")[2].split("\n\n")[0].splitlines()
    names = [name.strip(' `"') for name in lines[0].strip("| ").split("|")]
    for line in lines[2:]:
        row, *answers = [cell.strip() for cell in line.strip("| ").split("|")]
        yield from ((row, name, answer) for name, answer in zip(names, answers, strict=True))


def test_the_table_of_the_guide_has_these_rows():
    assert list(dict.fromkeys(row for row, _, _ in cells())) == list(TRIED)


@pytest.mark.parametrize(("row", "invalid", "answer"), list(cells()))
def test_what_goes_with_missing_values(row, invalid, answer):
    if answer == "no":
        with pytest.raises((InvalidInputError, InvalidParameterError), match='invalid="mean"'):
            TRIED[row](invalid)
        return
    assert answer == "yes"
    labels = TRIED[row](invalid)
    if invalid == "skip" and row not in ("`sweep`", "`to_sql`"):
        np.testing.assert_array_equal(labels < 0, np.isnan(GROUPS).any(axis=1))
    elif row != "`to_sql`":
        assert (labels >= 0).all()
