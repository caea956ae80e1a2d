"""`cluster_centers_` of float32 rows: in float64 if rounding costs more than 1e-6 of the objective."""

from __future__ import annotations

import numpy as np
import pytest

from streamkm import IncrementalKMeans, StreamKMeans
from streamkm.estimators.labelling import rounded_centers


def rows_near(offset: float, seed: int = 1) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(2000, 2)) + offset).astype("f4")


def objective(X: np.ndarray, centers: np.ndarray) -> float:
    away = X.astype("f8")[:, None] - centers.astype("f8")[None]
    return float((away**2).sum(axis=2).min(axis=1).sum())


@pytest.mark.parametrize(("offset", "weight"), [(1e5, None), (-1e7, 3.0)])
def test_inertia_is_the_sum_for_the_centers(offset: float, weight: float | None) -> None:
    X = rows_near(offset)
    km = StreamKMeans(4, random_state=0).fit(X, sample_weight=weight)
    assert km.cluster_centers_.dtype == np.float64
    assert (weight or 1.0) * objective(X, km.cluster_centers_) == pytest.approx(km.inertia_, rel=1e-6)
    assert np.array_equal(km.predict(X), km.labels_)


def test_rounding_that_costs_little_stays() -> None:
    X = rows_near(10.0)
    km = StreamKMeans(4, random_state=0).fit(X)
    assert km.cluster_centers_.dtype == np.float32
    assert objective(X, km.cluster_centers_) == pytest.approx(km.inertia_, rel=1e-6)


def test_rounding_errors_of_float64_do_not_count() -> None:
    rows = rows_near(10.0)[:4]
    centers = np.nextafter(rows.astype("f8"), np.inf)  # means of equal rows, one unit in the last place off
    counts, inertia = np.full(4, 300.0), 0.0
    assert np.array_equal(rounded_centers(centers, counts, inertia, centers, np.dtype("f4")), rows)


@pytest.mark.parametrize("offset", [10.0, 1e7])
def test_streams_keep_the_centers(tmp_path, offset: float) -> None:
    X = rows_near(offset)
    km = IncrementalKMeans(4, random_state=0).partial_fit(X)
    assert km.cluster_centers_.dtype == (np.float32 if offset == 10.0 else np.float64)
    assert objective(X, km.cluster_centers_) == pytest.approx(km.inertia_, rel=1e-6)
    km.save(tmp_path / "m.npz")
    loaded = IncrementalKMeans.load(tmp_path / "m.npz")
    assert loaded.cluster_centers_.dtype == km.cluster_centers_.dtype
    assert np.array_equal(loaded.cluster_centers_, km.cluster_centers_)
    assert np.array_equal(loaded.partial_fit(X[:500]).cluster_centers_, km.partial_fit(X[:500]).cluster_centers_)
