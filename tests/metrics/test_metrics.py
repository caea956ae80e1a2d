"""Agreement of labellings: against loops over pairs, scikit-learn, and any cutting into chunks."""

from __future__ import annotations

from functools import partial
from itertools import pairwise, permutations

import numpy as np
import pytest
import sklearn.metrics
import zarr
from hypothesis import given
from hypothesis import strategies as st

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.metrics import (
    Contingency,
    adjusted_rand,
    clustering_accuracy,
    contingency,
    normalized_mutual_info,
    objective_ratio,
    pairwise_f_beta,
)
from streamkm.metrics import agreement as metrics
from tests.tables import cases

LIKE_SKLEARN = [
    (normalized_mutual_info, sklearn.metrics.normalized_mutual_info_score),
    (
        partial(normalized_mutual_info, average_method="geometric"),
        partial(sklearn.metrics.normalized_mutual_info_score, average_method="geometric"),
    ),
    (adjusted_rand, sklearn.metrics.adjusted_rand_score),
]


def labellings(n=400, k=6, seed=0):
    """Classes, and clusters that agree with them on half of the rows."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, k, n)
    return true, np.where(rng.random(n) < 0.5, (true + 2) % k, rng.integers(0, k + 3, n))


def pairs_in_loops(true, pred):
    counts = [0, 0, 0, 0]
    for i in range(len(true)):
        for j in range(i):
            in_class, in_cluster = true[i] == true[j], pred[i] == pred[j]
            counts[0 if in_class and in_cluster else 1 if in_cluster else 2 if in_class else 3] += 1
    return tuple(counts)


def accuracy_in_loops(true, pred):
    """The best of all ways to give each cluster a class of its own."""
    classes, clusters = sorted(set(true)), sorted(set(pred))
    width = max(len(classes), len(clusters))
    best = 0
    for names in permutations(range(width), len(clusters)):
        named = {cluster: classes[name] for cluster, name in zip(clusters, names, strict=True) if name < len(classes)}
        best = max(best, sum(named.get(p) == t and p in named for t, p in zip(true, pred, strict=True)))
    return best / len(true)


labels = st.lists(st.integers(0, 4), min_size=1, max_size=25)


@given(labels, st.randoms(use_true_random=False))
def test_against_loops(true, random):
    pred = [random.randrange(4) for _ in true]
    counted = contingency(true, pred)
    for row, c in enumerate(counted.classes):
        for column, p in enumerate(counted.clusters):
            assert counted.table[row, column] == sum(t == c and q == p for t, q in zip(true, pred, strict=True))
    both, clusters, classes, neither = pairs_in_loops(true, pred)
    assert counted.pairs() == (both, clusters, classes, neither)
    assert clustering_accuracy(counted) == pytest.approx(accuracy_in_loops(true, pred), abs=1e-12)
    precision, recall = both / max(1, both + clusters), both / max(1, both + classes)
    for beta in (0.5, 1.0, 5.0):
        wanted = 1.0 if both + clusters + classes == 0 else 0.0
        if both:
            wanted = (1 + beta**2) * precision * recall / (beta**2 * precision + recall)
        assert pairwise_f_beta(true, pred, beta=beta) == pytest.approx(wanted, abs=1e-12)


@cases("ours, theirs", LIKE_SKLEARN)
@cases("shapes", [(400, 6), (50, 1), (3000, 300), (1, 1), (40, 40)])
def test_equals_scikit_learn(ours, theirs, shapes):
    true, pred = labellings(*shapes)
    for first, second in ((true, pred), (pred, true), (true, true), (true, np.zeros_like(true))):
        assert ours(first, second) == pytest.approx(theirs(first, second), abs=1e-12)


@pytest.mark.parametrize(("ours", "theirs"), LIKE_SKLEARN)
@given(true=labels, seed=st.integers(0, 9))
def test_equals_scikit_learn_on_any_labels(ours, theirs, true, seed):
    pred = np.random.default_rng(seed).integers(0, 3, len(true))
    assert ours(true, pred) == pytest.approx(theirs(true, pred), abs=1e-12)


def test_accuracy_matches_clusters_with_classes():
    assert clustering_accuracy([0, 0, 1, 1, 2, 2], [7, 7, 5, 5, 6, 0]) == 5 / 6
    assert clustering_accuracy([0, 0, 0, 0], [0, 1, 2, 3]) == 1 / 4  # clusters without a class count as wrong
    assert clustering_accuracy([0, 1, 2, 3], [0, 0, 0, 0]) == 1 / 4


def test_f_beta_weighs_recall():
    true, split, merged = [0] * 10 + [1] * 10, [0] * 5 + [1] * 5 + [2] * 10, [0] * 20
    assert pairwise_f_beta(true, merged) > pairwise_f_beta(true, split)
    assert pairwise_f_beta(true, merged, beta=0.2) < pairwise_f_beta(true, split, beta=0.2)
    with pytest.raises(InvalidParameterError, match="beta=0; needed: a number above 0"):
        pairwise_f_beta(true, split, beta=0)


# ---- labels in pieces


def same(one: Contingency, other: Contingency) -> bool:
    return (
        np.array_equal(one.table.toarray(), other.table.toarray())
        and np.array_equal(one.classes, other.classes)
        and np.array_equal(one.clusters, other.clusters)
        and one.n_left_out == other.n_left_out
    )


@given(cuts=st.lists(st.integers(0, 400), max_size=6), seed=st.integers(0, 3))
def test_chunks_equal_the_whole(cuts, seed):
    true, pred = labellings(seed=seed)
    pred[::7] = -1
    bounds = [0, *sorted(cuts), 400]
    pieces = ((true[a:b], pred[a:b]) for a, b in pairwise(bounds))
    assert same(contingency(pieces), contingency(true, pred))


def test_stored_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK_ROWS", 64)
    true, pred = labellings()
    wanted = sklearn.metrics.cluster.contingency_matrix(true, pred)
    stored = zarr.create_array(str(tmp_path / "labels.zarr"), shape=(400,), chunks=(50,), dtype=np.int32)
    stored[:] = pred
    np.save(tmp_path / "true.npy", true)
    counted = contingency(np.load(tmp_path / "true.npy", mmap_mode="r"), stored)
    np.testing.assert_array_equal(counted.table.toarray(), wanted)
    assert counted.table.dtype == np.int64


class Watched:
    """Stored labels that remember which of them were asked for at once."""

    def __init__(self, labels):
        self._labels, self.shape, self.chunks, self.asked = labels, labels.shape, labels.chunks, []

    def __getitem__(self, rows):
        self.asked.append((rows.start, min(rows.stop, self.shape[0])))
        return self._labels[rows]


@cases("measure", [clustering_accuracy, normalized_mutual_info, adjusted_rand, pairwise_f_beta])
def test_labels_larger_than_memory_are_read_some_whole_chunks_at_a_time(tmp_path, monkeypatch, measure):
    monkeypatch.setattr(metrics, "CHUNK_ROWS", 64)
    true, pred = labellings()
    pred[::9] = -1
    stored = []
    for name, labels, n_chunk in (("true", true, 50), ("pred", pred, 30)):
        array = zarr.create_array(str(tmp_path / name), shape=(400,), chunks=(n_chunk,), dtype=np.int64)
        array[:] = labels
        stored.append(Watched(array))
    assert measure(*stored) == measure(true, pred)
    for watched in stored:  # in steps of whole chunks of the larger kind: each row once, never all of them
        assert watched.asked == [(start, min(start + 100, 400)) for start in range(0, 400, 100)]


@pytest.mark.parametrize("many", [100, 5000])
def test_labels_of_any_range(monkeypatch, many):
    monkeypatch.setattr(metrics, "CHUNK_ROWS", 1000)  # so that pairs are joined on the way
    far = np.array([np.iinfo(np.int64).min, -5, 0, 3, np.iinfo(np.int64).max])
    rng = np.random.default_rng(0)
    true, pred = far[rng.integers(0, 5, 6000)], rng.integers(0, many, 6000) * 10**14
    counted = contingency(true, pred)
    wanted = sklearn.metrics.cluster.contingency_matrix(true, pred)
    np.testing.assert_array_equal(counted.table.toarray(), wanted)
    np.testing.assert_array_equal(counted.classes, np.unique(true))
    np.testing.assert_array_equal(counted.clusters, np.unique(pred))


def test_bool_and_unsigned_labels():
    assert adjusted_rand(np.array([True, False, True]), np.array([9, 3, 9], np.uint64)) == 1.0


def test_rows_without_a_cluster_take_no_part():
    true, pred = np.array([-1, -1, 1, 1, 1]), np.array([0, 0, 1, -1, -1])
    counted = contingency(true, pred)
    assert counted.n_left_out == 2
    assert counted.n_rows == 3
    np.testing.assert_array_equal(counted.classes, [-1, 1])  # a class may be -1
    assert adjusted_rand(true, pred) == 1.0
    np.testing.assert_array_equal(contingency(true, pred, invalid=None).clusters, [-1, 0, 1])
    assert contingency(true, pred, invalid=1).n_rows == 4


def test_large_counts_are_exact():
    """A table of 10^10 rows: pairs exceed 64 bits, and products of sums do by far."""
    big = 5 * 10**9
    table = contingency([0, 0, 1, 1], [0, 1, 0, 1])
    table.table.data[:] = [big, 3, 5, big]
    both, clusters, classes, neither = table.pairs()
    assert both == big * (big - 1) + 3 + 10
    assert clusters == big * 5 + big * 3
    assert classes == big * 3 + big * 5
    assert both + clusters + classes + neither == (2 * big + 8) * (2 * big + 7) // 2
    assert 0.999999 < adjusted_rand(table) < 1
    assert clustering_accuracy(table) == 2 * big / (2 * big + 8)


@cases(
    "true, pred, message",
    [
        ([0, 1], [0, 1, 2], r"labels have shapes \(2,\) and \(3,\)"),
        ([0.0, 1.0], [0, 1], "labels of chunk 0 are float64 of shape"),
        ([0, 1], ["a", "b"], "labels of chunk 0 are <U1"),
        ([], [], "labels"),
        ([0, 1], [-1, -1], r"2 rows are labelled -1"),
        ([0], np.array([2**63], np.uint64), "label 9223372036854775808 in chunk 0 does not fit"),
        ([(np.zeros(2, int), np.zeros(3, int))], None, "chunk 0 has 2 classes and 3 clusters"),
        (iter([]), None, "no labels to compare; needed: at least 1 row"),
    ],
)
def test_refused_labels(true, pred, message):
    with pytest.raises(InvalidInputError, match=message):
        contingency(true, pred)


def test_objective_ratio(small_topics):
    X, y = small_topics
    worse = np.random.default_rng(0).permutation(y)
    ratio = objective_ratio(X, worse, y)
    dense = X.toarray().astype(np.float64)

    def within(given):
        return sum(((dense[given == c] - dense[given == c].mean(axis=0)) ** 2).sum() for c in np.unique(given))

    assert ratio == pytest.approx(within(worse) / within(y), rel=1e-9)
    assert ratio > 1
    assert objective_ratio(np.ones((4, 2)), [0, 0, 1, 1], [0, 1, 0, 1]) == 1.0
    assert objective_ratio(np.eye(4), [0, 0, 1, 1], [0, 1, 2, 3]) == np.inf


def test_means_of_entropies():
    true, pred = labellings()
    arithmetic, geometric = (
        normalized_mutual_info(true, pred, average_method=name) for name in ("arithmetic", "geometric")
    )
    assert arithmetic <= geometric == normalized_mutual_info(true, pred, average_method="geometric")
    with pytest.raises(InvalidParameterError, match="average_method='max'"):
        normalized_mutual_info(true, pred, average_method="max")
