"""Weights that fall with time: rows of a call have the age that its time gives them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import IncrementalKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidParameterError

START = datetime(2024, 2, 28, 12)
HOURS = (0, 5, 5, 40)
HALF_LIFE = timedelta(hours=10)
EXACT = {"rtol": 1e-9}


def calls(n_rows=800, k=5):
    """Rows of the same groups, which move, for each call."""
    rng = np.random.default_rng(0)
    centers = 5 * rng.normal(size=(k, 4))
    for _ in HOURS:
        yield (centers[rng.integers(k, size=n_rows)] + 0.3 * rng.normal(size=(n_rows, 4))).astype(np.float32)
        centers = centers + 0.1 * rng.normal(size=centers.shape)


def weights_now(sizes, hours=HOURS):
    """Weights of rows as of the last call."""
    return np.repeat([0.5 ** ((hours[-1] - hour) / 10) for hour in hours], sizes)


def kmeans(**options):
    return IncrementalKMeans(5, half_life=HALF_LIFE, random_state=0, **options)


@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("saved", [False, True])
def test_updates_count_rows_by_their_age(tmp_path, kind, saved):
    estimator, seen, ids = kmeans(), [], []
    for hour, X in zip(HOURS, calls(), strict=True):
        estimator.update(sp.csr_array(X) if kind == "csr" else X, time=START + timedelta(hours=hour))
        seen, ids = [*seen, X.astype(np.float64)], [*ids, estimator.labels_]
        if saved:
            estimator.save(tmp_path / "model.npz", overwrite=True)
            estimator = pickle.loads(pickle.dumps(IncrementalKMeans.load(tmp_path / "model.npz")))
            assert estimator.half_life == HALF_LIFE
    X, weights = np.concatenate(seen), weights_now([800] * 4)
    where = np.searchsorted(estimator.cluster_ids_, np.concatenate(ids))
    counts, sums = np.bincount(where, weights), np.zeros((5, 4))
    np.add.at(sums, where, weights[:, None] * X)
    np.testing.assert_allclose(estimator.counts_, counts, **EXACT)
    np.testing.assert_allclose(estimator.cluster_means_, sums / counts[:, None], rtol=1e-6)
    d2 = np.square(X - estimator.model_.centers[where]).sum(axis=1)
    np.testing.assert_allclose(estimator.inertia_, weights @ d2, rtol=1e-7)
    assert estimator.inertia_error_ == 0
    labels = estimator.relabel(sp.csr_array(X) if kind == "csr" else X, weights)
    np.testing.assert_allclose(estimator.counts_, np.bincount(np.searchsorted(estimator.cluster_ids_, labels), weights))


@pytest.mark.parametrize("n_rows", [800, 9001, 21_000])
def test_rows_of_partial_fit_fade_wherever_they_are_kept(n_rows):
    """In a part that is not complete, in the tree, and in exact totals."""
    estimator, seen = kmeans(), []
    for hour, X in zip(HOURS, calls(n_rows), strict=True):
        estimator.partial_fit(X, time=np.datetime64(START) + np.timedelta64(hour, "h"))
        seen.append(X.astype(np.float64))
    weights = weights_now([n_rows] * 4)
    totals = estimator.stream_.totals()
    np.testing.assert_allclose(totals.weight, weights.sum(), **EXACT)
    np.testing.assert_allclose(totals.sums, weights @ np.concatenate(seen), rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(estimator.stream_.coreset().weights.sum(), weights.sum(), **EXACT)
    np.testing.assert_allclose(estimator.counts_.sum(), weights.sum(), **EXACT)
    estimator.update(X, time=START + timedelta(hours=50))
    np.testing.assert_allclose(estimator.counts_.sum(), weights.sum() / 2 + n_rows, **EXACT)


def test_merged_rows_are_as_of_the_newest_call():
    first, second, *_ = calls()
    one, other = kmeans(), kmeans()
    one.update(first, time=START)
    other.update(second, time=START + HALF_LIFE)
    again = pickle.loads(pickle.dumps(other)).merge(one)
    one.merge(other)
    for both in (one, again):
        np.testing.assert_allclose(both.counts_.sum(), 400 + 800, **EXACT)
        with pytest.raises(InvalidParameterError, match="before 2024-02-28T22"):
            both.update(second, time=START + timedelta(hours=9))
    with pytest.raises(InvalidParameterError, match="half_life=None of the other"):
        one.merge(IncrementalKMeans(5, random_state=0).partial_fit(first))


def test_a_fit_goes_on_as_of_the_first_call():
    first, second, third, _ = calls()
    estimator = StreamKMeans(5, random_state=0).fit(first).incremental(half_life=HALF_LIFE)
    estimator.update(second, time=START)
    np.testing.assert_allclose(estimator.counts_.sum(), 1600, **EXACT)
    estimator.update(third, time=START + HALF_LIFE)
    np.testing.assert_allclose(estimator.counts_.sum(), 1600, **EXACT)


def test_rows_that_are_far_too_old_count_nothing():
    first, second, third, fourth = calls()
    estimator = kmeans()
    estimator.update(first, time=START)
    estimator.update(second, time=START + 2000 * HALF_LIFE)
    np.testing.assert_allclose(estimator.counts_.sum(), 800, **EXACT)
    estimator.partial_fit(third, time=START + 4000 * HALF_LIFE)
    estimator.update(fourth, time=START + 6000 * HALF_LIFE)
    np.testing.assert_allclose(estimator.counts_.sum(), 800, **EXACT)
    assert np.isfinite(estimator.inertia_)


def test_times_that_cannot_be():
    X, *_ = calls()
    with pytest.raises(InvalidParameterError, match=r"pass time=datetime\.datetime"):
        kmeans().update(X)
    with pytest.raises(InvalidParameterError, match=r"pass time=datetime\.datetime"):
        kmeans().fit(X)
    for given in ("2024-01-01", 5, np.datetime64("NaT")):
        with pytest.raises(InvalidParameterError, match=r"needed: a datetime\.datetime or numpy\.datetime64"):
            kmeans().partial_fit(X, time=given)
    with pytest.raises(InvalidParameterError, match="leave time out"):
        IncrementalKMeans(5, half_life=100).partial_fit(X, time=START)
    for half_life in (timedelta(0), -HALF_LIFE, np.timedelta64(1, "h"), 0):
        with pytest.raises(InvalidParameterError, match="half_life="):
            IncrementalKMeans(5, half_life=half_life).partial_fit(X, time=START)
    estimator = kmeans().fit(X, time=START.replace(tzinfo=timezone(timedelta(hours=2))))
    counts = estimator.counts_
    with pytest.raises(InvalidParameterError, match="is before 2024-02-28T10"):
        estimator.update(X, time=START.replace(tzinfo=UTC) - timedelta(hours=3))
    np.testing.assert_array_equal(estimator.counts_, counts)
    estimator.update(X, time=START - timedelta(hours=1))


def test_a_call_that_fails_does_not_age_what_was():
    X, *_ = calls()
    estimator = kmeans()
    estimator.update(X, time=START)
    wrong = X.copy()
    wrong[-1, 0] = np.nan
    for take in (estimator.update, estimator.partial_fit):
        with pytest.raises(ValueError, match="NaN in row 799"):
            take(wrong, time=START + HALF_LIFE)
        assert estimator.counts_.sum() == 800
    estimator.update(X, time=START)
    np.testing.assert_allclose(estimator.counts_.sum(), 1600, **EXACT)
