"""Endless streams: the same state however rows are cut, merged or saved, flat memory, and centers at any moment."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.coreset import CoresetRule, default_size
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.fitting.streams.coreset_clusters import cluster_coreset
from streamkm.fitting.streams.stream import NODE_BYTES, Stream, stream_size
from streamkm.fitting.streams.waiting_rows import feed
from streamkm.passes.reader import RowReader
from streamkm.sources import open_source
from tests import naive
from tests.cluster.test_coreset import METHODS, rng, rows, settings_of
from tests.tables import cases


def data(n=1000, d=3, seed=0):
    return rows(n, d, seed).astype(np.float32)


def rule(size=100, k=4, method="sensitivity", **options):
    return CoresetRule(size, k, 7, method, **options)


def fed(stream, X, step=None, weights=NO_WEIGHTS):
    step = step or X.shape[0]
    for start in range(0, X.shape[0], step):
        stream.add(X[start : start + step], weights[start : start + step])
    return stream


def assert_same(one, other):
    a, b = one.coreset(), other.coreset()
    np.testing.assert_array_equal(naive.dense(a.X), naive.dense(b.X))
    np.testing.assert_array_equal(a.weights, b.weights)
    np.testing.assert_array_equal(a.places, b.places)
    assert (a.n_rows, a.total_weight, a.complete) == (b.n_rows, b.total_weight, b.complete)
    assert one.next_row == other.next_row


# ---- one state, however rows come


@pytest.mark.parametrize(("method", "sparse"), [(method, False) for method in METHODS] + [("sensitivity", True)])
@settings(max_examples=10)
@given(cuts=st.lists(st.integers(1, 699), max_size=12, unique=True))
def test_the_state_is_the_same_however_rows_are_cut(method, sparse, cuts):
    X = data(700)
    X = sp.csr_array(X) if sparse else X
    cut = Stream(rule(100, method=method))
    for start, stop in pairwise([0, *sorted(cuts), 700]):
        cut.add(X[start:stop])
    whole = fed(Stream(rule(100, method=method)), X)
    assert_same(cut, whole)
    assert cut.n_rows == whole.n_rows == 700


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("half_life", [np.inf, 150.0])
@settings(max_examples=6)
@given(split=st.integers(1, 899))
def test_two_machines_are_one_stream(method, half_life, split):
    X, weights = data(900), rng(2).integers(1, 4, 900).astype(float)
    kind = rule(100, method=method, half_life=half_life)
    first = fed(Stream(kind), X[:split], 100, weights[:split])
    second = fed(Stream(kind, next_row=split), X[split:], 70, weights[split:])
    one = fed(Stream(kind), X, 90, weights)
    for both in (first.merged(second), second.merged(first)):
        if half_life == np.inf:
            assert_same(both, one)
        np.testing.assert_array_equal(both.coreset().places, one.coreset().places)
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
    assert_same(full.merged(Stream(rule())), full)
    assert_same(Stream(rule()).merged(full), full)


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
        rows = sum(len(part.places) for part in stream.tree.nodes.values())
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
        assert_same(stream, fed(Stream(rule()), kind, weights=weights[valid]))
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
        lambda arrays, header: arrays.pop(node(arrays, "places")),
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
    assert_same(stream, same)


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
