"""How new rows differ from those of before: no alarm without change, changes told, figures against plain loops."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from sklearn.cluster import KMeans

from streamkm.cluster.distances import BINS, distance_histogram
from streamkm.core.exceptions import InvalidInputError
from streamkm.metrics.clusters import Wording
from streamkm.metrics.drift import ClusterState, compare

WORDING = Wording(lambda number: f"x{number}", 3)
CASES = [(k, far, d) for k in (2, 8, 40) for far in (8.0, 1.5) for d in (2, 24)]


def draw(rng, means, n_rows, shares=None):
    """Rows of normal groups with these means."""
    return means[rng.choice(len(means), n_rows, p=shares)] + rng.normal(size=(n_rows, means.shape[1]))


def state(X, centers, reach=None):
    """What rows are by cluster, and the novel ones."""
    k = len(centers)
    d2 = (X**2).sum(axis=1)[:, None] - 2 * X @ centers.T + (centers**2).sum(axis=1)
    labels = d2.argmin(axis=1)
    distances = np.sqrt(np.maximum(d2[np.arange(len(X)), labels], 0))
    counts, means = np.bincount(labels, minlength=k).astype(float), np.zeros_like(centers)
    np.add.at(means, labels, X)
    filled = np.maximum(counts, 1)
    if reach is None:
        reach = np.array([np.quantile(distances[labels == c], 0.99) if counts[c] else 0.0 for c in range(k)])
    away = np.bincount(labels, distances, minlength=k) / filled
    histogram = distance_histogram(distances, reach[labels])
    made = ClusterState(np.arange(k), counts, means / filled[:, None], away, reach, histogram, float(len(X)))
    return made, np.bincount(labels, distances > reach[labels], minlength=k).astype(float)


def unchanged(seed, n_before, n_now):
    """The verdict on rows like those before."""
    rng = np.random.default_rng(seed)
    k, far, d = CASES[seed % len(CASES)]
    means = rng.normal(size=(8, d)) * far
    X = draw(rng, means, n_before)
    centers = KMeans(k, n_init=1, max_iter=50, random_state=seed).fit(X).cluster_centers_
    before, _ = state(X, centers)
    return compare(before, *state(draw(rng, means, n_now), centers, before.reach), WORDING)


def test_rows_without_change_are_stable():
    verdicts = [unchanged(seed, 1000, (200, 2000)[seed // len(CASES) % 2]).verdict for seed in range(300)]
    assert sum(verdict != "stable" for verdict in verdicts) <= 3


@pytest.mark.slow
def test_many_rows_without_change_are_stable():
    verdicts = [unchanged(seed, 4000, 20_000).verdict for seed in range(300)]
    assert sum(verdict != "stable" for verdict in verdicts) <= 3


@pytest.mark.parametrize("d", [2, 24])
@pytest.mark.parametrize("change", ["share", "mean", "novel"])
def test_changes_are_told(change, d):
    found = 0
    means = np.zeros((8, d))
    means[:, :2] = 20 * np.stack([np.cos(np.arange(8) * np.pi / 4), np.sin(np.arange(8) * np.pi / 4)], axis=1)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        before, _ = state(draw(rng, means, 4000), means)
        changed, shares = means.copy(), np.full(8, 1 / 8)
        if change == "share":
            shares[3] *= 2
        if change == "mean":
            changed[3, seed % d] += before.distances[3] / 2
        X = draw(rng, changed, 4000, shares / shares.sum())
        if change == "novel":
            X[:200] = rng.normal(size=(200, d))
        drift = compare(before, *state(X, means, before.reach), WORDING)
        reasons = {each.id: each.reasons for each in drift.clusters}
        found += drift.verdict != "stable" and (change == "novel" or change in reasons[3])
    assert found >= 95


def test_far_rows_call_for_a_new_fit():
    rng = np.random.default_rng(0)
    means = np.array([[0.0, 0.0], [20.0, 0.0]])
    before, _ = state(draw(rng, means, 2000), means)
    drift = compare(before, *state(draw(rng, means + 4, 2000), means, before.reach), WORDING)
    assert drift.verdict == "fit again"
    assert str(drift).startswith("Fit again: PSI of shares ")
    assert set(drift.shifted()) == {0, 1}


def test_figures_are_those_of_a_loop():
    rng = np.random.default_rng(1)
    means = rng.normal(size=(3, 5)) * 9
    before, _ = state(draw(rng, means, 900), means)
    now, novel = state(draw(rng, means, 500, [0.2, 0.2, 0.6]), means, before.reach)
    drift = compare(before, now, novel, WORDING)
    psi = 0.0
    for x, y in zip(before.counts, now.counts, strict=True):
        p, q = (x + 0.5) / 901.5, (y + 0.5) / 501.5
        psi += (q - p) * log(q / p)
    assert drift.shares.value == pytest.approx(psi)
    assert drift.shares.by_chance == pytest.approx(2 * (1 / 900 + 1 / 500))
    assert drift.novelty.value == pytest.approx(novel.sum() / 500)
    for each in drift.clusters:
        away = np.abs(now.means[each.id] - before.means[each.id])
        assert each.shift == pytest.approx(np.linalg.norm(away) / before.distances[each.id])
        assert [moved.feature for moved in each.moved] == [f"x{n}" for n in np.argsort(-away)[:3]]
        assert each.moved[0].now == now.means[each.id][np.argmax(away)]


def test_the_scale_of_weights_does_not_matter():
    rng = np.random.default_rng(2)
    means = rng.normal(size=(4, 3)) * 9
    before, _ = state(draw(rng, means, 900), means)
    now, novel = state(draw(rng, means, 500), means, before.reach)
    light = replace(now, counts=now.counts / 8, histogram=now.histogram / 8)
    first, second = (compare(before, *each, WORDING) for each in ((now, novel), (light, novel / 8)))
    assert (first.shares, first.distances, first.novelty) == (second.shares, second.distances, second.novelty)


def test_no_rows_and_empty_clusters_are_stable():
    means = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 90.0]])
    before, _ = state(draw(np.random.default_rng(0), means[:2], 500), means)
    assert compare(before, *state(np.zeros((0, 2)), means, before.reach), WORDING).verdict == "stable"
    same, novel = state(draw(np.random.default_rng(1), means[:2], 500), means, before.reach)
    drift = compare(before, same, novel, WORDING)
    assert drift.verdict == "stable"
    assert np.isnan(drift.clusters[-1].shift)
    assert drift.clusters[-1].moved == ()


def test_bins_of_distances():
    found = distance_histogram(np.array([0.0, 0.5, 1.0, 1.01, 0.0, 2.0]), np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]))
    assert found[[0, BINS // 2, BINS - 1, BINS]].tolist() == [2, 1, 1, 2]


def test_states_of_different_clusters_are_refused():
    means = np.zeros((2, 2))
    before, novel = state(np.ones((5, 2)), means)
    with pytest.raises(InvalidInputError, match="different clusters"):
        compare(before, replace(before, ids=np.array([0, 5])), novel, WORDING)
    with pytest.raises(InvalidInputError, match="means of shape"):
        compare(before, replace(before, means=np.zeros((2, 3))), novel, WORDING)
    with pytest.raises(InvalidInputError, match="a weight for each of 2"):
        compare(before, before, np.zeros(3), WORDING)
