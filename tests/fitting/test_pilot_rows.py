"""Directions that are found on rows read ahead: what is read, what becomes of them where they do not hold, and bits."""

from __future__ import annotations

import logging

import h5py
import numpy as np
import pytest

from streamkm import PCA, CountSketch, StreamKMeans
from streamkm.sources import open_source

D, PER_CHUNK = 300, 20
pytestmark = pytest.mark.filterwarnings("ignore:The last pass estimates")  # no look at more rows


def kmeans(n_clusters=5, **parameters):
    given = {"sketch": PCA(8), "random_state": 0, "refine": 0, "executor": 2, "progress": False}
    return StreamKMeans(n_clusters, **{**given, **parameters})


def rows(n=2800, seed=0):
    """Groups along a few directions, with noise in all."""
    rng = np.random.default_rng(seed)
    along = rng.normal(0, 6, (8, D))
    return (rng.normal(0, 1, (n, 8)) @ along + rng.normal(0, 1, (n, D))).astype(np.float32)


def in_file(path, X):
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(PER_CHUNK, D), compression="gzip", compression_opts=1)
    return open_source(path)


def test_few_rows_are_read_ahead_of_two_passes(small_sample, tmp_path):
    source = in_file(tmp_path / "x.h5", rows())
    estimator = kmeans()
    plan = estimator.plan(source)
    assert (plan.sketch, plan.cluster_on, plan.passes, plan.reads_ahead) == ("pca", "blocks", 2, True)
    assert "read ahead" in dict(plan.lines())["clustering"]
    fitted = estimator.fit(source)
    assert [stage.name for stage in fitted.stages_] == ["ahead", "sketch", "seed", "lloyd", "polish", "assign"]
    assert 280 <= fitted.stages_[0].rows <= 300
    assert [fitted.stages_[i].rows for i in (1, 5)] == [2800, 2800]
    assert fitted.n_passes_ == 2


def test_nothing_is_read_ahead(small_sample):
    plans = [
        kmeans(**given).plan(open_source(rows(n)))
        for given, n in (({"coreset": "uniform"}, 2800), ({"sketch": PCA(8, fit_on="all")}, 2800),
                         ({"sketch": CountSketch(8)}, 2800), ({}, 200), ({}, 3001), ({}, 3000))
    ]  # fmt: skip
    assert [plan.reads_ahead for plan in plans] == 5 * [False] + [True]
    # more rows than are clustered in the time of a pass are sampled
    assert [plan.cluster_on for plan in plans[-2:]] == ["sample", "blocks"]


def test_directions_that_do_not_hold_are_found_anew(small_sample, tmp_path, caplog):
    """Rows apart from all others, where no chunk is read ahead."""
    X = rows()
    X[2000:2700] += 60 * np.random.default_rng(1).normal(0, 1, (700, 30)) @ np.eye(30, D, dtype=np.float32)
    shuffled = X[np.random.default_rng(2).permutation(len(X))]
    X = np.concatenate([X[:2000], X[2700:], X[2000:2700]])  # sorted
    with caplog.at_level(logging.INFO, "streamkm"):
        found = kmeans(chunk_bytes=1 << 20).fit(in_file(tmp_path / "x.h5", X))
    names = [stage.name for stage in found.stages_]
    again = "sketch-all" in names
    assert found.n_passes_ == 2 + again == 2 + ("sketched again" in caplog.text)
    other = kmeans().fit(shuffled)
    assert found.inertia_ <= 1.02 * other.inertia_


def test_a_fit_goes_on_from_the_directions(small_sample, tmp_path, stop):
    source, whole = in_file(tmp_path / "x.h5", rows()), kmeans(chunk_bytes=100_000)
    wanted = whole.fit(source).labels_
    part = kmeans(chunk_bytes=100_000)
    stop(part, source, tmp_path / "c", "directions")
    fitted = part.fit(source, checkpoint=tmp_path / "c")
    assert "ahead" not in [stage.name for stage in fitted.stages_]
    np.testing.assert_array_equal(fitted.labels_, wanted)


@pytest.mark.slow
def test_where_hardly_any_row_is_valid_directions_are_found_on_a_sample_of_all(small_sample):
    X = rows()
    X[np.random.default_rng(4).random(len(X)) < 0.99] = np.nan
    fitted = kmeans(3, sketch=PCA(20), invalid="skip").fit(X)
    assert fitted.plan_.reads_ahead
    assert "sketch-all" in [stage.name for stage in fitted.stages_]
    assert fitted.n_passes_ == 3
    assert (fitted.labels_ >= 0).sum() == np.isfinite(X[:, 0]).sum()
