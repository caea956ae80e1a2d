"""What is in each cluster: `StreamKMeans.summary` against plain NumPy."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.stats import gmean
from sklearn.exceptions import NotFittedError

from streamkm import IncrementalKMeans, SketchOptions, StreamKMeans, open_documents
from streamkm.core.exceptions import InvalidInputError
from streamkm.estimators.model_files import summarize
from streamkm.metrics import feature_deviations
from streamkm.metrics.cluster_summary import Trait
from streamkm.reports.report import cautions
from tests.tables import slow_but


def trips(n=1500):
    """Short and long rides; the tip says nothing."""
    rng = np.random.default_rng(0)
    long = rng.random(n) < 0.2
    fare, miles = np.where(long, rng.normal(60, 5, n), rng.normal(10, 2, n)), np.where(long, 20.0, 3.0)
    return pd.DataFrame({"tip": rng.normal(2, 1, n), "fare": fare, "miles": miles + rng.normal(0, 0.5, n)})


def fitted(X, n_clusters=2, **parameters):
    return StreamKMeans(n_clusters, random_state=0, progress=False, **parameters).fit(X)


def test_sizes_neighbours_and_traits_are_those_of_numpy():
    X = trips()
    model = fitted(X, 4)
    summary = model.summary(2)
    assert [row.size for row in summary.rows] == sorted(np.bincount(model.labels_), reverse=True)
    means = X.groupby(model.labels_).mean().to_numpy()
    apart = (means - X.to_numpy().mean(axis=0)) / X.to_numpy().std(axis=0)
    away = np.linalg.norm(means[:, None] - means, axis=2) + np.diag(np.full(4, np.inf))
    for row in summary.rows:
        most = np.argsort(-np.abs(apart[row.cluster]))[:2]
        assert [trait.feature for trait in row.traits] == [X.columns[j] for j in most]
        np.testing.assert_allclose([trait.deviations for trait in row.traits], apart[row.cluster][most], rtol=1e-6)
        np.testing.assert_allclose([trait.mean for trait in row.traits], means[row.cluster][most], rtol=1e-9)
        assert row.nearest == away[row.cluster].argmin()
        np.testing.assert_allclose(row.distance, away[row.cluster].min(), rtol=1e-9)
    np.testing.assert_allclose(sum(row.share for row in summary.rows), 1)


def test_it_is_read_as_text_table_and_values():
    summary = fitted(trips().rename(columns={"miles": "<b>miles", "fare": "<b>fare"})).summary(1)
    lines = str(summary).splitlines()
    head = "cluster size share mean distance largest simplified silhouette nearest typical row set apart by"
    assert lines[0].split() == head.split()
    assert len(lines) == 3
    assert "miles" in lines[2] or "fare" in lines[2]
    assert "tip" not in str(summary)
    assert summary._repr_html_().count("<tr>") == 3
    assert "<b>" not in summary._repr_html_()
    frame = summary.to_pandas()
    assert frame.loc[[row.cluster for row in summary.rows], "size"].tolist() == [row.size for row in summary.rows]
    assert json.loads(json.dumps(summary.to_dicts()))[0]["traits"][0]["feature"] in ("<b>fare", "<b>miles")


def test_sparse_rows_weights_and_one_cluster():
    X = sp.random_array((400, 300), density=0.05, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
    np.testing.assert_allclose(feature_deviations(X), X.toarray().std(axis=0, dtype=np.float64), rtol=1e-6)
    (row,) = fitted(X, 1).summary().rows
    assert (row.nearest, row.share, row.traits) == (-1, 1.0, ())
    model = fitted(X, 3)
    assert {trait.feature[0] for each in model.summary().rows for trait in each.traits} == {"x"}
    weighted = StreamKMeans(2, random_state=0, progress=False).fit(
        trips(), sample_weight=np.r_[np.ones(1000), np.zeros(500)]
    )
    np.testing.assert_allclose(sum(row.size for row in weighted.summary().rows), 1000)


def test_clusters_without_features_are_refused():
    X = trips().to_numpy()
    with pytest.raises(NotFittedError):
        StreamKMeans().summary()
    streamed = IncrementalKMeans(2, random_state=0, progress=False).partial_fit(X)
    in_sketch = fitted(np.tile(X, 30), sketch=SketchOptions("signs", 8, assign_space="sketch"))
    for each in (streamed, in_sketch):
        with pytest.raises(InvalidInputError, match="needs means of the original features"):
            each.summary()


def sparse_rows(n=600, d=400):
    rng = np.random.default_rng(0)
    X = sp.random_array((n, d), density=0.04, rng=rng, format="csr", dtype=np.float32)
    X.data += 0.5
    return X


def dense_rows(n=3000, d=5):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, d)) + 6 * rng.integers(0, 3, (n, 1))).astype(np.float32)


CASES = {  # rows, and how they are fitted
    "all rows in the sample": (dense_rows, {}),
    "chunks": (dense_rows, {"chunk_bytes": 4000}),
    "far from their centers": (sparse_rows, {"chunk_bytes": 3000}),
    "one cluster": (dense_rows, {"n_clusters": 1, "chunk_bytes": 4000}),
    "more examples than rows": (lambda: np.repeat(np.eye(4), 3, axis=0), {"n_clusters": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_distances_silhouettes_and_examples_are_those_of_loops(case, tmp_path):
    make, given = CASES[case]
    X, parameters = make(), {"n_clusters": 3, "random_state": 0, "progress": False, "refine": 0, **given}
    if "chunk_bytes" in given and not sp.issparse(X):  # read by path: arrays in memory are labelled as a sample
        np.save(tmp_path / "X.npy", X)
    source = tmp_path / "X.npy" if (tmp_path / "X.npy").exists() else X
    model = StreamKMeans(**parameters).fit(source)
    dense, centers = X.toarray() if sp.issparse(X) else X, model.model_.centers
    away = np.linalg.norm(dense[:, None].astype(np.float64) - centers, axis=2)
    for row in model.summary().rows:
        own = away[model.labels_ == row.cluster]
        numbers = np.flatnonzero(model.labels_ == row.cluster)
        nearest = own[:, row.cluster]
        np.testing.assert_allclose(row.mean_distance, nearest.mean(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(row.largest_distance, nearest.max(), rtol=1e-5, atol=1e-6)
        for examples, order in ((row.typical, nearest), (row.outlying, -nearest)):
            wanted = np.lexsort((numbers, order))[:5]
            np.testing.assert_allclose([each.distance for each in examples], nearest[wanted], rtol=1e-5, atol=1e-6)
            if len(np.unique(order[wanted].round(5))) == len(wanted):
                assert [each.row for each in examples] == numbers[wanted].tolist()
        if len(centers) == 1:
            assert row.simplified_silhouette is None
        else:
            second = np.sort(own, axis=1)[:, 1]
            np.testing.assert_allclose(row.simplified_silhouette, (1 - nearest / second).mean(), atol=2e-3)


@pytest.mark.parametrize("n_features", slow_but([4], [4, 130], full=True))
def test_silhouettes_of_very_many_clusters(n_features):
    """With an index of the centers and without one."""
    X = np.random.default_rng(0).normal(size=(800, n_features)).astype(np.float32)
    model = fitted(X, 600, max_iter=1, n_init=1)
    centers = model.model_.centers
    d2 = (X**2).sum(axis=1, dtype=float)[:, None] - 2 * X.astype(float) @ centers.T + (centers**2).sum(axis=1)
    nearest, second = np.sqrt(np.maximum(np.sort(d2, axis=1)[:, :2].T, 0))
    told = np.array(
        [row.simplified_silhouette for row in sorted(model.summary(1).rows, key=lambda row: row.cluster)], float
    )
    wanted = np.bincount(model.labels_, 1 - nearest / second, minlength=600) / np.bincount(model.labels_)
    np.testing.assert_allclose(told, wanted, atol=2e-3)
    assert summarize(model)["result"]["simplified_silhouette"] == pytest.approx((1 - nearest / second).mean(), abs=1e-3)


def test_of_thousands_of_clusters_no_silhouettes_are_told(monkeypatch):
    monkeypatch.setattr("streamkm.cluster.centers.nearest.MOST_SECONDS", 40)
    X = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    model = fitted(X, 41, max_iter=1, n_init=1)
    found = model.summary(1)
    assert {row.simplified_silhouette for row in found.rows} == {None}
    assert "simplified silhouette" not in str(found).splitlines()[0]
    assert str(found).splitlines()[-1].startswith("no simplified silhouettes: ")
    assert "<p>no simplified silhouettes" in found._repr_html_()
    assert all(row.mean_distance >= 0 for row in found.rows)
    assert summarize(model)["result"].get("simplified_silhouette") is None


def test_profiles_have_the_same_bits_for_any_threads(tmp_path):
    np.save(tmp_path / "X.npy", dense_rows())
    profiles = [
        StreamKMeans(5, random_state=0, progress=False, executor=n, chunk_bytes=2000).fit(tmp_path / "X.npy").profile_
        for n in (1, 2)
    ]
    for one, other in zip(*(profile.arrays() for profile in profiles), strict=True):
        assert one.tobytes() == other.tobytes()


def test_profiles_leave_out_what_counts_nothing():
    X, weights = dense_rows(400).astype(np.float64), np.ones(400)
    X[7, 0], weights[9] = np.nan, 0
    model = StreamKMeans(2, random_state=0, progress=False, invalid="skip").fit(X, sample_weight=weights)
    profile = model.profile_
    shown = np.concatenate([profile.near_rows.ravel(), profile.far_rows.ravel()])
    assert not np.isin([7, 9], shown).any()
    np.testing.assert_allclose(profile.sums[:, 0].sum(), sum(r.mean_distance * r.size for r in model.summary().rows))


def test_rows_are_shown_as_they_stand(tmp_path):
    X = trips(50)
    (row, *_) = fitted(X).summary(rows=X).rows
    number = row.typical[0].row
    assert row.typical[0].text == f"tip={X.tip[number]:.4g}, fare={X.fare[number]:.4g}, miles={X.miles[number]:.4g}"
    path = tmp_path / "notes.txt"
    lines = [f"{word} " * 80 for word in ("apple", "pear") for _ in range(6)]
    path.write_text("\n".join(lines))
    source = open_documents(path)
    summary = fitted(source).summary(rows=source)
    texts = {each.text for each in summary.rows[0].typical}
    assert len(texts) == 1
    assert texts.pop() in {f"{line[:157]}..." for line in lines}
    assert f"{summary.rows[0].typical[0].row}: " in str(summary)


def test_means_are_told_in_the_units_of_the_data():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 3)) + 8 * (np.arange(300) % 3 == 0)[:, None]) * [1, 100, 1e4] + [5, 0, -7]
    for data, steps in ((X, ["standardize"]), (X, ["robust", "standardize"]), (sp.csr_array(X), ["standardize"])):
        model = StreamKMeans(2, preprocess=steps, random_state=0, progress=False).fit(data)
        for row in model.summary(3).rows:
            for trait in row.traits:
                column = X[:, int(trait.feature[1:])]
                assert trait.mean == pytest.approx(column[model.labels_ == row.cluster].mean(), rel=1e-6)
                assert trait.mean_of_all == pytest.approx(column.mean(), rel=1e-6)
    flags = np.column_stack([np.arange(300) % 3 == 0, np.arange(300) % 3 > 0]).astype(float)
    model = StreamKMeans(2, preprocess=["standardize"], random_state=0, progress=False).fit(flags)
    assert {0.0, 1.0} >= {round(trait.mean, 9) if trait.mean else 0.0 for trait in model.summary().rows[0].traits}
    assert min(abs(trait.mean) for trait in model.summary().rows[0].traits) == 0
    X = np.abs(X)
    model = StreamKMeans(2, preprocess=["log1p", "standardize"], random_state=0, progress=False).fit(X)
    for row in model.summary(3).rows:
        for trait in row.traits:  # geometric means of 1 + x
            column = 1 + X[:, int(trait.feature[1:])]
            assert trait.mean == pytest.approx(gmean(column[model.labels_ == row.cluster]) - 1, rel=1e-6)
            assert trait.mean_of_all == pytest.approx(gmean(column) - 1, rel=1e-6)
    counted = StreamKMeans(2, preprocess=["total", "log1p"], random_state=0, progress=False).fit(X)
    assert max(trait.mean for row in counted.summary(3).rows for trait in row.traits) < 15  # as they were prepared


def test_sizes_are_whole_numbers_unless_weights_are_not():
    X = trips()
    sizes = [row.size for row in fitted(X, 3).summary().rows]
    assert all(type(size) is int for size in sizes)
    assert sum(sizes) == len(X)
    assert all(type(size) is int for size in summarize(fitted(X, 3))["result"]["counts"])
    weighted = StreamKMeans(2, random_state=0, progress=False).fit(X, sample_weight=np.full(len(X), 0.3))
    assert all(type(row.size) is float for row in weighted.summary().rows)


@pytest.mark.parametrize(("mean", "told"), [(9999.4, "9999"), (18352.4, "18,352"), (-80_675.0, "-80,675"), (0.0, "0")])
def test_means_of_traits_are_told_in_digits_that_people_read(mean, told):
    assert str(Trait("income", mean, 0.0, 1.25)) == f"income {told} (+1.2 sd)"


def test_poor_clusters_are_cautioned_of():
    rng = np.random.default_rng(0)
    noise = StreamKMeans(3, random_state=0, progress=False).fit(rng.normal(size=(1000, 60)))
    assert "explain" in noise.summary().cautions[0]
    assert "caution: the clusters explain" in str(noise.summary())
    X = rng.normal(size=(20_000, 2))
    X[:15, 1] += rng.uniform(1e3, 1e4, 15)
    far = StreamKMeans(2, random_state=0, progress=False).fit(pd.DataFrame(X, columns=["a", "discount"]))
    (caution,) = far.summary().cautions
    size = int(far.counts_.min())
    assert caution.startswith(f"{size} rows of 20,000 lie far away")
    assert caution.endswith("look at discount")
    few = rng.normal(size=(30_000, 2)) + 20 * rng.integers(0, 2, (30_000, 1))
    few[:14, 1] = 5e5
    rare = StreamKMeans(3, preprocess=["standardize"], random_state=0, progress=False)
    rare.fit(pd.DataFrame(few, columns=["a", "discount"]))
    (caution,) = rare.summary().cautions
    assert "look at discount" in caution
    trait = next(row for row in rare.summary().rows if row.size == 14).traits[0]
    true = (5e5 - few[:, 1].mean()) / few[:, 1].std()
    assert true / 2 < trait.deviations < 1.01 * true  # estimated by a sample, which may hold none of these rows
    well = StreamKMeans(3, random_state=0, progress=False).fit(X[15:] + 50 * rng.integers(0, 3, (19_985, 1)))
    assert well.summary().cautions == ()


def test_an_objective_far_from_its_prediction_is_cautioned_of():
    result = {"objective": 104.0, "expected_inertia": 100.0, "expected_inertia_error": 1.0}
    (caution,) = cautions((), result)
    assert "predicted an objective of 100 +- 1, and all rows give 104" in caution
    assert not [*cautions((), {**result, "objective": 102.9})]


def test_features_that_mirror_each_other_are_named_once():
    rng = np.random.default_rng(0)
    store = rng.integers(0, 2, 3000)
    X = pd.DataFrame(
        {"store": store, "online": 1 - store, "x": rng.normal(size=3000) + store, "y": rng.normal(size=3000)}
    )
    for row in StreamKMeans(2, random_state=0, progress=False).fit(X).summary().rows:
        assert len({"store", "online"} & {trait.feature for trait in row.traits}) == 1
