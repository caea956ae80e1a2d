"""`IncrementalKMeans`: any chunks, centers at any moment, streams of several machines; which estimator a file is of."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError
from sklearn.metrics import normalized_mutual_info_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from streamkm import IncrementalKMeans, SketchOptions, StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.estimators.model_files import load_estimator
from tests.tables import cases


def rows(n=3000, k=6, d=5, seed=0):
    rng = np.random.default_rng(seed)
    centers, labels = rng.normal(0, 10, (k, d)), rng.integers(0, k, n)
    return (centers[labels] + rng.normal(0, 1, (n, d))).astype(np.float32), labels


def kmeans(k=6, **options):
    return IncrementalKMeans(k, random_state=0, progress=False, **options)


def batch(k=6, **options):
    """An estimator that streams go on from."""
    return StreamKMeans(k, random_state=0, progress=False, **options)


@pytest.mark.parametrize(("size", "sparse"), [(1, True), (37, False), (3000, True)])
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


@cases("kind", ["float64", "float32", "csr"])
@cases("weight", [None, 2.0])
def test_a_stream_goes_on_from_a_fit(kind, weight):
    """From its clusters, each by its weight: rows of the stream that are few against them move no center far."""
    X, labels = rows(3000)
    X = sp.csr_array(X) if kind == "csr" else X.astype(kind)
    fitted = batch().fit(X, sample_weight=weight)
    centers, counts = fitted.cluster_means_.copy(), fitted.counts_.copy()
    fitted = fitted.incremental().partial_fit(X[:10])
    assert fitted.n_samples_seen_ == 3010
    assert fitted.counts_.sum() == pytest.approx(counts.sum() + 10)
    order = np.argmin(((fitted.cluster_centers_[:, None] - centers) ** 2).sum(axis=2), axis=1)
    np.testing.assert_array_equal(order, np.arange(6))
    sums = centers * counts[:, None]
    np.add.at(sums, fitted.labels_, X[:10].toarray() if kind == "csr" else X[:10])
    grown = counts + np.bincount(fitted.labels_, minlength=6)
    np.testing.assert_allclose(fitted.cluster_centers_, sums / grown[:, None], rtol=1e-3, atol=1e-3)
    assert normalized_mutual_info_score(labels, fitted.predict(X)) == 1
    fitted.partial_fit(X)
    assert fitted.n_samples_seen_ == 6010


STREAMS = ({}, {"half_life": 500.0}, {"preprocess": ["unit"], "metric": "cosine"})


@cases("options, sparse", [(STREAMS[0], True), (STREAMS[1], False), (STREAMS[2], True)])
def test_a_saved_stream_goes_on_as_if_nothing_had_been(tmp_path, options, sparse):
    X, _ = rows(2500)
    X = sp.csr_array(X) if sparse else X
    whole, stopped = kmeans(**options), kmeans(**options)
    for start in range(0, 2500, 700):
        whole.partial_fit(X[start : start + 700])
        stopped.partial_fit(X[start : start + 700])
        stopped.save(tmp_path / "model.npz", overwrite=True)
        stopped = IncrementalKMeans.load(tmp_path / "model.npz")
    for name in ("cluster_centers_", "counts_", "inertia_", "n_samples_seen_", "n_steps_"):
        np.testing.assert_array_equal(getattr(stopped, name), getattr(whole, name))
    np.testing.assert_array_equal(stopped.partial_fit(X).labels_, whole.partial_fit(X).labels_)


def test_a_fit_that_no_stream_goes_on_from(tmp_path):
    X, _ = rows(400)
    in_sketch = batch(sketch=SketchOptions(n_components=2, assign_space="sketch")).fit(X)
    with pytest.raises(InvalidInputError, match="in the space of the sketch alone"):
        in_sketch.incremental()
    with pytest.raises(NotFittedError):
        batch().incremental()
    fitted = batch().fit(X)
    with pytest.raises(InvalidParameterError, match="half_life=0"):
        fitted.incremental(half_life=0)
    stream = fitted.incremental()
    with pytest.raises(ValueError, match="3 features"):
        stream.partial_fit(X[:, :3])
    assert stream.n_samples_seen_ == 400  # as it began
    fitted.save(tmp_path / "model.npz")
    with pytest.raises(InvalidInputError, match=r"was loaded, or knows its clusters .* call fit"):
        StreamKMeans.load(tmp_path / "model.npz").incremental()


@cases("kind", ["float64", "float32", "csr"])
def test_a_stream_is_there_before_it_takes_rows(tmp_path, kind):
    """Its clusters are those of the fit; what comes first may be of another kind, through a file too."""
    X, _ = rows(3000)
    fitted = batch().fit(sp.csr_array(X) if kind == "csr" else X.astype(kind), sample_weight=2.0)
    stream = fitted.incremental(half_life=1e4, first_row=7)
    assert (stream.half_life, stream.first_row, stream.n_steps_) == (1e4, 7, 0)
    assert stream.n_samples_seen_ == 3000
    assert not hasattr(stream, "labels_")
    np.testing.assert_array_equal(stream.predict(X), fitted.labels_)
    np.testing.assert_allclose(stream.cluster_centers_, fitted.cluster_means_, rtol=1e-5)
    np.testing.assert_allclose(stream.counts_, fitted.counts_, rtol=1e-2)  # rows that come later count more
    stream.save(tmp_path / "model.npz")
    for other in (X.astype(np.float64), X, sp.csr_array(X)):
        whole = fitted.incremental(half_life=1e4, first_row=7).partial_fit(other)
        loaded = IncrementalKMeans.load(tmp_path / "model.npz").partial_fit(other)
        for name in ("cluster_centers_", "counts_", "inertia_", "n_samples_seen_", "n_steps_", "seed_"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(whole, name))
        assert (loaded.stream_.next_row, loaded.stream_.is_origin) == (7 + 6 + 3000, False)


def test_what_an_estimator_or_a_file_does_not_have(tmp_path):
    for name in ("partial_fit", "merge"):
        assert not hasattr(batch(), name)
    with pytest.raises(AttributeError, match="no attribute 'n_pases_'"):
        _ = batch().n_pases_
    with pytest.raises(
        AttributeError, match="dask_labels_ is there for Dask input and for fits on a Dask cluster only"
    ):
        _ = batch().fit(rows(50)[0]).dask_labels_
    kmeans().fit(rows(50)[0]).save(tmp_path / "model.npz")
    with pytest.raises(InvalidParameterError, match="was saved by another estimator"):
        StreamKMeans.load(tmp_path / "model.npz")


def test_a_fit_begins_anew_and_has_labels():
    X, _ = rows(900)
    stream = kmeans().partial_fit(X[:, :3])
    stream.fit(X)
    assert (stream.n_features_in_, stream.n_steps_, stream.n_samples_seen_) == (5, 1, 900)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stream)).labels_, stream.predict(X))
    np.testing.assert_array_equal(kmeans().fit_predict(X), stream.labels_)
    np.testing.assert_array_equal(kmeans().fit_transform(X), stream.transform(X))
    assert stream.partial_fit(X).n_samples_seen_ == 1800
    assert not hasattr(kmeans().fit(iter([X])), "labels_")
    scaled = batch(preprocess=["standardize"]).fit(X).incremental()
    with pytest.raises(InvalidInputError, match="'standardize' must see all rows"):
        scaled.fit(X)
    assert scaled.partial_fit(X).n_samples_seen_ == 1800  # a refused fit forgets nothing


@parametrize_with_checks([IncrementalKMeans(n_clusters=3, progress=False)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_labels_and_steps_of_the_last_call(tmp_path):
    X, _ = rows(900)
    np.save(tmp_path / "x.npy", X[600:])
    stream = kmeans().partial_fit(X[:400]).partial_fit(X[400:600])
    assert stream.n_steps_ == 2
    np.testing.assert_array_equal(stream.labels_, stream.predict(X[400:600]))
    stream.partial_fit(tmp_path / "x.npy")
    assert stream.n_steps_ == 3
    copy = pickle.loads(pickle.dumps(stream))  # without rows
    assert not hasattr(copy, "labels_")
    np.testing.assert_array_equal(stream.labels_, stream.predict(X[600:]))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stream)).labels_, stream.labels_)
    stream.partial_fit(iter([X[:50]]))
    assert stream.n_steps_ == 4
    assert not hasattr(stream, "labels_")  # an iterator's rows are gone
    other = kmeans(first_row=950).partial_fit(X)
    assert stream.merge(other).n_steps_ == 5
    assert not hasattr(stream, "labels_")
    stream.fit(X)
    assert len(stream.labels_) == 900
    assert stream.n_steps_ == 1


@cases(
    "name, value",
    [("half_life", 0), ("first_row", -1), ("n_clusters", 0), ("metric", "spherical"), ("invalid", "keep")],
)
def test_wrong_parameters_are_refused(name, value):
    with pytest.raises(InvalidParameterError, match=rf"{name}=.*needed"):
        kmeans().set_params(**{name: value}).partial_fit(rows()[0])


X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)


class Derived(StreamKMeans):
    """Has no line in the registry: its files are read as what it is derived from."""


def rewritten(path, change):
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    header = json.loads(str(arrays["header"]))
    change(header)
    np.savez(path, **{**arrays, "header": np.array(json.dumps(header))})
    return path


def test_streams_are_of_their_estimator(tmp_path):
    IncrementalKMeans(2, random_state=0, progress=False).fit(X).save(tmp_path / "m.npz")
    loaded = load_estimator(tmp_path / "m.npz")
    assert type(loaded) is IncrementalKMeans
    assert loaded.partial_fit(X).n_samples_seen_ == 120


def test_files_name_their_estimator(tmp_path):
    for made, wanted in ((StreamKMeans, StreamKMeans), (Derived, StreamKMeans), (StreamKernelKMeans,) * 2):
        fitted = made(2, random_state=0, progress=False).fit(X)
        path = tmp_path / f"{made.__name__}.npz"
        fitted.save(path)
        loaded = load_estimator(path)
        assert type(loaded) is wanted
        np.testing.assert_array_equal(loaded.predict(X), fitted.labels_, err_msg=made.__name__)
        with pytest.raises(ModelFileError, match=r"saved by 'MeanShift'; this release loads models of StreamKM"):
            load_estimator(rewritten(path, lambda header: header["fit"].update(estimator="MeanShift")))
        with pytest.raises(ModelFileError, match=r"fit\.estimator is 3; needed: str"):
            load_estimator(rewritten(path, lambda header: header["fit"].update(estimator=3)))
