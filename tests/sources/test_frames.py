"""Frames of named columns: values and names of whatever speaks the Arrow protocols, reordered columns refused."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.arrow import validity
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
    for given in ([first, second], lambda: iter([first, second])):
        assert open_source(given).feature_names == NAMES
        np.testing.assert_array_equal(whole(open_source(given)), X)
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
    for given in (frame, [frame], lambda: iter([frame])):
        assert open_source(given).feature_names == ("a", "b")
        np.testing.assert_array_equal(assemble(open_source(given).stream(1 << 20), 2), [[0.3, np.nan], [-0.7, np.nan]])
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
    for given in (frame, lambda: iter([frame])):
        source = open_source(given)
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
