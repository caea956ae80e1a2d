"""Silhouettes equal those of scikit-learn however rows are stored; scores carried along equal those from scratch."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from streamkm.cluster.distances import euclidean_distances
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine import open_executor
from streamkm.kernels.centers.scores import spread_csr, spread_dense
from streamkm.metrics.incremental import Distances, Rescoring
from streamkm.metrics.silhouette import sampled_silhouette
from tests import naive
from tests.tables import cases


def silhouette(X, labels, **options):
    return sampled_silhouette(X, labels, **options).mean


def rows(n=300, d=5, k=4, seed=0, dtype=np.float64):
    """Rows (n, d), many of them zero, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    X = rng.normal(size=(n, d)) + 2 * rng.normal(size=(k, d))[y]
    return (X * (rng.random((n, d)) < 0.7)).astype(dtype), y


@pytest.fixture
def executor():
    with open_executor(2) as opened:
        yield opened


@cases("stored", ["float64", "float32", "csr"])
def test_equals_scikit_learn(stored):
    X, y = rows(dtype=np.float32 if stored == "float32" else np.float64)
    y = y * 3 + 1  # gaps between labels
    wanted = sklearn.metrics.silhouette_score(X.astype(np.float64), y)
    assert silhouette(sp.csr_array(X) if stored == "csr" else X, y) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_rows_without_a_cluster_take_no_part():
    X, y = rows()
    y[::5] = -1
    assert silhouette(X, y) == pytest.approx(sklearn.metrics.silhouette_score(X[y >= 0], y[y >= 0]), rel=1e-12)


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


def test_silhouette_of_the_sample_that_scikit_learn_draws():
    X, y = rows()
    wanted = sklearn.metrics.silhouette_score(X, y, sample_size=70, random_state=3)
    assert silhouette(X, y, sample_rows=70, random_state=3) == pytest.approx(wanted, abs=1e-12)
    assert silhouette(sp.csr_array(X), y, sample_rows=70, random_state=3) == pytest.approx(wanted, abs=1e-12)


def test_one_cluster_has_no_silhouette():
    X, y = rows(n=20)
    assert np.isnan(silhouette(X, np.zeros_like(y)))
    assert np.isnan(silhouette(X, np.arange(20)))


def test_rows_on_their_means():
    X = np.repeat(np.eye(3), 2, axis=0)
    y = np.repeat(np.arange(3), 2)
    assert silhouette(X, y) == sklearn.metrics.silhouette_score(X, y) == 1.0
    assert silhouette(np.ones((6, 2)), y) == 0.0


def test_the_standard_error_of_a_sampled_silhouette():
    X, y = rows()
    drawn = np.random.RandomState(3).permutation(len(X))[:70]  # as scikit-learn's sample_size
    values = sklearn.metrics.silhouette_samples(X[drawn], y[drawn])
    found = sampled_silhouette(X, y, sample_rows=70, random_state=3)
    assert found.n_rows == 70
    assert found.mean == pytest.approx(values.mean(), abs=1e-12)
    assert found.standard_error == pytest.approx(scipy.stats.sem(values), abs=1e-12)
    alone = sampled_silhouette(X[:5], np.arange(5))
    assert np.isnan([alone.mean, alone.standard_error]).all()


def test_silhouette_refuses_other_lengths():
    with pytest.raises(InvalidInputError, match=r"labels have shape \(2,\); X has 300 rows"):
        silhouette(rows()[0], [0, 1])


# ---- the kernel and what is carried along


@cases("sparse", [False, True])
@cases("dtype", [np.float32, np.float64])
@cases("weighted", [False, True])
def test_kernel_against_loops(sparse, dtype, weighted):
    X, y = rows(n=60, dtype=dtype)
    own = np.random.default_rng(1).uniform(0.1, 9, 60) if weighted else np.ones(60)
    weights = own if weighted else NO_WEIGHTS
    y[y == 2] = 1  # an empty cluster
    order = np.argsort(y, kind="stable")
    starts = np.searchsorted(y[order], np.arange(5))
    means, d2, distances = np.full((4, 5), 7.0), np.full(4, 7.0), np.full(4, 7.0)
    wanted = np.array([3, 1, 2])
    if sparse:
        stored = sp.csr_array(X)
        spread_csr(stored.indptr, stored.indices, stored.data, weights, order, starts, wanted, means, d2, distances)
    else:
        spread_dense(X, weights, order, starts, wanted, means, d2, distances)
    assert (means[0] == 7).all()
    assert d2[0] == distances[0] == 7  # not asked for
    assert d2[2] == distances[2] == means[2].sum() == 0
    for c in (1, 3):
        mean = sum(w * x.astype(np.float64) for w, x in zip(own[y == c], X[y == c], strict=True)) / own[y == c].sum()
        each = np.array([naive.d2(x, mean) for x in X[y == c]])
        np.testing.assert_allclose(means[c], mean, rtol=1e-6 if dtype == np.float32 else 1e-12)
        assert d2[c] == pytest.approx(own[y == c] @ each, rel=1e-12)
        assert distances[c] == pytest.approx(own[y == c] @ np.sqrt(each), rel=1e-12)


def compare(X, y, found, n_judged, rel):
    dense = naive.dense(X)
    dense -= dense.mean(axis=0)  # scikit-learn's distances between means lose digits far from the origin
    assert found.n_found == len(np.unique(y))
    assert found.inertia == pytest.approx(naive.within(dense, y), rel=1e-9)
    for name, function, stop in (
        ("calinski_harabasz", sklearn.metrics.calinski_harabasz_score, None),
        ("davies_bouldin", sklearn.metrics.davies_bouldin_score, None),
        ("silhouette", sklearn.metrics.silhouette_score, n_judged),
    ):
        if 2 <= len(np.unique(y[:stop])) < len(y[:stop]):
            assert getattr(found, name) == pytest.approx(function(dense[:stop], y[:stop]), rel=rel, abs=1e-7)
        else:
            assert np.isnan(getattr(found, name))


STORED = ("float64", "float32", "csr")


@cases("stored", STORED)
def test_carried_along_equals_from_scratch(stored):
    """Any labels after any others: clusters that appear, vanish, and change by one row or by all."""
    for seed in (0, 1, 2):
        assert_carried_along_equals_from_scratch(stored, seed)


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
@given(seed=st.integers(0, 50))
def test_carried_along_equals_from_scratch_of_many_rows(stored, seed):
    assert_carried_along_equals_from_scratch(stored, seed)


def assert_carried_along_equals_from_scratch(stored, seed):
    rng = np.random.default_rng(seed)
    X, y = rows(n=80, seed=seed)
    X = sp.csr_array(X.astype(np.float32)) if stored == "csr" else X.astype(stored)
    if stored == "float64":
        X += 1000.0
    with open_executor(2) as executor:
        rescoring = Rescoring(executor, X, Distances(X, 30), 7)
        labels = y.astype(np.int32)
        for share in (1.0, 0.02, 0.3, 0.9, 0.0):
            moved = rng.random(80) < share
            labels = np.where(moved, rng.integers(0, rng.integers(1, 8), 80), labels).astype(np.int32)
            compare(X, labels, rescoring.score(labels), 30, 1e-8 if stored == "float64" else 1e-4)


def test_float32_rows_far_from_the_origin(executor):
    X, y = rows(n=200, dtype=np.float32)
    X += np.float32(100)
    found = Rescoring(executor, X, Distances(X, 200), 4).score(y.astype(np.int32))
    compare(X, y, found, 200, 1e-3)
