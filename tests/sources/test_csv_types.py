"""Types of the columns of CSV files: those of all rows, wherever the first block ends."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from streamkm.sources.tables import csv_files
from tests.contracts import assemble
from tests.tables import cases, row

ONE_HOT, HASHED, DAYS = {"categories": "onehot"}, {"categories": "hash", "n_features": 8}, {"dates": "days"}
MIXED = [  # what most rows hold, what one of them holds, and how the file is opened
    ("1", "1.5", {}), ("1", "x", {}), ("1", "true", {}), ("true", "5", {}), ("true", "1", {}), ("", "true", {}),
    ("nan", "7", {}), ("NA", "x", {}), ("1", "9223372036854775999", {}), ("true", "x", {}),
    ("1", "x", ONE_HOT), ("1", "x", HASHED), ("", "x", ONE_HOT), ("NA", "x", ONE_HOT), ("true", "x", ONE_HOT),
    ("", "x", HASHED), ("2020-01-01", "x", ONE_HOT), ("2020-01-01", "x", {**ONE_HOT, **DAYS}), ("", "", ONE_HOT),
    ("2020-01-01", "2020-01-02", ONE_HOT), ("1", "x", {"categories": {"a": ["1", "x"]}}),
    ("1", "x", {"categories": {"a": "onehot"}}), ("1", "x", {"categories": {"a": "hash"}}),
    ("", "2020-01-01", DAYS), ("2020-01-01", "2020-01-01 12:00:00", DAYS), ("2020-01-01 12:00", "2020-01-02", DAYS),
    ("2020-01-01", "5", DAYS), ("5", "2020-01-01", DAYS), ("2020-01-01", "2020-01-01 12:00:00.5", DAYS),
    ("9999-12-31", "2020-01-01 12:00:00.5", DAYS), ("12:30", "12:30:15", DAYS), ("12:30", "2020-01-01", DAYS),
    ("2020-01-01 12:00Z", "2020-01-01 12:00+0100", DAYS), ("2020-01-01 12:00Z", "2020-01-01 12:00", DAYS),
]  # fmt: skip


def outcome(path, lines, options):
    """Names of features and rows by their number in column "b", or the kind of the error."""
    text = "a,b\n" + "".join(lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    try:
        source = open_source(path, **options)
        rows = assemble(source.stream(1 << 20), source.n_features)
    except InvalidInputError as error:
        return "refused" if path.name in str(error) and "column 'a'" in str(error) else str(error)
    at = source.feature_names.index("b")
    return source.feature_names, source.origin.made_with["table"], rows[rows[:, at].argsort()].tolist()


@cases("name", ["x.csv", "x.csv.gz"])
def test_no_outcome_depends_on_the_first_block_or_the_order(tmp_path, monkeypatch, name):
    for usual, odd, options in MIXED:
        lines = [f"{usual},{number}\n" for number in range(1, 12)] + [f"{odd},0\n"]
        seen = []
        for head in (60, 1 << 20):
            monkeypatch.setattr(csv_files, "_HEAD_BYTES", head)
            orders = (lines, lines[::-1], [*lines[:5], lines[-1], *lines[5:-1]])
            seen += [outcome(tmp_path / name, order, options) for order in orders]
        with row(usual=usual, odd=odd, options=options):
            assert len({*map(repr, seen)}) == 1
            assert seen[0] == "refused" or not isinstance(seen[0], str)


def test_what_columns_become(tmp_path):
    lines = [f"1,{number}\n" for number in range(3)]
    names, _, rows = outcome(tmp_path / "x.csv", [*lines, "x,3\n"], ONE_HOT)
    assert (names, rows[3]) == (("a=1", "a=x", "b"), [0, 1, 3])
    names, _, rows = outcome(tmp_path / "x.csv", ["NA,1\n", "x,3\n"], ONE_HOT)
    assert (names, rows) == (("a=NA", "a=x", "b"), [[1, 0, 1], [0, 1, 3]])
    _, made, _ = outcome(tmp_path / "x.csv", lines, {"categories": {"a": "hash"}, "n_features": 8})
    assert made["categories"] == {"a": "hash"}
    assert made["n_features"] == 8
    mixed = {"categories": {"a": "hash", "b": "onehot"}, "n_features": 2}
    source = open_source(tmp_path / "x.csv", **mixed)
    assert source.feature_names == ("b=0", "b=1", "b=2", "hash 0", "hash 1")
    _, _, rows = outcome(tmp_path / "x.csv", ["2020-01-02,1\n", "9999-12-31,2\n", "2020-01-02 12:00:00.5,3\n"], DAYS)
    np.testing.assert_array_equal(np.array(rows)[:, 0], [18263, 2932896, 18263.5 + 0.5 / 86400])


def test_text_behind_numbers_is_named_with_remedies_that_work(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "_HEAD_BYTES", 16)
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * 20 + "x,3\n" + "4,5\n" * 20)
    with pytest.raises(InvalidInputError, match=r"x\.csv, line 22 .*column 'a' holds 'x'.*exclude=\"a\".*categories="):
        StreamKMeans(2, progress=False).fit(path)
    for remedy in ({"exclude": "a"}, {"categories": {"a": ["1", "4", "x"]}}, ONE_HOT, HASHED):
        assert len(StreamKMeans(2, random_state=0, progress=False).fit({"path": path, **remedy}).labels_) == 41


def test_later_files_have_the_types_of_the_fit(tmp_path):
    """Digits alone in a column that was hashed."""
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "7,2\nx,90\n" * 20)
    model = StreamKMeans(2, random_state=0, progress=False).fit({"path": path, **HASHED})
    (tmp_path / "y.csv").write_text("a,b\n7,2\n7,90\n")
    np.testing.assert_array_equal(model.predict(tmp_path / "y.csv"), model.labels_[:2])


@pytest.mark.parametrize(("first", "told"), [((0, 1, 2), False), ((0.5, 0.7, 0.1), True), ((1, 1, 2), True)])
def test_a_first_column_without_a_name_is_an_index_and_is_told_where_it_is_none(tmp_path, recwarn, first, told):
    path = tmp_path / "x.csv"
    path.write_text(",a,b\n" + "".join(f"{value},{row},{row**2}\n" for row, value in enumerate(first)))
    np.testing.assert_array_equal(assemble(open_source(path).stream(1000), 2), [[0, 0], [1, 1], [2, 4]])
    assert any("its first column has no name and is left out" in str(each.message) for each in recwarn) is told
    assert open_source(path).details()["left out"] == "'' (index)"
    n_warned = len(recwarn)
    assert assemble(open_source(path, columns=["", "a"]).stream(1000), 2)[:, 0].tolist() == list(first)
    assert list(open_source(path, exclude="").feature_names) == ["a", "b"]
    assert len(recwarn) == n_warned
