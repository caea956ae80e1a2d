"""The parameter `sketch` in full: each way of writing it is the same fit, and goes into files and out of them."""

from __future__ import annotations

import inspect
import json
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from streamkm import PCA, CountSketch, SketchOptions, StreamKMeans
from streamkm.core.exceptions import CheckpointError, InvalidParameterError
from streamkm.estimators.model_files import summarize
from streamkm.estimators.validation import plain
from streamkm.sketches import PROJECTIONS, RandomProjection, SubsampledHadamard
from tests.dask_processes import assert_same_bits
from tests.tables import cases

D = 90
SEEDED = {
    "countsketch": CountSketch,
    "hadamard": SubsampledHadamard,
    **{kind: partial(RandomProjection, kind=kind) for kind in PROJECTIONS},
}


def rows(n=200):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(4, D)) * 5)[rng.integers(0, 4, n)] + rng.normal(size=(n, D))


def kmeans(sketch, **parameters):
    return StreamKMeans(4, sketch=sketch, **{"random_state": 3, "executor": 1, "progress": False, **parameters})


def same_fit(got, wanted):
    assert_same_bits(got, wanted)
    assert got.sketch_.to_dict() == wanted.sketch_.to_dict()


def test_the_constructor_takes_17_parameters():
    assert len(inspect.signature(StreamKMeans).parameters) == 17


@cases("kind, space", [*((kind, "auto") for kind in SEEDED), ("countsketch", "sketch"), ("gaussian", "sketch")])
def test_a_sketch_without_a_seed_is_the_sketch_of_its_name(kind, space):
    X = sp.csr_array(rows()) if kind == "countsketch" else rows()
    given = kmeans(SketchOptions(SEEDED[kind](16), assign_space=space)).fit(X)
    same_fit(given, kmeans(SketchOptions(kind, 16, assign_space=space)).fit(X))
    assert given.sketch_.is_made
    assert given.plan(X).peak_bytes == given.plan_.peak_bytes
    if space == "auto":
        same_fit(kmeans(SEEDED[kind](16)).fit(X), given)
        same_fit(kmeans(given.sketch_).fit(X), given)


def test_what_else_a_sketch_is_given_is_kept():
    fitted = kmeans(CountSketch(16, nnz_per_feature=4)).fit(rows())
    assert fitted.sketch_.nnz_per_feature == 4
    assert fitted.sketch_.seed == kmeans(CountSketch(16)).fit(rows()).sketch_.seed
    assert kmeans(RandomProjection(16, kind="sparse", density=0.25)).fit(rows()).sketch_.density == 0.25
    assert kmeans(SubsampledHadamard(16, seed=5)).fit(rows()).sketch_ == SubsampledHadamard(16, D, 5)
    wider = kmeans(SubsampledHadamard(16, 200)).fit(rows()).sketch_
    assert (wider.n_features, wider.is_made) == (200, True)


# ---- files

WRITTEN = {
    "name": "signs",
    "options": SketchOptions("countsketch", 16, delta=0.5, fit_on="all", assign_space="sketch"),
    "pca": PCA(6, fit_on="all"),
    "seeded": CountSketch(16, seed=9, nnz_per_feature=2),
    "unseeded": CountSketch(16, nnz_per_feature=2),
    "seed left open": SubsampledHadamard(16, 100),
    "options of one with a seed": SketchOptions(RandomProjection(16, 4, "sparse"), assign_space="sketch"),
    "options of one without": SketchOptions(RandomProjection(16, kind="sparse"), assign_space="sketch"),
}


@cases("name", WRITTEN)
def test_parameters_go_round(name, tmp_path):
    sketch = WRITTEN[name]
    estimator = clone(kmeans(sketch))
    assert estimator.get_params()["sketch"] == sketch
    assert estimator.set_params(sketch="auto").set_params(sketch=sketch).sketch is sketch
    assert "sketch=" in repr(estimator)
    fitted = estimator.fit(rows())
    fitted.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    assert plain(loaded.sketch) == plain(sketch)
    np.testing.assert_array_equal(loaded.predict(rows()), fitted.labels_)
    same_fit(clone(loaded).set_params(random_state=3, executor=1).fit(rows()), fitted)
    assert json.loads(json.dumps(summarize(fitted)["parameters"]))["sketch"] == plain(sketch)


@cases("name", ["pca", "unseeded", "seed left open"])
def test_a_checkpoint_is_of_one_sketch(name, tmp_path, stop):
    sketch, state = WRITTEN[name], tmp_path / "state"
    stop(kmeans(sketch), rows(), state, "found")
    with pytest.raises(CheckpointError, match="sketch"):
        kmeans(SketchOptions("gaussian", 16)).fit(rows(), checkpoint=state)
    same_fit(kmeans(sketch).fit(rows(), checkpoint=state), kmeans(sketch).fit(rows()))


@cases("kind", SEEDED)
def test_a_sketch_without_a_seed_is_not_applied(kind):
    message = "has no (seed|n_features); pass .*StreamKMeans.*which sets"
    for X in (rows(3), sp.csr_array(rows(3))):
        with pytest.raises(InvalidParameterError, match=message):
            SEEDED[kind](16).apply(X)
        with pytest.raises(InvalidParameterError, match=message):
            SEEDED[kind](300).apply(X)
    with pytest.raises(InvalidParameterError, match="n_components=0; needed"):
        SEEDED[kind](0)
    with pytest.raises(InvalidParameterError, match="seed=-1; needed"):
        SEEDED[kind](16, seed=-1)


@cases(
    "sketch, message",
    [
        ("gauss", "sketch='gauss'; needed: one of 'auto', .* CountSketch.2048, nnz_per_feature=8., or SketchOptions"),
        (SketchOptions(SketchOptions()), "sketch=SketchOptions.*; needed: one of"),
        (SketchOptions(n_components=0), '^n_components=0; needed: an integer from 1 or "auto"'),
        (SketchOptions(eps=1), "^eps=1; needed: a number between 0 and 1"),
        (SketchOptions(fit_on="some"), "^fit_on='some'; needed: one of 'sample', 'all'"),
        (SketchOptions(CountSketch(16), 8), "n_components=8 with a countsketch sketch of 16 components; leave it out"),
        (SketchOptions(CountSketch(16), eps=0.5), "eps=0.5 with a countsketch sketch of 16 components; leave it out"),
        (SubsampledHadamard(16, 40), "the hadamard sketch is for other rows than the 90 features"),
    ],
)
def test_wrong_options_are_refused(sketch, message):
    with pytest.raises(InvalidParameterError, match=message):
        kmeans(sketch).fit(rows())


def test_rows_of_an_unknown_width(tmp_path):
    (tmp_path / "x.svm").write_text("0 1:1\n1 3:2\n")
    with pytest.raises(InvalidParameterError, match="needs the number of features beforehand"):
        StreamKMeans(2, sketch=SubsampledHadamard(2)).plan(tmp_path / "x.svm")
    wide = StreamKMeans(2, sketch=SubsampledHadamard(2, 20), random_state=0, progress=False).fit(tmp_path / "x.svm")
    assert wide.sketch_.n_features == 20
