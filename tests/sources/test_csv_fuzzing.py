"""CSV of quotes, words for nothing and line feeds in quotes, cut at every byte, against Python's csv module."""

from __future__ import annotations

import csv
import gzip
import io

import numpy as np
import pytest

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources import open_source
from streamkm.sources.tables import csv_files
from streamkm.sources.tables.csv_format import NULLS
from tests.contracts import assemble

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
    ("n_texts", "n_targets"),
    [(2, 2), pytest.param(50, 6, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)])],
)
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_every_cut_at_every_chunk_size(tmp_path, monkeypatch, reduced, name, n_texts, n_targets):
    """Values, ids and numbers of rows are those of the csv module, or the file is refused by name."""
    rng, n_read, n_refused = np.random.default_rng(0), 0, 0
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
