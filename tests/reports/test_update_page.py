"""The page of an update or a drift: the verdict first, events in words, every cluster, names escaped."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from streamkm.cluster.tracking.transition import Event
from streamkm.reports.figures import MOST_PAIRS, plot_shares
from streamkm.reports.page import TITLE
from streamkm.reports.report import update_page
from tests.metrics.test_update import CLUSTERS, DRIFT, UPDATE


def test_a_page_says_the_verdict_first():
    page = update_page(UPDATE)
    assert TITLE in page
    heads = [
        page.index(text)
        for text in ("differ from those before</h1>", "Shifted: largest change of a share", "was split", "<svg", "fare")
    ]
    assert heads == sorted(heads)
    assert "&lt;fare&gt; 1 to 2" in page
    assert "cluster 7 was split from cluster 2: 300 new rows" in page
    assert page.count("http") == page.count("http-equiv")  # nothing is requested


def test_a_drift_alone_has_no_events():
    page = update_page(replace(DRIFT, verdict="fit again"))
    assert "fit again</h1>" in page
    assert "Events" not in page


def test_the_first_update_has_neither_drift_nor_pictures():
    page = update_page(replace(UPDATE, drift=None, events=()))
    assert "These are the first rows</h1>" in page
    assert "<svg" not in page


@pytest.mark.parametrize("n_clusters", [2, MOST_PAIRS + 5])
def test_bars_are_pairs_of_the_largest_clusters(n_clusters):
    clusters = tuple(replace(CLUSTERS[0], id=id_, share=0.001 * id_, share_before=0.0) for id_ in range(n_clusters))
    (panel,) = plot_shares(replace(DRIFT, clusters=clusters)).axes
    shown = min(n_clusters, MOST_PAIRS)
    assert len(panel.patches) == 2 * shown
    assert [int(text.get_text()) for text in panel.get_xticklabels()] == list(range(n_clusters))[::-1][:shown]


def test_a_page_of_clusters_that_followed_does_not_call_for_a_fit():
    drift = replace(DRIFT, verdict="fit again").labelled({7: 60, 9: 40}, {9: ()})
    page = update_page(replace(UPDATE, drift=drift, events=(Event(3, "born", 9, None, 40, nan),)))
    assert "the clusters have followed</h1>" in page
    assert "fit again" not in page.lower()
    assert plot_shares(drift).axes[0].get_xticklabels()[2].get_text() == "9"
