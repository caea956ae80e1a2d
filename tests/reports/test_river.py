"""The river of a stream's clusters; the page of an update or a drift."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from streamkm import IncrementalKMeans
from streamkm.cluster.tracking.transition import Event, UpdateRows
from streamkm.core.exceptions import InvalidInputError
from streamkm.reports.figures import MOST_PAIRS, plot_river, plot_shares
from streamkm.reports.maps import MOST_BANDS, REST, band_shares
from streamkm.reports.page import TITLE
from streamkm.reports.report import update_page
from tests.metrics.test_update import CLUSTERS, DRIFT, UPDATE


def rows(*updates):
    return [
        UpdateRows(number, np.array(list(each)), np.array(list(each.values()), float))
        for number, each in enumerate(updates)
    ]


def event(update, kind, id_, other=None):
    return Event(update, kind, id_, other, 1.0, 0.0)


UPDATES = rows({0: 30, 1: 60, 2: 10}, {0: 20, 1: 60, 2: 10, 3: 10}, {0: 10, 1: 60, 3: 20, 4: 10})
LINEAGE = [event(1, "split", 3, 0), event(2, "joined", 2, 0), event(2, "born", 4)]


def test_bands_lie_beside_those_they_were_split_from_or_joined_to():
    ids, shares = band_shares(UPDATES, LINEAGE)
    assert ids == [0, 3, 2, 1, 4]
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    np.testing.assert_allclose(shares[ids.index(3)], [0, 0.1, 0.2])


def test_clusters_that_were_joined_in_a_circle_are_shown_once():
    ids, _ = band_shares(UPDATES, [event(1, "joined", 0, 1), event(2, "joined", 1, 0)])
    assert sorted(ids) == [0, 1, 2, 3, 4]


def test_small_clusters_share_a_band():
    many = {id_: 1 + id_ for id_ in range(MOST_BANDS + 9)}
    ids, shares = band_shares(rows(many, many), [])
    assert ids[-1] == REST
    assert sorted(ids[:-1]) == list(range(9, MOST_BANDS + 9))
    np.testing.assert_allclose(shares[-1], sum(range(1, 10)) / sum(many.values()))


def test_every_kind_of_event_is_marked_and_named_once():
    (panel,) = plot_river(UPDATES, [event(0, "born", 0), *LINEAGE, event(2, "died", 1)]).axes
    marked = {line.get_label(): line.get_xydata()[:, 0].tolist() for line in panel.lines}
    assert marked == {"born": [2], "died": [1], "split from its neighbour": [1], "joined to another": [1]}
    assert {text.get_text().strip() for text in panel.texts} == {"0", "1", "2", "3", "4"}


def test_a_figure_over_time_needs_two_updates():
    kmeans = IncrementalKMeans(2, random_state=0)
    X = np.random.default_rng(0).normal(size=(60, 3)) + 9 * (np.arange(60) % 2)[:, None]
    kmeans.update(X)
    with pytest.raises(InvalidInputError, match=r"1 update so far.*call update again"):
        kmeans.plot_updates()
    kmeans.update(X)
    assert len(kmeans.plot_updates().axes[0].collections) == 2


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
