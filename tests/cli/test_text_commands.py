"""Documents from the command line and from config.yaml: fit, plan, assign, and what is said of wrong ones."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans, open_documents
from streamkm.cli.data import TEXT, TFIDF, read_text_settings
from streamkm.core.exceptions import ModelFileError
from streamkm.metrics.cluster_details import Wording, describe_clusters
from streamkm.text import FeatureHashing, TfIdf
from tests.cli.test_cli import run, summary
from tests.passes.test_text import topic_texts
from tests.tables import cases, slow_but

M = 4096


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(form, documents, name="x"):
    """Documents in a file of this format, in the field "body"; give its path."""
    path = Path(f"{name}.{form}")
    if form.startswith("jsonl"):
        lines = "".join(json.dumps({"id": i, "body": text}) + "\n" for i, text in enumerate(documents)).encode()
        path.write_bytes(gzip.compress(lines) if form.endswith("gz") else lines)
    elif form == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "body"], *enumerate(documents)])
    else:
        path.write_text("\n".join(documents) + "\n")
    return path


def config(path, text="", **estimator):
    lines = path.suffix == ".txt"
    section = {"n_features": M, **({} if lines else {"field": "body"})}
    keys = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in section.items()) + text
    given = "".join(f"  {name}: {value}\n" for name, value in {"n_clusters": 3, "random_state": 0, **estimator}.items())
    data = f"data:\n  path: {path}\n" + ("  format: lines\n" if lines else "")
    Path("c.yaml").write_text(f"{data}text:\n{keys}estimator:\n{given}output: {{directory: out, report: false}}\n")
    return "c.yaml"


def as_topics(labels, y):
    return len({*zip(np.asarray(labels).tolist(), y.tolist(), strict=True)}) == len(set(y.tolist()))


@pytest.mark.parametrize("form", slow_but(["jsonl.gz"], ["jsonl.gz", "csv", "txt"]))
def test_documents_of_a_configuration(folder, form):
    documents, y = topic_texts(200)
    path = write(form, documents)
    planned = json.loads(run("plan", config(path), "--json"))
    assert planned["passes"] == 3
    assert planned["n_features"] == M
    assert not Path("out").exists()
    assert "the first for document frequencies" in run("plan", "c.yaml")
    run("fit", "c.yaml")
    labels = np.load("out/labels.npy")
    assert as_topics(labels, y)
    assert summary()["result"]["n_passes"] == 3
    stages = summary()["stages"]
    assert [stages[0]["name"], stages[0]["rows"], stages[0]["read_bytes"]] == ["idf", 200, stages[1]["read_bytes"]]
    assert [stages[1]["name"], stages[1]["rows"], stages[-2]["read_bytes"]] == ["sketch", 200, 0]
    assert summary()["seconds"] == sum(stage["seconds"] for stage in stages)
    options = {} if form == "txt" else {"field": "body"}
    source = open_documents(path, hashing=FeatureHashing(n_features=M), **options)
    np.testing.assert_array_equal(labels, StreamKMeans(3, random_state=0).fit(source).labels_)

    later, later_y = topic_texts(50, seed=1)
    run("assign", "out/model.npz", write(form, later, "later"), "-o", "later.npy")
    assert as_topics(np.r_[labels, np.load("later.npy")], np.r_[y, later_y])
    assert TfIdf.load("out/tfidf.npz").frequencies.n_rows == 200  # of the fit, not of what came later


def test_options_of_hashing_reach_it(folder):
    """Counts of n-grams of letters, unweighted: as scikit-learn makes them."""
    path = write("csv", topic_texts(60)[0])
    config(path, "  analyzer: char_wb\n  ngram_range: [2, 3]\n  norm: null\n  tfidf: false\n  stop_words: null\n")
    assert json.loads(run("plan", "c.yaml", "--json"))["passes"] == 2
    run("fit", "c.yaml")
    hashing = FeatureHashing(n_features=M, analyzer="char_wb", ngram_range=(2, 3), norm=None)
    source = open_documents(path, field="body", hashing=hashing, tfidf=False)
    np.testing.assert_array_equal(np.load("out/labels.npy"), StreamKMeans(3, random_state=0).fit(source).labels_)
    assert summary()["result"]["n_passes"] == 2
    assert not Path("out", TFIDF).exists()
    kept = read_text_settings("out")
    assert (kept["analyzer"], kept["ngram_range"], kept["tfidf"], kept["format"]) == ("char_wb", [2, 3], False, "csv")


def test_results_of_rows_hold_no_settings_of_documents(folder):
    run("fit", config(write("jsonl", topic_texts(60)[0])))
    assert Path("out", TEXT).exists()
    np.save("x.npy", np.random.default_rng(0).normal(size=(50, 3)))
    run("fit", "x.npy", "-k", 2, "-o", "out", "--overwrite", "--no-report")
    assert not Path("out", TEXT).exists()
    assert not Path("out", TFIDF).exists()


def test_a_store_of_documents(folder):
    """Its frequencies are kept beside it, and are those that documents that are appended are weighted by."""
    documents, y = topic_texts(200)
    write("jsonl", documents[:150])
    write("jsonl", documents[150:], "more")
    field = ("--set", "text.field=body")
    run("sketch", "x.jsonl", "-o", "x.zarr", "--seed", 1, *field)
    said = run("sketch", "--append", "x.zarr", "more.jsonl", *field, code=2)
    assert "text.tfidf=true would weight the new documents by their own frequencies" in said
    assert "pass --set text.tfidf=x.zarr.tfidf.npz, or false" in said
    more = ("sketch", "--append", "x.zarr", "more.jsonl", *field, "--set", "text.tfidf=x.zarr.tfidf.npz")
    run(*more)
    assert "more.jsonl is in x.zarr already, among rows 150-199" in run(*more, code=2)
    run("fit", "x.zarr", "-k", 3, "-o", "out", "--no-report", "--set", "estimator.random_state=0")
    assert as_topics(np.load("out/labels.npy"), y)


def test_frequencies_come_before_the_store_and_replace_nothing_else(folder, monkeypatch):
    write("jsonl", topic_texts(60)[0])
    Path("x.zarr.tfidf.npz").write_text("mine")
    said = run("sketch", "x.jsonl", "-o", "x.zarr", "--set", "text.field=body", code=2)
    assert "x.zarr.tfidf.npz exists; pass --overwrite" in said
    assert sorted(path.name for path in folder.iterdir()) == ["x.jsonl", "x.zarr.tfidf.npz"]
    Path("x.zarr.tfidf.npz").unlink()
    run("sketch", "x.jsonl", "-o", "x.zarr", "--set", "text.field=body", "--memory-limit", "1 MiB", code=2)
    assert [path.name for path in folder.iterdir()] == ["x.jsonl"]  # a store that is refused leaves nothing
    with monkeypatch.context() as patched:
        patched.setattr("streamkm.stores.writer._publish", None)
        run("sketch", "x.jsonl", "-o", "x.zarr", "--set", "text.field=body", code=1)
    assert TfIdf.load("x.zarr.tfidf.npz").frequencies.n_rows == 60
    run("sketch", "x.jsonl", "-o", "x.zarr", "--set", "text.field=body", "--overwrite")


def test_keys_for_documents_where_there_are_none(folder):
    np.save("x.npy", np.eye(3))
    said = run("fit", "x.npy", "-k", 2, "--set", "text.field=body", code=2)
    assert "text.field is for documents, and x.npy is read as rows; name the column of documents by text.field" in said
    write("txt", ["a b", "c d"])
    said = run("fit", "x.txt", "-k", 2, "--set", "text.ngram_range=[1, 2]", code=2)
    assert "text.ngram_range is for documents, and x.txt is read as rows" in said


@cases(
    "setting, message",
    [
        ("text.ngram_range=2", "text.ngram_range must be a valid list, got 2"),
        ("text.analyzer=words", "text.analyzer must be 'word', 'char' or 'char_wb', got 'words'"),
        ("text.tfidf=none.npz", "none.npz does not exist"),
        ("text.fields=body", "unknown key text.fields; did you mean field?"),
        ("data.n_features=5", "n_features= does not apply to jsonl"),
        ("text.field=nowhere", "field 'nowhere' is missing; the record has id, body"),
    ],
)
def test_wrong_settings(folder, setting, message):
    write("jsonl", topic_texts(20)[0])
    said = run("fit", "x.jsonl", "-k", 2, "--set", "text.field=body", "--set", setting, code=2)
    assert message in said


@cases("content", ["{", "[]"])
def test_settings_that_are_none(tmp_path, content):
    (tmp_path / TEXT).write_text(content)
    with pytest.raises(ModelFileError, match="does not say how documents were hashed"):
        read_text_settings(tmp_path)
    assert read_text_settings(tmp_path / "nowhere") == {}


def test_documents_without_a_word_are_counted(folder):
    """In what is printed, in streamkm.json, in the table of clusters, in the report, and in the saved model."""
    documents, _ = topic_texts(60)
    documents[::7] = ["", "...", "- -"] * 3
    path = write("jsonl", documents)
    said = run("fit", config(path), "-v", "--set", "output.report=true")
    blank = len(documents[::7])
    assert blank == 9
    assert "9 rows without any word" in said
    told = json.loads(Path("out/streamkm.json").read_text())
    assert told["data"]["n_blank"] == 9
    assert sum(row["n_blank"] for row in told["clusters"]) == 9
    labels = np.load("out/labels.npy")
    (where,) = {int(label) for label in labels[::7]}
    model = StreamKMeans.load("out/model.npz")
    assert f"9 rows without any word: 9 in cluster {where}" in str(model.summary())
    assert "9 rows without any word" in model.summary()._repr_html_()
    assert "(9 rows without any word)" in Path("out/report.html").read_text()


@pytest.mark.parametrize("blank", [slice(None, None, 10), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_a_cluster_of_documents_without_a_word_has_its_place_in_the_report(folder, blank):
    """Few, all: distances are told, also by a model of an earlier version, as far as it knows them."""
    documents, _ = topic_texts(240)
    documents[blank] = [""] * len(documents[blank])
    path = write("jsonl", documents)
    k = "4" if len(set(documents)) > 4 else "1"
    run("fit", config(path, "  tfidf: false\n", n_clusters=k), "-o", "out", "--set", "output.report=true")
    told = json.loads(Path("out/streamkm.json").read_text())
    X, model = FeatureHashing(n_features=M).apply(documents).toarray(), StreamKMeans.load("out/model.npz")
    far = np.linalg.norm(X - model.cluster_centers_[model.predict(X)], axis=1)
    for row in told["clusters"]:
        assert row["largest_distance"] == pytest.approx(far[model.predict(X) == row["cluster"]].max(), abs=1e-3)
    assert sum(row["n_blank"] for row in told["clusters"]) == len(documents[blank])
    assert "rows without any" in Path("out/report.html").read_text()
    unknown = describe_clusters(
        model.cluster_centers_, model.counts_, np.ones(X.shape[1]), Wording(str, 0),
        replace(model.profile_, blank_d2=np.full(len(model.counts_), np.nan)),
    )  # fmt: skip
    assert [row.largest_distance is None for row in unknown.rows] == [row.n_blank > 0 for row in unknown.rows]


def test_rows_without_values_are_counted_by_any_number_of_threads():
    """Rows that are skipped are not among them, and dense rows are not looked at."""
    X = sp.random_array((900, 40), density=0.2, format="csr", rng=np.random.default_rng(0), dtype=np.float64)
    X = sp.csr_array(X.multiply((np.arange(900) % 9 > 0)[:, None]))
    X.eliminate_zeros()
    X.data[X.indptr[5]] = np.nan
    blank = np.flatnonzero(np.diff(X.indptr) == 0)
    assert len(blank) >= 100
    models = [
        StreamKMeans(4, random_state=0, progress=False, invalid="skip", executor=n, chunk_bytes=2000).fit(X)
        for n in (1, 2)
    ]
    for model in models:
        wanted = np.bincount(model.labels_[blank], minlength=4)
        np.testing.assert_array_equal(model.profile_.n_blank, wanted)
        far = [np.linalg.norm(model.cluster_centers_[c]) for c in range(4)]
        np.testing.assert_allclose(np.sqrt(model.profile_.blank_d2), np.where(wanted > 0, far, 0), rtol=1e-6)
        assert not np.isin([model.profile_.near_rows, model.profile_.far_rows], blank).any()  # they show nothing
        assert f"{len(blank)} rows without any value" in str(model.summary())
    dense = StreamKMeans(4, random_state=0, progress=False, invalid="skip").fit(X.toarray())
    assert not dense.profile_.n_blank.any()
