"""Sketches after a randomized Hadamard transform: contract, explicit matrices, golden values, statistics."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import hadamard

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.kernels.sketch import walsh_hadamard as kernels
from streamkm.sketches import PreconditionedSampling, SubsampledHadamard
from tests import naive
from tests.contracts import N_FEATURES, HashedSketchContract, SketchContract, whole_numbers
from tests.tables import cases

N_SEEDS = 1500
PADDED = 64
SKETCHES = [lambda d, seed=0: SubsampledHadamard(8, d, seed), lambda d, seed=0: PreconditionedSampling(0.25, d, seed)]


class TestSubsampledWider(HashedSketchContract):
    """For more features than the rows have; 1 / sqrt(50) is rounded."""

    tolerance = 1e-6

    def make_sketch(self):
        return SubsampledHadamard(50, 300, seed=2**64 - 1)


class TestSampling(SketchContract):
    blind_to_precision = False  # a row's own bits decide which of its entries are kept

    def make_sketch(self):
        return PreconditionedSampling(0.3, N_FEATURES, seed=5)


@cases("dtype", [np.float32, np.float64])
@cases("n", [16, 32, 64, 512, 2048])
def test_transform_is_the_explicit_matrix(n, dtype):
    columns = np.random.default_rng(n).integers(-9, 10, (n, 3)).astype(dtype)
    wanted = hadamard(n) @ columns
    kernels.transform(columns)
    np.testing.assert_array_equal(columns, wanted)
    if n <= 64:
        np.testing.assert_array_equal(naive.hadamard_matrix(n), hadamard(n))


@pytest.mark.slow
@cases("dtype", [np.float32, np.float64])
@cases("n", [1 << 12, 1 << 14, 1 << 17])
def test_transform_of_rows_past_the_cache(n, dtype):
    # the transform of a unit vector is a column of signs, and the transform is its own inverse times n
    row = np.zeros(n, dtype)
    row[n // 3] = 1
    kernels.transform(row[:, None])
    places = np.arange(0, n, 97)
    wanted = [(-1.0) ** (int(c) & (n // 3)).bit_count() for c in places]
    np.testing.assert_array_equal(row[places], wanted)
    row[:] = np.random.default_rng(n).integers(-9, 10, n)
    twice = row.copy()
    kernels.transform(twice[:, None])
    kernels.transform(twice[:, None])
    np.testing.assert_array_equal(twice, n * row)


@cases("sparse", [False, True])
@cases("seed", [0, 123])
def test_is_the_explicit_matrix(seed, sparse):
    X = whole_numbers(0.4)
    rows = sp.csr_array(X) if sparse else X
    rotation = naive.rotation_matrix(seed, N_FEATURES, PADDED)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(N_FEATURES), atol=1e-12)

    sketch = SubsampledHadamard(20, N_FEATURES, seed)
    order = [naive.splitmix64(naive.stream_seed(seed, 1), c) for c in range(PADDED)]
    picked = sorted(sorted(range(PADDED), key=order.__getitem__)[:20])
    np.testing.assert_allclose(
        sketch.apply(rows), X @ rotation[:, picked] * np.sqrt(PADDED / 20), rtol=1e-12, atol=1e-12
    )


def kept_of(rotated, seed, n_kept):
    """Floyd's sample for one rotated row (p,), not normalized."""
    word = naive.stream_seed(seed, 1)
    for value in rotated[:16]:
        bits = int(np.array(value + 0.0).view(np.uint64 if rotated.itemsize == 8 else np.uint32))
        word = naive.splitmix64(word, bits)
    kept = set()
    for last in range(len(rotated) - n_kept, len(rotated)):
        drawn = ((naive.splitmix64(word, last) >> 32) * (last + 1)) >> 32
        kept.add(last if drawn in kept else drawn)
    return sorted(kept)


@cases("dtype", [np.float32, np.float64])
@cases("gamma", [0.001, 0.25, 0.8, 1])
def test_sampling_is_the_naive_one(gamma, dtype):
    X, seed = whole_numbers(0.4).astype(dtype), 9
    sketch = PreconditionedSampling(gamma, N_FEATURES, seed)
    rotated = (X @ naive.rotation_matrix(seed, N_FEATURES, PADDED) * np.sqrt(PADDED)).round().astype(dtype)
    Y = sketch.apply(X)
    assert (Y.dtype, Y.indices.dtype, Y.shape) == (np.float32, np.int32, (len(X), PADDED))
    q = sketch.n_kept
    assert q == max(1, round(gamma * PADDED))
    for i, row in enumerate(rotated):
        kept = kept_of(row, seed, q)
        assert Y.indices[Y.indptr[i] : Y.indptr[i + 1]].tolist() == kept
        np.testing.assert_allclose(Y.data[Y.indptr[i] : Y.indptr[i + 1]], row[kept] * 8 / q, rtol=1e-6)


def test_sampling_is_blind_to_how_rows_are_stored():
    X = whole_numbers(0.4)
    sketch = PreconditionedSampling(0.3, N_FEATURES, 1)
    wanted = naive.dense(sketch.apply(X))
    np.testing.assert_array_equal(naive.dense(sketch.apply(sp.csr_array(X))), wanted)
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    np.testing.assert_array_equal(naive.dense(sketch.apply(wide)), wanted)
    np.testing.assert_array_equal(naive.dense(sketch.apply(-0.0 * X)), 0)
    np.testing.assert_array_equal(naive.dense(sketch.apply(X[[3, 3, 3]])), wanted[[3, 3, 3]])


def test_golden_values():
    X = np.arange(1, 16)[None].astype(np.float64)
    assert (2 * SubsampledHadamard(4, 15, 7).apply(X)).tolist() == [[22, 10, -30, -50]]
    Y = PreconditionedSampling(0.25, 15, 7).apply(X)
    assert (Y.indices.tolist(), Y.data.tolist()) == ([1, 5, 7, 15], [-6, 42, -18, 62])


def check_moments(got, mean, variance):
    assert abs(got.mean() - mean) < 4 * np.sqrt(variance / len(got))
    assert 0.85 < got.var() / variance < 1.15


def test_inner_products_have_the_known_moments():
    rng = np.random.default_rng(1)
    x = rng.normal(size=N_FEATURES)
    center = 0.5 * x + rng.normal(size=N_FEATURES)
    shared = (x @ x) * (center @ center) + (x @ center) ** 2 - 2 * (x**2 @ center**2)
    sketched = [SubsampledHadamard(16, N_FEATURES, seed).apply(np.stack([x, center])) for seed in range(N_SEEDS)]
    variance = shared / 16 * (PADDED - 16) / (PADDED - 1)
    check_moments(np.array([first @ second for first, second in sketched]), x @ center, variance)
    got = []
    for seed in range(N_SEEDS):
        rotated = PreconditionedSampling(1, N_FEATURES, seed).apply(center[None])
        got.append((PreconditionedSampling(0.25, N_FEATURES, seed).apply(x[None]) @ rotated.T).toarray()[0, 0])
    check_moments(np.array(got), x @ center, variance)


@cases("make", SKETCHES)
def test_narrower_rows_lack_their_last_features(make):
    X = whole_numbers(0.4)
    sketch = make(N_FEATURES)
    wanted = naive.dense(sketch.apply(np.hstack([X[:, :25], np.zeros((len(X), 15))])))
    for rows in (X[:, :25], sp.csr_array(X[:, :25])):
        np.testing.assert_array_equal(naive.dense(sketch.apply(rows)), wanted)


@cases("make", SKETCHES)
def test_refuses_wider_rows_and_features_and_seeds_out_of_range(make):
    for rows in (np.zeros((2, 41)), sp.csr_array((2, 41))):
        with pytest.raises(InvalidInputError, match=r"41 features; needed: at most 40"):
            make(40).apply(rows)
    for n_features in (0, 2**30 + 1):
        with pytest.raises(InvalidParameterError, match=f"n_features={n_features}"):
            make(n_features)
    with pytest.raises(InvalidParameterError, match="seed=-1"):
        make(40, -1)


def test_refuses_components_and_shares_out_of_range():
    for n_components in (0, 65):
        with pytest.raises(InvalidParameterError, match=f"n_components={n_components}; needed: 1 to 64"):
            SubsampledHadamard(n_components, 40, 0)
    for gamma in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(InvalidParameterError, match=f"gamma={gamma}"):
            PreconditionedSampling(gamma, 40, 0)
