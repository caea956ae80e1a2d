"""What users of scikit-learn's KMeans rely on, in the order in which they meet it; how centers are rounded."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs
from sklearn.metrics import pairwise_distances, v_measure_score

from streamkm import IncrementalKMeans, StreamKMeans
from streamkm.estimators.labelling import rounded_centers
from tests.tables import cases

MATRICES = {"dense": np.asarray, "csr array": sp.csr_array, "csr matrix": sp.csr_matrix}
CENTERS = np.array([[6.0, 0.0, 0.0, 1.0], [0.0, 6.0, 0.0, 0.0], [0.0, 0.0, 7.0, 3.0]])
X, Y = make_blobs(120, centers=CENTERS, cluster_std=0.8, random_state=3)
HARD = np.random.default_rng(1).normal(size=(400, 6))
STARTS = {
    "k-means++": "k-means++",
    "ls++": "ls++",
    "random": "random",
    "array": CENTERS,
    "list": CENTERS.tolist(),
    "sparse": sp.csr_array(CENTERS),
    "coo matrix": sp.coo_matrix(CENTERS),
    "big endian": CENTERS.astype(">f8"),
    "frame": pd.DataFrame(CENTERS),
    "function": lambda X, n_clusters, random_state: CENTERS.copy(),
}


@pytest.fixture(params=["dense", "csr array"])
def matrix(request):
    """A function that makes rows dense or sparse."""
    return MATRICES[request.param]


def kmeans(n_clusters=3, **parameters):
    return StreamKMeans(n_clusters, **{"random_state": 0, "executor": 1, "progress": False, **parameters})


def incremental(n_clusters=3, **parameters):
    return IncrementalKMeans(n_clusters, **{"random_state": 0, "executor": 1, "progress": False, **parameters})


def as_dtype(rows, dtype):
    return rows.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_example_by_hand(matrix, dtype):
    """Corners of a square weigh 1, 1, 3 and 3; from two of them, one step is all."""
    rows = matrix(np.array([[0, 0], [0, 2], [6, 0], [6, 2]], dtype))
    fitted = kmeans(2, init=[[0, 0], [6, 2]], tol=0).fit(rows, sample_weight=[3, 1, 1, 3])
    assert fitted.labels_.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(fitted.cluster_centers_, [[0, 0.5], [6, 1.5]])
    assert fitted.inertia_ == pytest.approx(2 * (3 * 0.25 + 2.25))
    assert fitted.n_iter_ == 2  # the second finds nothing to move


def test_a_start_that_no_row_is_near_to_is_moved(matrix):
    rows = matrix(np.array([[0.0, 0.0], [0.5, 0.0], [0.5, 1.0], [1.0, 1.0]]))
    fitted = kmeans(2, init=[[0.5, 0.5], [9, 9]], tol=0).fit(rows)
    assert fitted.inertia_ == pytest.approx(0.25)
    assert fitted.labels_[0] == fitted.labels_[1] != fitted.labels_[2] == fitted.labels_[3]


def test_a_start_without_rows_is_moved_by_weight(matrix):
    fitted = kmeans(2, init=[[-1], [50]]).fit(matrix(np.array([[-1.0], [1.0]])), sample_weight=[19, 1])
    assert sorted(fitted.cluster_centers_.ravel()) == pytest.approx([-1, 1])


@cases("start", STARTS)
@pytest.mark.parametrize(("make", "stored"), [(kmeans, "csr array"), (incremental, "dense")])
def test_every_start_finds_groups_that_are_far_apart(make, stored, start):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = make(init=STARTS[start]).fit(MATRICES[stored](X))
    assert v_measure_score(Y, fitted.predict(X)) == 1
    assert fitted.inertia_ > 0
    assert fitted.cluster_centers_.shape == CENTERS.shape


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_weights_decide_where_it_starts(init):
    """Heavy rows are drawn sooner: of two groups, alike but for their weight, one start falls on the heavy one."""
    rows = np.concatenate([HARD, HARD + 100])
    weights = np.repeat([1e-9, 1.0], len(HARD))
    fitted = kmeans(1, init=init, n_init=1, max_iter=1).fit(rows, sample_weight=weights)
    assert (fitted.cluster_centers_ > 90).all()


def test_a_common_factor_of_the_weights_is_no_matter(matrix):
    weights = np.random.default_rng(0).random(len(X))
    one, half = (kmeans(n_init=1).fit(matrix(X), sample_weight=factor * weights) for factor in (1, 0.5))
    np.testing.assert_array_equal(one.labels_, half.labels_)
    np.testing.assert_allclose(one.cluster_centers_, half.cluster_centers_, rtol=1e-6, atol=1e-6)
    assert half.inertia_ == pytest.approx(one.inertia_ / 2)


# ---- kinds of rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances(matrix, dtype):
    fitted = kmeans().fit(as_dtype(matrix(X), dtype))
    centers = fitted.cluster_centers_
    between = fitted.transform(centers)
    np.testing.assert_array_equal(between.diagonal(), 0)  # not only nearly
    tolerance = 1e-5 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(between, pairwise_distances(centers), rtol=tolerance)
    np.testing.assert_allclose(
        fitted.transform(as_dtype(matrix(X), dtype)), pairwise_distances(X.astype(dtype), centers), rtol=tolerance
    )


def test_prediction_leaves_centers_alone(matrix, tmp_path):
    """They may be a memory map that cannot be written."""
    fitted = kmeans().fit(matrix(X))
    np.save(tmp_path / "centers.npy", fitted.cluster_centers_)
    fitted.cluster_centers_ = np.load(tmp_path / "centers.npy", mmap_mode="r")
    np.testing.assert_array_equal(fitted.predict(matrix(X)), fitted.labels_)


def test_a_stream_keeps_its_centers_apart():
    """Half of the rows are zeros: not half of the centers."""
    rows = make_blobs(100, centers=5, random_state=0)[0]
    rows[::2] = 0
    stream = incremental(20, init="random")
    for start in range(0, 100, 10):
        stream.partial_fit(rows[start : start + 10])
    assert (np.abs(stream.cluster_centers_) > 1e-9).any(axis=1).sum() >= 19


def rows_near(offset: float, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(2000, 2)) + offset).astype("f4")


def objective(X: np.ndarray, centers: np.ndarray) -> float:
    away = X.astype("f8")[:, None] - centers.astype("f8")[None]
    return float((away**2).sum(axis=2).min(axis=1).sum())


@pytest.mark.parametrize(("offset", "weight"), [(1e5, None), (-1e7, 3.0)])
def test_inertia_is_the_sum_for_the_centers(offset: float, weight: float | None) -> None:
    X = rows_near(offset)
    km = StreamKMeans(4, random_state=0).fit(X, sample_weight=weight)
    assert km.cluster_centers_.dtype == np.float64
    assert (weight or 1.0) * objective(X, km.cluster_centers_) == pytest.approx(km.inertia_, rel=1e-6)
    assert np.array_equal(km.predict(X), km.labels_)


def test_rounding_that_costs_little_stays() -> None:
    X = rows_near(10.0)
    km = StreamKMeans(4, random_state=0).fit(X)
    assert km.cluster_centers_.dtype == np.float32
    assert objective(X, km.cluster_centers_) == pytest.approx(km.inertia_, rel=1e-6)


def test_rounding_errors_of_float64_do_not_count() -> None:
    rows = rows_near(10.0)[:4]
    centers = np.nextafter(rows.astype("f8"), np.inf)  # means of equal rows, one unit in the last place off
    counts, inertia = np.full(4, 300.0), 0.0
    assert np.array_equal(rounded_centers(centers, counts, inertia, centers, np.dtype("f4")), rows)


@pytest.mark.parametrize("offset", [10.0, 1e7])
def test_streams_keep_the_centers(tmp_path, offset: float) -> None:
    X = rows_near(offset)
    km = IncrementalKMeans(4, random_state=0).partial_fit(X)
    assert km.cluster_centers_.dtype == (np.float32 if offset == 10.0 else np.float64)
    assert objective(X, km.cluster_centers_) == pytest.approx(km.inertia_, rel=1e-6)
    km.save(tmp_path / "m.npz")
    loaded = IncrementalKMeans.load(tmp_path / "m.npz")
    assert loaded.cluster_centers_.dtype == km.cluster_centers_.dtype
    assert np.array_equal(loaded.cluster_centers_, km.cluster_centers_)
    assert np.array_equal(loaded.partial_fit(X[:500]).cluster_centers_, km.partial_fit(X[:500]).cluster_centers_)
