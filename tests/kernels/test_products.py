"""Products in a fixed order: the same bits wherever a row lies, and the sums that are written."""

from __future__ import annotations

from fractions import Fraction

import numba as nb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.kernels.cluster import distances
from streamkm.kernels.intrinsics import forms, lowest, products, reductions
from streamkm.kernels.intrinsics.panels import Panels, add_outer_products
from tests.tables import cases

FLOATS = (np.float32, np.float64)
rng = np.random.default_rng(0)


def chained(x, y, dtype):
    """One entry of a product: chains of `DEPTH` fused multiply-adds, added up in order."""
    total = dtype(0)
    for first in range(0, len(x), products.DEPTH):
        chain = dtype(0)
        for a, b in zip(x[first:][: products.DEPTH], y[first:][: products.DEPTH], strict=True):
            exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(chain))
            chain = rounded(exact, dtype)
        total = dtype(total + chain)
    return total


def rounded(value, dtype):
    """A fraction rounded once."""
    near = dtype(float(value))
    if dtype is np.float64:
        return near  # Fraction's division rounds once
    around = [near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(-np.inf))]
    even = [int(number.view(np.uint32)) & 1 for number in around]
    return min(zip(around, even, strict=True), key=lambda pair: (abs(Fraction(float(pair[0])) - value), pair[1]))[0]


@cases("dtype", FLOATS)
@cases("n_features", [1, 7, 128, 300])
def test_a_product_is_chains_of_fused_multiply_adds(dtype, n_features):
    X, table = rng.normal(size=(5, n_features)).astype(dtype), rng.normal(size=(n_features, 3)).astype(dtype)
    found = Panels.of(table).product(X)
    np.testing.assert_array_equal(found, [[chained(x, y, dtype) for y in table.T] for x in X])


@given(
    n_rows=st.integers(0, 210),
    n_features=st.sampled_from([1, 3, 127, 129, products.WIDE + 5]),
    n_columns=st.sampled_from([1, 7, 8, 9, 16, 23, 24, 33, 48, 49, 57, 97]),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 9),
)
def test_products_of_any_shape(n_rows, n_features, n_columns, dtype, seed):
    """Whole numbers: every sum is exact."""
    numbers = np.random.default_rng(seed)
    X = numbers.integers(-9, 10, (n_rows, n_features)).astype(dtype)
    table = numbers.integers(-9, 10, (n_features, n_columns)).astype(dtype)
    before = numbers.integers(-9, 10, (n_rows, n_columns)).astype(dtype)
    shift = numbers.integers(-9, 10, n_features).astype(float)
    panels = Panels.of(table)
    np.testing.assert_array_equal(panels.product(X), X @ table)
    np.testing.assert_array_equal(panels.product(X.astype(np.int8), shift=shift), (X - shift) @ table)
    np.testing.assert_array_equal(panels.product(X, out=before.copy(), add=True), before + X @ table)
    few = max(1, n_columns // 2)
    np.testing.assert_array_equal(panels.product(X, n_columns=few), (X @ table)[:, :few])


@cases("dtype", FLOATS)
@cases("n_features", [5, 200, products.WIDE + 300])
def test_a_row_has_the_same_bits_wherever_it_lies(dtype, n_features):
    X = rng.normal(size=(230, n_features)).astype(dtype)
    table = Panels.of(rng.normal(size=(n_features, 60)).astype(dtype))
    centers = NearestCenters.build(rng.normal(size=(60, n_features)), dtype)
    whole, scores, nearest = table.product(X), centers.scores(X), centers.nearest(X)
    order = rng.permutation(len(X))
    np.testing.assert_array_equal(table.product(X[order]), whole[order])
    for start, stop in ((0, 1), (95, 97), (96, 192), (3, 230)):
        np.testing.assert_array_equal(table.product(X[start:stop]), whole[start:stop])
        np.testing.assert_array_equal(table.product(np.asfortranarray(X[start:stop])), whole[start:stop])
        np.testing.assert_array_equal(centers.scores(X[start:stop]), scores[start:stop])
        for found, known in zip(centers.nearest(X[start:stop]), nearest, strict=True):
            np.testing.assert_array_equal(found, known[start:stop])


def test_outer_products():
    rows, sums = rng.integers(-9, 10, (250, 130)).astype(float), np.ones((130, 130))
    add_outer_products(rows, sums)
    np.testing.assert_array_equal(np.tril(sums), np.tril(1 + rows.T @ rows))


@pytest.mark.parametrize("dtype", FLOATS)
def test_lowest_of_equal_scores(dtype):
    """The first column is found, and its score is the second lowest, too, in whichever lanes they lie."""
    totals = np.full((96, 64), 7.0, dtype)
    for row in range(96):
        totals[row, rng.choice(64, row % 5, replace=False)] = 2
    totals[5], totals[6, :] = np.inf, np.nan
    totals[6, 33] = 1
    n_lanes = _lanes(totals)
    state = np.empty((96, n_lanes), dtype), np.empty((96, n_lanes), dtype), np.empty((96, n_lanes), np.int32)
    labels, scores, seconds = np.empty(96, np.int32), np.empty(96, dtype), np.empty(96, dtype)
    _lower(totals, 96, np.zeros(64, dtype), 0, 64, state, True, 0, labels, scores, seconds)
    known = np.where(np.isnan(totals), np.inf, totals)
    np.testing.assert_array_equal(labels, known.argmin(axis=1))
    np.testing.assert_array_equal(scores, np.sort(known, axis=1)[:, 0])
    np.testing.assert_array_equal(seconds, np.sort(known, axis=1)[:, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_readable_forms(dtype):
    """The functions that say what the compiled ones do, as Python runs them."""
    X, table = rng.normal(size=(20, 40)).astype(dtype), rng.normal(size=(40, 2 * products.PANEL_BYTES)).astype(dtype)
    width = products.PANEL_BYTES // table.itemsize
    panel, bias = np.ascontiguousarray(table[:, :width]), rng.normal(size=width).astype(dtype)
    lanes, narrow = forms.vector_lanes(table), products.NARROW_BYTES // table.itemsize
    found, totals = [], []
    for multiply, lower in ((products.multiply_columns, lowest.lower), (_multiply, _lower)):
        total = np.ones((products.BLOCK_ROWS, width), dtype)
        for column in range(0, width, narrow):
            multiply(X, panel.ravel(), total, 0, 20, 4, 30, 4 * width, width, False, 3, 0, column, 0)
        n_lanes = lanes if lower is lowest.lower else _lanes(table)
        state = *(np.empty((20, n_lanes), dtype) for _ in range(2)), np.empty((20, n_lanes), np.int32)
        labels, scores, seconds = np.empty(20, np.int32), np.empty(20, dtype), np.empty(20, dtype)
        for column in range(0, width, lanes):  # the search goes on where it was left
            part, last = np.ascontiguousarray(total[3:23, column : column + lanes]), column + lanes == width
            lower(part, 20, bias, column, lanes, state, last, 0, labels, scores, seconds)
        totals.append(total[3:23])
        found.append((labels, scores, seconds))
    tolerance = 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(totals[0], totals[1], atol=tolerance)
    np.testing.assert_allclose(totals[1], 1 + X[:, 4:34] @ panel[4:34], atol=tolerance)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)
    ordered = np.sort(totals[1] + bias, axis=1)
    np.testing.assert_array_equal(found[1][1], ordered[:, 0])
    np.testing.assert_array_equal(found[1][2], ordered[:, 1])


@nb.njit
def _lanes(table):
    return forms.vector_lanes(table)


@nb.njit
def _multiply(X, table, totals, first_row, n_rows, feature, depth, place, width, fresh, row, start, column, n_vectors):
    products.multiply_columns(
        X, table, totals, first_row, n_rows, feature, depth, place, width, fresh, row, start, column, 0
    )


@nb.njit
def _lower(totals, n_rows, bias, column, n_columns, state, last, first, labels, scores, second_scores):
    lowest.lower(totals, n_rows, bias, column, n_columns, state, last, first, labels, scores, second_scores)


@nb.njit
def _reduced(a, first, b, other, n):
    return (
        reductions.dot(a, first, b, other, n),
        reductions.squared_distance(a, first, b, other, n),
        reductions.absolute_distance(a, first, b, other, n),
        reductions.chi_squared_distance(a, first, b, other, n),
    )


@cases("n", [0, 1, 15, 16, 17, 100])
@cases("dtype", FLOATS)
def test_sums_over_two_rows(n, dtype):
    a, b = rng.random(130).astype(dtype), rng.random((2, 60))
    x, y = a[7 : 7 + n].astype(float), b.ravel()[11 : 11 + n]
    wanted = [(x * y).sum(), ((x - y) ** 2).sum(), abs(x - y).sum(), ((x - y) ** 2 / (x + y)).sum()]
    np.testing.assert_allclose(_reduced(a, 7, b, 11, n), wanted, rtol=1e-13)
    readable = (reductions.dot, reductions.squared_distance, reductions.absolute_distance)
    for function, value in zip((*readable, reductions.chi_squared_distance), wanted, strict=True):
        assert function(a, 7, b, 11, n) == pytest.approx(value, rel=1e-13)


def test_norms_in_two_parts_lose_nothing_and_sums_do_not_depend_on_where_memory_begins():
    values = rng.normal(size=1000)
    wanted = _reduced(values, 0, values, 0, 1000)
    memory = np.empty(8 * 1001, np.uint8)
    for start in (0, 8):
        moved = memory[start : start + 8000].view(np.float64)
        moved[:] = values
        moved.flags.writeable = False
        assert _reduced(moved, 0, moved, 0, 1000) == wanted
    values = np.array([1e8, 1.0, 1e-8, 3.0, -1e8])
    distances.center_norms(values[None], norms := np.empty((1, 2)))
    high, low = norms[0].tolist()
    exact = sum(Fraction(value) ** 2 for value in values.tolist())
    assert abs(Fraction(high) + Fraction(low) - exact) <= exact / 2**98
    assert low != 0
