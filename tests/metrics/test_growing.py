"""Clusterings that grow: sums that stay exact, quality of fits of their own, rows that cannot be split."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from streamkm.cluster.rows import NO_WEIGHTS, Block
from streamkm.cluster.sampling.row_sample import as_block_matrix, sketched_d2norms
from streamkm.cluster.search import incremental_k as growing
from streamkm.cluster.search.incremental_k import Growing, around_mean
from streamkm.engine import open_executor
from streamkm.sketches import CountSketch
from tests import naive
from tests.tables import cases

pytestmark = pytest.mark.usefixtures("small_pieces_throughout")


@pytest.fixture
def executor():
    with open_executor(2) as opened:
        yield opened


def block_of(X):
    X = as_block_matrix(X)
    return Block(X, sketched_d2norms(X), NO_WEIGHTS)


def grown(executor, X, start, k, seed=0):
    shift = np.zeros(X.shape[1]) if sp.issparse(X) else X.mean(axis=0, dtype=np.float64)
    centers = np.asarray(start, np.float64) - shift
    growing_ = Growing(executor, around_mean(block_of(X)), centers, rng=np.random.default_rng(seed))
    growing_.grow(k)
    return growing_


STORED = ("float32", "float64", "csr", "sketched")


@cases("stored", STORED)
def test_inertia_is_that_of_the_labels(stored):
    """Sums are carried along for many steps, splits and swaps, and yet are those of the labels."""
    for seed in (0, 1):
        assert_inertia_is_that_of_the_labels(stored, seed)


@pytest.mark.slow
@pytest.mark.parametrize("stored", STORED)
@given(seed=st.integers(0, 99))
def test_inertia_is_that_of_the_labels_of_many_rows(stored, seed):
    assert_inertia_is_that_of_the_labels(stored, seed)


def assert_inertia_is_that_of_the_labels(stored, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(120, 6)) * (rng.random((120, 6)) < 0.6)
    rows = X.astype(stored) + 50 if stored.startswith("float") else sp.csr_array(X.astype(np.float32))
    if stored == "sketched":
        rows = CountSketch(4, seed).apply(rows)  # entries repeat an index
    with open_executor(2) as executor:
        found = grown(executor, rows, naive.dense(rows)[:2], 5, seed)
        for k in (6, 9, 20):
            found.grow(k)
            found.search(3)
            assert found.n_clusters == k
            assert set(np.unique(found.labels)) <= set(range(k))
            assert found.inertia == pytest.approx(naive.within(rows, found.labels), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_weights_are_rows_so_often(executor, sparse):
    """The inertia is the weighted one, and whole weights find what repeated rows find."""
    rng = np.random.default_rng(0)
    X, y = make_blobs(300, 4, centers=8, random_state=1)
    X = (X - X.mean(axis=0)).astype(np.float32)
    times = rng.integers(1, 5, 300).astype(np.float64)
    stored = as_block_matrix(sp.csr_array(X) if sparse else X)
    found = Growing(executor, Block(stored, sketched_d2norms(stored), times), X[:1].astype(float), rng=rng)
    found.grow(8)
    found.search(5)
    repeated = np.repeat(X, times.astype(int), axis=0)
    assert found.inertia == pytest.approx(naive.within(repeated, np.repeat(found.labels, times.astype(int))), rel=1e-4)
    assert found.inertia <= (1 + 1e-4) * naive.within(repeated, np.repeat(y, times.astype(int)))


def test_lazy_steps_find_the_nearest_centers(executor, monkeypatch):
    """Without tolerance lazy steps end where Lloyd's algorithm does: every row by its nearest mean."""
    monkeypatch.setattr(growing, "MOVE_TOL", 0.0)
    X, _ = make_blobs(500, 3, centers=9, cluster_std=2.0, random_state=0)
    found = grown(executor, X, X[:1], 12)
    found.settle(300)
    sums, counts = naive.sums_and_counts(X, found.labels, 12)
    labels, _ = naive.nearest(X, sums / counts[:, None])
    np.testing.assert_array_equal(labels, found.labels)


@pytest.mark.parametrize("sparse", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_as_good_as_fits_of_their_own(executor, sparse, small_topics, small_digits):
    X = small_topics.X if sparse else small_digits.X.astype(np.float32)
    found = grown(executor, X, naive.dense(X[:2]), 2)
    searched = 2
    for k in range(2, 26):
        found.grow(k)
        if k >= 1.25 * searched:
            found.search(6)
            searched = k
        if k in (5, 10, 25):
            best = min(KMeans(k, n_init=1, random_state=seed).fit(X).inertia_ for seed in range(5))
            assert naive.within(X, found.labels) <= 1.02 * best


def test_splits_every_distinct_row_apart(executor):
    X = np.repeat(np.arange(7.0)[:, None] ** 2, [40, 1, 1, 1, 30, 1, 20], axis=0)
    found = grown(executor, X, [[0.0]], 7)
    assert found.n_clusters == 7
    assert found.inertia < 1e-6


def test_stops_where_nothing_is_left_to_split(executor):
    X = np.repeat(np.eye(3), 10, axis=0)
    assert grown(executor, X, X[:1], 8).n_clusters == 3
    assert grown(executor, sp.csr_array(X), X[:1], 8).n_clusters == 3
    assert grown(executor, np.ones((5, 2)), np.ones((1, 2)), 4).n_clusters == 1


def test_swaps_leave_a_local_optimum(executor):
    """Two centers in one group and one in two: no step of Lloyd's algorithm can leave that."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(center, 0.1, (50, 2)) for center in ([0, 0], [10, 0], [0, 10])])
    stuck = Growing(executor, block_of(X), np.array([[-0.1, 0], [0.1, 0], [5.0, 5.0]]), rng=np.random.default_rng(0))
    assert stuck.inertia > 1000
    stuck.search(3)
    assert stuck.inertia < 5
    assert sorted(np.bincount(stuck.labels)) == [50, 50, 50]


def test_swaps_never_make_it_worse(executor):
    X, _ = make_blobs(300, 2, centers=5, cluster_std=3.0, random_state=1)
    for seed in range(5):
        found = grown(executor, X, X[:2], 8, seed)
        before = found.inertia
        found.search(5)
        assert found.inertia <= before


def test_clusters_that_lose_their_rows_are_refilled(executor):
    X, _ = make_blobs(200, 2, centers=3, random_state=0)
    far = np.array([[0.0, 0.0], [1e4, 1e4], [-1e4, 1e4]])
    found = Growing(executor, block_of(X), far, rng=np.random.default_rng(0))
    assert len(np.unique(found.labels)) == 3


def test_repeatable_whatever_the_threads():
    X, _ = make_blobs(400, 5, centers=12, cluster_std=2.0, random_state=0)
    found = []
    for n_threads in (1, 3):
        with open_executor(n_threads) as executor:
            each = grown(executor, X.astype(np.float32), X[:2], 15)
            each.search(3)
            found.append(each.labels)
    np.testing.assert_array_equal(*found)
