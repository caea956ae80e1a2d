"""Any bytes: rows or one clear error, as the naive reader; rows that are found without being read."""

from __future__ import annotations

import ctypes
import decimal
import mmap
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.kernels.text import svmlight as kernel
from streamkm.kernels.text.decimals import UNDECIDED, read_decimal
from streamkm.kernels.text.machine_words import WINDOW
from streamkm.kernels.text.svmlight_tokens import BAD_CALL, OK
from streamkm.sources.chunks import Chunk
from streamkm.sources.svmlight_text import SvmlightSource
from tests.naive_svmlight import SMALL, MalformedError, as_lists, bits, rows_of
from tests.tables import cases


def read_rows(source: SvmlightSource, target_bytes: int) -> list:
    return [row for rows in source.stream(target_bytes) for row in bits(as_lists(rows.X, rows.row_ids))]


TOKENS = [b" ", b"\n", b"\t", b"\r", b"1", b"0", b"-1", b"2.5", b"1:2", b"2:-0.5", b"3:1e-5", b"123456789:1"]
TOKENS += [b":", b"#", b",", b"qid:1", b"nan", b"inf", b"e", b"+", b".", b"-", b"\0", b"\xff", b"9" * 25]
TOKENS += [b"7:12345678901234567", b"99:0." + b"7" * 40, b"4:0.125", b"5:-3", b"6:1234567.5"]


def check_any_bytes(directory: Path, text: bytes) -> None:
    path = directory / "fuzz.svm"
    path.write_bytes(text)
    source = SvmlightSource([path], zero_based=True)
    try:
        expected = bits(rows_of(text, 0))
    except MalformedError:
        with pytest.raises(InvalidInputError, match=r"fuzz.svm, line \d+ \(byte \d"):
            read_rows(source, 1 << 20)
        return
    for target_bytes in (1 << 20, 40):
        assert read_rows(source, target_bytes) == expected


MUTATED = st.tuples(st.integers(0, len(SMALL) - 1), st.binary(max_size=3), st.integers(0, 3))


@settings(max_examples=3 * settings().max_examples)
@given(
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=60).map(b"".join)
    | st.binary(min_size=1, max_size=200).filter(lambda text: text[:2] not in (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b"))
    | MUTATED.map(lambda drawn: SMALL[: drawn[0]] + drawn[1] + SMALL[drawn[0] + drawn[2] :])
)
def test_any_bytes(tmp_path_factory, text):
    check_any_bytes(tmp_path_factory.getbasetemp(), text)


def parse(text: np.ndarray, end: int, room: int | None = None) -> np.ndarray:
    """Run the kernel on the first bytes of an array; its job."""
    room = end if room is None else room
    job = np.zeros(kernel.JOB_FIELDS, np.int64)
    job[[kernel.LIMIT, kernel.END, kernel.LARGEST_INDEX]] = end, end, 2**31 - 1
    indices, indptr = np.empty(room, np.int32), np.zeros(room + 1, np.int32)
    with np.errstate(over="ignore"):
        kernel.parse_rows(
            text, job, np.empty(room), indices, indptr, np.empty(room, np.int64), np.empty((9, 3), np.int64)
        )
    return job


@pytest.fixture(scope="module")
def guarded():
    """Two pages of memory between pages that kill the process when they are touched."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs mprotect")
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * page)
    array = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for at in (0, 3 * page):
        assert protect(ctypes.c_void_p(array.ctypes.data + at), ctypes.c_size_t(page), 0) == 0
    yield array[page : 3 * page]
    for at in (0, 3 * page):
        protect(ctypes.c_void_p(array.ctypes.data + at), ctypes.c_size_t(page), 3)


@given(
    st.lists(st.sampled_from(TOKENS), max_size=60).map(b"".join) | st.binary(max_size=100),
    st.sampled_from([b" ", b"1", b"\n", b"1:0.123456 ", b"\xff", b"-"]),
)
def test_no_byte_outside_the_buffer_is_touched(guarded, text, behind):
    """The text ends `WINDOW` bytes in front of a guard page, or starts right behind one."""
    text += b"\n"
    slack = (behind * WINDOW)[:WINDOW]
    for start in (0, len(guarded) - len(text) - WINDOW):
        piece = guarded[start : start + len(text) + WINDOW]
        piece[:] = np.frombuffer(text + slack, np.uint8)
        parse(piece, len(text))


def test_kernel_refuses_what_it_cannot_read_safely():
    text = np.frombuffer(bytearray(b"1 1:2 3:4\n" + bytes(WINDOW)), np.uint8)
    assert parse(text, 10)[kernel.STATUS] == OK
    assert parse(text, 9)[kernel.STATUS] == BAD_CALL  # no line feed
    assert parse(text[:-1], 10)[kernel.STATUS] == BAD_CALL  # too few bytes behind
    assert parse(text, 10, room=4)[kernel.STATUS] == BAD_CALL  # arrays too small


def read_values(directory, text: bytes, **options) -> np.ndarray:
    """Stored values of a file with this text."""
    path = directory / "x.svm"
    path.write_bytes(text)
    return np.concatenate([rows.X.data for rows in SvmlightSource([path], **options).stream(1 << 20)])


HARD = """0 -0 +0 0.0 1 1. .1 -.5 +3 1e5 1E+5 1e-5 1e22 1e23 9007199254740991 9007199254740992 9007199254740993
9007199254740995 9007199254740992.5 9007199254740993.0000000000000000000000001 0.1 0.3 123456789012345678
1234567890123456789 12345678901234567890 18446744073709551615 18446744073709551616 4.9e-324 2.4703282292062327e-324
2.4703282292062328e-324 2.2250738585072011e-308 2.2250738585072014e-308 1.7976931348623157e308 1.7976931348623158e308
1.7976931348623159e308 1e308 1e309 -1e309 1e-323 1e-324 1e99999999999999999999 1e-99999999999999999999 0e999999999999
0.000000000000000000000000000000000000000001e42 00000000000000000000000000000000000000001.5 nan -nan NaN inf -inf +inf
Infinity -INFINITY 8.5 0.5 2.5 1.00000000000000011102230246251565404 1.00000000000000011102230246251565405
1.00000000000000011102230246251565403 6631236846766476e-316 3.2378839133029012895883524125015321748630e-319
100000000000000016777215 100000000000000016777216 99999999.99999999 12345678.12345678 1.12345678901234567
"""
LONG = ["1" * 100, "0." + "3" * 500, "1" * 400, "0." + "0" * 400 + "1", "5" * 30 + "e-330"]


def check_value(text: str) -> None:
    """The kernel's value has the bits of Python's float."""
    buf = np.frombuffer(bytearray(text.encode() + b"\n" + bytes(WINDOW)), np.uint8)
    with np.errstate(over="ignore"):
        status, end, value = read_decimal(buf, 0)
    assert end == len(text)
    if status != UNDECIDED:
        assert struct.pack("d", value) == struct.pack("d", float(text)), text


@cases("text", HARD.split() + LONG)
def test_hard_numbers(text, tmp_path):
    check_value(text)
    values = read_values(tmp_path, f"1 1:{text} 2:{text}\n{text} 3:{text}".encode())
    assert values.tobytes() == struct.pack("d", float(text)) * 3


@given(st.floats(), st.sampled_from(["%r", "%.20e", "%.3g", "%.17g", "%.25g", "%.1f", "%.16f"]))
def test_any_double(x, numbers):
    check_value(numbers % x)


@given(st.floats(min_value=0, allow_infinity=False), st.integers(-1, 1), st.integers(0, 30))
def test_half_way_between_two_doubles(x, side, more_digits):
    """Exactly half way, and one digit far behind that above or below it."""
    with np.errstate(over="ignore"):
        above = np.nextafter(x, np.inf)
    assume(np.isfinite(above))
    with decimal.localcontext() as context:
        context.prec = 1200
        middle = (decimal.Decimal(float(x)) + decimal.Decimal(float(above))) / 2
        digits = format(middle.normalize(), "e")
        mantissa, exponent = digits.split("e")
        if side:
            step = decimal.Decimal(side).scaleb(-len(mantissa) - more_digits)
            mantissa = format(decimal.Decimal(mantissa) + step, "f")
    check_value(f"{mantissa}e{exponent}")


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=20))
def test_float32_is_the_rounded_double(tmp_path_factory, values):
    text = "1 " + " ".join(
        f"{j + 1}:{x!r}1" if "e" not in repr(x) and "inf" not in repr(x) else f"{j + 1}:{x!r}"
        for j, x in enumerate(values)
    )
    found = read_values(tmp_path_factory.mktemp("f"), text.encode(), dtype=np.float32)
    with np.errstate(over="ignore"):
        expected = np.array([float(cell.split(":")[1]) for cell in text.split()[1:]]).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


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
    np.testing.assert_array_equal(found.row_ids, read.row_ids)
    assert found.n_features == read.X.shape[1]
    rows = np.flatnonzero(np.arange(len(found.row_ids)) % 2 == 0)
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
    assert found.row_ids.tolist() == [6]
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
