"""Histograms of distances and gaps: against loops over rows, by property, and the same in parts."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm.cluster.gap_histogram import FINE, FINE_BYTES, GapHistogram, bins_of, histogram_bytes, histogram_scales
from tests import naive

MANY = 5000  # clusters that have coarse bins


def made(n_clusters, seed=0, n=700):
    """Labels, squared distances, gaps and weights of rows, with the values that are special."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_clusters, n).astype(np.int32)
    d2, gaps = np.exp(3 * rng.normal(size=(2, n)))
    d2[:5], gaps[5:10], gaps[10:15], gaps[15:20] = 0.0, 0.0, np.nan, np.inf
    d2[20], gaps[21] = 1e300, 1e-300
    return labels, d2, gaps, np.where(rng.random(n) < 0.1, 0.0, rng.random(n))


def place(number, bins):
    """The bin of a number, by a search among the edges."""
    return int(np.searchsorted(bins.edges(), number, side="right"))


@pytest.mark.parametrize("n_clusters", [1, 7, MANY])
@pytest.mark.parametrize("weighted", [False, True])
def test_cells_are_those_of_a_loop_over_rows(n_clusters, weighted):
    labels, d2, gaps, weights = made(n_clusters)
    scales = np.random.default_rng(1).uniform(0.5, 2, n_clusters)
    histogram = GapHistogram.empty(scales)
    histogram.add(labels, d2, gaps, weights) if weighted else histogram.add(labels, d2, gaps)
    wanted = GapHistogram.empty(scales)
    for i, c in enumerate(labels):
        gap, weight = 0.0 if math.isnan(gaps[i]) else gaps[i], weights[i] if weighted else 1.0
        if weight:
            distance_bins, gap_bins = bins_of(n_clusters)
            cell = c, place(d2[i] / scales[c] ** 2, distance_bins), place(gap / scales[c] ** 2, gap_bins)
            wanted.weights[cell] += weight
            wanted.farthest[cell] = max(wanted.farthest[cell], d2[i])
            wanted.least_gaps[cell] = min(wanted.least_gaps[cell], gap)
    for found, expected in zip(histogram.cells(), wanted.cells(), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(histogram.distances(), wanted.weights.sum(axis=2))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 700), max_size=5), st.integers(0, 1000))
def test_parts_joined_are_the_whole(cuts, seed):
    labels, d2, gaps, _ = made(4, seed)
    weights = np.random.default_rng(seed).integers(0, 5, 700) / 4.0  # whose sums are exact
    scales = np.ones(4)
    whole, joined = GapHistogram.empty(scales), GapHistogram.empty(scales)
    whole.add(labels, d2, gaps, weights)
    bounds = [0, *sorted(cuts), 700]
    for start, stop in pairwise(bounds):
        part = GapHistogram.empty(scales)
        part.add(*(array[start:stop] for array in (labels, d2, gaps, weights)))
        joined = joined.absorb(part)
    for found, expected in zip(joined.cells(), whole.cells(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n_clusters", [1, 50, 2000, 10_000])
def test_bytes_are_told_before_and_few_for_many_clusters(n_clusters):
    histogram = GapHistogram.empty(np.ones(n_clusters))
    told = sum(array.nbytes for array in (histogram.scales, *histogram.cells()))
    assert told == histogram.n_bytes == histogram_bytes(n_clusters)
    assert told <= 2048 * n_clusters
    assert told <= FINE_BYTES + 8 * n_clusters or bins_of(n_clusters) != FINE


def test_scales_are_half_the_distances_to_the_nearest_centers():
    centers = np.random.default_rng(0).normal(size=(9, 4))
    centers[8] = centers[3]
    apart = np.sqrt(naive.d2_matrix(centers, centers)) + np.diag(np.full(9, np.inf))
    wanted = apart.min(axis=1) / 2
    wanted[[3, 8]] = wanted[wanted > 0].mean()
    np.testing.assert_allclose(histogram_scales(centers), wanted, rtol=1e-14)
    np.testing.assert_array_equal(histogram_scales(centers[:1]), 1.0)
    np.testing.assert_array_equal(histogram_scales(np.zeros((3, 2))), 1.0)
