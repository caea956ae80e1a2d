"""Rows that a uniform sample does not show: how they are drawn, found, certified and acted on."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from streamkm import StreamKMeans
from streamkm.cluster.model import Model
from streamkm.cluster.sampling.row_sample import SampleCollector, SampleRule
from streamkm.cluster.seeding.draws import DrawRule, combined
from streamkm.engine import checkpoint as saving
from streamkm.engine import open_executor
from streamkm.fitting import refine
from streamkm.fitting.assign import estimate_inertia
from streamkm.fitting.gain import GlobalSearch
from streamkm.kernels.intrinsics.hashing import mix
from streamkm.passes import labels as label_sinks
from streamkm.planning import request as fit_request
from streamkm.sketches import IdentitySketch
from tests.children import StoppedError, stopped_after
from tests.dask_processes import assert_same_bits
from tests.limits import limited
from tests.tables import row, slow_but

WARNED = "The last pass estimates"


def rare_rows(n=12_000, d=6, groups=12, share=0.004, far=100.0, seed=0):
    """Mostly standard normal rows; some lie far away in small groups, which come last."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    n_far = max(groups, int(share * n))
    X[-n_far:] += far * rng.normal(size=(groups, d))[np.arange(n_far) * groups // n_far]
    return X.astype(np.float32)


def kmeans(n_clusters=15, **parameters):
    return StreamKMeans(n_clusters, **{"random_state": 0, "progress": False, **parameters})


def fit_warned(estimator, X, **options):
    """The estimator, fitted, and whether it warned that more could be gained."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        estimator.fit(X, **options)
    return estimator, any(WARNED in str(warning.message) for warning in seen)


# ---- draws


def drawn_naively(rule, places, weights, d2):
    """Rows, in the order of their places, and the first key left out."""
    u = np.array([(int(mix(np.uint64(rule.seed), np.uint64(p))) >> 12) + 0.5 for p in places]) / 2.0**52
    rates = weights * (rule.per_weight + rule.per_d2 * d2)
    with np.errstate(divide="ignore"):
        keys = np.where(rates > 0, -np.log1p(-u) / rates, np.inf)
    order = np.argsort(keys)
    limit = 1.5
    if len(keys) > rule.size and keys[order[rule.size]] < limit:
        limit = keys[order[rule.size]]
    kept = np.flatnonzero(keys < limit)
    return kept[np.argsort(places[kept])], limit


@given(seed=st.integers(0, 2**63), n=st.integers(1, 300), size=st.integers(1, 40), cuts=st.integers(1, 6))
@settings(max_examples=60)
def test_what_is_drawn_is_the_same_however_rows_are_cut_and_joined(seed, n, size, cuts):
    rng = np.random.default_rng(seed)
    places, weights, d2 = rng.permutation(10 * n)[:n], rng.integers(0, 3, n) * 1.0, rng.exponential(size=n) ** 3
    X = rng.normal(size=(n, 3))
    rule = DrawRule(size, seed, size / n, size / max(d2.sum(), 1e-9) * rng.choice([0.1, 1, 20]))
    kept, limit = drawn_naively(rule, places, weights, d2)
    pieces = np.array_split(rng.permutation(n), cuts)
    parts = ()
    for rows in pieces:
        parts = rule.gather((*parts, rule.draw(X[rows], places[rows], weights[rows], d2[rows])))
    found = rule.join(parts)
    np.testing.assert_array_equal(found.row_ids, places[kept])
    np.testing.assert_array_equal(found.X, X[kept])
    np.testing.assert_allclose(found.limit, limit, rtol=1e-12)
    assert found.n_rows <= size


def test_half_of_the_rows_are_drawn_by_weight_and_half_by_share_of_the_objective():
    rule = DrawRule.of(150, 0, 4000.0, 7.5)
    assert (rule.per_weight * 4000, rule.per_d2 * 7.5) == pytest.approx((75, 75))
    rule = DrawRule.of(2, 0, 4000.0, 0.0)  # of rows that are expected on centers: those that are not are drawn first
    d2 = np.zeros(4000)
    d2[[7, 3999]] = 1e-9
    assert rule.draw(np.ones((4000, 1)), np.arange(4000), np.ones(4000), d2).row_ids.tolist() == [7, 3999]


def test_sums_over_drawn_rows_are_unbiased():
    rng = np.random.default_rng(1)
    n = 3000
    values, d2, weights = rng.normal(3, 1, n), rng.pareto(1.5, n), rng.integers(1, 4, n) * 1.0
    X, places = values[:, None], np.arange(n)
    truth = weights @ values
    one, two = [], []
    for seed in range(300):
        rules = [DrawRule.of(150, 2 * seed + i, weights.sum(), weights @ d2 / (1 + i)) for i in range(2)]
        others = [d2, np.sqrt(d2)]  # what each is drawn by
        drawn = [rule.draw(X, places, weights, by) for rule, by in zip(rules, others, strict=True)]
        one.append(rules[0].unbiased(drawn[0]) @ drawn[0].X[:, 0])
        both = combined(rules, drawn, [np.concatenate([by[part.row_ids] for part in drawn]) for by in others])
        two.append(both.weights @ both.X[:, 0])
    for sums in (one, two):
        assert abs(np.mean(sums) - truth) < 3.5 * np.std(sums) / np.sqrt(len(sums))
    assert np.std(two) < np.std(one)


# ---- the objective


@pytest.mark.parametrize("share", [0.0008, pytest.param(0.01, marks=pytest.mark.slow)])
def test_rare_rows_are_clustered_as_well_as_scikit_learn_does(share):
    X = rare_rows(share=share, far=300.0)
    best = min(KMeans(15, n_init=1, random_state=seed).fit(X).inertia_ for seed in range(4))
    for order, rows in (("first", X[::-1]), ("last", X)):
        with row(order=order):
            found = [kmeans(random_state=seed).fit(rows).inertia_ / best for seed in range(3)]
            assert np.median(found) <= 1.005
            assert max(found) <= 1.03


# ---- the certificate, and what is done about it


def random_rows(seed):
    """Blobs of some spread, half of them with a few rows far away."""
    rng = np.random.default_rng(seed)
    d, k = int(rng.integers(3, 10)), int(rng.integers(4, 20))
    X = rng.normal(size=(5000, d)) * rng.choice([0.3, 1, 3]) + rng.normal(0, 3, (k, d))[rng.integers(0, k, 5000)]
    if seed % 2:
        n_far, groups = int(rng.integers(4, 30)), int(rng.integers(2, 5))
        X[rng.choice(5000, n_far, replace=False)] += (
            rng.choice([20, 100, 1000]) * rng.normal(size=(groups, d))[np.arange(n_far) % groups]
        )
    return X.astype(np.float32), k


@pytest.mark.slow
def test_the_certificate_warns_where_the_sample_was_blind_and_only_there(monkeypatch):
    """Data sets, clustered by 300 uniformly sampled rows alone, against fits that see all rows."""
    data = [random_rows(seed) for seed in range(16)]
    full = [kmeans(k).fit(X).inertia_ for X, k in data]
    monkeypatch.setattr(fit_request, "SMALLEST_SAMPLE_ROWS", 300)
    monkeypatch.setattr(fit_request, "SAMPLE_ROWS_PER_CLUSTER", 1)
    silent, false, n_bad = [], [], 0
    for seed, ((X, k), best) in enumerate(zip(data, full, strict=True)):
        blind, warned = fit_warned(kmeans(k, coreset="uniform", refine=0), X)
        ratio = blind.inertia_ / best
        n_bad += ratio >= 1.05
        if ratio >= 1.05 and not warned:
            silent.append((seed, ratio, blind.possible_gain_))
        if ratio <= 1.01 and warned:
            false.append((seed, ratio, blind.possible_gain_))
    assert n_bad >= 4
    assert not silent
    assert not false


def test_another_round_finds_what_the_sample_missed(small_sample):
    X = rare_rows()
    X = X[np.random.default_rng(0).permutation(len(X))]
    best = min(KMeans(15, n_init=1, random_state=seed).fit(X).inertia_ for seed in range(4))
    estimator = kmeans(coreset="uniform")
    assert dict(estimator.plan(X).lines())["passes"] == "2, up to 2 more if the sample missed something"
    fitted = estimator.fit(X)
    assert fitted.n_passes_ in (3, 4)
    assert [step["stage"] for step in fitted.history_][-1] == "refine"
    assert fitted.inertia_ <= 1.01 * best
    np.testing.assert_allclose(fitted.inertia_, -fitted.score(X), rtol=1e-9)
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    blind, warned = fit_warned(kmeans(coreset="uniform", refine=0), X)
    assert warned
    assert blind.n_passes_ == 2
    assert blind.possible_gain_ > 0.01
    assert blind.inertia_ > 1.1 * best
    asked, warned = fit_warned(kmeans(coreset="uniform", refine=1), X)
    assert warned
    assert asked.n_passes_ == 3


def groups_of_noise(n):
    rng = np.random.default_rng(0)
    return (rng.normal(0, 5, (6, 8))[rng.integers(0, 6, n)] + rng.normal(size=(n, 8))).astype(np.float32)


def test_where_nothing_was_missed_there_are_two_passes_and_the_promise_holds():
    X = groups_of_noise(60_000)
    fitted, warned = fit_warned(kmeans(6, coreset="uniform"), X)
    assert not warned
    assert fitted.n_passes_ == 2
    assert abs(fitted.expected_inertia_ - fitted.inertia_) <= 4 * fitted.expected_inertia_error_
    assert 0 < fitted.expected_inertia_error_ < 0.05 * fitted.inertia_
    everything = kmeans(6).fit(X[:3000])
    assert everything.expected_inertia_error_ == 0
    np.testing.assert_allclose(everything.expected_inertia_, everything.inertia_, rtol=1e-6)
    X = groups_of_noise(20_000)
    X[::4, 3] = np.nan  # rows that are skipped are not promised
    fitted = kmeans(6, invalid="skip").fit(X)
    assert abs(fitted.expected_inertia_ - fitted.inertia_) <= 4 * fitted.expected_inertia_error_


def test_centers_that_are_given_or_drawn_at_random_stay(small_sample):
    X = rare_rows(3000)
    for init in (X[:15].astype(np.float64), "random"):
        fitted, warned = fit_warned(kmeans(init=init, max_iter=3, n_init=1), X)
        assert fitted.n_passes_ == 2
        assert not warned


def worse_search(monkeypatch):
    """Have every search for another round end at centers that are worse."""

    def bad(self, *_, **__):
        return self.totals.means(fallback=self.model.centers) + 3.0

    monkeypatch.setattr(refine, "next_centers", lambda context, state, search, *_, **__: (bad(search), 1.0))
    monkeypatch.setattr(GlobalSearch, "swapped", bad)


def test_the_best_pass_is_kept_where_a_round_is_worse(small_sample, tmp_path, monkeypatch):
    X = rare_rows(12_000)
    plain = fit_warned(kmeans(coreset="uniform", refine=0), X)[0]
    worse_search(monkeypatch)
    for place in ({}, {"labels_to": tmp_path / "labels.zarr"}):
        fitted, _ = fit_warned(kmeans(coreset="uniform"), X, **place)
        worse, again = (entry["inertia"] for entry in fitted.history_ if entry["stage"] == "refine")
        assert worse > plain.inertia_
        assert again == fitted.inertia_ == plain.inertia_
        assert fitted.n_passes_ == 4
        np.testing.assert_array_equal(fitted.labels_[:], plain.labels_)
        np.testing.assert_array_equal(fitted.cluster_centers_, plain.cluster_centers_)
        assert fitted.possible_gain_ > 0.01


@pytest.mark.parametrize("worse", slow_but([True], [False, True]), ids=["better", "worse"])
def test_a_fit_stopped_in_a_round_goes_on_to_the_same_bits(small_sample, tmp_path, monkeypatch, worse):
    """Where the round is better than the pass before, and where it is worse and that pass is kept."""
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    np.save(tmp_path / "x.npy", rare_rows(12_000))
    options = {"coreset": "uniform", "chunk_bytes": 30_000, "executor": 1}
    if worse:
        worse_search(monkeypatch)
    wanted, _ = fit_warned(kmeans(**options), str(tmp_path / "x.npy"))
    for record in ("assign-2",) if worse else ("refined", "assign-1", "assign-0"):
        given = {"checkpoint": tmp_path / record}
        estimator = kmeans(**options)
        with row(record=record):
            with monkeypatch.context() as patched:
                (stopped_in_labels if record.startswith("assign") else stopped_after)(patched, record)
                with pytest.raises(StoppedError):
                    estimator.fit(str(tmp_path / "x.npy"), **given)
            fitted, _ = fit_warned(estimator, str(tmp_path / "x.npy"), **given)
            assert_same_bits(fitted, wanted)
            for name in ("n_passes_", "possible_gain_", "expected_inertia_"):
                assert getattr(fitted, name) == getattr(wanted, name)


def stopped_in_labels(monkeypatch, record):
    """Stop a fit behind the second save of a pass that assigns rows."""
    original, seen = label_sinks.GatheredLabels.save, []

    def save(self, name, folded):
        original(self, name, folded)
        seen.append(name)
        if seen.count(record) == 2:
            raise StoppedError(record)

    monkeypatch.setattr(label_sinks.GatheredLabels, "save", save)


def test_nothing_is_drawn_where_memory_has_no_room():
    X = np.zeros((40, 200_000), np.float32) + np.arange(40, dtype=np.float32)[:, None]
    fitted = kmeans(2, memory_limit=limited("700 MiB")).fit(X)
    assert fitted.plan_.drawn_rows == 0
    assert fitted.expected_inertia_ is fitted.expected_inertia_error_ is None


def heavy_rows(tail, seed, n=6000, d=4):
    """Standard normal rows, each times a Pareto factor."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, d)) * (1 + rng.pareto(tail, size=(n, 1)))).astype(np.float32)


def test_what_few_rows_decide_is_logged_and_not_told(caplog):
    caplog.set_level(logging.INFO, logger="streamkm")
    fitted, _ = fit_warned(kmeans(4, coreset="uniform", refine=0), heavy_rows(1.5, 0, n=20_000))
    assert fitted.expected_inertia_ is fitted.expected_inertia_error_ is None
    assert fitted.possible_gain_ is not None
    assert "no objective is predicted: too few rows" in caplog.text


@pytest.mark.slow
def test_the_error_is_that_of_many_samples():
    """Estimates minus the truth, over their errors, have mean 0 and deviation 1."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 4, 30_000)
    X = (np.array([1.0, 1.0, 2.0, 3.0])[groups, None] * rng.normal(size=(30_000, 4))).astype(np.float32)
    X[:, 0] += 100 * groups
    weights = 1 + rng.pareto(1.5, len(X))
    centers = np.zeros((4, 4))
    centers[:, 0] = 100 * np.arange(4)
    model = Model(centers, 4, "euclidean", "original", IdentitySketch(4)).with_table()
    d2 = np.square(X - centers[groups]).sum(axis=1, dtype=np.float64)
    total, truth = float(weights.sum()), float(d2 @ weights)
    scores = []
    with open_executor(1) as here:
        for seed in range(120):
            rule = SampleRule.of(12_000, 7919 * seed + 1, len(X), weights)
            collector = SampleCollector(12_000)
            places = np.arange(len(X))
            collector.add(rule.candidates(X, places, places, weights), 0)
            sample = collector.sample(4, len(X), weights)
            promise = estimate_inertia(here, sample, weights[sample.rows], model, total)
            assert not promise.few_decide
            scores.append((promise.inertia - truth) / promise.error)
    assert abs(np.mean(scores)) <= 4 / np.sqrt(120)
    assert 0.8 <= np.std(scores) <= 1.2
