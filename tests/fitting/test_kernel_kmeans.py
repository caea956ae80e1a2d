"""Kernel k-means: exact twins, approximation on a grid, landmarks, methods, the fit out of core."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_svmlight_file, make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import chi2_kernel, euclidean_distances, manhattan_distances, pairwise_kernels, rbf_kernel

from examples.papers.exact import exact_kernel_kmeans, exact_objective, kernel_objective
from streamkm import Nystroem, StreamKernelKMeans
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.engine import open_executor
from streamkm.fitting.kernel.bandwidth import gamma_by_rule, mean_d2
from streamkm.fitting.kernel.landmarks import (
    Choice,
    choose_landmarks,
    kept,
    rank_leverage_scores,
    ridge_leverage_scores,
)
from streamkm.fitting.kernel.maps import column_sketch, landmark_sketch, sketched_columns_map
from streamkm.planning.kernel_plan import COLUMN_SKETCHES, LANDMARK_SKETCHES, METHODS, KernelSizes, kernel_sizes
from streamkm.sketches import KernelMap
from streamkm.sketches.kernel_columns import KERNELS, Kernel, KernelColumns
from streamkm.sketches.kernel_map import GramFit, inverse_root
from tests import naive
from tests.passes.test_passes import CountingSource
from tests.tables import cases

GAMMA = 0.5


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(300, n_features=4, centers=5, cluster_std=1.5, random_state=3)
    return X / X.std(), y


def sample_of(X):
    return Sample(X, np.arange(X.shape[0]), np.empty(0), True)


def best_trace(K, rank):
    """tr(K - K_rank), K_rank the best approximation of that rank."""
    return np.linalg.eigvalsh(K)[: len(K) - rank].sum()


class TestExact:
    def test_objective_is_that_of_explicit_features(self, blobs):
        X, y = blobs
        weights = np.random.default_rng(0).random(len(y))
        assert kernel_objective(X @ X.T, y) == pytest.approx(naive.within(X, y))
        assert kernel_objective(X @ X.T, y, weights) == pytest.approx(naive.within(X, y, weights))

    @pytest.mark.parametrize("weighted", [False, True])
    def test_steps_are_lloyds(self, blobs, weighted):
        X, y = blobs
        weights = np.random.default_rng(0).random(len(y)) + 0.1 if weighted else None
        centers = X[:5]
        start, _ = naive.nearest(X, centers)
        result = exact_kernel_kmeans(X @ X.T, start, weights=weights)
        sums, counts = naive.sums_and_counts(X, start, 5, weights)
        final, _ = naive.lloyd(X, sums / counts[:, None], max_iter=100, weights=weights)
        np.testing.assert_array_equal(result.labels, naive.nearest(X, final)[0])
        assert result.converged
        assert result.inertia == pytest.approx(naive.within(X, result.labels, weights))


class TestBandwidth:
    def test_rules_are_means_over_pairs(self, blobs):
        X = np.abs(blobs[0][:200])
        pairs = 200 * 200
        assert mean_d2(X) == pytest.approx((euclidean_distances(X) ** 2).mean())
        assert mean_d2(sp.csr_array(X)) == pytest.approx(mean_d2(X))
        assert gamma_by_rule("rbf", X, 3.0) == pytest.approx(3 / (2 * mean_d2(X)))
        assert gamma_by_rule("laplacian", X, 1.0) == pytest.approx(pairs / manhattan_distances(X).sum(), rel=1e-5)
        assert gamma_by_rule("chi2", X, 1.0) == pytest.approx(pairs / -np.log(chi2_kernel(X, gamma=1)).sum(), rel=1e-5)
        assert gamma_by_rule("chi2", sp.csr_array(X), 1.0) == pytest.approx(gamma_by_rule("chi2", X, 1.0))
        assert gamma_by_rule("polynomial", X, 2.0) == pytest.approx(2 * 200 / (X**2).sum())
        assert gamma_by_rule("cosine", X, 2.0) == 1.0

    @cases("name", ["rbf", "laplacian"])
    def test_many_weighted_rows_are_stood_for(self, name):
        rng = np.random.default_rng(1)
        X, weights = rng.normal(size=(20_000, 3)) * np.repeat([1, 3], 10_000)[:, None], np.repeat([10.0, 1.0], 10_000)
        found, wanted = [], []
        for _ in range(20):
            order = np.argsort(rng.exponential(size=20_000) / weights)  # as in a sample
            found.append(1 / gamma_by_rule(name, X[order], 1.0, weights[order]))
            wanted.append(1 / gamma_by_rule(name, X[rng.choice(20_000, 5_000, p=weights / weights.sum())], 1.0))
        assert np.mean(found) == pytest.approx(np.mean(wanted), rel=0.05)

    def test_equal_rows(self):
        assert gamma_by_rule("rbf", np.ones((10, 3)), 1.0) == 1.0


class TestLandmarks:
    @cases("how", ["uniform", "leverage", "kmeans"])
    @cases("sparse", [False, True])
    def test_choices(self, blobs, how, sparse):
        X = sp.csr_array(np.abs(blobs[0])) if sparse else blobs[0]
        with open_executor(1) as here:
            chosen = choose_landmarks(
                here, sample_of(X), Kernel("rbf", GAMMA), Choice(how, 20, 5), np.random.default_rng(0)
            )
            everything = choose_landmarks(
                here, sample_of(X), Kernel("rbf", GAMMA), Choice(how, 500, 5), np.random.default_rng(0)
            )
        assert chosen.shape == (20, 4)
        assert everything.shape == X.shape
        if how != "kmeans":
            dense = naive.dense(X).astype(chosen.dtype)
            assert all((dense == row).all(axis=1).any() for row in np.asarray(chosen))

    def test_leverage_scores_are_those_of_the_definition(self, blobs):
        X = blobs[0]
        columns = KernelColumns(Kernel("rbf", GAMMA), X)
        scores = ridge_leverage_scores(columns, X, 10)
        K = rbf_kernel(X, gamma=GAMMA)
        ridge = best_trace(K, 10) / 10
        wanted = np.diag(K @ np.linalg.inv(K + ridge * np.eye(len(K))))
        np.testing.assert_allclose(scores, wanted, rtol=1e-2)

    def test_leverage_finds_the_rare_rows(self):
        rng = np.random.default_rng(0)
        X = np.concatenate([rng.normal(0, 0.1, (990, 3)), 10 + rng.normal(0, 3.0, (10, 3))])
        X = X[rng.permutation(len(X))]
        scores = ridge_leverage_scores(KernelColumns(Kernel("rbf", 1.0), X[:100]), X, 5)
        rare = X.mean(axis=1) > 3
        assert scores[rare].min() > 5 * np.median(scores[~rare])

    def test_kmeans_refuses_wide_means(self):
        X = sp.random_array((5000, 100_000), density=1e-4, format="csr", rng=np.random.default_rng(0))
        with open_executor(1) as here, pytest.raises(InvalidParameterError, match="keeps 1,000 means of 100,000"):
            choose_landmarks(here, sample_of(X), Kernel("rbf"), Choice("kmeans", 1000, 5), np.random.default_rng(0))

    def test_sparse_landmarks_stay_sparse_where_it_pays(self):
        assert sp.issparse(kept(sp.random_array((20, 5000), density=0.01, format="csr", rng=0)))
        assert isinstance(kept(sp.random_array((20, 50), density=0.01, format="csr", rng=0)), np.ndarray)
        assert isinstance(kept(sp.random_array((20, 5000), density=0.2, format="csr", rng=0)), np.ndarray)


class TestColumnSketches:
    @cases("method", COLUMN_SKETCHES)
    def test_is_one_matrix_scaled_to_identity(self, method):
        assert column_sketch(method, 40, 24, 7).shape == (40, 24)
        seeds = [np.eye(40, dtype=np.float32) @ column_sketch(method, 40, 24, seed) for seed in range(200)]
        np.testing.assert_allclose(np.mean([S @ S.T for S in seeds], axis=0), np.eye(40), atol=0.12)

    @pytest.mark.parametrize("method", COLUMN_SKETCHES)
    def test_approximation_is_near_the_best(self, blobs, method):
        X = blobs[0]
        K = rbf_kernel(X, gamma=GAMMA)
        with open_executor(2) as here:
            sketch = column_sketch(method, len(X), 100, 3)
            features = sketched_columns_map(here, Kernel("rbf", GAMMA), X, sketch, 25).apply(X).astype(np.float64)
        assert features.shape == (300, 25)
        assert np.trace(K - features @ features.T) <= 1.1 * best_trace(K, 25)

    def test_explicit_formula(self, blobs):
        X = blobs[0][:90]
        K = rbf_kernel(X, gamma=GAMMA)
        sketch = column_sketch("signs", 90, 30, 3)
        S = sketch.astype(np.float64)
        root = inverse_root(S.T @ K @ S, 20)
        u, s, _ = np.linalg.svd(K @ S @ root, full_matrices=False)
        wanted = u[:, :6] * s[:6]
        with open_executor(1) as here:
            got = sketched_columns_map(here, Kernel("rbf", GAMMA), X, sketch, 6, 20).apply(X).astype(np.float64)
        np.testing.assert_allclose(got @ got.T, wanted @ wanted.T, atol=2e-3)


class TestNystroem:
    def features(self, X, n_landmarks, rank):
        kernel = Kernel("rbf", GAMMA)
        landmarks = X[np.random.default_rng(0).permutation(len(X))[:n_landmarks]]
        root = inverse_root(KernelColumns(kernel, landmarks).values(landmarks))
        fit = GramFit(KernelMap.of(kernel, landmarks, root), root, rank)
        return fit.finish(fit.step(None, X, np.empty(0))).apply(X).astype(np.float64)

    def test_error_falls_to_that_of_the_best_rank(self, blobs):
        """Wang, Gittens and Mahoney, section 3.1: within 1 + eps of the best trace error, as landmarks grow."""
        K = rbf_kernel(blobs[0], gamma=GAMMA)
        for rank in (5, 10, 20):
            best = best_trace(K, rank)
            ratios = []
            for n_landmarks in (40, 80, 160, 300):
                B = self.features(blobs[0], n_landmarks, rank)
                ratios.append(np.trace(K - B @ B.T) / best)
            assert ratios == sorted(ratios, reverse=True)
            assert 0.999 <= ratios[-1] < 1.002
            assert ratios[1] < 1 + 4 * rank / 80


class TestFit:
    def test_equal_labels_with_exact_kernel_kmeans(self, blobs):
        X, _ = blobs
        start = X[:5]
        K = rbf_kernel(X, gamma=GAMMA)
        first = (2 - 2 * rbf_kernel(X, start, gamma=GAMMA)).argmin(axis=1)
        exact = exact_kernel_kmeans(K, first)
        fitted = StreamKernelKMeans(5, gamma=GAMMA, n_landmarks=300, rank=300, init=start, tol=0, progress=False).fit(X)
        np.testing.assert_array_equal(fitted.labels_, exact.labels)
        assert fitted.inertia_ == pytest.approx(exact.inertia, rel=1e-4)
        assert fitted.trace_residual_ == pytest.approx(0, abs=0.05)

    def test_objective_lies_in_its_bounds(self, blobs):
        X, _ = blobs
        K = rbf_kernel(X, gamma=GAMMA)
        for rank in (3, 10, 40):
            fitted = StreamKernelKMeans(5, gamma=GAMMA, n_landmarks=60, rank=rank, random_state=0, progress=False).fit(
                X
            )
            exact = kernel_objective(K, fitted.labels_)
            assert fitted.inertia_ * (1 - 1e-4) <= exact <= fitted.inertia_ + fitted.trace_residual_
            features = fitted.sketch_.apply(X).astype(np.float64)
            assert fitted.trace_residual_ == pytest.approx(np.trace(K - features @ features.T), rel=1e-3)

    def test_objective_of_two_steps_lies_in_the_bounds_at_the_means(self):
        # its centers are the landmarks', so that inertia_ may be above the exact objective and its bounds
        X = np.random.default_rng(0).normal(size=(400, 3))
        above = 0
        for seed in range(10):
            fitted = StreamKernelKMeans(8, method="two-step", n_landmarks=12, random_state=seed, progress=False).fit(X)
            exact = exact_objective(fitted.kernel_, X, fitted.labels_)
            moved = ((fitted.cluster_means_ - fitted.cluster_centers_) ** 2).sum(axis=1)
            at_means = fitted.inertia_ - float(fitted.counts_ @ moved)
            assert at_means * (1 - 1e-4) <= exact <= at_means + fitted.trace_residual_ * (1 + 1e-4)
            above += fitted.inertia_ > exact
        assert above > 0

    @cases("kernel", [name for name in KERNELS if name != "precomputed"])
    @cases("weighted", [False, True])
    @cases("sparse", [False, True])
    def test_exact_objective_and_bounds_of_every_kernel(self, blobs, kernel, weighted, sparse):
        X = np.abs(blobs[0])
        given = sp.csr_array(X) if sparse else X
        weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float) if weighted else None
        fitted = StreamKernelKMeans(5, kernel=kernel, n_landmarks=60, rank=10, random_state=0, progress=False).fit(
            given, sample_weight=weights
        )
        parameters = {} if kernel in ("cosine", "linear") else {"gamma": fitted.kernel_.gamma}
        parameters |= {"coef0": 1.0} if kernel in ("polynomial", "sigmoid") else {}
        K = pairwise_kernels(X, metric=kernel, **parameters)
        exact = kernel_objective(K, fitted.labels_, weights)
        assert exact_objective(fitted.kernel_, given, fitted.labels_, weights) == pytest.approx(exact, rel=1e-4)
        if kernel == "sigmoid":
            assert fitted.trace_residual_ is None
            return
        at_means = fitted.inertia_ - float(  # the fit stops before the centers are the means, by tol
            fitted.counts_ @ ((fitted.cluster_means_ - fitted.cluster_centers_) ** 2).sum(axis=1)
        )
        assert at_means * (1 - 1e-4) <= exact <= at_means + fitted.trace_residual_ * (1 + 1e-4)

    def test_exact_objective_leaves_skipped_rows_out(self, blobs):
        X = np.tile(blobs[0], (2, 1))
        X[7] = np.nan
        fitted = StreamKernelKMeans(5, random_state=0, progress=False, invalid="skip").fit(X)
        K = rbf_kernel(np.nan_to_num(X), gamma=fitted.kernel_.gamma)
        found = exact_objective(fitted.kernel_, X, fitted.labels_)
        assert found == pytest.approx(kernel_objective(K, fitted.labels_), rel=1e-4)

    @cases("method", METHODS)
    def test_every_method_finds_the_rings(self, method):
        X, y = make_circles(500, noise=0.03, factor=0.3, random_state=0)
        fitted = StreamKernelKMeans(2, gamma=4, method=method, n_landmarks=200, random_state=0, progress=False).fit(X)
        assert adjusted_rand_score(y, fitted.labels_) > 0.97
        np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
        most = {"ros": 256, **dict.fromkeys(("two-step", *LANDMARK_SKETCHES[:-1]), 200)}
        assert fitted.n_components_ <= most.get(method, 20)

    @cases("landmarks", ["uniform", "leverage", "kmeans"])
    @cases("fit_on", ["sample", "all"])
    @cases("sparse", [False, True])
    def test_every_choice_finds_the_blobs(self, blobs, landmarks, fit_on, sparse):
        X = np.abs(blobs[0])
        fitted = StreamKernelKMeans(
            5, n_landmarks=100, method=Nystroem(landmarks), fit_on=fit_on, random_state=0, progress=False
        ).fit(sp.csr_array(X) if sparse else X)
        best = StreamKernelKMeans(5, n_landmarks=300, rank=300, random_state=0, progress=False).fit(X)
        K = rbf_kernel(X, gamma=best.kernel_.gamma)
        assert fitted.kernel_.gamma == pytest.approx(best.kernel_.gamma)
        assert kernel_objective(K, fitted.labels_) <= 1.02 * kernel_objective(K, best.labels_)

    def test_streamed_is_the_sample_where_it_holds_all_rows(self, blobs):
        fits = [
            StreamKernelKMeans(5, fit_on=fit_on, n_landmarks=60, random_state=0, progress=False).fit(blobs[0])
            for fit_on in ("sample", "all")
        ]
        assert fits[0].inertia_ == pytest.approx(fits[1].inertia_, rel=1e-5)
        assert adjusted_rand_score(fits[0].labels_, fits[1].labels_) == 1

    def test_two_step_clusters_the_landmarks(self, blobs):
        X, _ = blobs
        fitted = StreamKernelKMeans(
            5, gamma=GAMMA, method="two-step", n_landmarks=60, tol=0, random_state=0, progress=False
        ).fit(X)
        landmarks = fitted.sketch_.landmarks
        labels = fitted.predict(landmarks)
        result = exact_kernel_kmeans(rbf_kernel(landmarks, gamma=GAMMA), labels)
        np.testing.assert_array_equal(result.labels, labels)
        means = np.stack([rbf_kernel(X, landmarks[labels == c], gamma=GAMMA).mean(axis=1) for c in range(5)], axis=1)
        inside = [rbf_kernel(landmarks[labels == c], gamma=GAMMA).mean() for c in range(5)]
        np.testing.assert_array_equal((np.array(inside) - 2 * means).argmin(axis=1), fitted.labels_)

    def test_column_sketches_refuse_many_rows(self):
        X = np.zeros((70_000, 2))
        with pytest.raises(InvalidInputError, match=r"70,000\^2 pairs of rows; at most 4,294,967,296 .*65,536 rows"):
            StreamKernelKMeans(2, method="srht", progress=False).fit(X)

    def test_fourier_is_for_rbf(self, blobs):
        with pytest.raises(InvalidParameterError, match="method='fourier' with kernel='laplacian'"):
            StreamKernelKMeans(2, kernel="laplacian", method="fourier", progress=False).fit(blobs[0])


def test_sizes():
    assert kernel_sizes(10, "auto", "auto", None, 60_000) == KernelSizes(800, 100)
    assert kernel_sizes(10, "auto", "auto", 0.5, 8_100_000).n_landmarks == 2048
    assert kernel_sizes(10, 400, 20, None, 50).n_landmarks == 50
    assert kernel_sizes(10, 5, 20, None, None).rank == 5


def test_a_loss_that_is_asked_for_is_kept():
    for k in (10, 26, 100):
        assert kernel_sizes(k, "auto", "auto", 0.1, 10**6).rank == 10 * k
    assert kernel_sizes(200, "auto", "auto", 0.1, 10**6) == KernelSizes(4000, 2000)  # landmarks grow with the rank
    # without, the rank has a limit
    assert kernel_sizes(100, "auto", "auto", None, 10**6) == KernelSizes(2048, 256)


def test_too_few_columns_for_a_loss_are_said():
    sizes = kernel_sizes(50, "auto", "auto", 0.05, 10**6)
    assert sizes == KernelSizes(2048, 1000)
    assert sizes.short == "eps=0.05 asks for 26,908 columns (coherence 1, constants 1); there are 2,048"
    # up to the limit, as many are taken as theory asks for
    assert kernel_sizes(10, "auto", "auto", 0.1, 10**5) == KernelSizes(1461, 100)
    for short in (
        kernel_sizes(10, "auto", "auto", 0.1, 10**5).short,
        kernel_sizes(10, "auto", "auto", None, 10**8).short,
        kernel_sizes(50, "auto", "auto", 0.05, 1500).short,  # all rows are landmarks
        kernel_sizes(50, 26_908, "auto", 0.05, 10**6).short,
        kernel_sizes(50, "auto", "auto", 1.5, 10**6).short,  # promises nothing
    ):
        assert short == ""
    assert kernel_sizes(10, 1000, "auto", 0.1, 10**5).short.endswith("there are 1,000")
    assert "asks for 100 features; there are 20" in kernel_sizes(10, 2000, 20, 0.1, 10**5).short
    for method in ("fourier", "two-step"):
        assert kernel_sizes(10, "auto", "auto", 0.1, 10**5, method=method).short.startswith("no theorem here")
    for method in COLUMN_SKETCHES:
        assert "columns" in kernel_sizes(10, 101, "auto", 0.1, 10**5, method=method).short
        assert kernel_sizes(10, "auto", "auto", 0.1, None, method=method).n_landmarks > 100
    assert "theorem 1 of Yin" in kernel_sizes(3, "auto", "auto", 0.5, 10**4, method="sub-gaussian").short
    assert kernel_sizes(3, 500, "auto", 0.5, 10**4, method="sub-gaussian").short == ""


def test_a_fit_warns_of_too_few_columns():
    X = np.random.default_rng(0).normal(size=(400, 3))
    kmeans = StreamKernelKMeans(4, n_landmarks=50, eps=0.2, random_state=0, progress=False)
    assert "eps=0.2 asks for 160 columns" in kmeans.plan(X).why_sketch
    assert kmeans.fit(X).n_components_ == 20  # the number was given: no warning
    left = StreamKernelKMeans(4, method="sub-gaussian-entries", eps=0.5, random_state=0, progress=False)
    with pytest.warns(UserWarning, match="eps=0.5 asks for 303 landmarks .* there are 20; pass more"):
        left.fit(X)


def test_the_rank_follows_landmarks_that_are_given():
    # Wang, Gittens and Mahoney, remark 3: more than k, no large part of c
    assert kernel_sizes(10, 400, "auto", None, 10**6) == KernelSizes(400, 64)
    for k, c in itertools.product((2, 10, 50), (4, 60, 120, 400, 5000)):
        sizes = kernel_sizes(k, c, "auto", None, 10**6)
        assert min(k + 1, c) <= sizes.rank <= max(k + 1, c // 2)
    assert kernel_sizes(10, 400, "auto", 0.05, 10**6).rank == 200


def test_sizes_of_sketches_of_drawn_rows():
    assert kernel_sizes(10, "auto", "auto", None, 10_000, method="sub-gaussian") == KernelSizes(100, 100)
    assert kernel_sizes(10, "auto", 7, None, 10_000, method="ros") == KernelSizes(128, 128)
    assert kernel_sizes(10, 100, "auto", None, 10_000, method="sampled-columns") == KernelSizes(100, 100)
    assert kernel_sizes(3, 100, "auto", None, 100, method="ros") == KernelSizes(64, 64)


class TestLandmarkSketches:
    """Yin et al.: columns of S Q K as they are."""

    def test_explicit_formula(self, blobs):
        X, m = blobs[0], 32
        for method in LANDMARK_SKETCHES:
            fitted = StreamKernelKMeans(5, gamma=GAMMA, method=method, n_landmarks=m, random_state=0, progress=False)
            features = fitted.fit_transform(X)
            assert features.shape == (300, 5)
            mixing = fitted.sketch_.projection.T.astype(float)  # S
            drawn = rbf_kernel(fitted.sketch_.landmarks, X, gamma=GAMMA)  # Q K
            np.testing.assert_allclose(fitted.sketch_.apply(X).T, mixing @ drawn, atol=1e-5)
            assert (fitted.sketch_.landmarks[:, None] == X[None]).all(axis=2).any(axis=1).all()
            assert fitted.trace_residual_ is None
            if method == "sampled-columns":
                np.testing.assert_array_equal(mixing, np.eye(m))
            elif method == "ros":
                np.testing.assert_allclose(np.abs(mixing), 1 / np.sqrt(m), rtol=1e-6)
                np.testing.assert_allclose(mixing @ mixing.T, np.eye(m), atol=1e-6)

    def test_entries_of_a_sub_gaussian_sketch(self):
        m, n = 300, 10_000
        mixing = landmark_sketch("sub-gaussian", m, n, np.random.default_rng(0)).T
        drawn = mixing[mixing != 0]
        np.testing.assert_allclose(np.abs(drawn), 1 / np.sqrt(m), rtol=1e-6)
        assert abs(len(drawn) - m * m / 100) < 4 * np.sqrt(m * m / 100)
        for row in mixing:  # one sign a row
            assert len(np.unique(row[row != 0])) <= 1
        assert 0.4 < (drawn > 0).mean() < 0.6
        with pytest.raises(InvalidParameterError, match="needed: about 1,000 landmarks"):
            landmark_sketch("sub-gaussian", 2, 10**6, np.random.default_rng(0))

    def test_a_sign_for_each_entry(self):
        m, n = 300, 10_000
        mixing = landmark_sketch("sub-gaussian-entries", m, n, np.random.default_rng(0)).T
        printed = landmark_sketch("sub-gaussian", m, n, np.random.default_rng(0)).T
        np.testing.assert_array_equal(mixing != 0, printed != 0)
        np.testing.assert_allclose(np.abs(mixing[mixing != 0]), 1 / np.sqrt(m), rtol=1e-6)
        assert 0.45 < (mixing[mixing != 0] > 0).mean() < 0.55
        assert sum(len(np.unique(row[row != 0])) == 2 for row in mixing) > m / 2
        with pytest.raises(InvalidParameterError, match='method="sub-gaussian-entries" with n_landmarks=2'):
            landmark_sketch("sub-gaussian-entries", 2, 10**6, np.random.default_rng(0))

    def test_rotated_columns_are_as_far_apart_as_the_columns(self, blobs):
        # D A is orthogonal: ROS and Nystroem of the same rows have the same clusters
        labels, distances = [], []
        for method in ("ros", "sampled-columns"):
            fitted = StreamKernelKMeans(5, method=method, n_landmarks=64, random_state=0, progress=False).fit(blobs[0])
            labels.append(fitted.labels_)
            distances.append(naive.d2_matrix(*(2 * [fitted.sketch_.apply(blobs[0]).astype(float)])))
        np.testing.assert_allclose(*distances, atol=1e-4)
        assert adjusted_rand_score(*labels) == 1

    def test_any_number_of_rows(self):
        rng = np.random.default_rng(0)
        y = rng.integers(0, 3, 70_000)
        X = (rng.normal(size=(70_000, 2)) * 0.1 + np.eye(3, 2)[y] * 3).astype(np.float32)
        for fit_on in ("sample", "all"):
            fitted = StreamKernelKMeans(3, method="sub-gaussian", fit_on=fit_on, random_state=0, progress=False).fit(X)
            assert fitted.n_components_ == 265
            assert adjusted_rand_score(y, fitted.labels_) > 0.99


class TestRankLeverage:
    def test_scores_are_those_of_the_singular_vectors(self, blobs):
        X = blobs[0]
        columns = KernelColumns(Kernel("rbf", GAMMA), X)
        vectors = np.linalg.eigh(rbf_kernel(X, gamma=GAMMA))[1][:, -8:]
        scores = rank_leverage_scores(columns, X, 8)
        np.testing.assert_allclose(scores, np.square(vectors).sum(axis=1), atol=1e-3)
        few = rank_leverage_scores(KernelColumns(Kernel("rbf", GAMMA), X[:150]), X, 8)
        assert few.sum() == pytest.approx(8)
        assert np.corrcoef(few, scores)[0, 1] > 0.8

    def test_rows_of_a_small_cluster_are_drawn_more_often(self):
        # 60 of 3,000 rows, which have about as many of the leading directions as the others
        rng = np.random.default_rng(0)
        X = np.concatenate([rng.normal(size=(2940, 2)), 0.5 * rng.normal(size=(60, 2)) + 40]).astype(np.float32)
        drawn = {}
        for how in ("uniform", "rank-leverage"):
            given = {"gamma": 0.05, "method": Nystroem(how), "n_landmarks": 200, "rank": 10}
            fits = [StreamKernelKMeans(3, random_state=s, progress=False, **given).fit(X) for s in range(5)]
            drawn[how] = np.mean([(fit.sketch_.landmarks > 20).all(axis=1).mean() for fit in fits])
        assert 0.01 < drawn["uniform"] < 0.03
        assert drawn["rank-leverage"] > 3 * drawn["uniform"]


def test_steps_go_on_while_little_is_gained():
    """On these rows a step of Lloyd's algorithm gains less than 1e-4 of the objective, and later ones 4e-3."""
    X = load_svmlight_file(str(Path(__file__).parents[2] / "examples/data/pendigits.svm"))[0].toarray()
    X = X[np.random.default_rng(0).permutation(len(X))[:3000]]
    gamma = 1 / (4 * 0.71**2 * X.var(axis=0).sum())
    labels = StreamKernelKMeans(10, gamma=gamma, random_state=1, progress=False).fit_predict(X)
    K = rbf_kernel(X, gamma=gamma)
    found = kernel_objective(K, labels)
    assert exact_kernel_kmeans(K, labels).inertia > 0.9999 * found
    assert found < 728.5  # 731.0 for tol=1e-4


@pytest.mark.parametrize("fit_on", ["sample", "all"])
def test_many_clusters_take_epochs_among_the_features(fit_on, tmp_path):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(90, 6))
    X = (centers[rng.integers(90, size=4_000)] + 0.3 * rng.normal(size=(4_000, 6))).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    fitted = {}
    for executor in (1, 2):
        kmeans = StreamKernelKMeans(
            70, n_landmarks=60, fit_on=fit_on, random_state=0, executor=executor, chunk_bytes=1 << 14, progress=False
        )
        fitted[executor] = kmeans.fit(str(tmp_path / "x.npy"))
    one, two = fitted[1], fitted[2]
    assert [stage.name for stage in one.stages_].count("epochs") == 1
    assert {step["stage"] for step in one.history_} >= {"epochs", "lloyd"}
    np.testing.assert_array_equal(one.labels_, two.labels_)
    assert one.inertia_ == two.inertia_
    plain = StreamKernelKMeans(70, n_landmarks=60, fit_on=fit_on, random_state=0, n_init=1, progress=False).fit(X)
    assert "epochs" not in [stage.name for stage in plain.stages_]
    assert one.inertia_ < 1.01 * plain.inertia_


def rings(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    ring, turn = rng.integers(3, size=n_rows), 2 * np.pi * rng.random(n_rows)
    X = np.column_stack([np.cos(turn), np.sin(turn)]) * (ring + 1)[:, None]
    return X + 0.1 * rng.normal(size=X.shape), ring


SHAPES = {
    "circles": lambda: make_circles(20_000, noise=0.05, factor=0.5, random_state=0),
    "moons": lambda: make_moons(20_000, noise=0.05, random_state=0),
    "rings": lambda: rings(20_000),
}


@cases("shape", SHAPES)
def test_the_default_width_finds_groups_that_touch_no_plane(shape, tmp_path, caplog):
    X, y = SHAPES[shape]()
    caplog.set_level(logging.INFO, "streamkm")
    kernel = StreamKernelKMeans(len(np.unique(y)), random_state=0, progress=False).fit(X)
    assert adjusted_rand_score(y, kernel.labels_) >= 0.99
    assert kernel.n_passes_ == 2
    assert kernel.trace_residual_ is None  # features are no approximation of the kernel
    assert "the latter kept" in caplog.text
    kernel.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(StreamKernelKMeans.load(tmp_path / "model.npz").predict(X), kernel.labels_)


def test_the_default_width_is_that_of_all_rows_unless_groups_are_apart():
    X, options = load_digits().data[:600], {"random_state": 0, "progress": False}
    kernel, wide = (StreamKernelKMeans(10, gamma=gamma, **options).fit(X) for gamma in ("auto", None))
    assert kernel.kernel_ == wide.kernel_
    np.testing.assert_array_equal(kernel.labels_, wide.labels_)
    equal = StreamKernelKMeans(2, **options).fit(np.eye(2)[[0] * 40 + [1] * 40])  # no distance to the 7th neighbour
    assert sorted(equal.counts_) == [40, 40]


@cases("make", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("fit_on", ["sample", "all"])
def test_the_width_of_neighbours(fit_on, make):
    X, y = make_moons(900, noise=0.03, random_state=0)
    source = CountingSource(make(X))
    kernel = StreamKernelKMeans(2, gamma="neighbors", gamma_factor=0.5, fit_on=fit_on, random_state=0, progress=False)
    kernel.fit(source)
    width = np.median(np.sort(euclidean_distances(X), axis=1)[:, 7])
    assert kernel.kernel_.gamma == pytest.approx(0.5 / width**2, rel=1e-6)
    assert adjusted_rand_score(y, kernel.labels_) == 1
    assert set(source.read_rows.values()) == {kernel.n_passes_} == {kernel.plan_.passes}


def test_the_width_of_neighbours_needs_neighbours():
    kernel = StreamKernelKMeans(2, gamma="neighbors", progress=False)
    with pytest.raises(InvalidInputError, match="the 7th neighbour is at distance 0 from most of 80 sampled rows"):
        kernel.fit(np.eye(2)[[0] * 40 + [1] * 40])
    with pytest.raises(InvalidParameterError, match="gamma=\"neighbors\" with kernel='laplacian'"):
        kernel.set_params(kernel="laplacian").fit(np.eye(9))
