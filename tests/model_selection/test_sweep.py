"""Sweeps: one walk, scores of scikit-learn, quality of independent fits, elbow, tables, picture, refusals."""

from __future__ import annotations

import csv
import html
import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn.metrics
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from streamkm import SketchOptions, StreamKMeans, sweep
from streamkm.cli.report import write_sweep
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import Sample
from streamkm.core import memory as limits
from streamkm.core.exceptions import (
    CheckpointError,
    InvalidInputError,
    InvalidParameterError,
    MemoryLimitError,
    OutputError,
)
from streamkm.core.manifest import MARKER
from streamkm.engine import open_executor, saving
from streamkm.model_selection.sweep_parameters import clusters_of
from streamkm.model_selection.sweep_result import COLUMNS, SweepResult, SweepRow, elbow
from streamkm.model_selection.swept_rows import draw_more
from streamkm.reports.sweep import sweep_page
from streamkm.sketches import IdentitySketch
from streamkm.sources import open_source
from tests import naive
from tests.children import StoppedError, chunks_read, stopped_after
from tests.limits import limited
from tests.passes.test_passes import CountingSource
from tests.tables import cases

QUIET = {"progress": False, "random_state": 0}


@pytest.fixture(scope="module")
def blobs():
    """Eight groups around the corners of a cube."""
    corners = np.array([[x, y, z, 0, 0, 0] for x in (-6, 6) for y in (-6, 6) for z in (-6, 6)])
    X, _ = make_blobs(1200, centers=corners, cluster_std=0.7, random_state=3)
    return X


@pytest.fixture(scope="module")
def swept(blobs):
    return sweep(blobs, range(1, 17), **QUIET)


def test_rows_are_scored_as_scikit_learn_does(blobs, swept):
    assert swept.n_sampled == swept.n_judged == swept.n_samples == 1200
    assert swept.space == "original"
    assert [(row.n_clusters, row.seed) for row in swept.rows] == [(k, seed) for k in range(1, 17) for seed in (0, 1)]
    X = blobs[swept.sample_rows]
    for k in (2, 8, 16):
        labels = swept.labels(k)
        row = min((row for row in swept.rows if row.n_clusters == k), key=lambda row: row.inertia)
        assert row.n_found == len(np.unique(labels)) == k
        assert row.inertia == pytest.approx(naive.within(X, labels), rel=1e-10)
        assert row.inertia_per_row == row.inertia / 1200
        values = sklearn.metrics.silhouette_samples(X, labels)
        assert row.silhouette == pytest.approx(values.mean(), abs=1e-10)
        assert row.silhouette_error == pytest.approx(values.std(ddof=1) / len(X) ** 0.5, abs=1e-10)
        assert row.calinski_harabasz == pytest.approx(sklearn.metrics.calinski_harabasz_score(X, labels), rel=1e-9)
        assert row.davies_bouldin == pytest.approx(sklearn.metrics.davies_bouldin_score(X, labels), rel=1e-9)
    one = swept.rows[0]
    assert one.n_found == one.stability == 1
    assert np.isnan([one.silhouette, one.calinski_harabasz, one.davies_bouldin]).all()


def test_the_true_number_is_found(swept):
    assert swept.best == 8
    for score in ("silhouette", "calinski_harabasz", "davies_bouldin"):
        assert swept.best_by(score) == 8
    stability = {row.n_clusters: row.stability for row in swept.rows}
    assert stability[8] == 1
    assert all(-0.1 < value <= 1 for value in stability.values())
    assert min(stability.values()) < 1


def test_as_good_as_independent_fits(blobs, swept):
    for k in (2, 5, 8, 16):
        best = min(KMeans(k, n_init=1, random_state=seed).fit(blobs).inertia_ for seed in range(5))
        assert min(row.inertia for row in swept.rows if row.n_clusters == k) <= 1.02 * best


@pytest.mark.parametrize("sketch", ["auto", pytest.param("countsketch", marks=pytest.mark.slow)])
def test_as_good_as_independent_fits_of_sketched_rows(small_topics, sketch):
    X = small_topics.X
    ks = [2, 5, 10, 20]
    result = sweep(X, ks, sketch=sketch, n_components=512, **QUIET)
    for k in ks:
        fit = StreamKMeans(k, sketch=SketchOptions(sketch, 512), **QUIET).fit(X)
        centers = result.centers(k)
        assert centers.shape == (k, X.shape[1])
        _, d2 = naive.nearest(X, centers)
        assert d2.sum() <= 1.02 * fit.inertia_
        again = StreamKMeans(k, init=centers, **QUIET).fit(X)
        assert again.inertia_ <= 1.02 * fit.inertia_


class Counting:
    """Chunks of rows, and how many were asked for."""

    def __init__(self, X, n_chunks=5):
        self.parts = np.array_split(X, n_chunks)
        self.read = 0

    def __call__(self):
        for part in self.parts:
            self.read += 1
            yield part


def test_data_are_read_once(blobs, swept):
    """And once more where rows are drawn that the sample has not."""
    counting = Counting(blobs)
    result = sweep(counting, range(1, 17), **QUIET)
    assert counting.read == 5
    assert result.rows[-1].inertia == pytest.approx(swept.rows[-1].inertia, rel=1e-6)
    more = Counting(np.tile(blobs, (50, 1)))
    sweep(more, [3], sample_rows=2000, **QUIET)
    assert more.read == 10
    once = sweep(iter(counting.parts), [3], **QUIET)  # cannot be walked twice
    np.testing.assert_array_equal(once.sample_rows, result.sample_rows)


def test_a_sample_stands_for_all(blobs):
    many = np.tile(blobs, (10, 1)) + np.random.default_rng(0).normal(0, 1e-3, (12_000, 6))
    result = sweep(many, [4, 8, 12], sample_rows=2000, **QUIET)
    assert (result.n_samples, result.n_sampled) == (12_000, 2000)
    assert len(np.unique(result.sample_rows)) == 2000
    fit = StreamKMeans(8, **QUIET).fit(many)
    row = min((row for row in result.rows if row.n_clusters == 8), key=lambda row: row.inertia)
    assert row.inertia_per_row == pytest.approx(fit.inertia_ / 12_000, rel=0.05)
    _, d2 = naive.nearest(many, result.centers(8))
    assert d2.sum() <= 1.02 * fit.inertia_


@pytest.mark.parametrize("tiles", [25, 50])
def test_few_rows_far_away_are_seen(blobs, tmp_path, tiles):
    """Five groups of six rows: an even sample of 2,000 has two of them, or one.

    The row sample of 50,000 has all of 30,000 rows, and rows are drawn from it; those of 60,000 are drawn in a pass.
    """
    rng, n_rows = np.random.default_rng(0), 1200 * tiles
    many = np.tile(blobs, (tiles, 1)) + rng.normal(0, 1e-3, (n_rows, 6))
    far = rng.permutation(n_rows)[:30]
    many[far] = np.repeat(rng.normal(0, 2000, (5, 6)), 6, axis=0) + rng.normal(0, 1, (30, 6))
    np.save(tmp_path / "x.npy", many)
    result = sweep(open_source(str(tmp_path / "x.npy")), [5, 13], sample_rows=2000, **QUIET)
    assert np.isin(far, result.sample_rows).reshape(5, 6).any(axis=1).all()
    fit = StreamKMeans(13, **QUIET).fit(many)
    row = min((row for row in result.rows if row.n_clusters == 13), key=lambda row: row.inertia)
    assert row.inertia_per_row == pytest.approx(fit.inertia_ / n_rows, rel=0.1)
    _, d2 = naive.nearest(many, result.centers(13))
    assert d2.sum() <= 1.02 * fit.inertia_


def test_what_is_drawn_keeps_sums_unbiased():
    """Over many seeds: weights that stand for rows alike, whether these were sampled, drawn or both."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2)).astype(np.float32)
    X[:20] *= 100
    want, found = float(np.square(X.astype(np.float64)).sum()) / 3000, []
    with open_executor(1) as here:
        for seed in range(300):
            order = np.random.default_rng(seed).permutation(3000)[:400]
            sample = Sample(X[order], order, NO_WEIGHTS, complete=False)

            def draw_all(shares, rule):
                assert rule.size == 100  # half of those that are clustered
                return rule.draw(X, np.arange(3000), NO_WEIGHTS, shares(X, shares.model.table()))

            stream = np.random.SeedSequence(seed)
            swept = draw_more(
                here, sample, IdentitySketch(2), "euclidean", n_clustered=200, n_clusters=4, n_rows=3000,
                seed=stream, draw_all=draw_all,
            )  # fmt: skip
            for rows in (swept.clustered, swept.all_rows()):
                assert len(np.unique(rows.rows)) == len(rows.rows)
                np.testing.assert_array_equal(rows.X, X[rows.rows])
            assert len(swept.clustered.rows) == 200
            rows = swept.all_rows()
            found.append(float(rows.weights @ np.square(rows.X.astype(np.float64)).sum(axis=1)) / 3000)
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - want) <= 4 * error
    assert error < 0.05 * want


def test_scored_in_the_sketch_where_centers_do_not_fit(small_topics, monkeypatch):
    """By the limit, not by what happens to be free."""
    monkeypatch.setattr(limits, "available_memory", lambda: 1_000_000)
    X = sp.csr_array(small_topics.X)
    X.resize((2000, 1_000_000))
    with pytest.warns(UserWarning, match=r"scored in the space of the sketch.*limit of 600\.0 MiB; raise memory_limit"):
        result = sweep(X, [2, 10], n_components=256, memory_limit=limited("600 MiB"), **QUIET)
    assert result.space == "sketch"
    sketched = naive.dense(result.sketch.apply(X))[result.sample_rows]
    labels = result.labels(10)
    row = min(result.rows[2:], key=lambda row: row.inertia)
    assert row.inertia == pytest.approx(naive.within(sketched, labels), rel=1e-6)
    wanted = sklearn.metrics.davies_bouldin_score(sketched, labels)
    assert row.davies_bouldin == pytest.approx(wanted, rel=1e-4)


def test_what_does_not_fit_is_refused_before_anything_is_read(blobs):
    source = CountingSource(blobs, estimated=1200)
    with pytest.raises(
        MemoryLimitError, match=r"the sweep of counted needs about .*raise memory_limit to (\d+) MiB"
    ) as e:
        sweep(source, [2, 5], memory_limit=limited("320 MiB"), **QUIET)
    assert not source.read_rows
    needed = str(e.value).partition("raise memory_limit to ")[2].partition(",")[0]
    tight = sweep(source, [2, 5], memory_limit=limited(needed), **QUIET)
    assert [row.inertia for row in tight.rows] == [row.inertia for row in sweep(blobs, [2, 5], **QUIET).rows]


@pytest.mark.parametrize(("record", "times", "n_read"), [("begin", 1, 6), ("sample", 3, 4), ("run-0", 1, 0)])
def test_a_sweep_that_was_stopped_goes_on(blobs, tmp_path, monkeypatch, record, times, n_read):
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    path = str(tmp_path / "x.npy")
    np.save(path, blobs)
    options = {"checkpoint": tmp_path / "state", "chunk_bytes": 9_600, **QUIET}
    with monkeypatch.context() as patched:
        stopped_after(patched, record, times)
        with pytest.raises(StoppedError):
            sweep(path, [2, 5, 8], **options)
    with pytest.raises(CheckpointError, match="n_clusters"):
        sweep(path, [2, 5], **options)
    read = chunks_read(monkeypatch)
    got = sweep(path, [2, 5, 8], **options)
    assert len(read) == n_read
    assert not (tmp_path / "state").exists()
    wanted = sweep(path, [2, 5, 8], **{**options, "checkpoint": None})
    assert [(row.inertia, row.silhouette) for row in got.rows] == [(row.inertia, row.silhouette) for row in wanted.rows]
    np.testing.assert_array_equal(got.labels(5), wanted.labels(5))


def test_invalid_rows_are_skipped(blobs):
    X = blobs.copy()
    X[[3, 700]] = np.nan
    with pytest.raises(InvalidInputError, match="NaN in row 3"):
        sweep(X, [2], **QUIET)
    result = sweep(X, [2], on_invalid="skip", **QUIET)
    assert result.n_samples == result.n_sampled == 1198
    assert not np.isin([3, 700], result.sample_rows).any()


def test_missing_values_are_filled_or_left_out(blobs):
    X = blobs.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.02] = np.nan
    X[:, 3] += 40
    some = np.isnan(X).any(axis=1)
    for steps in (None, ["standardize"]):
        filled = sweep(X, [2, 8], on_missing="mean", preprocess=steps, **QUIET)
        wanted = sweep(SimpleImputer().fit_transform(X), [2, 8], preprocess=steps, **QUIET)
        for got, row in zip(filled.rows, wanted.rows, strict=True):
            assert got.inertia == pytest.approx(row.inertia, rel=1e-9)
        np.testing.assert_array_equal(filled.labels(8), wanted.labels(8))
        model = StreamKMeans(8, init=filled.centers(8), on_missing="mean", preprocess=steps, **QUIET).fit(X)
        assert model.inertia_ <= filled.rows[-1].inertia * (1 + 1e-9)
        left, rest = (
            sweep(X, [2, 8], preprocess=steps, **{name: "skip"}, **QUIET) for name in ("on_missing", "on_invalid")
        )
        np.testing.assert_array_equal(np.sort(left.sample_rows), np.flatnonzero(~some))
        np.testing.assert_array_equal(left.labels(8), rest.labels(8))
    np.testing.assert_array_equal(
        sweep(np.ma.masked_invalid(X), [2, 8], on_missing="mean", **QUIET).labels(8),
        sweep(X, [2, 8], on_missing="mean", **QUIET).labels(8),
    )
    X[np.flatnonzero(~some)[0], 2] = np.inf
    for on_missing in ("mean", "skip"):
        with pytest.raises(InvalidInputError, match="infinity in"):
            sweep(X, [2], on_missing=on_missing, **QUIET)
    with pytest.raises(InvalidInputError, match=r'walked once only, and on_missing="mean"'):
        sweep(iter([blobs]), [2], on_missing="mean", **QUIET)


def test_a_stopped_sweep_with_missing_values_goes_on(blobs, tmp_path, monkeypatch):
    X = blobs.copy()
    X[::7, 2] = np.nan
    given = {"on_missing": "mean", "preprocess": ["standardize"], "chunk_bytes": 5_000, **QUIET}
    wanted = sweep(X, [2, 5], **given)
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    for record in ("step-0", "step-1-sums", "sample"):
        with monkeypatch.context() as patched:
            stopped_after(patched, record)
            with pytest.raises(StoppedError):
                sweep(X, [2, 5], checkpoint=tmp_path / record, **given)
        np.testing.assert_array_equal(
            sweep(X, [2, 5], checkpoint=tmp_path / record, **given).labels(5), wanted.labels(5)
        )


def test_steps_are_done_before(blobs, tmp_path):
    X = blobs * [1, 1, 1, 100, 1, 1] + 5
    np.save(tmp_path / "x.npy", X)
    scaled = StandardScaler().fit_transform(X)
    found = sweep(tmp_path / "x.npy", [2, 8], seeds=1, preprocess=["standardize"], **QUIET)
    wanted = sweep(scaled, [2, 8], seeds=1, **QUIET)
    for got, row in zip(found.rows, wanted.rows, strict=True):
        assert got.inertia == pytest.approx(row.inertia, rel=1e-9)
    np.testing.assert_array_equal(found.labels(8), wanted.labels(8))
    kmeans = StreamKMeans(8, init=found.centers(8), preprocess=["standardize"], **QUIET).fit(tmp_path / "x.npy")
    assert kmeans.inertia_ <= found.rows[-1].inertia * (1 + 1e-9)
    with pytest.raises(InvalidInputError, match="can be walked once only"):
        sweep(iter([X]), 2, preprocess=["standardize"], **QUIET)
    with pytest.raises(InvalidParameterError, match="there is no step 'scale'"):
        sweep(X, 2, preprocess=["scale"], **QUIET)


def test_steps_of_some_columns_are_done_before(tmp_path):
    """On a table with a one-hot column, a sweep clusters the rows that scikit-learn prepares."""
    rng = np.random.default_rng(0)
    group = np.arange(900) % 3
    frame = pd.DataFrame(
        {
            "fare": np.exp(group + rng.normal(0, 0.1, 900)),
            "age": 30.0 + 9 * group + rng.normal(0, 1, 900),
            "plan": np.array(["free", "basic", "pro"])[rng.integers(0, 3, 900)],
        }
    )
    frame.to_csv(tmp_path / "x.csv", index=False)
    steps = {"log1p": ["fare"], "standardize": ["fare", "age"], "weight": {"plan": 0.25}}
    given = {"path": tmp_path / "x.csv", "categories": "onehot"}
    found = sweep(given, 3, preprocess=steps, **QUIET)
    numbers = StandardScaler().fit_transform(np.column_stack([np.log1p(frame["fare"]), frame["age"]]))
    wanted = sweep(np.column_stack([numbers, 0.5 * pd.get_dummies(frame["plan"])]), 3, **QUIET)
    for got, row in zip(found.rows, wanted.rows, strict=True):
        assert got.inertia == pytest.approx(row.inertia, rel=1e-9)
    labels = [result.labels(3)[np.argsort(result.sample_rows)] for result in (found, wanted)]
    assert sklearn.metrics.adjusted_rand_score(*labels) == 1.0
    assert f"preprocess={steps!r})" in found.next_step()
    with pytest.raises(InvalidInputError, match=r"column 'fares', which is missing \(did you mean 'fare'\?\)"):
        sweep(frame[["fare", "age"]], 2, preprocess={"log1p": ["fares"]}, **QUIET)


def test_a_checkpoint_is_of_one_weight(blobs, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    with monkeypatch.context() as patched:
        stopped_after(patched, "sample")
        with pytest.raises(StoppedError):
            sweep(blobs, [2], preprocess={"weight": {0: 2.0}}, checkpoint=tmp_path / "state", **QUIET)
    with pytest.raises(CheckpointError):
        sweep(blobs, [2], preprocess={"weight": {0: 3.0}}, checkpoint=tmp_path / "state", **QUIET)


def test_unit_rows_under_the_cosine_metric(blobs):
    unit = blobs / np.linalg.norm(blobs, axis=1)[:, None]
    cosine, plain = sweep(blobs, [5], metric="cosine", **QUIET), sweep(unit, [5], **QUIET)
    assert cosine.rows[0].inertia == pytest.approx(plain.rows[0].inertia, rel=1e-9)


def test_wide_dense_rows_use_principal_directions():
    X, _ = make_blobs(800, 600, centers=6, cluster_std=2.0, random_state=0)
    result = sweep(X, range(2, 11), **QUIET)
    assert result.sketch.kind == "pca"
    assert result.best == 6


def test_fewer_distinct_rows_than_clusters():
    X = np.repeat(np.eye(4), 20, axis=0)
    result = sweep(X, [2, 4, 9], **QUIET)
    assert [row.n_found for row in result.rows] == [2, 2, 4, 4, 4, 4]
    assert result.rows[-1].inertia == pytest.approx(0, abs=1e-9)
    assert result.centers(9).shape == (4, 4)


@pytest.mark.usefixtures("small_pieces")
def test_repeatable_whatever_the_threads(blobs):
    def values(result):
        return [tuple(getattr(row, name) for name in COLUMNS if name != "seconds") for row in result.rows]

    one, three = (sweep(blobs, [2, 6, 9], executor=n, **QUIET) for n in (1, 3))
    assert values(one) == values(three)
    assert values(sweep(blobs, [2, 6, 9], progress=False, random_state=1)) != values(one)


@cases(
    "arguments, message",
    [
        ({"n_clusters": []}, "n_clusters is empty"),
        ({"n_clusters": [2, 0]}, "n_clusters holds 0; needed: integers from 1"),
        ({"n_clusters": 2.5}, "n_clusters holds 2.5"),
        ({"n_clusters": [3], "seeds": 0}, "seeds=0; needed: an integer from 1"),
        ({"n_clusters": [3], "seeds": "auto"}, "seeds='auto'; needed: an integer from 1"),
        ({"n_clusters": [30], "sample_rows": 20}, "sample_rows=20 for up to 30 clusters"),
        ({"n_clusters": [3], "chunk_bytes": -1}, "chunk_bytes=-1"),
        ({"n_clusters": [3], "metric": "manhattan"}, "metric='manhattan'; needed: one of"),
        ({"n_clusters": [3], "sketch": "magic"}, "sketch='magic'; needed: one of"),
        ({"n_clusters": [3], "on_invalid": "ignore"}, "on_invalid='ignore'; needed: one of"),
        ({"n_clusters": [3], "on_missing": "median"}, "on_missing='median'; needed: one of 'raise', 'skip', 'mean'"),
    ],
)
def test_refused_parameters(blobs, arguments, message):
    with pytest.raises(InvalidParameterError, match=message):
        sweep(blobs, **arguments, **QUIET)


def test_more_clusters_than_rows():
    with pytest.raises(InvalidInputError, match="n_samples=5 should be >= n_clusters=6"):
        sweep(np.eye(5), [2, 6], **QUIET)


# ---- the elbow, tables, the picture


def test_elbow_is_farthest_below_the_chord():
    assert elbow([1, 2, 3, 4, 5], [100, 50, 10, 9, 8]) == 2
    assert elbow([2, 10, 11, 100], [8.0, 4.0, 3.9, 0.0]) == 2  # k counts by its value, not by its place
    assert elbow([1, 2], [3.0, 1.0]) is None
    assert elbow([1, 2, 3], [0.0, 0.0, 0.0]) is None


def test_results_are_asked_for_by_k(swept):
    with pytest.raises(
        InvalidParameterError, match=r"n_clusters=99 is not in this sweep; it holds 1, 2, .*, \.\.\. 16"
    ):
        swept.labels(99)
    with pytest.raises(InvalidParameterError, match="score='inertia'; needed: one of 'silhouette'"):
        swept.best_by("inertia")


def test_one_seed_has_no_stability(blobs):
    result = sweep(blobs, [2, 3], seeds=1, **QUIET)
    assert np.isnan([row.stability for row in result.rows]).all()
    assert result.best is None
    with pytest.raises(InvalidParameterError, match="stability has no value for any k"):
        result.best_by("stability")


def test_clusters_of_text():
    assert clusters_of("50") == [50]
    assert clusters_of("2:5") == [2, 3, 4, 5]
    assert clusters_of("10:30:10, 5,20") == [5, 10, 20, 30]
    for wrong in ("", "a", "2:", "1:9:0", "1:2:3:4", "-3", "5:2", "0"):
        with pytest.raises(InvalidParameterError):
            clusters_of(wrong)


def test_tables(swept, tmp_path):
    table = swept.to_dict()
    assert json.loads(json.dumps(table, allow_nan=False)) == table
    assert table["best"] == 8
    assert table["rows"][0]["silhouette"] is None
    swept.to_csv(tmp_path / "sweep.csv")
    with pytest.raises(OutputError, match=r"sweep\.csv exists; pass overwrite"):
        swept.to_csv(tmp_path / "sweep.csv")
    swept.to_csv(tmp_path / "sweep.csv", overwrite=True)
    with open(tmp_path / "sweep.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["n_clusters"]) for line in lines] == [row.n_clusters for row in swept.rows]
    assert [float(line["inertia"]) for line in lines] == [row.inertia for row in swept.rows]
    assert lines[0]["silhouette"] == ""
    said = dict(swept.lines())
    assert said["rows"] == "all 1,200"
    assert said["elbow"] == "8 clusters"
    assert re.fullmatch(r"8 clusters \(0\.\d+ \+- 0\.\d+\)", said["best silhouette"])
    assert said["verdict"].startswith("8 clusters, by elbow, silhouette")
    assert swept.verdict()[0] == 8


def test_picture(swept):
    pytest.importorskip("matplotlib")
    from streamkm.reports.sweep_figure import sweep_figure

    figure = sweep_figure(swept.to_dict())
    top, *scores = figure.axes
    assert top.get_title(loc="left") == (
        "Objective of 16 numbers of clusters, 2 seeds, on all 1,200 rows, in the original space"
    )
    assert [text.get_text() for text in top.texts] == ["elbow: k = 8"]
    assert [panel.texts[0].get_text() for panel in scores[:3]] == ["k = 8"] * 3
    assert len(scores) == 4
    figure.canvas.draw()


def test_picture_of_little(blobs):
    pytest.importorskip("matplotlib")
    from streamkm.reports.sweep_figure import sweep_figure

    figure = sweep_figure(sweep(blobs, [1], seeds=1, **QUIET).to_dict())
    assert len(figure.axes) == 1
    figure.canvas.draw()
    assert len(sweep_figure(sweep(blobs, [2, 3], seeds=1, **QUIET).to_dict()).axes) == 4


def test_written_results(swept, tmp_path, monkeypatch, caplog):
    pytest.importorskip("matplotlib")
    folder = write_sweep(tmp_path / "out", swept, "streamkm fit x.npy -k 8")
    assert sorted(path.name for path in folder.iterdir()) == [
        MARKER,
        "sweep.csv",
        "sweep.html",
        "sweep.json",
        "sweep.svg",
    ]
    assert json.loads((folder / "sweep.json").read_text()) == swept.to_dict()
    assert (folder / "sweep.csv").read_text() == swept.csv_text()
    picture = (folder / "sweep.svg").read_text()
    write_sweep(folder, swept, "streamkm fit x.npy -k 8")
    assert (folder / "sweep.svg").read_text() == picture
    assert (folder / "sweep.html").read_text().count("<path") == picture.count("<path")  # one figure in both
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_sweep(tmp_path / "bare", swept, "streamkm fit x.npy -k 8")
    assert "pip install 'streamkm[plot]'" in caplog.text
    assert sorted(path.name for path in (tmp_path / "bare").iterdir()) == [
        MARKER,
        "sweep.csv",
        "sweep.html",
        "sweep.json",
    ]


def test_the_figure_is_drawn_once_for_page_and_file(swept, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    drawn, savefig = [], figure.Figure.savefig
    monkeypatch.setattr(figure.Figure, "savefig", lambda *given, **how: drawn.append(savefig(*given, **how)))
    write_sweep(tmp_path / "out", swept, "streamkm fit x.npy -k 8")
    assert len(drawn) == 1


def test_it_draws_reports_and_prints_itself(swept, tmp_path):
    pytest.importorskip("matplotlib")
    assert len(swept.plot().axes) == 5
    swept.report(tmp_path / "sweep.html")
    assert "The elbow is at 8 clusters" in (tmp_path / "sweep.html").read_text()
    assert [line.split("  ")[0] for line in str(swept).splitlines()] == [label for label, _ in swept.lines()]


def test_files_are_read_too(blobs, swept, tmp_path):
    np.save(tmp_path / "x.npy", blobs)
    result = sweep(open_source(str(tmp_path / "x.npy")), [8], **QUIET)
    assert result.rows[0].inertia == pytest.approx(swept.rows[14].inertia, rel=0.02)
    sparse = sweep(sp.csr_array(blobs), [8], **QUIET)
    assert sparse.rows[0].inertia == pytest.approx(swept.rows[14].inertia, rel=0.02)


@pytest.mark.parametrize("name", ["signs", "svd"])
def test_any_sketch_by_name(name):
    X = np.random.default_rng(0).normal(size=(300, 40))
    assert sweep(X, [2, 3], sketch=name, n_components=8, random_state=0, progress=False).sketch.kind == name


# ---- what makes a verdict uncertain


def told(votes, n_clusters, extreme=None):
    """A sweep of made scores: each name of `votes` is best at its k, all others equally bad."""
    rows = tuple(
        SweepRow(
            k, 0, k, 1.0, 1.0, *(float(k == votes.get(name)) for name in ("silhouette", "calinski_harabasz")),
            1.0 - (k == votes.get("davies_bouldin")), float("nan"), float("nan"), 0.0,
        )
        for k in n_clusters
    )  # fmt: skip
    labels = dict.fromkeys(n_clusters, np.zeros(1))
    return SweepResult(rows, "original", 1000, 1000, 1000, np.arange(1000), None, labels, None, {})


def test_a_vote_for_the_end_of_the_range_is_no_answer():
    result = told({"silhouette": 20, "calinski_harabasz": 20, "davies_bouldin": 5}, range(2, 21))
    assert result.at_the_end() == ("silhouette", "calinski_harabasz")
    assert result.verdict() == (5, ("davies_bouldin",))
    said = "the best value of silhouette, Calinski-Harabasz lies at the end of the range, 20 clusters; look further"
    assert dict(result.lines())["end of range"] == said
    everywhere = told(dict.fromkeys(("silhouette", "calinski_harabasz", "davies_bouldin"), 20), range(2, 21))
    assert everywhere.verdict() == (20, ())
    assert everywhere.to_dict()["verdict"] is None
    assert dict(everywhere.lines())["verdict"].startswith("none: the best values lie at the end of the range")
    low = dict.fromkeys(("silhouette", "calinski_harabasz", "davies_bouldin"), 10)
    assert told(low, range(10, 21)).verdict() == (10, ())
    assert told({**low, "silhouette": 2}, range(2, 21)).at_the_end() == ()  # nothing lies below


def test_disagreement_comes_first(tmp_path):
    result = told({"silhouette": 7, "calinski_harabasz": 7, "davies_bouldin": 17}, range(2, 21))
    said = "criteria name different numbers of clusters: 7 by silhouette, Calinski-Harabasz; 17 by Davies-Bouldin"
    assert result.lines()[0] == ("disagreement", said)
    assert str(result).startswith("disagreement")
    assert dict(result.lines())["verdict"] == "7 clusters, by silhouette, Calinski-Harabasz; 2 of 3 criteria"
    table = result.to_dict()
    assert next(iter(table)) == "cautions"
    assert table["cautions"] == [said]
    result.report(tmp_path / "sweep.html")
    page = (tmp_path / "sweep.html").read_text()
    assert 0 < page.index("Criteria name different") < page.index("Verdict: 7 clusters") < page.index("<table")


def test_where_criteria_agree_nothing_is_cautioned(swept):
    assert swept.cautions() == swept.to_dict()["cautions"] == []
    assert swept.to_dict()["verdict"] == 8


def test_of_equally_stable_numbers_all_are_told(swept):
    said = dict(swept.lines())["most stable"]
    stable = {row.n_clusters for row in swept.rows if row.stability == 1}
    assert len(stable) > 1
    assert {int(k) for k in said.partition(" clusters")[0].split(", ")} == stable


def test_the_range_is_extended_where_asked(blobs, tmp_path):
    short = sweep(blobs, range(2, 6), **QUIET)
    assert short.at_the_end() == ("silhouette", "calinski_harabasz", "davies_bouldin")
    further = sweep(blobs, range(2, 6), extend=True, checkpoint=tmp_path / "state", **QUIET)
    assert further.n_clusters == tuple(range(2, 11))
    assert further.verdict()[0] == 8
    assert not list(tmp_path.iterdir())
    assert sweep(blobs, range(2, 13), extend=True, **QUIET).n_clusters == tuple(range(2, 13))
    with pytest.raises(InvalidParameterError, match=r"extend=True .* needed: data that can be read again"):
        sweep(iter([blobs]), [2, 3], extend=True, **QUIET)


def test_the_next_step_clusters_as_the_sweep_did(blobs, swept, tmp_path):
    swept.report(tmp_path / "sweep.html")
    assert "StreamKMeans(8).fit_predict(X)" in (tmp_path / "sweep.html").read_text()
    unit = sweep(blobs, range(6, 10), preprocess=["standardize"], on_invalid="skip", **QUIET)
    page = sweep_page(unit.to_dict(), unit.lines(), unit.next_step(), None)
    assert "preprocess=['standardize'], on_invalid='skip').fit" in html.unescape(page)
    assert "preprocess=['" not in page
    filled = sweep(blobs, range(6, 10), on_missing="mean", **QUIET)
    assert "StreamKMeans(" in filled.next_step()
    assert ", on_missing='mean')" in filled.next_step()
