"""CSV of quotes, words for nothing and line feeds in quotes, cut at every byte, against Python's csv module."""

from __future__ import annotations

import csv
import gzip
import io

import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from streamkm.sources.tables import csv_files
from streamkm.sources.tables.csv_format import NULLS
from tests.contracts import assemble
from tests.tables import cases, row, slow_but

HEADER = "id,n,c,note\n"
IDS = ["NA", "null", "None", "-", "?", "", "a,b", 'say "so"', "two\nlines", "7"]
NUMBERS = ["1", "-2.5", "0.125", "NA", "null", "?", "", "3e2"]
CATEGORIES = ["NA", "none", "-", "?", "x", "y\nz"]
NOTES = ["", "plain", 'a "quote"', '"', "one\n1,2,x,two", "\n", '5" pipe', "r\r\nn", "a,b,c,d"]
OPTIONS = [  # all columns are read by pyarrow; only plain numbers by the kernel
    {"exclude": "note", "categories": {"c": CATEGORIES}},
    {"exclude": ["note", "c"]},
]


def random_text(rng):
    """A few records, of which some are quoted throughout and some have quotes that open no field."""
    lines = []
    for _ in range(rng.integers(1, 6)):
        cells = [rng.choice(np.array(values, object)) for values in (IDS, NUMBERS, CATEGORIES, NOTES)]
        out = io.StringIO()
        quoting = csv.QUOTE_ALL if rng.integers(3) == 0 else csv.QUOTE_MINIMAL
        csv.writer(out, quoting=quoting, lineterminator=str(rng.choice(["\n", "\r\n"]))).writerow(cells)
        line = out.getvalue()
        lines.append(line.replace('"5"" pipe"', '5" pipe') if rng.integers(2) else line)
        lines.append("\n" if rng.integers(5) == 0 else "")
    text = HEADER + "".join(lines)
    return text if rng.integers(2) else text.rstrip("\r\n")


def wanted(text, options, *, newlines, null_values):
    """Ids and rows as the csv module has them; None where a file must be refused."""
    try:
        records = [record for record in csv.reader(io.StringIO(text, newline=""), strict=True) if record][1:]
    except csv.Error:
        return None
    if not records or any(len(record) != 4 for record in records):
        return None
    if not newlines and any("\n" in cell for record in records for cell in record):
        return None
    nulls = NULLS if null_values is None else ("", *null_values)
    try:
        numbers = [[np.nan if record[1] in nulls else float(record[1])] for record in records]
    except ValueError:
        return None
    if "categories" in options:
        missing = ("", *(null_values or ()))
        if any(record[2] not in (*CATEGORIES, *missing) for record in records):
            return None
        for row, record in zip(numbers, records, strict=True):
            row += [float(record[2] == value and value not in missing) for value in CATEGORIES]
    return [record[0] or None for record in records], np.array(numbers)


def got(path, target, options, **how):
    """Ids and rows as a source has them; None where it refuses, naming the file and a line."""
    try:
        source = open_source(path, header=True, id_column="id", **options, **how)
        rows = assemble(source.stream(target), source.n_features)
        return [each for part in source.ids() for each in part.to_pylist()], rows
    except InvalidInputError as error:
        problem = str(error)
    assert path.name in problem
    assert "0 rows" in problem or ", line " in problem or "column 'n'" in problem
    return None


def compare(path, text, target, options, *, newlines, null_values):
    packed = path.suffix == ".gz"
    path.write_bytes(gzip.compress(text.encode(), 1) if packed else text.encode())
    right = wanted(text, options, newlines=newlines, null_values=null_values)
    found = got(path, target, options, newlines_in_values=newlines, null_values=null_values)
    assert (found is None) == (right is None), (text, target, right, found)
    if right is not None:
        assert found[0] == right[0], (text, target)
        np.testing.assert_array_equal(found[1], right[1], err_msg=repr((text, target)))
    return right is not None


@pytest.mark.parametrize(
    ("n_texts", "n_targets"), [(1, 1), pytest.param(50, 6, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)])]
)
@pytest.mark.parametrize("name", slow_but(["x.csv"], ["x.csv", "x.csv.gz"]))
def test_every_cut_at_every_chunk_size(tmp_path, monkeypatch, reduced, name, n_texts, n_targets):
    """Values, ids and numbers of rows are those of the csv module, or the file is refused by name."""
    rng, n_read, n_refused = np.random.default_rng(2), 0, 0
    for _ in range(min(n_texts, 10) if reduced else n_texts):
        text = random_text(rng)
        cuts = [*range(len(HEADER), len(text)), *[len(text)] * 30]
        for cut in cuts:
            monkeypatch.setattr(csv_files, "_PIECE_BYTES", int(rng.integers(1, 20)))
            how = {"newlines": bool(rng.integers(4)), "null_values": [None, ["?", "NA"]][rng.integers(2)]}
            options = OPTIONS[rng.integers(2)]
            for target in rng.integers(1, 2 * len(text), n_targets).tolist():
                is_read = compare(tmp_path / name, text[:cut], target, options, **how)
                n_read, n_refused = n_read + is_read, n_refused + (not is_read)
    assert min(n_read, n_refused) > (n_read + n_refused) / 5


ONE_HOT, HASHED, DAYS = {"categories": "onehot"}, {"categories": "hash", "n_features": 8}, {"dates": "days"}
MIXED = [  # what most rows hold, what one of them holds, and how the file is opened
    ("1", "1.5", {}), ("1", "x", {}), ("1", "true", {}), ("true", "1", {}), ("", "true", {}), ("nan", "7", {}),
    ("NA", "x", {}), ("1", "9223372036854775999", {}), ("1", "x", ONE_HOT), ("1", "x", HASHED), ("NA", "x", ONE_HOT),
    ("true", "x", ONE_HOT), ("", "x", HASHED), ("2020-01-01", "x", {**ONE_HOT, **DAYS}), ("", "", ONE_HOT),
    ("1", "x", {"categories": {"a": ["1", "x"]}}), ("1", "x", {"categories": {"a": "hash"}}),
    ("", "2020-01-01", DAYS), ("2020-01-01", "2020-01-01 12:00:00", DAYS), ("2020-01-01 12:00", "2020-01-02", DAYS),
    ("2020-01-01", "5", DAYS), ("9999-12-31", "2020-01-01 12:00:00.5", DAYS), ("12:30", "2020-01-01", DAYS),
    ("2020-01-01 12:00Z", "2020-01-01 12:00", DAYS),
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
