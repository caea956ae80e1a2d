"""The bound of the share of changed rows: never below what a loop over all rows finds, and no row too many at rest."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.changed_share import ChangedShare, GapError
from streamkm.cluster.gap_histogram import GapHistogram, histogram_scales
from streamkm.cluster.rows import row_d2, row_d2norms
from tests import naive


class Stream:
    """All rows that were labelled, read again after each move, beside the bound that never reads them."""

    def __init__(self, centers):
        self.centers, self.bound = centers, ChangedShare.empty(centers)
        self.X, self.weights = np.empty((0, centers.shape[1]), np.float32), np.empty(0)
        self.own = np.empty(0, np.int64)  # where the center of each row is now; -1: it is gone
        self.ever = np.empty(0, bool)

    def label(self, X, weights):
        table, gaps = NearestCenters.build(self.centers, np.float32), np.empty(len(X))
        labels = table.labels(X, gaps=gaps)
        histogram = GapHistogram.empty(histogram_scales(self.centers))
        histogram.add(labels, row_d2(X, labels, table), gaps, weights)
        self.bound = self.bound.labelled(histogram, GapError.of(table))
        self.X, self.weights = np.concatenate([self.X, X]), np.concatenate([self.weights, weights])
        self.own = np.concatenate([self.own, labels.astype(np.int64)])
        self.ever = np.concatenate([self.ever, np.zeros(len(X), bool)])

    def move(self, after, came_from):
        self.bound = self.bound.moved(self.centers, after, came_from)
        self.centers, self.own = after, np.where(self.own >= 0, came_from[self.own], -1)
        d2 = naive.d2_matrix(self.X, after)
        own = np.where(self.own >= 0, d2[np.arange(len(d2)), self.own], np.inf)
        self.ever |= own > d2.min(axis=1)

    @property
    def share(self):
        return self.weights[self.ever].sum() / self.weights.sum()


def next_centers(rng, centers, step, births, deaths, merges):
    """Centers that moved by multiples of 1/4, without those that died, in another order; and where each one went."""
    kept = np.sort(rng.permutation(len(centers))[: max(1, len(centers) - deaths)])
    places = rng.permutation(len(kept) + births)
    after = rng.integers(-12, 13, (len(places), centers.shape[1])) / 4.0
    came_from = np.full(len(centers), -1)
    came_from[kept] = places[: len(kept)]
    moving = rng.random(len(kept)) < 0.7
    drift = np.where(moving[:, None], rng.integers(-step, step + 1, (len(kept), centers.shape[1])) / 4.0, 0.0)
    after[came_from[kept]] = centers[kept] + drift
    if merges and len(kept) > 1:
        came_from[kept[0]] = came_from[kept[1]]
    return after, came_from


@settings(deadline=None, max_examples=150)
@given(
    n_clusters=st.sampled_from([1, 2, 3, 8]),
    n_features=st.sampled_from([1, 2, 5]),
    grid=st.booleans(),
    step=st.sampled_from([0, 1, 4]),
    events=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=5),
    seed=st.integers(0, 10_000),
)
def test_it_is_never_below_what_all_rows_tell(n_clusters, n_features, grid, step, events, seed):
    rng = np.random.default_rng(seed)

    def rows():
        X = rng.normal(size=(60, n_features)) * 2
        return (np.round(X) if grid else X).astype(np.float32), rng.integers(0, 4, 60) / 2.0 + 0.5

    centers = rng.integers(-8, 9, (n_clusters, n_features)) / 4.0  # of quarters, so that ties are exact
    stream = Stream(centers)
    stream.label(*rows())
    for births, deaths, merges in events:
        stream.move(*next_centers(rng, stream.centers, step, births, deaths, merges))
        assert stream.bound.share >= stream.share
        stream.label(*rows())
        assert stream.bound.share >= stream.share
    np.testing.assert_allclose(stream.bound.changed + stream.bound.rows.weights.sum(), stream.weights.sum())


@pytest.mark.parametrize("offset", [0.0, 300.0])
@pytest.mark.parametrize("spread", [1e-5, 1.0, 1e5])
def test_it_holds_for_small_moves_of_float32_rows(offset, spread):
    rng = np.random.default_rng(2)
    X = (spread * (offset + rng.normal(size=(4000, 30)))).astype(np.float32)
    stream = Stream(spread * (offset + rng.normal(size=(25, 30))))
    stream.label(X, np.ones(4000))
    for size in (1e-9, 1e-6, 1e-4, 1e-3, 1e-2):
        stream.move(stream.centers + size * spread * rng.normal(size=(25, 30)), np.arange(25))
        assert stream.bound.share >= stream.share
    assert stream.share > 0
    assert stream.bound.share < 0.4


@pytest.mark.parametrize("kind", ["dense", "csr", "lifted"])
@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_errors_of_float32_products_are_bounded(kind, offset):
    rng = np.random.default_rng(7)
    X = (offset + rng.normal(size=(2000, 40))).astype(np.float32)
    X[rng.random(X.shape) < 0.5] = 0
    centers = X[:20] + 0.1 * rng.normal(size=(20, 40))
    table, gaps, d2 = NearestCenters.build(centers, np.float32), np.empty(2000), np.empty(2000)
    rows = X if kind == "dense" else sp.csr_array(X)
    error = GapError.of(table, n_entries=None if kind == "dense" else 40)
    if kind == "lifted":
        labels, _ = table.labels_and_lifted(rows, row_d2norms(rows), gaps, d2)
    else:
        labels = table.labels(rows, gaps=gaps)
        d2 = row_d2(rows, labels, table)
    exact = np.sort(naive.d2_matrix(X, centers), axis=1)
    true_gaps, allowed = exact[:, 1] - exact[:, 0], error.slope * np.sqrt(exact[:, 0]) + error.slack
    assert np.all(np.abs(gaps - true_gaps) <= allowed)
    assert np.all(np.abs(d2 - exact[:, 0]) <= allowed)
    assert np.any(gaps > true_gaps)
    for i in range(100):
        histogram = GapHistogram.empty(histogram_scales(centers))
        histogram.add(labels[i : i + 1], d2[i : i + 1], gaps[i : i + 1])
        found = ChangedShare.empty(centers).labelled(histogram, error).rows
        assert found.least_gaps.min() <= true_gaps[i]
        assert found.farthest.max() >= exact[i, 0]


def test_rows_of_a_center_that_is_gone_have_changed_and_no_others():
    X = np.repeat([[0.0], [10.0], [20.0]], [5, 3, 2], axis=0).astype(np.float32)
    stream = Stream(np.array([[0.0], [10.0], [20.0]]))
    stream.label(X, np.ones(10))
    stream.move(np.array([[0.0], [20.0]]), np.array([0, -1, 1]))
    assert stream.bound.share == stream.share == pytest.approx(0.3)
    joined = Stream(np.array([[0.0], [10.0], [20.0]]))
    joined.label(X, np.ones(10))
    joined.move(np.array([[1.0], [15.0]]), np.array([0, 1, 1]))  # two become one, which keeps the rows of both
    assert joined.bound.share == joined.share == 0


def test_a_new_center_takes_rows_that_it_may_reach_only():
    stream = Stream(np.array([[0.0, 0.0], [10.0, 0.0]]))
    X = np.array([[0.1, 0], [0.1, 0.1], [3, 0], [10, 1], [10, -1]], np.float32)
    stream.label(X, np.ones(5))
    stream.move(np.array([[0.0, 0.0], [10.0, 0.0], [4.0, 0.0]]), np.array([0, 1]))
    assert stream.bound.share == stream.share == pytest.approx(0.2)


def test_it_fades_and_joins():
    rng = np.random.default_rng(4)
    centers, after = rng.normal(size=(2, 6, 3))
    first, second = Stream(centers), Stream(centers)
    for stream, n in ((first, 100), (second, 300)):
        stream.label(rng.normal(size=(n, 3)).astype(np.float32), np.ones(n))
        stream.move(after, np.arange(6))
    assert first.bound.faded(0.25).share == first.bound.share
    joined = first.bound.faded(0.5).joined(second.bound)
    wanted = (50 * first.bound.share + 300 * second.bound.share) / 350
    np.testing.assert_allclose(joined.share, wanted, rtol=1e-12)
    before = joined.rows.farthest.copy()
    joined.joined(first.bound).moved(after, centers, np.arange(6))
    np.testing.assert_array_equal(joined.rows.farthest, before)  # it is a value
