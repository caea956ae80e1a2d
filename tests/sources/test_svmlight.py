"""svmlight text, plain and compressed: the same rows as scikit-learn and a naive reader, however it is cut."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from streamkm.core.exceptions import InvalidInputError
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
        np.testing.assert_array_equal(np.concatenate([left.places, right.places]), places)
        np.testing.assert_array_equal(np.concatenate([left.X.data, right.X.data]), expected.data)


@cases("target_bytes", [1, 7, 333, 1 << 20])
@cases("compressed", [False, True])
def test_chunked_is_whole(tmp_path, target_bytes, compressed):
    texts = [SMALL, b"", b"1 2:3\n" * 40, b"# nothing", SMALL]
    paths = [tmp_path / f"{i}.svm" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    source = (CompressedSvmlightSource if compressed else SvmlightSource)(paths)
    X, places = whole(source, target_bytes)
    expected = [row for part, text in enumerate(texts) for row in rows_of(text, 1, part)]
    assert bits(as_lists(X, places)) == bits(expected)


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
