"""Silhouettes equal those of scikit-learn however rows are stored."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
import sklearn.metrics

from streamkm.cluster.profile import euclidean_distances
from streamkm.metrics.cluster_details import mean_silhouette
from tests.tables import cases


def silhouette(X, labels):
    return mean_silhouette(euclidean_distances(X), labels)[0]


def rows(n=300, d=5, k=4, seed=0, dtype=np.float64):
    """Rows (n, d), many of them zero, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    X = rng.normal(size=(n, d)) + 2 * rng.normal(size=(k, d))[y]
    return (X * (rng.random((n, d)) < 0.7)).astype(dtype), y


@cases("stored", ["float64", "float32", "csr"])
def test_equals_scikit_learn(stored):
    X, y = rows(dtype=np.float32 if stored == "float32" else np.float64)
    y = y * 3 + 1  # gaps between labels
    wanted = sklearn.metrics.silhouette_score(X.astype(np.float64), y)
    assert silhouette(sp.csr_array(X) if stored == "csr" else X, y) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_silhouette_far_from_the_origin():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    X = np.round(60 * rng.normal(size=(300, 4)) + 900 * np.eye(4)[y])
    near, moved, single = silhouette(X, y), X + 2.0**37, (X + 2.0**16).astype(np.float32)  # whole numbers: exact
    assert near == pytest.approx(sklearn.metrics.silhouette_score(X, y), rel=1e-12)
    assert silhouette(moved, y) == pytest.approx(near, rel=1e-9)
    assert silhouette(single, y) == pytest.approx(near, rel=1e-6)
    assert silhouette(sp.csr_array(moved), y) == pytest.approx(near, rel=1e-9)
    np.testing.assert_allclose(
        euclidean_distances(moved[:50], moved[50:]), sklearn.metrics.pairwise_distances(X[:50], X[50:]), rtol=1e-9
    )


@cases("scale", [2.0**-700, 2.0**500])
def test_distances_whose_squares_float64_does_not_hold(scale):
    X, _ = rows()
    np.testing.assert_allclose(euclidean_distances(X * scale), euclidean_distances(X) * scale, rtol=1e-9)


def test_one_cluster_has_no_silhouette():
    X, y = rows(n=20)
    assert np.isnan(silhouette(X, np.zeros_like(y)))
    assert np.isnan(silhouette(X, np.arange(20)))


def test_the_standard_error():
    X, y = rows(n=70)
    values = sklearn.metrics.silhouette_samples(X, y)
    assert mean_silhouette(euclidean_distances(X), y) == pytest.approx((values.mean(), scipy.stats.sem(values)))
    assert np.isnan(mean_silhouette(euclidean_distances(X[:5]), np.arange(5))).all()
