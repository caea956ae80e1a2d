"""How new rows differ from those of before; how an update is shown; silhouettes of scikit-learn."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
import sklearn.metrics
from scipy.stats import norm

from streamkm import IncrementalKMeans
from streamkm.cluster.profile import distance_histogram, euclidean_distances
from streamkm.cluster.tracking.followed import ClusterState
from streamkm.cluster.tracking.transition import Event
from streamkm.metrics.cluster_details import Wording, mean_silhouette
from streamkm.metrics.cluster_summary import ClusterDrift, Moved
from streamkm.metrics.drift import compare
from streamkm.metrics.drift_report import MOST_SHOWN, Drift, DriftFigure, Update
from tests.tables import cases, slow_but

WORDING = Wording(lambda number: f"x{number}", 3)
NONE = np.empty((0, 8))
CENTERS = 3 * np.random.default_rng(3).normal(size=(10, 8))


def heavy(kind, rng):
    if kind == "log-normal":
        return np.exp(rng.normal(0, 1.5, (1000, 3)))
    return rng.standard_t(2, (1000, 5))


def mixed(rng, shares=None, *, shift=0.0, groups=10):
    rows = CENTERS[rng.choice(groups, 1000, p=shares)] + rng.normal(size=(1000, 8))
    rows[:, 2] += shift
    return rows


def verdicts(updates, k, seed):
    """Of those updates that are judged, and the number of others."""
    kmeans = IncrementalKMeans(k, random_state=seed)
    found = [kmeans.update(rows).drift for rows in updates]
    return [drift.verdict for drift in found if drift is not None]


@pytest.mark.parametrize("kind", slow_but(["t"], ["log-normal", "t"], full=True))
def test_rows_without_change_are_stable(kind):
    rng = np.random.default_rng([5, 0])
    told = verdicts((heavy(kind, rng) for _ in range(14)), 10, 0)
    assert told == ["too few updates"] * 8 + ["stable"] * 5


@pytest.mark.parametrize("change", ["doubled", "gone", "new", "shifted"])
def test_changes_are_found(change):
    usual = np.full(10, 0.1)
    usual[9] = 0.0 if change == "new" else 0.1
    changed = usual.copy()
    changed[9] = {"doubled": 0.2, "gone": 0.0, "new": 0.1, "shifted": 0.1}[change]
    rng = np.random.default_rng([6, 0])
    kmeans = IncrementalKMeans(10, random_state=0)
    for _ in range(9):
        kmeans.update(mixed(rng, usual / usual.sum()))
    rows = mixed(rng, changed / changed.sum(), shift=CENTERS.std() if change == "shifted" else 0.0)
    judged = kmeans.drift(rows)
    assert judged.verdict == kmeans.update(rows).drift.verdict  # drift() does as update, and adds nothing
    assert any(each.reasons for each in judged.clusters) or judged.alarms()[1]
    assert judged.verdict != "stable"


def state(X, centers, reach=None):
    """What rows are by cluster, the novel ones, and the reach."""
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
    made = ClusterState(np.arange(k), counts, means / filled[:, None], away, histogram, float(len(X)))
    return made, np.bincount(labels, distances > reach[labels], minlength=k).astype(float), reach


def draw(rng, means, n_rows, shares=None):
    return means[rng.choice(len(means), n_rows, p=shares)] + rng.normal(size=(n_rows, means.shape[1]))


def test_figures_are_those_of_a_loop():
    rng = np.random.default_rng(1)
    means = rng.normal(size=(3, 5)) * 9
    before, _, reach = state(draw(rng, means, 900), means)
    now, novel, _ = state(draw(rng, means, 500, [0.2, 0.2, 0.6]), means, reach)
    drift = compare(before, now, novel, NONE, WORDING)
    changes, sizes = [], []
    for x, y in zip(before.counts, now.counts, strict=True):
        angles = [np.arcsin(np.sqrt((n + 0.375) / (total + 0.75))) for n, total in ((x, 900), (y, 500))]
        sizes.append(2 * abs(angles[1] - angles[0]) / np.sqrt(1 / 900 + 1 / 500))
        changes.append(abs(y / 500 - x / 900))
    most = int(np.argmax(sizes))
    assert drift.shares.value == pytest.approx(changes[most])
    assert drift.shares.units == pytest.approx(norm.isf(6 * norm.sf(sizes[most])), rel=1e-6)  # 3 clusters, both sides
    assert drift.novelty.value == pytest.approx(novel.sum() / 500)
    for each in drift.clusters:
        away = np.abs(now.means[each.id] - before.means[each.id])
        assert each.shift == pytest.approx(np.linalg.norm(away) / before.distances[each.id])
        assert [moved.feature for moved in each.moved] == [f"x{n}" for n in np.argsort(-away)[:3]]
        assert each.moved[0].now == now.means[each.id][np.argmax(away)]


def test_scores_are_deviations_from_the_median():
    rng = np.random.default_rng(2)
    means = rng.normal(size=(3, 5)) * 9
    before, _, reach = state(draw(rng, means, 900), means)
    now, novel, _ = state(draw(rng, means, 500), means, reach)
    row = np.array(compare(before, now, novel, NONE, WORDING).row)
    earlier = row + np.outer([-9.0, -3, -2, -1, 0, 1, 2, 3, 9], np.tile([0.0, 1.0], 4))
    found = compare(before, now, novel, earlier, WORDING)
    assert [each.score for each in found.figures] == pytest.approx([0, 0, 0, 0])
    moved = compare(before, now, novel, earlier - 2.5 * 2 * np.tile([0.0, 1.0], 4), WORDING)
    assert [each.score for each in moved.figures] == pytest.approx([2.5] * 4)
    assert compare(before, now, novel, earlier[:7], WORDING).verdict == "too few updates"
    light = replace(now, counts=now.counts / 8, histogram=now.histogram / 8)
    assert compare(before, light, novel / 8, earlier, WORDING).figures == found.figures


def test_no_rows_and_empty_clusters_raise_no_alarm():
    means = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 90.0]])
    before, _, reach = state(draw(np.random.default_rng(0), means[:2], 500), means)
    empty, novel, _ = state(np.zeros((0, 2)), means, reach)
    assert compare(before, empty, novel, np.zeros((9, 8)), WORDING).verdict == "too few updates"
    same, novel, _ = state(draw(np.random.default_rng(1), means[:2], 500), means, reach)
    drift = compare(before, same, novel, np.zeros((9, 8)), WORDING)
    assert drift.verdict == "stable"
    assert np.isnan(drift.clusters[-1].shift)
    assert drift.clusters[-1].moved == ()


def silhouette(X, labels):
    return mean_silhouette(euclidean_distances(X), labels)[0]


def rows(n=300, d=5, k=4, seed=0, dtype=np.float64):
    """Rows (n, d), many of them zero, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    X = rng.normal(size=(n, d)) + 2 * rng.normal(size=(k, d))[y]
    return (X * (rng.random((n, d)) < 0.7)).astype(dtype), y


@cases("stored", ["float64", "float32", "csr"])
def test_equals_scikit_learn(stored):
    X, y = rows(dtype=np.float32 if stored == "float32" else np.float64)
    y = y * 3 + 1  # gaps between labels
    wanted = sklearn.metrics.silhouette_score(X.astype(np.float64), y)
    assert silhouette(sp.csr_array(X) if stored == "csr" else X, y) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_silhouette_far_from_the_origin():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    X = np.round(60 * rng.normal(size=(300, 4)) + 900 * np.eye(4)[y])
    near, moved, single = silhouette(X, y), X + 2.0**37, (X + 2.0**16).astype(np.float32)  # whole numbers: exact
    assert near == pytest.approx(sklearn.metrics.silhouette_score(X, y), rel=1e-12)
    assert silhouette(moved, y) == pytest.approx(near, rel=1e-9)
    assert silhouette(single, y) == pytest.approx(near, rel=1e-6)
    assert silhouette(sp.csr_array(moved), y) == pytest.approx(near, rel=1e-9)
    np.testing.assert_allclose(
        euclidean_distances(moved[:50], moved[50:]), sklearn.metrics.pairwise_distances(X[:50], X[50:]), rtol=1e-9
    )


@cases("scale", [2.0**-700, 2.0**500])
def test_distances_whose_squares_float64_does_not_hold(scale):
    X, _ = rows()
    np.testing.assert_allclose(euclidean_distances(X * scale), euclidean_distances(X) * scale, rtol=1e-9)


def test_one_cluster_has_no_silhouette():
    X, y = rows(n=20)
    assert np.isnan(silhouette(X, np.zeros_like(y)))
    assert np.isnan(silhouette(X, np.arange(20)))


def test_the_standard_error():
    X, y = rows(n=70)
    values = sklearn.metrics.silhouette_samples(X, y)
    assert mean_silhouette(euclidean_distances(X), y) == pytest.approx((values.mean(), scipy.stats.sem(values)))
    assert np.isnan(mean_silhouette(euclidean_distances(X[:5]), np.arange(5))).all()


MOVED = (Moved("<fare>", 1.0, 2.0),)
CLUSTERS = (
    ClusterDrift(7, 300.0, 0.5, 0.75, 0.4, MOVED, 1.5, 1.75, 12.0, ("share", "mean")),
    ClusterDrift(2, 0.0, 0.5, 0.25, nan, (), 1.5, nan, 0.0, ()),
)
DRIFT = Drift(
    "shifted",
    CLUSTERS,
    DriftFigure(0.3, 9.0, 0.01, 9.0),
    DriftFigure(0.5, 0.1),
    DriftFigure(0.01, 0.0),
    DriftFigure(0.4, 20.0, 0.1, 9.0),
    9,
)
UPDATE = Update(DRIFT, (Event(3, "split", 7, 2, 300.0, nan),), 400, 12.5, nan, 0.125, True, 0.5)


def test_a_drift_prints_as_a_table_below_its_sentence():
    sentence, head, first, second = str(DRIFT).splitlines()
    assert sentence.startswith(
        "Shifted: largest change of a share 30.0% of the rows, usually 1.0%; largest shift 0.40 mean distances"
    )
    assert sentence.endswith("cluster 7 (share 50.0% to 75.0%, mean moved by 0.4 of the mean distance).")
    assert head.split("  ")[0] == "cluster"
    assert first.endswith("share, mean  <fare> 1 to 2")
    assert second.split() == ["2", "0", "50.0%", "25.0%", "-", "1.5", "-", "0", "-"]


def test_an_update_prints():
    text = str(UPDATE)
    assert "cluster 7 was split from cluster 2: 300 new rows" in text
    assert text.endswith(str(DRIFT).split("\n", 1)[1])  # the table of the drift
    assert "12.5 +- -" in text
    assert "12.5% of the rows so far" in text
    assert "&lt;fare&gt; 1 to 2" in UPDATE._repr_html_()
    first = Update(None, (), 400, 12.5, 0.1, 0.0, False, 0.5)
    assert "first update" in str(first)
    assert "none" in str(first)
    assert first.to_dict()["drift"] is None


def test_json_has_no_nan():
    told = json.loads(json.dumps(UPDATE.to_dict(), allow_nan=False))
    assert told["inertia_error"] is None
    assert told["drift"]["clusters"][1]["shift"] is None
    assert told["events"][0] == {"update": 3, "event": "split", "id": 7, "other": 2, "rows": 300.0, "gain": None}


def test_the_clusters_that_changed_most_are_shown():
    still = [ClusterDrift(id_, 10.0 * id_, 0.02, id_ / 1000, nan, (), 1.0, 1.0, 0.0, ()) for id_ in range(10, 30)]
    drift = replace(DRIFT, clusters=(*still, *CLUSTERS))
    assert [each.id for each in drift.most_changed(4)] == [7, 2, 10, 11]  # reasons first, then the change of the share
    assert len(drift.most_changed(100)) == 22
    for shown in (str(replace(UPDATE, drift=drift)), replace(UPDATE, drift=drift)._repr_html_()):
        assert "and 7 clusters that changed less" in shown
    assert "changed less" not in str(UPDATE)
    assert len(str(replace(UPDATE, drift=drift)).split("cluster  rows")[1].splitlines()) == MOST_SHOWN + 2


def test_events_are_told_in_words():
    told = [
        Event(3, "born", 41, None, 1230.4, nan),
        Event(3, "died", 5, None, 12.25, nan),
        Event(3, "joined", 6, 2, 3, nan),
    ]
    assert [UPDATE.event_text(event) for event in told] == [
        "cluster 41 was born: 1,230 new rows",
        "cluster 5 died: its rows stopped coming",
        "cluster 6 was joined to cluster 2",
    ]
    many = replace(UPDATE, events=tuple(told * 6))
    assert "and 3 more" in str(many)
    assert str(many).count("was born") == 5


def test_the_data_frame_of_an_update_has_its_events():
    born = Event(3, "born", 9, None, 50.0, nan)
    frame = replace(UPDATE, events=(*UPDATE.events, born)).to_pandas()
    assert frame.index.tolist() == [2, 7, 9]
    assert frame.index.name == "id"
    assert frame["events"].tolist() == [
        "",
        "cluster 7 was split from cluster 2: 300 new rows",
        "cluster 9 was born: 50 new rows",
    ]
    assert frame.loc[7, "rows"] == 300
    assert frame["rows"].isna().tolist() == [False, False, True]
    first = Update(None, (born,), 50, 12.5, 0.1, 0.0, False, 0.5).to_pandas()
    assert first["events"].to_dict() == {9: "cluster 9 was born: 50 new rows"}
    assert len(Update(None, (), 50, 12.5, 0.1, 0.0, False, 0.5).to_pandas()) == 0
    assert replace(UPDATE, events=()).to_pandas()["events"].tolist() == ["", ""]


def test_a_fixed_number_of_clusters_says_what_a_range_would_do():
    novel = replace(DRIFT, novelty=DriftFigure(0.16, 50.0))
    told = str(replace(UPDATE, drift=novel, fixed_k=6))
    assert "k is fixed at 6" in told
    assert "-k 3:12" in told
    assert "fixed" not in str(replace(UPDATE, fixed_k=6))
    assert "fixed" not in str(replace(UPDATE, drift=novel))


def test_new_clusters_stand_in_the_table_and_what_was_followed_calls_for_no_fit():
    drift = replace(DRIFT, verdict="fit again").labelled({7: 60, 9: 20, 2: 20}, {9: MOVED})
    assert [(each.id, each.rows, each.share) for each in drift.clusters] == [(7, 60, 0.6), (2, 20, 0.2), (9, 20, 0.2)]
    update = replace(UPDATE, drift=drift, events=(Event(3, "born", 9, None, 20, nan),))
    assert update.sentence().startswith("Followed by a new cluster: ")
    assert "cluster 9 was born: 20 new rows" in str(update)
