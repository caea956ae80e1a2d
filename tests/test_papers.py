"""The scripts that make the papers' figures run on small data, and what they write is what they promise."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import tarfile
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


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_studies_that_ended_are_not_run_again(tmp_path, capfd, monkeypatch, real):
    run_all = load("run_all")
    data = tmp_path / "data"
    data.mkdir()
    first, second = ("landmarks_and_rank", "landmarks_and_width") if real else SHORT_STUDIES
    if not real:
        for name, code in SHORT_STUDIES.items():
            (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.setattr(run_all, "__file__", str(tmp_path / "run_all.py"))
    monkeypatch.setattr(run_all, "BOUNDS", {first: 60})  # the real one ends at once without MNIST
    monkeypatch.setattr("sys.argv", ["run_all.py", str(data), "--out", str(tmp_path / "out")])
    run_all.main()
    assert [(row["study"], row["run"]) for row in table(tmp_path / "out" / "done.csv")] == [(first, "whole")]
    assert "there already" not in capfd.readouterr().out
    monkeypatch.setattr(run_all, "BOUNDS", {first: 60, second: 1})  # too few seconds
    with pytest.raises(SystemExit, match=f"not ended: {second}"):
        run_all.main()
    assert f"{first}: there already" in capfd.readouterr().out
    assert len(table(tmp_path / "out" / "done.csv")) == 1


@pytest.mark.slow
def test_deep_features(tmp_path, data):
    run("deep_features.py", data, tmp_path)
    lines = table(tmp_path / "liu2017_ilsvrc.csv")
    assert [line["rows"] for line in lines] == ["2000"] * 8 + ["20000"] * 2
    assert all(float(line["nmi"]) > 0.9 for line in lines if line["method"] != "PD")
    assert all(float(line["peak_mib"]) < 4096 for line in lines)


@pytest.mark.slow
def test_sparse_embedded(data, tmp_path):
    run("sparse_embedded.py", data, tmp_path)
    rows = table(tmp_path / "sparse_embedded.csv")
    methods = {"k-means", "SVD", "LLE", "LS", "RP", "RP, matrix", "PD", "SE", "SE, whole fit", "ours"}
    assert {row["method"] for row in rows if row["data"] == "COIL20"} == methods
    assert {row["method"] for row in rows if row["data"] == "topics"} == methods - {"LLE"}
    easy = [row for row in rows if row["data"] in ("COIL20", "20 Newsgroups") and row["method"] == "k-means"]
    assert len(easy) == 4
    assert all(float(row["accuracy"]) > 0.95 for row in easy)
    lines = lines_beside(tmp_path / "liu2017.csv")
    assert {line["dataset"] for line in lines} == {"COIL20", "20 Newsgroups", "topics"}
    ours = [one for one in table(tmp_path / "liu2017_cases.csv") if one["claim"].startswith("ours: objective")]
    assert len(ours) == 3 * 2  # data sets and sizes
    assert {load("claims").verdict(one) for one in ours} == {"yes"}
    assert [row["rows"] for row in table(tmp_path / "sparse_embedded_rcv1_size.csv")] == ["10000"] * 5
    assert (tmp_path / "sparse_embedded.png").exists()


def test_rows_are_compared_by_the_entries_that_they_keep():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    X = 5 * rng.normal(size=(3, 40))[y] + rng.normal(size=(120, 40))
    kept = X * (rng.random(X.shape) < 0.25)
    labels = load("sparse_embedded").by_kept_entries(scipy.sparse.csr_array(kept), 3, 0)
    assert all(len(set(labels[y == group])) == 1 for group in range(3))
    assert len(set(labels)) == 3


def test_starts_know_nothing_of_the_classes():
    common = load("common")
    X, classes = common.topics(2000)
    sparse_embedded = load("sparse_embedded")
    labels = sparse_embedded.by_kept_entries(sparse_embedded.sparsified(X, 10, 0), 50, 0)
    assert common.accuracy(classes, labels) < 0.3  # ten of 65,536 entries of a row tell little


@pytest.mark.slow
def test_feature_hashing(data, tmp_path):
    run("feature_hashing.py", data, tmp_path)
    rows = table(tmp_path / "feature_hashing.csv")
    assert len(rows) == 2 * (3 * (8 + 8) + 8)  # both weights; the vocabulary and two sizes; seeds of both; the default
    whole = [row["f5"] for row in rows if row["m"] == "vocabulary" and row["method"] == "ours"]
    assert min(map(float, whole)) > 0.95  # words of different groups differ
    lines = lines_beside(tmp_path / "senuma2011.csv")
    bounds = [line for line in lines if line["claim"].startswith("theorem 4.5")]
    assert [line["holds"] for line in bounds] == ["yes", "yes"]
    ours = [line["holds"] for line in lines if line["claim"].endswith("over ours as it comes")]
    assert ours == ["yes", "yes"]
    assert (tmp_path / "feature_hashing.png").exists()


@pytest.mark.slow
def test_randomized_dimensionality_reduction(data, tmp_path):
    run("randomized_dimensionality_reduction.py", data, tmp_path)
    lines = lines_beside(tmp_path / "boutsidis2015.csv")
    bounds = [line for line in lines if "factor of the least objective" in line["claim"]]
    assert len(bounds) == 3 * 2
    assert all(line["holds"] == "yes" for line in bounds)
    ours = [line["here"] for line in lines if line["claim"].startswith("ours: data sets of 8")]
    assert ours == ["all features 0; 5 signs 0; 20 signs 0"] * 2
    assert (tmp_path / "randomized_dimensionality_reduction.png").exists()


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


@pytest.mark.slow
def test_nystroem_kernel_kmeans(kernel_data, tmp_path):
    run("nystroem_kernel_kmeans.py", kernel_data, tmp_path)
    rows = table(tmp_path / "nystroem_kernel_kmeans.csv")
    assert {row["data"] for row in rows} == {"Mushrooms", "MNIST"}
    kernel = [row for row in rows if row["method"].startswith("kernel k-means") and row["width"] == "1.0"]
    assert min(float(row["nmi"]) for row in kernel) > 0.95
    lines = lines_beside(tmp_path / "wang2019.csv")
    assert [line["holds"] for line in lines if line["dataset"] in ("rings", "moons")] == ["yes", "yes"]
    cases = {(one["dataset"], one["case"].split(",")[0]): one for one in table(tmp_path / "wang2019_cases.csv")}
    for sampling in ("uniform", "leverage", "ridge leverage", "gaussian", "srht", "countsketch"):
        assert load("claims").verdict(cases["Mushrooms", sampling]) == "yes"
    assert (tmp_path / "nystroem_kernel_kmeans.png").exists()


@pytest.mark.slow
def test_randomized_sketches(kernel_data, tmp_path):
    run("randomized_sketches.py", kernel_data, tmp_path)
    lines = table(tmp_path / "yin2022.csv")
    assert len(lines) == 5 * 6  # sets and methods
    assert all(line["difference"] for line in lines)
    assert {line["paper_accuracy"] for line in lines if line["method"] == "ours"} == {""}
    printed = {line["method"]: line["paper_accuracy"] for line in lines if line["dataset"] == "dna"}
    assert printed["sub-Gaussian sketch (proposed)"] == "0.49"
    ours = [line for line in lines if line["method"] == "ours" and line["dataset"] != "covtype"]
    assert all(float(line["accuracy"]) > 0.95 for line in ours)
    assert all(float(line["objective_over_ours"]) > 0.95 for line in lines)
    assert (tmp_path / "randomized_sketches.png").exists()


@pytest.mark.slow
def test_landmarks_and_rank(kernel_data, tmp_path):
    run("landmarks_and_rank.py", kernel_data, tmp_path)
    rows = table(tmp_path / "landmarks_and_rank.csv")
    assert len(rows) == 3 * 4 * 2  # data sets, sizes and seeds
    assert min(float(row["nmi"]) for row in rows if row["data"] == "MNIST") > 0.8
    assert {line["holds"] for line in lines_beside(tmp_path / "wang2019_figure2.csv")} == {"fewer than 8 seeds"}


@pytest.mark.slow
def test_landmarks_and_width(kernel_data, tmp_path):
    run("landmarks_and_width.py", kernel_data, tmp_path)
    names = {row["data"] for row in table(tmp_path / "landmarks_and_width.csv")}
    assert names == {"simulated", "segment"}
    swept = table(tmp_path / "landmarks_and_width_widths.csv")
    assert {row["data"] for row in swept} == {"dna", "mushrooms", "connect-4"}
    assert lines_beside(tmp_path / "yin2022_figure1.csv")


@pytest.mark.slow
def test_mnist8m_kernel_kmeans(kernel_data, tmp_path):
    printed = run("mnist8m_kernel_kmeans.py", kernel_data, tmp_path)
    rows = table(tmp_path / "mnist8m_kernel_kmeans.csv")
    assert [(row["rows"], row["passes"], row["workers"]) for row in rows[:3]] == [
        ("10000", "2", "1"),
        ("10000", "2", "2"),
        ("10000", "4", "1"),
    ]
    assert "the same labels with any number of workers: True" in printed
    assert all(float(row["nmi"]) > 0.7 for row in rows)
    for line in table(tmp_path / "mnist8m_seconds.csv"):
        for workers in "12":
            parts = [float(line[f"{part}_seconds_{workers}"]) for part in ("nystroem", "svd", "kmeans", "labels")]
            assert 0 < sum(parts) <= float(line[f"seconds_{workers}"]) + 0.03
    assert all(float(row["assign_seconds"]) > 0 for row in rows[:2])
    assert all(100 < float(row["peak_mib"]) < float(row["limit_mib"]) == 4096 for row in rows)
    assert "below 4,096: True" in printed
    assert (tmp_path / "mnist8m_kernel_kmeans.png").exists()


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
