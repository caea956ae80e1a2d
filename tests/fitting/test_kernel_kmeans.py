"""Kernel k-means: exact twins, approximation on a grid, landmarks, methods, the fit out of core."""

from __future__ import annotations

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
from streamkm.fitting.kernel.feature_maps import column_sketch, landmark_sketch, sketched_columns_map
from streamkm.fitting.kernel.landmarks import MapRule, choose_landmarks, rank_leverage_scores, ridge_leverage_scores
from streamkm.planning.sketch_choice import COLUMN_SKETCHES, LANDMARK_SKETCHES, METHODS, KernelSizes, kernel_sizes
from streamkm.sketches import KernelMap
from streamkm.sketches.kernel_columns import KERNELS, Kernel, KernelColumns
from streamkm.sketches.kernel_map import GramFit, inverse_root
from tests import naive
from tests.tables import cases, slow_but

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
        assert kernel_objective(X @ X.T, result.labels, weights) == pytest.approx(result.inertia)


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
        assert gamma_by_rule("rbf", np.ones((10, 3)), 1.0) == 1.0


class TestLandmarks:
    @cases("how", ["uniform", "leverage", "kmeans"])
    @cases("sparse", [False, True])
    def test_choices(self, blobs, how, sparse):
        X = sp.csr_array(np.abs(blobs[0])) if sparse else blobs[0]
        with open_executor(1) as here:
            chosen, everything = (
                choose_landmarks(
                    here, sample_of(X), Kernel("rbf", GAMMA), MapRule("nystroem", how, n, 5), np.random.default_rng(0)
                )
                for n in (20, 500)
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

    def test_kmeans_refuses_wide_means(self):
        X = sp.random_array((5000, 100_000), density=1e-4, format="csr", rng=np.random.default_rng(0))
        with open_executor(1) as here, pytest.raises(InvalidParameterError, match="keeps 1,000 means of 100,000"):
            choose_landmarks(
                here, sample_of(X), Kernel("rbf"), MapRule("nystroem", "kmeans", 1000, 5), np.random.default_rng(0)
            )


class TestColumnSketches:
    @cases("method", COLUMN_SKETCHES)
    def test_is_one_matrix_scaled_to_identity(self, method):
        assert column_sketch(method, 40, 24, 7).shape == (40, 24)
        seeds = [np.eye(40, dtype=np.float32) @ column_sketch(method, 40, 24, seed) for seed in range(200)]
        np.testing.assert_allclose(np.mean([S @ S.T for S in seeds], axis=0), np.eye(40), atol=0.12)

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

    @cases(
        "kernel, weighted, sparse",
        [(name, i % 2 == 0, i // 2 % 2 == 0) for i, name in enumerate(KERNELS) if name != "precomputed"],
    )
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
        lost = np.diag(K) - np.square(naive.dense(fitted.sketch_.apply(given))).sum(axis=1)
        weighed = np.ones(len(X)) if weights is None else weights
        assert fitted.trace_residual_ == pytest.approx(weighed @ lost, rel=1e-3, abs=1e-3)
        at_means = fitted.inertia_ - float(  # the fit stops before the centers are the means, by tol
            fitted.counts_ @ ((fitted.cluster_means_ - fitted.cluster_centers_) ** 2).sum(axis=1)
        )
        assert at_means * (1 - 1e-4) <= exact <= at_means + fitted.trace_residual_ * (1 + 1e-4)

    @cases("method", METHODS)
    def test_every_method_finds_the_rings(self, method):
        X, y = make_circles(500, noise=0.03, factor=0.3, random_state=0)
        fitted = StreamKernelKMeans(2, gamma=4, method=method, n_landmarks=200, random_state=0, progress=False).fit(X)
        assert adjusted_rand_score(y, fitted.labels_) > 0.97
        np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
        most = {"ros": 256, **dict.fromkeys(("two-step", *LANDMARK_SKETCHES[:-1]), 200)}
        assert fitted.n_components_ <= most.get(method, 20)

    @cases(
        "landmarks, fit_on, sparse",
        [("uniform", "all", True), ("leverage", "sample", True), ("leverage", "all", False), ("kmeans", "all", True)],
    )
    def test_every_choice_finds_the_blobs(self, blobs, landmarks, fit_on, sparse):
        X = np.abs(blobs[0])
        fitted = StreamKernelKMeans(
            5, n_landmarks=100, method=Nystroem(landmarks), fit_on=fit_on, random_state=0, progress=False
        ).fit(sp.csr_array(X) if sparse else X)
        best = StreamKernelKMeans(5, n_landmarks=300, rank=300, random_state=0, progress=False).fit(X)
        K = rbf_kernel(X, gamma=best.kernel_.gamma)
        assert fitted.kernel_.gamma == pytest.approx(best.kernel_.gamma)
        assert kernel_objective(K, fitted.labels_) <= 1.02 * kernel_objective(K, best.labels_)

    def test_column_sketches_refuse_many_rows(self):
        X = np.zeros((70_000, 2))
        with pytest.raises(InvalidInputError, match=r"70,000\^2 pairs of rows; at most 4,294,967,296 .*65,536 rows"):
            StreamKernelKMeans(2, method="srht", progress=False).fit(X)


@cases(
    "k, n_landmarks, rank, eps, n_rows, wanted",
    [
        (10, "auto", "auto", None, 60_000, (800, 100)),
        (10, "auto", "auto", 0.5, 8_100_000, (2048, 20)),
        (10, 400, 20, None, 50, (50, 20)),
        (10, 5, 20, None, None, (5, 5)),
        (200, "auto", "auto", 0.1, 10**6, (4000, 2000)),  # a loss is kept: landmarks grow with the rank
        (100, "auto", "auto", None, 10**6, (2048, 256)),  # without, the rank has a limit
        (10, 400, "auto", None, 10**6, (400, 64)),  # Wang, Gittens and Mahoney, remark 3: more than k, no large part
        (10, 4, "auto", None, 10**6, (4, 4)),
        (50, 60, "auto", None, 10**6, (60, 51)),
        (10, 400, "auto", 0.05, 10**6, (400, 200)),
        (10, "auto", "auto", 0.1, 10**5, (1461, 100)),  # as many as theory asks for
    ],
)
def test_sizes(k, n_landmarks, rank, eps, n_rows, wanted):
    assert kernel_sizes(k, n_landmarks, rank, eps, n_rows) == KernelSizes(*wanted)


def test_too_few_columns_for_a_loss_are_said():
    sizes = kernel_sizes(50, "auto", "auto", 0.05, 10**6)
    assert sizes == KernelSizes(2048, 1000)
    assert sizes.short == "eps=0.05 asks for 26,908 columns (coherence 1, constants 1); there are 2,048"
    for enough in (
        kernel_sizes(10, "auto", "auto", 0.1, 10**5),
        kernel_sizes(10, "auto", "auto", None, 10**8),
        kernel_sizes(50, "auto", "auto", 0.05, 1500),  # all rows are landmarks
        kernel_sizes(50, "auto", "auto", 1.5, 10**6),  # promises nothing
        kernel_sizes(3, 500, "auto", 0.5, 10**4, method="sub-gaussian"),
    ):
        assert enough.short == ""
    assert "asks for 100 features; there are 20" in kernel_sizes(10, 2000, 20, 0.1, 10**5).short
    for method in ("fourier", "two-step"):
        assert kernel_sizes(10, "auto", "auto", 0.1, 10**5, method=method).short.startswith("no theorem here")
    for method in COLUMN_SKETCHES:
        assert "columns" in kernel_sizes(10, 101, "auto", 0.1, 10**5, method=method).short
        assert kernel_sizes(10, "auto", "auto", 0.1, None, method=method).n_landmarks > 100
    assert kernel_sizes(10, "auto", 7, None, 10_000, method="ros") == KernelSizes(128, 128)
    assert kernel_sizes(3, 100, "auto", None, 100, method="ros") == KernelSizes(64, 64)
    assert "theorem 1 of Yin" in kernel_sizes(3, "auto", "auto", 0.5, 10**4, method="sub-gaussian").short


def test_a_fit_warns_of_too_few_columns():
    X = np.random.default_rng(0).normal(size=(400, 3))
    kmeans = StreamKernelKMeans(4, n_landmarks=50, eps=0.2, random_state=0, progress=False)
    assert "eps=0.2 asks for 160 columns" in kmeans.plan(X).why_sketch
    assert kmeans.fit(X).n_components_ == 20  # the number was given: no warning
    left = StreamKernelKMeans(4, method="sub-gaussian-entries", eps=0.5, random_state=0, progress=False)
    with pytest.warns(UserWarning, match="eps=0.5 asks for 303 landmarks .* there are 20; pass more"):
        left.fit(X)


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

    @pytest.mark.parametrize("each_entry", [False, True])
    def test_entries_of_a_sub_gaussian_sketch(self, each_entry):
        m, n, method = 300, 10_000, "sub-gaussian-entries" if each_entry else "sub-gaussian"
        mixing = landmark_sketch(method, m, n, np.random.default_rng(0)).T
        drawn = mixing[mixing != 0]
        np.testing.assert_allclose(np.abs(drawn), 1 / np.sqrt(m), rtol=1e-6)
        assert abs(len(drawn) - m * m / 100) < 4 * np.sqrt(m * m / 100)
        n_mixed = sum(len(np.unique(row[row != 0])) == 2 for row in mixing)  # of both signs
        assert n_mixed > m / 2 if each_entry else n_mixed == 0
        assert 0.4 + 0.05 * each_entry < (drawn > 0).mean() < 0.6 - 0.05 * each_entry
        with pytest.raises(InvalidParameterError, match=f'method="{method}" with n_landmarks=2.*about 1,000 landmarks'):
            landmark_sketch(method, 2, 10**6, np.random.default_rng(0))


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


@pytest.mark.slow
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


@pytest.mark.parametrize("fit_on", slow_but(["all"], ["sample", "all"], full=True))
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


@pytest.mark.parametrize("shape", slow_but(["moons"], ["moons", "rings"], full=True))
def test_the_default_width_finds_groups_that_touch_no_plane(shape, tmp_path, caplog):
    X, y = make_moons(20_000, noise=0.05, random_state=0) if shape == "moons" else rings(20_000)
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


def test_the_width_of_neighbours_needs_neighbours():
    kernel = StreamKernelKMeans(2, gamma="neighbors", progress=False)
    with pytest.raises(InvalidInputError, match="the 7th neighbour is at distance 0 from most of 80 sampled rows"):
        kernel.fit(np.eye(2)[[0] * 40 + [1] * 40])
    with pytest.raises(InvalidParameterError, match="gamma=\"neighbors\" with kernel='laplacian'"):
        kernel.set_params(kernel="laplacian").fit(np.eye(9))
