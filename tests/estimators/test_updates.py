"""Clusters that keep their ids while rows come: what is told of all rows without reading them again."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from streamkm import IncrementalKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError

EXACT = {"rtol": 1e-9}


def groups(rng, centers, n_rows, spread=0.3, shares=None):
    which = rng.choice(len(centers), n_rows, p=shares)
    return (centers[which] + spread * rng.normal(size=(n_rows, centers.shape[1]))).astype(np.float32), which


def stream_of(seed=0, steps=4, n_rows=1500, move=0.05, dims=6, k=7):
    """Steps of rows whose groups move."""
    rng = np.random.default_rng(seed)
    centers = 4 * rng.normal(size=(k, dims))
    for _ in range(steps):
        yield groups(rng, centers, n_rows)[0]
        centers = centers + move * rng.normal(size=centers.shape)


def naive(estimator, X, ids, half_life=None, weights=None):
    """Counts, means and objective of all rows, each in the cluster of its id."""
    ages = np.arange(len(X))[::-1]
    w = np.ones(len(X)) if weights is None else weights
    w = w if half_life is None else w * np.exp2(-ages / half_life)
    X, where = X.astype(np.float64), np.searchsorted(estimator.cluster_ids_, ids)
    d2 = np.square(X - estimator.model_.centers[where]).sum(axis=1)
    counts = np.bincount(where, w, minlength=len(estimator.cluster_ids_))
    sums = np.zeros(estimator.model_.centers.shape)
    np.add.at(sums, where, w[:, None] * X)
    return counts, sums / counts[:, None], float(w @ d2)


@pytest.mark.parametrize(("half_life", "weighted"), [(None, False), (2000.0, True)])
def test_what_is_told_of_all_rows_is_what_reading_them_gives(half_life, weighted):
    rng = np.random.default_rng(1)
    kmeans = IncrementalKMeans(7, half_life=half_life, random_state=0, invalid="skip")
    seen, ids, weights = [], [], []
    for X in stream_of():
        w = rng.uniform(0.5, 2, len(X)) if weighted else np.ones(len(X))
        update = kmeans.update(X, sample_weight=w if weighted else None)
        assert not any(event.event in ("split", "died") for event in update.events)
        np.testing.assert_array_equal(kmeans.labels_, kmeans.predict(X))
        seen, ids, weights = [*seen, X], [*ids, kmeans.labels_], [*weights, w]
    told = naive(kmeans, np.concatenate(seen), np.concatenate(ids), half_life, np.concatenate(weights))
    np.testing.assert_allclose(kmeans.counts_, told[0], **EXACT)
    np.testing.assert_allclose(kmeans.cluster_means_, told[1], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(kmeans.inertia_, told[2], **EXACT)
    assert kmeans.inertia_error_ == 0


def test_ids_are_given_once_and_told():
    rng = np.random.default_rng(3)
    centers = 8 * rng.normal(size=(6, 8))
    kmeans = IncrementalKMeans((3, 12), half_life=1000, tol=1e-3, random_state=0)
    kmeans.update(groups(rng, centers[:4], 3000)[0])
    assert kmeans.cluster_ids_.tolist() == [0, 1, 2, 3]
    assert kmeans.cluster_ids_.dtype == np.int64
    kept = kmeans.cluster_centers_[kmeans.predict(centers[1:2].astype(np.float32))]
    update = kmeans.update(groups(rng, centers[1:5], 3000)[0])
    born = [event for event in update.events if event.event == "born"]
    assert [event.id for event in born] == [4]
    assert kmeans.predict(centers[4:5].astype(np.float32)) == [4]
    assert [each.id for each in update.new] == [4]
    of_all = kmeans.counts_ @ kmeans.cluster_means_ / kmeans.counts_.sum()
    trait = int(np.abs(kmeans.cluster_means_[4] - of_all).argmax())
    assert update.new[0].traits[0].feature == f"x{trait}"
    assert f"cluster 4 was born: 3,000 new rows (x{trait} " in re.sub("[0-9,]+ new rows", "3,000 new rows", str(update))
    for _ in range(12):
        kmeans.update(groups(rng, centers[1:5], 3000)[0])
    died = [event.id for event in kmeans.lineage_ if event.event in ("died", "joined")]
    assert len(died) == 1
    assert sorted([*kmeans.cluster_ids_, *died]) == [0, 1, 2, 3, 4]
    assert kept.shape == (1, 8)
    kmeans.update(groups(rng, centers[[0, 1, 2, 3, 4]], 3000)[0])
    assert kmeans.cluster_ids_.max() == 5  # the group is back: another cluster
    assert [event.event for event in kmeans.lineage_ if event.id == died[0]] == ["born", "died"]


@pytest.mark.parametrize("kind", [pytest.param("float32", marks=pytest.mark.slow), "csr", "cosine"])
def test_threads_chunks_and_files_change_nothing(tmp_path, kind):
    metric = "cosine" if kind == "cosine" else "euclidean"
    given = [sp.csr_array(X) if kind == "csr" else X.astype("float32") for X in stream_of()]
    told = []
    for case in range(3):
        options = {"executor": 1 + case, "chunk_bytes": (1 << 24, 20_000, 7_000)[case]}
        kmeans = IncrementalKMeans(7, half_life=3000, random_state=0, metric=metric, **options)
        for number, X in enumerate(given):
            kmeans.update(X)
            if case == 2:
                kmeans.save(tmp_path / f"{number}.npz")
                kmeans = IncrementalKMeans.load(tmp_path / f"{number}.npz").set_params(**options)
        told.append([kmeans.cluster_ids_, kmeans.counts_, kmeans.cluster_centers_, kmeans.inertia_, kmeans.predict(X)])
    for other in told[1:]:
        for one, two in zip(told[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12 if kind != "csr" else 1e-9)


def test_a_fit_goes_on():
    first, second, *_ = stream_of()
    fitted = StreamKMeans(7, random_state=0).fit(first)
    kmeans = fitted.incremental()
    np.testing.assert_array_equal(kmeans.predict(first), fitted.labels_)
    kmeans.update(second)
    ids = np.concatenate([fitted.labels_, kmeans.labels_])
    counts, _, inertia = naive(kmeans, np.concatenate([first, second]), ids)
    np.testing.assert_allclose(kmeans.counts_, counts, **EXACT)
    np.testing.assert_allclose(kmeans.inertia_, inertia, rtol=1e-9)


def test_refusals():
    first, *_ = stream_of()
    for given in [(3, 2), (1.5, 2), (1, 2, 3), 0]:
        with pytest.raises(InvalidParameterError, match="n_clusters"):
            IncrementalKMeans(given).update(first)
    with pytest.raises(InvalidInputError, match="read only once"):
        IncrementalKMeans(7).update(iter([first]))
    with pytest.raises(InvalidInputError, match="call update first"):
        IncrementalKMeans(7).partial_fit(first).relabel(first)


def test_relabel_makes_all_exact():
    first, second, third, _ = stream_of(move=0.8)
    kmeans = IncrementalKMeans(7, half_life=4000, random_state=0)
    for X in (first, second, third):
        kmeans.update(X)
    everything = np.concatenate([first, second, third])
    with pytest.raises(InvalidInputError, match="3,000 valid rows; 4,500 were counted"):
        kmeans.relabel(everything[:3000])
    labels = kmeans.relabel(everything)
    np.testing.assert_array_equal(labels, kmeans.predict(everything))
    counts, means, inertia = naive(kmeans, everything, labels, 4000)
    np.testing.assert_allclose(kmeans.counts_, counts, **EXACT)
    np.testing.assert_allclose(kmeans.cluster_means_, means, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(kmeans.inertia_, inertia, **EXACT)
    assert kmeans.inertia_error_ == 0


def test_the_share_of_changed_labels_is_about_that_of_all_rows():
    rng = np.random.default_rng(5)
    for n_clusters in (7, (4, 12)):
        kmeans = IncrementalKMeans(n_clusters, random_state=0, tol=1e-3)
        seen, ids = [], []
        for rows in stream_of(seed=2, steps=6, move=0.15):
            X = np.concatenate([rows, groups(rng, 6 * rng.normal(size=(1, 6)), 200)[0]])
            update = kmeans.update(X, relabel_above=0.02)
            seen, ids = [*seen, X], [*ids, kmeans.labels_]
            changed = np.mean(kmeans.predict(np.concatenate(seen)) != np.concatenate(ids))
            assert abs(kmeans.changed_share_ - changed) <= 0.005 + 0.2 * changed
            assert update.relabel == (kmeans.changed_share_ > 0.02)
        kmeans.relabel(np.concatenate(seen))
        assert kmeans.changed_share_ == 0


@pytest.mark.slow
@pytest.mark.parametrize(("half_life", "n_rows"), [(None, 300), (4000, 2000)])
def test_rows_of_a_fit_count_by_their_weight_in_the_share_of_changed_labels(half_life, n_rows):
    """New rows come from groups that move; a group that is new takes no labels from the rows of the fit."""
    rng, centers = np.random.default_rng(3), 2.2 * np.random.default_rng(7).normal(size=(6, 5))
    X = groups(rng, centers, 20_000, 1.0)[0]
    fitted = StreamKMeans(6, random_state=0).fit(X)
    kmeans, seen, ids = fitted.incremental(half_life=half_life).set_params(n_clusters=(6, 8)), [X], [fitted.labels_]
    for night in range(6):
        moved = centers + 0.25 * night * np.eye(5)[0]
        rows = np.concatenate([groups(rng, moved, n_rows, 1.0)[0], groups(rng, centers[:1] + 30, n_rows // 5, 1.0)[0]])
        told = kmeans.update(rows).changed_share
        seen, ids = [*seen, rows], [*ids, kmeans.labels_]
    everything, labels = np.concatenate(seen), np.concatenate(ids)
    ages = np.arange(len(labels))[::-1]
    weights = None if half_life is None else np.exp2(-ages / half_life)
    changed = np.average(kmeans.predict(everything) != labels, weights=weights)
    assert changed / 2 <= told <= 2 * changed
    assert len(kmeans.relabel(everything)) == len(labels)
    assert kmeans.changed_share_ == 0


@pytest.mark.parametrize(("stray", "n_clusters"), [(0, (3, 8)), (1, 5)])
def test_a_cluster_dies_after_three_updates_with_hardly_any_row(n_clusters, stray):
    rng, centers = np.random.default_rng(9), 8 * np.random.default_rng(7).normal(size=(5, 4))
    kmeans = IncrementalKMeans(n_clusters, random_state=0, tol=1e-3)
    seen, given = [], []
    for night in range(6):
        X = groups(rng, centers if night < 3 else centers[:4], 1000, 1.0)[0]
        X[:stray] = centers[4]
        update = kmeans.update(X)
        seen, given = [*seen, X], [*given, kmeans.labels_]
        assert [each.event for each in update.events if each.event == "died"] == ["died"] * (night == 5)
    changed = np.mean(kmeans.predict(np.concatenate(seen)) != np.concatenate(given))
    assert update.changed_share == pytest.approx(changed, abs=0.02)
    assert len(kmeans.relabel(np.concatenate(seen))) == 6000
    assert kmeans.changed_share_ == 0


def test_ids_are_what_reports_and_databases_tell(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    rng = np.random.default_rng(0)
    centers = 8 * rng.normal(size=(5, 4))
    kmeans = IncrementalKMeans((2, 8), random_state=0, tol=1e-3, half_life=500)
    kmeans.update(groups(rng, centers[:3], 2000)[0])
    for _ in range(3):
        kmeans.update(groups(rng, centers[1:], 2000)[0])
    assert kmeans.cluster_ids_.tolist() == [1, 2, 3, 4]
    X = groups(rng, centers[1:], 50)[0]
    rows = pd.DataFrame(X, columns=list("abcd"))
    query = kmeans.to_sql(table="rows", columns=list("abcd"))
    found = duckdb.sql(query).df()["cluster"].to_numpy()
    np.testing.assert_array_equal(found, kmeans.predict(rows.to_numpy()))
    kmeans.report(tmp_path / "report.html")
    chips = re.findall(r'class="chip"[^>]*>(\d+)<', (tmp_path / "report.html").read_text())
    assert sorted(chips[:4]) == ["1", "2", "3", "4"]  # of the table of clusters


def copies(kmeans, folder, n):
    kmeans.save(folder / "common.npz", overwrite=True)
    return [IncrementalKMeans.load(folder / "common.npz") for _ in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "half_life"), [("dense", 2000.0), ("csr", None)])
def test_merged_clusters_are_those_of_all_rows(tmp_path, kind, half_life):
    base, left, right, _ = (X if kind == "dense" else sp.csr_array(X) for X in stream_of(move=0.1))
    begun = IncrementalKMeans(7, half_life=half_life, random_state=0)
    begun.update(base)
    ids = begun.labels_
    one, other = copies(begun, tmp_path, 2)
    one.update(left)
    other.update(right)
    centers, labels = one.model_.centers, {1: one.labels_, 2: other.labels_}
    both = one.merge(other)
    assert both.lineage_ == begun.lineage_
    np.testing.assert_array_equal(both.model_.centers, centers)
    assert both.n_samples_seen_ == 2 * 3000
    seen = [np.asarray(X.todense()) if kind == "csr" else X for X in (base, left, right)]
    told = [
        naive(both, np.concatenate([seen[0], seen[at]]), np.concatenate([ids, labels[at]]), half_life) for at in (1, 2)
    ]  # rows of the common model were counted by both
    counts = told[0][0] + told[1][0]
    means = (told[0][0][:, None] * told[0][1] + told[1][0][:, None] * told[1][1]) / counts[:, None]
    np.testing.assert_allclose(both.counts_, counts, **EXACT)
    np.testing.assert_allclose(both.cluster_means_, means, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(both.inertia_, told[0][2] + told[1][2], **EXACT)
    assert both.inertia_error_ == 0
    assert [each.update for each in both.updates_] == [0, 1, 2, 3]
    if half_life is not None:
        return
    labelled = np.concatenate([ids, labels[1], ids, labels[2]])
    changed = np.mean(both.predict(np.concatenate([seen[0], seen[1], seen[0], seen[2]])) != labelled)
    assert both.changed_share_ == pytest.approx(changed, abs=0.02)
    both.update(base)
    assert both.updates_[-1].update == 4
    np.testing.assert_allclose(both.counts_.sum(), sum(each.rows.sum() for each in both.updates_), **EXACT)


def test_merged_clusters_that_both_gave_ids_alone_get_other_ids(tmp_path):
    rng = np.random.default_rng(0)
    centers = 10 * rng.normal(size=(6, 5))
    begun = IncrementalKMeans((2, 9), tol=1e-3, random_state=0)
    begun.update(groups(rng, centers[:3], 2000)[0])
    one, other = copies(begun, tmp_path, 2)
    one.update(groups(rng, centers[:4], 2000)[0])
    other.update(groups(rng, centers[[0, 1, 2, 4, 5]], 2000)[0])
    assert one.cluster_ids_.tolist() == [0, 1, 2, 3]
    assert other.cluster_ids_.tolist() == [0, 1, 2, 3, 4]
    rows = dict(zip(other.cluster_ids_.tolist(), other.counts_, strict=True))
    both = one.merge(other)
    assert both.cluster_ids_.tolist() == [0, 1, 2, 3, 4, 5]
    assert [(each.event, each.id, each.other) for each in both.lineage_[3:]] == [
        ("born", 3, None),
        ("born", 4, None),
        ("born", 5, None),
        ("renamed", 4, 3),
        ("renamed", 5, 4),
    ]
    np.testing.assert_allclose(both.counts_[4:], [rows[3], rows[4]])
    np.testing.assert_array_equal(both.predict(centers[4:]), [4, 5] if rows[3] else [5, 4])
    both.save(tmp_path / "both.npz")
    loaded = IncrementalKMeans.load(tmp_path / "both.npz")
    loaded.update(groups(rng, centers, 3000)[0])
    assert set(loaded.cluster_ids_) == set(range(6))
    np.testing.assert_allclose(loaded.counts_.sum(), 2 * 4000 + 3000, **EXACT)


def test_drift_after_a_fit_rests_on_rows():
    """The means that stand for the rows of a fit say nothing of distances."""
    rng = np.random.default_rng(0)
    centers = 2.5 * rng.normal(size=(20, 8))
    kmeans = StreamKMeans(20, random_state=0).fit(groups(rng, centers, 5000, spread=1.0)[0]).incremental()
    for _ in range(3):
        drift = kmeans.update(groups(rng, centers, 5000, spread=1.0)[0]).drift
        assert drift.verdict == "too few updates"
    assert drift.novelty.value < 0.03
    assert abs(drift.shares.units) < 4


def test_drawn_rows_have_places_of_their_own(tmp_path):
    """Places in a file of text are bytes; two rows at one place would be kept or left out together."""
    rng = np.random.default_rng(0)
    kmeans = IncrementalKMeans(5, random_state=0)
    for night in range(2):
        X, _ = groups(rng, 6 * np.random.default_rng(1).normal(size=(5, 6)), 3000)
        dump_svmlight_file(X, np.zeros(3000), str(tmp_path / f"{night}.svm"))
        kmeans.update(tmp_path / f"{night}.svm")
    places = kmeans.stream_.followed.part.places
    assert len(np.unique(places)) == len(places) > 5000
    assert 5900 < places.max() < kmeans.stream_.next_row == 6000


def test_rows_of_no_weight_left_are_no_longer_kept():
    """A half-life of 5 rows: beyond some 5,000 rows weights are 0 in float64."""
    rng = np.random.default_rng(0)
    kmeans = IncrementalKMeans(3, half_life=5, random_state=0)
    for _ in range(2):
        kmeans.update(groups(rng, 6 * rng.normal(size=(3, 4)), 8000)[0])
        part = kmeans.stream_.followed.part
        assert part.X.shape[0] == len(part.places) == len(part.weights)
        assert (part.weights >= 0).all()
    np.testing.assert_allclose(kmeans.counts_.sum(), 1 / (1 - 2 ** (-1 / 5)))
