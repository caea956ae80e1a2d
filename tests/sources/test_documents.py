"""Sources of documents: the same rows as scikit-learn's vectorizers, however they are stored and cut."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
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
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceNotFoundError
from streamkm.sources.chunks import Chunk
from streamkm.sources.documents import text_files
from streamkm.sources.documents.text_files import TextFiles
from streamkm.text import FeatureHashing
from tests.contracts import OnePassContract, Opened, RowSourceContract, SourceContract
from tests.tables import cases

M, N = 64, 23
HASHING = FeatureHashing(n_features=M)
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
    return sp.vstack([piece.X for piece in pieces], format="csr"), np.concatenate([piece.row_ids for piece in pieces])


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


def of_kind(kind):
    """Documents of a kind, how they are hashed, and the rows that they become."""
    documents = {"text": texts, "tokens": tokens, "counts": counts}[kind]()
    hashing = FeatureHashing(n_features=M, input=kind, norm="l2" if kind == "text" else None)
    return documents, hashing, (vectorized(documents) if kind == "text" else hashed(documents, kind)).toarray()


@pytest.mark.usefixtures("small_steps")
class TestText(SourceContract):
    @pytest.fixture(params=["several", "json tokens", "json counts", "tsv", "no header", "csv counts"])
    def opened(self, request, tmp_path):
        lines, records, options = texts(line_feeds=False), [*enumerate(texts())], {"field": "text"}
        hashing, wanted = HASHING, vectorized(texts()).toarray()
        if request.param == "several":
            (tmp_path / "empty.txt").write_bytes(b"")
            first, second = write_lines(tmp_path / "x.txt", lines, "\r\n"), write_lines(tmp_path / "a.txt", lines[:5])
            path, options = [first, tmp_path / "empty.txt", second], {}
            wanted = vectorized(lines + lines[:5]).toarray()
        elif request.param.startswith("json"):
            documents, hashing, wanted = of_kind(request.param.removeprefix("json "))
            path = write_json(tmp_path / "x.jsonl", documents)
        elif request.param == "tsv":
            path = write_csv(tmp_path / "x.tsv", records, delimiter="\t")
        elif request.param == "no header":
            path, options = write_csv(tmp_path / "x.csv", records[1:], records[0]), {"field": 1, "header": False}
        else:
            path = write_csv(tmp_path / "x.csv", [("a", i % 3, i % 2) for i in range(N)], ("x", "y", "z"))
            hashing, options = FeatureHashing(n_features=M, input="counts", norm=None), {"field": ["y", "z"]}
            wanted = hashed([{"y": str(i % 3), "z": str(i % 2)} for i in range(N)], "counts").toarray()
        return Opened(open_documents(path, hashing=hashing, tfidf=False, **options), wanted)


class TestParquet(SourceContract):
    @pytest.fixture(params=["tokens", "struct", "map", "columns", "several"])
    def opened(self, request, tmp_path):
        pa = pytest.importorskip("pyarrow")
        n, path, field = N, tmp_path / "x.parquet", "text"
        kind = {"tokens": "tokens", "several": "text"}.get(request.param, "counts")
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
            write_parquet(path, id=range(n), text=column.dictionary_encode())
            path = [path, write_parquet(tmp_path / "y.parquet", text=texts(5))]
            wanted = vectorized(texts() + texts(5))
        return Opened(open_documents(path, field=field, hashing=hashing, tfidf=False), wanted.toarray())


class TestCompressed(RowSourceContract):
    @pytest.fixture
    def opened(self, tmp_path):
        packed, plain = tmp_path / "x.jsonl.xz", write_json(tmp_path / "y.jsonl", texts())
        packed.write_bytes(lzma.compress(plain.read_bytes()))
        source = open_documents([packed, plain], field="text", hashing=HASHING, tfidf=False)
        return Opened(source, vectorized(texts() * 2).toarray())


class TestList(SourceContract):
    @pytest.fixture(params=["text", "tokens", "counts"])
    def opened(self, request):
        documents, hashing, wanted = of_kind(request.param)
        X = np.array(documents, object) if request.param == "text" else documents
        return Opened(open_documents(X, hashing=hashing, tfidf=False), wanted)


class TestStream(RowSourceContract):
    @pytest.fixture(params=["callable", "iterable"])
    def opened(self, request):
        documents, hashing, wanted = of_kind("tokens")
        if request.param == "callable":
            return Opened(open_documents(lambda: iter(documents), hashing=hashing, tfidf=False), wanted)
        documents = dict.fromkeys(f"{i} {i % 7} words" for i in range(N)).keys()
        return Opened(open_documents(documents, hashing=HASHING, tfidf=False), vectorized(documents).toarray())


class TestIterator(OnePassContract):
    @pytest.fixture
    def opened(self):
        return Opened(open_documents(iter(texts()), hashing=HASHING, tfidf=False), vectorized(texts()).toarray())


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
        assert [*left.row_ids, *right.row_ids][2] == data.index(b"zwei")


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


@cases("target_bytes", [1, 1 << 20])
@cases(
    "name, text, message",
    [
        ("x.txt", b"fine\nbad \xff here\n", r"x.txt, line 2 \(byte 9\): byte 0xff is not UTF-8.*decode_error="),
        ("x.jsonl", b'{"text": "a"}\n{"text": }\n', r"x.jsonl, line 2 \(byte 14\): malformed JSON"),
        ("x.jsonl", b'{"text": "a"}\n\n[1]\n', r"line 3 \(byte 15\): JSON \[1\] is no object"),
        ("x.jsonl", b'{"text": "a"}\n{"txt": "b", "id": 1}\n', r"line 2 \(byte 14\): field 'text' is missing; .* txt"),
        ("x.jsonl", b'{"text": null}\n', r"line 1 \(byte 0\): field 'text' holds null where input=\"text\""),
        ("x.jsonl", b'{"text": ["a"]}\n', r"field 'text' holds \[\"a\"\] .*pass FeatureHashing\(input=\"tokens\"\)"),
        ("x.csv", b"id,txt\n1,a\n", r"x.csv, line 2 \(byte 7\): field 'text' is missing; the record has id, txt"),
        ("x.csv", b'id,text\n1,"a\n2,b\n', r"x.csv, line 2 \(byte 8\): malformed CSV: unexpected end of data"),
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
    (tmp_path / "x.txt").write_bytes(b"gr\xf6sse red\n")
    for decode_error, text in (("replace", "gr\ufffdsse red"), ("ignore", "grsse red")):
        source = open_documents(tmp_path / "x.txt", hashing=HASHING, tfidf=False, decode_error=decode_error)
        same(whole(source)[0], vectorized([text]))


@cases("n_rows", [4001, 4008])
def test_plain_lines_are_sampled_at_eight_places(tmp_path, n_rows):
    path = tmp_path / "x.txt"
    path.write_text("red fish, blue fish, and a hundred other words of the sea\n" * n_rows)
    batch, n_bytes = TextFiles([str(path)], HASHING, "lines").sample()
    assert n_bytes == path.stat().st_size
    assert {*(8 * batch.row_ids // path.stat().st_size).tolist()} == {*range(8)}


@cases(
    "X, options, message",
    [
        ([], {}, "list of documents has 0 bytes of text"),
        (lambda: iter([]), {}, "gives no documents"),
        (["a", 3], {}, r"row 1 of list of documents: int where input=\"text\" needs a text"),
        ([{"a": 1}], {}, r"pass FeatureHashing\(input=\"counts\"\)"),
        (["a", None], {}, "row 1 .* NoneType"),
        (b"abc", {}, "bytes has no documents"),
        (["a"], {"field": "a"}, "field= is for files; X is documents of type"),
        ({"path": "x"}, {}, "dict has no documents"),
    ],
)
def test_what_holds_no_documents_is_refused(X, options, message):
    with pytest.raises((InvalidInputError, InvalidParameterError), match=message):
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
        ("x.jsonl", {"field": [1.5]}, r"field=1.5; needed"),
        ("x.csv", {"field": -1}, r"field=-1; needed for csv: .* number from 0"),
        (
            "x.csv",
            {"field": "a", "header": False},
            r"field=.*needed for csv: .* header=False leaves columns without names",
        ),
        ("x.csv", {"field": "a", "delimiter": '"'}, "needed: one ASCII character, no quote"),
    ],
)
def test_options_of_no_use_are_refused(tmp_path, name, options, message):
    (tmp_path / name).write_bytes(b"text\n")
    with pytest.raises(InvalidParameterError, match=message):
        open_documents(tmp_path / name, tfidf=False, **options)


def test_a_token_that_cannot_be_hashed_is_named(tmp_path):
    path = write_json(tmp_path / "x.jsonl", [["fine"], ["\ud800"], [3]])
    hashing = FeatureHashing(n_features=M, input="tokens")
    with pytest.raises(InvalidInputError, match=r"x.jsonl, line 2 \(byte \d+\): it cannot be hashed: .*surrogates"):
        whole(open_documents(path, field="text", hashing=hashing, tfidf=False))
    with pytest.raises(InvalidInputError, match=r"row 1 of .*it cannot be hashed: .*strings"):
        whole(open_documents([["fine"], [3]], hashing=hashing, tfidf=False))


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        open_documents(tmp_path / "x.txt")
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        open_documents(str(tmp_path / "*.txt"))
    (tmp_path / "x.txt").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="has 0 bytes of text"):
        open_documents(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(b"a\n")
    (tmp_path / "y.jsonl").write_bytes(b"{}\n")
    with pytest.raises(InvalidInputError, match=r"several formats \(jsonl, lines\)"):
        open_documents(str(tmp_path / "*"))


def test_bad_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = write_parquet(tmp_path / "x.parquet", text=["a", None, "b"])
    with pytest.raises(InvalidInputError, match=r"row 1 of .*x.parquet: field 'text' holds null"):
        whole(open_documents(path, field="text", tfidf=False))
    with pytest.raises(InvalidInputError, match="column 'body' is missing; it has text"):
        open_documents(path, field="body")
    with pytest.raises(InvalidParameterError, match="needed for parquet"):
        open_documents(path)
    with pytest.raises(InvalidInputError, match="0 bytes of text"):
        open_documents(write_parquet(tmp_path / "z.parquet", text=[]), field="text")


def test_an_iterator_has_no_pass_for_document_frequencies():
    with pytest.raises(InvalidInputError, match="document frequencies take a pass of their own"):
        open_documents(iter(texts()), hashing=HASHING)
