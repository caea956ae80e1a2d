"""svmlight input that is wrong: one clear error each, that names the file, the line, the byte and the remedy."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import sys

import numpy as np
import pytest

from streamkm.core.exceptions import (
    InvalidInputError,
    InvalidParameterError,
    MissingDependencyError,
    SourceError,
    SourceNotFoundError,
)
from streamkm.sources import svmlight_text as svmlight_source
from streamkm.sources import text_lines
from streamkm.sources.svmlight_text import CompressedSvmlightSource, SvmlightSource
from tests.tables import cases

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
