"""How an update is shown: text, pages of notebooks, JSON, data frames."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan

from streamkm.cluster.tracking.transition import Event
from streamkm.metrics.cluster_summary import ClusterDrift, Moved
from streamkm.metrics.drift_report import MOST_SHOWN, Drift, DriftFigure, Update

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
