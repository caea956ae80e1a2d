"""How an update is shown: text, pages of notebooks, JSON, data frames."""

from __future__ import annotations

import json
from math import nan

from streamkm.metrics.update import ClusterDrift, Drift, Event, Evidence, Moved, Update

MOVED = (Moved("<fare>", 1.0, 2.0),)
CLUSTERS = (
    ClusterDrift(7, 1000.0, 300.0, 0.5, 0.75, 0.4, MOVED, 1.5, 1.75, 12.0, ("share", "mean")),
    ClusterDrift(2, 1000.0, 0.0, 0.5, 0.25, nan, (), 1.5, nan, 0.0, ()),
)
DRIFT = Drift(
    "shifted", CLUSTERS, Evidence(0.3, 0.01, 0.0), Evidence(0.0, 0.1, 0.5), Evidence(0.01, 0.01, 0.5), 2000, 400
)
UPDATE = Update(DRIFT, (Event(3, "split", 7, 2, 300.0, nan),), 400, 12.5, nan, 0.125, True, 0.5)


def test_a_drift_prints_as_a_table_below_its_sentence():
    sentence, head, first, second = str(DRIFT).splitlines()
    assert sentence.startswith("Shifted: PSI of shares 0.300 (0.010 by chance)")
    assert sentence.endswith("cluster 7 (share 50.0% to 75.0%, mean moved by 0.4 of the mean distance).")
    assert head.split("  ")[0] == "cluster"
    assert first.endswith("share, mean  <fare> 1 to 2")
    assert second.split() == ["2", "1,000", "0", "50.0%", "25.0%", "-", "1.5", "-", "0", "-"]


def test_pages_escape_names():
    shown = DRIFT._repr_html_()
    assert "&lt;fare&gt; 1 to 2" in shown
    assert shown.count("<tr>") == 3


def test_an_update_prints():
    text = str(UPDATE)
    assert "7 split with 2" in text
    assert "12.5 +- -" in text
    assert "at most 12.5%" in text
    assert "<table>" in UPDATE._repr_html_()
    first = Update(None, (), 400, 12.5, 0.1, 0.0, False, 0.5)
    assert "first update" in str(first)
    assert first.to_dict()["drift"] is None


def test_json_has_no_nan():
    told = json.loads(json.dumps(UPDATE.to_dict(), allow_nan=False))
    assert told["inertia_error"] is None
    assert told["drift"]["clusters"][1]["shift"] is None
    assert told["events"][0] == {"update": 3, "event": "split", "id": 7, "other": 2, "rows": 300.0, "gain": None}


def test_a_data_frame_has_a_row_for_each_cluster():
    frame = DRIFT.to_pandas()
    assert frame.index.tolist() == [7, 2]
    assert frame.loc[7, "reasons"] == "share, mean"
    assert frame.loc[7, "moved"] == "<fare> 1 to 2"
