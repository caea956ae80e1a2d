"""Sketches that are found on rows, and all rows clustered with them: passes, fixed points, centers, bits, resuming."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.metrics import pairwise_distances_argmin

from streamkm import SketchOptions, StreamKMeans
from streamkm.cluster.held_rows import Spill
from streamkm.planning.memory_budget import AUTO_BYTES
from tests.children import chunks_read
from tests.dask_processes import assert_same_bits
from tests.fitting.test_sketch_fit import wide_rows
from tests.limits import limited
from tests.tables import slow_but

pytestmark = pytest.mark.filterwarnings("ignore:The last pass estimates")  # few components, and no look at more rows
K = 12


def kmeans(n_clusters=K, **parameters):
    return StreamKMeans(
        n_clusters, **{"refine": 0, "coreset": None, "random_state": 0, "executor": 2, "progress": False, **parameters}
    )


@pytest.mark.parametrize(("kind", "weighted"), [("pca", True), ("svd", False)])
def test_along_the_directions_centers_are_means_of_all_rows(small_sample, kind, weighted):
    """Lloyd's fixed point, by a naive step on all rows; the means of 300 sampled rows are far from it."""
    X = wide_rows()
    weights = np.random.default_rng(1).integers(0, 3, len(X)) if weighted else np.ones(len(X))
    fitted = kmeans(sketch=SketchOptions(kind, 5), tol=0, max_iter=500).fit(X, sample_weight=weights)
    assert fitted.converged_
    sketched, centers = fitted.sketch_.apply(X), fitted.sketch_.apply(fitted.cluster_centers_)
    labels = pairwise_distances_argmin(sketched, centers)
    means = np.stack([np.average(sketched[labels == c], axis=0, weights=weights[labels == c]) for c in range(K)])
    np.testing.assert_allclose(centers, means, rtol=1e-9, atol=1e-9)
    inertia = weights @ np.square(sketched - means[labels]).sum(axis=1)
    (last,) = [entry["inertia"] for entry in fitted.history_ if entry["stage"] == "lloyd"][-1:]
    np.testing.assert_allclose(last, inertia, rtol=1e-9)
    sampled = kmeans(sketch=SketchOptions(kind, 5), coreset="uniform", tol=0, max_iter=500).fit(
        X, sample_weight=weights
    )
    there = sampled.sketch_.apply(sampled.cluster_means_) - sampled.sketch_.apply(sampled.cluster_centers_)
    assert np.abs(there).max() > 0.1
    assert fitted.inertia_ < sampled.inertia_


@pytest.mark.slow
def test_off_the_directions_centers_are_means_of_the_sample(small_sample):
    """Groups that differ along a direction that was left out: without the sample's part their centers would agree."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 3000)
    X = np.outer(2 * y - 1, [100.0, 0, 10]) + rng.normal(0, 1, (3000, 3)) @ np.diag([1, 0.1, 0.1])
    X = np.hstack([X, rng.normal(0, 30, (3000, 1))])
    fitted = kmeans(2, sketch=SketchOptions("pca", 2)).fit(X)
    means = np.stack([X[fitted.labels_ == label].mean(axis=0) for label in range(2)])
    assert np.abs(means[0] - means[1])[2] > 19
    np.testing.assert_allclose(fitted.cluster_centers_[:, 2], means[:, 2], atol=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("offset", "metric"), [(0.0, "euclidean"), (1e4, "cosine")])
def test_rows_that_lie_as_they_are_read_are_not_copied(small_sample, written, tmp_path, offset, metric):
    """Those of an uncompressed file, far from the origin too, are read again in every step."""
    X = (np.random.default_rng(0).normal(size=(200_000, 60)) + offset).astype(np.float32)
    X[7, 7] = np.nan
    path = tmp_path / "x.npy"
    np.save(path, X)
    roomy = kmeans(coreset=None, max_iter=3, n_init=1, chunk_bytes=1 << 20, invalid="skip", metric=metric)
    tight = clone(roomy).set_params(memory_limit=limited(roomy.plan(str(path)).peak_bytes - (70 << 20), AUTO_BYTES))
    planned = tight.plan(str(path))
    assert (planned.cluster_on, planned.rereads) == ("spilled", True)
    assert "read again in every step" in dict(planned.lines())["bytes written"]
    np.testing.assert_array_equal(tight.fit(str(path)).labels_, roomy.fit(str(path)).labels_)
    assert (roomy.plan_.cluster_on, tight.inertia_) == ("blocks", roomy.inertia_)
    assert sum(written) <= (X.nbytes / 4 if offset else 0)  # blocks in memory are written as they are moved
    tight.fit(str(path), checkpoint=tmp_path / "state")  # which holds what it needs to go on
    np.testing.assert_array_equal(tight.labels_, roomy.labels_)


@pytest.fixture
def written(monkeypatch):
    """Bytes of each block that goes to disk."""
    sizes, write = [], Spill._write

    def counted(self, block):
        held = write(self, block)
        sizes.append(held.path.stat().st_size - held.start)
        return held

    monkeypatch.setattr(Spill, "_write", counted)
    return sizes


@pytest.mark.slow
def test_rows_that_nobody_counts_go_to_disk_when_memory_is_full(written):
    """As long as there is room they stay in memory; the bits are those of the same rows in an array."""
    X = np.random.default_rng(0).normal(size=(300_000, 16)).astype(np.float32)
    n_rows = 10_000
    roomy = kmeans(coreset="auto", max_iter=3, n_init=1, chunk_bytes=n_rows * 64)

    def pieces():
        return (X[start : start + n_rows] for start in range(0, len(X), n_rows))

    needed = roomy.plan(pieces).peak_bytes - roomy.plan(pieces).block_room
    kept = roomy.fit(pieces)
    assert (kept.plan_.cluster_on, written) == ("spilled", [])
    tight = clone(roomy).set_params(memory_limit=limited(needed + (10 << 20), AUTO_BYTES)).fit(pieces)
    room = tight.plan_.block_room
    # all that is above the room, but for what was left of it when the first block did not fit
    assert 0 <= sum(written) - (72 * len(X) - room) <= 72 * n_rows + 1024 * len(written)
    counted = clone(roomy).set_params(coreset=None).fit(X)
    assert counted.plan_.cluster_on == "blocks"
    for fitted in (kept, tight):
        np.testing.assert_array_equal(fitted.labels_, counted.labels_)
        np.testing.assert_array_equal(fitted.cluster_centers_, counted.cluster_centers_)
    assert kept.inertia_ == tight.inertia_ == pytest.approx(counted.inertia_, rel=1e-14)  # arrays are summed in runs


def test_a_fit_goes_on_from_its_directions(tmp_path, stop):
    source = tmp_path / "x.npy"
    np.save(source, wide_rows(4000))
    estimator = kmeans(sketch=SketchOptions("pca", 5, fit_on="all"), chunk_bytes=100_000, n_init=2)
    wanted = clone(estimator).fit(str(source))
    stop(estimator, str(source), tmp_path / "state", "directions")
    estimator.fit(str(source), checkpoint=tmp_path / "state")
    assert_same_bits(estimator, wanted)


@pytest.mark.parametrize(
    ("sketch", "record"), slow_but([("pca", "sketch-all")], [("identity", "sketch"), ("pca", "sketch-all")], full=True)
)
def test_the_pass_of_a_coreset_goes_on_in_the_middle(tmp_path, monkeypatch, stop, sketch, record):
    """What was read for a coreset is not read again."""
    path = tmp_path / "x.npy"
    np.save(path, wide_rows(24_000)[:, :40])  # more than a coreset has
    size = "auto" if sketch == "identity" else 5
    estimator = kmeans(4, sketch=SketchOptions(sketch, size), coreset="sensitivity", chunk_bytes=800_000)
    wanted = clone(estimator).fit(str(path))
    assert wanted.plan_.cluster_on == "coreset"
    stop(estimator, str(path), tmp_path / "state", record, 4)
    read = chunks_read(monkeypatch)
    estimator.fit(str(path), checkpoint=tmp_path / "state")
    n_chunks = wanted.plan_.n_chunks
    assert n_chunks > 6
    assert len(read) == 2 * n_chunks - 3  # the rest of that pass, and the last one
    assert_same_bits(estimator, wanted)


def topic_rows(n_rows=2000, n_features=3000):
    """CSR rows of forty words, most of them of one of twelve topics of different sizes."""
    rng = np.random.default_rng(0)
    topics = np.minimum(rng.geometric(0.2, (n_rows, 1)), K) - 1
    words = topics * 200 + rng.integers(0, 200, (n_rows, 40))
    words = np.where(rng.random(words.shape) < 0.3, rng.integers(0, n_features, words.shape), words)
    X = sp.csr_array((np.ones(words.size, np.float32), words.ravel(), np.arange(0, words.size + 1, 40)))
    X.sum_duplicates()
    return X


def test_wide_sparse_rows_are_all_clustered_by_default(small_sample):
    X, given = topic_rows(), {"coreset": "auto", "refine": "auto", "chunk_bytes": 64_000}
    one, three = (kmeans(executor=each, **given).fit(X) for each in (1, 3))
    assert one.plan_.cluster_on == "blocks"
    assert_same_bits(three, one)
    sampled = kmeans(**given | {"coreset": "uniform"}).fit(X)
    assert sampled.plan_.cluster_on == "sample"
    assert one.inertia_ <= 1.001 * sampled.inertia_


@pytest.mark.slow
def test_the_plain_pipeline_gives_the_same_bits_on_threads_and_on_a_cluster(client):
    """Sketched chunks together, k-means++ and Lloyd on all of them, as the README asks for it."""
    X, given = topic_rows(), {"sketch": SketchOptions("countsketch", 512), "chunk_bytes": 64_000}
    here = kmeans(**given).fit(X)
    assert here.plan_.cluster_on == "blocks"
    assert "as you chose" in dict(here.plan_.lines())["clustering"]
    assert [stage.name for stage in here.stages_] == ["sketch", "seed", "lloyd", "polish", "assign"]
    there = kmeans(**given | {"executor": client}).fit(X)
    assert_same_bits(there, here)
