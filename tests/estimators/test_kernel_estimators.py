"""`StreamKernelKMeans`: scikit-learn's conventions, passes, equal bits, files, weights, invalid rows, errors."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_circles
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from examples.papers.exact import exact_objective, kernel_objective
from streamkm import KernelOptions, Nystroem, StreamKernelKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError, ModelFileError
from streamkm.estimators.model_files import summarize
from streamkm.estimators.validation import parameters_of, plain
from streamkm.planning.sketch_choice import LANDMARK_SKETCHES, METHODS, neighbor_landmarks
from streamkm.sketches import IdentitySketch
from tests.dask_processes import assert_same_bits
from tests.estimators.test_estimators import EXPECTED_FAILURES
from tests.passes.test_passes import CountingSource
from tests.stores.test_storing import do, write_store
from tests.tables import cases


def kernel_kmeans(n_clusters=10, **parameters):
    settings = {"random_state": 0, "executor": 2, "progress": False, "n_init": 1, "n_landmarks": 60, "rank": 20}
    return StreamKernelKMeans(n_clusters, **{**settings, **parameters})


@parametrize_with_checks(
    [StreamKernelKMeans(n_clusters=3, progress=False)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module", params=["dense", "csr"])
def inputs(request, small_digits, small_topics):
    return small_digits.X if request.param == "dense" else small_topics.X[:1000]


@cases("method", METHODS)
@pytest.mark.parametrize(("fit_on", "weighted"), [("sample", False), ("all", True)])
def test_passes_of_every_method(small_digits, method, fit_on, weighted):
    source = CountingSource(small_digits.X[:300])  # which does not say how many rows it has
    weights = np.arange(300) + 1.0 if weighted else None
    fitted = kernel_kmeans(method=method, fit_on=fit_on).fit(source, sample_weight=weights)
    streams = fit_on == "all" and method in ("nystroem", "fourier", "orthogonal-fourier")
    more = 2 * streams + (fit_on == "all" and method in LANDMARK_SKETCHES)
    assert set(source.read_rows.values()) == {fitted.n_passes_} == {2 + more + weighted}
    assert fitted.plan_.passes == fitted.n_passes_
    assert fitted.plan_.counts_first == weighted


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("dense", {"fit_on": "all"}), ("csr", {"method": "ros"}),
        pytest.param("dense", {"method": Nystroem("kmeans")}, marks=(pytest.mark.slow, pytest.mark.full)),
    ],
    indirect=["inputs"],
)  # fmt: skip
def test_threads_and_processes_give_the_same_bits(inputs, client, options):
    inputs = inputs[:600]
    given = {"chunk_bytes": 20_000, "max_iter": 5, **options}
    fits = [kernel_kmeans(executor=executor, **given).fit(inputs) for executor in (1, 3, client)]
    for fitted in fits[1:]:
        assert_same_bits(fitted, fits[0])


@cases("method", METHODS[::2])
def test_labels_are_predictions(inputs, method):
    inputs = inputs[:400]
    fitted = kernel_kmeans(method=method).fit(inputs)
    np.testing.assert_array_equal(fitted.predict(inputs), fitted.labels_)
    np.testing.assert_array_equal(
        np.concatenate([fitted.predict(inputs[i : i + 1]) for i in range(5)]), fitted.labels_[:5]
    )
    distances = fitted.transform(inputs)
    assert distances.shape == (400, 10)
    np.testing.assert_allclose((distances**2).min(axis=1).sum(), fitted.inertia_, rtol=1e-3)
    assert fitted.score(inputs) == pytest.approx(-fitted.inertia_, rel=1e-6)
    assert fitted.counts_.sum() == 400


def test_a_callable_cannot_be_saved(small_digits, tmp_path):
    fitted = kernel_kmeans(kernel=product, rank=5).fit(small_digits.X)
    assert fitted.trace_residual_ is None
    with pytest.raises(ModelFileError, match="Python function"):
        fitted.save(tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


def product(X, landmarks):
    return X.astype(float) @ landmarks.T.astype(float) / 1e4


@pytest.mark.parametrize("fit_on", ["sample", "all"])
def test_weights_are_repetitions(small_digits, fit_on):
    X = small_digits.X[:300]
    weights = np.random.default_rng(0).integers(0, 4, len(X))
    options = {"fit_on": fit_on, "init": X[:10], "n_landmarks": 400, "gamma": 1e-5, "rank": 30, "tol": 0}
    weighted = kernel_kmeans(**options).fit(X, sample_weight=weights)
    repeated = kernel_kmeans(**{**options, "n_landmarks": 900}).fit(np.repeat(X, weights, axis=0))
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-3)
    np.testing.assert_array_equal(np.repeat(weighted.labels_, weights), repeated.labels_)
    np.testing.assert_allclose(weighted.counts_, repeated.counts_)


@pytest.mark.parametrize("fit_on", ["sample", "all"])
def test_invalid_rows_are_left_out(small_digits, fit_on):
    dirty = small_digits.X[:500].astype(np.float64)
    dirty[[3, 77]] = np.nan
    with pytest.raises(InvalidInputError, match=r"NaN in row 3.*invalid"):
        kernel_kmeans(fit_on=fit_on).fit(dirty)
    fitted = kernel_kmeans(fit_on=fit_on, invalid="skip").fit(dirty)
    assert np.flatnonzero(fitted.labels_ == -1).tolist() == [3, 77]
    np.testing.assert_array_equal(fitted.predict(dirty), fitted.labels_)


@pytest.mark.parametrize("method", ["nystroem", "srht"])
def test_the_pseudo_inverse_is_cut_at_a_rank(small_digits, method):
    X = small_digits.X[:300]
    cut = kernel_kmeans(method=Nystroem(method=method, landmark_rank=7), rank=40).fit(X)
    assert np.linalg.matrix_rank(cut.sketch_.apply(X).astype(float), tol=1e-3) == cut.n_components_ == 7
    assert cut.trace_residual_ > kernel_kmeans(method=method, rank=40).fit(X).trace_residual_


def test_sketch_stores_are_refused(small_digits, tmp_path):
    store = do(write_store, tmp_path / "x.zarr", small_digits.X, IdentitySketch(64))
    with pytest.raises(InvalidInputError, match="is a sketch store; kernels need original rows"):
        kernel_kmeans().fit(store)


def test_the_example_of_the_tour(capsys):
    text = (Path(__file__).parents[2] / "examples" / "README.md").read_text()
    start = text.index("from sklearn.datasets import make_circles")
    code = text[start : text.index("```", start)]
    assert "make_circles(20_000, " in code
    names: dict = {}
    exec(code.replace("make_circles(20_000, ", "make_circles(4_000, "), names)
    plain, kernel, inertia, residual = map(float, capsys.readouterr().out.split())
    exact = exact_objective(names["kernel"].kernel_, names["X"], names["kernel"].labels_)
    assert abs(plain) < 0.01
    assert kernel == 1
    assert inertia <= exact <= inertia + residual


def test_plan_says_what_a_fit_does(small_digits):
    plan = kernel_kmeans(n_landmarks="auto", rank="auto", eps=0.5).plan(small_digits.X)
    assert (plan.sketch, plan.n_components, plan.passes) == ("nystroem", 20, 2)
    assert "160 columns" in plan.why_sketch
    assert kernel_kmeans(fit_on="all").plan(small_digits.X).passes == 4


def test_refuses_what_does_not_fit_in_memory(small_digits):
    with pytest.raises(MemoryLimitError, match="fewer n_landmarks"):
        kernel_kmeans(n_landmarks=10**7, rank=10**6, method="fourier").plan(CountingSource(small_digits.X))


@cases(
    "parameters, message",
    [
        ({"kernel": "rfb"}, "kernel='rfb'; needed: one of rbf"),
        ({"gamma": "wide"}, 'gamma=\'wide\'; needed: a finite number above 0, "auto", "neighbors"'),
        ({"kernel": KernelOptions(gamma_factor=-1)}, "gamma_factor=-1; needed: a number above 0"),
        ({"method": Nystroem("best")}, "landmarks='best'"),
        ({"rank": 0}, 'rank=0; needed: an integer from 1 or "auto"'),
        ({"method": Nystroem(landmark_rank=0)}, "landmark_rank=0"),
        ({"init": np.zeros((3, 2))}, "n_clusters=10"),
        ({"refine": 0.5}, "refine="),
    ],
)
def test_refuses_parameters(small_digits, parameters, message):
    with pytest.raises(InvalidParameterError, match=message):
        kernel_kmeans(**parameters).fit(small_digits.X)


def test_refuses_more_clusters_than_rows_and_negative_values(small_digits):
    with pytest.raises(InvalidInputError, match="n_samples=5 should be >= n_clusters=10"):
        kernel_kmeans().fit(small_digits.X[:5])
    with pytest.raises(InvalidInputError, match="negative values"):
        kernel_kmeans(kernel="chi2").fit(-small_digits.X.astype(np.float32))
    with pytest.raises(InvalidInputError, match="init has 3 features; the data have 64"):
        kernel_kmeans(init=np.zeros((10, 3))).fit(small_digits.X)


def rings(n=600):
    return make_circles(n, noise=0.03, factor=0.3, random_state=0)


@pytest.mark.parametrize(("kind", "method"), [("csr", "nystroem"), ("file", "nystroem"), ("dense", "two-step")])
def test_precomputed_values_are_those_of_the_kernel(tmp_path, kind, method):
    X, y = rings()
    K = rbf_kernel(X, gamma=5.0)
    np.save(tmp_path / "K.npy", K)
    given = {"dense": K, "csr": sp.csr_array(K), "file": tmp_path / "K.npy"}[kind]
    options = {"n_landmarks": "auto", "rank": "auto", "method": method}
    wanted = kernel_kmeans(2, gamma=5.0, **options).fit(X)
    fitted = kernel_kmeans(2, kernel="precomputed", **options).fit(given)
    assert adjusted_rand_score(y, fitted.labels_) == 1
    assert fitted.inertia_ == pytest.approx(wanted.inertia_, rel=1e-4)
    assert fitted.trace_residual_ == pytest.approx(wanted.trace_residual_, rel=1e-3, abs=1e-3)
    assert fitted.kernel_.name == "precomputed"
    new = X[::7] + 0.01
    values = rbf_kernel(new, X, gamma=5.0)
    np.testing.assert_array_equal(fitted.predict(values), y[::7] if fitted.labels_[0] == y[0] else 1 - y[::7])
    fitted.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(
        StreamKernelKMeans.load(tmp_path / "model.npz").predict(values), fitted.predict(values)
    )


def test_precomputed_values_of_more_rows_than_landmarks(small_sample):
    """Some columns are enough, then; and the weights of rows and starts go with them."""
    X, _ = rings()
    K, weights = rbf_kernel(X, gamma=5.0), np.random.default_rng(0).random(600)
    fitted = kernel_kmeans(2, kernel="precomputed", init=K[[0, 1]], fit_on="all", n_init="auto").fit(K, None, weights)
    by_rows = kernel_kmeans(2, gamma=5.0, init=X[[0, 1]], fit_on="all", n_init="auto").fit(X, None, weights)
    np.testing.assert_array_equal(fitted.labels_, by_rows.labels_)
    assert fitted.inertia_ == pytest.approx(by_rows.inertia_, rel=1e-4)


def test_precomputed_values_are_cut_on_both_sides():
    assert kernel_kmeans(kernel="precomputed").__sklearn_tags__().input_tags.pairwise
    assert not kernel_kmeans().__sklearn_tags__().input_tags.pairwise
    X, _ = rings(120)
    scores = cross_val_score(kernel_kmeans(2, kernel="precomputed"), rbf_kernel(X, gamma=5.0), cv=3)
    assert np.isfinite(scores).all()


@cases(
    "options, shape, message",
    [
        ({}, (20, 19), "kernel values of all rows with each other; array is 20 x 19"),
        ({"method": "fourier"}, (20, 20), "method='fourier' with kernel=\"precomputed\"; needed: one of 'nystroem'"),
        ({"method": "srht"}, (20, 20), "method='srht'"),
        ({"method": Nystroem("kmeans")}, (20, 20), "landmarks='kmeans' with"),
    ],
)
def test_what_cannot_be_precomputed(options, shape, message):
    with pytest.raises(ValueError, match=message):
        kernel_kmeans(2, kernel="precomputed", **options).fit(np.ones(shape))


@cases("options", [{}, *({"kernel": name} for name in ("laplacian", "polynomial", "sigmoid"))])
@cases("make", [np.asarray, sp.csr_array])
def test_gamma_sees_weights(options, make):
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(60, 5)) * np.repeat([0.1, 10], 30)[:, None], np.repeat([7, 1], 30)
    repeated = kernel_kmeans(2, **options).fit(make(np.repeat(X, weights, axis=0)))
    weighted = kernel_kmeans(2, **options).fit(make(X), sample_weight=weights)
    assert weighted.kernel_.gamma == pytest.approx(repeated.kernel_.gamma, rel=1e-6)
    more, zeros = np.concatenate([X, np.full((9, 5), 1e4)]), np.zeros(9)
    skipped = kernel_kmeans(2, **options).fit(make(more), sample_weight=np.concatenate([weights, zeros]))
    assert skipped.kernel_.gamma == pytest.approx(repeated.kernel_.gamma, rel=1e-6)


def test_the_constructor_takes_20_parameters():
    assert len(inspect.signature(StreamKernelKMeans).parameters) == 20


def same_fit(got, wanted):
    assert_same_bits(got, wanted)
    assert got.kernel_ == wanted.kernel_


def test_options_of_the_kernel_are_those_of_its_values(small_digits):
    X = small_digits.X[:300]
    usual, local = (kernel_kmeans(3, kernel=KernelOptions(gamma_factor=factor)).fit(X) for factor in (1, 4))
    assert local.kernel_.gamma == pytest.approx(4 * usual.kernel_.gamma)
    same_fit(kernel_kmeans(3, gamma_factor=4).fit(X), local)
    fitted = kernel_kmeans(3, kernel=KernelOptions("polynomial", degree=2, coef0=0.5), gamma=0.25).fit(X)
    assert (fitted.kernel_.gamma, fitted.kernel_.degree, fitted.kernel_.coef0) == (0.25, 2, 0.5)
    K = polynomial_kernel(X, degree=2, coef0=0.5, gamma=0.25)
    np.testing.assert_allclose(
        exact_objective(fitted.kernel_, X, fitted.labels_), kernel_objective(K, fitted.labels_), rtol=1e-4
    )


@cases(
    "kernel, method",
    [
        ("chi2", Nystroem("leverage", landmark_rank=9)),
        (KernelOptions("poly", degree=2, coef0=0.5), Nystroem(method="srht", landmark_rank=9)),
        (KernelOptions("rbf", gamma_factor=np.float32(2)), "nystroem"),
    ],
)
def test_parameters_go_round(small_digits, kernel, method, tmp_path):
    X = small_digits.X[:300]
    estimator = clone(kernel_kmeans(3, kernel=kernel, method=method))
    assert (estimator.kernel, estimator.method) == (kernel, method)
    assert "kernel=" in repr(estimator) or kernel == "rbf"
    fitted = estimator.fit(X)
    fitted.save(tmp_path / "model.npz", overwrite=True)
    loaded = StreamKernelKMeans.load(tmp_path / "model.npz")
    assert (plain(loaded.kernel), plain(loaded.method)) == (plain(kernel), plain(method))
    np.testing.assert_array_equal(loaded.predict(X), fitted.labels_)
    same_fit(clone(loaded).set_params(random_state=0, executor=2).fit(X), fitted)
    said = json.loads(json.dumps(summarize(fitted)["parameters"]))
    assert (said["kernel"], said["method"]) == (plain(kernel), plain(method))


def test_a_summary_tells_sizes_and_typical_rows_but_no_features(tmp_path):
    """The features are the kernel's own; a loaded model tells the same."""
    X, _ = make_blobs([200, 100], 2, centers=[[0.0, 0.0], [9.0, 9.0]], random_state=0)
    fitted = StreamKernelKMeans(2, random_state=0, progress=False).fit(X)
    first, second = fitted.summary(rows=X).rows
    assert (first.size, second.size, first.nearest, first.traits) == (200, 100, second.cluster, ())
    assert first.typical[0].text.startswith("x0=")
    distances = fitted.transform(X)[fitted.labels_ == first.cluster, first.cluster]
    assert first.mean_distance == pytest.approx(distances.mean())
    fitted.save(tmp_path / "model.npz")
    loaded = StreamKernelKMeans.load(tmp_path / "model.npz").summary().rows
    assert [(row.size, row.nearest, row.typical) for row in loaded] == [
        (row.size, row.nearest, row.typical) for row in fitted.summary().rows
    ]


@cases("scaled", [{"gamma_factor": 8}, {"kernel": KernelOptions(gamma_factor=8)}])
def test_auto_compares_widths_at_their_own_scale_alone(scaled):
    """At a narrower width than that of neighbours, rows have none, and another BLAS gave another width."""
    assert neighbor_landmarks(parameters_of(StreamKernelKMeans(2))) > 0
    assert neighbor_landmarks(parameters_of(StreamKernelKMeans(2, **scaled))) == 0
