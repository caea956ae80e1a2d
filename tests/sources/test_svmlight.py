"""svmlight text, plain and compressed, as scikit-learn and a naive reader; wrong input is one clear error."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from streamkm.core.exceptions import (
    InvalidInputError,
    InvalidParameterError,
    MissingDependencyError,
    SourceError,
    SourceNotFoundError,
)
from streamkm.sources import svmlight_text as svmlight_source
from streamkm.sources import text_lines
from streamkm.sources.chunks import Chunk
from streamkm.sources.svmlight_text import CompressedSvmlightSource, SvmlightSource
from tests.contracts import Opened, RowSourceContract, SourceContract
from tests.naive_svmlight import SMALL, as_lists, bits, rows_of
from tests.tables import cases

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
    return sp.vstack([piece.X for piece in pieces], format="csr"), np.concatenate([piece.row_ids for piece in pieces])


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
    @pytest.fixture(params=[{}, {"n_features": 17, "dtype": np.float32}], ids=str)
    def opened(self, request, tmp_path):
        paths, X = write_parts(tmp_path)
        return Opened(SvmlightSource(paths, **request.param), X.astype(request.param.get("dtype", float)))


class TestCompressed(RowSourceContract):
    @pytest.fixture(params=["gz", "zst", "plain"])
    def opened(self, request, tmp_path):
        paths, X = write_parts(tmp_path, bytes if request.param == "plain" else partial(pack, request.param))
        return Opened(CompressedSvmlightSource(paths), X)


@cases("dtype", [np.float32, np.float64])
@cases("zero_based", [True, False, "auto"])
@cases("numbers", ["%d", "%.8f", "%.17g", "%r"])
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


@cases("options", [{}, {"multilabel": True}, {"query_id": np.arange(3)}, {"comment": "two\nlines"}])
def test_reads_what_sklearn_writes(tmp_path, options):
    X = sp.csr_array([[0.0, 1.5, 0], [0, 0, 0], [1e-300, 0, np.pi]])
    y = np.array([[1, 0], [1, 1], [0, 0]]) if options.get("multilabel") else np.array([1.0, -1, 2.5])
    with open(tmp_path / "x.svm", "wb") as file:
        dump_svmlight_file(X, y, file, zero_based=False, **options)
    rows = whole(SvmlightSource([tmp_path / "x.svm"], n_features=3))[0].toarray()
    # a line without labels and features cannot be told from a blank one, and scikit-learn does not read it either
    np.testing.assert_array_equal(rows, X.toarray())


def test_every_cut_of_a_small_file(tmp_path):
    expected, places = read_text(tmp_path, SMALL)
    source = SvmlightSource([tmp_path / "x.svm"])
    for cut in range(1, len(SMALL)):
        left, right = (source.read(Chunk(i, 0, a, b, 1)) for i, (a, b) in enumerate([(0, cut), (cut, len(SMALL))]))
        assert left.X.shape[0] + right.X.shape[0] == expected.shape[0]
        np.testing.assert_array_equal(np.concatenate([left.row_ids, right.row_ids]), places)
        np.testing.assert_array_equal(np.concatenate([left.X.data, right.X.data]), expected.data)


def test_chunks_decode_to_about_the_target(tmp_path):
    for text in (b"1 1:1 2:1 3:1 4:1\n", b"1 12345:0.1234567 123456:0.1234567 1234567:0.12345678901234567\n"):
        (tmp_path / "x").write_bytes(text * 5_000)
        source = SvmlightSource([tmp_path / "x"])
        for chunk in source.chunks(20_000):
            X = source.read(chunk).X
            n_bytes = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes + 8 * X.shape[0]
            assert n_bytes == pytest.approx(20_000, rel=0.1)
            assert n_bytes == pytest.approx(chunk.n_bytes, rel=0.05)


@cases("block_bytes", [33, 64, 100])
def test_lines_across_blocks(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(text_lines.LineReader.__init__, "__defaults__", (block_bytes,))
    X, places = read_text(tmp_path, SMALL)
    assert bits(as_lists(X, places)) == bits(rows_of(SMALL, 1))


def test_auto_base_is_decided_once_by_the_head_of_the_first_file_with_rows(tmp_path):
    for name, text in (("none", b"# 0:1\n"), ("zero", b"1 0:1 2:1\n"), ("one", b"1 1:5\n")):
        (tmp_path / name).write_bytes(text)
    X, _ = whole(SvmlightSource([tmp_path / "none", tmp_path / "zero", tmp_path / "one"]))
    assert X.indices.tolist() == [0, 2, 1]
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


def test_places_and_descriptions(tmp_path):
    (small := tmp_path / "small.svm").write_bytes(SMALL)
    (tmp_path / "small.gz").write_bytes(gzip.compress(SMALL))
    for source in (SvmlightSource([small, small]), CompressedSvmlightSource([small, tmp_path / "small.gz"])):
        assert source.n_rows is source.n_features is None
        assert len(pickle.dumps(source)) < 1_000
        _, places = whole(source, 10)
        assert places.tolist() == [place for part in (0, 1) for place, _ in rows_of(SMALL, 1, part)]
        part, byte = 1, SMALL.index(b"  4:1")
        assert source.describe((part << 44) | byte) == f"{source.paths[1]}, line 5 (byte {byte})"


def test_estimated_rows(tmp_path):
    rng = random.Random(0)
    lines = [f"1 {' '.join(f'{j}:{rng.random():.6f}' for j in range(1, rng.randrange(5, 60)))}\n" for _ in range(4_000)]
    (tmp_path / "x").write_text("".join(lines))
    (tmp_path / "y").write_bytes(b"# no rows\n\n")
    assert SvmlightSource([tmp_path / "x", tmp_path / "y"]).estimated_rows == pytest.approx(4_000, rel=0.05)
    assert SvmlightSource([tmp_path / "y"]).estimated_rows >= 1
    for suffix in PACKERS:
        (tmp_path / f"x.{suffix}").write_bytes(pack(suffix, (tmp_path / "x").read_bytes()))
        estimate = CompressedSvmlightSource([tmp_path / f"x.{suffix}"]).estimated_rows
        assert estimate == pytest.approx(4_000, rel=1.0 if suffix == "bz2" else 0.2)


@cases("suffix", PACKERS)
@cases("named", [True, False])
def test_compressed_is_plain(tmp_path, suffix, named):
    (small := tmp_path / "small.svm").write_bytes(SMALL)
    members = pack(suffix, SMALL[:100]) + pack(suffix, SMALL[100:])
    path = tmp_path / (f"x.{suffix}" if named else "x")
    path.write_bytes(members)
    source = CompressedSvmlightSource([path, small])
    for _ in range(2):
        X, places = whole(source, 100)
        assert bits(as_lists(X, places)) == bits(rows_of(SMALL, 1, 0) + rows_of(SMALL, 1, 1))


KINDS = [SvmlightSource, CompressedSvmlightSource]
GOOD = b"1 1:1 2:2\n# comment\n\n"


def drain(source, target_bytes: int = 1 << 20) -> int:
    return sum(rows.X.shape[0] for rows in source.stream(target_bytes))


BAD_LINES = [  # a line, the byte of the trouble in it, and what is said of it
    (b"1 1:2 3", 6, "colon and the value are missing, got '3'"),
    (b"1 1:", 2, "a value must be a number right behind the colon, got '1:'"),
    (b"1 :2", 2, "non-negative integer for its index, got ':2'"),
    (b"1 a:2", 2, "non-negative integer for its index, got 'a:2'"),
    (b"1 -3:2", 2, "must not be negative, got '-3:2'"),
    (b"1 9223372036854775808:2", 2, "must not exceed 9223372036854775807"),
    (b"1 1:abc", 2, "a value must be a number right behind the colon, got '1:abc'"),
    (b"1 1:1e", 2, "a value must be a number"),
    (b"1 1:.", 2, "a value must be a number"),
    (b"1 1:0.1.1", 2, "a value must be a number"),
    (b"1 1:infinit", 2, "a value must be a number"),
    (b"1 1:2:3", 2, "a value must be a number"),
    (b"1 1:2,3", 2, "a value must be a number"),
    (b"1 1:1\0", 2, r"got '1:1\x00'; it holds a NUL byte: is this a binary or UTF-16 file?"),
    (b"\0", 0, "it holds a NUL byte"),
    (b"1 1:1 \xff:2", 6, r"got '\\xff:2'"),
    (b"spam 1:2", 0, "a target must be a number or several joined by commas, got 'spam'"),
    (b"1,,2 1:2", 0, "a target must be a number"),
    (b"1 qid:x 1:2", 2, "a query must be written qid:<integer>, got 'qid:x'"),
    (b"1 1:1 qid:3 2:2", 6, "non-negative integer for its index, got 'qid:3'"),
    (b"1 3:1 2:1", 6, "must increase within a row; sort them and join repeated ones, got '2:1'"),
    (b"1 0:1", 2, "taken to be one-based because its head has no index 0; pass zero_based=True"),
    (b"1 1:" + b"x" * 500, 2, "got '1:" + "x" * 38 + "...'"),
]


@cases("kind", KINDS)
@cases("target_bytes", [1, 20, 1 << 20])
def test_bad_lines(tmp_path, monkeypatch, kind, target_bytes):
    monkeypatch.setattr(svmlight_source, "HEAD_BYTES", len(GOOD))
    path = tmp_path / "bad.svm"
    line_number = GOOD.count(b"\n") + 1
    for line, byte, says in BAD_LINES:
        path.write_bytes(GOOD + line + b"\n1 1:1\n")
        said = message_of(kind, path, target_bytes)
        assert f"{path}, line {line_number:,} (byte {len(GOOD) + byte:,}): " in said, line
        assert says.replace("\\\\", "\\") in said.replace("\\\\", "\\"), line
        assert len(said) < len(str(path)) + 300, line


def message_of(kind, path, target_bytes):
    """What reading says of a file that is wrong."""
    try:
        return f"no error, but {drain(kind([path]), target_bytes)} rows"
    except InvalidInputError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_index_beyond_n_features(tmp_path, kind):
    path = tmp_path / "x.svm"
    path.write_bytes(b"1 1:1 5:1\n1 2:2 6:1 9:1\n")
    says = re.escape("line 2 (byte 16): an index beyond 5, the largest of 5 features; pass a larger n_features")
    with pytest.raises(InvalidInputError, match=says + ".*got '6:1'"):
        drain(kind([path], n_features=5))
    path.write_bytes(b"1 0:1 5:1\n")
    with pytest.raises(InvalidInputError, match="an index beyond 4"):
        drain(kind([path], n_features=5))
    assert drain(kind([path], n_features=6)) == 1
    with pytest.raises(InvalidInputError, match=r"line 1 \(byte 2\): an index 0, but the input is one-based"):
        drain(kind([path], zero_based=False))
    path.write_bytes(b"1 9223372036854775807:2\n")
    assert drain(kind([path])) == 1
    with pytest.raises(InvalidInputError, match=r"byte 2\): a feature index must not exceed 9223372036854775807"):
        drain(kind([path], zero_based=True))


@pytest.mark.parametrize("kind", KINDS)
def test_no_such_file(tmp_path, kind):
    with pytest.raises(SourceNotFoundError, match=r"none.svm does not exist"):
        kind([tmp_path / "none.svm"])
    with pytest.raises(SourceError, match="a directory; name files"):
        kind([tmp_path])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_it(tmp_path, kind):
    path = tmp_path / "empty.svm"
    path.write_bytes(b"")
    with pytest.raises(InvalidInputError, match=r"empty.svm: empty, 0 bytes"):
        kind([path])
    path.write_bytes(b"# only\n\n# comments")
    # whether no row at all is an error is for the consumer, who sees all files
    assert drain(kind([path])) == 0


@cases("kind", KINDS)
@cases("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16(tmp_path, kind, encoding):
    path = tmp_path / "x.svm"
    path.write_bytes(("\ufeff" + GOOD.decode()).encode(encoding))
    with pytest.raises(InvalidInputError, match=r"x.svm, line 1 \(byte 0\): .*UTF-16 file\? Convert text to UTF-8"):
        drain(kind([path]))
    path.write_bytes(GOOD.decode().encode(encoding))
    with pytest.raises(InvalidInputError, match="UTF-16"):
        drain(kind([path]))


@pytest.mark.parametrize("kind", KINDS)
def test_line_too_long(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_LINE_BYTES", 3 << 20)
    path = tmp_path / "x.svm"
    path.write_bytes(GOOD + b"1 " + b"1:1 " * (1 << 20))
    says = re.escape(f"{path}, line 4 (byte {len(GOOD)}): a line is longer than {3 << 20:,} bytes")
    with pytest.raises(InvalidInputError, match=says):
        drain(kind([path]))
    hostile = pytest.importorskip("zstandard").ZstdCompressor().compress(b" " * (80 << 20))  # unpacks without end
    (tmp_path / "x.zst").write_bytes(hostile)
    with pytest.raises(InvalidInputError, match="a line is longer than"):
        drain(CompressedSvmlightSource([tmp_path / "x.zst"]))


@cases("suffix", ["gz", "bz2", "xz", "zst"])
def test_damaged_packed_file(tmp_path, suffix):
    text = b"".join(b"1 1:%d 2:%d\n" % (i * 7919 % 1_000, i) for i in range(5_000))
    if suffix == "zst":
        packed = pytest.importorskip("zstandard").ZstdCompressor(write_checksum=True).compress(text)
    else:
        packed = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[suffix](text)
    path = tmp_path / f"x.{suffix}"
    wrong = [packed[: len(packed) * at // 10] for at in range(1, 10)] + [packed[:-1], b"not packed"]
    wrong.append(packed[: len(packed) // 2] + b"\x55\xaa\x55" + packed[len(packed) // 2 + 3 :])
    for damaged in wrong:
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=rf"x.{suffix}: truncated or corrupt \w+ file, behind byte [\d,]+ of"):
            drain(CompressedSvmlightSource([path]), 1_000)


def test_no_zstandard(tmp_path, monkeypatch):
    (tmp_path / "x.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingDependencyError, match=r"streamkm\[zstd\]"):
        drain(CompressedSvmlightSource([tmp_path / "x.zst"]))


@cases("kind", KINDS)
@cases(
    "options, says",
    [
        ({"n_features": 0}, "n_features must be a positive integer or None, got 0"),
        ({"n_features": 2.5}, "n_features must be a positive integer or None, got 2.5"),
        ({"zero_based": "yes"}, "zero_based must be True, False or \"auto\", got 'yes'"),
        ({"dtype": np.int64}, "dtype must be float32 or float64, got int64"),
    ],
)
def test_bad_parameter(tmp_path, kind, options, says):
    (tmp_path / "x.svm").write_bytes(GOOD)
    with pytest.raises(InvalidParameterError, match=re.escape(says)):
        kind([tmp_path / "x.svm"], **options)
