"""Projections with independent entries: contract, explicit matrices, golden values, scikit-learn's distributions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm.core.exceptions import InvalidParameterError
from streamkm.kernels.intrinsics.products import BLOCK_ROWS
from streamkm.sketches import RandomProjection
from tests import naive
from tests.contracts import N_FEATURES, UnboundedSketchContract, whole_numbers
from tests.tables import cases

N_SEEDS = 1500


def signs(m, seed):
    return RandomProjection(m, seed)


def gaussian(m, seed):
    return RandomProjection(m, seed, "gaussian")


def sparse(m, seed, density=1 / 3):
    return RandomProjection(m, seed, "sparse", density)


SKETCHES = [signs, gaussian, sparse]
FEATURES = [0, 1, 2, 63, 64, 1000, 2**31, 2**32 + 1, 2**63 - 2]


class TestSignsOfManyComponents(UnboundedSketchContract):
    """Several words, the last not full; 1 / sqrt(150) is rounded."""

    tolerance = 1e-6

    def make_sketch(self):
        return RandomProjection(150, seed=2**64 - 1)


class TestOddGaussian(UnboundedSketchContract):
    tolerance = 1e-6

    def make_sketch(self):
        return RandomProjection(7, 2**64 - 1, "gaussian")


class TestSparse(UnboundedSketchContract):
    tolerance = 1e-6

    def make_sketch(self):
        return RandomProjection(16, 5, "sparse")


def matrix_of(sketch, features):
    """Naive entries of a sketch."""
    if sketch.kind == "signs":
        return naive.sign_matrix(sketch.seed, features, sketch.n_components) / np.sqrt(sketch.n_components)
    if sketch.kind == "gaussian":
        return naive.normal_matrix(sketch.seed, features, sketch.n_components) / np.sqrt(sketch.n_components)
    entries = naive.sparse_matrix(sketch.seed, features, sketch.n_components, sketch.density)
    return entries / np.sqrt(sketch.density * sketch.n_components)


@cases("stored", [False, True])
@cases("n_components", [1, 6, 130])
@cases("make", [*SKETCHES, lambda m, seed: sparse(m, seed, 0.05)])
def test_is_the_explicit_matrix(make, n_components, stored):
    X, sketch = whole_numbers(0.4), make(n_components, 123)
    wanted = X @ matrix_of(sketch, range(N_FEATURES))
    # entries of the Gaussian are float32; where log is near zero they are good to 2e-5
    atol = 2e-3 if sketch.kind == "gaussian" else 1e-9
    np.testing.assert_allclose(sketch.apply(sp.csr_array(X) if stored else X), wanted, rtol=1e-6, atol=atol)


@cases("make", [*SKETCHES, lambda m, seed: sparse(m, seed, 0.05)])
def test_features_of_any_number(make):
    sketch = make(70, 9)
    n = len(FEATURES)
    X = sp.csr_array((np.ones(n), np.array(FEATURES), np.arange(n + 1)), shape=(n, 2**63 - 1))
    np.testing.assert_allclose(sketch.apply(X), matrix_of(sketch, FEATURES), atol=5e-5)
    together = sp.csr_array((np.ones(n), np.array(FEATURES), np.array([0, 0, n])), shape=(2, 2**63 - 1))
    wanted = np.vstack([np.zeros(70), sketch.apply(X).sum(axis=0)])
    np.testing.assert_allclose(sketch.apply(together), wanted, atol=1e-9)


@cases("make", SKETCHES)
@cases("n_features", [1, 63, 64, 65, 9000])
def test_blocks_of_features_and_rows(make, n_features):
    # more rows than a batch and more features than a block of 64, of 2^18 entries
    rng = np.random.default_rng(0)
    X = rng.integers(-9, 10, (BLOCK_ROWS + 3 if n_features < 100 else 19, n_features)).astype(np.float64)
    sketch = make(40, 3)
    got = sketch.apply(X)
    np.testing.assert_allclose(got, sketch.apply(sp.csr_array(X)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(got, X @ sketch.apply(sp.eye_array(n_features, format="csr")), rtol=1e-9, atol=1e-9)


def test_golden_values():
    X = np.arange(1, 16)[None].astype(np.float64)
    assert (8 * RandomProjection(64, 7).apply(X))[0, :6].tolist() == [32, -24, -8, -18, 56, 58]
    got = RandomProjection(6, 7, "sparse", 0.5).apply(X) * np.sqrt(3)
    np.testing.assert_allclose(got, [[5, 1, -37, 0, -25, -29]], rtol=1e-12)
    bits = [
        [-1093747900, 1012389828, 1041167731, 1055047441],
        [1053605579, 1054329372, 1052186271, 1039917283],
        [-1101892845, -1092149754, -1113925110, 1039559536],
    ]
    assert RandomProjection(4, 7, "gaussian").apply(np.eye(3, dtype=np.float32)).view(np.int32).tolist() == bits


def variance_of(sketch, x, y):
    """Variance of <Sx, Sy> over seeds, by the fourth moment of the entries."""
    fourth = {"signs": 1, "gaussian": 3}.get(sketch.kind) or 1 / sketch.density
    return ((x @ x) * (y @ y) + (x @ y) ** 2 + (fourth - 3) * (x**2 @ y**2)) / sketch.n_components


@cases("make", [*SKETCHES, lambda m, seed: sparse(m, seed, 0.05)])
def test_inner_products_are_unbiased_with_the_known_variance(make):
    rng = np.random.default_rng(1)
    x = rng.normal(size=60)
    y = 0.5 * x + rng.normal(size=60)
    sketched = [make(8, seed).apply(np.stack([x, y])) for seed in range(N_SEEDS)]
    got = np.array([first @ second for first, second in sketched])
    variance = variance_of(make(8, 0), x, y)
    assert abs(got.mean() - x @ y) < 4 * np.sqrt(variance / N_SEEDS)
    assert 0.85 < got.var() / variance < 1.15


@cases("make", SKETCHES)
def test_refuses_parameters_out_of_range(make):
    with pytest.raises(InvalidParameterError, match="n_components=0"):
        make(0, 0)
    with pytest.raises(InvalidParameterError, match=r"n_components=16777217; needed: 1 to 16,777,216"):
        make(2**24 + 1, 0)
    with pytest.raises(InvalidParameterError, match="seed=-1"):
        make(4, -1)


@cases("density", [0, -0.5, 1.5, 2.0**-32])
def test_refuses_other_densities_and_kinds(density):
    with pytest.raises(InvalidParameterError, match=f"density={density}"):
        RandomProjection(4, 0, "sparse", density)
    with pytest.raises(InvalidParameterError, match="kind='sign'; needed: one of signs, gaussian, sparse"):
        RandomProjection(4, 0, "sign")
