"""Rows that are found without being read: the same rows as reading finds, or none at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chunks import Chunk
from streamkm.sources.svmlight_text import SvmlightSource
from tests.tables import cases

LINES = [
    b"1 1:0.5 3:2", b"-1 2:1e-3", b"0", b"", b"   ", b"\t1  4:1   9:2.5  ", b"1 7:1\r", b"3:4 5:6", b"1 0012:3",
    b"1.5,2 1:1", b" 2 1:-0.25",
    b"1 qid:7 2:1",
]  # fmt: skip
ODD = [b"1 3:1 # 9:9", b"# a comment", b"1 qid:7", b"1 5:1 4", b"1 +6:1", b"1 :5", b"1 2:3:4"]


def indexed_and_read(tmp_path, text: bytes, start: int, stop: int):
    path = tmp_path / "x.svm"
    path.write_bytes(text)
    source = SvmlightSource([path], zero_based=False)
    chunk = Chunk(1, 0, start, stop, stop - start)
    return source, chunk, source.index_rows(chunk)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=8), st.booleans(), st.data())
def test_finds_the_rows_that_reading_finds(tmp_path_factory, lines, ended, data):
    text = b"1 1:1\n" + b"\n".join(lines) + (b"\n" if ended else b"")
    start = data.draw(st.integers(1, len(text) - 1))
    stop = data.draw(st.integers(start + 1, len(text)))
    source, chunk, found = indexed_and_read(tmp_path_factory.mktemp("x"), text, start, stop)
    read = source.read(chunk)
    assert found is not None
    np.testing.assert_array_equal(found.places, read.places)
    assert found.n_features == read.X.shape[1]
    rows = np.flatnonzero(np.arange(len(found.places)) % 2 == 0)
    np.testing.assert_array_equal(found.take(rows).toarray(), read.X[rows].toarray()[:, : found.take(rows).shape[1]])


@cases("line", ODD)
@cases("at", [0, 1, 2])
def test_leaves_what_is_not_plain_to_the_parser(tmp_path, line, at):
    lines = [b"1 1:1 2:2", b"1 1:1"]
    text = b"0 1:1\n" + b"\n".join([*lines[:at], line, *lines[at:]]) + b"\n"
    _, _, found = indexed_and_read(tmp_path, text, 6, len(text))
    assert found is None


def test_a_comment_behind_the_chunk_does_not_matter(tmp_path):
    text = b"0 1:1\n1 2:1\n" + b" " * 64 + b"\n# more\n"
    _, _, found = indexed_and_read(tmp_path, text, 6, 12)
    assert found is not None
    assert found.places.tolist() == [6]
    assert found.n_features == 2


def test_the_head_of_a_file_and_rows_beyond_n_features_are_read(tmp_path):
    path = tmp_path / "x.svm"
    path.write_bytes(b"1 1:1\n1 9:2\n")
    assert SvmlightSource([path]).index_rows(Chunk(0, 0, 0, 12, 12)) is None
    assert SvmlightSource([path], n_features=4).index_rows(Chunk(1, 0, 6, 12, 6)) is None
    assert SvmlightSource([path], n_features=20).index_rows(Chunk(1, 0, 6, 12, 6)).n_features == 20


def test_bad_text_among_the_chosen_rows_is_named_as_reading_names_it(tmp_path):
    text = b"1 1:1\n1 1:1\n1 2:x 3:1\n"
    source, chunk, found = indexed_and_read(tmp_path, text, 6, len(text))
    with pytest.raises(InvalidInputError) as by_reading:
        source.read(chunk)
    with pytest.raises(InvalidInputError, match=r"line 3 .*'2:x'") as by_taking:
        found.take(np.array([1]))
    assert str(by_taking.value) == str(by_reading.value)
    np.testing.assert_array_equal(found.take(np.array([0])).toarray(), [[1.0]])


def long_lines(rng, n_rows: int) -> list[bytes]:
    columns = np.sort(rng.choice(300, (n_rows, 8)), axis=1)
    return [
        b"1 " + b" ".join(b"%d:%.6f" % (j + 1, v) for j, v in zip(*np.unique(row, return_index=True), strict=True))
        for row in columns
    ]


class Read(SvmlightSource):
    """The same source whose rows are not indexed."""

    def index_rows(self, chunk):
        return None


class Counted(SvmlightSource):
    """The same source, which counts what is indexed."""

    n_indexed = 0

    def index_rows(self, chunk):
        found = super().index_rows(chunk)
        Counted.n_indexed += found is not None
        return found


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "x.svm"
    lines = long_lines(np.random.default_rng(0), 8000)
    path.write_bytes(b"\n".join(lines * 22) + b"\n")
    return path


def fitted(source):
    settings = {"coreset": "uniform", "chunk_bytes": 1 << 21, "executor": 2, "random_state": 0, "progress": False}
    return StreamKMeans(5, **settings).fit(source)


def test_a_fit_is_the_same_bit_for_bit_with_and_without(large, no_room):
    Counted.n_indexed = 0
    found, expected = fitted(Counted([large])), fitted(Read([large]))
    assert Counted.n_indexed > 3
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
    assert found.inertia_ == expected.inertia_
    assert found.n_features_in_ == expected.n_features_in_


@pytest.mark.parametrize("line", [b"1 5:1 4:1", b"1 5:nan", b"1 5:1..2"])
def test_what_is_wrong_in_rows_that_were_not_chosen_is_found_by_the_next_pass(tmp_path, large, line):
    lines = large.read_bytes().splitlines()
    lines[100_001] = line
    path = tmp_path / "bad.svm"
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(InvalidInputError, match="line 100,002"):
        fitted(SvmlightSource([path]))
