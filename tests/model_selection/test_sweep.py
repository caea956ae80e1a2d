"""Sweeps: one pass, scores of scikit-learn, quality of independent fits, advice, tables, picture, refusals."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.impute import SimpleImputer
from sklearn.metrics import silhouette_samples
from sklearn.preprocessing import StandardScaler

from streamkm import StreamKMeans, sweep
from streamkm.cli.commands import clusters_of
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MemoryLimitError, OutputError
from streamkm.model_selection.sweep import SweepResult, SweepRow
from streamkm.sources import open_source
from tests import naive
from tests.cli.test_cli import run
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
    return sweep(blobs, range(1, 13), **QUIET)


def scores(result):
    return [astuple(replace(row, seconds=0.0)) for row in result.rows]


def assert_same_scores(got, wanted):
    np.testing.assert_allclose(scores(got), scores(wanted), rtol=1e-9)


def test_scores_are_those_of_scikit_learn(blobs, swept):
    """Eight groups apart have one best clustering, whoever finds it."""
    assert swept.n_sampled == swept.n_samples == 1200
    assert [row.n_clusters for row in swept.rows] == list(range(1, 13))
    labels, row = KMeans(8, n_init=5, random_state=0).fit_predict(blobs), swept.rows[7]
    assert row.inertia == pytest.approx(naive.within(blobs, labels), rel=1e-10)
    values = silhouette_samples(blobs, labels)
    assert row.silhouette == pytest.approx(values.mean(), abs=1e-10)
    assert row.silhouette_error == pytest.approx(values.std(ddof=1) / len(blobs) ** 0.5, abs=1e-10)
    assert row.agreement == 1
    one = swept.rows[0]
    assert one.inertia == pytest.approx(naive.within(blobs, np.zeros(1200, int)), rel=1e-10)
    assert np.isnan([one.silhouette, one.silhouette_error, one.agreement]).all()


def test_the_true_number_is_found(swept):
    assert swept.best == swept.most_agreed == 8
    agreement = {row.n_clusters: row.agreement for row in swept.rows[1:]}
    assert all(-0.1 < value <= 1 for value in agreement.values())
    assert min(agreement.values()) < 0.9


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
    counting = Counting(blobs)
    assert_same_scores(sweep(counting, range(1, 13), **QUIET), swept)
    assert counting.read == 5
    more = Counting(np.tile(blobs, (50, 1)))
    sweep(more, [3], sample_rows=2000, **QUIET)
    assert more.read == 5
    once = sweep(iter(counting.parts), range(1, 13), **QUIET)  # cannot be walked twice
    assert_same_scores(once, swept)


@pytest.mark.slow
def test_a_sample_stands_for_all(blobs):
    many = np.tile(blobs, (10, 1)) + np.random.default_rng(0).normal(0, 1e-3, (12_000, 6))
    result = sweep(many, [4, 8, 12], sample_rows=2000, **QUIET)
    assert (result.n_samples, result.n_sampled) == (12_000, 2000)
    fit = StreamKMeans(8, **QUIET).fit(many)
    assert result.rows[1].inertia / 2000 == pytest.approx(fit.inertia_ / 12_000, rel=0.05)
    assert result.best == 8


def test_what_does_not_fit_is_refused_before_anything_is_read(blobs):
    source = CountingSource(blobs, estimated=1200)
    with pytest.raises(
        MemoryLimitError, match=r"the sweep of counted needs about .*raise memory_limit to (\d+) MiB"
    ) as e:
        sweep(source, [2, 5], memory_limit=limited("280 MiB"), **QUIET)
    assert not source.read_rows
    needed = str(e.value).partition("raise memory_limit to ")[2].partition(",")[0]
    tight = sweep(source, [2, 5], memory_limit=limited(needed), **QUIET)
    assert scores(tight) == scores(sweep(blobs, [2, 5], **QUIET))


def test_missing_values_are_filled_or_left_out(blobs):
    X = blobs.copy()
    X[np.random.default_rng(0).random(X.shape) < 0.02] = np.nan
    X[:, 3] += 40
    some = np.isnan(X).any(axis=1)
    with pytest.raises(InvalidInputError, match="NaN in row"):
        sweep(X, [2], **QUIET)
    steps = ["standardize"]
    filled = sweep(X, [2, 8], invalid="mean", preprocess=steps, **QUIET)
    assert_same_scores(filled, sweep(SimpleImputer().fit_transform(X), [2, 8], preprocess=steps, **QUIET))
    left = sweep(X, [2, 8], preprocess=steps, invalid="skip", **QUIET)
    assert left.n_samples == left.n_sampled == np.count_nonzero(~some)
    masked = sweep(np.ma.masked_invalid(X), [2, 8], invalid="mean", **QUIET)
    assert scores(masked) == scores(sweep(X, [2, 8], invalid="mean", **QUIET))
    X[np.flatnonzero(~some)[0], 2] = np.inf
    with pytest.raises(InvalidInputError, match="infinity in"):
        sweep(X, [2], invalid="mean", **QUIET)
    with pytest.raises(InvalidInputError, match=r'read only once, and invalid="mean"'):
        sweep(iter([blobs]), [2], invalid="mean", **QUIET)


def test_steps_are_done_before(blobs, tmp_path):
    X = blobs * [1, 1, 1, 100, 1, 1] + 5
    np.save(tmp_path / "x.npy", X)
    found = sweep(tmp_path / "x.npy", [2, 8], preprocess=["standardize"], **QUIET)
    assert_same_scores(found, sweep(StandardScaler().fit_transform(X), [2, 8], **QUIET))
    with pytest.raises(InvalidInputError, match="read only once"):
        sweep(iter([X]), 2, preprocess=["standardize"], **QUIET)
    with pytest.raises(InvalidParameterError, match="there is no step 'scale'"):
        sweep(X, 2, preprocess=["scale"], **QUIET)


def test_unit_rows_under_the_cosine_metric(blobs):
    unit = blobs / np.linalg.norm(blobs, axis=1)[:, None]
    assert_same_scores(sweep(blobs, [5], metric="cosine", **QUIET), sweep(unit, [5], **QUIET))


def test_a_sketch_store_is_swept(blobs, swept, tmp_path, monkeypatch):
    """Without its data; the store of an identity has the rows themselves."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", blobs)
    run("sketch", "x.npy", "-o", "x.zarr", "--sketch", "identity")
    run("sketch", "x.npy", "-o", "wide.zarr", "--sketch", "countsketch", "-m", 64)
    Path("x.npy").unlink()
    assert_same_scores(sweep("x.zarr", range(1, 13), **QUIET), swept)
    hashed = sweep("wide.zarr", range(6, 11), **QUIET)
    assert hashed.best == 8
    assert hashed.n_samples == 1200


def test_fewer_distinct_rows_than_clusters():
    result = sweep(np.repeat(np.eye(4), 20, axis=0), [2, 4, 9], **QUIET)
    assert result.best == 4
    assert result.rows[-1].inertia == pytest.approx(0, abs=1e-9)


@pytest.mark.usefixtures("small_pieces")
def test_repeatable_whatever_the_threads(blobs):
    one, three = (sweep(blobs, [2, 6, 9], executor=n, **QUIET) for n in (1, 3))
    assert scores(one) == scores(three)
    assert scores(sweep(blobs, [2, 6, 9], progress=False, random_state=1)) != scores(one)


@cases(
    "arguments, message",
    [
        ({"n_clusters": []}, "n_clusters is empty"),
        ({"n_clusters": [2, 0]}, "n_clusters=0; needed: an integer from 1"),
        ({"n_clusters": [30], "sample_rows": 20}, "sample_rows=20 for up to 30 clusters"),
        ({"n_clusters": [3], "metric": "manhattan"}, "metric='manhattan'; needed: one of"),
    ],
)
def test_refused_parameters(blobs, arguments, message):
    with pytest.raises(InvalidParameterError, match=message):
        sweep(blobs, **arguments, **QUIET)


def test_more_clusters_than_rows():
    with pytest.raises(InvalidInputError, match="n_samples=5 should be >= n_clusters=6"):
        sweep(np.eye(5), [2, 6], **QUIET)


def told(silhouettes, agreements):
    """A sweep of made scores of 2, 3, ... clusters."""
    pairs = enumerate(zip(silhouettes, agreements, strict=True), 2)
    return SweepResult(tuple(SweepRow(k, 1.0 / k, s, 0.01, a, 0.0) for k, (s, a) in pairs), 1000, 1000)


def test_advice_of_scores_that_agree():
    found = told([0.3, 0.6, 0.2], [1.0, 0.97, 0.4])  # 3 clusters are agreed on nearly as well as 2
    assert (found.best, found.most_agreed) == (3, 3)
    assert found.advice == (
        "k = 3 is suggested: it has the highest silhouette (0.600 +- 0.010) and an agreement of halves of 0.97."
    )


def test_advice_names_a_disagreement_first():
    found = told([0.3, 0.2, 0.6, 0.5], [0.9, 1.0, 0.7, 0.2])
    assert (found.best, found.most_agreed) == (4, 3)
    assert found.advice == (
        "Silhouette (k = 4) and agreement of halves (k = 3, 1.00) disagree, so look at both; "
        "k = 4 has the highest silhouette (0.600 +- 0.010) and an agreement of 0.70."
    )
    assert str(found).startswith("advice    Silhouette (k = 4)")
    assert next(iter(found.to_dict())) == "advice"


def test_advice_at_the_end_of_the_range_is_to_try_more():
    assert told([0.3, 0.6], [1.0, 1.0]).advice.endswith("1.00, at the end of the range, so try more.")


def test_advice_without_scores(blobs):
    one = sweep(blobs, [1], **QUIET)
    assert (one.best, one.most_agreed) == (1, None)
    assert one.advice == "No number has a silhouette, so k = 1 is suggested for its low inertia alone."
    few = sweep(np.eye(5), [3], **QUIET)  # halves have fewer rows
    assert np.isnan(few.rows[0].agreement)
    assert few.best == 3


def test_clusters_of_text():
    assert clusters_of("50") == [50]
    assert clusters_of("2:5") == [2, 3, 4, 5]
    assert clusters_of("10:30:10, 5,20") == [10, 20, 30, 5, 20]
    for wrong in ("", "a", "2:", "1:9:0", "1:2:3:4", "-3", "5:2"):
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
    assert dict(swept.lines())["rows"] == "1,200 of 1,200"
    assert [line.split("  ")[0] for line in str(swept).splitlines()] == [label for label, _ in swept.lines()]


def test_picture(swept, blobs):
    pytest.importorskip("matplotlib")
    figure = swept.plot()
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == ["inertia a row, of 1,200 rows", "silhouette, with its standard error", "agreement of two halves"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["k = 8"]
    figure.canvas.draw()
    sweep(blobs, [1], **QUIET).plot().canvas.draw()


def test_written_results(blobs, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", blobs)
    said = run("sweep", "x.npy", "-k", "7:9", "--seed", 0, "-o", "out")
    assert "k = 8 is suggested" in said
    files = ["sweep.csv", "sweep.json", "sweep.svg"]
    assert sorted(path.name for path in Path("out").iterdir()) == files
    wanted = sweep(open_source("x.npy"), [7, 8, 9], **QUIET)
    found = json.loads(Path("out/sweep.json").read_text())
    assert found["advice"] == wanted.advice
    assert [row["inertia"] for row in found["rows"]] == [row.inertia for row in wanted.rows]
    assert Path("out/sweep.csv").read_text().startswith("n_clusters,inertia,silhouette,")
    assert "k = 8" in Path("out/sweep.svg").read_text()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    run("sweep", "x.npy", "-k", "7:9", "--seed", 0, "-o", "bare")
    assert sorted(path.name for path in Path("bare").iterdir()) == files[:2]
