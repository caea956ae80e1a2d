"""Sketches found on all rows in a pass of their own, and sketches that the caller made: passes, bits, resuming."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import subspace_angles
from sklearn.base import clone
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.metrics import adjusted_rand_score

from streamkm import SketchOptions, StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError
from streamkm.estimators.model_files import summarize
from streamkm.sketches import (
    DATA_DEPENDENT,
    CountSketch,
    FeatureSelection,
    PCASketch,
    PreconditionedSampling,
    RandomProjection,
    SubsampledHadamard,
    TruncatedSVDSketch,
)
from tests.limits import limited
from tests.passes.test_passes import CountingSource, StreamedSource, groups
from tests.tables import cases, slow_but

KINDS = [(kind, sparse) for kind in DATA_DEPENDENT for sparse in (False, True) if not (sparse and kind == "pca")]


def kmeans(n_clusters=3, **parameters):
    return StreamKMeans(n_clusters, **{"random_state": 0, "executor": 2, "progress": False, **parameters})


def wide_rows(n=4000, d=60, seed=0):
    """Rows far from the origin whose variances fall slowly, with a gap behind the fifth direction."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    spread = np.r_[6 * 0.9 ** np.arange(5), np.full(d - 5, 1.5)]
    return (rng.normal(size=(n, d)) * spread) @ turn + 20


def angle(ours, theirs):
    """The largest angle between two subspaces, in radians."""
    return float(subspace_angles(ours, theirs).max())


@cases("kind, sparse", KINDS)
def test_every_row_is_read_once_more(kind, sparse):
    X, y = groups()
    refine = 2 if sparse else 0
    source = CountingSource(sp.csr_array(X) if sparse else X)
    fitted = kmeans(sketch=SketchOptions(kind, 3, fit_on="all"), refine=refine).fit(source)
    assert set(source.read_rows.values()) == {3 + refine}
    assert len(source.read_rows) == len(X)
    assert fitted.n_passes_ == fitted.plan_.passes == 3 + refine
    assert fitted.plan_.fit_passes == 1
    (stage,) = [stage for stage in fitted.stages_ if stage.name == "directions"]
    assert (stage.rows, stage.read_bytes) == (len(X), source.n_bytes)
    assert adjusted_rand_score(y, fitted.labels_) == 1
    np.testing.assert_array_equal(fitted.predict(source), fitted.labels_)


def test_singular_vectors_are_those_of_all_rows(small_sample):
    X = sp.csr_array(wide_rows() * (np.random.default_rng(1).random((4000, 60)) < 0.5))
    weights = np.random.default_rng(2).integers(0, 3, 4000)
    fitted = kmeans(sketch=SketchOptions("svd", 6, fit_on="all")).fit(X, sample_weight=weights)
    repeated = X[np.repeat(np.arange(4000), weights)]
    theirs = TruncatedSVD(6, algorithm="arpack", random_state=0).fit(repeated).components_.T
    assert angle(fitted.sketch_.directions, theirs) < 1e-9
    sampled = kmeans(sketch=SketchOptions("svd", 6, fit_on="sample")).fit(X)
    assert angle(sampled.sketch_.directions, theirs) > 1e-2


def test_principal_directions_are_those_of_all_rows(small_sample):
    X = wide_rows()
    theirs = PCA(5, svd_solver="full").fit(X)
    rows = np.insert(X, [0, 1000, 4000], np.nan, axis=0)
    fitted = kmeans(sketch=SketchOptions("pca", 5, fit_on="all"), invalid="skip").fit(rows)
    assert angle(fitted.sketch_.directions, theirs.components_.T) < 1e-9
    np.testing.assert_allclose(fitted.sketch_.mean, theirs.mean_, rtol=1e-12)
    sampled = kmeans(sketch=SketchOptions("pca", 5, fit_on="sample")).fit(X)
    assert angle(sampled.sketch_.directions, theirs.components_.T) > 1e-2


def test_leverage_draws_are_of_all_rows(small_sample):
    """Features that few rows have, all of them outside the sample's reach: their leverage is not."""
    rng = np.random.default_rng(0)
    X = np.zeros((6000, 40))
    X[:, :38] = rng.normal(0, 0.1, (6000, 38))
    X[2500:2503, 38:] = rng.normal(0, 1, (3, 2)) + 300
    fitted = kmeans(2, sketch=SketchOptions("leverage", 30, fit_on="all")).fit(X)
    vectors = np.linalg.svd(X, full_matrices=False)[2]
    likely = np.square(vectors[:1]).sum(axis=0) > 0.4
    np.testing.assert_array_equal(np.flatnonzero(likely), [38, 39])
    assert {38, 39} <= set(fitted.sketch_.indices)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("kind", "sparse"), [("svd", True), ("leverage", False)])
def test_threads_and_processes_give_the_same_bits(client, kind, sparse):
    X = np.random.default_rng(0).normal(size=(1500, 30)).astype(np.float32)
    X = sp.csr_array(X * (X > 0)) if sparse else X
    options = {"sketch": SketchOptions(kind, 6, fit_on="all"), "chunk_bytes": 30_000, "max_iter": 5, "n_init": 2}
    one, *others = (kmeans(executor=executor, **options).fit(X) for executor in (1, 4, client))
    for other in others:
        assert pickle.dumps(other.sketch_.arrays()) == pickle.dumps(one.sketch_.arrays())
        np.testing.assert_array_equal(other.labels_, one.labels_)
        assert other.inertia_ == one.inertia_


def test_what_cannot_be():
    X = groups()[0]
    with pytest.raises(InvalidParameterError, match=r"fit_on='some'; needed: one of 'sample', 'all'"):
        kmeans(sketch=SketchOptions("svd", fit_on="some")).fit(X)
    with pytest.raises(InvalidInputError, match=r'read only once, and sketch="svd" needs another pass'):
        kmeans(sketch=SketchOptions("svd", 3, fit_on="all")).fit(iter([X]))
    assert kmeans(sketch=SketchOptions("svd", 3, fit_on="all")).fit(StreamedSource(X)).n_passes_ == 3


def test_memory_of_the_sums_is_projected():
    """Sums of d x 1.5 m numbers for every state: some of them are there at once."""
    source = CountingSource(np.zeros((10, 3)), n_features=200_000)
    estimator = kmeans(sketch=SketchOptions("svd", 200, fit_on="all"), memory_limit="64 GiB")
    planned = estimator.plan(source)
    assert planned.memory["directions"] - planned.base_bytes > 3 * 8 * 200_000 * 300
    with pytest.raises(MemoryLimitError, match="stage 'directions'"):
        estimator.set_params(
            memory_limit=limited(planned.base_bytes + 2 * 8 * 200_000 * 300, planned.process_memory)
        ).plan(source)


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


def by_sketch(sketch, **parameters):
    return StreamKMeans(4, **{"sketch": sketch, "random_state": 0, "executor": 2, "progress": False, **parameters})


@pytest.mark.parametrize("name", slow_but(["blocks", "sampling", "selection", "pca"], SKETCHES, full=True))
def test_any_sketch_is_what_a_fit_takes(name, tmp_path):
    X, y = rows()
    sketch = SKETCHES[name]
    for space, data in (("original", X), ("sketch", X if name == "pca" else sp.csr_array(X))):
        fitted = clone(by_sketch(SketchOptions(sketch, assign_space=space))).fit(data)
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
    once = by_sketch(sketch).fit(iter(np.split(X, 8)))
    assert once.n_passes_ == 1
    assert once.assign_space_ == "sketch"
    assert once.cluster_centers_.shape == (4, sketch.n_components)
    twice = by_sketch(sketch).fit(X)
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
        by_sketch(sketch).fit(rows()[0])
