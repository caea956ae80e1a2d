"""Sketches that the caller made: any of them in a fit, saved, resumed; sampled entries in one pass and in two."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from streamkm import SketchOptions, StreamKMeans
from streamkm.core.exceptions import InvalidParameterError
from streamkm.estimators.model_files import summarize
from streamkm.sketches import (
    CountSketch,
    FeatureSelection,
    PCASketch,
    PreconditionedSampling,
    RandomProjection,
    SubsampledHadamard,
    TruncatedSVDSketch,
)
from tests.tables import cases

D = 100


def rows(n=240, seed=0):
    """Four far groups, and their numbers."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    return (rng.normal(0, 3, (4, D))[y] + rng.normal(0, 0.5, (n, D))).astype(np.float32), y


SKETCHES = {
    "blocks": CountSketch(64, 1, nnz_per_feature=4),
    "hadamard": SubsampledHadamard(40, D, 1),
    "signs": RandomProjection(40, 1),
    "gaussian": RandomProjection(40, 1, "gaussian"),
    "sparse": RandomProjection(40, 1, "sparse", 0.1),
    "sampling": PreconditionedSampling(0.3, D, 1),
    "selection": FeatureSelection(np.arange(0, D, 3), np.ones(34)),
    "svd": TruncatedSVDSketch(np.linalg.qr(np.random.default_rng(0).normal(size=(D, 30)))[0]),
    "pca": PCASketch.fit(rows()[0], 10, random_state=0),
}


def kmeans(sketch, **parameters):
    return StreamKMeans(4, **{"sketch": sketch, "random_state": 0, "executor": 2, "progress": False, **parameters})


@cases("name", SKETCHES)
def test_any_sketch_is_what_a_fit_takes(name, tmp_path):
    X, y = rows()
    sketch = SKETCHES[name]
    for space, data in (("original", X), ("sketch", X if name == "pca" else sp.csr_array(X))):
        fitted = clone(kmeans(SketchOptions(sketch, assign_space=space))).fit(data)
        assert adjusted_rand_score(y, fitted.labels_) == 1
        assert fitted.sketch_.to_dict() == sketch.to_dict()
        assert (fitted.n_components_, fitted.plan_.n_components) == (sketch.n_components,) * 2
        assert fitted.plan_.why_sketch == "as given"
        assert fitted.n_passes_ == 2
        assert fitted.cluster_centers_.shape[1] == (D if space == "original" else sketch.n_components)
        fitted.save(tmp_path / "m.npz", overwrite=True)
        loaded = StreamKMeans.load(tmp_path / "m.npz")
        np.testing.assert_array_equal(loaded.predict(data), fitted.labels_)
        assert loaded.sketch.sketch is loaded.sketch_
        again = loaded.set_params(random_state=0, executor=2).fit(data)  # with the sketch that was given
        np.testing.assert_array_equal(again.labels_, fitted.labels_)
        json.dumps(summarize(fitted))


# ---- Pourkamali-Anaraki and Becker


def test_sampled_entries_in_one_pass_and_in_two():
    """One pass: labels, and centers of rotated rows. Two: labels and means of the original rows."""
    X, y = rows(800)
    sketch = PreconditionedSampling(0.2, D, 3)
    once = kmeans(sketch).fit(iter(np.split(X, 8)))
    assert once.n_passes_ == 1
    assert once.assign_space_ == "sketch"
    assert once.cluster_centers_.shape == (4, sketch.n_components)
    twice = kmeans(sketch).fit(X)
    assert twice.n_passes_ == 2
    assert twice.assign_space_ == "original"
    assert twice.distortion_ is None
    for fitted in (once, twice):
        assert adjusted_rand_score(y, fitted.labels_) == 1
    means = np.stack([X[twice.labels_ == label].mean(axis=0) for label in range(4)])
    np.testing.assert_allclose(twice.cluster_means_, means, rtol=1e-4, atol=1e-4)


# ---- what is refused


@cases(
    "sketch, message",
    [
        (PreconditionedSampling(0.5, 90, 0), "the sampling sketch is for other rows than the 100 features"),
        (3, "sketch=3; needed: one of"),
    ],
)
def test_what_does_not_fit_is_refused(sketch, message):
    with pytest.raises(InvalidParameterError, match=message):
        kmeans(sketch).fit(rows()[0])
