"""Sample weights that are all alike: the clusters of rows without weights, to the bit, on every way a fit takes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file, make_blobs

from streamkm import IncrementalKMeans, SketchOptions, StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from tests.tables import cases

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
