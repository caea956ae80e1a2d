"""Clusters of rare rows: fewer than k centers are found only where all rows together have fewer distinct ones."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import SketchOptions, StreamKMeans
from streamkm.estimators.labelling import FewClustersWarning
from tests.tables import slow_but

K = 12


def rare(n_rows, n_features, *, n_rare=60, copies=1):
    """Rows of zeros, and a few others at the end."""
    X = np.zeros((n_rows, n_features))
    X[-n_rare * copies :] = np.repeat(np.random.default_rng(0).normal(size=(n_rare, n_features)), copies, axis=0)
    return X


def fitted(X, n_clusters=K, *, weights=None, seed=1, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FewClustersWarning)
        return StreamKMeans(n_clusters, random_state=seed, **options).fit(X, sample_weight=weights)


def objective_apart(X, n_clusters=K):
    """The objective where all rows of zeros have one cluster of their own."""
    others = X[np.any(X != 0, axis=1)]
    return StreamKMeans(n_clusters - 1, random_state=0).fit(others).inertia_


@pytest.mark.parametrize(
    "kind", slow_but(["sparse", "weights"], ["dense", "sparse", "one feature", "weights", "far", "float32"])
)
def test_rare_rows_of_each_kind(kind):
    X = rare(40_000, 1 if kind == "one feature" else 5)
    weights = np.where(np.arange(len(X)) % 2, 1.0, 3.0) if kind == "weights" else None
    rows = {"sparse": sp.csr_array(X), "far": X + 1e6, "float32": X.astype(np.float32)}.get(kind, X)
    found = fitted(rows, weights=weights)
    assert len(found.cluster_centers_) == K
    if weights is None:
        assert found.inertia_ <= 1.03 * objective_apart(X)


@pytest.mark.parametrize(
    ("coreset", "refine"), slow_but([("uniform", "auto")], [("uniform", 0), ("uniform", "auto"), ("sensitivity", 0)])
)
def test_a_coreset_that_missed_them_is_made_up_for_by_all_rows(coreset, refine):
    X = rare(200_000, 3, n_rare=20)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The last pass estimates")  # rows that were added last were not searched
        found = fitted(X, refine=refine, coreset=coreset)
    assert len(found.cluster_centers_) == K
    assert np.bincount(found.labels_, minlength=K).min() > 0
    assert found.inertia_ <= 1.5 * objective_apart(X)


def test_rows_that_a_sketch_maps_to_one_are_told_apart():
    X = sp.csr_array(np.repeat(np.eye(40), 50, axis=0))
    found = fitted(X, 40, sketch=SketchOptions("countsketch", n_components=8))
    assert len(found.cluster_centers_) == 40
    assert found.inertia_ <= 1e-12


def test_fewer_centers_are_told_where_no_other_row_is_distinct(client, tmp_path):
    X = np.zeros((50_000, 5))
    X[7] = 1
    np.save(tmp_path / "one.npy", X)
    for executor in (2, client):
        kmeans = StreamKMeans(5, random_state=0, executor=executor)
        with pytest.warns(FewClustersWarning, match="2 clusters instead of 5: the data have only 2 distinct rows"):
            kmeans.fit(tmp_path / "one.npy")
        assert kmeans.inertia_ == 0
