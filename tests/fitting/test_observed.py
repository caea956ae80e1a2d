"""Missing values that distances and means leave out, against loops over entries."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKMeans
from streamkm.cli.main import main
from streamkm.cluster.model import Model
from streamkm.cluster.observed import ObservedCenters, ObservedTotals
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.engine import saving
from tests import naive
from tests.children import StoppedError, stopped_after
from tests.tables import cases

MASKED = {"on_missing": "masked", "random_state": 0, "chunk_bytes": 20_000, "progress": False}


def groups(n_rows=3_000, share=0.3, kind=np.float64, d=6):
    """Four groups with holes, each row with a value; and the groups."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 4, n_rows)
    X = rng.normal(size=(n_rows, d)) + rng.normal(0, 6, (4, d))[which]
    X[rng.random(X.shape) < share] = np.nan
    X[np.isnan(X).all(axis=1), 0] = 0.0
    return X.astype(kind), which


def same_fit(got, wanted):
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.model_.centers, wanted.model_.centers)
    np.testing.assert_array_equal(got.cluster_means_, wanted.cluster_means_)
    assert got.inertia_ == wanted.inertia_


def assert_exact(model, X, weights=None):
    """Labels, objective, counts and means, by loops over entries."""
    rows = np.flatnonzero(~np.isnan(X).all(axis=1))
    weights = np.ones(len(X)) if weights is None else weights
    d2 = naive.observed_d2(X[rows], model.model_.centers)
    np.testing.assert_array_equal(model.labels_[rows], d2.argmin(axis=1))
    np.testing.assert_allclose(model.inertia_, weights[rows] @ d2.min(axis=1), rtol=1e-12)
    means, counts = naive.observed_means(X[rows], model.labels_[rows], weights[rows], len(model.counts_))
    np.testing.assert_allclose(model.counts_, counts, rtol=1e-12)
    np.testing.assert_allclose(model.cluster_means_, means, rtol=1e-10, atol=1e-12)


# ---- kernels


@given(
    seed=st.integers(0, 99),
    kind=st.sampled_from([np.float32, np.float64]),
    cuts=st.lists(st.integers(0, 60), max_size=3),
)
def test_distances_and_sums_are_those_of_loops_however_rows_are_cut(seed, kind, cuts):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 5)).astype(kind)
    X[rng.random(X.shape) < 0.5] = np.nan
    X[:, 0] = 1.0
    X[:7, 1:] = np.nan
    centers, weights = rng.normal(size=(7, 5)), rng.random(60)
    table = ObservedCenters.of(centers)
    d2 = naive.observed_d2(X, centers)
    np.testing.assert_allclose(table.d2(X), d2, rtol=1e-13)
    labels, nearest = table.nearest(X)
    np.testing.assert_array_equal(labels, table.d2(X).argmin(axis=1))
    parts = [ObservedTotals.zeros(7, 5)]
    for rows in np.split(np.arange(60), sorted(cuts)):
        zeros = ObservedTotals.zeros(7, 5)
        parts += [zeros.added(X[rows], labels[rows], nearest[rows], weights[rows])]
    totals = parts[0]
    for part in parts[1:]:
        totals = totals.absorb(part)
    means, counts = naive.observed_means(X, labels, weights, 7)
    np.testing.assert_allclose(totals.counts, counts)
    filled = counts > 0
    np.testing.assert_allclose(totals.means(centers)[filled], means[filled], atol=1e-12)
    np.testing.assert_array_equal(totals.means(centers)[~filled], centers[~filled])
    after = naive.observed_d2(X, totals.means(centers))[np.arange(60), labels]
    np.testing.assert_allclose(totals.d2 - weights @ after, totals.gain(centers), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(totals.missing, weights @ np.isnan(X) / weights.sum(), atol=1e-12)


def test_one_row_and_many_have_the_same_bits():
    X, _ = groups(500)
    table = ObservedCenters.of(np.random.default_rng(1).normal(size=(9, 6)))
    together = table.d2(X)
    for row in range(0, 500, 50):
        np.testing.assert_array_equal(table.d2(X[row : row + 1])[0], together[row])


# ---- fits


@cases("kind, weighted", [(np.float32, False), (np.float64, True)])
def test_a_fit_is_exact(kind, weighted):
    X, which = groups(kind=kind)
    weights = np.random.default_rng(2).random(len(X)) + 0.1 if weighted else None
    model = StreamKMeans(4, **MASKED).fit(X, sample_weight=weights)
    assert_exact(model, X, weights)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_allclose(model.score(X, sample_weight=weights), -model.inertia_, rtol=1e-12)
    d2 = naive.observed_d2(X, model.model_.centers)
    np.testing.assert_allclose(model.transform(X), np.sqrt(d2), rtol=2e-7 if kind == np.float32 else 1e-12)
    filled = StreamKMeans(4, **{**MASKED, "on_missing": "mean"}).fit(X)
    by_mask, by_means = (adjusted_rand_score(which, each.labels_) for each in (model, filled))
    assert by_mask > 0.9
    assert by_mask > by_means


def test_without_missing_values_it_is_k_means():
    X, _ = groups(share=0.0)
    model, plain = StreamKMeans(4, **MASKED).fit(X), StreamKMeans(4, **{**MASKED, "on_missing": "raise"}).fit(X)
    np.testing.assert_allclose(model.inertia_, plain.inertia_, rtol=1e-6)
    assert adjusted_rand_score(model.labels_, plain.labels_) == 1.0


def test_rows_beyond_the_sample_and_asked_passes():
    X, _ = groups(60_000, d=4)
    model = StreamKMeans(4, refine=2, **{**MASKED, "chunk_bytes": 200_000}).fit(X)
    assert model.plan_.sample_rows < len(X)
    assert model.n_passes_ == model.plan_.passes == 4
    assert_exact(model, X)
    inertias = [step["inertia"] for step in model.history_ if step["stage"] == "refine"]
    assert len(inertias) == 2
    assert inertias[1] <= inertias[0]


def test_a_row_without_values_is_invalid():
    X, _ = groups()
    X[[5, 40]] = np.nan
    with pytest.raises(InvalidInputError, match=r"NaN in .*row 5"):
        StreamKMeans(4, **MASKED).fit(X)
    model = StreamKMeans(4, on_invalid="skip", **MASKED).fit(X)
    assert np.flatnonzero(model.labels_ < 0).tolist() == [5, 40]
    assert_exact(model, X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    X[9, 1] = np.inf
    with pytest.raises(InvalidInputError, match=r"infinity in .*row 3"):
        StreamKMeans(4, on_missing="masked", random_state=0, progress=False).fit(X[6:36])


def test_a_feature_that_a_cluster_never_has_takes_the_mean_of_all_rows():
    X = np.array([[0.0, np.nan], [0.1, np.nan], [10.0, 4.0], [10.1, 6.0]])
    model = StreamKMeans(2, **MASKED).fit(X)
    first = model.labels_[0]
    assert model.cluster_means_[first].tolist() == [0.05, 5.0]
    assert "all rows: 1" in str(model.summary())


def test_what_cannot_be_is_refused():
    X, _ = groups(200)
    wrong = [
        {"sketch": "countsketch"}, {"metric": "cosine"}, {"max_cluster_size": 60}, {"coreset": "sensitivity"},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidParameterError, match=rf'on_missing="masked" .*{next(iter(options))}='):
            StreamKMeans(4, **MASKED, **options).fit(X)
    with pytest.raises(InvalidInputError, match=r"sparse rows, whose zeros are values, .*pass dense rows"):
        StreamKMeans(2, **MASKED).fit(sp.csr_array(np.eye(9)))
    with pytest.raises(InvalidInputError, match=r"walked once only, .*pass a list of chunks"):
        StreamKMeans(2, **MASKED).fit(iter([X]))
    model = StreamKMeans(4, **MASKED).fit(X)
    with pytest.raises(InvalidInputError, match="pass dense rows"):
        model.predict(sp.csr_array(np.ones((2, 6))))
    with pytest.raises(InvalidParameterError, match="streams have no missing values"):
        model.incremental()


# ---- where rows are, and what is kept


def test_threads_and_workers_give_the_same_bits(tmp_path, client):
    X, _ = groups()
    array = da.from_array(X, chunks=(700, 6))
    model = StreamKMeans(4, executor=1, **MASKED).fit(array)
    same_fit(StreamKMeans(4, executor=2, **MASKED).fit(array), model)
    on_cluster = StreamKMeans(4, executor=client, **MASKED).fit(array)
    labels = on_cluster.predict(array).compute()
    written = StreamKMeans(4, executor=client, **MASKED).fit(array, labels_to=tmp_path / "labels.zarr")
    same_fit(on_cluster, model)
    np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_array_equal(written.labels_[:], model.labels_)


def test_stopped_fits_go_on(tmp_path, monkeypatch):
    X, _ = groups()
    wanted = StreamKMeans(4, refine=1, **MASKED).fit(X)
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    for record in ("sketch", "seed", "assign-0", "refined", "assign-1"):
        kmeans = StreamKMeans(4, refine=1, **MASKED)
        with monkeypatch.context() as patched:
            stopped_after(patched, record)
            with pytest.raises(StoppedError):
                kmeans.fit(X, checkpoint=tmp_path / record)
        same_fit(kmeans.fit(X, checkpoint=tmp_path / record), wanted)


def test_saved_models_and_tables_and_reports(tmp_path):
    X, _ = groups()
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = StreamKMeans(4, **MASKED).fit(frame)
    model.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(frame), model.labels_)
    assert Model.load(tmp_path / "model.npz")[0].observed
    model.predict_to(frame, tmp_path / "labels.csv")
    table = pd.read_csv(tmp_path / "labels.csv")
    d = np.sqrt(np.sort(naive.observed_d2(X, model.model_.centers), axis=1))
    np.testing.assert_array_equal(table["label"], model.labels_)
    np.testing.assert_allclose(table[["distance", "second_distance"]], d[:, :2], rtol=1e-5)
    np.testing.assert_allclose(model.missing_.share, np.isnan(X).mean())
    share = str(model.missing_)
    assert "of all values were missing" in share
    assert share in str(model.summary())
    model.report(tmp_path / "report.html")
    assert share in (tmp_path / "report.html").read_text()
    assert "without them" in str(model.plan(frame))
    assert model.estimate_seconds(frame) > 0


def test_the_command_line_takes_missing_values(tmp_path):
    X, _ = groups(600)
    pd.DataFrame(X, columns=list("abcdef")).to_csv(tmp_path / "x.csv", index=False)
    given = ["fit", str(tmp_path / "x.csv"), "-k", "4", "--on-missing", "masked", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    assert "distances leave them out" in done.output
    given = ["assign", str(tmp_path / "out/model.npz"), str(tmp_path / "x.csv"), "-o", str(tmp_path / "again.npy")]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(tmp_path / "again.npy"), np.load(tmp_path / "out/labels.npy"))
