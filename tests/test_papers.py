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


@pytest.mark.slow
def test_sparse_embedded(data, tmp_path):
    printed = run("sparse_embedded.py", data, tmp_path)
    rows = table(tmp_path / "sparse_embedded.csv")
    methods = {"k-means", "SVD", "LLE", "LS", "RP", "RP, matrix", "PD", "SE", "SE, whole fit"}
    assert {row["method"] for row in rows if row["data"] == "COIL20"} == methods
    assert {row["method"] for row in rows if row["data"] == "topics"} == methods - {"SVD", "LLE", "LS"}
    easy = [row for row in rows if row["data"] in ("COIL20", "20 Newsgroups") and row["method"] == "k-means"]
    assert len(easy) == 4
    assert all(float(row["accuracy"]) > 0.95 for row in easy)
    assert "20 Newsgroups: RP, matrix takes" in printed
    assert [row["rows"] for row in table(tmp_path / "sparse_embedded_rcv1_size.csv")] == ["10000"] * 5
    assert (tmp_path / "sparse_embedded.png").exists()


def test_feature_hashing(data, tmp_path):
    printed = run("feature_hashing.py", data, tmp_path)
    rows = table(tmp_path / "feature_hashing.csv")
    assert len(rows) == 2 * 2 * 2 * 3  # unigrams and bigrams, both weights, two seeds, the vocabulary and two sizes
    whole = [float(row["f5"]) for row in rows if row["vocabulary"] == "True" and row["grams"] == "unigrams"]
    assert min(whole) > 0.95  # words of different groups differ
    pairs, right = 120 * 119 / 2, 6 * 20 * 19 / 2
    precision = right / pairs
    assert f"in one cluster: {26 * precision / (25 * precision + 1):.3f}" in printed
    assert (tmp_path / "feature_hashing.png").exists()


@pytest.mark.slow
@pytest.mark.full
def test_randomized_dimensionality_reduction(data, tmp_path):
    printed = run("randomized_dimensionality_reduction.py", data, tmp_path)
    stem = "randomized_dimensionality_reduction"
    rows = table(tmp_path / f"{stem}.csv")
    apart = [row for row in rows if row["spread"] == "1" and row["method"] == "SVD" and int(row["m"]) >= 10]
    assert len(apart) == 2 * (1 + 2)  # seeds; m = 10 of 20 features, 10 and 100 of 200
    assert all(float(row["misclassified"]) == 0 for row in apart)
    assert all(float(row["objective"]) > 1 - 1e-6 for row in rows if row["spread"] == "1")  # nothing beats the truth
    assert "random signs: within 1 %" in printed
    assert all((tmp_path / f"{stem}_{name}.png").exists() for name in ("objective", "misclassified", "seconds"))


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


def test_nystroem_kernel_kmeans(kernel_data, tmp_path):
    printed = run("nystroem_kernel_kmeans.py", kernel_data, tmp_path)
    stem = "nystroem_kernel_kmeans"
    shapes = {(row["data"], row["method"]): float(row["accuracy"]) for row in table(tmp_path / f"{stem}_shapes.csv")}
    for shape in ("rings", "moons"):
        assert shapes[shape, "k-means"] < 0.9
        assert shapes[shape, "kernel k-means"] > 0.98
    rows = table(tmp_path / f"{stem}.csv")
    assert {row["data"] for row in rows} == {"Mushrooms", "MNIST"}
    kernel = [row for row in rows if row["method"].startswith("Nystroem")]
    assert len(kernel) == 2 * 4  # three ranks, and on a sample
    assert all(float(row["nmi"]) > 0.95 for row in kernel)
    assert all(float(row["over_exact"]) < 1.01 for row in rows if row["method"] == "power method")
    assert "MNIST: Nystroem less spectral, Nystroem: NMI" in printed
    assert all((tmp_path / f"{stem}_{name}.png").exists() for name in ("shapes", "spectral", "ranks", "objective"))


def test_randomized_sketches(kernel_data, tmp_path):
    printed = run("randomized_sketches.py", kernel_data, tmp_path)
    rows = table(tmp_path / "randomized_sketches_table.csv")
    assert len(rows) == 5 * 5  # sets and methods
    exact = {row["data"]: row for row in rows if row["method"] == "kernel k-means"}
    for row in rows:
        assert row["rows"] in ("210", "105")  # every second row where there are more than 200
        assert float(row["over_exact"]) < 1.05
        assert float(row["accuracy"]) > 95 or float(exact[row["data"]]["accuracy"]) < 95
    assert "ROS: accuracy less that of exact kernel k-means" in printed
    assert all(
        (tmp_path / f"randomized_sketches_{name}.png").exists() for name in ("accuracy", "seconds", "over_exact")
    )


@pytest.mark.slow
def test_mnist8m_kernel_kmeans(kernel_data, tmp_path):
    printed = run("mnist8m_kernel_kmeans.py", kernel_data, tmp_path)
    rows = table(tmp_path / "mnist8m_kernel_kmeans.csv")
    assert [(row["rows"], row["passes"]) for row in rows[:2]] == [("10000", "2"), ("10000", "4")]
    assert all(float(row["nmi"]) > 0.7 for row in rows)
    assert all(float(row["assign_seconds"]) > 0 for row in rows[:2])
    assert all(100 < float(row["peak_mib"]) < float(row["limit_mib"]) == 4096 for row in rows)
    assert "below 4,096: True" in printed
    assert (tmp_path / "mnist8m_kernel_kmeans.png").exists()
