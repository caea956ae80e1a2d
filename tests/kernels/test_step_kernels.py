"""Kernels between two products: scattered columns, k-means++ trials, means; the hash of (seed, feature)."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm.cluster.rows import Block, drawn_rows
from streamkm.cluster.seeding.split_merge import split_some
from streamkm.core.matrix import rows_between
from streamkm.kernels.cluster import totals
from streamkm.kernels.intrinsics import hashing
from streamkm.kernels.seeding import row_draws
from streamkm.kernels.sketch.bucket_sums import MOST_TURNED, sketch_csr, sketch_dense
from streamkm.kernels.sketch.scattering import scatter_columns
from streamkm.sketches import CountSketch
from tests import naive
from tests.tables import cases

RNG = np.random.default_rng(0)


def scattered(X, targets, factors, n_targets):
    out = np.zeros((len(X), n_targets), X.dtype)
    for j, (target, factor) in enumerate(zip(targets, factors, strict=True)):
        out[:, target] += X.dtype.type(factor) * X[:, j]
    return out


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_scattered_columns(n_rows, n_columns, n_targets, double, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns)).astype(np.float64 if double else np.float32)
    targets = rng.integers(0, n_targets, n_columns).astype(np.int32)
    factors = rng.choice([-1, 1, 0.5], n_columns).astype(np.float32)
    before = rng.normal(size=(n_rows, n_targets)).astype(X.dtype)
    out = before.copy()
    scatter_columns(X, targets, factors, out)
    np.testing.assert_array_equal(out, before + scattered(X, targets, factors, n_targets))


@pytest.mark.parametrize("n_components", [MOST_TURNED, MOST_TURNED + 1])
def test_a_row_is_sketched_alike_whatever_comes_along(n_components):
    X = RNG.normal(size=(41, 100)).astype(np.float32)
    targets, signs = RNG.integers(0, n_components, 100).astype(np.int32), RNG.choice([-1, 1], 100).astype(np.float32)
    whole, apart = (np.zeros((41, n_components), np.float32) for _ in range(2))
    sketch_dense(X, targets, signs, whole)
    for i in range(41):
        sketch_dense(X[i : i + 1], targets, signs, apart[i : i + 1])
    np.testing.assert_array_equal(whole, apart)
    np.testing.assert_allclose(whole, scattered(X, targets, signs, n_components), atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_best_trial_leaves_the_least_mass(weighted):
    scores = RNG.normal(size=(50, 16)).astype(np.float32)
    d2norms, closest = RNG.uniform(1, 3, 50), RNG.uniform(0, 2, 50)
    weights = RNG.uniform(0, 2, 50) if weighted else np.empty(0)
    each = weights if weighted else np.ones(50)
    for n_trials in (1, 3, 16):
        d2 = np.maximum(scores[:, :n_trials] + d2norms[:, None], 0)
        masses = each @ np.minimum(closest[:, None], d2)
        assert row_draws.best_trial(scores, n_trials, d2norms, weights, closest) == masses.argmin()
    equal = np.repeat(scores[:, :1], 16, axis=1)
    equal[:, :3] += 1
    assert row_draws.best_trial(equal, 16, d2norms, weights, np.full(50, 99.0)) == 3  # the first of equal ones
    lowered, mass = closest.copy(), np.empty(50)
    row_draws.take_trial(scores, 2, 7, d2norms, weights, lowered, mass)
    expected = np.minimum(closest, np.maximum(scores[:, 2] + d2norms, 0))
    expected[7] = 0
    np.testing.assert_allclose(lowered, expected)
    np.testing.assert_allclose(mass, np.cumsum(each * expected))


def test_the_row_that_is_drawn_is_the_first_to_reach_the_share():
    mass = np.cumsum([1.0, 0, 2, 1, 0, 4])
    shares = np.array([0.0, 0.125, 0.13, 0.25, 0.375, 0.5, 0.501, 0.999])
    assert drawn_rows(mass, shares).tolist() == [0, 0, 2, 2, 2, 3, 5, 5]
    assert drawn_rows(mass, np.array([1 + 1e-9])) == 5  # rounded up: the last


def test_a_cluster_is_split_from_two_rows_though_all_draws_meet_one():
    X, order, starts = np.array([[0.0], [1], [9]]), np.arange(3), np.array([0, 3])
    gains, halves = np.empty(1), np.empty((1, 2, 1))
    for draw in (0.5, 0.9):
        draws = np.full((1, 2, 2), draw)  # of one row in proportion to squared distances, and evenly
        d2 = np.array([0, 0, 5.0])
        split_some(np.zeros(1, np.int64), Block(X, np.empty(0), np.empty(0)), (order, starts), d2, draws, gains, halves)
        np.testing.assert_allclose(np.sort(halves[0, :, 0]), [0.5, 9])
        np.testing.assert_allclose(gains, 2 / 3 * 8.5**2)


def test_means_and_what_centers_add_to_the_objective():
    sums, counts, centers = RNG.normal(size=(4, 9)), np.array([2.0, 0, 1, 5]), RNG.normal(size=(4, 9))
    out = np.empty_like(sums)
    totals.means(sums, counts, centers, out)
    np.testing.assert_allclose(out[[0, 2, 3]], sums[[0, 2, 3]] / counts[[0, 2, 3], None])
    np.testing.assert_array_equal(out[1], centers[1])
    totals.carried_on(sums, centers, 0.3, out)
    np.testing.assert_array_equal(out, sums + 0.3 * (sums - centers))
    expected = counts @ (centers**2).sum(axis=1) - 2 * (centers * sums).sum()
    assert totals.crossed(sums, counts, centers) == pytest.approx(expected)


@cases("start, stop", [(0, 20), (5, 9), (7, 7), (18, 99), (0, 1)])
def test_rows_between_are_those_of_a_slice_without_a_copy(start, stop):
    dense = RNG.normal(size=(20, 6)) * (RNG.random((20, 6)) < 0.4)
    X = sp.csr_array(dense)
    found = rows_between(X, start, stop)
    expected = X[start:stop]
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert found.indptr.dtype == X.indptr.dtype
    np.testing.assert_array_equal(found.toarray(), expected.toarray())
    if found.nnz:
        assert np.shares_memory(found.data, X.data)
        assert np.shares_memory(found.indices, X.indices)
    assert np.shares_memory(rows_between(dense, 2, 5), dense)


# The first outputs for the seed 1234567, as several reference implementations publish them.
PUBLISHED = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)

# (seed, feature, m, bucket, sign). A file format: models and stores that were written hold sketches made by it.
GOLDEN = (
    (0, 0, 512, 452, 1),
    (0, 1, 512, 220, -1),
    (0, 2**63 - 1, 512, 75, -1),
    (1, 1000, 2048, 955, -1),
    (1, 2**32 + 1, 2048, 941, 1),
    (42, 0, 7, 5, 1),
    (42, 2, 7, 1, -1),
    (42, 2**32 + 1, 7, 0, -1),
    (2**64 - 1, 1, 2**31, 1959787571, 1),
    (2**64 - 1, 2**31, 2**31, 558604402, 1),
    (2**64 - 1, 2**63 - 1, 2**31, 758388095, 1),
)


def kernel_hash(seed, feature, n_components):
    """Bucket and sign of one feature, by the kernel for sparse rows, which takes any 64-bit index."""
    bucket, value = np.empty(1, np.int32), np.empty(1, np.float32)
    index, one = np.array([feature], np.int64), np.ones(1, np.float32)
    seeds, bounds = np.array([seed], np.uint64), np.array([0, n_components], np.uint64)
    sketch_csr(seeds, bounds, np.float32(1), np.arange(2), index, one, bucket, value)
    return int(bucket[0]), int(value[0])


def priorities(seed, places):
    out = np.empty(len(places), np.int64)
    hashing.hash_integers(np.uint64(seed), np.asarray(places, np.int64), out)
    return out


def test_twin_and_kernel_give_the_published_outputs():
    assert tuple(naive.splitmix64(1234567, i) for i in range(5)) == PUBLISHED
    assert priorities(1234567, range(5)).tolist() == [value >> 1 for value in PUBLISHED]
    # with 2^31 components the bucket is the upper 31 bits
    buckets, signs = CountSketch(1 << 31, 1234567).hash(0, 5)
    assert buckets.tolist() == [value >> 33 for value in PUBLISHED]
    assert signs.tolist() == [1.0 if value & 1 else -1.0 for value in PUBLISHED]


@cases("seed, feature, n_components, bucket, sign", GOLDEN)
def test_golden_values(seed, feature, n_components, bucket, sign):
    assert kernel_hash(seed, feature, n_components) == (bucket, sign)
    assert naive.bucket_and_sign(seed, feature, n_components) == (bucket, sign)


@given(
    seed=st.integers(0, 2**64 - 1),
    feature=st.integers(0, 2**63 - 1),
    n_components=st.one_of(st.integers(1, 5000), st.integers(1, 2**31)),
)
def test_kernel_is_the_naive_twin(seed, feature, n_components):
    assert kernel_hash(seed, feature, n_components) == naive.bucket_and_sign(seed, feature, n_components)
    assert priorities(seed, [feature]).tolist() == [naive.splitmix64(seed, feature) >> 1]


@cases("start", [0, 2**31 - 3, 2**32 - 3, 2**53 - 3, 2**63 - 8])
def test_ranges_are_the_single_features(start):
    buckets, signs = CountSketch(1000, 99).hash(start, start + 7)
    wanted = [kernel_hash(99, start + i, 1000) for i in range(7)]
    assert list(zip(buckets.tolist(), signs.tolist(), strict=True)) == wanted
