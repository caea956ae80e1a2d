"""`partial_fit` and `merge` of the estimator: any chunks, centers at any moment, streams of several machines."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import normalized_mutual_info_score

from streamkm import StreamKMeans
from streamkm.errors import InvalidInputError, InvalidParameterError


def rows(n=3000, k=6, d=5, seed=0):
    rng = np.random.default_rng(seed)
    centers, labels = rng.normal(0, 10, (k, d)), rng.integers(0, k, n)
    return (centers[labels] + rng.normal(0, 1, (n, d))).astype(np.float32), labels


def kmeans(k=6, **options):
    return StreamKMeans(k, random_state=0, progress=False, **options)


@pytest.mark.parametrize("size", [1, 37, 3000])
@pytest.mark.parametrize("sparse", [False, True])
def test_chunks_of_any_size_give_one_result(size, sparse):
    X, labels = rows(600 if size == 1 else 3000)
    X = sp.csr_array(X) if sparse else X
    stream = kmeans()
    for start in range(0, X.shape[0], size):
        stream.partial_fit(X[start : start + size])
    whole = kmeans().partial_fit(X)
    assert stream.n_samples_seen_ == X.shape[0]
    np.testing.assert_array_equal(stream.cluster_centers_, whole.cluster_centers_)
    assert normalized_mutual_info_score(labels, stream.predict(X)) == 1
    np.testing.assert_allclose(stream.inertia_, -stream.score(X), rtol=1e-6)
    assert stream.counts_.sum() == pytest.approx(X.shape[0])


def test_sorted_rows_do_no_harm():
    X, labels = rows(30_000, k=20)
    found = []
    for order in (np.arange(len(X)), np.argsort(labels, kind="stable")):
        stream = kmeans(20)
        for start in range(0, len(X), 1000):
            stream.partial_fit(X[order[start : start + 1000]])
        found.append(-stream.score(X))
    assert found[1] <= 1.02 * found[0]


def test_centers_come_out_at_any_moment():
    X, _ = rows()
    stream = kmeans().partial_fit(X[:3])  # fewer rows than clusters
    assert len(stream.cluster_centers_) == 3
    for start in range(3, 3000, 999):
        stream.partial_fit(X[start : start + 999])
        assert stream.predict(X[:5]).shape == (5,)
    assert len(stream.cluster_centers_) == 6
    assert not hasattr(stream, "labels_")


def test_weights_stand_for_repetitions():
    X, _ = rows(400)
    weights = np.random.default_rng(1).integers(0, 4, 400)
    weighted = kmeans().partial_fit(X, sample_weight=weights)
    repeated = kmeans().partial_fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.inertia_, repeated.inertia_, rtol=1e-3)
    assert weighted.counts_.sum() == pytest.approx(weights.sum())


def test_a_half_life_forgets_what_was():
    X, _ = rows(2000, k=2)
    stream = kmeans(2, half_life=50).partial_fit(X)
    stream.partial_fit(X + 1000)
    assert (stream.cluster_centers_ > 500).all()
    steady = kmeans(2).partial_fit(X)
    steady.partial_fit(X + 1000)
    assert (steady.cluster_centers_ > 500).all(axis=1).sum() == 1


def test_streams_of_two_machines_are_one_stream():
    X, _ = rows(5000)
    first = kmeans().partial_fit(X[:2000])
    second = kmeans(first_row=2000).partial_fit(X[2000:])
    one = kmeans().partial_fit(X)
    np.testing.assert_array_equal(first.merge(second).cluster_centers_, one.cluster_centers_)
    assert first.n_samples_seen_ == 5000
    with pytest.raises(InvalidParameterError):
        kmeans().partial_fit(X).merge(kmeans(7).partial_fit(X))
    with pytest.raises(InvalidInputError, match="features"):
        kmeans().partial_fit(X).merge(kmeans().partial_fit(X[:, :3]))
    with pytest.raises(NotFittedError):
        kmeans().partial_fit(X).merge(kmeans())


def test_saved_cloned_and_fitted_anew(tmp_path):
    X, _ = rows()
    stream = kmeans().partial_fit(X)
    stream.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(StreamKMeans.load(tmp_path / "model.npz").predict(X), stream.predict(X))
    with pytest.raises(NotFittedError):
        clone(stream).predict(X)
    stream.fit(X[:1000])
    assert len(stream.labels_) == 1000
    assert not hasattr(stream, "stream_")


@pytest.mark.parametrize(("name", "value"), [("half_life", 0), ("half_life", "long"), ("first_row", -1)])
def test_wrong_parameters_are_refused(name, value):
    with pytest.raises(InvalidParameterError, match=rf"{name}=.*needed"):
        kmeans(**{name: value}).partial_fit(rows()[0])
