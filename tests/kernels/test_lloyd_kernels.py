"""Kernels of a Lloyd step against their naive twins, dense and CSR, and that a row never depends on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from streamkm.cluster.centers import packed as center_layout
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import NO_WEIGHTS, Block, add_rows, row_d2, row_d2norms, rows_by_label
from streamkm.cluster.seeding.split_merge import SPLIT_STEPS, split_some
from streamkm.kernels.seeding import splitting
from streamkm.kernels.sketch import bucket_sums
from tests import naive
from tests.sources.matrices import sparse_matrices
from tests.tables import cases, slow_but

STORED = ("dense", "csr-32")
FLOATS = (np.float32, np.float64)


def store(X, how):
    """Rows dense, or CSR with indices of so many bits."""
    if how == "dense":
        return X
    stored = sp.csr_array(X)
    index = np.int64 if how == "csr-64" else np.int32
    return sp.csr_array((stored.data, stored.indices.astype(index), stored.indptr.astype(index)), shape=X.shape)


def rows_and_centers(n_rows=301, n_features=13, n_clusters=11, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n_rows, n_features)) < 0.4, rng.normal(size=(n_rows, n_features)), 0).astype(dtype)
    X[[0, n_rows // 2, -1]] = 0
    return X, rng.normal(size=(n_clusters, n_features))


@cases("how", [*STORED, "csr-64"])
@cases("dtype", FLOATS)
@cases("n_clusters", [1, 2, 8, 40])
def test_nearest_and_second_nearest(how, dtype, n_clusters):
    X, centers = rows_and_centers(n_clusters=n_clusters, dtype=dtype)
    table = NearestCenters.build(centers, dtype)
    labels, scores, seconds = table.nearest(store(X, how))
    distances = naive.d2_matrix(X, centers)
    np.testing.assert_array_equal(labels, distances.argmin(axis=1))
    if n_clusters == 1:
        assert np.isposinf(seconds).all()
    else:
        ahead = np.sort(distances)[:, 1] - distances.min(axis=1)
        tolerance = 100 * np.finfo(dtype).eps
        np.testing.assert_allclose(seconds.astype(float) - scores, ahead, atol=tolerance, rtol=tolerance)
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(table.labels(store(X, how)), labels)


@cases("how", STORED)
@cases("dtype, n_clusters, around_origin", [(np.float32, 1, True), (np.float32, 11, False), (np.float64, 11, True)])
def test_scores_are_d2_less_what_all_centers_share(how, dtype, n_clusters, around_origin):
    X, centers = rows_and_centers(n_clusters=n_clusters, dtype=dtype)
    table = NearestCenters.build(centers, dtype, around_origin=around_origin)
    shift = np.zeros(X.shape[1]) if around_origin else centers.mean(axis=0)
    wanted = naive.d2_matrix(X, centers) - naive.d2_matrix(X, [shift])
    tolerance = 100 * np.finfo(dtype).eps
    got = table.scores(store(X, how))
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(table.nearest(store(X, how))[1], wanted.min(axis=1), atol=tolerance, rtol=tolerance)


@cases("how", STORED)
@cases("dtype", FLOATS)
@cases("n_clusters", [16, 65, 200])
def test_a_table_in_tiles_gives_what_one_piece_gives(monkeypatch, how, dtype, n_clusters):
    X, centers = rows_and_centers(n_clusters=n_clusters, dtype=dtype)
    centers[n_clusters // 2 :] = centers[: n_clusters - n_clusters // 2]  # ties across tiles
    rows, whole = store(X, how), NearestCenters.build(centers, dtype)
    found = whole.nearest(rows), whole.scores(rows)
    monkeypatch.setattr(center_layout, "TILED_BYTES", 0)
    tiled = NearestCenters.build(centers, dtype)
    assert tiled.layout(dtype, sparse=True).width == 64
    for one, other in zip(tiled.nearest(rows), found[0], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(tiled.scores(rows), found[1])


@cases("how", STORED)
def test_ties_go_to_the_lower_label(how):
    centers = np.array([[4.0, 0], [1, 0], [-1, 0], [1, 0], [0, 1], [0, -1]])
    X = np.array([[0.0, 0], [1, 0], [-1, 0], [0, 3], [4, 0], [2.5, 0]])
    labels, scores, seconds = NearestCenters.build(centers, np.float64).nearest(store(X, how))
    assert labels.tolist() == [1, 1, 2, 4, 0, 0]
    np.testing.assert_allclose(seconds - scores, [0, 0, 2, 6, 9, 0], atol=1e-12)


@cases("how", STORED)
@cases("dtype", FLOATS)
def test_a_row_is_computed_alike_whatever_comes_along(how, dtype):
    X, centers = rows_and_centers(n_rows=700, n_features=37, dtype=dtype)
    # near ties, which any other order of additions would decide otherwise
    X[:, :] = (centers[0] + centers[1] + 1e-7 * np.random.default_rng(0).normal(size=X.shape)) / 2
    table = NearestCenters.build(centers[:2], dtype)
    labels, scores, _ = table.nearest(store(X, how))
    for start, stop in ((0, 1), (5, 6), (699, 700), (3, 300), (1, 700)):
        some_labels, some_scores, _ = table.nearest(store(X[start:stop], how))
        np.testing.assert_array_equal(some_labels, labels[start:stop])
        np.testing.assert_array_equal(some_scores, scores[start:stop])
    strided = np.asfortranarray(X) if how == "dense" else store(X, how)
    np.testing.assert_array_equal(table.nearest(strided)[1], scores)


@given(X=sparse_matrices(), n_clusters=st.integers(1, 9), seed=st.integers(0, 99))
def test_step_on_any_matrix(X, n_clusters, seed):
    """Whole numbers: everything is exact, ties included."""
    centers = np.random.default_rng(seed).integers(0, 60, (n_clusters, X.shape[1])).astype(np.float64)
    wanted_labels, wanted_d2 = naive.nearest(X, centers)
    wanted_sums, wanted_counts = naive.sums_and_counts(X, wanted_labels, n_clusters)
    for rows in (X, X.toarray()):
        labels, _, _ = NearestCenters.build(centers, np.float64).nearest(rows)
        near = naive.d2_matrix(rows, centers)[np.arange(len(labels)), labels]
        np.testing.assert_allclose(near, wanted_d2, rtol=1e-12)  # a tie may be broken by rounding of the shift
        sums, counts = np.zeros_like(centers), np.zeros(n_clusters)
        add_rows(rows, NO_WEIGHTS, wanted_labels.astype(np.int32), sums, counts)
        np.testing.assert_array_equal(sums, wanted_sums)
        np.testing.assert_array_equal(counts, wanted_counts)
        d2 = row_d2(rows, wanted_labels.astype(np.int32), NearestCenters.build(centers, np.float64))
        np.testing.assert_array_equal(d2, wanted_d2)
        np.testing.assert_array_equal(row_d2norms(rows), (X.toarray().astype(np.float64) ** 2).sum(axis=1))


@cases("how", [*STORED, "csr-64"])
@cases("dtype", FLOATS)
@cases("weighted", [False, True])
def test_sums_counts_and_distances(how, dtype, weighted):
    X, centers = rows_and_centers(n_rows=900, dtype=dtype)
    rng = np.random.default_rng(1)
    labels = rng.integers(-1, len(centers) - 1, len(X)).astype(np.int32)
    weights = rng.random(len(X)) * (rng.random(len(X)) < 0.8) if weighted else None
    wanted = naive.sums_and_counts(X, labels, len(centers), weights)
    sums, counts = np.ones_like(centers), np.ones(len(centers))  # they are added to
    rows, given = store(X, how), NO_WEIGHTS if weights is None else weights
    add_rows(rows, given, labels, sums, counts)
    np.testing.assert_allclose(sums - 1, wanted[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(counts - 1, wanted[1], rtol=1e-12, atol=1e-12)
    begun = np.full_like(centers, np.nan)  # or begin, whatever was there
    add_rows(rows, given, labels, begun, np.zeros(len(centers)), fresh=True)
    np.testing.assert_allclose(begun, wanted[0], rtol=1e-12, atol=1e-12)
    d2 = row_d2(rows, labels, NearestCenters.build(centers, np.float64))
    at_label = naive.d2_matrix(X, centers)[np.arange(len(X)), labels]
    np.testing.assert_allclose(d2, np.where(labels < 0, 0, at_label), rtol=1e-12, atol=1e-12)
    assert (d2[labels < 0] == 0).all()
    sums[:] = np.nan
    add_rows(store(X[:0], how), NO_WEIGHTS, np.empty(0, np.int32), sums, np.zeros(len(sums)), fresh=True)
    assert (sums == 0).all()  # of no rows


OTHERS = [
    *((dtype, how) for dtype in (np.uint8, np.bool_, np.int32, np.int64) for how in STORED),
    (np.float16, "dense"),
]


@pytest.mark.parametrize(
    ("dtype", "how"), slow_but([(np.uint8, "dense"), (np.float16, "dense")], [*OTHERS, (np.float16, "dense")])
)
def test_other_dtypes(dtype, how):
    X = np.random.default_rng(0).integers(0, 2 if dtype == np.bool_ else 100, (50, 6)).astype(dtype)
    centers = np.random.default_rng(1).integers(0, 100, (4, 6)).astype(np.float64)
    rows = store(X, how)
    labels, _, _ = NearestCenters.build(centers, np.float64).nearest(rows)
    wanted, wanted_d2 = naive.nearest(X, centers)
    np.testing.assert_array_equal(labels, wanted)
    np.testing.assert_allclose(row_d2(rows, labels, NearestCenters.build(centers, np.float64)), wanted_d2, rtol=1e-12)
    sums, counts = np.zeros_like(centers), np.zeros(4)
    add_rows(rows, NO_WEIGHTS, labels, sums, counts)
    np.testing.assert_array_equal(sums, naive.sums_and_counts(X, wanted, 4)[0])
    np.testing.assert_array_equal(row_d2norms(rows), (X.astype(np.float64) ** 2).sum(axis=1))


@cases("how", STORED)
@cases("dtype", FLOATS)
def test_distances_and_nearest_centers_far_from_the_origin(how, dtype):
    """Distances by differences: exact to the rounding of the input, not to that of the squared norms."""
    rng = np.random.default_rng(0)
    X = (1e6 + rng.integers(0, 8, (40, 5))).astype(dtype)
    centers = 1e6 + rng.integers(0, 8, (3, 5)).astype(np.float64)
    labels = rng.integers(0, 3, 40).astype(np.int32)
    wanted = naive.d2_matrix(X, centers)[np.arange(40), labels]
    np.testing.assert_array_equal(row_d2(store(X, how), labels, NearestCenters.build(centers, np.float64)), wanted)
    if how == "dense":
        centers = 1e6 + 100.0 * rng.normal(size=(3, 5))
        X = (centers[labels] + rng.normal(size=(40, 5))).astype(dtype)
        np.testing.assert_array_equal(NearestCenters.build(centers, dtype).nearest(X)[0], labels)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_merged_norms_add_entries_that_meet(index):
    indptr, indices = np.array([0, 4, 4, 7], index), np.array([2, 0, 2, 2, 1, 1, 4], index)
    data = np.array([1, 5, 2, 3, 2, -2, 3], np.float32)
    out = np.empty(3)
    bucket_sums.merged_d2norms(5, indptr, indices, data, out)
    assert out.tolist() == [36 + 25, 0, 9]


def split_both(X, rows, pair, n_steps, weights):
    """Gain and halves by the dense and the CSR kernel."""
    stored = sp.csr_array(X)
    found = []
    halves = np.zeros((2, X.shape[1]))
    gain = splitting.split_dense(X, weights, rows, pair, n_steps, halves)
    found.append((gain, halves))
    halves = np.zeros((2, X.shape[1]))
    arrays = (stored.indptr, stored.indices, stored.data)
    gain = splitting.split_csr(*arrays, weights, rows, pair, n_steps, halves)
    found.append((gain, halves))
    return found


@cases("dtype", FLOATS)
@cases("weighted", [False, True])
@cases("n_steps", [1, 6])
def test_split_is_two_means(dtype, weighted, n_steps):
    X, _ = rows_and_centers(n_rows=200, n_features=9, dtype=dtype)
    X[100:] += 1
    rng = np.random.default_rng(2)
    rows = np.sort(rng.permutation(200)[:120])
    weights = rng.random(200) if weighted else NO_WEIGHTS
    wanted_gain, wanted = naive.split(X[rows], 3, 110, n_steps, weights[rows] if weighted else None)
    assert wanted_gain > 0
    for gain, halves in split_both(X, rows, np.array([3, 110]), n_steps, weights):
        np.testing.assert_allclose(gain, wanted_gain, rtol=1e-4)
        np.testing.assert_allclose(halves, wanted, rtol=1e-4, atol=1e-5)


@cases("how", STORED)
@cases("weighted", [False, True])
def test_each_cluster_is_split_by_the_best_of_its_draws(how, weighted):
    """Against single splits from seeds that are drawn the readable way; other clusters are left as they are."""
    X, centers = rows_and_centers(n_rows=300, n_features=9)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 5, 300).astype(np.int32)
    labels[labels == 3] = 0
    labels[0] = 3  # one row alone
    weights = rng.random(300) if weighted else NO_WEIGHTS
    d2 = naive.d2_matrix(X, centers)[np.arange(300), 0] * (weights if weighted else 1)
    d2[labels == 4] = 0  # all on their center
    order, starts = rows_by_label(labels, 5)
    draws = rng.random((5, 4, 2))
    gains, halves = np.full(5, -1.0), np.full((5, 2, 9), -1.0)
    block = Block(store(X, how), np.empty(0), weights)
    split_some(np.array([0, 3, 1, 4]), block, (order, starts), d2, draws, gains, halves)
    if how == "dense":  # in whatever layout
        again, block = np.full(5, -1.0), Block(np.asfortranarray(X), np.empty(0), weights)
        split_some(np.array([0, 3, 1, 4]), block, (order, starts), d2, draws, again, np.empty_like(halves))
        np.testing.assert_array_equal(again, gains)
    assert gains[2] == -1
    assert (halves[2] == -1).all()
    for c in (3, 4):
        assert gains[c] == 0
        assert (halves[c] == 0).all()
    for c in (0, 1):
        own = np.flatnonzero(labels == c)
        mass, found = np.cumsum(d2[own]), []
        for trial, (far, other) in enumerate(draws[c]):
            first = int(np.searchsorted(mass, far * mass[-1]))
            second = int(other * len(own)) if trial % 2 == 0 else int(np.searchsorted(mass, other * mass[-1]))
            pair = np.array([first, second if first != second else (first + 1) % len(own)])
            found.append(split_both(X, own, pair, SPLIT_STEPS, weights)[how != "dense"])
        best = max(range(4), key=lambda trial: found[trial][0])
        assert gains[c] == found[best][0] > 0
        np.testing.assert_array_equal(halves[c], found[best][1])
