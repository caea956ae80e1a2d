"""Exact numbers for every row: labels are the nearest centers in truth, wherever the data lie."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm import SketchOptions, StreamKMeans
from tests.dask_processes import assert_same_bits
from tests.tables import cases, slow_but

N_ROWS = 3_000


def truth(X, centers):
    """Squared distances of rows to centers in extended precision (n, k)."""
    X = (X.toarray() if sp.issparse(X) else X).astype(np.longdouble)
    return np.stack([((X - center) ** 2).sum(axis=1) for center in centers.astype(np.longdouble)], axis=1)


def fitted(X, n_clusters=10, **options):
    return StreamKMeans(n_clusters, random_state=0, progress=False, **options).fit(X)


def check_exact(kmeans, X):
    """Every label is a nearest center, but for ties within 4 ulp; the objective is the labels' own to 1e-9."""
    distances = truth(X, kmeans.model_.centers)
    own, nearest = distances[np.arange(len(distances)), kmeans.labels_], distances.min(axis=1)
    ulp = np.spacing(np.maximum(nearest, np.finfo(float).tiny).astype(float))
    assert (own <= nearest + 4 * ulp).all(), f"{np.count_nonzero(own > nearest + 4 * ulp)} rows are not at the nearest"
    np.testing.assert_allclose(kmeans.inertia_, float(own.sum()), rtol=1e-9)
    np.testing.assert_array_equal(kmeans.predict(X), kmeans.labels_)


def groups(seed=0, n_features=5, spread=1.0):
    """Rows of three values a feature, with noise."""
    rng = np.random.default_rng(seed)
    return spread * (rng.normal(size=(N_ROWS, n_features)) + 4 * rng.integers(0, 3, (N_ROWS, n_features)))


WHERE_QUICK = ("pressure", "pressure in float32", "unix seconds", "integers", "offset of 1e3", "tiny in float32")


def hard_data():
    """Data whose squares lose what tells clusters apart, unless they are moved or scaled first."""
    rng, small = np.random.default_rng(1), groups(spread=0.02)
    pressure = np.column_stack([101_325 + 0.01 * rng.normal(size=N_ROWS), small])
    seconds = np.column_stack([1.7e9 + 3600 * rng.random(N_ROWS), groups()])
    constant = np.column_stack([np.full(N_ROWS, 1e10), groups()])
    integers = (10**8 + rng.integers(0, 8, (N_ROWS, 3))).astype(np.int64)
    return {
        "pressure": pressure,
        "pressure in float32": pressure.astype(np.float32),
        "unix seconds": seconds,
        "unix seconds in float32": seconds.astype(np.float32),
        "constant": constant,
        "integers": integers,
        "plus 1e7 in float32": (groups() + 1e7).astype(np.float32),
        "offset of 1e3": 1e3 + rng.normal(size=(N_ROWS, 8)),
        "tiny in float32": (groups() * 1e-25).astype(np.float32),
    }


@pytest.mark.parametrize("name", slow_but(WHERE_QUICK, hard_data(), full=True))
def test_hard_data(name):
    X = hard_data()[name]
    dense, sparse = fitted(X), fitted(sp.csr_array(X))
    check_exact(dense, X)
    check_exact(sparse, sp.csr_array(X))
    # from one start, both end alike; from starts of their own, rows without groups end in several local optima
    again = fitted(sp.csr_array(X), init=dense.cluster_centers_), fitted(X, init=sparse.cluster_centers_)
    for other, one in zip(again, (dense, sparse), strict=True):
        assert other.inertia_ == pytest.approx(one.inertia_, rel=1e-3)


@functools.cache
def fitted_groups(stored, dtype, metric):
    return fitted(stored(groups().astype(dtype)), metric=metric)


@cases("stored, metric", [(np.asarray, "euclidean"), (sp.csr_array, "cosine"), (sp.csr_array, "euclidean")])
@pytest.mark.parametrize(("dtype", "power"), slow_but([("f4", -83)], [("f4", -83), ("f8", 300)], full=True))
def test_a_power_of_two_changes_the_scale_alone(stored, dtype, power, metric):
    if stored is sp.csr_array and power > 50:
        power = 50  # sketches of sparse rows are float32: more is refused
    one = fitted_groups(stored, dtype, metric)
    other = fitted(stored(np.ldexp(groups().astype(dtype), power)), metric=metric)
    np.testing.assert_array_equal(other.labels_, one.labels_)
    factor = power if metric == "euclidean" else 0
    np.testing.assert_array_equal(other.model_.centers, np.ldexp(one.model_.centers, factor))
    assert other.inertia_ == np.ldexp(one.inertia_, 2 * factor)


@given(
    seed=st.integers(0, 99),
    offset=st.sampled_from([0.0, 1.0, -300.0, 1e4, 1e6, -1e9]),
    column=st.integers(0, 3),
    dtype=st.sampled_from(["f4", "f8"]),
    sparse=st.booleans(),
    power=st.sampled_from([0, -60, 20]),
)
@settings(max_examples=10)
def test_labels_and_objectives_are_exact_wherever_a_column_lies(seed, offset, column, dtype, sparse, power):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(400, 4)) * (rng.random((400, 4)) < 0.6)
    X[:, column] += offset
    X = np.ldexp(X, power).astype(dtype)
    X = sp.csr_array(X) if sparse else X
    check_exact(fitted(X, 6), X)


@pytest.mark.filterwarnings("ignore:The last pass estimates")  # which is true
@pytest.mark.parametrize("dtype", slow_but(["f4"], ["f4", "f8"], full=True))
def test_far_clusters_that_are_tight(dtype):
    """Rows of a cluster differ by less than float32 can tell beside the distance of clusters."""
    rng = np.random.default_rng(0)
    X = np.zeros((900, 6))
    X[np.arange(900), rng.integers(0, 6, 900)] = 1000.0
    X = (X + 1e-3 * rng.integers(0, 3, (900, 6))).astype(dtype)
    for rows in (X, sp.csr_array(X)):
        check_exact(fitted(rows, 12), rows)


@pytest.mark.slow
def test_two_fits_at_once_give_the_bits_of_each_alone(small_digits):
    """Principal directions need LAPACK, whose bits depend on its threads: they are one while any fit runs."""
    rows = [small_digits.X.astype(np.float32), np.tile(small_digits.X, (3, 2))]
    options = {"sketch": SketchOptions("pca", 16), "random_state": 0, "progress": False}
    alone = [StreamKMeans(10, **options).fit(X) for X in rows]
    found = {}

    def fit(number):
        found[number] = [StreamKMeans(10, **options).fit(rows[number]) for _ in range(4)]

    threads = [threading.Thread(target=fit, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, first in enumerate(alone):
        for other in found[number]:
            assert_same_bits(other, first)
