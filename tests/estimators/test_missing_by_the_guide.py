"""What `invalid` goes with, by the table of the guide: every cell is tried."""

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


def fitted(invalid, rows=X, weights=None, **given):
    return StreamKMeans(3, invalid=invalid, **QUIET, **given).fit(rows, sample_weight=weights).labels_


TRIED = {
    "dense rows": fitted,
    "tables": lambda invalid: fitted(invalid, FRAME),
    "sparse rows": lambda invalid: fitted(invalid, sp.csr_array(X)),
    "rows that can be read only once": lambda invalid: fitted(invalid, iter([X])),
    "`sample_weight`": lambda invalid: fitted(invalid, weights=np.arange(1.0, 401)),
    "`preprocess`": lambda invalid: fitted(invalid, preprocess=["standardize", "unit"]),
    '`metric="cosine"`': lambda invalid: fitted(invalid, metric="cosine"),
    '`metric="spherical"`': lambda invalid: fitted(invalid, metric="spherical"),
    'a sketch, such as `sketch="countsketch"`': lambda invalid: fitted(invalid, sketch="countsketch"),
    '`coreset="sensitivity"`': lambda invalid: fitted(invalid, coreset="sensitivity"),
    "`sweep`": lambda invalid: np.zeros(sweep(X, [2, 3], invalid=invalid, **QUIET).n_sampled),
    "`incremental()` of a fit": lambda invalid: (
        StreamKMeans(3, invalid=invalid, **QUIET).fit(X).incremental().partial_fit(X).labels_
    ),
    "`IncrementalKMeans` by itself": lambda invalid: (
        IncrementalKMeans(3, invalid=invalid, **QUIET).partial_fit(X).labels_
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
        np.testing.assert_array_equal(labels < 0, np.isnan(X).any(axis=1))
    elif row != "`to_sql`":
        assert (labels >= 0).all()
