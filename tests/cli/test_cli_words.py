"""Advice on the command line is in its words; what a new user does from an empty folder."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite
from sklearn.metrics import adjusted_rand_score

import streamkm
from streamkm.cli.common import in_words_of
from streamkm.cli.main import main
from streamkm.sources.dense import DenseSource
from tests.cli.test_cli import run
from tests.tables import cases, slow_but

PYTHON_ONLY = {"random_state", "n_features"}  # with values that messages show, of functions that no command calls so
ADVICE = re.compile(r"\b(?:pass|use|take|choose one with|leave|set|threads) \(?([a-z]+(?:_[a-z]+)*)=")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).random((40, 3))
    np.save("x.npy", X)
    X[7, 1] = np.nan
    np.save("nan.npy", X)
    Path("words.txt").write_bytes(b"red fish\nblue \xff fish\n")
    Path("zero.svm").write_text("1 1:2\n1 0:2\n")
    np.savez("two.npz", a=X, b=X)
    Path("semi.csv").write_text("a;b\n1;2\n3;4\n")
    Path("tabs.csv").write_text("a\tb\n1\t2\n3\t4\n")
    Path("spaces.csv").write_text("a,pick up\n1,Oslo\n2,Rome\n")
    Path("two.txt").write_text("a\nb\n")
    Path("one.svm").write_text("0 1:1 3:2\n" * 9)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["fit", "nan.npy", "-k", 3], "; pass --invalid skip to leave such rows out"),
        (["fit", "words.txt", "-k", 2, "--set", "data.format=lines"], "or pass --set text.decode_error=replace"),
        (["fit", "zero.svm", "-k", 2, "--set", "data.zero_based=false"], "pass --set data.zero_based=True if column"),
        (["inspect", "two.npz"], "choose one with --set data.key="),
        (["fit", "x.npy", "-k", 3, "--set", "estimator.memory_limit=1000"], "raise --memory-limit to"),
        (["fit", "semi.csv", "-k", 3], "; pass --set 'data.delimiter=;'"),
        (["fit", "spaces.csv", "-k", 3], "Leave it out with --exclude 'pick up', or"),
        (["fit", "x.npy", "-k", 3, "--preprocess", "robust:a,standardise:b"], "(did you mean 'standardize'?)"),
        (["fit", "x.npy", "-k", 3, "--preprocess", "log1p:a,log1p:b"], "name it once, with all its columns: A+B"),
        (["fit", "x.npy", "-k", 3, "--feature-names", "two.txt"], "2 names, and x.npy has 3 features: too few names"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_of_commands(folder, arguments, wanted):
    said = run(*arguments, code=2)
    assert wanted in said
    assert not re.search(r"\b(invalid|memory_limit)=\"|(?<![.\w])n_clusters=", said)


@pytest.mark.parametrize("command", ["fit", "plan", "fit a store", "sweep"])
def test_more_clusters_than_rows_are_refused_before_reading(folder, monkeypatch, command):
    data = "x.npy"
    if command == "fit a store":
        run("sketch", "x.npy", "-o", "s.zarr")
        command, data = "fit", "s.zarr"
    monkeypatch.setattr(DenseSource, "read", None)
    for more in ([], ["--set", "kernel.kernel=rbf"]) if data == "x.npy" and command != "sweep" else ([],):
        said = run(command, data, "-k", "41", *more, code=2)
        assert "n_samples=40 should be >= -k 41; use fewer clusters" in said
    assert not list(folder.glob("streamkm-*"))


def test_nothing_to_resume_is_said(folder):
    said = run("fit", "x.npy", "-k", 3, "-o", "out", "--resume", "--no-report")
    assert "streamkm: out.checkpoint holds nothing to resume: this run begins anew" in said
    assert np.load("out/labels.npy").shape == (40,)


def test_a_complete_run_is_not_resumed(folder):
    """Nor refused; results of another number of clusters, other rows or other labels are."""
    given = ("fit", "x.npy", "-k", 3, "-o", "out", "--no-report")
    run(*given)
    before = Path("out/model.npz").stat().st_mtime_ns
    for command in (given, (*given, "--threads", 1, "-q")):
        assert run(*command, "--resume") == "streamkm: out is complete: nothing to resume\n"
    assert Path("out/model.npz").stat().st_mtime_ns == before
    np.save("y.npy", np.load("x.npy"))
    for other in (
        ("-k", 4),
        ("--labels-format", "csv"),
        ("--incremental",),
        ("--preprocess", "standardize"),
        ("--seed", 1),
    ):
        assert "pass --overwrite to replace them" in run(*given, *other, "--resume", code=2)
    assert "pass --overwrite to replace them" in run(given[0], "y.npy", *given[2:], "--resume", code=2)
    np.save("x.npy", np.load("x.npy")[:-1])
    assert "pass --overwrite to replace them" in run(*given, "--resume", code=2)
    run(*given, "--resume", "--overwrite")
    Path("x.csv").write_text("a,b,c\n" + "1,2,3\n4,5,7\n" * 9)
    Path("notes.txt").write_text("one two\ntwo three\n" * 9)
    text = ("--set", "data.format=lines", "--set", "text.n_features=64")
    for data, same, other in (
        ("x.csv", ("--exclude", "a"), ("--exclude", "b")), ("notes.txt", text, (*text, "--set", "text.binary=true")),
    ):  # fmt: skip
        told = ("fit", data, "-k", 2, "-o", data[:3], "--no-report")
        run(*told, *same)
        assert "nothing to resume" in run(*told, *same, "--resume")
        assert "pass --overwrite" in run(*told, *other, "--resume", code=2)
    Path("out/streamkm.json").write_text("{")
    assert "pass --overwrite to replace them" in run(*given, "--resume", code=2)


def test_advice_is_known_to_the_command_line():
    """Whatever the code advises has an option or a key."""
    found = set()
    for path in Path(streamkm.__file__).parent.rglob("*.py"):
        found |= {(path.name, name) for name in ADVICE.findall(path.read_text())}
    assert len(found) > 12
    commands = ("fit", "sketch", "update")
    unknown = {
        (file, name)
        for file, name in found
        if all(
            f"{name}=" in in_words_of(main.commands[command], f'pass {name}="x"').replace(f".{name}=", "")
            for command in commands
        )
    }
    assert {name for _, name in unknown} <= PYTHON_ONLY, sorted(unknown)


@cases(
    "text, wanted",
    [
        ('pass FeatureHashing(input="tokens")', "pass --set text.input=tokens"),
        ('SketchOptions(assign_space="sketch") if these', "--set estimator.assign_space=sketch if these"),
        ("use fewer threads (executor=1), or raise memory_limit", None),
        ("or start anew", "or begin anew with --restart"),
        ("--set estimator.n_clusters=50 is wrong", "--set estimator.n_clusters=50 is wrong"),
    ],
)
def test_of_single_messages(text, wanted):
    usual = "use fewer threads (--threads 1), or raise --memory-limit"
    assert in_words_of(main.commands["fit"], text) == (usual if wanted is None else wanted)


N = 600
GROUP = np.arange(N) % 3
RNG = np.random.default_rng(0)
ROWS = (RNG.normal(size=(N, 5)) + 9 * GROUP[:, None] * (np.arange(5) % 2 + 1)).astype(np.float32)
SCALED = (ROWS * [1, 1e5, 1e-3, 1, 1] + RNG.normal(size=(N, 1)) * [0, 0, 0, 0, 1e6]).astype(np.float32)
COUNTS = sp.csr_matrix(RNG.poisson(RNG.gamma(0.3, 2, (3, 90))[GROUP] * RNG.integers(1, 9, (N, 1))).astype(np.float32))
TABLE = pd.DataFrame(ROWS, columns=list("abcde"))


def folder_of_tables() -> None:
    Path("parts").mkdir()
    for part in range(3):
        TABLE[part * 200 : part * 200 + 200].to_parquet(f"parts/{part}.parquet")


STORIES = {
    "a compressed table": (
        lambda: Path("x.csv.gz").write_bytes(gzip.compress(TABLE.to_csv(index=False).encode())), "x.csv.gz"
    ),
    "a folder of Parquet files below a limit": (
        folder_of_tables, "parts --memory-limit '500 MiB, process 300 MiB'"
    ),
    "features of very different scales": (
        lambda: np.save("x.npy", SCALED[:, :4]), "x.npy --preprocess standardize"
    ),
    "a single-cell file": (
        lambda: anndata.AnnData(COUNTS).write_h5ad("cells.h5ad"),
        "cells.h5ad --preprocess total,log1p --metric cosine",
    ),
    "Matrix Market": (lambda: mmwrite("x.mtx", sp.csr_matrix(ROWS)), "x.mtx"),
}  # fmt: skip


@pytest.mark.parametrize("story", slow_but(["a folder of Parquet files below a limit", "Matrix Market"], STORIES))
def test_story(story, tmp_path, monkeypatch):
    there, typed = STORIES[story]
    monkeypatch.chdir(tmp_path)
    there()
    run("fit", *shlex.split(typed), "-k", 3, "-o", "out", "--seed", 0)
    assert adjusted_rand_score(GROUP, np.load("out/labels.npy")) == 1
