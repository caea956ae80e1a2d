"""Missing values, left out or filled, against NumPy and scikit-learn; the step "table" and its models."""

from __future__ import annotations

from itertools import pairwise

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streamkm import IncrementalKMeans, StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.preparation import Preparation
from streamkm.preparation.moments import FillFit
from streamkm.preparation.scaling import FATES
from tests.dask_processes import assert_same_bits
from tests.naive import folded

COMMON = {"random_state": 0, "chunk_bytes": 20_000, "progress": False}
FILLED = {"invalid": "mean", **COMMON}


def holed(n_rows=3_000, kind=np.float64, share=0.2):
    """Three groups of different scales with holes; a feature is constant, and one row has no value at all."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 5)) + 6 * rng.integers(0, 3, (n_rows, 1))
    X = X * [1, 10, 0.1, 1e3, 0] + [0, 1e6, 0, 5, 0.1]
    X[rng.random(X.shape) < share] = np.nan
    X[17] = np.nan
    return X.astype(kind)


def holed_sparse(n_rows=2_000, kind=np.float64):
    """Sparse rows that store NaN; one feature is NaN in every row, another is stored nowhere."""
    rng = np.random.default_rng(1)
    X = sp.random_array((n_rows, 40), density=0.2, rng=rng, format="lil") * 5
    X[:, :3] += 4.0 * rng.integers(0, 3, (n_rows, 1)) + 1
    X[:, 38:] = 0
    X = sp.csr_array(X)
    X.data[rng.random(X.nnz) < 0.1] = np.nan
    X = X.tolil()
    X[:, 38] = np.nan
    return sp.csr_array(X).astype(kind)


# ---- means


@given(
    cuts=st.lists(st.integers(0, 300), max_size=4), kind=st.sampled_from([np.float32, np.float64]), joins=st.booleans()
)
def test_means_are_those_of_numpy_however_rows_are_cut(cuts, kind, joins):
    X, fit = holed(300, kind), FillFit()
    found = folded(fit, np.split(X, sorted(cuts)), joins=joins)
    np.testing.assert_allclose(found.means, np.nanmean(X.astype(np.float64), axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.missing, np.isnan(X).mean(axis=0), atol=1e-15)
    assert found.means[4] == kind(0.1)  # of equal values, exactly: else standardizing would divide by rounding


@given(
    cuts=st.lists(st.integers(0, 300), max_size=4), kind=st.sampled_from([np.float32, np.float64]), joins=st.booleans()
)
def test_means_of_sparse_rows_are_those_of_scikit_learn(cuts, kind, joins):
    X, fit = holed_sparse(300, kind), FillFit()
    edges = [0, *sorted(cuts), 300]
    parts = [sp.csr_array(X[start:stop]) for start, stop in pairwise(edges)]
    parts = [sp.csr_array(part[:, : 1 + part.indices.max(initial=0)]) for part in parts]  # as wide as their entries
    found = folded(fit, parts, joins=joins)
    imputer = SimpleImputer(keep_empty_features=True).fit(X.astype(np.float64))
    width = 1 + X.indices.max()
    np.testing.assert_allclose(found.means, imputer.statistics_[:width], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found.missing, np.isnan(X.toarray()).mean(axis=0)[:width], atol=1e-15)


# ---- fits


def test_a_fit_is_that_of_imputed_rows():
    X, kind = holed(kind=np.float32), np.float32
    model = StreamKMeans(3, **FILLED).fit(X)
    whole = StreamKMeans(3, **COMMON).fit(np.where(np.isnan(X), model.preparation_.fill.means.astype(kind), X))
    assert_same_bits(model, whole)
    assert model.n_passes_ == whole.n_passes_ + 1
    np.testing.assert_allclose(
        model.preparation_.fill.means, SimpleImputer().fit(X.astype(np.float64)).statistics_, rtol=1e-12
    )
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_allclose(model.score(X), -model.inertia_, rtol=1e-9)
    np.testing.assert_array_equal(model.transform(X).argmin(axis=1), model.labels_)


@pytest.mark.filterwarnings("ignore:feature x38 has no value in any row")
@pytest.mark.parametrize(("kind", "steps"), [(np.float32, None), (np.float64, ["standardize"])])
def test_a_fit_of_sparse_rows_is_that_of_imputed_ones(tmp_path, kind, steps):
    X = holed_sparse(kind=kind)
    model = StreamKMeans(3, preprocess=steps, **FILLED).fit(X)
    whole = X.copy()
    whole.data = np.where(np.isnan(X.data), model.preparation_.fill.means.astype(kind)[X.indices], X.data)
    assert_same_bits(model, StreamKMeans(3, preprocess=steps, **COMMON).fit(whole))
    imputed = SimpleImputer(keep_empty_features=True).fit_transform(sp.csr_matrix(X.astype(np.float64)))
    np.testing.assert_allclose(whole.toarray(), imputed.toarray(), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_allclose(model.score(X), -model.inertia_, rtol=1e-6)
    sp.save_npz(tmp_path / "x.npz", sp.csr_matrix(X))
    assert_same_bits(StreamKMeans(3, preprocess=steps, executor=2, **FILLED).fit(tmp_path / "x.npz"), model)
    model.save(tmp_path / "model.npz")
    np.testing.assert_array_equal(StreamKMeans.load(tmp_path / "model.npz").predict(X), model.labels_)
    np.testing.assert_allclose(model.missing_.share, np.isnan(X.data).sum() / np.prod(X.shape))


def test_filling_comes_before_the_other_steps():
    X = holed()
    model = StreamKMeans(3, preprocess=["standardize"], **FILLED).fit(X)
    scaled = make_pipeline(SimpleImputer(), StandardScaler()).fit_transform(X)
    prepared = model.preparation_.apply(X)
    np.testing.assert_allclose(prepared, scaled, atol=1e-9)
    np.testing.assert_allclose(prepared[np.isnan(X)], 0, atol=1e-9)  # the mean
    by_hand = (model.cluster_centers_ / model.preparation_.found[1].factor) + model.preparation_.found[1].shift
    np.testing.assert_allclose(model.original_centers(), by_hand)


def test_rows_with_nan_or_infinity_are_left_out():
    X = holed()
    skipped = np.isnan(X).any(axis=1)
    row = int(np.flatnonzero(~skipped)[3])
    X[row, 2], skipped[row] = np.inf, True
    model = StreamKMeans(3, invalid="skip", **COMMON).fit(X)
    np.testing.assert_array_equal(model.labels_ < 0, skipped)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    sparse = sp.csr_array([[0.0, np.nan], [1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert StreamKMeans(2, invalid="skip", **COMMON).fit(sparse).labels_[0] == -1


def test_nan_is_refused_by_default_and_infinity_is_not_filled():
    with pytest.raises(InvalidInputError, match=r"NaN in .*row"):
        StreamKMeans(3, **COMMON).fit(holed())
    with pytest.raises(InvalidParameterError, match="invalid='median'; needed: one of 'raise', 'skip', 'mean'"):
        StreamKMeans(3, invalid="median").fit(holed())
    X = holed()
    X[40, 2] = np.inf
    with pytest.raises(InvalidInputError, match=r"infinity in .*row 40"):
        StreamKMeans(3, **FILLED).fit(X)


def test_iterators_are_refused_with_a_remedy():
    with pytest.raises(InvalidInputError, match=r'only once, and invalid="mean" takes a pass'):
        StreamKMeans(2, **FILLED).fit(iter([holed()]))
    model = StreamKMeans(3, **FILLED).fit(holed())
    stored = sp.csr_array(np.array([[1.0, 0.0, np.nan, 5.0, 0.1]]))
    dense = stored.toarray()
    assert model.predict(stored) == model.predict(dense)


def test_masked_entries_are_missing():
    X = holed()
    masked = np.ma.masked_invalid(X)
    model = StreamKMeans(3, **FILLED).fit(masked)
    assert_same_bits(model, StreamKMeans(3, **FILLED).fit(X))
    np.testing.assert_array_equal(model.predict(masked), model.labels_)
    assert_same_bits(
        StreamKMeans(3, invalid="skip", **COMMON).fit(list(masked)), StreamKMeans(3, invalid="skip", **COMMON).fit(X)
    )
    whole = np.ma.masked_equal(np.arange(12).reshape(6, 2), 3)
    assert np.isfinite(StreamKMeans(2, **FILLED).fit(whole).preparation_.fill.means).all()
    with pytest.raises(InvalidInputError, match=r"masked values.*invalid"):
        StreamKMeans(3, **COMMON).fit(masked)


# ---- where rows are, and what is kept


def test_tables_and_dask_and_threads_give_the_same_bits(tmp_path, client):
    X = holed()
    model = StreamKMeans(3, **FILLED).fit(X)
    assert_same_bits(StreamKMeans(3, executor=2, **FILLED).fit(X), model)
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame.to_csv(tmp_path / "x.csv", index=False)
    read = StreamKMeans(3, **FILLED).fit(tmp_path / "x.csv")
    np.testing.assert_allclose(read.preparation_.fill.means, model.preparation_.fill.means, rtol=1e-12)
    np.testing.assert_array_equal(read.preparation_.fill.missing, model.preparation_.fill.missing)
    array = da.from_array(X, chunks=(700, 5))
    on_cluster = StreamKMeans(3, executor=client, **FILLED).fit(array)
    labels = on_cluster.predict(array).compute()
    assert_same_bits(on_cluster, StreamKMeans(3, executor=1, **FILLED).fit(array))
    np.testing.assert_array_equal(labels, on_cluster.labels_)


def test_saved_models_fill_as_fitted_ones(tmp_path):
    X = holed()
    model = StreamKMeans(3, preprocess=["standardize", "unit"], **FILLED).fit(X)
    model.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(X), model.labels_)
    assert loaded.invalid == "mean"
    np.testing.assert_array_equal(loaded.preparation_.fill.missing, model.preparation_.fill.missing)
    arrays = model.preparation_.arrays()
    for wrong in ({}, {**arrays, "means0": np.zeros(4)}, {**arrays, "missing0": np.full(5, np.nan)}):
        with pytest.raises(ModelFileError):
            Preparation.restored(["fill", "standardize", "unit"], wrong, 5)
    with pytest.raises(ModelFileError):  # filling is the first step
        Preparation.restored(["standardize", "fill", "unit"], arrays, 5)


@pytest.mark.slow
def test_streams_go_on_with_the_means_of_the_fit():
    X = holed()
    stream = StreamKMeans(3, **FILLED).fit(X).incremental()
    stream.partial_fit(X[:500])
    assert stream.n_samples_seen_ == 3_500
    assert stream.invalid == "mean"
    assert (stream.predict(X) >= 0).all()
    means = stream.preparation_.fill.means
    filled = StreamKMeans(3, **FILLED).fit(X).incremental().partial_fit(np.where(np.isnan(X), means, X)[:500])
    np.testing.assert_array_equal(stream.cluster_centers_, filled.cluster_centers_)
    np.testing.assert_array_equal(stream.predict(np.ma.masked_invalid(X)), stream.predict(X))


def test_streams_have_no_means_of_their_own():
    X = holed()
    for begin in ("fit", "partial_fit"):
        with pytest.raises(InvalidInputError, match=r'invalid="mean" must see all rows .*its incremental\(\)'):
            getattr(IncrementalKMeans(3, invalid="mean"), begin)(X)
    whole = StreamKMeans(3, **COMMON).fit(np.nan_to_num(X)).incremental()
    with pytest.raises(InvalidInputError, match=r'NaN in row 0 of array.*fit StreamKMeans with invalid="mean"'):
        whole.set_params(invalid="mean").partial_fit(X)


def test_plan_report_and_summary_tell_of_missing_values(tmp_path):
    frame = pd.DataFrame(holed(), columns=list("abcde"))
    frame["b"] = frame["b"].where(np.arange(len(frame)) % 2 == 0)
    model = StreamKMeans(3, **FILLED)
    plan = model.plan(frame)
    assert plan.finding_steps == ("fill",)
    assert "column means" in str(plan)
    model.fit(frame)
    assert plan.passes == model.n_passes_
    share = f"{frame.isna().to_numpy().mean():.1%} of all values were missing, {frame['b'].isna().mean():.1%} of b"
    assert share in str(model.summary())
    model.report(tmp_path / "report.html")
    assert share in (tmp_path / "report.html").read_text()
    assert "missing" not in str(StreamKMeans(3, **COMMON).fit(frame.fillna(0)).summary())


def test_a_fit_that_was_stopped_goes_on_with_the_means(tmp_path, stop):
    X = holed()
    wanted = StreamKMeans(3, preprocess=["standardize"], **FILLED).fit(X)
    for record in ("step-0", "step-1-sums"):
        stop(StreamKMeans(3, preprocess=["standardize"], **FILLED), X, tmp_path / record, record)
        assert_same_bits(
            StreamKMeans(3, preprocess=["standardize"], **FILLED).fit(X, checkpoint=tmp_path / record), wanted
        )


N = 6000
KINDS = np.arange(N) % 4


def baskets():
    """Four kinds of baskets, and columns that do not matter: an id, a constant, noise, and a few broken values."""
    rng = np.random.default_rng(0)
    points = rng.normal(50, 10, N)
    points[::1500] = 1e6
    return pd.DataFrame(
        {
            "id": np.arange(N) + 7_000_000,
            "code": rng.permutation(10 * N)[:N],
            "same": np.full(N, 4.0),
            "spend": rng.lognormal(np.array([2.0, 3, 4, 5])[KINDS], 0.4),
            "hour": rng.normal(np.array([9, 18, 9, 18])[KINDS], 1.5),
            "member": rng.integers(2, size=N),
            "noise": rng.normal(size=N),
            "points": points,
            "channel": np.array(["shop", "web", "app"])[
                np.where(rng.random(N) < 0.8, KINDS % 3, rng.integers(3, size=N))
            ],
        }
    )


@pytest.fixture(scope="module")
def model():
    return fitted()


def fitted(rows=None, **given):
    source = open_source(baskets() if rows is None else rows, categories="onehot")
    return StreamKMeans(4, preprocess="table", random_state=0, progress=False, **given).fit(source)


def test_what_becomes_of_each_column(model):
    table, names = model.preparation_.table, list(model.feature_names_in_)
    fates = {name: FATES[int(fate)] for name, fate in zip(names, table.fate, strict=True)}
    assert fates == {
        "id": "a counter", "code": "a number that identifies rows", "same": "constant", "spend": "its logarithm",
        "hour": "a number", "member": "a category", "noise": "a number", "points": "a number",
        "channel=app": "a category", "channel=shop": "a category", "channel=web": "a category",
    }  # fmt: skip
    X = np.asarray(model.preparation_.apply(np.vstack([rows.X for rows in sources()])))
    assert np.ptp(X[:, :3], axis=0).max() == 0
    np.testing.assert_allclose(X[:, [3, 4, 6, 7]].std(axis=0), 1, rtol=0.05)
    assert np.unique(X[:, 8:]).tolist() == pytest.approx([0, 0.5**0.5])
    assert np.unique(X[:, 5]).tolist() == [0, 1]
    assert np.abs(X[:, 7]).max() < 10


def sources():
    return open_source(baskets(), categories="onehot").stream(1 << 24)


def test_the_clusters_are_those_of_columns_prepared_by_hand(model):
    frame = baskets()
    assert adjusted_rand_score(KINDS, model.labels_) > 0.9
    clipped = frame.assign(points=frame["points"].clip(0, 100)).drop(columns=["id", "code", "same"])
    numbers = ["spend", "hour", "noise", "points"]
    clipped["spend"] = np.log1p(clipped["spend"])
    scaled = (clipped[numbers] - clipped[numbers].mean()) / clipped[numbers].std()
    channels = pd.get_dummies(clipped["channel"]) * np.sqrt(0.5)
    by_hand = StreamKMeans(4, random_state=0, progress=False).fit(np.column_stack([scaled, channels]))
    assert adjusted_rand_score(KINDS, model.labels_) >= adjusted_rand_score(KINDS, by_hand.labels_) - 0.005


def test_summary_says_it(model):
    told = str(model.summary())
    assert "logarithms are taken of spend" in told
    assert "id is left out: it is a counter" in told
    assert "same is left out: it is constant" in told
    assert "points has 0.07% of its values outside" in told
    assert "--exclude points" in told
    centers = model.original_centers()
    assert centers[:, 2].tolist() == [4.0] * 4
    assert sorted(centers[:, 3].round(-1).tolist())[-1] > 100


def test_models_go_on(model, tmp_path):
    frame = baskets()
    model.save(tmp_path / "model.npz")
    loaded = StreamKMeans.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(frame), model.labels_)
    stream = model.incremental()
    np.testing.assert_array_equal(stream.predict(frame), model.labels_)
    stream.update(frame)
    assert np.mean(stream.predict(frame) == model.labels_) > 0.999
    stream.save(tmp_path / "stream.npz")
    later = IncrementalKMeans.load(tmp_path / "stream.npz")
    np.testing.assert_array_equal(later.predict(frame), stream.predict(frame))


def test_a_statement_gives_the_same_labels(model):
    frame = baskets()
    with pytest.importorskip("duckdb").connect() as database:
        database.register("baskets", frame)
        found = database.sql(model.to_sql(table="baskets", id_column="id")).df()
    np.testing.assert_array_equal(found.sort_values("id")["cluster"], model.labels_)


def test_any_executor_has_the_same_bits_and_missing_values_are_filled_first(model):
    again = fitted(executor=2, chunk_bytes=50_000)
    for name in ("shift", "factor", "low", "high", "fate", "beyond"):
        np.testing.assert_array_equal(getattr(again.preparation_.table, name), getattr(model.preparation_.table, name))
    frame = baskets()
    frame.loc[::50, "spend"] = np.nan
    assert adjusted_rand_score(KINDS, fitted(frame, invalid="mean").labels_) > 0.85


def test_refusals():
    with pytest.raises(InvalidInputError, match=r'has sparse rows, and preprocess="table" is for dense ones; pass'):
        StreamKMeans(2, preprocess="table").fit(open_source(baskets(), categories="hash"))
    with pytest.raises(InvalidInputError, match="the step 'table' must see all rows"):
        IncrementalKMeans(2, preprocess="table").partial_fit(np.eye(4))
    with pytest.raises(InvalidParameterError, match="there is no step 'table'"):
        StreamKMeans(2, preprocess={"table": ["a"]}).fit(np.eye(4))
