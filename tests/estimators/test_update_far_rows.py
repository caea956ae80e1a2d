"""A few rows far from all clusters: they move, join and split no cluster, and an update tells them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

from streamkm import IncrementalKMeans
from tests.tables import cases

CENTERS = np.random.default_rng(5).normal(0, 8, (6, 6))
N_ROWS = 4000


def night(n):
    rng = np.random.default_rng([6, n])
    which = rng.integers(0, 6, N_ROWS)
    return CENTERS[which] + rng.normal(0, 1, (N_ROWS, 6)), which


def with_wild_cells(n, n_wild=4):
    X, which = night(n)
    X[:n_wild, 0] = 1e5 * np.arange(1, n_wild + 1)
    return X, which


@pytest.fixture(scope="module")
def states():
    """Streams after nine updates, pickled, by the number of clusters."""
    found = {}
    for k in (6, (3, 12)):
        kmeans = IncrementalKMeans(k, random_state=0)
        for n in range(9):
            kmeans.update(night(n)[0])
        found[k] = pickle.dumps(kmeans)
    return found


def agreement(kmeans, which):
    return adjusted_rand_score(which, kmeans.labels_[-N_ROWS:])


@pytest.mark.parametrize("k", [6, (3, 12)])
def test_wild_cells_leave_clusters_as_they_are(states, k):
    kmeans = pickle.loads(states[k])
    X, which = with_wild_cells(9)
    update = kmeans.update(X)
    assert update.drift.verdict == "shifted"
    assert not update.events
    assert "4 rows lie far beyond the clusters: look at feature x0" in str(update)
    assert agreement(kmeans, which) >= 0.99
    assert np.abs(kmeans.cluster_centers_).max() < 40
    assert kmeans.inertia_ < 7 * 10 * N_ROWS
    X, which = night(10)
    assert kmeans.update(X).drift.verdict == "stable"
    assert agreement(kmeans, which) >= 0.99


@cases("share, far", [(0.005, 1e5), (0.02, 1e3), (0.1, 1e5)])
def test_a_new_group_far_away_is_born_at_once(states, share, far):
    kmeans = pickle.loads(states[3, 12])
    for n in (9, 10):
        (X, which), n_new = night(n), int(share * N_ROWS)
        X[:n_new] = far + np.random.default_rng(n).normal(0, 1, (n_new, 6))
        which[:n_new] = 6
        update = kmeans.update(X)
        assert [event.event for event in update.events] == ["born"] * (n == 9)
        assert not update.drift.far_rows
        assert agreement(kmeans, which) >= 0.99


def test_far_sparse_rows_of_a_decayed_stream_are_told_by_number():
    kmeans = IncrementalKMeans(6, random_state=0, half_life=5000)
    for n in range(2):
        kmeans.update(sp.csr_array(night(n)[0]))
    X, which = with_wild_cells(2)
    drift = kmeans.update(sp.csr_array(X), sample_weight=np.full(N_ROWS, 1e-3)).drift
    assert (drift.far_rows, drift.far_feature) == (4, "x0")
    assert agreement(kmeans, which) >= 0.99
