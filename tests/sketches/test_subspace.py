"""Subspaces of all rows: kernels and sums against loops, the rounds against SciPy and scikit-learn, the sketches."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.utils.extmath import randomized_svd

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.kernels.sketch import subspace_sums as kernels
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import FindSketch
from streamkm.sketches import PCASketch, TruncatedSVDSketch
from streamkm.sketches import subspace as subspaces
from streamkm.sketches.subspace import RangeFit, Subspace, SubspaceGram, fit_rows, subspace_fit
from tests import naive
from tests.contracts import N_FEATURES, SketchContract, whole_numbers
from tests.passes.test_passes import CountingSource
from tests.sources.matrices import sparse_matrices
from tests.tables import cases

WAYS = ("gram", "range")


def keep_subspace(subspace):
    """What rounds end with, to look at."""
    return Kept(subspace)


class Kept(TruncatedSVDSketch):
    def __init__(self, subspace: Subspace):
        super().__init__(subspace.vectors)
        object.__setattr__(self, "subspace", subspace)


def falling(n=300, d=N_FEATURES, dtype=np.float64, offset=0.0):
    """Rows whose variances fall quickly."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return (rng.normal(size=(n, d)) * 2.0 ** -np.arange(d) @ turn + offset).astype(dtype)


def first_round(way, m, *, n_columns=None, shift=None, seed=1, make=keep_subspace):
    if way == "gram":
        return SubspaceGram(m, make, shift)
    return RangeFit(m, n_columns or subspaces.range_columns(m), seed, make, shift)


def found(way, X, m, weights=NO_WEIGHTS, **options):
    return fit_rows(first_round(way, m, **options), X, weights).subspace


# kernels


def test_gaussians_are_functions_of_seed_and_feature():
    features = np.array([5, 0, 2**40, 17])
    out = np.empty((4, 6))
    kernels.fill_gaussians(np.uint64(9), features, out)
    for i, feature in enumerate(features):
        np.testing.assert_allclose(out[i], naive.gaussians(9, int(feature), 6), rtol=1e-13)
    wider = np.empty((4, 32))
    kernels.fill_gaussians(np.uint64(9), features, wider)
    np.testing.assert_array_equal(wider[:, :6], out)


@given(X=sparse_matrices(), weighted=st.booleans(), index=st.sampled_from([np.int32, np.int64]))
def test_sums_of_sparse_rows(X, weighted, index):
    X = sp.csr_array(X)
    X = sp.csr_array((X.data.astype(np.float64), X.indices.astype(index), X.indptr.astype(index)), shape=X.shape)
    weights = np.arange(X.shape[0], dtype=float) if weighted else NO_WEIGHTS
    gram = np.zeros((X.shape[1], X.shape[1]))
    kernels.add_gram(X.indptr, X.indices, X.data, weights, gram)
    wanted = naive.gram(X, weights if weighted else None)
    tolerance = 1e-12 * max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(gram, np.tril(wanted), atol=tolerance)
    table = np.random.default_rng(0).normal(size=(X.shape[1], 16))
    sums = np.zeros_like(table)
    kernels.add_range(X.indptr, X.indices, X.data, weights, table, sums)
    np.testing.assert_allclose(sums, wanted @ table, atol=20 * tolerance)


# rounds


@cases("way", WAYS)
@cases("sparse", [False, True])
@cases("weighted", [False, True])
def test_directions_are_singular_vectors(way, sparse, weighted):
    X = falling() * (np.random.default_rng(1).random((300, N_FEATURES)) < 0.7)
    weights = np.random.default_rng(2).uniform(0, 3, 300) if weighted else NO_WEIGHTS
    scaled = X * np.sqrt(weights)[:, None] if weighted else X
    _, singular, vectors = np.linalg.svd(scaled)
    got = found(way, sp.csr_array(X) if sparse else X, 4, weights, n_columns=N_FEATURES)
    np.testing.assert_allclose(got.values, singular[:4] ** 2, rtol=1e-8)
    np.testing.assert_allclose(np.abs(got.vectors.T @ vectors[:4].T), np.eye(4), atol=1e-3)
    np.testing.assert_allclose(got.vectors.T @ got.vectors, np.eye(4), atol=1e-12)
    assert (got.vectors[np.abs(got.vectors).argmax(axis=0), np.arange(4)] > 0).all()


def test_one_round_is_the_two_pass_range_finder():
    X = falling(200) ** 3
    fit = first_round("range", 3)
    basis = np.empty((N_FEATURES, fit.n_columns))
    kernels.fill_gaussians(np.uint64(1), np.arange(N_FEATURES), basis)
    reached, _ = np.linalg.qr(X @ basis)
    _, singular, vectors = np.linalg.svd(reached.T @ X, full_matrices=False)
    got = found("range", X, 3)
    np.testing.assert_allclose(got.values, singular[:3] ** 2, rtol=1e-9)
    assert subspace_angles(got.vectors, vectors[:3].T).max() < 1e-6


@pytest.mark.slow
def test_one_pass_comes_near_the_best_directions(small_topics):
    X = small_topics.X.astype(np.float64)
    best = (randomized_svd(X, 20, n_iter=12, random_state=0)[1] ** 2).sum()
    total = float((X.data**2).sum())
    left = total - ((X @ found("range", X, 20).vectors) ** 2).sum()
    assert (1 - 1e-9) * (total - best) < left < 1.05 * (total - best)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sparse", [False, True])
@given(cuts=st.sets(st.integers(1, 52)), arity=st.integers(1, 4))
def test_chunks_of_any_width_give_the_whole(way, sparse, cuts, arity):
    X = whole_numbers(0.3)
    X[:30, 25:] = 0
    fit = first_round(way, 5)
    bounds = [0, *sorted(cuts), len(X)]
    states = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        rows = X[start:stop]
        if sparse and number % 4 != 3:  # as text: as wide as its widest row
            rows = sp.csr_array(rows[:, : 1 + max(0, *np.nonzero(rows.any(axis=0))[0].tolist(), 0)])
        if number % arity:
            states[-1] = fit.step(states[-1], rows, NO_WEIGHTS)
        else:
            states.append(fit.step(None, rows, NO_WEIGHTS))
    before = [state.product.copy() for state in states]
    joined = fit.join(states)
    for state, wanted in zip(states, before, strict=True):
        np.testing.assert_array_equal(state.product, wanted)
    whole = fit.step(None, sp.csr_array(X) if sparse else X, NO_WEIGHTS)
    widest = len(joined.product)
    part = (slice(widest), slice(widest)) if way == "gram" else slice(widest)
    told = np.tril if way == "gram" else np.asarray  # sparse rows fill no more
    np.testing.assert_allclose(told(joined.product), told(whole.product[part]), rtol=1e-12, atol=1e-9)
    assert not X[:, widest:].any()


@cases("way", WAYS)
@cases("rank", [0, 3])
def test_rows_of_low_rank(way, rank):
    rng = np.random.default_rng(0)
    narrow = rng.normal(size=(30, 3))
    assert found(way, narrow, 6).vectors.shape == (3, 3)  # no more than features
    X = rng.normal(size=(50, rank)) @ rng.normal(size=(rank, 120))
    got = found(way, X, 6)
    np.testing.assert_allclose(got.vectors.T @ got.vectors, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(got.values[:rank], np.linalg.svd(X)[1][:rank] ** 2, rtol=1e-9)
    assert (got.values[rank:] <= 1e-9 * max(1.0, got.values[0])).all()
    np.testing.assert_allclose(X @ got.vectors @ got.vectors.T, X, atol=1e-6)


def test_sums_too_large_are_refused():
    X = np.full((4, 3), 1e200)
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(InvalidInputError, match="scale the data down"):
        found("range", X, 2)


@cases("way", WAYS)
@cases("weighted", [False, True])
def test_streamed_pca_is_scikit_learns(way, weighted):
    X = falling(offset=1e6)  # sums of squares alone would leave no digit
    weights = np.random.default_rng(0).integers(1, 4, len(X)).astype(float) if weighted else NO_WEIGHTS
    repeated = np.repeat(X, weights.astype(int), axis=0) if weighted else X
    fit = first_round(way, 5, shift=X[:20].mean(axis=0), make=PCASketch.of_subspace)
    sketch = fit_rows(fit, X, weights)
    np.testing.assert_allclose(sketch.mean, repeated.mean(axis=0), rtol=1e-12)
    wanted = PCA(5, svd_solver="full").fit(repeated).components_
    angle = subspace_angles(np.asarray(sketch.directions), wanted.T).max()
    assert angle < (1e-6 if way == "gram" else 1e-2)


def test_wide_rows_are_not_squared():
    with pytest.raises(InvalidParameterError, match="n_comp"):
        subspace_fit(0, keep_subspace, n_features=9, seed=0)
    assert isinstance(subspace_fit(3, keep_subspace, n_features=subspaces.GRAM_FEATURES, seed=0), SubspaceGram)
    fit = subspace_fit(3, keep_subspace, n_features=subspaces.GRAM_FEATURES + 1, seed=0)
    assert isinstance(fit, RangeFit)
    state = fit.step(None, sp.csr_array(np.eye(4, 3000)), NO_WEIGHTS)
    assert subspaces.subspace_bytes(3, 3000).state == state.product.nbytes
    state = SubspaceGram(3, keep_subspace).step(None, np.eye(4, 300), NO_WEIGHTS)
    assert subspaces.subspace_bytes(3, 300).state == state.product.nbytes


@pytest.mark.parametrize("sparse", [False, True])
def test_one_pass_over_the_rows(small_topics, sparse):
    X = small_topics.X[:600] if sparse else small_topics.X[:600].toarray()
    source = CountingSource(X, n_chunks=9)
    reader = RowReader(source, 1000, "euclidean", "raise")
    sketches = []
    for n_threads in (1, 3):
        found_ = subspace_fit(6, TruncatedSVDSketch.of_subspace, n_features=3000, seed=4)
        source.read_rows.clear()
        with open_executor(n_threads) as executor:
            context = PassContext(executor=executor, reader=reader)
            rows = np.diff(np.unique(np.linspace(0, 600, 10).astype(int)))
            found_ = context.run(FindSketch(pickle.loads(pickle.dumps(found_))), Stage("fit"), rows)
        assert set(source.read_rows.values()) == {1}
        sketches.append(found_)
    np.testing.assert_array_equal(sketches[0].directions, sketches[1].directions)
    assert sketches[0].directions.dtype == np.float32
    wanted = TruncatedSVD(6, n_iter=10, random_state=0).fit(X).explained_variance_ratio_.sum()
    Y = sketches[0].apply(X)
    assert np.var(Y, axis=0).sum() / wanted > 0.9 * np.var(naive.dense(X), axis=0).sum()


# the sketch


class TestTruncatedSVD(SketchContract):
    def make_sketch(self):
        fit = subspace_fit(6, TruncatedSVDSketch.of_subspace, n_features=N_FEATURES, seed=0)
        return fit_rows(fit, falling(), NO_WEIGHTS)


class TestSingleDirections(TestTruncatedSVD):
    """float32, and as many as fill vectors."""

    def make_sketch(self):
        X = falling(dtype=np.float32)
        return fit_rows(subspace_fit(16, TruncatedSVDSketch.of_subspace, n_features=10**6, seed=0), X, NO_WEIGHTS)


@cases("sparse", [False, True])
@cases("dtype", [np.uint8, np.int32, np.float32, np.float64])
@cases("m", [3, 16])
def test_is_the_product_with_the_directions(sparse, dtype, m):
    X = whole_numbers().astype(dtype)
    X = sp.csr_array(X) if sparse else X
    sketch = fit_rows(subspace_fit(m, TruncatedSVDSketch.of_subspace, n_features=N_FEATURES, seed=0), X, NO_WEIGHTS)
    sketched = sketch.apply(X)
    assert sketched.dtype == (np.float64 if dtype in (np.int32, np.float64) else np.float32)
    np.testing.assert_allclose(sketched, naive.dense(X) @ sketch.directions, rtol=1e-4, atol=1e-4)
    if sparse:
        narrow = sketch.apply(X[:, :20])
        np.testing.assert_allclose(narrow, naive.dense(X)[:, :20] @ sketch.directions[:20], rtol=1e-4, atol=1e-4)


@cases("X", [np.zeros((2, 41)), np.zeros((2, 39)), sp.csr_array((2, 41))])
def test_other_features_are_refused(X):
    with pytest.raises(InvalidInputError, match=r"features; the directions have 40"):
        TestTruncatedSVD().make_sketch().apply(X)


@pytest.mark.parametrize("directions", [np.zeros(3), np.zeros((3, 2), int)])
def test_directions_are_checked(directions):
    with pytest.raises(InvalidParameterError, match=r"needed: floats \(d, m\)"):
        TruncatedSVDSketch(directions)
