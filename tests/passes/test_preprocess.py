"""Steps: rows scaled as they are read, against scikit-learn's scalers in front of the same fit."""

from __future__ import annotations

import math

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gmean
from sklearn.datasets import dump_svmlight_file
from sklearn.preprocessing import RobustScaler, StandardScaler, normalize

from streamkm import IncrementalKMeans, StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.kernels.preparation import row_steps as kernels
from streamkm.preparation import Preparation, check_steps
from streamkm.preparation.moments import MomentsFit, quartile_scaling
from streamkm.sources.dense import DenseSource
from streamkm.sources.prepared import PreparedRows
from tests.sources.counting import CountingArray

COMMON = {"random_state": 0, "chunk_bytes": 20_000, "progress": False}


def groups(n_rows=3_000, kind=np.float64):
    """Four groups whose features differ in scale by ten powers of ten; one lies far away, one is constant."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 6)) + 6 * rng.integers(0, 4, (n_rows, 1)) * (np.arange(6) % 2)
    return (X * [1, 10, 0.1, 1e3, 1e-4, 0] + [0, 1e6, 0, 5, 0, 3]).astype(kind)


def counts(n_rows=2_000, d=200):
    """Sparse counts; one feature is in every row, always the same."""
    rng = np.random.default_rng(1)
    X = sp.random_array(
        (n_rows, d), density=0.05, format="lil", rng=rng, data_sampler=lambda size: rng.poisson(3, size)
    )
    X[:, 7] = 2
    return sp.csr_array(X).astype(np.float64)


def log_total(X):
    dense = (X.toarray() if sp.issparse(X) else X).astype(np.float64)
    totals = dense.sum(axis=1, keepdims=True)
    return np.log1p(dense * np.divide(10_000, totals, out=np.ones_like(totals), where=totals > 0))


def scaled_like(X, scaler):
    return scaler.fit_transform(X.toarray() if sp.issparse(X) else X.astype(np.float64))


REFERENCES = {
    ("standardize",): lambda X: scaled_like(X, StandardScaler(with_mean=not sp.issparse(X))),
    ("robust",): lambda X: scaled_like(X, RobustScaler(with_centering=not sp.issparse(X))),
    ("unit",): lambda X: normalize(X.toarray() if sp.issparse(X) else X.astype(np.float64)),
    ("total", "log1p"): log_total,
    ("total", "log1p", "standardize"): lambda X: scaled_like(
        log_total(X), StandardScaler(with_mean=not sp.issparse(X))
    ),
}


def prepared_by_fit(X, steps):
    kmeans = StreamKMeans(4, preprocess=steps, max_iter=1, n_init=1, refine=0, **COMMON).fit(X)
    rows = kmeans.preparation_.apply(sp.csr_array(X) if sp.issparse(X) else X)
    return rows.toarray() if sp.issparse(rows) else rows


@pytest.mark.parametrize("steps", REFERENCES, ids="-".join)
def test_rows_are_what_scikit_learn_makes_of_them(steps):
    dense = groups() if "total" not in steps else counts(d=20).toarray()
    for X in (dense, dense.astype(np.float32), np.abs(dense).astype(np.int32), counts(), counts().astype(np.float32)):
        got = prepared_by_fit(X, list(steps))
        wanted = REFERENCES[steps](X)
        assert got.dtype == (np.float32 if X.dtype == np.float32 else np.float64)
        exact = 2e-6 if X.dtype == np.float32 else 1e-9
        np.testing.assert_allclose(got, wanted, rtol=exact, atol=exact)


def test_centers_come_back_in_original_units():
    X = groups()
    scaler = StandardScaler().fit(X)
    kmeans = StreamKMeans(4, preprocess=["standardize"], **COMMON).fit(X)
    np.testing.assert_allclose(
        kmeans.original_centers(), scaler.inverse_transform(kmeans.cluster_centers_), rtol=1e-9, atol=1e-9
    )
    plain = StreamKMeans(4, **COMMON).fit(X)
    np.testing.assert_array_equal(plain.original_centers(), plain.cluster_centers_)
    sparse = StreamKMeans(4, preprocess=["standardize"], **COMMON).fit(counts())
    deviations = np.sqrt(StandardScaler(with_mean=False).fit(counts()).var_)
    deviations[7] = 1  # constant
    np.testing.assert_allclose(sparse.original_centers(), sparse.cluster_centers_ * deviations, atol=1e-9)
    for step in ("unit", "total"):
        with pytest.raises(InvalidInputError, match="standardize, robust and log1p"):
            StreamKMeans(4, preprocess=[step], **COMMON).fit(abs(X)).original_centers()


def test_logarithms_are_taken_back():
    """Centers, and means in summaries, become geometric means of 1 + x, less 1; of sparse rows, too."""
    X = np.abs(groups())
    frame = pd.DataFrame(X, columns=list("abcdef"))
    steps = {"log1p": ["a", "c"], "standardize": None}
    kmeans = StreamKMeans(4, preprocess=steps, tol=0, **COMMON).fit(frame)
    centers = kmeans.original_centers()
    for label in range(4):
        rows = X[kmeans.labels_ == label]
        wanted = rows.mean(axis=0)
        wanted[[0, 2]] = gmean(1 + rows[:, [0, 2]]) - 1
        np.testing.assert_allclose(centers[label], wanted, rtol=1e-9)
    for row in kmeans.summary(n_traits=6).rows:
        for trait in row.traits:
            assert trait.mean == pytest.approx(centers[row.cluster, "abcdef".index(trait.feature)], rel=1e-9)
    mixed = StreamKMeans(4, preprocess=["robust", "log1p"], invalid="skip", **COMMON).fit(X)
    np.testing.assert_allclose(
        mixed.preparation_.apply(mixed.original_centers()), mixed.cluster_centers_, rtol=1e-9, atol=1e-12
    )
    sparse = StreamKMeans(4, preprocess=["log1p"], **COMMON).fit(counts())
    np.testing.assert_allclose(sparse.original_centers(), np.expm1(sparse.cluster_centers_), rtol=1e-12)


def test_every_step_is_one_pass_that_the_plan_has_counted():
    X = counts().toarray()
    for steps, first in ((["unit"], []), (["robust"], ["robust"]), (["standardize", "unit"], ["standardize"])):
        array = CountingArray(X, 100, "x")
        source = DenseSource(array)
        kmeans = StreamKMeans(4, preprocess=steps, refine=0, **COMMON)
        plan = kmeans.plan(source)
        kmeans.fit(source)
        assert [stage.name for stage in kmeans.stages_][: len(first) + 1] == [*first, "sketch"]
        assert plan.passes == kmeans.plan_.passes == kmeans.n_passes_ == 2 + len(first)
        assert array.most() == plan.passes
        assert ("the first for" in dict(plan.lines())["passes"]) == bool(first)


def test_values_that_a_step_has_no_use_for_are_named(tmp_path):
    X = np.abs(groups(200)) + 1
    X[17, 3] = -2
    pd.DataFrame(X, columns=list("abcdef")).to_csv(tmp_path / "x.csv", index=False)
    for step, takes in (("log1p", "values above -1"), ("total", "values of 0 and more")):
        wanted = rf"infinity in .*x.csv, line 19 .*after {step}; pass invalid.*; {step} takes {takes}"
        with pytest.raises(InvalidInputError, match=wanted):
            StreamKMeans(2, preprocess=[step], **COMMON).fit(tmp_path / "x.csv")
        kmeans = StreamKMeans(2, preprocess=[step], invalid="skip", **COMMON).fit(tmp_path / "x.csv")
        assert np.flatnonzero(kmeans.labels_ < 0).tolist() == [17]


def test_streams_take_steps_of_one_row():
    X = counts()
    kmeans = IncrementalKMeans(4, preprocess=["total", "log1p"], random_state=0)
    plain = IncrementalKMeans(4, random_state=0)
    for part in (X[:700], X[700:]):
        kmeans.partial_fit(part)
        np.testing.assert_array_equal(kmeans.labels_, kmeans.predict(part))
        plain.partial_fit(sp.csr_array(log_total(part)))
    np.testing.assert_allclose(kmeans.cluster_centers_, plain.cluster_centers_, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInputError, match="'standardize' must see all rows"):
        IncrementalKMeans(4, preprocess=["log1p", "standardize"]).partial_fit(X)


def test_what_no_step_can_be_done_to():
    cases = (
        (["standardise"], InvalidParameterError, "no step 'standardise'"),
        ("standardize", InvalidParameterError, "needed: a list of names"),
        (3, InvalidParameterError, "needed: a list of names"),
    )
    for steps, error, words in cases:
        with pytest.raises(error, match=words):
            StreamKMeans(4, preprocess=steps).fit(groups())
    with pytest.raises(InvalidInputError, match="can be read only once, and the step 'robust'"):
        StreamKMeans(4, preprocess=["unit", "robust"]).fit(iter([groups()]))
    StreamKMeans(4, preprocess=["unit"]).fit(iter([groups()]))
    assert check_steps(None) == check_steps([]) == ()


def test_damaged_models_are_refused():
    found = Preparation(("standardize",), (quartile_scaling(groups()),))
    arrays = found.arrays()
    assert Preparation.restored(["standardize"], arrays, 6).steps == ("standardize",)
    cases = (
        (["standardize", "robust"], arrays), (["no"], arrays), (7, arrays), (["standardize"], {}),
        (["standardize"], {**arrays, "factor0": np.ones(5)}),
        (["standardize"], {**arrays, "shift0": np.full(6, np.nan)}),
        (["standardize"], {**arrays, "factor0": np.ones(6, np.float32)}),
    )  # fmt: skip
    for steps, stored in cases:
        with pytest.raises(ModelFileError):
            Preparation.restored(steps, stored, 6)


def as_array(X, path):
    return X


def as_csr(X, path):
    return sp.csr_array(X)


def as_dask(X, path):
    return da.from_array(X, chunks=(170, X.shape[1]))


def as_sparse_dask(X, path):
    return as_dask(X, path).map_blocks(sp.csr_array, dtype=X.dtype, meta=sp.csr_array((0, 0), dtype=X.dtype))


def as_anndata(X, path):
    return anndata.AnnData(sp.csr_matrix(X))


def as_svmlight(X, path):
    dump_svmlight_file(X, np.zeros(len(X)), str(path / "x.svm"))
    return {"path": str(path / "x.svm"), "dtype": X.dtype.name} if X.dtype == np.float32 else str(path / "x.svm")


def as_chunks(X, path):
    return lambda: iter([sp.csr_array(X[:300]), sp.csr_array(X[300:])])


DENSE_KINDS, SPARSE_KINDS = (as_array, as_dask), (as_csr, as_sparse_dask, as_anndata, as_svmlight, as_chunks)


def with_zeros(kind):
    """Positive rows of four groups, a third of whose values are zeros."""
    rng = np.random.default_rng(3)
    X = (rng.random((700, 9)) + 3 * rng.integers(0, 4, (700, 1)) + 5) * np.logspace(-2, 2, 9)
    return (X * (rng.random(X.shape) < 0.67)).astype(kind)


class TestKindsOfRows:
    """A model prepares later rows as the rows of its fit were prepared, dense or sparse."""

    @pytest.mark.parametrize(
        ("steps", "kind", "fitted_on"),
        [
            (["log1p", "standardize"], np.float64, as_csr),
            (["standardize"], np.float32, as_csr),
            (["robust", "unit"], np.float64, as_array),
        ],
    )
    def test_all_kinds_get_the_same_labels(self, tmp_path, steps, fitted_on, kind):
        X = with_zeros(kind)
        kmeans = StreamKMeans(6, preprocess=steps, **COMMON).fit(fitted_on(X, tmp_path))
        kmeans.save(tmp_path / "model.npz")
        loaded = StreamKMeans.load(tmp_path / "model.npz")
        distances = kmeans.transform(fitted_on(X, tmp_path))
        for made in (*DENSE_KINDS, *SPARSE_KINDS):
            for model in (kmeans, loaded):
                np.testing.assert_array_equal(
                    np.asarray(model.predict(made(X, tmp_path))), kmeans.labels_, made.__name__
                )
            exact = 1e-9 if kind == np.float64 else 2e-4
            found = np.asarray(kmeans.transform(made(X, tmp_path)))
            np.testing.assert_allclose(found, distances, rtol=exact, atol=exact, err_msg=made.__name__)
            assert kmeans.score(made(X, tmp_path)) == pytest.approx(-kmeans.inertia_, rel=exact)

    def test_on_a_cluster(self, tmp_path, client):
        X = with_zeros(np.float64)
        kmeans = StreamKMeans(6, preprocess=["standardize"], executor=client, **COMMON).fit(as_csr(X, tmp_path))
        for made in (as_array, as_sparse_dask, as_svmlight):
            np.testing.assert_array_equal(np.asarray(kmeans.predict(made(X, tmp_path))), kmeans.labels_)
            assert kmeans.score(made(X, tmp_path)) == pytest.approx(-kmeans.inertia_, rel=1e-9)

    def test_rows_that_become_dense_are_cut_to_the_chunks_that_were_planned(self, tmp_path):
        X = np.zeros((4_000, 300), np.float32)
        X[np.arange(4_000), np.arange(4_000) % 300] = 1 + np.arange(4_000) % 7
        preparation = StreamKMeans(3, preprocess=["standardize"], max_iter=1, n_init=1, **COMMON).fit(X).preparation_
        for made in (as_csr, as_svmlight, as_chunks):
            source = PreparedRows(open_source(made(X, tmp_path)), preparation)
            rows = list(source.stream(120_000))
            assert not source.is_sparse
            assert source.n_features == source.estimated_features == 300
            assert max(each.X.nbytes for each in rows) <= 2 * 120_000 * rows[0].X.itemsize // 4
            np.testing.assert_allclose(np.concatenate([each.X for each in rows]), preparation.apply(X), rtol=1e-6)

    def test_narrow_sparse_rows_have_zeros_behind_them_and_invalid_blocks_no_labels(self, tmp_path):
        X = with_zeros(np.float64)
        X[:400, 6:] = 0
        kmeans = StreamKMeans(6, preprocess=["standardize"], invalid="skip", **COMMON).fit(X)
        dump_svmlight_file(X[:400, :6], np.zeros(400), str(tmp_path / "narrow.svm"))
        np.testing.assert_array_equal(kmeans.predict(str(tmp_path / "narrow.svm")), kmeans.labels_[:400])
        X[:170] = np.nan
        got = kmeans.predict(as_sparse_dask(X, tmp_path)).compute()
        np.testing.assert_array_equal(got, np.where(np.arange(700) < 170, -1, kmeans.labels_))


class TestSums:
    @given(
        st.integers(1, 400), st.integers(1, 5), st.lists(st.integers(0, 400), max_size=4),
        st.sampled_from([0.0, 1.0, 1e8]), st.integers(0, 99),
    )  # fmt: skip
    def test_any_cut_gives_means_and_deviations(self, n, d, cuts, far, seed):
        X = np.random.default_rng(seed).normal(size=(n, d)) + far
        X[:, 0] = 0.1
        fit = MomentsFit(centers=True)
        parts = [part for part in np.split(X, sorted(cut % n for cut in cuts)) if len(part)]
        found = fit.finish(fit.join([fit.step(None, part, np.empty(0)) for part in parts]))
        np.testing.assert_allclose(found.shift, X.mean(axis=0), rtol=1e-13, atol=1e-13)
        deviations = X.std(axis=0)
        deviations[0] = 0
        wanted = np.divide(1, deviations, out=np.ones(d), where=deviations > 0)
        np.testing.assert_allclose(found.factor, wanted, rtol=1e-6)
        assert found.factor[0] == 1
        assert found.shift[0] == 0.1

    @given(st.integers(0, 99))
    def test_sparse_rows_may_become_wider(self, seed):
        rng = np.random.default_rng(seed)
        parts = [sp.random_array((30, width), density=0.2, format="csr", rng=rng) for width in (3, 9, 6)]
        whole = np.concatenate([np.pad(part.toarray(), ((0, 0), (0, 9 - part.shape[1]))) for part in parts])
        fit = MomentsFit(centers=False)
        one = None
        for part in parts:
            one = fit.step(one, part, np.empty(0))
        for state in (one, fit.join([fit.step(None, part, np.empty(0)) for part in parts])):
            deviations = whole.std(axis=0)
            wanted = np.divide(1, deviations, out=np.ones(9), where=deviations > 0)
            np.testing.assert_allclose(fit.finish(state).factor, wanted, rtol=1e-12)

    def test_quartiles_of_sparse_rows_are_those_of_dense_ones(self):
        X = sp.random_array((300, 40), density=0.6, format="csr", rng=np.random.default_rng(0))
        X.data -= 0.3
        for part in (X, X[:, :3], X[:1]):
            got, wanted = quartile_scaling(sp.csr_array(part)), quartile_scaling(part.toarray())
            np.testing.assert_allclose(got.factor, wanted.factor, rtol=1e-12)


class TestKernels:
    def test_logarithms_are_right_to_a_few_units_of_the_last_place(self):
        rng = np.random.default_rng(0)
        X = np.concatenate([
            10.0 ** rng.uniform(-300, 300, 2_000), -rng.uniform(0, 1, 2_000), rng.uniform(-0.5, 2, 2_000),
            [0.0, 5e-324, 1e-17, 1.0, -0.5, -1 + 1e-16],
        ])  # fmt: skip
        out = np.empty_like(X)
        kernels.log1p(X, out)
        wanted = np.array([math.log1p(x) for x in X])
        np.testing.assert_array_less(np.abs(out - wanted), 4 * np.spacing(np.abs(wanted)) + 1e-323)
        kernels.log1p(np.array([-1.0, -2.0, -np.inf, np.inf, np.nan]), out[:5])
        assert out[:4].tolist() == [-np.inf, -np.inf, -np.inf, np.inf]
        assert np.isnan(out[4])

    def test_unit_rows_neither_overflow_nor_vanish(self):
        X = np.array([[3e200, 4e200], [3e-320, 4e-320], [0, 0], [np.nan, np.nan]])
        got = Preparation(("unit",)).apply(X)
        np.testing.assert_allclose(got[0], [0.6, 0.8], rtol=1e-15)
        np.testing.assert_allclose(got[1], [0.6, 0.8], rtol=1e-3)
        assert got[2].tolist() == [0, 0]
        assert np.isnan(got[3]).all()

    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_missing_values_stay_and_no_other_value_becomes_one(self, kind):
        X = groups(200, kind)
        X[np.random.default_rng(0).random(X.shape) < 0.4] = np.nan
        X[0], X[1, 0], X[2, 0], X[3, 1] = np.nan, np.inf, -np.inf, 0
        missing, sizes = np.isnan(X), np.abs(X)
        for step, rows in (("log1p", X), ("total", X), ("unit", X), ("total", sizes), ("unit", sizes)):
            np.testing.assert_array_equal(np.isnan(Preparation((step,)).apply(rows)), missing)
        known = np.nan_to_num(sizes[3:].astype(np.float64))
        wanted = {
            "unit": normalize(known),
            "total": known * np.divide(10_000, known.sum(axis=1), out=np.ones(197), where=known.any(axis=1))[:, None],
        }
        for step, each in wanted.items():
            got = np.nan_to_num(Preparation((step,)).apply(sizes[3:]))
            np.testing.assert_allclose(got, each, rtol=1e-6 if kind == np.float32 else 1e-12)

    def test_no_array_is_read_beyond_its_end(self):
        shifted = Preparation(("robust",), (quartile_scaling(groups(9)),))
        scaled = Preparation(("robust",), (quartile_scaling(sp.csr_array(groups(9))),))
        cases = ((shifted, np.ones((2, 5))), (shifted, np.ones((2, 7))), (shifted, sp.csr_array((2, 7))),
                 (scaled, np.ones((2, 5))))  # fmt: skip
        for preparation, X in cases:
            kind = "dense" if isinstance(X, np.ndarray) else "sparse"
            message = f"{kind} rows have {X.shape[1]} features; the step 'robust' was found on 6: pass rows"
            with pytest.raises(InvalidInputError, match=message):
                preparation.apply(X)
