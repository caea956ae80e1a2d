"""Coresets: weights, objectives without bias, trees in any order; endless streams: one state however rows are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling import sensitivity as importance
from streamkm.cluster.sampling.coreset import CoresetRule, CoresetTree, default_size
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.fitting.streams.coreset_clusters import StreamSettings, cluster_coreset
from streamkm.fitting.streams.stream import NODE_BYTES, Stream, stream_size
from streamkm.fitting.streams.waiting_rows import feed
from streamkm.kernels.seeding.row_draws import balance
from streamkm.passes.reader import RowReader
from streamkm.sources import open_source
from tests import naive
from tests.tables import cases, slow_but


def rng(seed=0):
    return np.random.default_rng(seed)


def settings_of(k, **options):
    usual = {"init": "k-means++", "n_init": 1, "max_iter": 100, "tol": 1e-4, "seeds": np.random.SeedSequence(0)}
    return StreamSettings(n_clusters=k, **usual | options)


def rows(n=600, d=3, seed=0):
    return rng(seed).normal(size=(n, d)).astype(np.float32) + 4 * rng(seed + 1).integers(0, 3, (n, 1), np.int64)


def tree_of(rule, X, bounds, weights=NO_WEIGHTS, order=None):
    tree = CoresetTree(rule)
    cuts = list(pairwise(bounds))
    for index in range(len(cuts)) if order is None else order:
        start, stop = cuts[index]
        tree.add(index, X[start:stop], np.arange(start, stop), weights[start:stop])
    return tree


def coreset_of(rule, X, n_parts=5, weights=NO_WEIGHTS):
    bounds = np.linspace(0, X.shape[0], n_parts + 1).astype(int)
    return rule.finish(tree_of(rule, X, bounds, weights).part())


def assert_same(one, other):
    np.testing.assert_array_equal(naive.dense(one.X), naive.dense(other.X))
    np.testing.assert_array_equal(one.weights, other.weights)
    np.testing.assert_array_equal(one.row_ids, other.row_ids)
    assert (one.n_rows, one.total_weight, one.complete) == (other.n_rows, other.total_weight, other.complete)


# ---- the kernel that lets rows exchange weight


def drawn_weights(weights, probabilities, seed):
    out, tops = weights.copy(), weights / probabilities
    balance(out, tops, rng(seed).random(len(weights)))
    return out, tops


@given(st.integers(0, 10**6), st.integers(1, 60), st.booleans())
def test_balance_keeps_the_sum_and_the_number_and_ends_at_the_bounds(seed, n, equal):
    weights = np.ones(n) if equal else rng(seed).exponential(1, n) + 1e-3
    probabilities = np.full(n, 0.3) if equal else rng(seed + 1).random(n) * 0.98 + 0.01
    out, tops = drawn_weights(weights, probabilities, seed + 2)
    np.testing.assert_allclose(out.sum(), weights.sum(), rtol=1e-9)
    inside = (out > 0) & (out < tops)
    assert inside.sum() <= 1
    assert (out >= 0).all()
    assert (out <= tops).all()
    assert abs((out > 0).sum() - probabilities.sum()) < 2 + 1e-6


def test_balance_keeps_every_expectation():
    weights = np.array([1.0, 2, 0.5, 3, 1, 1, 0.2])
    probabilities = np.array([0.2, 0.5, 0.9, 0.4, 0.05, 1.0, 0.3])
    runs = 4_000
    outs = np.array([drawn_weights(weights, probabilities, seed)[0] for seed in range(runs)])
    errors = outs.std(axis=0) / np.sqrt(runs)
    assert (np.abs(outs.mean(axis=0) - weights) <= 4 * errors + 1e-9).all()
    assert (outs[:, 5] == 1).all()  # certain rows stay as they are


# ---- importance against its formulas


@pytest.mark.parametrize("sparse", [False, True])
def test_sensitivity_is_its_formula(sparse):
    X, weights, k = rows(200), rng(5).random(200) + 0.1, 3
    stored = sp.csr_array(X) if sparse else X
    got, labels, d2 = importance.sensitivity(stored, weights, k, lambda round_: rng(round_).random(200))
    factor = 16 * (np.log2(k) + 2)
    mean_cost = sum(w * d for w, d in zip(weights, d2, strict=True)) / weights.sum()
    for i in range(200):
        same = [j for j in range(200) if labels[j] == labels[i]]
        size = sum(weights[j] for j in same)
        cost = sum(weights[j] * d2[j] for j in same)
        bound = factor * d2[i] / mean_cost + 2 * factor * cost / (size * mean_cost) + 4 * weights.sum() / size
        np.testing.assert_allclose(got[i], weights[i] * bound / weights.sum(), rtol=1e-6)


# ---- weights, and objectives without bias


@given(seed=st.integers(0, 10**6), size=st.integers(4, 120), n_parts=st.integers(1, 9), weighted=st.booleans())
def test_weights_sum_up_and_rows_are_rows(seed, size, n_parts, weighted):
    X = rows(300, seed=seed)
    weights = rng(seed).exponential(1, 300) if weighted else NO_WEIGHTS
    coreset = coreset_of(CoresetRule(size, 5, seed), X, n_parts, weights)
    assert len(coreset.weights) <= size
    assert coreset.n_rows == 300
    np.testing.assert_allclose(coreset.total_weight, weights.sum() if weighted else 300)
    np.testing.assert_allclose(coreset.weights.sum(), coreset.total_weight, rtol=1e-9)
    np.testing.assert_array_equal(coreset.X, X[coreset.row_ids])
    assert len(np.unique(coreset.row_ids)) == len(coreset.row_ids)


@cases("sparse", [False, True])
def test_a_coreset_that_has_room_holds_exactly_the_rows(sparse):
    X, weights = rows(200), rng(3).random(200)
    weights[::7] = 0
    stored = sp.csr_array(X) if sparse else X
    coreset = coreset_of(CoresetRule(200, 5, 1), stored)
    assert coreset.complete
    np.testing.assert_array_equal(np.sort(coreset.row_ids), np.arange(200))
    np.testing.assert_array_equal(coreset.weights, np.ones(200))
    coreset = coreset_of(CoresetRule(200, 5, 1), stored, weights=weights)
    assert coreset.complete
    np.testing.assert_array_equal(np.sort(coreset.row_ids), np.flatnonzero(weights))
    np.testing.assert_array_equal(coreset.weights, weights[coreset.row_ids])


@pytest.mark.parametrize("weighted", slow_but([True], [True, False], full=True))
def test_the_objective_of_any_centers_is_unbiased(weighted):
    """Within four standard errors."""
    X = rows(600)
    weights = rng(9).exponential(1, 600) if weighted else np.ones(600)
    runs = 60
    many_centers = (X[:4].astype(float), np.array([[0.0, 0, 0]]), np.array([[50.0, 0, 0], [4.0, 4, 4]]))
    objectives = []
    for seed in range(runs):
        coreset = coreset_of(CoresetRule(60, 4, seed), X, 5, weights if weighted else NO_WEIGHTS)
        objectives.append([coreset.weights @ naive.nearest(coreset.X, centers)[1] for centers in many_centers])
    for centers, found in zip(many_centers, np.transpose(objectives), strict=True):
        truth = float(weights @ naive.nearest(X, centers)[1])
        allowed = 4 * found.std() / np.sqrt(runs)
        assert abs(found.mean() - truth) <= allowed
        assert found.std() < 0.5 * truth


# ---- the same whatever the order, the cuts and the workers


@given(order=st.permutations(range(7)), seed=st.integers(0, 1000))
def test_parts_may_come_in_any_order(order, seed):
    X, rule = rows(400), CoresetRule(40, 4, seed)
    bounds = [0, 50, 60, 150, 151, 290, 300, 400]
    wanted = rule.finish(tree_of(rule, X, bounds).part())
    assert_same(rule.finish(tree_of(rule, X, bounds, order=order).part()), wanted)


# ---- weights that decay


@cases("first", [0, 10**12])
def test_weights_decay_by_half(first):
    X = rows(400)
    rule = CoresetRule(60, 4, 2, half_life=50.0)
    tree = CoresetTree(rule)
    for index in range(8):
        part = slice(50 * index, 50 * index + 50)
        tree.add(index, X[part], first + np.arange(400)[part], NO_WEIGHTS)
    coreset = rule.finish(tree.part())
    wanted = sum(0.5 ** ((399 - i) / 50) for i in range(400))
    np.testing.assert_allclose(coreset.total_weight, wanted, rtol=1e-6)
    np.testing.assert_allclose(coreset.weights.sum(), wanted, rtol=1e-6)
    assert np.isfinite(coreset.weights).all()
    assert (coreset.row_ids - first >= 200).sum() > (coreset.row_ids - first < 200).sum()


# ---- what they are worth


def excess(X, k, size, best):
    coreset = coreset_of(CoresetRule(size, k, 0), X, 6)
    found, counts = cluster_coreset(coreset, settings_of(k, n_init=3), 2)
    np.testing.assert_allclose(counts.sum(), len(X))
    return naive.nearest(X, found.centers)[1].sum() / best


def far_groups():
    """Two big clusters and six tiny ones, all far from the mean; the tiny ones lie near the first."""
    centers = np.array([[1000.0, 0], [-1000, 0]] + [[1000 + 40 * np.cos(a), 40 * np.sin(a)] for a in range(6)])
    y = np.concatenate([np.repeat([0, 1], 6000), np.repeat(np.arange(2, 8), 5)])
    y = rng(0).permutation(y)
    return (centers[y] + rng(1).normal(0, 0.1, (len(y), 2))).astype(np.float32), y


def test_only_sensitivity_finds_tiny_clusters_near_big_ones():
    X, y = far_groups()
    best = naive.within(X, y)
    assert excess(X, 8, 400, best) <= 1.05


# ---- errors


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidParameterError, match=r"size=3.*at least 4"):
        CoresetRule(3, 8, 0)
    with pytest.raises(InvalidParameterError, match="half_life=0"):
        CoresetRule(10, 8, 0, half_life=0)
    with pytest.raises(InvalidParameterError, match="different rules"):
        CoresetTree(CoresetRule(10, 8, 0)).merged(CoresetTree(CoresetRule(10, 8, 1)))
    coreset = coreset_of(CoresetRule(50, 2, 0), rows())
    with pytest.raises(InvalidInputError, match="init has 2 features; the data have 3"):
        cluster_coreset(coreset, settings_of(2, init=np.zeros((2, 2)), n_init=1, max_iter=10, tol=0.0), 1)


def data(n=1000, d=3, seed=0):
    return rows(n, d, seed).astype(np.float32)


def rule(size=100, k=4, **options):
    return CoresetRule(size, k, 7, **options)


def fed(stream, X, step=None, weights=NO_WEIGHTS):
    step = step or X.shape[0]
    for start in range(0, X.shape[0], step):
        stream.add(X[start : start + step], weights[start : start + step])
    return stream


def assert_same_streams(one, other):
    a, b = one.coreset(), other.coreset()
    np.testing.assert_array_equal(naive.dense(a.X), naive.dense(b.X))
    np.testing.assert_array_equal(a.weights, b.weights)
    np.testing.assert_array_equal(a.row_ids, b.row_ids)
    assert (a.n_rows, a.total_weight, a.complete) == (b.n_rows, b.total_weight, b.complete)
    assert one.next_row == other.next_row


# ---- one state, however rows come


@pytest.mark.parametrize("sparse", [False, True])
@settings(max_examples=10)
@given(cuts=st.lists(st.integers(1, 699), max_size=12, unique=True))
def test_the_state_is_the_same_however_rows_are_cut(sparse, cuts):
    X = data(700)
    X = sp.csr_array(X) if sparse else X
    cut = Stream(rule(100))
    for start, stop in pairwise([0, *sorted(cuts), 700]):
        cut.add(X[start:stop])
    whole = fed(Stream(rule(100)), X)
    assert_same_streams(cut, whole)
    assert cut.n_rows == whole.n_rows == 700


@pytest.mark.parametrize("half_life", [np.inf, 150.0])
@settings(max_examples=6)
@given(split=st.integers(1, 899))
def test_two_machines_are_one_stream(half_life, split):
    X, weights = data(900), rng(2).integers(1, 4, 900).astype(float)
    kind = rule(100, half_life=half_life)
    first = fed(Stream(kind), X[:split], 100, weights[:split])
    second = fed(Stream(kind, next_row=split), X[split:], 70, weights[split:])
    one = fed(Stream(kind), X, 90, weights)
    for both in (first.merged(second), second.merged(first)):
        if half_life == np.inf:
            assert_same_streams(both, one)
        np.testing.assert_array_equal(both.coreset().row_ids, one.coreset().row_ids)
        np.testing.assert_allclose(both.coreset().weights, one.coreset().weights, rtol=1e-9)
        assert both.n_rows == 900


def test_streams_that_all_count_from_0_are_merged_too():
    """Statistically one stream: every row counts once, objectives stay unbiased."""
    X = data(900)
    truth = naive.nearest(X, X[:4])[1].sum()
    found = []
    for seed in range(40):
        parts = [fed(Stream(CoresetRule(100, 4, seed)), X[i::3]) for i in range(3)]
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merged(part)
        coreset = merged.coreset()
        np.testing.assert_allclose(coreset.weights.sum(), 900)
        assert len(coreset.weights) <= 100
        found.append(coreset.weights @ naive.nearest(coreset.X, X[:4])[1])
    assert abs(np.mean(found) - truth) <= 4 * np.std(found) / np.sqrt(40)


def test_an_empty_stream_merges():
    full = fed(Stream(rule()), data())
    assert_same_streams(full.merged(Stream(rule())), full)
    assert_same_streams(Stream(rule()).merged(full), full)


# ---- what it knows


@pytest.mark.parametrize("sparse", [False, True])
def test_the_weight_of_all_rows_is_kept(sparse):
    X, weights = data(777), rng(1).random(777)
    stream = fed(Stream(rule()), sp.csr_array(X) if sparse else X, 50, weights)
    assert (stream.n_rows, stream.next_row) == (777, 777)
    np.testing.assert_allclose(stream.coreset().weights.sum(), weights.sum())


def test_memory_grows_with_the_logarithm_of_the_rows():
    stream, X = Stream(rule(100)), data(500)
    for chunk in range(1, 41):
        stream.add(X)
        rows = sum(len(part.row_ids) for part in stream.tree.nodes.values())
        assert rows <= 100 * (1 + np.log2(max(1, stream.next_row / stream.part_rows)))
        assert stream.n_bytes <= (rows + stream.part_rows) * (3 * 4 + 8 + 8)
        assert stream.next_row == 500 * chunk


# ---- centers


def test_inertia_and_counts_are_those_of_the_coreset():
    stream = fed(Stream(rule(100)), data())
    (found, counts), coreset = cluster_coreset(stream.coreset(), settings_of(4)), stream.coreset()
    labels, d2 = naive.nearest(coreset.X, found.centers)
    np.testing.assert_allclose(found.inertia, coreset.weights @ d2, rtol=1e-5)
    np.testing.assert_allclose(counts, np.bincount(labels, coreset.weights))


# ---- sources


@pytest.mark.parametrize("sparse", [False, True])
def test_sources_are_fed_chunk_by_chunk(sparse, tmp_path):
    X, weights = data(500), rng(2).random(500)
    X[[3, 77, 78, 499], 1] = np.nan
    valid = np.isfinite(X).all(axis=1)
    kept = X[valid]
    path = tmp_path / "X.npy"
    np.save(path, X)
    for source in (open_source(sp.csr_array(X) if sparse else path), open_source([X[:200], X[200:]])):
        stream = Stream(rule())
        feed(stream.add, RowReader(source, 1000, "euclidean", "skip"), weights)
        kind = sp.csr_array(kept) if sp.issparse(stream.coreset().X) else kept
        assert_same_streams(stream, fed(Stream(rule()), kind, weights=weights[valid]))
        assert stream.n_rows == 496
        with pytest.raises(InvalidInputError, match="NaN in row 3"):
            feed(Stream(rule()).add, RowReader(open_source(X), 1000, "euclidean", "raise"), NO_WEIGHTS)


# ---- files


@cases(
    "harm",
    [
        lambda arrays, header: header.update(format=99),
        lambda arrays, header: header["value"].pop("nodes"),
        lambda arrays, header: header["value"]["rule"].update(size=0),
        lambda arrays, header: header["value"]["rule"].update(colour="red"),
        lambda arrays, header: arrays.pop(node(arrays, "row_ids")),
        lambda arrays, header: arrays.update({node(arrays, "X.indices"): arrays[node(arrays, "X.indices")] + 1000}),
        lambda arrays, header: arrays.update({node(arrays, "weights"): arrays[node(arrays, "weights")][:-1]}),
    ],
)
def test_damaged_states_are_refused(harm):
    arrays, header = fed(Stream(rule(40)), sp.csr_array(data(500))).state()
    harm(arrays, header)
    with pytest.raises(ModelFileError, match="no stream that this release reads"):
        Stream.restored(arrays, header)
    arrays, header = fed(Stream(rule(40)), data(500)).state()
    arrays[node(arrays, "X")] = arrays[node(arrays, "X")][:, :2]
    with pytest.raises(ModelFileError, match=r"needed: numbers \(40, 3\)|needed: numbers \(39, 3\)"):
        Stream.restored(arrays, header)


def node(arrays, end):
    """The name of an array of the first node."""
    return next(name for name in arrays if ".nodes." in name and name.endswith(f".{end}"))


# ---- errors leave the stream as it was


@cases(
    "X, message",
    [
        (np.zeros((2, 4)), "rows of 4 features; the stream has 3"),
        (sp.csr_array(np.eye(3)), "sparse rows in a stream of dense ones"),
    ],
)
def test_bad_chunks_are_refused(X, message):
    stream, same = fed(Stream(rule()), data()), fed(Stream(rule()), data())
    with pytest.raises(InvalidInputError, match=message):
        stream.add(X)
    assert_same_streams(stream, same)


def test_empty_streams_have_no_centers():
    stream = Stream(rule())
    with pytest.raises(InvalidInputError, match="no rows of positive weight yet"):
        cluster_coreset(stream.coreset(), settings_of(4))
    stream.add(data(5), np.zeros(5))
    with pytest.raises(InvalidInputError, match="no rows of positive weight yet"):
        stream.coreset()
    stream.add(data(5), np.ones(5))
    assert stream.coreset().n_rows == 10


def test_streams_that_do_not_fit_together_are_refused():
    with pytest.raises(InvalidParameterError, match="different rules"):
        Stream(rule()).merged(Stream(rule(60)))
    with pytest.raises(InvalidInputError, match="rows of 4 features; the stream has 3"):
        fed(Stream(rule()), data()).merged(fed(Stream(rule()), data(d=4)))


def test_sizes_follow_the_clusters_and_the_bytes_of_a_row():
    assert stream_size(100, 128) == default_size(100)
    assert stream_size(100, 4 * 784) == NODE_BYTES // (4 * 784)
    assert stream_size(100, 1e9) == 200
