"""What users of dask-ml's KMeans rely on: the same calls on the same kinds of data, alone and in pipelines."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline

from streamkm import StreamKMeans
from tests.tables import cases

da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")

CENTERS = np.array([[-8.0, -8.0], [0.0, 0.0], [8.0, 8.0]])


@pytest.fixture(scope="module")
def blobs():
    """A Dask array (600, 2) in four blocks: three groups far from each other."""
    rng = np.random.default_rng(0)
    X = CENTERS[rng.integers(3, size=600)] + rng.normal(0, 0.5, (600, 2))
    return da.from_array(X, chunks=(150, 2))


def test_fewer_rows_a_block_than_clusters():
    X = da.from_array(np.random.default_rng(0).uniform(size=(20, 2)), chunks=(4, 2))
    assert len(StreamKMeans(8, random_state=0).fit(X).cluster_centers_) == 8


@cases("X", [np.empty((0, 1)), np.empty((1, 0)), np.ones((20, 2), "complex64")])
def test_what_cannot_be_clustered(X):
    for made in (X, da.from_array(X, chunks=X.shape)):
        with pytest.raises(ValueError, match=r"0 sample|0 feature|0 rows|[Cc]omplex"):
            StreamKMeans().fit(made)


@pytest.mark.parametrize("init", ["k-means++", "random", CENTERS + 1])
def test_as_good_as_in_memory(blobs, init):
    X = blobs.compute()
    got = StreamKMeans(3, init=init, random_state=0).fit(blobs)
    wanted = KMeans(3, init=init, n_init=1 if not isinstance(init, str) else 10, random_state=0).fit(X)
    np.testing.assert_allclose(got.inertia_, wanted.inertia_, rtol=1e-9)
    ours, theirs = np.argsort(got.cluster_centers_[:, 0]), np.argsort(wanted.cluster_centers_[:, 0])
    np.testing.assert_allclose(got.cluster_centers_[ours], wanted.cluster_centers_[theirs], rtol=1e-6)
    assert adjusted_rand_score(np.asarray(got.labels_), wanted.labels_) == 1
    np.testing.assert_allclose(
        np.asarray(got.transform(blobs))[:, ours], wanted.transform(X)[:, theirs], rtol=1e-6, atol=1e-9
    )
    assert got.n_iter_ >= 1


def test_partitions_of_unknown_length(blobs):
    """Rows are drawn by their place in their partition, as that in the whole is unknown: one optimum must be found."""
    X = blobs.compute()
    wanted = StreamKMeans(3, random_state=0).fit(X)
    for n_partitions in (2, 7):
        frame = dd.from_pandas(pd.DataFrame(X, columns=list("ab")), npartitions=n_partitions)
        got = StreamKMeans(3, random_state=0).fit(frame)
        np.testing.assert_allclose(got.inertia_, wanted.inertia_, rtol=1e-9)
        assert adjusted_rand_score(wanted.labels_, got.labels_) == 1


def test_empty_blocks():
    X = da.from_array(np.random.default_rng(0).uniform(size=(100, 4)), chunks=((0, 5, 95), (4,)))
    got = StreamKMeans(2, random_state=0).fit_transform(X)
    assert got.chunks == ((0, 5, 95), (2,))
    assert got.compute().shape == (100, 2)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_types(dtype):
    X = da.random.default_rng(0).uniform(size=(100, 2), chunks=(50, 2)).astype(dtype)
    got = StreamKMeans(3, random_state=0).fit(X)
    assert got.labels_.dtype == np.int32
    assert got.dask_labels_.dtype == np.int32
    assert got.cluster_centers_.dtype == dtype
    assert got.transform(X).dtype == dtype
    assert isinstance(got.inertia_, float)


@pytest.mark.parametrize(
    "init", [CENTERS, CENTERS.tolist(), lambda X, n_clusters, random_state: CENTERS], ids=["array", "list", "function"]
)
def test_given_starts_keep_their_order(blobs, init):
    got = StreamKMeans(3, init=init, random_state=0).fit(blobs)
    np.testing.assert_allclose(got.cluster_centers_, CENTERS, atol=0.2)
    np.testing.assert_array_equal(got.labels_, np.abs(blobs.compute()[:, :1] - CENTERS[:, 0]).argmin(axis=1))


@pytest.mark.parametrize("weights", [None, np.ones(600), da.ones(600, chunks=150)])
def test_weights_may_be_a_dask_array(blobs, weights):
    wanted = StreamKMeans(3, random_state=0).fit(blobs)
    got = StreamKMeans(3, random_state=0).fit(blobs, sample_weight=weights)
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.cluster_centers_, wanted.cluster_centers_)


def test_in_a_pipeline_of_dask_ml(blobs):
    preprocessing = pytest.importorskip("dask_ml.preprocessing")
    pipeline = make_pipeline(preprocessing.StandardScaler(), StreamKMeans(3, random_state=0)).fit(blobs)
    labels = np.asarray(pipeline.predict(blobs))
    assert adjusted_rand_score(labels, np.argmin(np.abs(blobs.compute()[:, :1] - CENTERS[:, 0]), axis=1)) == 1
    np.testing.assert_array_equal(labels, pipeline[-1].labels_)
