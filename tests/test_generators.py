"""The generators of benchmark data: what they draw, that parts stand alone, and that every format says the same."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import load_svmlight_file

from tests.benchmarks import make_digits, make_topics
from tests.benchmarks.make_digits import Digits
from tests.benchmarks.make_topics import Topics

ROWS = 12_345  # two parts, the second cut


@pytest.fixture(scope="module")
def topics() -> Topics:
    return Topics(n_features=2_000, n_topics=7, seed=3)


@pytest.fixture(scope="module")
def digits() -> Digits:
    rng = np.random.default_rng(0)
    images = np.zeros((20, 28, 28), np.uint8)
    images[:, 7:21, 10:18] = rng.integers(100, 256, (20, 14, 8))
    return Digits(images.reshape(20, 784), np.arange(20) % 10, seed=3)


def assert_same(X: sp.csr_array, expected: sp.csr_array) -> None:
    np.testing.assert_array_equal(X.indptr, expected.indptr)
    np.testing.assert_array_equal(X.indices, expected.indices)
    np.testing.assert_array_equal(X.data, expected.data)
    assert X.shape == expected.shape


def test_topics_have_the_statistics_of_tf_idf_text():
    topics = Topics()
    X, y = topics.part(0)
    stored = np.diff(X.indptr)
    assert 56 < stored.mean() < 58
    assert stored.min() >= 1
    assert X.has_canonical_format
    assert X.dtype == np.float32
    assert X.indices.dtype == np.int32
    np.testing.assert_allclose(np.sqrt((X * X).sum(axis=1)), 1, rtol=1e-6)
    counts = np.bincount(y, minlength=50)
    assert len(counts) == 50
    assert counts.min() > 120
    # Rows have length 1, so the objective of the true partition is 1 less the weighted squared lengths of its means.
    member = sp.csr_array((np.ones(len(y)), (y, np.arange(len(y)))), shape=(50, len(y)))
    sums = member @ X.astype(np.float64)
    objective = 1 - ((sums * sums).sum(axis=1) / counts).sum() / len(y)
    assert 0.72 < objective < 0.75


def test_topics_depend_on_seed_and_part_alone_and_files_hold_them(tmp_path, topics):
    X, y = topics.matrix(ROWS)
    again, y_again = Topics(2_000, 7, seed=3).part(1)
    assert_same(X[10_000:], again[: ROWS - 10_000])
    np.testing.assert_array_equal(y[10_000:], y_again[: ROWS - 10_000])
    assert (Topics(2_000, 7, seed=4).part(1)[0] != again).nnz
    for kind, n_rows in (("npz", ROWS), ("svmlight", 500)):
        path = str(tmp_path / f"topics.{kind}")
        make_topics.write(path, topics, n_rows, kind=kind)
        np.testing.assert_array_equal(np.load(f"{path}.labels.npy"), y[:n_rows])
    assert_same(sp.csr_array(sp.load_npz(tmp_path / "topics.npz")), X)
    written, target = load_svmlight_file(path, n_features=2_000, dtype=np.float64)
    np.testing.assert_array_equal(target, y[:500])
    np.testing.assert_array_equal(written.indices, X[:500].indices)
    np.testing.assert_allclose(written.data, X[:500].data, rtol=1e-5)  # six digits


def test_digits_depend_on_images_seed_and_part_alone_and_an_array_holds_them(digits, tmp_path):
    parts = list(digits.parts(ROWS))
    assert [len(X) for X, _ in parts] == [10_000, ROWS - 10_000]
    X, y = Digits(digits.images, digits.digits, seed=3).part(1)
    np.testing.assert_array_equal(parts[1][0], X[: ROWS - 10_000])
    np.testing.assert_array_equal(parts[1][1], y[: ROWS - 10_000])
    assert not np.array_equal(parts[0][0][:1_000], X[:1_000])
    ink = digits.images.mean()
    assert 0.9 * ink < X.mean() < 1.1 * ink
    matrix = make_digits.deformation(np.random.default_rng(0))  # a bilinear mean
    assert matrix.shape == (784, 784)
    assert matrix.data.min() >= 0
    inner = np.asarray(matrix.sum(axis=0)).reshape(28, 28)[8:20, 8:20]
    np.testing.assert_allclose(inner, 1, rtol=1e-5)
    assert matrix.count_nonzero() <= 4 * 784
    mnist, path = str(tmp_path / "mnist.h5"), str(tmp_path / "digits.zarr")
    with h5py.File(mnist, "w") as file:
        file["X"], file["y"] = digits.images, digits.digits
    make_digits.write(path, Digits.open(mnist, seed=3), 600)
    np.testing.assert_array_equal(np.load(f"{path}.labels.npy"), parts[0][1][:600])
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], parts[0][0][:600])
