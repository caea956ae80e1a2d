"""Values in memory that are no rows of numbers: one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidInputError
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
        r"row 0, column 1 of the array contains the text 'a'; features must be numbers.*Drop or encode",
    ),
    "bytes": (np.array([[b"x", b"2"]]), r"row 0, column 0 of the array contains b'x'"),
    "text among objects": (objects("card"), r"row 5, column 1 of the array contains the text 'card'"),
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
        (objects({"a": 1}), r"^row 5, column 1 of the array contains \{'a': 1\}; .*argument must be a string or"),
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
