"""Kept features and draws by leverage scores; principal directions: the contract of sketches, scikit-learn's PCA."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.sketches import FeatureSelection, LeverageSampling, PCASketch, sketch_from_dict
from streamkm.sketches.subspace import Subspace, fit_rows, subspace_fit
from tests import naive
from tests.contracts import N_FEATURES, HashedSketchContract, SketchContract, whole_numbers
from tests.tables import cases


class TestSelection(HashedSketchContract):
    def make_sketch(self):
        return FeatureSelection(np.array([0, 3, 7, 8, 39]), np.array([1.0, 2.0, 0.5, 1.0, 4.0]))

    def test_a_small_value(self, sketch):
        assert len(pickle.dumps(sketch)) < 1000
        assert sorted(sketch.arrays()) == ["indices", "scales"]

    @pytest.mark.parametrize("sparse", [False, True])
    def test_is_the_columns(self, sketch, sparse):
        X = whole_numbers(0.5)
        got = sketch.apply(sp.csr_array(X) if sparse else X)
        assert sp.issparse(got) == sparse
        np.testing.assert_array_equal(naive.dense(got), X[:, sketch.indices] * sketch.scales)

    def test_sparse_rows_may_be_narrower_and_wider(self, sketch):
        X = whole_numbers(0.5)
        wide = sp.csr_array(np.hstack([X, X]))
        np.testing.assert_array_equal(naive.dense(sketch.apply(wide)), naive.dense(sketch.apply(X)))
        narrow = naive.dense(sketch.apply(sp.csr_array(X[:, :8])))
        np.testing.assert_array_equal(narrow[:, :3], (X[:, sketch.indices] * sketch.scales)[:, :3])
        assert not narrow[:, 3:].any()

    def test_dense_rows_must_hold_the_features(self, sketch):
        with pytest.raises(InvalidInputError, match="39 features; needed: at least 40"):
            sketch.apply(np.zeros((2, 39)))


@cases(
    "indices, scales",
    [
        ([1, 1], [1.0, 1.0]),
        ([2, 1], [1.0, 1.0]),
        ([-1, 1], [1.0, 1.0]),
        ([1, 2**31], [1.0, 1.0]),
        ([1, 2], [1.0, 0.0]),
        ([1, 2], [1.0, np.nan]),
        ([1, 2], [1.0]),
        ([], []),
        ([1.0], [1.0]),
    ],
)
def test_what_a_file_holds_is_checked(indices, scales):
    indices = np.array(indices) if indices and isinstance(indices[0], float) else np.array(indices, np.int64)
    with pytest.raises(ModelFileError, match="selection"):
        sketch_from_dict({"kind": "selection"}, {"indices": indices, "scales": np.array(scales)})


# leverage scores


def of_vectors(d=30, k=4):
    vectors, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(d, k)) * 1.05 ** -np.arange(d)[:, None])
    return Subspace(vectors, np.ones(k), None, np.dtype(np.float64))


def test_leverage_draws_keep_inner_products_on_average():
    subspace = of_vectors()
    x, y = np.random.default_rng(1).normal(size=(2, 30))
    got = []
    for seed in range(1500):
        first, second = LeverageSampling(12, seed)(subspace).apply(np.stack([x, y]))
        got.append(first @ second)
    shares = (subspace.vectors**2).sum(axis=1) / 4
    variance = (((x * y) ** 2 / shares).sum() - (x @ y) ** 2) / 12  # of the mean of 12 draws of x_j y_j / p_j
    assert abs(np.mean(got) - x @ y) < 4 * np.sqrt(variance / 1500)
    assert 0.8 < np.var(got) / variance < 1.25


def test_draws_of_one_feature_are_kept_as_one():
    with pytest.raises(InvalidParameterError, match="n_components=0"):
        LeverageSampling(0, 0)
    subspace = of_vectors()
    sketch = LeverageSampling(500, 0)(subspace)
    assert sketch.n_components <= 30
    shares = (subspace.vectors**2).sum(axis=1) / 4
    draws = sketch.scales**2 * 500 * shares[sketch.indices]
    np.testing.assert_allclose(draws, draws.round(), atol=1e-9)
    assert draws.round().sum() == 500


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_that_live_in_few_features(sparse):
    rng = np.random.default_rng(0)
    X = 0.01 * rng.normal(size=(400, N_FEATURES))
    X[:, [4, 11, 30]] += 5 * np.eye(3)[rng.integers(0, 3, 400)]
    sampling = LeverageSampling(20, seed=1)
    sketch = fit_rows(
        subspace_fit(3, sampling, n_features=N_FEATURES, seed=2), sp.csr_array(X) if sparse else X, NO_WEIGHTS
    )
    assert sketch.indices.tolist() == [4, 11, 30]


def rows(n=500, dtype=np.float64):
    """Variances that fall quickly, far from the origin."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(N_FEATURES, N_FEATURES)))
    return (rng.normal(size=(n, N_FEATURES)) * 2.0 ** -np.arange(N_FEATURES) @ turn + 10).astype(dtype)


class TestPCA(SketchContract):
    sparse = (False,)

    def make_sketch(self):
        return PCASketch.fit(rows(), 6, random_state=3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_is_scikit_learns_pca(dtype):
    X = rows(dtype=dtype)
    sketch = PCASketch.fit(X, 6, random_state=0)
    wanted = PCA(6, svd_solver="full").fit(X.astype(np.float64))
    sketched = sketch.apply(X)
    assert sketched.dtype == dtype
    tolerance = 2e-3 if dtype == np.float32 else 1e-4
    np.testing.assert_allclose(np.abs(sketched), np.abs(wanted.transform(X)), atol=tolerance)
    np.testing.assert_allclose(sketch.directions.T @ sketch.directions, np.eye(6), atol=1e-5)


def test_equal_rows_have_no_directions_but_do_no_harm():
    sketch = PCASketch.fit(np.ones((20, 5)), 3, random_state=0)
    np.testing.assert_allclose(sketch.apply(np.ones((4, 5))), 0, atol=1e-12)


@pytest.mark.parametrize("n_components", [0, 41])
def test_refuses_components_out_of_range(n_components):
    with pytest.raises(InvalidParameterError, match=f"n_components={n_components}"):
        PCASketch.fit(rows(), n_components, random_state=0)


def test_refuses_sparse_rows():
    with pytest.raises(InvalidParameterError, match="dense rows"):
        TestPCA().make_sketch().apply(sp.csr_array(rows()))
