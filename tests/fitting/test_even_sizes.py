"""Sizes of clusters between a floor and a cap, by prices, and by moves of single rows where these do not suffice."""

import itertools

import duckdb
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm import StreamKMeans
from streamkm.cluster import even_sizes
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.even_sizes import Edges, Moves, SizeBounds
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.fitting import refine
from tests.dask_processes import assert_same_bits
from tests.tables import cases


def normals(n_rows, n_features, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, n_features))


def fitted(X, k, cluster_size, sample_weight=None, labels_to=None, **parameters):
    estimator = StreamKMeans(k, cluster_size=cluster_size, random_state=0, **parameters)
    return estimator.fit(X, sample_weight=sample_weight, labels_to=labels_to)


def sizes_of(estimator, k, weights=None):
    return np.bincount(estimator.labels_, weights, minlength=k)


def nearest(X, centers):
    return np.square(X[:, None] - centers).sum(axis=2).argmin(axis=1)


def objective(X, estimator, weights=1.0):
    return float((weights * np.square(X - estimator.cluster_centers_[estimator.labels_]).sum(axis=1)).sum())


def check(X, k, floor, cap, estimator):
    """Exactly k clusters within both bounds, the exact objective, and labels of prices but for the rows that moved."""
    sizes, balance = sizes_of(estimator, k), estimator.size_balance_
    assert estimator.cluster_centers_.shape[0] == k
    assert floor <= sizes.min()
    assert sizes.max() <= cap
    np.testing.assert_array_equal(sizes, estimator.counts_)
    assert estimator.inertia_ == pytest.approx(objective(X, estimator), rel=1e-9, abs=1e-9)
    assert (estimator.predict(X) != estimator.labels_).sum() == balance["n_moved"]
    assert (balance["smallest"], balance["largest"]) == (sizes.min(), sizes.max())
    assert balance["inertia_after"] == estimator.inertia_


@cases(
    "k, cluster_size, floor, cap",
    [
        (20, (100, 100), 100, 100),
        (30, (1.0, 1.0), 66, 67),  # 66.7 rows each: to within one row
        (20, (None, 110), 0, 110),
        (20, (95, None), 95, 2000),
        (1, (0.5, 2.0), 2000, 2000),
    ],
)
def test_sizes_keep_their_bounds(k, cluster_size, floor, cap):
    X = normals(2000, 5)
    estimator = fitted(X, k, cluster_size)
    check(X, k, floor, cap, estimator)
    assert estimator.inertia_ <= 1.05 * StreamKMeans(k, random_state=0).fit(X).inertia_


def test_tight_sizes_cost_little_more_than_the_best_assignment():
    """The best equal sizes for these centers, by the Hungarian method."""
    X = normals(300, 4)
    estimator = fitted(X, 10, (30, 30))
    d2 = np.square(X[:, None] - np.repeat(estimator.cluster_centers_, 30, axis=0)).sum(axis=2)
    best = float(d2[scipy.optimize.linear_sum_assignment(d2)].sum())
    assert best - 1e-9 <= estimator.inertia_ <= 1.002 * best


@cases(
    "X, k, size",
    [
        (np.ones((100, 3)), 10, 10),  # all equal
        (np.concatenate([np.zeros((300, 4)), normals(300, 4)]), 20, 30),  # half of them equal
        (np.concatenate([normals(540, 4), 100 + normals(60, 4)]), 40, 15),  # a group that has no room of its own
        (np.concatenate([normals(599, 4), np.full((1, 4), 1e5)]), 10, 60),  # one far row
        (normals(40, 3), 40, 1),  # as many clusters as rows
    ],
)
def test_rows_that_prices_cannot_part_are_moved(X, k, size):
    check(X, k, size, size, fitted(X, k, (size, size)))


def test_small_clusters_that_lie_near_no_row_are_filled():
    """Forty groups far apart, uneven, and fewer than clusters: clusters that few rows name have to be filled."""
    rng = np.random.default_rng(1)
    groups, shares = 6 * rng.normal(size=(40, 16)), rng.dirichlet(np.full(40, 0.5))
    X = groups[rng.choice(40, 12_000, p=shares)] + rng.normal(size=(12_000, 16))
    check(X, 150, 76, 84, fitted(X, 150, (0.95, 1.05)))


def test_moves_go_on_until_sizes_keep_their_bounds(monkeypatch):
    """Few rows are kept in a pass, and many equal ones must go."""
    monkeypatch.setattr(even_sizes, "EDGE_ROWS", 64)
    monkeypatch.setattr(even_sizes, "ROWS_PER_CLUSTER", 1)
    X = np.concatenate([np.zeros((300, 4)), normals(300, 4)])
    check(X, 20, 30, 30, fitted(X, 20, (30, 30)))


def test_moves_go_on_where_a_killed_fit_ended(monkeypatch, tmp_path):
    """Rows that moved before the end stay where they are, bit by bit."""
    monkeypatch.setattr(even_sizes, "EDGE_ROWS", 64)
    monkeypatch.setattr(even_sizes, "ROWS_PER_CLUSTER", 1)
    np.save(tmp_path / "x.npy", np.concatenate([np.zeros((300, 4)), normals(300, 4)]))
    whole, tuned, calls = fitted(str(tmp_path / "x.npy"), 20, (30, 30)), refine._tuned, []

    def stop(*given):
        calls.append(given)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return tuned(*given)

    estimator = StreamKMeans(20, cluster_size=(30, 30), random_state=0)
    monkeypatch.setattr(refine, "_tuned", stop)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(str(tmp_path / "x.npy"), checkpoint=tmp_path / "begun")
    estimator.fit(str(tmp_path / "x.npy"), checkpoint=tmp_path / "begun")
    assert len(calls) == whole.n_passes_  # the first pass aside, and one pass twice
    np.testing.assert_array_equal(estimator.labels_, whole.labels_)
    assert estimator.size_balance_ == whole.size_balance_


def test_sizes_that_miss_their_bounds_are_told():
    """No rows of weight 3 and 5 are clusters of weight 4."""
    with pytest.warns(StreamkmWarning, match=r"miss the bounds of cluster_size by [0-9]+ rows in all; widen") as told:
        estimator = fitted(normals(20, 3), 20, (1.0, 1.0), np.tile([3.0, 5.0], 10))
    assert told[0].filename == __file__
    assert estimator.counts_.max() == estimator.size_balance_["largest"] >= 5


def test_clusters_of_few_far_rows_are_given_up():
    """Six pairs of rows far out have a cluster each without bounds; filled up, these would hold rows from far away."""
    X = np.concatenate([np.repeat(10 * normals(20, 4), 100, axis=0), 100 * normals(6, 4, seed=1).repeat(2, axis=0)])
    X += 0.1 * normals(len(X), 4, seed=2)
    estimator, far = fitted(X, 26, (0.5, 3.0)), float(np.square(X[-12:]).sum())
    check(X, 26, 39, 232, estimator)
    assert estimator.inertia_ < 1.5 * far


def test_centers_move_to_where_rows_are():
    """Sixty rows far away fill four clusters of fifteen, and no row crosses over."""
    X = np.concatenate([normals(540, 4), 100 + normals(60, 4)])
    assert fitted(X, 40, (14, 16)).inertia_ < 1.2 * StreamKMeans(40, random_state=0).fit(X).inertia_


def test_rounds_go_on_while_the_objective_falls():
    """A hundred and twenty uneven groups for 25 clusters: bounds cost 7 % of the objective, 9 % after three rounds."""
    rng = np.random.default_rng(0)
    groups = 3 * rng.normal(size=(120, 30))
    X = groups[rng.choice(120, 8000, p=rng.dirichlet(np.ones(120)))] + rng.normal(size=(8000, 30))
    fits = [
        [StreamKMeans(25, cluster_size=size, random_state=seed).fit(X) for seed in range(3)]
        for size in (None, (0.9, 1.1))
    ]
    plain, even = (np.array([fit.inertia_ for fit in each]) for each in fits)
    assert (even / plain).mean() < 1.08


@given(st.integers(0, 10**6), st.integers(20, 120), st.integers(1, 12), st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=15)
def test_random_bounds(seed, n_rows, k, low, high):
    rng = np.random.default_rng(seed)
    X = np.round(rng.normal(size=(n_rows, 2)), 1)
    floor, cap = int(low * (n_rows // k)), int(-(-n_rows // k) * (1 + high))
    check(X, k, floor, cap, fitted(X, k, (floor, cap)))


def test_weights_count():
    X, weights = normals(2000, 4), np.random.default_rng(1).uniform(0.5, 1.5, 2000)
    estimator, mean = fitted(X, 20, (0.97, 1.03), weights), weights.sum() / 20
    sizes = sizes_of(estimator, 20, weights)
    assert 0.97 * mean - 1e-6 <= sizes.min()
    assert sizes.max() <= 1.03 * mean + 1e-6
    assert estimator.inertia_ == pytest.approx(objective(X, estimator, weights), rel=1e-9)
    np.testing.assert_allclose(estimator.counts_, sizes)


def test_equal_weights_count():
    """Rows of weight 2 fill bounds twice as fast; weights that are equal change no fit otherwise."""
    X = normals(1000, 4)
    estimator = fitted(X, 10, (180, 220), np.full(1000, 2.0))
    assert estimator.counts_.sum() == 2000
    check(X, 10, 90, 110, fitted(X, 10, (90, 110)))
    assert 180 <= estimator.counts_.min() <= estimator.counts_.max() <= 220
    np.testing.assert_array_equal(2 * sizes_of(estimator, 10), estimator.counts_)
    with pytest.raises(InvalidParameterError, match="hold 900 to 1,100, and there are 2,000"):
        fitted(X, 10, (90, 110), np.full(1000, 2.0))


@cases(
    "cluster_size, message",
    [
        ((110, 120), "20 clusters of 110 to 120 hold 2,200 to 2,400, and there are 2,000 rows"),
        ((0, 90), "hold 0 to 1,800, and there are 2,000"),
        ((120, 90), "cannot be kept"),
        ((1.1, None), "cannot be kept"),
        ((1,), "a floor and a cap"),
        ((-1, 2), "a floor and a cap"),
        ((1, 2, "hard"), "a floor and a cap"),
    ],
)
def test_impossible_bounds_are_refused_before_rows_are_read(cluster_size, message):
    X = normals(2000, 2)
    for call in ("plan", "fit"):
        with pytest.raises(InvalidParameterError, match=message):
            getattr(StreamKMeans(20, cluster_size=cluster_size), call)(X)


def test_rows_that_can_be_read_once_are_refused():
    with pytest.raises(InvalidInputError, match=r"read only once, and cluster_size=\(0.5, 2.0\) needs another pass"):
        fitted(iter([normals(50, 2)]), 5, (0.5, 2.0))


def test_soft_bounds_move_no_row():
    X = np.concatenate([np.zeros((300, 4)), normals(300, 4)])
    estimator = fitted(X, 20, (30, 30, "soft"))
    np.testing.assert_array_equal(estimator.predict(X), estimator.labels_)
    assert estimator.size_balance_["n_moved"] == 0
    assert sizes_of(estimator, 20).max() > 30


@cases(
    "parameters",
    [
        {"metric": "cosine"},
        {"metric": "spherical"},
        {"sketch": "pca"},
        {"coreset": None},
        {"refine": 1},
    ],
)
def test_other_fits_keep_sizes_too(parameters):
    X = normals(1500, 600 if "sketch" in parameters else 8) + 0.5
    sizes = sizes_of(fitted(X.astype(np.float32), 15, (0.9, 1.1), **parameters), 15)
    assert sizes.min() >= 90
    assert sizes.max() <= 110


@cases("n_features", [300, 3000])
def test_sparse_rows(n_features):
    X = sp.random_array((2000, n_features), density=0.02, format="csr", rng=np.random.default_rng(0))
    check(X.toarray(), 10, 180, 220, fitted(X, 10, (180, 220)))


def test_prices_are_saved_with_the_model(tmp_path):
    X = normals(2000, 5)
    estimator = fitted(X, 20, (0.98, 1.02))
    estimator.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(StreamKMeans.load(tmp_path / "model.npz").predict(X), estimator.predict(X))
    d2 = np.square(X[:, None] - estimator.cluster_centers_).sum(axis=2)
    np.testing.assert_array_equal(estimator.predict(X), (d2 + estimator.model_.prices).argmin(axis=1))
    assert "for the sizes of clusters" in str(estimator.plan(X))


def test_statements_of_databases_know_prices():
    X = normals(500, 3)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(n=np.arange(500))
    estimator = fitted(frame[["a", "b", "c"]], 10, (50, 50))
    query = estimator.to_sql("duckdb", table="frame", id_column="n")
    found = duckdb.sql(query).df().sort_values("n")["cluster"]
    np.testing.assert_array_equal(found, estimator.predict(frame[["a", "b", "c"]]))


def test_other_centers_have_no_prices():
    """Neither those that are assigned to the attribute, nor those of the estimator that goes on from here."""
    X = normals(600, 3)
    estimator = fitted(X, 10, (60, 60))
    nightly = estimator.incremental()
    np.testing.assert_array_equal(nightly.predict(X), nearest(X, nightly.cluster_centers_))
    for centers in (estimator.cluster_centers_ + 0.1, X[:4]):
        estimator.cluster_centers_ = centers
        np.testing.assert_array_equal(estimator.predict(X), nearest(X, centers))


@pytest.mark.slow
def test_threads_change_no_bit():
    X = normals(30_000, 8).astype(np.float32)
    one, more = (fitted(X, 70, (0.8, 1.2), executor=n_threads) for n_threads in (1, 3))
    np.testing.assert_array_equal(one.labels_, more.labels_)
    np.testing.assert_array_equal(one.cluster_centers_, more.cluster_centers_)
    assert one.inertia_ == more.inertia_


def test_a_cluster_and_a_file_of_labels_change_no_bit(cluster, disk_path):
    X = normals(20_000, 6).astype(np.float32)
    np.save(disk_path / "x.npy", X)
    here, there = (
        fitted(str(disk_path / "x.npy"), 20, (0.99, 1.01), executor=executor, chunk_bytes=100_000)
        for executor in (1, cluster[1])
    )
    assert_same_bits(there, here)
    written = fitted(str(disk_path / "x.npy"), 20, (0.99, 1.01), chunk_bytes=100_000, labels_to=disk_path / "l.zarr")
    np.testing.assert_array_equal(written.labels_[:], here.labels_)
    check(X.astype(np.float64), 20, 990, 1010, here)


@cases("sparse", [False, True])
def test_priced_labels_are_exact(sparse):
    """Against all sums of squared distances and prices, for centers with and without an index."""
    rng = np.random.default_rng(0)
    for k, m in ((7, 3), (600, 40)):
        X, centers, prices = (
            rng.normal(size=(9000, m)).astype(np.float32),
            rng.normal(size=(k, m)),
            rng.random(k) * m / 3,
        )
        X[rng.random(X.shape) < 0.5] = 0
        rows = sp.csr_array(X) if sparse else X
        found = NearestCenters.build(centers, np.float32, prices=prices).labels(rows)
        wide = X.astype(np.float64)
        scores = (centers**2).sum(axis=1) - 2 * wide @ centers.T + prices
        lost = scores[np.arange(len(X)), found] - scores.min(axis=1)
        assert lost.max() < 1e-10


def test_prices_count_among_equal_centers():
    """Distances are all alike, and far smaller than prices."""
    X, prices = normals(50, 3).astype(np.float32), np.array([1e4, 2.0, 1.0, 3.0])
    found = NearestCenters.build(np.full((4, 3), 0.1), np.float32, prices=prices).labels(X)
    np.testing.assert_array_equal(found, np.full(50, 2))


def test_many_moves_are_chosen_in_small_programs(monkeypatch):
    """Of equal rows, whose programs take the longest; and a byte of each row tells where it goes."""
    n_rows, sizes, solve = 30_000, [], scipy.optimize.milp
    own = np.zeros(n_rows, np.int32)
    candidates = np.stack([own, 1 + np.arange(n_rows) % 9, 1 + np.arange(1, n_rows + 1) % 9], axis=1).astype(np.int32)
    edges = Edges(np.arange(n_rows), np.ones(n_rows), candidates, np.tile([0.0, 1.0, 1.0], (n_rows, 1)))

    def solved(costs, **given):
        sizes.append(len(costs))
        return solve(costs, **given)

    monkeypatch.setattr(scipy.optimize, "milp", solved)
    counts = np.append(float(n_rows), np.zeros(9))
    moves = edges.moved(Moves(np.full(n_rows, 10, np.uint8), counts, 0.0), SizeBounds(3000, 3000))
    np.testing.assert_array_equal(moves.counts, np.full(10, 3000))
    np.testing.assert_array_equal(np.bincount(moves.labels), np.append(0, np.full(10, 3000)))
    assert max(sizes) <= 4020
    assert moves.labels.nbytes == n_rows


def test_moves_cost_the_least():
    """Against all ways to move rows of three clusters."""
    rng = np.random.default_rng(3)
    costs = np.concatenate([np.zeros((7, 1)), rng.random((7, 2))], axis=1)
    own = np.array([0, 0, 0, 0, 0, 1, 2])
    candidates = np.stack([(own + step) % 3 for step in range(3)], axis=1).astype(np.int32)
    edges = Edges(np.arange(7), np.ones(7), candidates, costs)
    moves = edges.moved(Moves(np.full(7, 3, np.uint8), np.bincount(own).astype(float), 0.0), SizeBounds(2, 3))

    def cost(chosen):
        sizes = np.bincount(candidates[np.arange(7), chosen], minlength=3)
        return costs[np.arange(7), chosen].sum() if 2 <= sizes.min() <= sizes.max() <= 3 else np.inf

    assert moves.cost == pytest.approx(min(cost(list(chosen)) for chosen in itertools.product(range(3), repeat=7)))
    assert 2 <= moves.counts.min() <= moves.counts.max() <= 3
