"""A document a file: the same rows as scikit-learn's vectorizer of their texts; and ids of documents of all kinds."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_files
from sklearn.feature_extraction.text import HashingVectorizer

from streamkm import StreamKMeans, open_documents
from streamkm.cli.data import read_text_settings
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError, SourceError
from streamkm.sources.text_lines import BLOCK_BYTES, LineLimit
from streamkm.text import FeatureHashing
from tests.cli.test_cli import run
from tests.contracts import Opened, SourceContract
from tests.passes.test_text import topic_texts
from tests.sources.test_documents import HASHING, M, texts, vectorized, whole, write_csv, write_json, write_parquet


def write_folder(folder: Path, documents, name="{:03}.txt") -> list[str]:
    """Documents as files, in folders of ten; gives their names in the order in which they count."""
    names = [f"{number // 10}/{name.format(number)}" for number in range(len(documents))]
    for each, text in zip(names, documents, strict=True):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_bytes(text.encode())
    return names


class TestWholeFiles(SourceContract):
    @pytest.fixture(params=["folder", "glob", "list", "tokens"])
    def opened(self, request, tmp_path):
        documents = texts()
        write_folder(tmp_path, documents)
        hashing, X, options = HASHING, str(tmp_path), {}
        if request.param == "glob":
            X, options = str(tmp_path / "*" / "*.txt"), {"format": "files"}
        elif request.param == "list":
            X, options = [tmp_path / "1", tmp_path / "0", *sorted(tmp_path.glob("2/*"))], {"format": "files"}
        elif request.param == "tokens":
            hashing = FeatureHashing(n_features=M, input="tokens", norm="l2", alternate_sign=True)
            from sklearn.feature_extraction import FeatureHasher
            from sklearn.preprocessing import normalize

            hashed = FeatureHasher(M, input_type="string", dtype=np.float32).transform([d.split() for d in documents])
            return Opened(open_documents(X, hashing=hashing, tfidf=False), normalize(hashed).toarray())
        return Opened(open_documents(X, hashing=hashing, tfidf=False, **options), vectorized(documents).toarray())


def test_as_scikit_learn_loads_a_folder(tmp_path):
    documents, _ = topic_texts(60)
    write_folder(tmp_path, documents, "{}")
    loaded = load_files(tmp_path, shuffle=False)
    order = np.argsort([os.path.relpath(name, tmp_path) for name in loaded.filenames], kind="stable")
    wanted = HashingVectorizer(n_features=M, dtype=np.float32).transform([loaded.data[i] for i in order])
    got, _ = whole(open_documents(tmp_path, hashing=HASHING, tfidf=False))
    np.testing.assert_array_equal(got.toarray(), wanted.toarray())


def test_ids_are_names_in_the_folder(tmp_path):
    names = write_folder(tmp_path, texts())
    hidden = [tmp_path / ".git" / "x.txt", tmp_path / "_old" / "x.txt", tmp_path / "0" / ".x.txt"]
    for path in hidden:
        path.parent.mkdir(exist_ok=True)
        path.write_text("not a document")
    for X in (tmp_path, f"{tmp_path}/", f"{tmp_path}/[0-9]/*.txt", [tmp_path / "0", tmp_path / "1", tmp_path / "2"]):
        source = open_documents(X, format="files", tfidf=False)
        assert list(source.ids()) == [names]
        assert source.origin.id_column == "file"
    assert source.n_rows == len(names)
    assert source.describe(12).endswith("1/012.txt")


def test_ids_show_in_summary_and_table(tmp_path):
    pytest.importorskip("pyarrow")
    documents, _ = topic_texts(60)
    names = write_folder(tmp_path / "posts", documents)
    source = open_documents(tmp_path / "posts", hashing=FeatureHashing(n_features=4096))
    kmeans = StreamKMeans(3, random_state=0, progress=False).fit(source)
    shown = [each for row in kmeans.summary(rows=source).rows for each in row.typical]
    assert shown
    assert all(each.id == names[each.row] for each in shown)
    kmeans.predict_to(source, tmp_path / "labels.csv")
    table = pd.read_csv(tmp_path / "labels.csv")
    assert table["file"].tolist() == names
    np.testing.assert_array_equal(table["label"], kmeans.labels_)


def test_two_thousand_files_with_one_handle_each_at_a_time(tmp_path):
    for number in range(2_000):
        (tmp_path / f"{number:05}.txt").write_text(f"word{number % 7} fish")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        source = open_documents(tmp_path, hashing=HASHING, tfidf=False)
        X, places = whole(source, 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert X.shape == (2_000, M)
    np.testing.assert_array_equal(places, np.arange(2_000))
    assert source.origin.files == (str(tmp_path),)
    assert len(pickle.dumps(source)) < 600_000


def test_large_files_are_refused_as_long_lines_are(tmp_path):
    words = "red fish " * (BLOCK_BYTES // 4)
    write_folder(tmp_path, ["blue fish", words, ""])
    source = open_documents(tmp_path, hashing=HASHING, tfidf=False)
    got, _ = whole(source)
    np.testing.assert_array_equal(got.toarray(), vectorized(["blue fish", words, ""]).toarray())
    with pytest.raises(MemoryLimitError, match=r"001\.txt"):
        whole(source.with_line_limit(LineLimit(500 << 20, 0, 1)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"caf\xe9", r"bad\.txt \(byte 3\): byte 0xe9 is not UTF-8 .*decode_error=\"replace\""),
        (gzip.compress(b"red fish"), r"bad\.txt \(byte 1\): byte 0x8b is not UTF-8"),
        ("red".encode("utf-16"), r"bad\.txt \(byte 0\): byte 0xff is not UTF-8"),
    ],
    ids=["latin 1", "packed", "utf-16"],
)
def test_errors_name_the_file(tmp_path, content, message):
    write_folder(tmp_path, ["red fish", "blue fish"])
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        whole(open_documents(tmp_path, hashing=HASHING, tfidf=False))


def test_bytes_that_are_not_utf8_may_be_replaced_and_marks_are_left_out(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 red")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfred fish")
    got, _ = whole(open_documents(tmp_path, hashing=HASHING, tfidf=False, decode_error="replace"))
    np.testing.assert_array_equal(got.toarray(), vectorized(["caf\ufffd red", "red fish"]).toarray())


def test_refusals(tmp_path):
    folder = tmp_path / "posts"
    folder.mkdir()
    with pytest.raises(InvalidInputError, match="posts has 0 bytes of text"):
        open_documents(folder)
    (folder / "a.txt").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="has 0 bytes of text"):
        open_documents(folder)
    (folder / "b.txt").write_text("red fish")
    with pytest.raises(InvalidParameterError, match=r"field= and .* do not apply to files"):
        open_documents(folder, field="x")
    with pytest.raises(InvalidParameterError, match="use JSON lines"):
        open_documents(folder, hashing=FeatureHashing(input="counts"))
    with pytest.raises(InvalidParameterError, match="id_column= does not apply to files"):
        open_documents(folder, id_column="x")
    source = open_documents(folder, hashing=HASHING, tfidf=False)
    (folder / "b.txt").write_text("red fish, blue fish")
    with pytest.raises(SourceError, match=r"b\.txt was changed while it was in use"):
        whole(source)
    os.mkfifo(folder / "pipe")
    with pytest.raises(SourceError, match="named pipe"):
        open_documents(folder)


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "csv", "parquet"])
def test_fields_that_name_documents(tmp_path, form):
    documents = texts()
    path = tmp_path / f"x.{form}"
    if form == "parquet":
        write_parquet(path, id=list(range(len(documents))), text=documents)
    elif form == "csv":
        write_csv(path, enumerate(documents))
    else:
        write_json(tmp_path / "x.jsonl", documents)
        if form.endswith("gz"):
            path.write_bytes(gzip.compress((tmp_path / "x.jsonl").read_bytes()))
    source = open_documents(path, field="text", hashing=HASHING, tfidf=False, id_column="id")
    assert [each for piece in source.ids() for each in piece] == [str(number) for number in range(len(documents))]
    assert source.origin.id_column == "id"
    np.testing.assert_array_equal(whole(source)[0].toarray(), vectorized(documents).toarray())
    with pytest.raises(InvalidInputError, match="'nmae'"):
        open_documents(path, field="text", tfidf=False, id_column="nmae")


def test_documents_without_a_name_have_none(tmp_path):
    records = [
        {"text": "red", "id": "a"},
        {"text": "blue"},
        {"text": "green", "id": None},
        {"text": "x", "id": {"n": 1}},
    ]
    (tmp_path / "x.jsonl").write_text("\n\n".join(map(json.dumps, records)))
    source = open_documents(tmp_path / "x.jsonl", field="text", tfidf=False, id_column="id")
    assert [each for piece in source.ids() for each in piece] == ["a", None, None, '{"n": 1}']


class TestCommands:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    def test_a_folder_of_texts(self):
        documents, y = topic_texts(90)
        names = write_folder(Path("posts"), documents)
        assert "text files, a document each" in run("inspect", "posts")
        run("fit", "posts", "-k", 3, "--seed", 0, "--set", "text.n_features=4096", "-o", "out")
        labels = np.load("out/labels.npy")
        assert len({*zip(labels.tolist(), y.tolist(), strict=True)}) == 3
        clusters = json.loads(Path("out/streamkm.json").read_text())["clusters"]
        for row in clusters:
            assert row["typical"]
            assert all(each["id"] == names[each["row"]] for each in row["typical"])
        assert clusters[0]["typical"][0]["id"] in Path("out/report.html").read_text("utf-8")
        assert read_text_settings("out")["format"] == "files"
        write_folder(Path("later"), documents[:20], "{}")
        run("assign", "out/model.npz", "later", "-o", "later.npy")
        np.testing.assert_array_equal(np.load("later.npy"), labels[:20])

    def test_other_suffixes_need_the_format(self):
        documents, _ = topic_texts(60)
        write_folder(Path("posts"), documents, "{}")
        assert "data.format: files" in run("fit", "posts", "-k", 3, "-o", "out", code=2)
        run("fit", "posts", "-k", 3, "-o", "out", "--set", "data.format=files", "--set", "text.n_features=4096")
        assert len(np.load("out/labels.npy")) == 60

    def test_ids_of_json_lines_in_the_report(self):
        documents, _ = topic_texts(60)
        write_json(Path("x.jsonl"), documents)
        options = ["--set", "text.field=text", "--set", "text.n_features=4096", "--id-column", "id"]
        run("fit", "x.jsonl", "-k", 3, "--seed", 0, *options, "-o", "out")
        clusters = json.loads(Path("out/streamkm.json").read_text())["clusters"]
        shown = [each for row in clusters for name in ("typical", "outlying") for each in row[name]]
        assert shown
        assert all(each["id"] == str(each["row"]) for each in shown)
