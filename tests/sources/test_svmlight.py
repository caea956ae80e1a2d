"""svmlight text, plain and compressed: the same rows as scikit-learn and a naive reader, however it is cut."""

from __future__ import annotations

import bz2
import ctypes
import decimal
import gzip
import io
import lzma
import mmap
import pickle
import random
import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from streamkm.errors import InvalidInputError
from streamkm.kernels import svmlight as kernel
from streamkm.kernels.decimals import UNDECIDED, read_decimal
from streamkm.kernels.svmlight_tokens import BAD_CALL, OK
from streamkm.kernels.words import WINDOW
from streamkm.sources import svmlight_lines
from streamkm.sources.base import Chunk
from streamkm.sources.compressed import CompressedSvmlightSource
from streamkm.sources.svmlight import SvmlightSource
from tests.contracts import Opened, RowSourceContract, SourceContract
from tests.naive_svmlight import MalformedError, as_lists, bits, rows_of

SMALL = (
    b"# a comment\n\n1 qid:3 1:0.5 3:-2 7:1e-5 # more\n-1,2\t2:.5  3:5.\t\n  4:1\n3\n\r\n"
    b"2.5 1:+3 9:nan 10:-inf 12:INFINITY\r\n   # 1:2\n1 1:1e5 2:1.5e-07 3:-2.5E+300 4:1e0005 5:-1e-400 6:1\n"
    b"1 1:0.12345678901234567 2:12345678.12345678 3:1234567890123456789012345678901234567890e-20#x\n0 5:-0"
)
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": partial(lzma.compress, preset=0), "zst": None}


def zstd_pack(text: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(text)


def pack(suffix: str, text: bytes) -> bytes:
    return (PACKERS[suffix] or zstd_pack)(text)


def whole(source, target_bytes: int = 1 << 30):
    """All rows: csr_array and places."""
    pieces = list(source.stream(target_bytes))
    width = max(piece.X.shape[1] for piece in pieces)
    for piece in pieces:
        piece.X.resize((piece.X.shape[0], width))
    return sp.vstack([piece.X for piece in pieces], format="csr"), np.concatenate([piece.places for piece in pieces])


def read_text(directory: Path, text: bytes, **options):
    path = directory / "x.svm"
    path.write_bytes(text)
    return whole(SvmlightSource([path], **options))


def same_bits(found, expected) -> None:
    assert found.dtype == expected.dtype
    kind = f"u{found.data.itemsize}"
    np.testing.assert_array_equal(found.indptr, expected.indptr)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.data.view(kind), expected.data.view(kind))


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "small.svm"
    path.write_bytes(SMALL)
    return path


# ---- the contract of all sources


def write_parts(directory: Path, pack_part: Callable[[bytes], bytes] = bytes) -> tuple[list[Path], np.ndarray]:
    """Write two files with an empty one between them; their paths, and the dense matrix of their rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(53, 17)) * (rng.random((53, 17)) < 0.4)
    X[[0, 9, 52]] = 0
    paths = [directory / name for name in ("b.svm", "empty.svm", "a.svm")]
    for path, rows in zip(paths, (X[:20], X[:0], X[20:]), strict=True):
        lines = (" ".join(["1", *(f"{j + 1}:{row[j]!s}" for j in np.flatnonzero(row))]) for row in rows)
        text = "".join(line + "\n" for line in lines).encode()
        path.write_bytes(pack_part(text) if text else b"")
    return paths, X


class TestPlain(SourceContract):
    @pytest.fixture(params=[{}, {"n_features": 17}, {"dtype": np.float32}, {"zero_based": False}], ids=str)
    def opened(self, request, tmp_path):
        paths, X = write_parts(tmp_path)
        return Opened(SvmlightSource(paths, **request.param), X.astype(request.param.get("dtype", float)))


class TestCompressed(RowSourceContract):
    @pytest.fixture(params=[*PACKERS, "plain"])
    def opened(self, request, tmp_path):
        paths, X = write_parts(tmp_path, bytes if request.param == "plain" else partial(pack, request.param))
        return Opened(CompressedSvmlightSource(paths), X)


# ---- the same as others


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("zero_based", [True, False, "auto"])
@pytest.mark.parametrize("numbers", ["%d", "%.3g", "%.6g", "%.8f", "%.17g", "%.20e", "%r"])
def test_same_as_sklearn(tmp_path, dtype, zero_based, numbers):
    rng = np.random.default_rng(0)
    X = sp.random_array(
        (300, 20_000), density=0.001, rng=rng, format="csr", data_sampler=lambda size: 1e3 * rng.normal(size=size)
    )
    first = 0 if zero_based is True else 1
    lines = []
    for i in range(X.shape[0]):
        cells = zip(X.indices[X.indptr[i] : X.indptr[i + 1]], X.data[X.indptr[i] : X.indptr[i + 1]], strict=True)
        lines.append(" ".join([str(i % 7), *(f"{j + first}:{numbers % float(x)}" for j, x in sorted(cells))]))
    path = tmp_path / "x.svm"
    path.write_text("\n".join(lines) + "\n")
    expected, _ = load_svmlight_file(str(path), dtype=dtype, zero_based=zero_based, n_features=20_000)
    found, _ = whole(SvmlightSource([path], n_features=20_000, dtype=dtype, zero_based=zero_based), 10_000)
    assert found.shape == expected.shape
    same_bits(found, expected)
    assert found.indices.dtype == found.indptr.dtype == np.int32


@pytest.mark.parametrize("options", [{}, {"multilabel": True}, {"query_id": np.arange(3)}, {"comment": "two\nlines"}])
def test_reads_what_sklearn_writes(tmp_path, options):
    X = sp.csr_array([[0.0, 1.5, 0], [0, 0, 0], [1e-300, 0, np.pi]])
    y = np.array([[1, 0], [1, 1], [0, 0]]) if options.get("multilabel") else np.array([1.0, -1, 2.5])
    with open(tmp_path / "x.svm", "wb") as file:
        dump_svmlight_file(X, y, file, zero_based=False, **options)
    rows = whole(SvmlightSource([tmp_path / "x.svm"], n_features=3))[0].toarray()
    # a line without labels and features cannot be told from a blank one, and scikit-learn does not read it either
    np.testing.assert_array_equal(rows, X.toarray())


def test_small_file_is_as_the_naive_reader_says(small):
    X, places = whole(SvmlightSource([small]))
    assert bits(as_lists(X, places)) == bits(rows_of(SMALL, 1))
    assert X.has_canonical_format


# ---- numbers

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


@pytest.mark.parametrize("text", HARD.split() + LONG)
def test_hard_numbers(text, tmp_path):
    check_value(text)
    X, _ = read_text(tmp_path, f"1 1:{text} 2:{text}\n{text} 3:{text}".encode())
    assert X.data.tobytes() == struct.pack("d", float(text)) * 3


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


@given(st.integers(0, 2**64 - 1), st.integers(-350, 320))
def test_any_significand_and_power(significand, power):
    check_value(f"{significand}e{power}")


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=20))
def test_float32_is_the_rounded_double(tmp_path_factory, values):
    text = "1 " + " ".join(
        f"{j + 1}:{x!r}1" if "e" not in repr(x) and "inf" not in repr(x) else f"{j + 1}:{x!r}"
        for j, x in enumerate(values)
    )
    X, _ = read_text(tmp_path_factory.mktemp("f"), text.encode(), dtype=np.float32)
    with np.errstate(over="ignore"):
        expected = np.array([float(cell.split(":")[1]) for cell in text.split()[1:]]).astype(np.float32)
    np.testing.assert_array_equal(X.data, expected)


# ---- cutting


def test_every_cut_of_a_small_file(small):
    source = SvmlightSource([small])
    expected, places = whole(source)
    for cut in range(1, len(SMALL)):
        left, right = (source.read(Chunk(i, 0, a, b, 1)) for i, (a, b) in enumerate([(0, cut), (cut, len(SMALL))]))
        assert left.X.shape[0] + right.X.shape[0] == expected.shape[0]
        np.testing.assert_array_equal(np.concatenate([left.places, right.places]), places)
        np.testing.assert_array_equal(np.concatenate([left.X.data, right.X.data]), expected.data)


@pytest.mark.parametrize("target_bytes", [1, 2, 7, 50, 333, 4_096, 1 << 20])
@pytest.mark.parametrize("compressed", [False, True])
def test_chunked_is_whole(tmp_path, target_bytes, compressed):
    texts = [SMALL, b"", b"1 2:3\n" * 40, b"# nothing", SMALL]
    paths = [tmp_path / f"{i}.svm" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    source = (CompressedSvmlightSource if compressed else SvmlightSource)(paths)
    X, places = whole(source, target_bytes)
    expected = [row for part, text in enumerate(texts) for row in rows_of(text, 1, part)]
    assert bits(as_lists(X, places)) == bits(expected)


def test_chunks_are_disjoint_and_cover_the_files(tmp_path):
    for name, size in (("a", 1_000), ("b", 0), ("c", 77)):
        (tmp_path / name).write_bytes(b"1 1:2\n" * (size // 6))
    source = SvmlightSource([tmp_path / name for name in "abc"])
    for target_bytes in (1, 13, 100, 10**9):
        chunks = source.chunks(target_bytes)
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        for part, size in enumerate(source.sizes):
            cuts = [(chunk.start, chunk.stop) for chunk in chunks if chunk.part == part]
            assert [a for a, _ in cuts] == [0, *(b for _, b in cuts[:-1])] * bool(size)
            assert not cuts or cuts[-1][1] == size
    assert source.chunks(100) == SvmlightSource(source.paths).chunks(100)


def test_chunks_decode_to_about_the_target(tmp_path):
    for text in (b"1 1:1 2:1 3:1 4:1\n", b"1 12345:0.1234567 123456:0.1234567 1234567:0.12345678901234567\n"):
        (tmp_path / "x").write_bytes(text * 5_000)
        source = SvmlightSource([tmp_path / "x"])
        for chunk in source.chunks(20_000):
            X = source.read(chunk).X
            n_bytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes + 8 * X.shape[0]
            assert n_bytes == pytest.approx(20_000, rel=0.1)
            assert n_bytes == pytest.approx(chunk.n_bytes, rel=0.05)


@pytest.mark.parametrize("block_bytes", [33, 64, 100, 1_000])
def test_lines_across_blocks(small, monkeypatch, block_bytes):
    monkeypatch.setattr(svmlight_lines.LineReader.__init__, "__defaults__", (block_bytes,))
    X, places = whole(SvmlightSource([small]))
    assert bits(as_lists(X, places)) == bits(rows_of(SMALL, 1))


def test_line_longer_than_blocks_and_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(svmlight_lines.LineReader.__init__, "__defaults__", (4_096,))
    text = b"1 1:1\n2 " + b" ".join(b"%d:%d.5" % (j, j) for j in range(1, 20_001)) + b"\n3 2:7\n"
    (tmp_path / "x").write_bytes(text)
    source = SvmlightSource([tmp_path / "x"])
    pieces = [source.read(chunk) for chunk in source.chunks(10_000)]
    assert len(pieces) > 10
    assert sum(piece.X.shape[0] for piece in pieces) == 3
    X, _ = whole(source, 10_000)
    np.testing.assert_array_equal(X.indptr, [0, 1, 20_001, 20_002])
    np.testing.assert_array_equal(X.data[1:-1], np.arange(1, 20_001) + 0.5)


# ---- indices


def test_auto_base_is_decided_once_by_the_head_of_the_first_file_with_rows(tmp_path):
    for name, text in (("none", b"# 0:1\n"), ("zero", b"1 0:1 2:1\n"), ("one", b"1 1:5\n")):
        (tmp_path / name).write_bytes(text)
    assert whole(SvmlightSource([tmp_path / "none", tmp_path / "zero", tmp_path / "one"]))[0].indices.tolist() == [
        0,
        2,
        1,
    ]
    assert whole(SvmlightSource([tmp_path / "one"]))[0].indices.tolist() == [0]
    with pytest.raises(InvalidInputError, match=r"zero, line 1 \(byte 2\): an index 0.*zero_based=True"):
        whole(SvmlightSource([tmp_path / "one", tmp_path / "zero"]))


def test_indices_beyond_32_bits(tmp_path):
    text = b"1 5:1\n" * 5 + b"1 2147483648:2\n1 1:1 2147483649:3 9223372036854775807:4\n"
    X, _ = read_text(tmp_path, text)
    assert X.shape == (7, 2**63 - 1)
    assert X.indices.dtype == X.indptr.dtype == np.int64
    assert X.indices[5:].tolist() == [2**31 - 1, 0, 2**31, 2**63 - 2]
    X, _ = read_text(tmp_path, b"1 2147483647:1")
    assert X.indices.dtype == np.int32
    X, _ = read_text(tmp_path, b"1 2147483647:1", zero_based=True)
    assert X.shape == (1, 2**31)
    X, _ = read_text(tmp_path, b"1 3:1", n_features=2**40)
    assert X.shape == (1, 2**40)


def test_width_is_the_chunks_own_unless_given(tmp_path):
    (tmp_path / "x").write_bytes(b"1 3:1\n1 9:1\n2\n")
    source = SvmlightSource([tmp_path / "x"])
    assert [source.read(Chunk(0, 0, a, b, 1)).X.shape for a, b in ((0, 6), (6, 12), (12, 14))] == [
        (1, 3),
        (1, 9),
        (1, 0),
    ]
    assert source.n_features is None
    source = SvmlightSource([tmp_path / "x"], n_features=9)
    assert source.read(Chunk(0, 0, 0, 6, 1)).X.shape == (1, 9)


# ---- as a source


def test_places_and_descriptions(small, tmp_path):
    (tmp_path / "small.gz").write_bytes(gzip.compress(SMALL))
    for source in (SvmlightSource([small, small]), CompressedSvmlightSource([small, tmp_path / "small.gz"])):
        _, places = whole(source, 10)
        assert places.tolist() == [place for part in (0, 1) for place, _ in rows_of(SMALL, 1, part)]
        part, byte = 1, SMALL.index(b"  4:1")
        assert source.describe((part << 44) | byte) == f"{source.paths[1]}, line 5 (byte {byte})"


def test_pickle_is_small_and_reads_the_same(small):
    source = SvmlightSource([small])
    expected, places = whole(source)
    for twin in (pickle.loads(pickle.dumps(source)), pickle.loads(pickle.dumps(SvmlightSource([small])))):
        X, others = whole(twin)
        np.testing.assert_array_equal(places, others)
        same_bits(X, expected)
    assert len(pickle.dumps(source)) < 1_000


def test_threads_read_at_once(tmp_path):
    rng = random.Random(0)
    text = "".join(
        f"1 {' '.join(f'{j}:{rng.random()!r}' for j in range(1, rng.randrange(2, 30)))}\n" for _ in range(5_000)
    )
    (tmp_path / "x").write_text(text)
    source = SvmlightSource([tmp_path / "x"])
    chunks = source.chunks(20_000)
    alone = [source.read(chunk) for chunk in chunks]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for mine, others in zip(alone, pool.map(source.read, chunks), strict=True):
                same_bits(mine.X, others.X)
                np.testing.assert_array_equal(mine.places, others.places)


def test_estimated_rows(tmp_path):
    rng = random.Random(0)
    lines = [
        f"1 {' '.join(f'{j}:{rng.random():.6f}' for j in range(1, rng.randrange(5, 60)))}\n" for _ in range(10_000)
    ]
    text = "".join(lines).encode()
    (tmp_path / "x").write_bytes(text)
    (tmp_path / "y").write_bytes(b"# no rows\n\n")
    assert SvmlightSource([tmp_path / "x", tmp_path / "y"]).estimated_rows == pytest.approx(10_000, rel=0.05)
    assert SvmlightSource([tmp_path / "y"]).estimated_rows >= 1
    for suffix in PACKERS:
        (tmp_path / f"x.{suffix}").write_bytes(pack(suffix, text))
        estimate = CompressedSvmlightSource([tmp_path / f"x.{suffix}"]).estimated_rows
        assert estimate == pytest.approx(10_000, rel=1.0 if suffix == "bz2" else 0.2)


def test_attributes(small):
    for kind in (SvmlightSource, CompressedSvmlightSource):
        source = kind([str(small), small], dtype=np.float32)
        assert (source.n_rows, source.n_features, source.is_sparse, source.replayable) == (None, None, True, True)
        assert source.dtype == np.float32
        assert source.n_bytes == 2 * len(SMALL)
        assert source.name == f"{small} and 1 more"


# ---- compressed


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("named", [True, False])
def test_compressed_is_plain(tmp_path, suffix, named, small):
    members = pack(suffix, SMALL[:100]) + pack(suffix, SMALL[100:])
    path = tmp_path / (f"x.{suffix}" if named else "x")
    path.write_bytes(members)
    source = CompressedSvmlightSource([path, small])
    for _ in range(2):
        X, places = whole(source, 100)
        assert bits(as_lists(X, places)) == bits(rows_of(SMALL, 1, 0) + rows_of(SMALL, 1, 1))


# ---- any bytes

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
            whole(source)
        return
    for target_bytes in (1 << 20, 40):
        X, places = whole(source, target_bytes)
        assert bits(as_lists(X, places)) == expected


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


def test_blanks_in_front_of_line_ends(tmp_path):
    """As the libsvm data sets have them."""
    text = b"+1 1:0.7 3:1 \n-1 2:1 \n"
    X, _ = read_text(tmp_path, text)
    same_bits(X, load_svmlight_file(io.BytesIO(text))[0])
