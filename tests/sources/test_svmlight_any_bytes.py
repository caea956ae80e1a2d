"""Any bytes at all: rows or one clear error, the same as the naive reader's, and no byte outside the buffer touched."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkm.core.exceptions import InvalidInputError
from streamkm.kernels.text import svmlight as kernel
from streamkm.kernels.text.svmlight_tokens import BAD_CALL, OK
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.svmlight_text import SvmlightSource
from tests.naive_svmlight import SMALL, MalformedError, as_lists, bits, rows_of


def read_rows(source: SvmlightSource, target_bytes: int) -> list:
    return [row for rows in source.stream(target_bytes) for row in bits(as_lists(rows.X, rows.places))]


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


@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=60).map(b"".join))
def test_fuzz_tokens(tmp_path_factory, text):
    check_any_bytes(tmp_path_factory.getbasetemp(), text)


@given(st.binary(min_size=1, max_size=200).filter(lambda text: text[:2] not in (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b")))
def test_fuzz_bytes(tmp_path_factory, text):
    check_any_bytes(tmp_path_factory.getbasetemp(), text)


@given(st.integers(0, len(SMALL) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_fuzz_mutations(tmp_path_factory, at, new, dropped):
    check_any_bytes(tmp_path_factory.getbasetemp(), SMALL[:at] + new + SMALL[at + dropped :])


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
