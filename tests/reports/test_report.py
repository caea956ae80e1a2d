"""Pictures and the report say what they should; the river of a stream's clusters, the page of an update."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import sys
from dataclasses import replace
from math import nan

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.datasets
import sklearn.metrics
from jinja2 import UndefinedError
from sklearn.exceptions import NotFittedError

from streamkm import IncrementalKMeans, SketchOptions, StreamKMeans
from streamkm.cluster.tracking.transition import Event, UpdateRows
from streamkm.core.exceptions import InvalidInputError, MissingDependencyError, OutputError
from streamkm.estimators.model_files import summarize
from streamkm.reports.figures import MOST_PAIRS, plot_river, plot_shares
from streamkm.reports.maps import MOST_BANDS, REST, ClusterMap, apart, band_shares, cluster_map
from streamkm.reports.page import TITLE, render_page
from streamkm.reports.report import report_page, update_page
from tests.metrics.test_drift import CLUSTERS, DRIFT, UPDATE
from tests.tables import cases, slow_but

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex

from streamkm.reports.figures import plot_clusters, plot_map, plot_sizes, svg
from streamkm.reports.maps import COLOURS, GREY

SUMMARY = {
    "data": {"name": "<x>.svm", "n_samples": 1234, "n_skipped": 4, "n_features": 7, "stored_bytes": 99},
    "result": {
        "n_clusters": 3, "objective": 12.5, "objective_per_row": 0.01, "distortion": None, "n_components": 7,
        "assign_space": "sketch", "n_passes": 2, "n_iter": 5, "converged": False, "counts": [600, 600, 30],
    },
    "seconds": 1.5,
    "stages": [{"name": "sketch", "seconds": 1.5, "read_bytes": 99, "rows": 1234}],
    "history": [{"stage": "lloyd", "iteration": i, "inertia": 20.0 - i} for i in range(1, 6)],
    "parameters": {"init": "<b>", "n_clusters": 3},
    "versions": {"python": "3.11"},
}  # fmt: skip


def page():
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(50, 2)).astype(np.float32), rng.integers(3, size=50).astype(np.int32)
    return report_page(SUMMARY, ClusterMap(points, labels, of_rows=True, by_neighbours=True), "")


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_sizes_are_sorted_and_named():
    figure = plot_sizes([5, 20, 10])
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [20, 10, 5]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "0"]
    assert titles(figure) == ["3 clusters of 5 to 20 rows, median 10"]
    assert axes.get_yscale() == "linear"
    assert plot_sizes([1, 1000]).axes[0].get_yscale() == "log"
    for counts in ([1], [0, 0], [0, 1, 10_000], np.arange(500), [0.5, 1e9]):
        plot_sizes(counts).canvas.draw()


def blobs(n_clusters, n=240, d=8, spread=0.5):
    """Rows far from those of other clusters, their clusters, and the sizes of these."""
    rng = np.random.default_rng(0)
    labels = (np.arange(n) % n_clusters).astype(np.int32)
    X = rng.normal(size=(n_clusters, d))[labels] * 10 + spread * rng.normal(size=(n, d))
    return X, labels, np.bincount(labels).astype(float)


@cases("n_clusters, sparse", [(2, False), (3, True), (4, False), (12, True)])
def test_rows_lie_beside_rows_of_their_cluster(n_clusters, sparse):
    X, labels, sizes = blobs(n_clusters)
    places = cluster_map(sp.csr_array(X) if sparse else X, labels, sizes)
    assert places.of_rows
    assert places.by_neighbours == (n_clusters > 3)
    assert not cluster_map(X[:, :2], labels, sizes).by_neighbours  # the plane of two features shows all
    d2 = ((places.points[:, None] - places.points) ** 2).sum(axis=2)
    np.fill_diagonal(d2, np.inf)
    assert (places.labels[d2.argmin(axis=1)] == places.labels).mean() > 0.97


def test_of_very_many_clusters_the_means_are_shown():
    X, labels, sizes = blobs(200, n=1000)
    places = cluster_map(X, np.where(labels == 7, -1, labels), sizes)
    assert not places.of_rows
    assert places.labels.tolist() == [c for c in range(200) if c != 7]


@cases("shape", [(0, 5), (1, 5), (2, 5), (5, 1), (5, 2), (9, 3)])
@cases("make", [np.ones, np.zeros, lambda shape: np.arange(np.prod(shape)).reshape(shape)])
@cases("sparse", [False, True])
def test_maps_of_few_or_equal_rows(shape, make, sparse):
    X = make(shape).astype(np.float32)
    for labels in (np.zeros(shape[0], np.int32), np.arange(shape[0], dtype=np.int32), np.full(shape[0], -1, np.int32)):
        places = cluster_map(sp.csr_array(X) if sparse else X, labels, np.ones(shape[0] + 1))
        assert places.points.shape == ((labels >= 0).sum(), 2)
        assert np.isfinite(places.points).all()
        if not sparse:  # drawn is what was found, which says nothing of the rows
            plot_map(places, np.ones(shape[0] + 1), {0: "0"}).canvas.draw()


def test_names_do_not_cover_each_other():
    rng = np.random.default_rng(0)
    sizes = np.column_stack([rng.uniform(20, 60, 20), np.full(20, 12.0)])
    for spread in (0.0, 5.0, 100.0):
        places = 250 + spread * rng.normal(size=(20, 2))
        at = apart(places, sizes, (0, 0, 500, 500))
        room = (sizes[:, None] + sizes) / 2 - np.abs(at[:, None] - at)
        room[np.arange(20), np.arange(20)] = -1
        assert not (room > 0.1).all(axis=2).any()
        assert (at - sizes / 2 >= -1e-9).all()
        assert (at + sizes / 2 <= 500 + 1e-9).all()
    assert apart(places * 0 + [[10, 10]] * 20, sizes, (0, 0, 40, 20)).shape == (20, 2)  # no room: it ends


@pytest.mark.parametrize("n_clusters", slow_but([26], [1, 2, 26, 300]))
def test_figures_of_any_number_of_clusters(n_clusters):
    X, labels, sizes = blobs(n_clusters, n=300)
    names = {c: f"{c} <word>" for c in range(n_clusters)}
    places = cluster_map(X, labels, sizes)
    figure, again = (plot_clusters(places, sizes, names) for _ in range(2))
    text = svg(figure)
    assert len(figure.axes) == 2
    shown = [each.get_text() for each in figure.axes[0].texts]
    assert set(shown) <= set(names.values())
    assert 0 < len(shown) <= 25
    assert "<word>" not in text
    assert "var(--ink)" in text
    assert "http" not in text
    assert svg(again) == text


def test_a_cluster_has_one_colour_on_the_map_and_in_the_table():
    sizes = np.arange(40.0)[::-1] + 1
    places = ClusterMap(np.random.default_rng(0).normal(size=(40, 2)), np.arange(40, dtype=np.int32), True, False)
    (panel,) = plot_map(places, sizes, {c: str(c) for c in range(40)}).axes
    chips = {text.get_text(): to_hex(text.get_bbox_patch().get_facecolor()) for text in panel.texts}
    assert chips == {str(c): colour.lower() for c, colour in enumerate(COLOURS)}
    (points,) = panel.collections
    assert [*map(to_hex, points.get_facecolors())] == [*[GREY] * 20, *chips.values()]  # grey ones lie below
    result = {**SUMMARY["result"], "counts": sizes.tolist(), "n_clusters": 40}
    shown = re.findall(
        r'class="chip" style="background:(#\w+);.*?>(\d+)<', render_page({**SUMMARY, "result": result}, {}, "")
    )
    assert {name: colour.lower() for colour, name in shown} == chips | {str(c): GREY for c in range(20, 40)}


def test_the_page_runs_its_own_script_alone():
    text = page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none';")
    assert re.findall(r"script-src [^;]*", policy) == [f"script-src 'sha256-{digest}'"]
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
    assert text.index("Content-Security-Policy") < text.index("&lt;x&gt;")
    assert not re.search(r"<[^>]* on\w+=|<script[^>]+>|javascript:", text)


def test_ids_are_whole_and_of_large_results_the_largest_clusters_are_told(tmp_path):
    facts = {**SUMMARY, "result": {**SUMMARY["result"], "counts": list(range(1200)), "n_clusters": 1200}}
    text = render_page(facts, {}, "")
    assert "the 1,000 largest of 1,200" in text
    assert text.count("<tr>") < 1030
    row = {
        "cluster": 0, "size": 3, "share": 1.0, "nearest": -1, "distance": 0.0, "traits": [],
        "typical": [{"row": 1, "id": "order-2031 77"}],
    }  # fmt: skip
    text = render_page({**SUMMARY, "clusters": [row]}, {}, "")
    assert '<span class="id">order-2031 77</span>' in text
    assert ".id { white-space: nowrap }" in text


def test_report_is_one_file_and_escapes_names():
    text = page()
    assert text.count("<svg") == 1  # the map
    assert "://" not in text
    assert "<x>" not in text
    assert "&lt;x&gt;.svm" in text
    assert "&lt;b&gt;" in text
    assert "1,234 rows (4 skipped) of 7 features in 3 clusters, assigned in a sketch of 7" in text
    assert "stopped before convergence" in text
    assert "prefers-color-scheme: dark" in text
    assert 'aria-label="Map of the clusters' in text


def test_the_report_of_an_estimator_names_clusters_and_says_how_sure(tmp_path):
    rng = np.random.default_rng(0)
    long = rng.random(800) < 0.3
    X = pd.DataFrame({"fare <EUR>": np.where(long, 60, 10) + rng.normal(0, 1, 800), "tip": rng.normal(2, 1, 800)})
    model = StreamKMeans(2, random_state=0, progress=False).fit(X)
    model.report(tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text("utf-8")
    model.report(tmp_path / "x.html")  # in place of the first
    (tmp_path / "mine.html").write_text("<title>mine</title>")
    with pytest.raises(OutputError, match="no report that streamkm wrote"):
        model.report(tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "<title>mine</title>"
    for said in ("800 rows of 2 features in 2 clusters", "fare &lt;EUR&gt;", "2 clusters explain", "is the largest"):
        assert said in text, said
    between = ((X.groupby(model.labels_).transform("mean") - X.mean()) ** 2).to_numpy().sum()
    assert f"{between / (between + model.inertia_):.1%}" in text
    assert len(model.plot().axes) == 2


def test_each_cell_of_the_table_of_clusters_is_filled(tmp_path):
    X = blobs(4)[0]
    page = tmp_path / "report.html"
    kmeans = StreamKMeans(4, executor=1, progress=False, random_state=0).fit(X)
    kmeans.report(page, rows=X)
    table = re.search(r"<tbody>(.*?)</tbody>", page.read_text("utf-8"), re.DOTALL)[1]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    cells = [[re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows]
    assert len(rows) == 4
    assert all(all(row) for row in cells)
    wanted = {str(row.cluster): (f"{row.simplified_silhouette:.2f}", row.traits) for row in kmeans.summary().rows}
    assert {row[0]: row[3] for row in cells} == {cluster: silhouette for cluster, (silhouette, _) in wanted.items()}
    assert {row[0]: row[1] for row in cells} == {c: "".join(map(str, traits)) for c, (_, traits) in wanted.items()}


def test_a_report_has_one_silhouette_and_says_of_which_rows(tmp_path):
    X = sklearn.datasets.make_blobs(3000, centers=5, n_features=6, cluster_std=4.0, random_state=0)[0]
    model = StreamKMeans(5, random_state=0, progress=False).fit(X)
    result = summarize(model)["result"]
    whole = sklearn.metrics.silhouette_score(X, model.labels_)
    assert result["silhouette"] == pytest.approx(whole, abs=4 * result["silhouette_error"])
    assert 0 < result["silhouette_error"] < 0.02
    assert result["simplified_silhouette"] > whole + 0.05
    model.report(tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text("utf-8")
    assert f"{result['silhouette']:.2f} \u00b1 {result['silhouette_error']:.1g}" in text
    assert "of 500 sampled rows, with its standard error" in text
    assert text.count("silhouette</dt>") == 1
    sketched = StreamKMeans(5, sketch=SketchOptions("countsketch", 4), random_state=0, progress=False).fit(X)
    sketched.report(tmp_path / "x.html")
    assert "of 500 sampled rows, sketched, with its standard error" in (tmp_path / "x.html").read_text("utf-8")
    few = StreamKMeans(201, n_init=1, max_iter=1, random_state=0, progress=False).fit(X[:402])
    assert "silhouette" not in summarize(few)["result"]
    few.report(tmp_path / "x.html")
    assert "<dt>simplified silhouette</dt>" in (tmp_path / "x.html").read_text("utf-8")


def loaded(path):
    StreamKMeans(4, random_state=0, progress=False).fit(blobs(4)[0]).save(path / "m.npz")
    return StreamKMeans.load(path / "m.npz")


def loaded_stream(path):
    X = blobs(4)[0]
    model = IncrementalKMeans(4, random_state=0, progress=False)
    model.partial_fit(X[::2]).partial_fit(X[1::2]).save(path / "m.npz")
    return IncrementalKMeans.load(path / "m.npz")


@pytest.mark.parametrize("make", [loaded, loaded_stream])
def test_streams_and_loaded_models_tell_what_they_know(make, tmp_path):
    model, X = make(tmp_path), blobs(4)[0]
    figure = model.plot()
    assert figure.axes[0].get_title(loc="left").startswith("4 means of clusters")
    model.report(tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text("utf-8")
    assert f"{len(X):,} rows of {X.shape[1]} features in 4 clusters" in text
    assert "The means of 4 clusters" in text
    assert f"{model.inertia_:,.6g}" in text
    assert "not finite" not in text
    assert "0.00 s" not in text
    assert "kmeans.labels_" not in text
    assert ("set apart by" in text) == (make is loaded)
    assert f"# {type(model).__name__}.load" in text
    with pytest.raises(NotFittedError):
        StreamKMeans().report(tmp_path / "x.html")


def test_a_gain_that_is_left_is_told():
    result = {**SUMMARY["result"], "possible_gain": 0.05, "expected_inertia": 10.0, "expected_inertia_error": 0.1}
    text = render_page({**SUMMARY, "result": result}, {}, "")
    assert "at least 5.0%" in text
    text = render_page({**SUMMARY, "result": {**result, "possible_gain": 0.0, "objective": None}}, {}, "")
    assert "to gain" not in text
    assert "not finite" in text


def test_without_matplotlib(monkeypatch, caplog):
    model = StreamKMeans(2, random_state=0, progress=False).fit(blobs(2)[0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"streamkm\[plot\]"):
        model.plot()
    with caplog.at_level(logging.WARNING):
        text = page()
    assert [record.message for record in caplog.records] == [
        "the report has no figures: matplotlib is missing; pip install 'streamkm[plot]'"
    ]
    assert "<svg" not in text
    assert "12.5" in text


@pytest.mark.parametrize("place", ["data", "result"])
def test_pages_lack_nothing_unnoticed(place):
    for name in SUMMARY[place]:
        if name not in ("stored_bytes", "counts"):
            with pytest.raises((KeyError, UndefinedError), match=name):
                render_page({**SUMMARY, place: {k: v for k, v in SUMMARY[place].items() if k != name}}, {}, "")


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
    with pytest.raises(NotFittedError):
        kmeans.plot_updates()
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


def test_an_update_without_events_says_so():
    page = update_page(replace(UPDATE, drift=replace(DRIFT, verdict="fit again"), events=()))
    assert "fit again</h1>" in page
    assert "<p>none</p>" in page


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
