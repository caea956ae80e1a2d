"""LS++: against a twin in loops, and its promise."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding import init as starting
from streamkm.cluster.seeding.kmeans_plusplus import TRIALS, ls_plusplus, random_rows
from tests import naive
from tests.tables import cases


def block_of(X, weights=NO_WEIGHTS):
    return Block(X, row_d2norms(X), weights)


def cost(X, centers, weights=None):
    d2 = naive.nearest(X, centers)[1]
    return float(d2.sum() if weights is None else weights @ d2)


def naive_search(X, centers, n_steps, rng, weights):
    """The same draws; every exchange tried by itself."""
    centers, waiting = centers.copy(), []
    for _ in range(n_steps):
        mass = np.cumsum(weights * naive.nearest(X, centers)[1])
        if not waiting:
            waiting = [min(int(np.searchsorted(mass, u * mass[-1])), len(X) - 1) for u in rng.random(TRIALS)]
        row = waiting.pop(0)
        exchanged = []
        for out in range(len(centers)):
            trial = centers.copy()
            trial[out] = X[row]
            exchanged.append((cost(X, trial, weights), out))
        best, out = min(exchanged)
        if best < mass[-1]:
            centers[out] = X[row]
            waiting = []
    return centers


@cases("weighted", [False, True])
@cases("sparse", [False, True])
def test_makes_the_exchanges_of_the_definition(weighted, sparse):
    X, _ = make_blobs(150, centers=8, n_features=3, random_state=0)
    X = (X - X.mean(axis=0)).astype(np.float32)
    weights = np.random.default_rng(1).random(150) + 0.1 if weighted else np.ones(150)
    block = block_of(sp.csr_array(X) if sparse else X, weights if weighted else NO_WEIGHTS)
    start = X[:8].astype(np.float64)
    got = ls_plusplus(block, start, n_steps=40, rng=np.random.default_rng(5))
    wanted = naive_search(X.astype(np.float64), start, 40, np.random.default_rng(5), weights)
    np.testing.assert_allclose(got, wanted)
    assert cost(X, got) < 0.7 * cost(X, start)


@given(seed=st.integers(0, 2**32 - 1), n_clusters=st.integers(1, 6), n_steps=st.integers(0, 20))
def test_never_makes_it_worse(seed, n_clusters, n_steps):
    rng = np.random.default_rng(seed)
    X = rng.integers(-3, 4, (30, 2)).astype(np.float32)
    block = block_of(X)
    start = random_rows(block, n_clusters, rng=rng)
    found = ls_plusplus(block, start, n_steps=n_steps, rng=rng)
    assert found.shape == start.shape
    assert cost(X, found) <= cost(X, start)


def test_equal_rows_end_the_search():
    X = np.ones((20, 2), np.float32)
    found = ls_plusplus(block_of(X), np.ones((3, 2)), n_steps=10, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(found, np.ones((3, 2)))


@pytest.mark.parametrize(("estimator", "sparse"), [(StreamKMeans, False), (StreamKernelKMeans, True)])
def test_every_estimator_has_it(estimator, sparse, monkeypatch):
    X, y = make_blobs(900, centers=30, n_features=5, cluster_std=0.3, random_state=2)
    X = (X - X.min(axis=0)).astype(np.float32)
    steps, search = [], starting.ls_plusplus

    def watched(block, centers, *, n_steps, rng):
        steps.append(n_steps)
        return search(block, centers, n_steps=n_steps, rng=rng)

    monkeypatch.setattr(starting, "ls_plusplus", watched)
    fitted = estimator(30, init="ls++", n_init=1, random_state=0, progress=False)
    labels = fitted.fit_predict(sp.csr_array(X) if sparse else X)
    assert steps == [4 * 30]
    assert adjusted_rand_score(y, labels) > 0.9
