"""Sources of documents: the same rows as scikit-learn's vectorizers, however they are stored and cut."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer

from streamkm import StreamKMeans, open_documents
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.sources.chunks import Chunk
from streamkm.sources.documents import files as text_files
from streamkm.sources.documents.files import TextFiles
from streamkm.text import FeatureHashing
from tests.contracts import OnePassContract, Opened, RowSourceContract, SourceContract
from tests.tables import cases

M, N = 64, 23
HASHING = FeatureHashing(n_features=M)
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
WORDS = ["red", "fish", "blue", "größe", "Äpfel", "naïve", "日本語", "zz9", "one_two", "fish,", 'say "hi"', "Fish"]


def texts(n: int = N, *, line_feeds: bool = True) -> list[str]:
    """Documents with empty ones at both ends and in the middle, some of several lines."""
    rng = np.random.default_rng(n)
    made = [("\n" if line_feeds and i % 5 == 0 else " ").join(rng.choice(WORDS, rng.integers(0, 12))) for i in range(n)]
    for i in (0, n // 2, n - 1):
        made[i] = ""
    return made


def tokens(n: int = N) -> list[list[str]]:
    return [text.split() for text in texts(n)]


def counts(n: int = N) -> list[dict[str, float]]:
    rng = np.random.default_rng(n)
    return [{name: float(rng.integers(-3, 4)) for name in rng.choice(WORDS, i % 6)} for i in range(n)]


def vectorized(documents, **options):
    return HashingVectorizer(n_features=M, dtype=np.float32, **options).transform(documents)


def hashed(documents, kind):
    X = FeatureHasher(M, input_type={"tokens": "string", "counts": "dict"}[kind], dtype=np.float32)
    return X.transform(documents)


def write_lines(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


def write_json(path: Path, documents, field: str = "text") -> Path:
    return write_lines(path, [json.dumps({"id": i, field: each}) for i, each in enumerate(documents)])


def write_csv(path: Path, rows, header=("id", "text"), **options) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, **options)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def write_parquet(path: Path, row_group_size: int = 7, **columns) -> Path:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def whole(source, target_bytes: int = 1 << 30):
    pieces = list(source.stream(target_bytes))
    return sp.vstack([piece.X for piece in pieces], format="csr"), np.concatenate([piece.places for piece in pieces])


def same(got, wanted) -> None:
    """Bit for bit, stored zeros and order within rows included."""
    got, wanted = sp.csr_array(got), sp.csr_array(wanted)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))


@pytest.fixture
def small_steps(monkeypatch):
    """Let small CSV files be cut."""
    monkeypatch.setattr(text_files, "STEP_BYTES", 16)


# ---- the contract of all sources


class TestLines(SourceContract):
    @pytest.fixture(params=["\n", "\r\n", "tokens", "several"])
    def opened(self, request, tmp_path):
        lines = texts(line_feeds=False)
        end = request.param if request.param == "\r\n" else "\n"
        path = write_lines(tmp_path / "x.txt", lines, end)
        if request.param == "tokens":
            hashing = FeatureHashing(n_features=M, input="tokens", norm=None)
            source = open_documents(path, hashing=hashing, tfidf=False)
            return Opened(source, hashed([line.split() for line in lines], "tokens").toarray())
        if request.param == "several":
            (tmp_path / "empty.txt").write_bytes(b"")
            paths = [path, tmp_path / "empty.txt", write_lines(tmp_path / "a.txt", lines[:5])]
            return Opened(open_documents(paths, hashing=HASHING, tfidf=False), vectorized(lines + lines[:5]).toarray())
        return Opened(open_documents(str(path), hashing=HASHING, tfidf=False), vectorized(lines).toarray())


class TestJsonLines(SourceContract):
    @pytest.fixture(params=["text", "tokens", "counts"])
    def opened(self, request, tmp_path):
        kind = request.param
        documents = {"text": texts, "tokens": tokens, "counts": counts}[kind]()
        path = write_json(tmp_path / "x.jsonl", documents, "body")
        hashing = FeatureHashing(n_features=M, input=kind, norm="l2" if kind == "text" else None)
        wanted = vectorized(documents) if kind == "text" else hashed(documents, kind)
        return Opened(open_documents(path, field="body", hashing=hashing, tfidf=False), wanted.toarray())


@pytest.mark.usefixtures("small_steps")
class TestCsv(SourceContract):
    @pytest.fixture(params=["text", "tsv", "number", "no header", "counts", "all quoted"])
    def opened(self, request, tmp_path):
        documents = texts()
        rows = [(i, text) for i, text in enumerate(documents)]
        options, field = {}, "text"
        if request.param == "counts":
            path = write_csv(tmp_path / "x.csv", [("a", i % 3, i % 2) for i in range(N)], ("x", "y", "z"))
            hashing = FeatureHashing(n_features=M, input="counts", norm=None)
            wanted = hashed([{"y": str(i % 3), "z": str(i % 2)} for i in range(N)], "counts")
            return Opened(open_documents(path, field=["y", "z"], hashing=hashing, tfidf=False), wanted.toarray())
        if request.param == "tsv":
            path = write_csv(tmp_path / "x.tsv", rows, delimiter="\t")
        elif request.param == "no header":
            path, field, options = write_csv(tmp_path / "x.csv", rows[1:], rows[0]), 1, {"header": False}
        else:
            quoting = csv.QUOTE_ALL if request.param == "all quoted" else csv.QUOTE_MINIMAL
            path = write_csv(tmp_path / "x.csv", rows, quoting=quoting)
            field = 1 if request.param == "number" else "text"
        source = open_documents(path, field=field, hashing=HASHING, tfidf=False, **options)
        return Opened(source, vectorized(documents).toarray())


class TestParquet(SourceContract):
    @pytest.fixture(params=["text", "dictionary", "tokens", "struct", "map", "columns", "several"])
    def opened(self, request, tmp_path):
        pa = pytest.importorskip("pyarrow")
        n, path, field, kind = N, tmp_path / "x.parquet", "text", "text"
        if request.param in ("tokens", "columns"):
            kind = {"tokens": "tokens", "columns": "counts"}[request.param]
        if request.param in ("struct", "map"):
            kind = "counts"
        hashing = FeatureHashing(n_features=M, input=kind, norm="l2" if kind == "text" else None)
        if request.param == "tokens":
            write_parquet(path, id=range(n), text=tokens())
            wanted = hashed(tokens(), kind)
        elif request.param == "columns":
            write_parquet(path, color=[("red", "blue", None)[i % 3] for i in range(n)], size=[i / 2 for i in range(n)])
            field = ["color", "size"]
            rows = [{"color": ("red", "blue", "")[i % 3], "size": i / 2} for i in range(n)]
            wanted = hashed([{name: value for name, value in row.items() if value != ""} for row in rows], kind)
        elif request.param == "struct":
            write_parquet(path, text=[{"a": i, "b": None if i % 2 else 2.5} for i in range(n)])
            wanted = hashed([{"a": i} if i % 2 else {"a": i, "b": 2.5} for i in range(n)], kind)
        elif request.param == "map":
            dicts = counts()
            column = pa.array([list(each.items()) for each in dicts], pa.map_(pa.string(), pa.float64()))
            write_parquet(path, text=column)
            wanted = hashed(dicts, kind)
        else:
            column = pa.array(texts())
            write_parquet(path, id=range(n), text=column.dictionary_encode() if "dict" in request.param else column)
            wanted = vectorized(texts())
        if request.param == "several":
            paths = [path, write_parquet(tmp_path / "y.parquet", text=texts(5))]
            wanted = sp.vstack([wanted, vectorized(texts(5))])
            return Opened(open_documents(paths, field=field, hashing=hashing, tfidf=False), wanted.toarray())
        return Opened(open_documents(path, field=field, hashing=hashing, tfidf=False), wanted.toarray())


class TestCompressed(RowSourceContract):
    @pytest.fixture(params=["txt.gz", "jsonl.bz2", "csv.xz", "jsonl.zst", "mixed"])
    def opened(self, request, tmp_path):
        form, _, suffix = request.param.partition(".")
        documents = texts(line_feeds=form != "txt")
        path = tmp_path / "x"
        if form == "txt":
            write_lines(path, documents)
        elif form == "csv":
            write_csv(path, enumerate(documents))
        else:
            write_json(path, documents)
        pack = PACKERS.get(suffix, gzip.compress)
        if suffix == "zst":
            pack = pytest.importorskip("zstandard").ZstdCompressor().compress
        packed = tmp_path / f"x.{form if form != 'mixed' else 'jsonl'}.{suffix or 'gz'}"
        packed.write_bytes(pack(path.read_bytes()))
        field = None if form == "txt" else "text"
        paths = [packed]
        if form == "mixed":
            paths.append(write_json(tmp_path / "y.jsonl", documents))
            documents = documents * 2
        return Opened(open_documents(paths, field=field, hashing=HASHING, tfidf=False), vectorized(documents).toarray())


class TestList(SourceContract):
    @pytest.fixture(params=["list", "tuple", "array", "tokens", "counts"])
    def opened(self, request):
        kind = request.param if request.param in ("tokens", "counts") else "text"
        documents = {"text": texts, "tokens": tokens, "counts": counts}[kind]()
        X = {"tuple": tuple, "array": lambda each: np.array(each, object)}.get(request.param, list)(documents)
        hashing = FeatureHashing(n_features=M, input=kind, norm="l2" if kind == "text" else None)
        wanted = vectorized(documents) if kind == "text" else hashed(documents, kind)
        return Opened(open_documents(X, hashing=hashing, tfidf=False), wanted.toarray())


class TestStream(RowSourceContract):
    @pytest.fixture(params=["callable", "iterable", "tokens"])
    def opened(self, request):
        kind = "tokens" if request.param == "tokens" else "text"
        documents = tokens() if kind == "tokens" else texts()
        if request.param == "iterable":
            documents = [f"{i} {i % 7} words" for i in range(N)]
            X = dict.fromkeys(documents).keys()
        else:
            X = lambda: iter(documents)  # noqa: E731
        hashing = FeatureHashing(n_features=M, input=kind, norm="l2" if kind == "text" else None)
        wanted = vectorized(documents) if kind == "text" else hashed(documents, kind)
        return Opened(open_documents(X, hashing=hashing, tfidf=False), wanted.toarray())


class TestIterator(OnePassContract):
    @pytest.fixture
    def opened(self):
        hashing = FeatureHashing(n_features=M, norm="l2")
        source = open_documents(iter(texts()), hashing=hashing, tfidf=False)
        return Opened(source, vectorized(texts()).toarray())


# ---- cutting


DOCUMENTS = st.lists(st.text(alphabet='ab ",\né\r日', max_size=12), min_size=1, max_size=25)


@given(DOCUMENTS, st.integers(1, 400), st.sampled_from(["txt", "jsonl", "csv"]), st.booleans())
def test_any_documents_in_any_cut(tmp_path_factory, documents, target_bytes, form, quote_all):
    path = tmp_path_factory.mktemp("cut") / f"x.{form}"
    if form == "txt":
        documents = [document.replace("\n", " ").replace("\r", " ") for document in documents]
        write_lines(path, documents)
    elif form == "jsonl":
        write_json(path, documents)
    else:
        write_csv(path, enumerate(documents), quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL)
    hashing = FeatureHashing(n_features=M, analyzer="char", ngram_range=(1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "STEP_BYTES", 5)
        source = open_documents(path, field=None if form == "txt" else "text", hashing=hashing, tfidf=False)
        X, places = whole(source, target_bytes)
    same(X, vectorized(documents, analyzer="char", ngram_range=(1, 2)))
    data = path.read_bytes()
    assert all(place == 0 or data[place - 1 : place] == b"\n" for place in places)
    packed = path.with_suffix(f".{form}.gz")
    packed.write_bytes(gzip.compress(data))
    again = open_documents(packed, field=None if form == "txt" else "text", hashing=hashing, tfidf=False)
    X, packed_places = whole(again, target_bytes)
    same(X, vectorized(documents, analyzer="char", ngram_range=(1, 2)))
    np.testing.assert_array_equal(packed_places, places)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_cut_of_a_small_file(tmp_path, mark):
    path = tmp_path / "x.txt"
    data = mark + "one\n\nzwei größe\r\n日本語 three\n\nlast".encode()
    path.write_bytes(data)
    documents = TextFiles([str(path)], HASHING, "lines")
    wanted = ["one", "", "zwei größe", "日本語 three", "", "last"]
    assert documents.batch(Chunk(0, 0, 0, len(data), 0)).documents == wanted
    for cut in range(1, len(data)):
        left, right = (documents.batch(Chunk(0, 0, a, b, 0)) for a, b in pairwise((0, cut, len(data))))
        assert left.documents + right.documents == wanted
        assert [*left.places, *right.places][2] == data.index(b"zwei")


def test_a_quoted_line_feed_is_never_cut(tmp_path, small_steps):
    """Stray quotes, doubled quotes and text that looks like other records."""
    cells = ['5" pipe', 'a\n1,"b\n2,c', '""\n""', 'x,y\r\nz,"', "", '"', "plain", '6" pipe']
    file = io.StringIO(newline="")
    csv.writer(file).writerows(enumerate(cells))
    text = "id,text\r\n" + file.getvalue() + '8,5" pipe\r\n\r\n9,7" x 8"\r\n10,tail'  # quotes within bare fields
    path = tmp_path / "x.csv"
    path.write_bytes(text.encode())
    source = open_documents(path, field="text", hashing=FeatureHashing(n_features=M, analyzer="char"), tfidf=False)
    wanted = vectorized([*cells, '5" pipe', '7" x 8"', "tail"], analyzer="char")
    assert len(source.chunks(1)) > 4
    for target_bytes in (1, 40, 200, 1 << 20):
        same(whole(source, target_bytes)[0], wanted)


def test_parquet_row_groups_are_kept_whole(tmp_path):
    path = write_parquet(tmp_path / "x.parquet", text=texts(53), row_group_size=10)
    source = open_documents(path, field="text", hashing=HASHING, tfidf=False)
    assert [(chunk.start, chunk.stop) for chunk in source.chunks(1)] == [*pairwise((0, 10, 20, 30, 40, 50, 53))]
    assert [(chunk.start, chunk.stop) for chunk in source.chunks(1 << 40)] == [(0, 53)]
    assert (source.n_rows, source.estimated_rows) == (53, 53)
    fitted = [StreamKMeans(2, random_state=0, progress=False).fit(X) for X in (source, source.hashing.apply(texts(53)))]
    np.testing.assert_array_equal(fitted[0].labels_, fitted[1].labels_)


def test_chunks_decode_to_about_the_target(tmp_path):
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{j}" for j in rng.integers(0, 50_000, 60)) for _ in range(1_200)]
    source = open_documents(write_lines(tmp_path / "x.txt", lines), tfidf=False)
    assert source.estimated_rows == pytest.approx(1_200, rel=0.05)
    for chunk in source.chunks(100_000):
        rows = source.read(chunk)
        n_bytes = rows.X.data.nbytes + rows.X.indices.nbytes + 12 * rows.X.shape[0]
        assert n_bytes == pytest.approx(100_000, rel=0.2)
        assert n_bytes == pytest.approx(chunk.n_bytes, rel=0.1)
    for suffix, pack in PACKERS.items():
        packed = tmp_path / f"x.txt.{suffix}"
        packed.write_bytes(pack((tmp_path / "x.txt").read_bytes()))
        assert open_documents(packed, tfidf=False).estimated_rows == pytest.approx(1_200, rel=0.7)


# ---- as a source


def test_pickle_is_small(tmp_path):
    path = write_json(tmp_path / "x.jsonl", texts(2_000))
    source = open_documents(path, field="text", hashing=HASHING)
    wanted, _ = whole(source)
    dumped = pickle.dumps(source.source)
    assert len(dumped) < 2_000
    assert len(pickle.dumps(source)) < 2_000 + 16 * M + 500
    same(whole(pickle.loads(pickle.dumps(source)))[0], wanted)


def test_places_name_lines(tmp_path):
    path = write_json(tmp_path / "x.jsonl", texts())
    packed = tmp_path / "y.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    source = open_documents([path, packed], field="text", hashing=HASHING, tfidf=False)
    _, places = whole(source)
    offset = path.read_bytes().index(b'{"id": 2,')
    assert source.describe(int(places[2])) == f"{path}, line 3 (byte {offset})"
    assert source.describe(int(places[N + 2])) == f"{packed}, line 3 (byte {offset})"


def test_fields_of_several_columns(tmp_path):
    rows = [
        {"title": "Red Fish", "body": "blue", "tags": ["a", "b"], "n": 2, "color": "red"},
        {"title": "", "body": "x y", "tags": [], "n": None, "color": "blue"},
    ]
    path = write_lines(tmp_path / "x.jsonl", [json.dumps(row) for row in rows])

    def read(field, kind):
        hashing = FeatureHashing(n_features=M, input=kind, norm=None)
        return whole(open_documents(path, field=field, hashing=hashing, tfidf=False))[0]

    same(read(["title", "body"], "text"), vectorized(["Red Fish\nblue", "\nx y"], norm=None))
    same(read(["tags"], "tokens"), hashed([["a", "b"], []], "tokens"))
    same(read(["n", "color"], "counts"), hashed([{"n": 2, "color": "red"}, {"color": "blue"}], "counts"))


# ---- what is wrong


@pytest.mark.parametrize("target_bytes", [1, 1 << 20])
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.txt", b"fine\nbad \xff here\n", r"x.txt, line 2 \(byte 9\): byte 0xff is not UTF-8.*decode_error="),
        ("x.txt", b"\xff\xfea\x00", r"x.txt, line 1 \(byte 0\): byte 0xff is not UTF-8"),
        ("x.jsonl", b'{"text": "a"}\n{"text": }\n', r"x.jsonl, line 2 \(byte 14\): malformed JSON"),
        ("x.jsonl", b'{"text": "a"}\n\n[1]\n', r"line 3 \(byte 15\): JSON \[1\] is no object"),
        ("x.jsonl", b'{"text": "a"}\n{"txt": "b", "id": 1}\n', r"line 2 \(byte 14\): field 'text' is missing; .* txt"),
        ("x.jsonl", b'{"text": null}\n', r"line 1 \(byte 0\): field 'text' holds null where input=\"text\""),
        ("x.jsonl", b'{"text": ["a"]}\n', r"field 'text' holds \[\"a\"\] .*pass FeatureHashing\(input=\"tokens\"\)"),
        ("x.csv", b"id,txt\n1,a\n", r"x.csv, line 2 \(byte 7\): field 'text' is missing; the record has id, txt"),
        ("x.csv", b"id,text\n1,a\n2\n", r"x.csv, line 3 \(byte 12\): field 'text' is missing; the record has id"),
        ("x.csv", b'id,text\n1,"a\n2,b\n', r"x.csv, line 2 \(byte 8\): malformed CSV: unexpected end of data"),
        ("x.csv", b'id,text\n1,"a"b\n', r"x.csv, line 2 \(byte 8\): malformed CSV"),
        ("x.csv", b"id,text\n1,a\rb\n", r"x.csv, line 2 \(byte 8\): malformed CSV: new-line character"),
        ("x.csv", b"id,text\n1,a\n2,\xe9\n", r"x.csv, line 3 \(byte 14\): byte 0xe9 is not UTF-8"),
    ],
)  # fmt: skip
def test_malformed_text_is_named(tmp_path, small_steps, name, text, message, target_bytes):
    for path, data in ((tmp_path / name, text), (tmp_path / "packed" / f"{name}.gz", gzip.compress(text))):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        field = None if name.endswith("txt") else "text"
        with pytest.raises(InvalidInputError, match=message.replace(name, path.name)):
            whole(open_documents(path, field=field, tfidf=False), target_bytes)


def test_bytes_that_are_not_utf8_may_be_replaced(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"gr\xf6sse red\n")
    for decode_error, text in (("replace", "gr\ufffdsse red"), ("ignore", "grsse red")):
        source = open_documents(path, hashing=HASHING, tfidf=False, decode_error=decode_error)
        same(whole(source)[0], vectorized([text]))


def test_documents_of_long_lines_are_sampled_where_there_are_no_others(tmp_path):
    (tmp_path / "x.txt").write_text(("w12 " * 400_000 + "\n") * 3)
    source = open_documents(tmp_path / "x.txt", tfidf=False)
    assert 3 <= source.estimated_rows <= 5


@cases("n_rows", [4001, 4004, 4008])
def test_plain_lines_are_sampled_at_eight_places(tmp_path, n_rows):
    path = tmp_path / "x.txt"
    path.write_text("red fish, blue fish, and a hundred other words of the sea\n" * n_rows)
    batch, n_bytes = TextFiles([str(path)], HASHING, "lines").sample()
    assert n_bytes == path.stat().st_size
    assert {*(8 * batch.places // path.stat().st_size).tolist()} == {*range(8)}


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("streamkm.sources.text_lines.MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "x.txt").write_bytes(b"short\n" + b"x" * (3 << 20))
    with pytest.raises(InvalidInputError, match=r"x.txt, line 2 \(byte 6\): a line is longer than"):
        whole(open_documents(tmp_path / "x.txt", tfidf=False))


@cases(
    "X, options, message",
    [
        ([], {}, "list of documents has 0 bytes of text"),
        (lambda: iter([]), {}, "gives no documents"),
        (["a", 3], {}, r"row 1 of list of documents: int where input=\"text\" needs a text"),
        ([["a"]], {}, r"row 0 .*: list where .*; pass FeatureHashing\(input=\"tokens\"\)"),
        ([{"a": 1}], {}, r"pass FeatureHashing\(input=\"counts\"\)"),
        (["a", None], {}, "row 1 .* NoneType"),
        (3, {}, "int has no documents"),
        (b"abc", {}, "bytes has no documents"),
        (np.zeros((2, 2)), {}, "ndarray has no documents"),
        ({"path": "x"}, {}, "dict has no documents"),
    ],
)
def test_what_holds_no_documents_is_refused(X, options, message):
    with pytest.raises(InvalidInputError, match=message):
        whole(open_documents(X, tfidf=False, **options))


@cases(
    "name, options, message",
    [
        ("x.txt", {"field": "a"}, r"field= and .* do not apply to lines of text"),
        ("x.txt", {"hashing": FeatureHashing(input="counts")}, "use JSON lines"),
        ("x.txt", {"delimiter": ","}, "delimiter= does not apply to lines; its options are decode_error"),
        ("x.txt", {"colour": 1}, "colour= does not apply to"),
        ("x.txt", {"format": "xml"}, "format='xml' is unknown; known are auto, lines"),
        ("x.txt", {"decode_error": "maybe"}, "decode_error='maybe'; needed"),
        ("x.jsonl", {}, "field=None; needed for jsonl"),
        ("x.jsonl", {"field": 1}, "field=1; needed for jsonl"),
        ("x.jsonl", {"field": [1.5]}, r"field=1.5; needed"),
        ("x.csv", {}, "field=None; needed for csv: the name .*, or its number from 0"),
        ("x.csv", {"field": -1}, r"field=-1; needed for csv: .* number from 0"),
        (
            "x.csv",
            {"field": "a", "header": False},
            r"field=.*needed for csv: .* header=False leaves columns without names",
        ),
        ("x.csv", {"field": "a", "delimiter": "::"}, "delimiter='::'; needed: one ASCII character"),
        ("x.csv", {"field": "a", "delimiter": '"'}, "needed: one ASCII character, no quote"),
    ],
)
def test_options_of_no_use_are_refused(tmp_path, name, options, message):
    (tmp_path / name).write_bytes(b"text\n")
    with pytest.raises(InvalidParameterError, match=message):
        open_documents(tmp_path / name, tfidf=False, **options)


def test_options_of_files_are_refused_for_documents_in_memory():
    for options in ({"field": "a"}, {"delimiter": ","}, {"format": "lines"}):
        with pytest.raises(InvalidParameterError, match=f"{next(iter(options))}= is for files; X is documents of type"):
            open_documents(["a"], tfidf=False, **options)


def test_a_token_that_cannot_be_hashed_is_named(tmp_path):
    path = write_json(tmp_path / "x.jsonl", [["fine"], ["\ud800"], [3]])
    hashing = FeatureHashing(n_features=M, input="tokens")
    with pytest.raises(InvalidInputError, match=r"x.jsonl, line 2 \(byte \d+\): it cannot be hashed: .*surrogates"):
        whole(open_documents(path, field="text", hashing=hashing, tfidf=False))
    with pytest.raises(InvalidInputError, match=r"row 1 of .*it cannot be hashed: .*strings"):
        whole(open_documents([["fine"], [3]], hashing=hashing, tfidf=False))
    hashing = FeatureHashing(n_features=M, input="counts")
    with pytest.raises(InvalidInputError, match=r"row 1 of .*it cannot be hashed: .*number"):
        whole(open_documents([{"a": 1}, {"a": None}], hashing=hashing, tfidf=False))


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        open_documents(tmp_path / "x.txt")
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        open_documents(str(tmp_path / "*.txt"))
    with pytest.raises(InvalidInputError, match="has 0 bytes of text"):
        open_documents(tmp_path)
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="has 0 bytes of text"):
        open_documents(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(b"a\n")
    (tmp_path / "y.jsonl").write_bytes(b"{}\n")
    with pytest.raises(InvalidInputError, match=r"several formats \(jsonl, lines\)"):
        open_documents(str(tmp_path / "*"))
    packed = gzip.compress(b"some words\n" * 5_000)
    (tmp_path / "x.txt.gz").write_bytes(packed[:-20])
    with pytest.raises(SourceError, match="truncated or corrupt gzip file"):
        whole(open_documents(tmp_path / "x.txt.gz", tfidf=False))


def test_bad_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = write_parquet(tmp_path / "x.parquet", text=["a", None, "b"])
    with pytest.raises(InvalidInputError, match=r"row 1 of .*x.parquet: field 'text' holds null"):
        whole(open_documents(path, field="text", tfidf=False))
    with pytest.raises(InvalidInputError, match="column 'body' is missing; it has text"):
        open_documents(path, field="body")
    with pytest.raises(InvalidParameterError, match="needed for parquet"):
        open_documents(path)
    (tmp_path / "y.parquet").write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SourceError, match="cannot be read as Parquet"):
        open_documents(tmp_path / "y.parquet", field="text")
    with pytest.raises(InvalidInputError, match="0 bytes of text"):
        open_documents(write_parquet(tmp_path / "z.parquet", text=[]), field="text")


def test_an_iterator_has_no_pass_for_document_frequencies():
    with pytest.raises(InvalidInputError, match="document frequencies take a pass of their own"):
        open_documents(iter(texts()), hashing=HASHING)
