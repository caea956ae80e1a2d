"""The generator of documents: what they draw, that parts stand alone, and that every format says the same."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file

from tests.benchmarks import make_topics
from tests.benchmarks.make_topics import Topics

ROWS = 12_345  # two parts, the second cut


@pytest.fixture(scope="module")
def topics() -> Topics:
    return Topics(n_features=2_000, n_topics=7, seed=3)


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
