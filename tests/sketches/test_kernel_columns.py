"""Kernel values, Nystroem and Fourier features: the contract of sketches, scikit-learn's kernels, and the formulas."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import hadamard
from sklearn.metrics.pairwise import pairwise_kernels

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.kernels.sketch import kernel_values
from streamkm.sketches import FourierMap, KernelMap, sketch_from_dict
from streamkm.sketches.kernel_columns import KERNELS, MANY, WIDE, Kernel, KernelColumns, working_landmarks
from streamkm.sketches.kernel_map import GramFit, inverse_root
from tests import naive
from tests.contracts import N_FEATURES, SketchContract, whole_numbers
from tests.tables import cases

GAMMA, DEGREE, COEF0 = 0.02, 2, 0.7
NO_WEIGHTS = np.empty(0)


def rows(n=200, d=30, density=0.4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, d)) * (rng.random((n, d)) < density)


def reference(name, X, landmarks):
    """scikit-learn's values, in float64."""
    parameters = {
        "polynomial": {"gamma": GAMMA, "degree": DEGREE, "coef0": COEF0},
        "sigmoid": {"gamma": GAMMA, "coef0": COEF0},
        "cosine": {},
        "linear": {},
    }
    metric = "poly" if name == "polynomial" else name
    return pairwise_kernels(X, landmarks, metric=metric, **parameters.get(name, {"gamma": GAMMA}))


def kernel(name):
    return Kernel(name, GAMMA, DEGREE, COEF0)


def linear(X, landmarks):
    return np.asarray((X @ landmarks.T).todense() if sp.issparse(X) else X @ landmarks.T)


class TestRbf(SketchContract):
    """A map of a kernel that takes rows that are not negative."""

    name = "rbf"

    def make_sketch(self):
        rng = np.random.default_rng(1)
        landmarks = np.abs(rng.normal(size=(20, N_FEATURES))).astype(np.float32)
        return KernelMap.of(kernel(self.name), landmarks, rng.normal(size=(20, 6)))

    def test_pickles_without_what_is_made_of_it(self, sketch):
        before = len(pickle.dumps(sketch))
        sketch.apply(whole_numbers())
        assert len(pickle.dumps(sketch)) == before


class TestLaplacian(TestRbf):
    name = "laplacian"


class TestSparseLandmarks(TestRbf):
    name = "cosine"

    def make_sketch(self):
        landmarks = sp.csr_array(whole_numbers(0.3, seed=4)[1:20])
        return KernelMap.of(kernel(self.name), landmarks, np.random.default_rng(1).normal(size=(19, 6)))


class TestFourier(SketchContract):
    def make_sketch(self):
        rng = np.random.default_rng(1)
        return FourierMap.draw(0.01, rng.normal(size=N_FEATURES), 16, orthogonal=True, rng=rng)


OF_ROWS = tuple(name for name in KERNELS if name != "precomputed")


@cases("name", OF_ROWS)
@cases("sparse_landmarks", [False, True])
@cases("sparse_rows", [False, True])
def test_values_are_scikit_learns(name, sparse_landmarks, sparse_rows):
    X, landmarks = rows(), rows(25, seed=1)
    wanted = reference(name, X, landmarks)
    kept = working_landmarks(sp.csr_array(landmarks) if sparse_landmarks else landmarks, dense=not sparse_landmarks)
    got = KernelColumns(kernel(name), kept).values(sp.csr_array(X) if sparse_rows else X)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("name", ["rbf", "laplacian"])
def test_values_far_from_the_origin_are_exact(name):
    X = rows() + 1e7
    wanted = reference(name, X - 1e7, X[:25] - 1e7)
    np.testing.assert_allclose(KernelColumns(kernel(name), X[:25]).values(X), wanted, atol=1e-6)
    beyond = np.array([[0.0, 1.0], [1e150, 0.0], [-1e150, 1e150]])  # of single precision: unlike all others
    np.testing.assert_allclose(KernelColumns(Kernel(name, 1.0), beyond[:1]).values(beyond)[:, 0], [1, 0, 0], atol=1e-37)


def thin_rows(n=300, d=150, seed=0):
    """Whole numbers, mostly 0; the first feature is far from the origin, the second constant, the third full."""
    rng = np.random.default_rng(seed)
    X = np.rint(rng.normal(0, 3, (n, d))) * (rng.random((n, d)) < 0.2)
    X[:, 0] = 1e6 + rng.integers(0, 5, n)
    X[:, 1], X[:, 2] = 7, rng.integers(1, 9, n)
    return X


@cases("name", ["rbf", "polynomial", "cosine", "sigmoid"])
@cases("dtype", [np.float32, np.float64])
def test_values_of_rows_that_are_mostly_zeros(name, dtype):
    X = thin_rows()
    X[:, 0] -= 0 if name == "rbf" else 1e6  # others have an origin
    columns = KernelColumns(kernel(name), X[40:240].astype(dtype))
    assert columns._table.bias is not None
    got = columns.values(X.astype(dtype))
    np.testing.assert_allclose(got, reference(name, X, X[40:240]), atol=3e-6, rtol=1e-5)
    apart = [columns.values(X[i : i + 1].astype(dtype)) for i in range(0, 300, 7)]
    np.testing.assert_array_equal(got[::7], np.concatenate(apart))


@cases(
    "n_landmarks, n_features, density, thin",
    [(MANY, WIDE, 0.2, True), (MANY, WIDE - 1, 0.2, False), (MANY - 1, WIDE, 0.2, False), (MANY, WIDE, 0.4, False)],
)
def test_which_rows_meet_all_of_a_table(n_landmarks, n_features, density, thin):
    X = rows(200, n_features, density)
    columns = KernelColumns(kernel("rbf"), X[:n_landmarks])
    assert (columns._table.bias is not None) == thin
    np.testing.assert_allclose(columns.values(X), reference("rbf", X, X[:n_landmarks]), atol=2e-6)


def test_negative_values_of_sparse_laplacian():
    X = np.random.default_rng(0).normal(size=(50, 12)) * (np.random.default_rng(1).random((50, 12)) < 0.5)
    got = KernelColumns(kernel("laplacian"), sp.csr_array(X[:9])).values(sp.csr_array(X))
    np.testing.assert_allclose(got, reference("laplacian", X, X[:9]), atol=1e-6)


def test_whole_numbers_and_repeated_entries():
    X = whole_numbers().astype(np.uint8)
    wanted = reference("rbf", X.astype(float), X[:9].astype(float))
    np.testing.assert_allclose(KernelColumns(kernel("rbf"), X[:9].astype(np.float32)).values(X), wanted, atol=1e-6)
    repeated = sp.csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    kept = working_landmarks(repeated, dense=False)
    assert kept.nnz == 1
    assert KernelColumns(kernel("polynomial"), kept).values(sp.csr_array([[0.0, 3.0, 0.0]])).item() == pytest.approx(
        (9 * GAMMA + COEF0) ** DEGREE
    )


def test_exponential_over_its_range():
    x = -np.concatenate([np.linspace(0, 87, 400_000), np.geomspace(1e-30, 1, 50_000)]).astype(np.float32)
    wanted = np.exp(x.astype(np.float64))
    kernel_values.exp_nonpositive(x, np.empty(len(x), np.int32))
    assert np.max(np.abs(x / wanted - 1)) < 1e-7


def test_a_callable():
    X = rows()
    columns = KernelColumns(Kernel(linear), X[:9])
    np.testing.assert_allclose(columns.values(X), X @ X[:9].T, rtol=1e-6)
    sparse = KernelColumns(Kernel(linear), sp.csr_array(X[:9]))
    np.testing.assert_allclose(sparse.values(sp.csr_array(X)), X @ X[:9].T, rtol=1e-6)
    with pytest.raises(InvalidInputError, match=r"shape \(256, 3\)"):
        KernelColumns(Kernel(lambda X, landmarks: np.ones((len(X), 3))), X[:9]).values(X)
    with pytest.raises(ModelFileError, match="Python function"):
        KernelMap.of(Kernel(linear), X[:9], np.eye(9)).to_dict()


def test_precomputed_values_are_picked():
    K = rows(40)
    picked = sp.csr_array((np.ones(3), [7, 0, 3], [0, 1, 2, 3]), shape=(3, K.shape[1]))
    for given_rows in (K, sp.csr_array(K)):
        values = KernelColumns(kernel("precomputed"), picked).values(given_rows)
        np.testing.assert_array_equal(values, K[:, [7, 0, 3]].astype(np.float32))
    with pytest.raises(TypeError, match="rows' numbers"):
        kernel("precomputed").diagonal(K)


@cases("name", OF_ROWS)
def test_diagonal(name):
    X = rows(20)
    for given_rows in (X, sp.csr_array(X)):
        np.testing.assert_allclose(kernel(name).diagonal(given_rows), np.diag(reference(name, X, X)), rtol=1e-12)
    np.testing.assert_allclose(Kernel(linear).diagonal(X), (X**2).sum(axis=1))


@cases(
    "arguments, message",
    [
        ({"name": "rfb"}, "kernel='rfb'; needed: one of rbf"),
        ({"name": "rbf", "gamma": 0.0}, "gamma=0.0; needed"),
        ({"name": "rbf", "gamma": np.nan}, "gamma=nan"),
        ({"name": "polynomial", "degree": 0}, "degree=0"),
        ({"name": "polynomial", "degree": 1.5}, "degree=1.5"),
        ({"name": "sigmoid", "coef0": np.inf}, "coef0=inf"),
    ],
)
def test_refuses_kernels(arguments, message):
    with pytest.raises(InvalidParameterError, match=message):
        Kernel(**arguments)


def test_refuses_rows_of_other_width_and_negative_ones():
    columns = KernelColumns(kernel("chi2"), rows(5))
    with pytest.raises(InvalidInputError, match="29 features; the landmarks have 30"):
        columns.values(rows(d=29))
    with pytest.raises(InvalidInputError, match="31 features"):
        columns.values(sp.csr_array(rows(d=31)))
    with pytest.raises(InvalidInputError, match="negative values"):
        columns.values(rows() - 1)


def test_saved_maps_are_checked():
    landmarks = sp.csr_array(rows(8))
    sketch = KernelMap.of(kernel("rbf"), landmarks, np.eye(8))
    arrays = sketch.arrays()
    again = sketch_from_dict(sketch.to_dict(), arrays)
    np.testing.assert_array_equal(again.apply(rows()), sketch.apply(rows()))
    for wrong in (
        {"indices": arrays["indices"] + 1},
        {"indptr": arrays["indptr"][::-1].copy()},
        {"indptr": arrays["indptr"][:-1]},
        {"projection": arrays["projection"].astype(np.float64)},
        {"landmarks": arrays["landmarks"][1:]},
        {"landmarks": arrays["landmarks"].astype("U8")},
    ):
        with pytest.raises(ModelFileError):
            sketch_from_dict(sketch.to_dict(), {**arrays, **wrong})
    with pytest.raises(ModelFileError, match="gamma"):
        sketch_from_dict({**sketch.to_dict(), "gamma": -1.0}, arrays)


def test_the_root_of_the_pseudo_inverse():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(12, 5))
    whole = B.T @ B  # has a Cholesky factor
    root = inverse_root(whole)
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(whole), atol=1e-10)
    root = inverse_root(B @ B.T)
    assert root.shape == (12, 5)
    np.testing.assert_allclose(root @ root.T, np.linalg.pinv(B @ B.T), atol=1e-8)
    values, vectors = np.linalg.eigh(B @ B.T)
    cut = inverse_root(B @ B.T, 2)
    np.testing.assert_allclose(cut @ cut.T, vectors[:, -2:] / values[-2:] @ vectors[:, -2:].T, atol=1e-10)
    with pytest.raises(InvalidParameterError, match="no positive eigenvalue"):
        inverse_root(-np.eye(3))


@cases("smallest, n_kept", [(1e-3, 20), (5e-7, 20), (1e-9, 19)])
def test_roots_of_matrices_near_the_resolution(smallest, n_kept):
    rng = np.random.default_rng(1)
    turned, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    values = np.concatenate([[smallest], np.linspace(0.5, 1, 19)])
    root = inverse_root(turned * values @ turned.T)
    assert root.shape == (20, n_kept)
    kept = turned[:, 20 - n_kept :]
    wanted = kept / values[20 - n_kept :] @ kept.T
    np.testing.assert_allclose(root @ root.T, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


@cases("weighted", [False, True])
@cases("root_rank", [20, None])
def test_projection_is_the_truncated_svd(weighted, root_rank):
    X, landmarks = rows(), rows(25, seed=1)
    weights = np.random.default_rng(2).random(len(X)) if weighted else NO_WEIGHTS
    columns = KernelColumns(kernel("rbf"), landmarks)
    root = inverse_root(columns.values(landmarks), root_rank)
    fit = GramFit(KernelMap.of(kernel("rbf"), landmarks, root), root, 7)
    cuts = [0, 1, 70, 200]
    parts = [fit.step(None, X[a:b], weights[a:b]) for a, b in pairwise(cuts)]
    parts[0] = fit.step(parts[0], X[:0], weights[:0])
    got = fit.finish(fit.join(parts)).apply(X).astype(np.float64)
    B = columns.values(X).astype(np.float64) @ root
    scale = np.sqrt(weights)[:, None] if weighted else 1.0
    _, _, rows_of_v = np.linalg.svd(B * scale, full_matrices=False)
    wanted = B @ rows_of_v[:7].T
    np.testing.assert_allclose(got @ got.T, wanted @ wanted.T, atol=1e-4)


@cases("orthogonal, sparse", [(False, True), (True, False)])
def test_fourier_features_approach_the_kernel(orthogonal, sparse):
    X = rows(60)
    sketch = FourierMap.draw(0.3, X.mean(axis=0), 8192, orthogonal=orthogonal, rng=np.random.default_rng(0))
    features = sketch.apply(sp.csr_array(X) if sparse else X)
    np.testing.assert_allclose(features @ features.T, pairwise_kernels(X, metric="rbf", gamma=0.3), atol=0.06)
    if orthogonal:
        group = sketch.frequencies[:, :30].astype(np.float64)
        inner = group.T @ group
        np.testing.assert_allclose(inner - np.diag(np.diag(inner)), 0, atol=1e-4)


def test_fourier_refuses_odd_numbers_and_other_widths():
    with pytest.raises(InvalidParameterError, match="3 random features"):
        FourierMap.draw(1.0, np.zeros(4), 3, orthogonal=False, rng=np.random.default_rng(0))
    sketch = FourierMap.draw(1.0, np.zeros(4), 8, orthogonal=False, rng=np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match="5 features; the frequencies have 4"):
        sketch.apply(np.ones((2, 5)))
    with pytest.raises(InvalidParameterError, match="needed: float32"):
        FourierMap(sketch.frequencies, sketch.shift, np.eye(6, dtype=np.float32))


def test_walsh_hadamard():
    X = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    wanted = X @ hadamard(16)
    kernel_values.walsh_hadamard(X)
    np.testing.assert_allclose(X, wanted, atol=1e-5)


def test_hashed_signs_are_those_of_their_places():
    whole, part = np.empty((6, 5), np.float32), np.empty((2, 5), np.float32)
    kernel_values.hashed_signs(np.uint64(7), 0, whole)
    kernel_values.hashed_signs(np.uint64(7), 3, part)
    np.testing.assert_array_equal(whole[3:5], part)
    wanted = [1 if naive.splitmix64(7, place) & 1 else -1 for place in range(30)]
    np.testing.assert_array_equal(whole.ravel(), wanted)
