"""What is in each cluster: `StreamKMeans.summary` against plain NumPy."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from streamkm import StreamKMeans
from streamkm.core.exceptions import InvalidInputError
from streamkm.metrics import feature_deviations


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
    summary = fitted(trips()).summary(1)
    lines = str(summary).splitlines()
    assert lines[0].split() == ["cluster", "size", "share", "nearest", "distance", "set", "apart", "by"]
    assert len(lines) == 3
    assert "miles" in lines[2] or "fare" in lines[2]
    assert "tip" not in str(summary)
    assert summary._repr_html_().count("<tr>") == 3
    frame = summary.to_pandas()
    assert frame.loc[[row.cluster for row in summary.rows], "size"].tolist() == [row.size for row in summary.rows]
    assert json.loads(json.dumps(summary.to_dicts()))[0]["traits"][0]["feature"] in ("fare", "miles")


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


def test_names_that_html_would_take_for_its_own():
    X = trips().rename(columns={"miles": "<b>miles", "fare": "<b>fare"})
    assert "<b>" not in fitted(X).summary()._repr_html_()


def test_clusters_without_features_are_refused(tmp_path):
    X = trips().to_numpy()
    with pytest.raises(NotFittedError):
        StreamKMeans().summary()
    model = fitted(X)
    model.save(tmp_path / "m.npz")
    streamed = StreamKMeans(2, random_state=0, progress=False).partial_fit(X)
    in_sketch = fitted(np.tile(X, 30), sketch="signs", n_components=8, assign_space="sketch")
    for each in (StreamKMeans.load(tmp_path / "m.npz"), streamed, in_sketch):
        with pytest.raises(InvalidInputError, match="needs means of the original features"):
            each.summary()
