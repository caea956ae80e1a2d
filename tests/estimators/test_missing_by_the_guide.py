"""What `on_missing` goes with, by the table of the guide: every cell is tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from streamkm import IncrementalKMeans, StreamKMeans, sweep
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError

PAGE = Path(__file__).parents[2] / "examples" / "guide" / "scaling.md"
QUIET = {"random_state": 0, "progress": False}


def holed(n_rows=400):
    """Three groups with holes; every row has a value."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 5)) + 6 * rng.integers(0, 3, (n_rows, 1))
    X[:, 1:][rng.random((n_rows, 4)) < 0.1] = np.nan
    return X


X = holed()
FRAME = pd.DataFrame(X, columns=list("abcde"))


def fitted(on_missing, rows=X, weights=None, **given):
    return StreamKMeans(3, on_missing=on_missing, **QUIET, **given).fit(rows, sample_weight=weights).labels_


TRIED = {
    "dense rows": fitted,
    "tables": lambda on_missing: fitted(on_missing, FRAME),
    "sparse rows": lambda on_missing: fitted(on_missing, sp.csr_array(X)),
    "rows that can be read once only": lambda on_missing: fitted(on_missing, iter([X])),
    "`sample_weight`": lambda on_missing: fitted(on_missing, weights=np.arange(1.0, 401)),
    "`preprocess`": lambda on_missing: fitted(on_missing, preprocess=["standardize", "unit"]),
    '`metric="cosine"`': lambda on_missing: fitted(on_missing, metric="cosine"),
    '`metric="spherical"`': lambda on_missing: fitted(on_missing, metric="spherical"),
    'a sketch, such as `sketch="countsketch"`': lambda on_missing: fitted(on_missing, sketch="countsketch"),
    '`coreset="sensitivity"`': lambda on_missing: fitted(on_missing, coreset="sensitivity"),
    "`sweep`": lambda on_missing: np.zeros(sweep(X, [2, 3], on_missing=on_missing, **QUIET).n_sampled),
    "`incremental()` of a fit": lambda on_missing: (
        StreamKMeans(3, on_missing=on_missing, **QUIET).fit(X).incremental().partial_fit(X).labels_
    ),
    "`IncrementalKMeans` by itself": lambda on_missing: (
        IncrementalKMeans(3, on_missing=on_missing, **QUIET).partial_fit(X).labels_
    ),
    "`to_sql`": lambda on_missing: StreamKMeans(3, on_missing=on_missing, **QUIET).fit(FRAME).to_sql(table="t"),
}


def cells():
    """The cells of the guide's table: what is named first in a row, a value of `on_missing`, and yes or no."""
    lines = PAGE.read_text().partition("| `on_missing` |")[2].split("\n\n")[0].splitlines()
    names = [name.strip(' `"') for name in lines[0].strip("| ").split("|")]
    for line in lines[2:]:
        row, *answers = [cell.strip() for cell in line.strip("| ").split("|")]
        yield from ((row, name, answer) for name, answer in zip(names, answers, strict=True))


def test_the_table_of_the_guide_has_these_rows():
    assert list(dict.fromkeys(row for row, _, _ in cells())) == list(TRIED)


@pytest.mark.parametrize(("row", "on_missing", "answer"), list(cells()))
def test_what_goes_with_missing_values(row, on_missing, answer):
    if answer == "no":
        with pytest.raises((InvalidInputError, InvalidParameterError), match='on_missing="mean"'):
            TRIED[row](on_missing)
        return
    assert answer == "yes"
    labels = TRIED[row](on_missing)
    if on_missing == "skip" and row not in ("`sweep`", "`to_sql`"):
        np.testing.assert_array_equal(labels < 0, np.isnan(X).any(axis=1))
    elif row != "`to_sql`":
        assert (labels >= 0).all()
