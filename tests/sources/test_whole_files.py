"""A document a file: the same rows as scikit-learn's vectorizer of their texts; and ids of documents of all kinds."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_files
from sklearn.feature_extraction.text import HashingVectorizer

from streamkm import open_documents
from streamkm.cli.data import read_text_settings
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError, SourceError
from streamkm.sources.text_lines import BLOCK_BYTES, LineLimit
from streamkm.text import FeatureHashing
from tests.cli.test_cli import run
from tests.contracts import Opened, SourceContract
from tests.passes.test_text import topic_texts
from tests.sources.test_documents import HASHING, M, N, texts, vectorized, whole, write_csv, write_json, write_parquet
from tests.tables import cases


def write_folder(folder: Path, documents, name="{:03}.txt") -> list[str]:
    """Documents as files, in folders of ten; gives their names in the order in which they count."""
    names = [f"{number // 10}/{name.format(number)}" for number in range(len(documents))]
    for each, text in zip(names, documents, strict=True):
        (folder / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / each).write_bytes(text.encode())
    return names


class TestWholeFiles(SourceContract):
    @pytest.fixture(params=["folder", "glob", "list"])
    def opened(self, request, tmp_path):
        documents = texts()
        write_folder(tmp_path, documents)
        X, options = str(tmp_path), {}
        if request.param == "glob":
            X, options = str(tmp_path / "*" / "*.txt"), {"format": "files"}
        elif request.param == "list":
            X, options = [tmp_path / "1", tmp_path / "0", *sorted(tmp_path.glob("2/*"))], {"format": "files"}
        return Opened(open_documents(X, hashing=HASHING, tfidf=False, **options), vectorized(documents).toarray())


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


@cases(
    "content, message",
    [
        (b"caf\xe9", r"bad\.txt \(byte 3\): byte 0xe9 is not UTF-8 .*decode_error=\"replace\""),
        (gzip.compress(b"red fish"), r"bad\.txt \(byte 1\): byte 0x8b is not UTF-8"),
    ],
)
def test_errors_name_the_file(tmp_path, content, message):
    write_folder(tmp_path, ["red fish", "blue fish"])
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        whole(open_documents(tmp_path, hashing=HASHING, tfidf=False))


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


def test_fields_that_name_documents(tmp_path):
    json_lines = write_json(tmp_path / "x.jsonl", texts())
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json_lines.read_bytes()))
    table = write_parquet(tmp_path / "x.parquet", id=list(range(N)), text=texts())
    for path in (json_lines, tmp_path / "x.jsonl.gz", write_csv(tmp_path / "x.csv", enumerate(texts())), table):
        source = open_documents(path, field="text", hashing=HASHING, tfidf=False, id_column="id")
        assert [each for piece in source.ids() for each in piece] == [str(number) for number in range(N)]
        assert source.origin.id_column == "id"
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
    def test_a_folder_of_texts(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
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
