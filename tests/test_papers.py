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
    ours = [line["holds"] for line in lines if line["here"].startswith("ours over SE")]
    assert ours == ["True"] * 3
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


def test_feature_hashing(data, tmp_path):
    run("feature_hashing.py", data, tmp_path)
    rows = table(tmp_path / "feature_hashing.csv")
    assert len(rows) == 2 * (3 * (4 + 1) + 1)  # both weights; the vocabulary and two sizes; seeds of both; the default
    whole = [row["f5"] for row in rows if row["m"] == "vocabulary" and row["method"] == "ours"]
    assert min(map(float, whole)) > 0.95  # words of different groups differ
    lines = lines_beside(tmp_path / "senuma2011.csv")
    bounds = [line for line in lines if line["setting"].startswith("theorem 4.5")]
    assert [line["holds"] for line in bounds] == ["True", "True"]
    ours = [line["holds"] for line in lines if line["measure"] == "objective over ours as it comes"]
    assert ours == ["True", "True"]
    assert (tmp_path / "feature_hashing.png").exists()


@pytest.mark.slow
def test_randomized_dimensionality_reduction(data, tmp_path):
    run("randomized_dimensionality_reduction.py", data, tmp_path)
    lines = lines_beside(tmp_path / "boutsidis2015.csv")
    bounds = [line for line in lines if line["measure"].startswith("factor")]
    assert len(bounds) == 3 * 2
    assert all(line["holds"] == "True" for line in bounds)
    assert [line["here"] for line in lines if line["setting"].endswith("ours")] == ["0 of 5"] * 6
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


def test_frontier_holds_what_nothing_beats():
    rng = np.random.default_rng(0)
    rows = [
        {"sketch": f"s{i % 7}", "m": i // 14, "seed": i // 7 % 2, "seconds": t, "objective": loss}
        for i, (t, loss) in enumerate(1 + rng.integers(0, 5, (56, 2)) / 4)
    ]
    means = load("quality_for_cost").averaged(rows)
    assert len(means) == 28
    for seconds, loss, sketch, m in means:
        kept = [row for row in rows if (row["sketch"], row["m"]) == (sketch, m)]
        assert [row["seed"] for row in kept] == [0, 1]
        assert seconds == pytest.approx(sum(row["seconds"] for row in kept) / 2)
        assert loss == pytest.approx(sum(row["objective"] for row in kept) / 2)
    found = {mean[:2] for mean in load("quality_for_cost").frontier(means)}
    beaten = {a[:2] for a in means for b in means if b[:2] != a[:2] and b[0] <= a[0] and b[1] <= a[1]}
    assert found == {mean[:2] for mean in means} - beaten


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
    found = {(line["dataset"], line["setting"].split(",")[0]): line["holds"] for line in lines}
    assert found["rings", "gamma = 4.0"] == found["moons", "gamma = 20.0"] == "True"
    for sampling in ("uniform", "leverage", "ridge leverage", "gaussian", "srht", "countsketch"):
        assert found["Mushrooms", sampling] == "True"
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
