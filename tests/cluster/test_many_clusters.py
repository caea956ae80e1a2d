"""Many centers: what an index excludes is never the nearest, with the same bits; starts and steps among neighbours."""

from __future__ import annotations

from dataclasses import fields
from functools import cache

import numba as nb
import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.index import FEWEST_CENTERS, CenterIndex
from streamkm.cluster.centers.nearest import INDEXED_ROWS, NearestCenters
from streamkm.cluster.centers.neighbours import Neighbourhood
from streamkm.cluster.in_memory import LocalBlocks, cut
from streamkm.cluster.lloyd import LloydResult, lloyd
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding.init import local_search
from streamkm.cluster.seeding.kmeans_plusplus import kmeans_plusplus
from streamkm.cluster.seeding.split_merge import split_merge
from streamkm.cluster.seeding.two_level import quotas_of
from streamkm.core.process import ONE_BLAS_THREAD
from streamkm.engine import open_executor
from streamkm.kernels.intrinsics import pairs, products, sieve
from streamkm.kernels.text.machine_words import count_bits, trailing_zeros
from tests import naive
from tests.dask_processes import assert_same_bits

K = FEWEST_CENTERS + 88


@pytest.fixture(autouse=True)
def one_thread():
    """BLAS as it is in a fit: its threads would wait for each other."""
    with ONE_BLAS_THREAD:
        yield


@nb.njit
def _mark(X, first, n_rows, table, place, units, bias, column, row_units, limits, marks, at):
    sieve.mark_columns(X, first, n_rows, table, place, units, bias, column, row_units, limits, marks, at)


@nb.njit
def _bits(word):
    return trailing_zeros(word), count_bits(word)


@nb.njit
def _chained(a, firsts, b, others, n, out):
    pairs.chained_products(a, firsts, b, others, 2, n, out)


def embeddings(n_rows, n_features=64, n_topics=40, seed=0):
    """Rows in clusters of clusters whose directions have a falling spectrum, float32 of about unit length."""
    rng = np.random.default_rng(seed)
    spectrum = (1 + np.arange(n_features)) ** -0.6
    topics = rng.normal(size=(n_topics, n_features)) * spectrum
    groups = topics[rng.integers(n_topics, size=20 * n_topics)] + 0.6 * rng.normal(size=(20 * n_topics, 1)) * spectrum
    groups += 0.5 * rng.normal(size=groups.shape) * spectrum
    X = groups[rng.integers(len(groups), size=n_rows)] + 0.5 * rng.normal(size=(n_rows, n_features)) * spectrum
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


def objective(X, centers):
    """Sum of squared distances to the nearest centers, by differences."""
    labels = NearestCenters.build(centers, np.float32).labels(X)
    return ((X - centers[labels]) ** 2).sum()


@cache
def cases():
    """Rows and centers: what an index serves, and what is made bad on purpose."""
    rng = np.random.default_rng(1)
    X = embeddings(2200, 130)
    centers = X[:K].astype(np.float64)
    far = np.concatenate([X, 1e6 * np.ones((1, 130), np.float32)])
    sphere = rng.normal(size=(2200, 64)).astype(np.float32)
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    grid = rng.integers(-1, 2, (900, 64)).astype(np.float32)
    narrow = embeddings(1500, 40)
    flat = np.zeros((1000, 70), np.float32)
    flat[:, :3] = rng.normal(size=(1000, 3))
    return {
        "clusters": (X, centers),
        "a feature more than a chain": (embeddings(700, 129), embeddings(K + 1, 129, seed=0).astype(np.float64)),
        "wide": (embeddings(300, products.WIDE + 3), embeddings(K, products.WIDE + 3, seed=2).astype(np.float64)),
        "no float32 rows in order": (np.asfortranarray(X), centers),
        "float64": (X.astype(np.float64) + 1e-9 * rng.normal(size=X.shape), centers),
        "float16": (X.astype(np.float16), centers),
        "far from the origin": (X + np.float32(50), centers + 50),
        "one row far away": (far, far[-K:].astype(np.float64)),
        "rows of zeros": (
            np.concatenate([np.zeros((40, 130), np.float32), X]),
            np.concatenate([centers, centers[:1] * 0]),
        ),
        "centers of zeros": (X, np.zeros((K, 130))),
        "each center twice": (X, np.repeat(centers[: K // 2], 2, axis=0)[rng.permutation(K)]),
        "ties": (grid, grid[:K].astype(np.float64)),
        "few features": (narrow, narrow[:K].astype(np.float64)),
        "one row far away in a plane": (far[:, :2], far[-K:, :2].astype(np.float64)),
        "few directions": (flat, flat[:K].astype(np.float64)),
        "uniform on the sphere": (sphere, sphere[:K].astype(np.float64)),
        "tiny": (X * np.float32(1e-30), centers * 1e-30),
    }


@pytest.mark.parametrize(
    ("around_origin", "names"),
    [(False, None), (True, ["clusters", "float64", "ties"])],
    ids=["around means", "around the origin"],
)
def test_an_index_changes_no_bit(around_origin, names):
    made = cases()
    for name in names or made:
        X, centers = made[name]
        table = NearestCenters.build(centers, np.float32, around_origin=around_origin)
        table.index()  # whatever the number of rows
        labels, scores, _ = table.nearest(X)  # of the second nearest too: all centers are looked at
        for likely in (None, np.roll(labels, 1), np.zeros(len(X), np.int32)):
            found, lowest = table.lowest(X, likely)
            np.testing.assert_array_equal(found, labels, name)
            np.testing.assert_array_equal(lowest, scores, name)
        gaps, expected = np.empty((2, len(X)))  # of the two nearest, by the index and by a look at all
        labels = NearestCenters.build(centers, np.float32, around_origin=around_origin).labels(X, gaps=expected)
        np.testing.assert_array_equal(table.labels(X, gaps=gaps), labels, name)
        np.testing.assert_array_equal(gaps, expected, name)


def test_which_rows_have_an_index():
    rng = np.random.default_rng(0)
    for n_clusters, n_features, kind in (
        (8192, 4, None),
        (6200, 32, CenterIndex),
        (6000, 32, None),
        (800, 256, CenterIndex),
        (700, 256, None),
    ):
        X = rng.normal(size=(n_clusters, n_features)).astype(np.float32)
        rows = rng.normal(size=(INDEXED_ROWS, n_features)).astype(np.float32)
        table = NearestCenters.build(X.astype(np.float64), np.float32)
        labels, scores = table.lowest(rows)
        assert type(table.laid_out.get("index")) is (kind or type(None))
        some = slice(0, INDEXED_ROWS, 16)
        np.testing.assert_array_equal(table.nearest(rows[some])[0], labels[some])
        np.testing.assert_array_equal(table.nearest(rows[some])[1], scores[some])


@pytest.mark.slow
def test_labels_by_an_index_are_nearest_in_truth():
    for name, (X, centers) in cases().items():
        some = np.random.default_rng(0).permutation(len(X))[:60]
        table = NearestCenters.build(centers, np.float32)
        table.index()
        found = table.labels(X)[some]
        rows = np.asarray(X[some], np.float64)
        unit = np.ldexp(1.0, 100) if name == "tiny" else 1.0  # squares in range, with the same labels
        expected, d2 = naive.nearest(rows * unit, centers * unit)
        own = ((rows * unit - centers[found] * unit) ** 2).sum(axis=1)
        np.testing.assert_allclose(own, d2, rtol=1e-12, atol=0, err_msg=name)
        if "twice" in name or "zeros" in name:  # the lower of equal ones
            np.testing.assert_array_equal(found, expected, name)


def test_most_centers_are_excluded_where_rows_have_directions():
    X = embeddings(6000, 256)
    centers = X[:2000].astype(np.float64)
    table = NearestCenters.build(centers, np.float32)
    index, layout = table.index(), table.layout(np.float32, sparse=False)
    found = np.empty(6000, np.int32), *np.empty((2, 6000), np.float32), np.empty(6000, np.bool_)
    left = index.nearest(layout.ready(X), (-1.0, 200 * layout.slope), layout.slack, found)
    assert left.mean() < 0.1


def test_readable_forms_of_the_sieve():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 128, (51, sieve.DEPTH), np.uint8)
    table = rng.integers(20, 50, 2 * sieve.PANEL_BYTES).astype(np.int8)
    panels = table.reshape(2, -1, sieve.PANEL_COLUMNS, sieve.STEP)
    shares = panels[:, sieve.HEADS :].astype(np.int32).reshape(2, -1, sieve.PANEL_COLUMNS, 2, sieve.STEP // 2)
    halves = -sieve.OFFSET * shares.sum(axis=(1, 4))
    assert halves.min() < -(2**15)  # too much for 16 bits, but for what comes back at the end
    panels[:, 0] = halves.sum(axis=2, dtype=np.int32)[..., None].view(np.int8)
    panels[:, 1] = halves.astype(np.int16).view(np.int8)
    units, row_units = rng.random(96).astype(np.float32), rng.random(51).astype(np.float32)
    bias, limits = 1e4 * rng.normal(size=96).astype(np.float32), 1e4 * rng.normal(size=48).astype(np.float32)
    limits[5], bias[50] = np.nan, np.inf
    for n_rows in (1, 8, 37):
        marks, expected = np.zeros((48, 2), np.uint64), np.zeros((48, 2), np.uint64)
        for q in range(2):
            given = (X, 3, n_rows, table, q * sieve.PANEL_BYTES, units, bias, 48 * q, row_units, limits)
            _mark(*given, marks, 6 * q)
            sieve.mark_columns(*given, expected, 6 * q)
        np.testing.assert_array_equal(marks[:n_rows], expected[:n_rows])
        assert 0.05 < np.unpackbits(marks[:n_rows].view(np.uint8)).mean() < 0.7
        for word in marks[marks > 0]:
            assert _bits(word) == (trailing_zeros(word), count_bits(word))


def test_readable_forms_of_products_of_pairs():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 900)).astype(np.float32)
    firsts, others = rng.integers(0, 500, (2, 2 + pairs.CHAINS))
    found, expected = np.zeros((2, 2 + pairs.CHAINS), np.float32)
    for n in (1, 128, 300):
        _chained(a, firsts, b, others, n, found)
        pairs.chained_products(a, firsts, b, others, 2, n, expected)
        np.testing.assert_array_equal(found, expected)


def test_neighbours_are_the_nearest_of_those_listed():
    X = embeddings(3000, 70)
    centers = X[:K].astype(np.float64)
    table = NearestCenters.build(centers, np.float32)
    near = Neighbourhood.of(table)
    labels, scores, seconds = table.nearest(X)
    found, lowest, second = near.nearest(X, labels)
    np.testing.assert_array_equal(found, labels)  # a row's own center is always listed, with the same score
    np.testing.assert_array_equal(lowest, scores)
    assert (second >= seconds).all()
    assert (second == seconds).mean() > 0.9
    lists = near.lists
    listed = lists.candidates[lists.group_of[np.arange(K)]]
    assert (listed == np.arange(K)[:, None]).any(axis=1).all()
    assert (np.diff(listed, axis=1) > 0).all()
    before = np.random.default_rng(0).integers(K, size=len(X)).astype(np.int32)
    some = np.arange(0, 3000, 7)
    found = near.nearest(X, before)[0][some]
    for row, label in zip(some, found, strict=True):
        few = lists.candidates[lists.group_of[before[row]]]
        assert label == few[naive.nearest(X[row : row + 1].astype(float), centers[few])[0][0]]
    with open_executor(2) as executor:
        laid_out, moved = Neighbourhood.of(table, executor=executor), NearestCenters.build(centers + 0.01, np.float32)
        later = Neighbourhood.of(moved, lists, executor)
    np.testing.assert_array_equal(laid_out.lists.candidates, lists.candidates)
    for one, other in ((near, laid_out), (Neighbourhood.of(moved, lists), later)):
        for first, second in zip(one.nearest(X, labels), other.nearest(X, labels), strict=True):
            np.testing.assert_array_equal(first, second)
    gone = np.unique(labels)[::3]
    assert not np.isin(near.without(gone).nearest(X, labels)[0], gone).any()


def test_quotas():
    rng = np.random.default_rng(0)
    for n_parts, wanted in ((1, 5), (7, 100), (30, 31), (30, 2000)):
        sizes = rng.integers(0, 200, n_parts) + (n_parts == 1) * 10
        n_clusters = max(np.count_nonzero(sizes), min(wanted, sizes.sum()))
        shares = rng.exponential(size=n_parts) * (rng.random(n_parts) < 0.8)
        quotas = quotas_of(shares, sizes, n_clusters)
        assert quotas.sum() == n_clusters
        assert (quotas <= sizes).all()
        assert (quotas[sizes > 0] > 0).all()
    np.testing.assert_array_equal(quotas_of(np.array([1.0, 3.0]), np.array([90, 90]), 42), [11, 31])


def test_search_among_neighbours_mends_a_bad_start():
    X = embeddings(6000)
    block = Block(X, row_d2norms(X), NO_WEIGHTS)
    start = X[:K].astype(np.float64)
    start[: K // 4] = start[:1] + 1e-3 * np.random.default_rng(0).normal(size=(K // 4, 64))  # a quarter in one place
    with open_executor(2) as executor:
        pieces = LocalBlocks.of(executor, block)
        begun = LloydResult(start, float("nan"), 0, False, ())
        found = local_search(block, pieces, begun, rng=np.random.default_rng(0))
    before, after = objective(X, start), objective(X, found.centers)
    assert after < 0.85 * before
    assert after <= found.inertia * (1 + 1e-6)


@pytest.fixture(scope="module")
def fitted():
    X = embeddings(12_000)
    return X, StreamKMeans(K, random_state=0, executor=3, chunk_bytes=1 << 19, progress=False).fit(X)


def test_threads_and_clusters_give_the_same_bits(fitted, client):
    X, on_threads = fitted
    assert_same_bits(
        StreamKMeans(K, random_state=0, executor=client, chunk_bytes=1 << 19, progress=False).fit(X), on_threads
    )


@pytest.mark.slow
def test_a_fit_is_as_good_as_one_that_compares_all(fitted):
    """k-means++ on one level, steps and swaps among all centers, on the same rows."""
    X, found = fitted
    block = Block(X, row_d2norms(X), NO_WEIGHTS)
    rng = np.random.default_rng(0)
    with open_executor(2) as executor:
        pieces = LocalBlocks.of(executor, block)
        begun = lloyd(pieces, kmeans_plusplus(block, K, rng=rng, executor=executor), max_iter=10, tol=0)
        wanted = split_merge(block, pieces, begun, max_rounds=10, rng=rng).inertia
    assert found.inertia_ < 1.002 * wanted
    own = ((X - found.model_.centers[found.labels_]) ** 2).sum(axis=1)
    np.testing.assert_allclose(own[:200], naive.nearest(X[:200], found.model_.centers)[1], rtol=1e-9)
    assert [step["inertia"] for step in found.history_] == sorted(
        (step["inertia"] for step in found.history_), reverse=True
    )


def held(executor, X, weights, whole):
    """Rows as one block in this process, or as blocks that a pass left."""
    block = Block(X, row_d2norms(X), weights)
    one = LocalBlocks.of(executor, block)
    if whole:
        return one
    names = (field.name for field in fields(Blocks) if field.name != "handles")
    return Blocks(handles=tuple(cut(block, 5)), **{name: getattr(one, name) for name in names})


@pytest.mark.parametrize("whole", [True, False])
def test_steps_find_the_nearest_of_many_centers_by_their_last_labels(whole):
    X = embeddings(5000)
    weights = np.random.default_rng(3).uniform(0.5, 2.0, len(X))
    before, after = X[:K].astype(np.float64), X[:K] + 0.02 * embeddings(K, seed=2).astype(np.float64)
    with open_executor(2) as executor:
        blocks = held(executor, X, weights, whole)

        def check(found, wanted):
            totals, labels = found
            np.testing.assert_array_equal(np.concatenate(labels.handles), wanted)
            sums, counts = np.zeros_like(before), np.zeros(K)
            np.add.at(sums, wanted, weights[:, None] * X.astype(np.float64))
            np.add.at(counts, wanted, weights)
            np.testing.assert_allclose(totals.sums, sums, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(totals.counts, counts, rtol=1e-12)
            return labels

        first, second = (NearestCenters.build(centers, np.float32).lowest(X)[0] for centers in (before, after))
        assert (first != second).any()
        labels = check(blocks.step(before, None, "lloyd"), first)
        check(blocks.step(after, labels, "lloyd"), second)


@pytest.mark.slow
def test_fewer_distinct_rows_than_clusters():
    X = np.repeat(embeddings(K - 50), 9, axis=0)
    with pytest.warns(UserWarning, match="distinct"):
        found = StreamKMeans(K, random_state=0, progress=False).fit(X)
    assert len(np.unique(found.labels_)) == K - 50
    assert found.inertia_ < 1e-6


def test_an_index_in_an_older_file_is_not_read(tmp_path):
    X = embeddings(500)
    found = StreamKMeans(5, random_state=0, progress=False).fit(X)
    found.save(tmp_path / "model")
    with np.load(tmp_path / "model") as stored:
        older = {**stored, "index_directions": np.zeros((64, 3)), "index_groups": np.zeros(5, np.int32)}
    np.savez(tmp_path / "older.npz", **older)
    np.testing.assert_array_equal(StreamKMeans.load(tmp_path / "older.npz").predict(X), found.labels_)
