"""Spherical k-means: labels by the angle, exact cosines; sample weights that are all alike change no bit."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.datasets import dump_svmlight_file, make_blobs

from streamkm import CountSketch, IncrementalKMeans, SketchOptions, StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sketches import IdentitySketch
from tests.dask_processes import assert_same_bits
from tests.stores.test_storing import do, write_store
from tests.tables import cases


def spherical(n_clusters=12, **parameters):
    settings = {"random_state": 0, "executor": 2, "progress": False, "metric": "spherical"}
    return StreamKMeans(n_clusters, **{**settings, **parameters})


def directions(n=900, d=20, seed=0):
    """Rows of any length around 15 directions, some of which are wide; positive, for sparse kinds."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(15, d))
    X = centers[rng.integers(0, 15, n)] + rng.normal(size=(n, d)) * rng.uniform(0.2, 1.5, (n, 1))
    return np.maximum(X, 0) * rng.uniform(0.1, 100, (n, 1)) + 1e-3


def as_kind(X, kind):
    return sp.csr_array(X) if kind == "csr" else X.astype(kind)


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@cases(
    "kind, options",
    [
        ("float64", {}),
        ("float32", {"chunk_bytes": 4000}),
        ("float32", {"sketch": CountSketch(8, 0)}),
        ("csr", {"refine": 2, "chunk_bytes": 4000}),
    ],
)
def test_labels_are_by_the_angle_and_the_objective_is_of_cosines(kind, options):
    X = directions()
    fitted = spherical(**options).fit(as_kind(X, kind))
    centers = fitted.model_.centers
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1, rtol=1e-12)
    cosines = unit(X) @ centers.T
    np.testing.assert_array_equal(fitted.labels_, cosines.argmax(axis=1))
    np.testing.assert_array_equal(fitted.predict(as_kind(X * 7, kind)), fitted.labels_)
    np.testing.assert_allclose(fitted.inertia_, 2 * (len(X) - cosines.max(axis=1).sum()), rtol=1e-5)
    np.testing.assert_allclose(-fitted.score(as_kind(X, kind)), fitted.inertia_, rtol=1e-6)
    assert fitted.assign_space_ == "original"
    assert_same_bits(spherical(**options, executor=3).fit(as_kind(X, kind)), fitted)


def test_cosines_are_higher_than_those_of_means():
    X = unit(directions(3000, 30, 1))
    best = max(
        (X @ unit(KMeans(40, n_init=1, random_state=seed).fit(X).cluster_centers_).T).max(axis=1).mean()
        for seed in range(3)
    )
    fitted = spherical(40).fit(X)
    assert (X @ fitted.model_.centers.T).max(axis=1).mean() >= best
    steps = [entry["inertia"] for entry in fitted.history_ if entry["stage"] == "sphere"]
    assert len(steps) >= 2
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(steps))
    assert fitted.possible_gain_ < 0.01


def test_rows_of_zeros_have_a_label_and_no_direction():
    X = directions(300)
    X[::10] = 0
    fitted = spherical(5).fit(X)
    norms = np.linalg.norm(fitted.model_.centers, axis=1)
    assert np.all((np.abs(norms - 1) < 1e-12) | (norms == 0))
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    assert np.isfinite(fitted.inertia_)


def test_stores_of_original_rows_can_be_clustered(tmp_path):
    X = directions().astype("f4")
    store = do(write_store, tmp_path / "s", X, IdentitySketch(20), reader={"chunk_bytes": 9000, "metric": "cosine"})
    fitted = spherical().fit(store)
    np.testing.assert_allclose(np.linalg.norm(fitted.model_.centers, axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    sketched = do(write_store, tmp_path / "c", X, CountSketch(8, 0), reader={"metric": "cosine"})
    with pytest.raises(InvalidParameterError, match='holds sketched rows, and metric="spherical" is for'):
        spherical().fit(sketched)


def test_what_is_refused():
    with pytest.raises(InvalidParameterError, match='assign_space="original"'):
        spherical(sketch=SketchOptions(assign_space="sketch")).fit(directions(50))
    with pytest.raises(InvalidParameterError, match="metric='spherical'"):
        spherical().fit(directions(50)).incremental()


N_ROWS, D = 700, 20
X = make_blobs(N_ROWS, D, centers=6, cluster_std=6.0, random_state=0)[0]
FITS = {
    "dense": (StreamKMeans, X, {}),
    "float32": (StreamKMeans, X.astype(np.float32), {}),
    "sparse": (StreamKMeans, sp.csr_array(X), {}),
    "sample": (StreamKMeans, X, {"sketch": SketchOptions("pca", 5)}),
    "sketch's space": (StreamKMeans, sp.csr_array(X), {"sketch": SketchOptions(n_components=8, assign_space="sketch")}),
    "coreset": (StreamKMeans, X, {"coreset": "sensitivity"}),
    "random": (StreamKMeans, X, {"init": "random", "refine": 1}),
    "once": (StreamKMeans, iter, {}),
    "kernel": (StreamKernelKMeans, X, {"gamma": 1e-3}),
    "text": (StreamKMeans, "text", {}),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "x.svm"
    dump_svmlight_file(X, np.zeros(N_ROWS), str(path))
    return path


def fitted(name, text, sample_weight):
    kind, rows, options = FITS[name]
    rows = text if isinstance(rows, str) else iter([X]) if rows is iter else rows
    return kind(6, random_state=0, progress=False, n_init=1, **options).fit(rows, sample_weight=sample_weight)


@pytest.fixture(scope="module")
def unweighted(text):
    """Each fit without weights, once."""
    return cache(lambda name: fitted(name, text, None))


@cases("name, sample_weight", [(name, (1, np.full(N_ROWS, 2.5))[i % 2]) for i, name in enumerate(FITS)])
def test_equal_weights_are_none(text, unweighted, name, sample_weight):
    none, got, factor = unweighted(name), fitted(name, text, sample_weight), float(np.max(sample_weight))
    np.testing.assert_array_equal(got.labels_, none.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, none.cluster_centers_)
    np.testing.assert_array_equal(got.cluster_means_, none.cluster_means_)
    np.testing.assert_array_equal(got.counts_, factor * none.counts_)
    assert got.inertia_ == factor * none.inertia_
    assert [entry["inertia"] for entry in got.history_] == [factor * entry["inertia"] for entry in none.history_]
    assert got.n_passes_ == none.n_passes_
    if none.plan_.passes > 1 and not isinstance(got, StreamKernelKMeans):
        rows = text if name == "text" else FITS[name][1]
        assert got.score(rows, sample_weight=sample_weight) == factor * none.score(rows)


def test_equal_weights_of_a_stream():
    def stream(first, second):
        kmeans = IncrementalKMeans(6, random_state=0, progress=False)
        return kmeans.partial_fit(X[:300], sample_weight=first).partial_fit(X[300:], sample_weight=second)

    none, ones = stream(None, None), stream(np.ones(300), 1)
    np.testing.assert_array_equal(ones.cluster_centers_, none.cluster_centers_)
    np.testing.assert_array_equal(ones.counts_, none.counts_)
    numbers, arrays = stream(3, None), stream(np.full(300, 3.0), np.ones(400))
    np.testing.assert_array_equal(numbers.cluster_centers_, arrays.cluster_centers_)
    assert numbers.counts_.sum() == pytest.approx(900 + 400)


@cases("name, count", [("dense", 3), ("coreset", N_ROWS + 1), ("once", 3), ("text", N_ROWS + 1)])
def test_equal_weights_are_counted(text, name, count):
    with pytest.raises(InvalidInputError, match=f"sample_weight has {count:,} values; .* has {N_ROWS} rows"):
        fitted(name, text, np.ones(count))


@pytest.mark.parametrize("rows", [X[:50], [X[:25], X[25:50]]], ids=["known", "chunks"])
def test_equal_weights_of_a_stream_are_counted(rows):
    given = rows if isinstance(rows, np.ndarray) else iter(rows)
    with pytest.raises(InvalidInputError, match=r"sample_weight has 49 values; .* has 50 rows"):
        IncrementalKMeans(3).partial_fit(given, sample_weight=np.ones(49))
