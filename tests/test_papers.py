"""The scripts that make the papers' figures, and every example script: they run and print what they promise."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import multiprocessing.util
import os
import runpy
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr
from sklearn.datasets import dump_svmlight_file
from sklearn.neighbors import kneighbors_graph

from examples.papers.laplacian import laplacian_scores
from tests import naive
from tests.programs import run_program
from tests.tables import slow_but

pytest.importorskip("matplotlib")

PAPERS = Path(__file__).parents[1] / "examples" / "papers"
GROUPS = ("comp.graphics", "misc.forsale", "rec.autos", "sci.space", "soc.religion.christian", "talk.politics.guns")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Small files in the layouts of the real ones, with clusters that are easy to tell apart."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def blobs(n, d, k):
        labels = np.arange(n) % k
        return np.abs(10 * rng.random((k, d))[labels] + 0.1 * rng.standard_normal((n, d))), labels

    X, y = blobs(90, 128, 3)
    scipy.io.savemat(folder / "coil20.mat", {"X": X / 10, "Y": y[:, None] + 1})
    X, y = blobs(90, 128, 3)
    with h5py.File(folder / "mnist.h5", "w") as file:
        file["X"], file["y"] = (25 * X).astype(np.uint8), y.astype(np.uint8)
    group = zarr.create_group(folder / "10x-10k-subset.zarr", zarr_format=2)
    group.create_array("X", data=blobs(90, 128, 4)[0].astype(np.float32))
    words = [[f"word{g}x{i}" for i in range(30)] for g in range(len(GROUPS))]
    with tarfile.open(folder / "20news-bydate.tar.xz", "w:xz") as tar:
        for g, name in enumerate(GROUPS):
            for i in range(20):
                text = f"From: {i}\n\n{' '.join(rng.choice(words[g], 30))}".encode()
                member = tarfile.TarInfo(f"20news-bydate-train/{name}/{i}")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    return folder


def run(script, data, out):
    done = run_program([str(PAPERS / script), str(data), "--out", str(out), "--quick"], timeout=200)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        if line.endswith(".png"):
            assert Path(line).read_bytes().startswith(b"\x89PNG")
    return done.stdout


def load(name):
    """One of the scripts as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PAPERS))
        return importlib.import_module(name)


def table(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lines_beside(path):
    """What a paper says beside what is found: every line has both columns, and a claim that fails says why or where."""
    lines = table(path)
    assert {"paper", "here", "holds", "difference"} < set(lines[0])
    assert all(line["here"] for line in lines)
    return lines


def test_every_verdict_follows_from_its_committed_cases():
    claims, n_verdicts = load("claims"), 0
    for path in sorted((PAPERS / "results").glob("*_cases.csv")):
        lines, cases = table(path.with_name(path.name.replace("_cases", ""))), table(path)
        for line, mine in claims.recomputed(lines, cases):
            n_verdicts += 1
            assert (path.name, line["claim"], line["holds"]) == (path.name, line["claim"], mine)
            assert line["holds"] == "yes" or line["difference"]
            assert int(line["seeds"]) >= 8
    assert n_verdicts > 50


def test_papers_without_cases_have_no_verdicts():
    results = PAPERS / "results"
    for path in results.glob("*.csv"):
        if not path.stem.endswith("_cases") and not (results / f"{path.stem}_cases.csv").exists():
            assert "holds" not in table(path)[0]


def test_tables_of_the_readme_are_those_of_the_results():
    text = (PAPERS / "README.md").read_text(encoding="utf-8")
    assert load("write_readme").filled(text) == text
    for name in ("liu2017", "liu2017_ilsvrc", "senuma2011", "boutsidis2015", "yin2022", "wang2019"):
        assert f"<!-- {name}.csv -->" in text


def test_one_size_of_one_method_decides_a_claim_about_all():
    claims = load("claims")
    kept = claims.case("SE, m = 10", np.linspace(0.5, 0.6, 8), "<=", 1)
    missed = claims.case("PD, m = 1000", np.linspace(11, 13, 8), "<=", 1)
    level = claims.case("SE, m = 1000", np.linspace(0.9, 1.1, 8), "<=", 1)
    assert claims.decide([kept]) == "yes"
    assert claims.decide([kept, missed]) == "no"
    assert claims.decide([kept, level]) == "within the spread"
    assert claims.decide([missed, level], "some") == "within the spread"
    assert claims.decide([kept, kept, missed], "most") == claims.decide([kept, missed], "some") == "yes"
    assert claims.decide([claims.case("few", [0.5] * 7, "<=", 1)]) == "fewer than 8 seeds"
    gain = 0.001 + 0.06 * np.random.default_rng(0).standard_normal(20)  # 0.409 beside 0.408, with the spread of F_5
    assert claims.decide([claims.case("m = 65,536", gain, ">=", 0)], "some") == "within the spread"


SHORT_STUDIES = {"ended": "import sys\nprint(sys.argv[1:])\n", "endless": "while True:\n    pass\n"}


@pytest.mark.slow
def test_studies_that_ended_are_not_run_again(tmp_path, capfd, monkeypatch):
    run_all = load("run_all")
    data = tmp_path / "data"
    data.mkdir()
    first, second = SHORT_STUDIES
    for name, code in SHORT_STUDIES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(run_all, "__file__", str(tmp_path / "run_all.py"))
    monkeypatch.setattr(run_all, "BOUNDS", {first: 60})
    monkeypatch.setattr("sys.argv", ["run_all.py", str(data), "--out", str(tmp_path / "out")])
    run_all.main()
    assert [(row["study"], row["run"]) for row in table(tmp_path / "out" / "done.csv")] == [(first, "whole")]
    assert "there already" not in capfd.readouterr().out
    monkeypatch.setattr(run_all, "BOUNDS", {first: 60, second: 1})  # too few seconds
    with pytest.raises(SystemExit, match=f"not ended: {second}"):
        run_all.main()
    assert f"{first}: there already" in capfd.readouterr().out
    assert len(table(tmp_path / "out" / "done.csv")) == 1


def test_rows_are_compared_by_the_entries_that_they_keep():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    X = 5 * rng.normal(size=(3, 40))[y] + rng.normal(size=(120, 40))
    kept = X * (rng.random(X.shape) < 0.25)
    labels = load("sparse_embedded").by_kept_entries(scipy.sparse.csr_array(kept), 3, 0)
    assert all(len(set(labels[y == group])) == 1 for group in range(3))
    assert len(set(labels)) == 3


@pytest.mark.slow
@pytest.mark.full
def test_quality_for_cost(data, tmp_path):
    printed = run("quality_for_cost.py", data, tmp_path)
    for name in ("coil20", "mnist", "20_newsgroups", "topics", "10x"):
        rows = table(tmp_path / f"quality_for_cost_{name}.csv")
        assert min(float(row["objective"]) for row in rows) == 1
        assert {"CountSketch", "SVD", "none"} < {row["sketch"] for row in rows}
        assert rows[-1]["sketch"].startswith("auto: ")
        assert (tmp_path / f"quality_for_cost_{name}.png").exists()
        assert {row["seed"] for row in rows} == {"0", "1"}
    assert "MNIST: within 1.01 of the best, the cheapest: " in printed
    assert printed.count("; within 0.5% of it: ") == 5


def test_final_pass_assigns_to_the_nearest_mean():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 5))
    labels = 3 * rng.integers(0, 4, 40)  # numbers with gaps
    means = [X[labels == label].mean(axis=0) for label in np.unique(labels)]
    nearest = [min(range(4), key=lambda c, row=row: ((row - means[c]) ** 2).sum()) for row in X]
    assigned = load("common").assigned
    assert assigned(X, labels).tolist() == nearest
    assert assigned(scipy.sparse.csr_array(X), labels).tolist() == nearest


@pytest.fixture(scope="module")
def kernel_data(tmp_path_factory):
    """Small files with the names and layouts of the real ones; rows of a class are alike."""
    folder, rng = tmp_path_factory.mktemp("kernel_data"), np.random.default_rng(0)

    def alike(n, d, k):
        classes = np.arange(n) % k
        return rng.random((k, d))[classes] + 0.02 * rng.random((n, d)), classes

    y = np.arange(200) % 10
    images = np.kron(rng.integers(0, 2, (10, 4, 4)), np.full((7, 7), 200))[y] + rng.integers(0, 20, (200, 28, 28))
    with h5py.File(folder / "mnist.h5", "w") as file:
        file["X"], file["y"] = images.reshape(200, 784).astype(np.uint8), y.astype(np.uint8)
    for name, d, k in (("mushrooms.svm", 30, 2), ("dna.scale", 40, 3)):
        dump_svmlight_file(*alike(210, d, k), str(folder / name))
    for name, high in (("segmentation.tsv.gz", 100), ("connect_4.tsv.gz", 2)):
        X, y = alike(210, 12, 3)
        with gzip.open(folder / name, "wt", encoding="utf-8") as file:
            np.savetxt(file, np.column_stack([np.rint(high * X / X.max()), y]), "%d", "\t", header="a\tb", comments="")
    X, y = alike(210, 10, 2)
    np.savez(folder / "cover.npz", X=(1000 * X).astype(np.int16), y=y)
    return folder


SCRIPTS = {  # what each writes: tables, and the papers' claims beside what was found
    "deep_features": ("data", ["liu2017_ilsvrc"], []),
    "sparse_embedded": ("data", ["sparse_embedded", "sparse_embedded_rcv1_size"], ["liu2017"]),
    "feature_hashing": ("data", ["feature_hashing"], ["senuma2011"]),
    "randomized_dimensionality_reduction": ("data", [], ["boutsidis2015"]),
    "nystroem_kernel_kmeans": ("kernel_data", ["nystroem_kernel_kmeans"], ["wang2019"]),
    "randomized_sketches": ("kernel_data", ["yin2022"], []),
    "landmarks_and_rank": ("kernel_data", ["landmarks_and_rank"], ["wang2019_figure2"]),
    "landmarks_and_width": ("kernel_data", ["landmarks_and_width", "landmarks_and_width_widths"], ["yin2022_figure1"]),
    "mnist8m_kernel_kmeans": ("kernel_data", ["mnist8m_kernel_kmeans", "mnist8m_seconds"], []),
}


LIKE_SCRIPTS = ("deep_features", "landmarks_and_width", "randomized_sketches", "mnist8m_kernel_kmeans")
"""Scripts with studies like those of others."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.full if name in LIKE_SCRIPTS else ()) for name in SCRIPTS]
)
def test_each_script_runs(script, request, tmp_path):
    """The data are small and easy: some method finds their groups, and verdicts follow from the cases."""
    given, measured, papers = SCRIPTS[script]
    printed = run(f"{script}.py", request.getfixturevalue(given), tmp_path)
    assert ": False" not in printed
    for name in measured:
        rows = table(tmp_path / f"{name}.csv")
        found = [float(row[kind]) for row in rows for kind in ("nmi", "accuracy") if row.get(kind)]
        assert rows
        assert max(found, default=1) > 0.9
    for name in papers:
        lines, cases = lines_beside(tmp_path / f"{name}.csv"), table(tmp_path / f"{name}_cases.csv")
        for line, mine in load("claims").recomputed(lines, cases):
            assert line["holds"] == mine


@pytest.mark.parametrize("sparse", [False, True])
def test_laplacian_scores_are_the_papers(sparse):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 6)) + 4 * np.eye(2, 6)[rng.integers(0, 2, 80)]
    near = kneighbors_graph(X, 4).toarray() > 0
    edges, d2 = near | near.T, naive.d2_matrix(X, X)
    S = np.where(edges, np.exp(-d2 / d2[edges].mean()), 0)
    D = np.diag(S.sum(axis=1))  # noqa: N806 - the paper's
    varied = X - D.sum(axis=1) @ X / D.sum()
    wanted = np.diag(varied.T @ (D - S) @ varied) / np.diag(varied.T @ D @ varied)
    got = laplacian_scores(scipy.sparse.csr_array(X) if sparse else X, n_neighbors=4)
    np.testing.assert_allclose(got, wanted, rtol=1e-9)


EXAMPLES = Path(__file__).parents[1] / "examples"
OF_THEIR_OWN = {"larger_than_memory.py": ["--rows", "15000", "--memory", "430 MiB"]}  # processes: memory is measured
PICTURED = (
    "anndata_counts", "dask_array", "embeddings", "how_many_clusters", "rows_every_night", "stream_of_chunks", "table",
    "text",
)  # fmt: skip
QUICK = ("stream_of_chunks.py",)  # pages of the guide run what others show
NEEDED = {"ivf_index.py": "faiss"}
PRINTED = {
    "anndata_counts.py": ["cells.h5ad: cells of each cluster", "cluster\n", "500\n", "500\n", "500\n"],
    "dask_array.py": ["same labels: True", "same centers: True"],
    "ivf_index.py": ["lists", "streamkm recall", "faiss    recall"],
    "dask_pipeline.py": ["agreement of both: 1.000"],
    "embeddings.py": ["4,000 vectors of 64 numbers in 2 passes", "[800, 800, 800, 800, 800]"],
    "how_many_clusters.py": ["k = 6 is suggested", "5,000 of 5,000\n", "agreement"],
    "larger_than_memory.py": ["file 114 MiB, limit 430 MiB, peak memory ", "objective per row"],
    "rows_every_night.py": [
        "night 4: 749 rows",
        "22 born: mostly the digit 6\n",
        "6 died: mostly the digit 0\n",
        "6,911 rows, ",
        "6,911 rows have new labels, 0% are",
    ],
    "stream_of_chunks.py": ["30,000 rows in 2 passes", "day 2:"],
    "table.py": ["payment=card", "6 rows with missing values", "set apart by", "998"],
    "text.py": ["900 documents in 3 passes", "300: ", "300: ", "300: ", "later: 3 of 3"],
    "zarr_array.py": ["in 2 passes", "in 4 passes", "cluster sizes"],
}


def assert_printed(script, printed):
    at = 0
    for text in PRINTED[script]:
        found = printed.find(text, at)
        assert found >= 0, f"{text!r} is not in {printed!r} from {at}"
        at = found + len(text)


HERE = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in OF_THEIR_OWN)


@pytest.mark.parametrize("script", slow_but(QUICK, HERE))
def test_example(script, tmp_path, monkeypatch, capsys):
    """In this process: in another one, importing alone takes seconds. Workers are others, which import it again."""
    if script in NEEDED:
        pytest.importorskip(NEEDED[script])
    multiprocessing.util.get_temp_dir()  # that of this process, which outlives the test
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    picture = Path(script).stem in PICTURED
    monkeypatch.setattr(sys, "argv", [script, *(["--picture", "x.png"] if picture else [])])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert_printed(script, capsys.readouterr().out)
    if picture:
        Path("x.png").unlink()
    assert {path.name for path in tmp_path.iterdir()} <= {"dask-scratch-space"}  # of Dask's workers


@pytest.mark.slow
@pytest.mark.parametrize("script", OF_THEIR_OWN)
def test_example_in_a_process_of_its_own(script, tmp_path):
    command = [sys.executable, "-W", "error::UserWarning:__main__", str(EXAMPLES / script), *OF_THEIR_OWN[script]]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_printed(script, done.stdout)


def test_each_example_is_listed():
    """Scripts and what `examples/README.md` says of them."""
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert f"({script.name})" in listed, script.name
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)
    pictures = {path.stem for path in (EXAMPLES / "pictures").iterdir()}
    assert pictures == set(PICTURED)
    assert all(f"(pictures/{name}.png)" in listed for name in pictures)
