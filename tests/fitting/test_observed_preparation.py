"""Steps of rows with missing values, which distances leave out, against NumPy on the values that are there."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import RobustScaler, StandardScaler

from streamkm import StreamKMeans
from streamkm.cli.main import main
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine import saving
from streamkm.preparation.moments import MomentsFit
from streamkm.preparation.quartiles import quartile_scaling
from tests import naive
from tests.children import StoppedError, stopped_after

MASKED = {"on_missing": "masked", "random_state": 0, "chunk_bytes": 20_000, "progress": False}


def holed(n_rows=2_000, kind=np.float64, share=0.3):
    """Four groups of positive rows of different scales with holes; one feature is constant, each row has a value."""
    rng = np.random.default_rng(0)
    X = rng.random((n_rows, 6)) + 3 * rng.integers(0, 4, (n_rows, 1)) + 1
    X = X * [1, 10, 0.1, 1e3, 0, 2] + [0, 50, 0, 5, 0.5, 0]
    X[rng.random(X.shape) < share] = np.nan
    X[np.isnan(X).all(axis=1), 0] = 1.0
    return X.astype(kind)


def total(X):
    return X * (10_000 / np.nansum(X, axis=1))[:, None]


def unit(X):
    norms = np.sqrt(np.nansum(X**2, axis=1))[:, None]
    return X / np.where(norms > 0, norms, 1)


def some(X, columns, step):
    """A step of some columns."""
    made = X.copy()
    made[:, columns] = step(X[:, columns])
    return made


def standardized(X):
    return StandardScaler().fit_transform(X)  # leaves NaN out


def robust(X):
    return RobustScaler().fit_transform(X)  # leaves NaN out


CASES = {
    "standardize": (["standardize"], standardized),
    "robust": (["robust"], robust),
    "log1p": (["log1p"], np.log1p),
    "total": (["total", "log1p"], lambda X: np.log1p(total(X))),
    "unit": (["standardize", "unit"], lambda X: unit(standardized(X))),
    "two": (["log1p", "robust", "standardize"], lambda X: standardized(robust(np.log1p(X)))),
    "columns": (
        {"log1p": [3], "unit": [0, 1], "standardize": [1, 2, 3], "weight": {2: 4.0}},
        lambda X: some(
            some(some(some(X, [3], np.log1p), [0, 1], unit), [1, 2, 3], standardized), [2], lambda each: 2 * each
        ),
    ),
}


def same_fit(got, wanted):
    np.testing.assert_array_equal(got.labels_, wanted.labels_)
    np.testing.assert_array_equal(got.model_.centers, wanted.model_.centers)
    assert got.inertia_ == wanted.inertia_


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_a_fit_is_that_of_rows_that_were_prepared_by_hand(tmp_path, case, kind):
    (steps, by_hand), X, exact = CASES[case], holed(kind=kind), 1e-9 if kind == np.float64 else 2e-4
    rows = by_hand(X.astype(np.float64))
    model = StreamKMeans(4, preprocess=steps, **MASKED).fit(X)
    np.testing.assert_allclose(model.preparation_.apply(X), rows, rtol=exact, atol=exact)
    d2 = naive.observed_d2(rows, model.model_.centers)
    np.testing.assert_allclose(model.inertia_, d2.min(axis=1).sum(), rtol=exact)
    assert (model.labels_ == d2.argmin(axis=1)).mean() > 0.999  # rows between two centers
    means, counts = naive.observed_means(rows, model.labels_, np.ones(len(X)), 4)
    np.testing.assert_array_equal(model.counts_, counts)
    np.testing.assert_allclose(model.cluster_means_, means, rtol=exact, atol=exact)
    wanted = StreamKMeans(4, **MASKED).fit(rows)
    np.testing.assert_allclose(model.inertia_, wanted.inertia_, rtol=exact)
    assert model.n_passes_ == model.plan_.passes == wanted.n_passes_ + len(model.preparation_.finding)
    np.testing.assert_allclose(model.missing_.share, np.isnan(X).mean())
    model.save(tmp_path / "model.npz")
    for each in (model, StreamKMeans.load(tmp_path / "model.npz")):
        np.testing.assert_array_equal(each.predict(X), model.labels_)
        np.testing.assert_allclose(each.transform(X), np.sqrt(d2), rtol=10 * exact, atol=10 * exact)
        assert each.score(X) == pytest.approx(-model.inertia_, rel=1e-9)


@given(
    cuts=st.lists(st.integers(0, 300), max_size=4), kind=st.sampled_from([np.float32, np.float64]), joins=st.booleans()
)
def test_moments_are_those_of_the_values_that_are_there(cuts, kind, joins):
    X, fit = holed(300, kind), MomentsFit(centers=True, observed=True)
    X[:, 5] = np.nan
    found = naive.folded(fit, np.split(X, sorted(cuts)), joins=joins)
    rows = X[:, :4].astype(np.float64)
    np.testing.assert_allclose(found.shift[:4], np.nanmean(rows, axis=0), rtol=1e-12)
    np.testing.assert_allclose(1 / found.factor[:4], np.nanstd(rows, axis=0), rtol=1e-9)
    assert found.shift[4:].tolist() == [0.5, 0.0]  # a constant, and no value at all
    assert found.factor[4:].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_without_missing_values_moments_have_the_same_bits(kind):
    X = np.nan_to_num(holed(1_000, kind))
    found = [fit.finish(fit.step(None, X, np.empty(0))) for fit in (MomentsFit(True), MomentsFit(True, observed=True))]
    np.testing.assert_array_equal(found[0].shift, found[1].shift)
    np.testing.assert_array_equal(found[0].factor, found[1].factor)


def test_quartiles_are_those_of_the_values_that_are_there():
    X = holed(301)
    X[:, 5] = np.nan
    found = quartile_scaling(X)
    np.testing.assert_allclose(found.shift[:5], np.nanmedian(X[:, :5], axis=0))
    low, high = np.nanpercentile(X[:, :4], (25, 75), axis=0)
    np.testing.assert_allclose(found.factor[:4], 1 / (high - low))
    assert (found.shift[5], found.factor[4], found.factor[5]) == (0.0, 1.0, 1.0)


def test_values_that_a_step_cannot_use_are_not_missing():
    X = holed()
    X[7, 2] = -3.0
    for step in ("log1p", "total"):
        with pytest.raises(InvalidInputError, match=rf"infinity in .*row 7 .*after {step}"):
            StreamKMeans(4, preprocess=[step], **MASKED).fit(X)
    model = StreamKMeans(4, preprocess=["log1p", "standardize"], on_invalid="skip", **MASKED).fit(X)
    assert np.flatnonzero(model.labels_ < 0).tolist() == [7]
    np.testing.assert_allclose(model.preparation_.apply(np.delete(X, 7, axis=0)),
                               standardized(np.log1p(np.delete(X, 7, axis=0))), atol=1e-9)  # fmt: skip


def test_centers_come_back_in_original_units():
    X = holed()
    model = StreamKMeans(4, preprocess={"standardize": None, "weight": {1: 3.0}}, **MASKED).fit(X)
    means, _ = naive.observed_means(X, model.labels_, np.ones(len(X)), 4)
    np.testing.assert_allclose(model.preparation_.undone(model.cluster_means_), means, rtol=1e-9)
    np.testing.assert_allclose(model.original_centers(), means, rtol=0.05)
    assert "of all values were missing" in str(model.summary())
    assert model.estimate_seconds(X) > 0


def test_threads_and_workers_give_the_same_bits(client):
    X = holed()
    array = da.from_array(X, chunks=(700, 6))
    given = {"preprocess": ["robust", "standardize", "unit"], **MASKED}
    model = StreamKMeans(4, executor=1, **given).fit(array)
    same_fit(StreamKMeans(4, executor=2, **given).fit(array), model)
    on_cluster = StreamKMeans(4, executor=client, **given).fit(array)
    same_fit(on_cluster, model)
    np.testing.assert_array_equal(on_cluster.predict(array).compute(), model.labels_)


def test_stopped_fits_go_on(tmp_path, monkeypatch):
    X, given = holed(), {"preprocess": ["standardize", "robust"], **MASKED}
    wanted = StreamKMeans(4, **given).fit(X)
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)
    for record in ("step-0-sums", "step-0", "step-1", "sketch", "assign-0"):
        kmeans = StreamKMeans(4, **given)
        with monkeypatch.context() as patched:
            stopped_after(patched, record)
            with pytest.raises(StoppedError):
                kmeans.fit(X, checkpoint=tmp_path / record)
        same_fit(kmeans.fit(X, checkpoint=tmp_path / record), wanted)


def test_the_command_line_prepares_rows_with_missing_values(tmp_path):
    X = holed(600)
    pd.DataFrame(X, columns=list("abcdef")).to_csv(tmp_path / "x.csv", index=False)
    given = ["fit", str(tmp_path / "x.csv"), "-k", "4", "--on-missing", "masked", "--seed", "0"]
    done = CliRunner().invoke(main, [*given, "--preprocess", "log1p:a,standardize", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    given = ["assign", str(tmp_path / "out/model.npz"), str(tmp_path / "x.csv"), "-o", str(tmp_path / "again.npy")]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(tmp_path / "again.npy"), np.load(tmp_path / "out/labels.npy"))
