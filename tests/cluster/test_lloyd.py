"""Clustering on blocks: k-means++, Lloyd against its naive twin and scikit-learn, empty clusters, split-and-merge."""

from __future__ import annotations

import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_blobs

from streamkm.cluster.blocks import Blocks, added
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks, cut, label_sums
from streamkm.cluster.lloyd import LloydResult, lloyd, original_centers, polish
from streamkm.cluster.rows import NO_WEIGHTS, Block, Totals, add_rows, row_d2, row_d2norms
from streamkm.cluster.sampling.row_sample import Sample, SampleCollector, SampleRule, first_rows
from streamkm.cluster.seeding import init
from streamkm.cluster.seeding.init import Starts, Streams, start_centers
from streamkm.cluster.seeding.kmeans_plusplus import kmeans_plusplus, merged_to, random_rows, recombined, seedings
from streamkm.cluster.seeding.search_set import SAMPLED
from streamkm.cluster.seeding.split_merge import split_merge
from streamkm.core.matrix import matrix_bytes
from streamkm.engine import open_executor
from streamkm.engine.records import pack, unpack
from streamkm.sketches import CountSketch
from tests import naive
from tests.tables import cases

pytestmark = pytest.mark.usefixtures("small_pieces_throughout")

FLOATS = (np.float32, np.float64)


@pytest.fixture
def executor():
    with open_executor(2) as opened:
        yield opened


def rng(seed=0):
    return np.random.default_rng(seed)


def streams(seed=0):
    return Streams(rng(seed), rng(seed + 1))


def one_block(X, weights=None):
    return Block(X, row_d2norms(X), NO_WEIGHTS if weights is None else np.asarray(weights, np.float64))


def held(executor, blocks, n_components):
    """Blocks as a pass leaves them."""
    return Blocks(
        executor,
        tuple(blocks),
        sum(block.n_rows for block in blocks),
        n_components,
        blocks[0].X.dtype,
        sum(block.total_weight() for block in blocks),
        sum(block.total_d2norm() for block in blocks),
        max(block.largest_d2norm() for block in blocks),
        isinstance(blocks[0].X, np.ndarray),
    )


def in_blocks(executor, X, n_blocks=3, weights=None):
    return held(executor, cut(one_block(X, weights), n_blocks), X.shape[1])


def blobs(n=600, k=6, d=5, dtype=np.float64, seed=0, **options):
    X, y = make_blobs(n, d, centers=k, random_state=seed, **options)
    return X.astype(dtype), y


def stored(X, sparse):
    return sp.csr_array(X) if sparse else X


# ---- seeding


@cases("sparse", [False, True])
@cases("dtype", FLOATS)
def test_kmeans_plusplus_finds_every_distinct_row_among_duplicates_and_no_more(sparse, dtype):
    # few rows of most kinds: drawing uniformly would miss some
    distinct = rng().integers(-9, 10, (12, 4)).astype(dtype)  # whole numbers: equal rows have a distance of 0
    X = distinct[np.repeat(np.arange(12), [500, 300, 100, 1, 1, 1, 1, 1, 1, 1, 1, 1])]
    for n_clusters in (12, 15):
        centers = kmeans_plusplus(one_block(stored(X, sparse)), n_clusters, rng=rng(n_clusters))
        np.testing.assert_array_equal(np.unique(centers, axis=0), np.unique(distinct, axis=0))
        assert len(centers) == 12


@cases(
    "n_clusters, sparse, dtype",  # of 2, 4 and 9 trials, more than a lane
    [(1, False, np.float32), (20, True, np.float64), (1200, False, np.float64), (1200, True, np.float32)],
)
def test_threads_that_share_kmeans_plusplus_change_nothing(executor, n_clusters, sparse, dtype, monkeypatch):
    weighted = sparse == (dtype == np.float64)
    X = blobs(1501, 20, 7, dtype)[0]
    block = one_block(stored(X, sparse), rng().random(1501) if weighted else None)
    alone = kmeans_plusplus(block, n_clusters, rng=rng(3), executor=executor)
    monkeypatch.setattr("streamkm.cluster.seeding.kmeans_plusplus.SHARED_ENTRIES", 0)
    np.testing.assert_array_equal(kmeans_plusplus(block, n_clusters, rng=rng(3), executor=executor), alone)
    np.testing.assert_array_equal(kmeans_plusplus(block, n_clusters, rng=rng(3)), alone)


def test_kmeans_plusplus_draws_by_squared_distance_to_the_centers():
    """Far from the origin, all rows are far from it alike; only distances to centers tell the one outlier."""
    X = np.full((400, 2), 1000.0) + 0.01 * rng().normal(size=(400, 2))
    X[123] += 50
    for seed in range(30):
        centers = kmeans_plusplus(one_block(X), 2, rng=rng(seed))
        assert (centers == X[123]).all(axis=1).any()


def test_seeding_draws_no_row_without_weight():
    X = np.arange(40.0).reshape(20, 2)
    weights = np.zeros(20)
    weights[[3, 8, 15]] = [1, 2, 3]
    for seed in range(10):
        centers = kmeans_plusplus(one_block(X, weights), 3, rng=rng(seed))
        np.testing.assert_array_equal(np.unique(centers, axis=0), X[[3, 8, 15]])
        centers = random_rows(one_block(X, weights), 3, rng=rng(seed))
        np.testing.assert_array_equal(np.unique(centers, axis=0), X[[3, 8, 15]])


# ---- Lloyd


@cases("sparse", [False, True])
@cases("dtype, weighted, n_blocks", [(np.float32, True, 0), (np.float64, False, 1), (np.float64, True, 7)])
def test_lloyd_is_the_naive_twin(executor, sparse, dtype, weighted, n_blocks):
    X = rng().normal(size=(300, 4)).astype(dtype)
    weights = rng(1).random(300) if weighted else None
    start = X[:7].astype(np.float64)
    for max_iter in (1, 3):
        rows = stored(X, sparse)
        whole = LocalBlocks.of(executor, one_block(rows, weights))
        got = lloyd(
            in_blocks(executor, rows, n_blocks, weights) if n_blocks else whole, start, max_iter=max_iter, tol=0
        )
        centers, history = naive.lloyd(X, start, max_iter=max_iter, weights=weights)
        np.testing.assert_allclose(got.centers, centers, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(got.history, history, rtol=1e-9)
        assert got.inertia == got.history[-1]
        assert got.n_iter == len(got.history) == max_iter
        assert not got.converged
    np.testing.assert_array_equal(start, X[:7])


# ---- clusters that lose their rows


@pytest.mark.parametrize("sparse", [False, True])
def test_empty_clusters_move_to_the_farthest_rows_however_these_are_cut(executor, sparse):
    X = rng().normal(size=(400, 3))
    start = np.concatenate([X[:1], X[:1] + 1000 + np.arange(9)[:, None]])
    rows = stored(X, sparse)
    whole, cut = (lloyd(in_blocks(executor, rows, n_blocks), start, max_iter=1, tol=0) for n_blocks in (1, 20))
    farthest = np.argsort(-((X - X[0]) ** 2).sum(axis=1))[:9]
    for got in (whole, cut):
        np.testing.assert_array_equal(got.centers[1:], X[farthest])


@cases("sparse", [False, True])
@cases("n_blocks", [1, 3])
@cases("n_copies", [10, 500])
def test_farthest_rows_that_are_equal_fill_one_cluster_and_leave_rows_for_the_others(
    executor, sparse, n_blocks, n_copies
):
    """Copies of the farthest row must not hide that there are enough other distinct rows."""
    X = np.concatenate([np.tile([[100.0, 0]], (n_copies, 1)), rng().normal(size=(50, 2))])
    start = np.concatenate([[[0.0, 0]], np.array([[1e4, 1e4], [2e4, 1e4], [1e4, 3e4]])])
    got = lloyd(in_blocks(executor, stored(X, sparse), n_blocks), start, max_iter=50, tol=0)
    assert len(got.centers) == 4
    assert len(np.unique(naive.nearest(X, got.centers)[0])) == 4


def test_empty_cluster_rule_passes_over_rows_without_weight(executor):
    X = np.concatenate([np.zeros((10, 1)), np.ones((10, 1)), [[50.0], [9.0]]])
    weights = np.ones(22)
    weights[20] = 0
    start = np.array([[0.0], [1.0], [-1e4]])
    got = lloyd(in_blocks(executor, X, 2, weights), start, max_iter=20, tol=0)
    np.testing.assert_allclose(np.sort(got.centers.ravel()), [0, 1, 9])


# ---- search on the sample


def planted(dtype, sparse):
    """Six far groups, and a start with two centers in one group and none in another: a fixed point of Lloyd."""
    truth = np.array([[0, 0], [40, 0], [0, 40], [80, 0], [0, 80], [80, 80]], float)
    X = np.repeat(truth, 60, axis=0) + rng(1).normal(size=(360, 2))
    X = np.hstack([X, np.zeros((360, 2))]).astype(dtype)
    bad = np.stack(
        [X[0:30].mean(0), X[30:60].mean(0), X[60:180].mean(0), *(X[60 * c : 60 * c + 60].mean(0) for c in (3, 4, 5))]
    )
    return stored(X, sparse), bad.astype(np.float64)


@cases(
    "n_rows, weighted, dtype, table_dtype",  # in batches of 4,096
    [(0, True, "f4", "f4"), (1, False, "f8", "f8"), (700, True, "f8", "f4"), (9_000, False, "u1", "f4"),
     (9_000, True, "f4", "f8")],
)  # fmt: skip
def test_rows_are_assigned_as_by_single_steps(dtype, table_dtype, weighted, n_rows):
    X = (50 + 20 * rng().normal(size=(n_rows, 40))).astype(dtype)
    weights = rng(1).random(n_rows) if weighted else NO_WEIGHTS
    table = NearestCenters.build(50 + 20 * rng(2).normal(size=(7, 40)), table_dtype)
    labels = table.labels(X)
    d2 = row_d2(X, labels, table)
    sums, counts = np.zeros((7, 40)), np.zeros(7)
    for begun in (None, Totals(np.ones((7, 40)), np.ones(7))):
        if begun is not None:
            sums, counts = np.ones((7, 40)), np.ones(7)
        add_rows(X, weights, labels, sums, counts)
        totals, found_d2 = added(begun, X, weights, labels, table, with_d2=True)
        np.testing.assert_array_equal(totals.sums, sums)
        np.testing.assert_array_equal(totals.counts, counts)
        np.testing.assert_array_equal(found_d2, d2)
    assert len(added(None, X, weights, labels, table)[1]) == 0


@pytest.mark.parametrize(("sparse", "dtype"), [(False, np.float32), (True, np.float64)])
def test_split_merge_mends_a_bad_start(executor, sparse, dtype):
    X, bad = planted(dtype, sparse)
    stuck = lloyd(in_blocks(executor, X), bad, max_iter=100, tol=0)
    mended = split_merge(one_block(X), in_blocks(executor, X), stuck, max_rounds=40, rng=rng()).centers
    groups = np.repeat(np.arange(6), 60)
    assert naive.inertia(X, stuck.centers, naive.nearest(X, stuck.centers)[0]) > 10 * naive.within(X, groups)
    labels, _ = naive.nearest(X, mended)
    assert naive.within(X, labels) <= naive.within(X, groups) * (1 + 1e-9)


@cases("n_clusters, sparse, weighted", [(1, False, True), (2, True, False), (3, True, True), (17, False, False)])
def test_split_merge_never_worsens(executor, sparse, n_clusters, weighted):
    X = stored(rng().normal(size=(300, 3)), sparse)
    weights = rng(1).random(300) if weighted else None
    for seed in range(4):
        drawn = naive.dense(X)[rng(seed).permutation(300)[:n_clusters]]
        blocks = in_blocks(executor, X, 4, weights)
        start = lloyd(blocks, drawn, max_iter=2, tol=0)
        got = split_merge(one_block(X, weights), blocks, start, max_rounds=40, rng=rng(seed))
        assert got.centers.shape == start.centers.shape
        before, after = (naive.inertia(X, c, naive.nearest(X, c)[0], weights) for c in (start.centers, got.centers))
        assert after <= before * (1 + 1e-9)
        assert got.inertia <= start.inertia * (1 + 1e-9)


@pytest.mark.parametrize(
    ("inertias", "more"),
    [
        ([9.0] * 4, True),  # fewer than at least
        ([9.0] * 5, False),
        ([9.0, 8.0, 8.0, 8.0, 8.0], True),  # the best is not confirmed often enough
        ([9.0, 8.0, 8.0, 8.0, 8.0, 8.5], False),
        ([9.0, 8.0, 7.999, 7.999, 7.999, 7.9985], False),  # 0.03 % in all are none
        ([float(12 - start) for start in range(8)], False),  # as many as at most
    ],
)
def test_starts_go_on_until_four_in_a_row_gained_nothing(inertias, more):
    assert Starts(5, 8).go_on(inertias) is more


@pytest.mark.parametrize(("n_clusters", "n_starts"), [(10, 4), (11, 1)])
def test_starts_that_take_long_are_few(executor, monkeypatch, n_clusters, n_starts):
    X = rng().random((600, 8))
    for work in ("START_WORK", "SEARCH_WORK"):
        monkeypatch.setattr(init, work, X.size * n_clusters - 1)
    assert makes_as_many(executor, X, n_clusters, n_starts)


def test_many_narrow_rows_are_searched_by_parts_of_them(executor, monkeypatch):
    """Seeding sees few of the rows, and finds every group, of one row far away too."""
    seen = []

    def counted(block, *given, **options):
        seen.append(block.n_rows)
        return seedings(block, *given, **options)

    monkeypatch.setattr(init, "seedings", counted)
    X, y = blobs(n=24_000, k=6, d=3, cluster_std=0.05)
    X[17], y[17] = 50 * np.abs(X).max(), 6
    start = start_centers(executor, one_block(X), 7, init="k-means++", n_init="auto", streams=streams())
    assert naive.within(X, naive.nearest(X, start)[0]) <= naive.within(X, y) * (1 + 1e-9)
    assert max(seen) <= 10_000


def makes_as_many(executor, X, n_clusters, n_starts, pool=SAMPLED):
    """Whether `n_init="auto"` makes so many starts: the seeding stream tells how many there were."""
    states = []
    for n_init in ("auto", n_starts):
        drawn, some = streams(), one_block(X)
        start_centers(executor, some, n_clusters, init="k-means++", n_init=n_init, streams=drawn, pool=pool)
        states.append(drawn.seeding.bit_generator.state)
    return states[0] == states[1]


@pytest.mark.parametrize(("n_means", "n_clusters"), [(8, 4), (40, 1), (60, 30)])
def test_the_cheapest_clusters_merge_first(n_means, n_clusters):
    means, counts = rng().normal(size=(n_means, 5)), rng().integers(1, 50, n_means).astype(float)
    wanted = [(count, mean) for count, mean in zip(counts, means, strict=True)]
    while len(wanted) > n_clusters:
        pairs = [(i, j) for j in range(len(wanted)) for i in range(j)]

        def cost(pair):
            (one, at), (other, to) = wanted[pair[0]], wanted[pair[1]]
            return one * other / (one + other) * ((at - to) ** 2).sum()

        i, j = min(pairs, key=cost)
        (one, at), (other, to) = wanted[i], wanted.pop(j)
        wanted[i] = (one + other, (one * at + other * to) / (one + other))
    found = merged_to(means, counts, n_clusters)
    np.testing.assert_allclose(found, [mean for _, mean in wanted], rtol=1e-9)


@pytest.mark.parametrize("sparse", [False, True])
def test_recombined_centers_have_what_either_found(executor, sparse):
    """Each clustering lacks a group of four and splits another."""
    X, y = blobs(n=400, k=4, d=3, cluster_std=0.05)
    X, y = X[np.argsort(y)], np.sort(y)
    X = X - X.mean(axis=0)
    first, second, third, fourth = (X[y == group] for group in range(4))
    one = np.array([first[0], first[1], second[0], third[0]])
    other = np.array([first[0], second[0], fourth[0], fourth[1]])
    pieces = LocalBlocks.of(executor, one_block(stored(X, sparse)))
    found = recombined(pieces, one, other)
    nearest = naive.nearest(np.array([group.mean(axis=0) for group in (first, second, third, fourth)]), found)[0]
    assert sorted(nearest) == [0, 1, 2, 3]


# ---- the row sample


@cases("sparse", [False, True])
@cases("n_rows", [None, 2000])
def test_the_sample_depends_neither_on_chunks_nor_on_collectors_that_were_sent(sparse, n_rows):
    """Of parts of the rows, each with what may still come into the sample."""
    X = np.arange(2.0, 4002.0).reshape(2000, 2)
    if sparse:
        X = sp.csr_array(X)
    rule, whole, joined = SampleRule.of(60, 7, n_rows, NO_WEIGHTS), SampleCollector(60), SampleCollector(60)
    whole.add(rule.candidates(X, np.arange(2000), np.arange(2000), NO_WEIGHTS), 0)
    for first in range(0, 2000, 500):
        part = SampleCollector(60)
        for start in range(first, first + 500, 50):
            found = rule.candidates(X[start : start + 50], np.arange(start, start + 50), np.arange(50), NO_WEIGHTS)
            part.add(found, start - first)
        sent = pickle.dumps(part)
        assert len(sent) < 61 * (2 * 8 + 16 + sparse * 12) + 2_000
        joined.absorb(pickle.loads(sent), first)
    got, wanted = joined.sample(2, 2000, NO_WEIGHTS), whole.sample(2, 2000, NO_WEIGHTS)
    np.testing.assert_array_equal(got.rows, wanted.rows)
    np.testing.assert_array_equal(naive.dense(got.X), naive.dense(X[got.rows]))
    assert (
        not sparse or got.X.indices.dtype == got.X.indptr.dtype == np.int32
    )  # as those of X: kernels are compiled once
    assert len(np.unique(got.rows)) == 60
    assert not got.complete
    assert len(got.weights) == 0


def weighted_sample(seed, weights, size, n_chunks=3):
    n_rows = len(weights)
    rule, collector = SampleRule.of(size, seed, n_rows, weights), SampleCollector(size)
    cuts = np.linspace(0, n_rows, n_chunks + 1).astype(int)
    for start, stop in pairwise(cuts):
        part = weights[start:stop]
        rows = np.arange(stop - start)
        collector.add(rule.candidates(np.zeros((stop - start, 1)), rows + start, rows, part), start)
    return collector.sample(1, np.count_nonzero(weights), weights)


def test_rows_are_sampled_by_their_weights():
    """However they are cut: none of weight 0, always one that outweighs the others, and sums without bias."""
    weights = np.concatenate([np.zeros(50), np.linspace(0.5, 2, 2000), [3000.0]])
    value = np.sin(np.arange(len(weights)))
    estimates, totals = [], []
    one, many = (weighted_sample(3, weights, 100, n_chunks) for n_chunks in (1, 40))
    np.testing.assert_array_equal(one.rows, many.rows)
    np.testing.assert_array_equal(one.weights, many.weights)
    for seed in range(100):
        sample = weighted_sample(seed, weights, 200)
        assert len(sample.rows) == 200
        assert weights[sample.rows].all()
        assert len(weights) - 1 in sample.rows
        totals.append(sample.weights.sum())
        estimates.append(sample.weights @ value[sample.rows])
    for found, wanted in ((totals, weights.sum()), (estimates, weights @ value)):
        error = np.std(found) / np.sqrt(len(found))
        assert abs(np.mean(found) - wanted) < 4 * error, (np.mean(found), wanted, error)


@cases("size, n_chunks", [(2, 3), (20, 1)])
def test_sums_of_few_sampled_rows_are_unbiased(size, n_chunks):
    # Pareto weights, as of words in a text; with the highest key that is kept in place of the first that is left out,
    # the sums would be 5 percent too high at 20 rows
    weights = np.random.default_rng(0).pareto(1.2, 200) + 0.1
    heavy = weights > np.quantile(weights, 0.9)
    found = np.zeros((1000, 2))
    for seed in range(len(found)):
        sample = weighted_sample(seed, weights, size, n_chunks)
        found[seed] = sample.weights.sum(), sample.weights @ heavy[sample.rows]
    wanted = np.array([weights.sum(), weights @ heavy])
    deviations = (found.mean(axis=0) - wanted) / (found.std(axis=0) / np.sqrt(len(found)))
    assert (np.abs(deviations) < 3.3).all(), deviations  # but for one in a thousand


@cases("weighted", [False, True])
@cases("sparse", [False, True])
def test_candidates_keep_no_room_for_rows_that_are_left_out(sparse, weighted):
    """Those of all chunks are held until the pass ends: what a few of them keep alive would grow with all rows."""
    n_rows = 4096
    weights = np.ones(n_rows) if weighted else NO_WEIGHTS
    chunk = np.ones((n_rows, 2), np.float32)
    rule, X = SampleRule(1000, 0, 0.04), sp.csr_array(chunk) if sparse else chunk
    tracemalloc.start()
    try:
        rule.candidates(X, np.arange(n_rows), np.arange(n_rows), weights)
        before, held = tracemalloc.get_traced_memory()[0], []
        for number in range(20):
            places = np.arange(number * n_rows, (number + 1) * n_rows)
            held.append(rule.candidates(X, places, np.arange(n_rows), weights))
        n_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    own = sum(matrix_bytes(each.X) + each.keys.nbytes + each.rows.nbytes for each in held)
    assert n_bytes < 1.5 * own + 1000 * len(held)


@cases("sparse", [False, True])
def test_first_rows_are_copied_once(sparse):
    X = sp.random_array((4096, 64), density=0.5, format="csr", rng=rng()) if sparse else np.ones((4096, 64))
    tracemalloc.start()
    try:
        first = first_rows(X, 4000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * matrix_bytes(first)
    assert (first != X[:4000]).sum() == 0


# ---- one block, worked on by threads


@cases("sparse", [False, True])
@cases("weighted", [False, True])
@cases("dtype", [np.float32, np.uint8])
def test_sums_by_label_are_those_of_a_loop(executor, sparse, weighted, dtype):
    X = rng().integers(0, 200, (500, 7)).astype(dtype)
    labels = rng(1).integers(-1, 4, 500).astype(np.int32)
    labels[labels == 2] = 0  # a cluster without rows
    weights = rng(2).random(500) if weighted else NO_WEIGHTS
    got = label_sums(executor, stored(X.astype(np.float32) if sparse else X, sparse), weights, labels, 4)
    sums, counts = np.zeros((4, 7)), np.zeros(4)
    for i, label in enumerate(labels):
        if label >= 0:
            weight = weights[i] if weighted else 1.0
            sums[label] += weight * X[i].astype(float)
            counts[label] += weight
    np.testing.assert_allclose(got.sums, sums, rtol=1e-12)
    np.testing.assert_allclose(got.counts, counts, rtol=1e-12)
    assert got.counts[2] == 0


def overlapping(n_rows=3000, n_features=6, seed=0):
    """Rows without clear clusters: Lloyd's algorithm takes many steps."""
    return rng(seed).normal(size=(n_rows, n_features))


def test_an_accelerated_run_is_sooner_where_lloyd_ends_and_goes_lower(executor):
    X = overlapping()
    blocks = in_blocks(executor, X, 3)
    inertias, steps = [], []
    for seed in range(5):
        start = X[rng(seed).permutation(len(X))[:40]]
        plain = lloyd(blocks, start, max_iter=500, tol=1e-5)
        fast = lloyd(blocks, start, accelerated=True, max_iter=500, tol=1e-5)
        assert fast.converged
        assert np.all(np.diff(fast.history) <= 0)
        after = lloyd(blocks, fast.centers, max_iter=1, tol=0)
        assert after.inertia <= fast.inertia * (1 + 1e-12)  # the centers are the means of the last step's clusters
        inertias.append([naive.within(X, naive.nearest(X, run.centers)[0]) for run in (fast, plain)])
        sooner = np.flatnonzero(np.array(fast.history) <= plain.inertia)
        steps.append((sooner[0] + 1 if len(sooner) else fast.n_iter, plain.n_iter))
    ours, theirs = np.mean(inertias, axis=0)
    assert ours <= theirs
    fewer, more = np.mean(steps, axis=0)
    assert fewer < 0.6 * more


def test_an_accelerated_run_goes_on_where_it_was(executor):
    X = overlapping()
    steps = []
    whole = lloyd(in_blocks(executor, X), X[:30], accelerated=True, max_iter=40, tol=1e-4, on_step=steps.append)
    assert whole.n_iter > 5
    for begun in steps[:-1]:
        kept = unpack(LloydResult, pack(begun))
        again = lloyd(in_blocks(executor, X), kept, accelerated=True, max_iter=40, tol=1e-4)
        np.testing.assert_array_equal(again.centers, whole.centers)
        assert again.history == whole.history


def test_an_accelerated_run_that_goes_on_at_its_best_means_does_not_go_back_to_them(executor):
    """They are where it is: sums that were rounded otherwise before may be lower, and it would go back for ever."""
    X = overlapping(400)
    blocks = in_blocks(executor, X, 2)
    fixed = lloyd(blocks, X[:10], max_iter=500, tol=0)
    lower = fixed.inertia * (1 - 1e-13)
    begun = LloydResult(fixed.centers, lower, 2, False, (lower, lower), means=fixed.centers, pace=0)
    kept = unpack(LloydResult, pack(begun))
    found = lloyd(blocks, kept, accelerated=True, max_iter=20, tol=1e-9)
    assert (found.n_iter, found.converged) == (3, True)
    np.testing.assert_allclose(found.centers, fixed.centers, rtol=0, atol=1e-12)


def test_an_accelerated_run_refills_clusters_that_lost_their_rows(executor):
    X = np.concatenate([overlapping(300), [[50.0] * 6]])
    start = np.concatenate([X[:5], np.full((2, 6), 1e3)])
    found = lloyd(in_blocks(executor, X, 2), start, accelerated=True, max_iter=100, tol=1e-6)
    assert found.centers.shape == (7, 6)
    assert len(np.unique(naive.nearest(X, found.centers)[0])) == 7


# ---- polishing


@pytest.mark.parametrize("sparse", [False, True])
def test_labels_of_the_sketch_are_the_first_step_of_polishing(executor, sparse):
    X, y = blobs(900, 6, 40, cluster_std=0.5)
    sample = Sample(stored(X, sparse), np.arange(900), NO_WEIGHTS, complete=True)
    sketch = CountSketch(32, seed=1)
    sketched = sample.block(executor, sketch)
    true = np.array([X[y == c].mean(axis=0) for c in range(6)])
    centers, explained = original_centers(executor, sample, sketched, np.asarray(sketch.apply(true)))
    np.testing.assert_allclose(centers, true)
    result = polish(executor, sample, centers, max_iter=50, tol=1e-4, begun=explained)
    inertia = ((X - true[y]) ** 2).sum()
    assert (result.n_iter, result.converged) == (2, True)  # the second finds that nothing moves
    np.testing.assert_allclose(result.history, [inertia, inertia])
    np.testing.assert_allclose(result.centers, true)
