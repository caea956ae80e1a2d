"""Cells of rows by their distance to the nearest center and their gap to the second. numba only; arrays in, arrays out.

A bin of a positive number is read from the bits of its float64: its exponent and the first bits of its fraction. So
bins are geometric, and no row needs a logarithm or a root.
"""

from __future__ import annotations

import math

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.reductions import squared_distance
from streamkm.kernels.intrinsics.unfilled import unfilled

BATCH = 256  # rows whose bins are found at a time
FRACTION_BITS = 52  # of a float64


@kernel
def nearest_halves(centers, halves):
    """Half the distance of each center to the nearest other one, infinite for a single center. O(k^2 * d).

    Parameters
    ----------
    centers : float64 (k, d), C-contiguous
    halves : float64 (k,)
        Written.
    """
    n_features = centers.shape[1]
    halves[:] = np.inf
    for c in range(centers.shape[0]):
        for other in range(c):
            d2 = squared_distance(centers, c * n_features, centers, other * n_features, n_features)
            half = 0.5 * math.sqrt(d2)
            halves[c], halves[other] = min(halves[c], half), min(halves[other], half)


@kernel(inline="always")
def bin_of(bits, first, split_bits, n_bins):
    """The bin of a number from its bits; the first holds what is below ``2^first``, the last what is beyond. O(1).

    Parameters
    ----------
    bits : int64
        Of a float64 that is at least 0.
    first : int
    split_bits : int
        There are ``2^split_bits`` bins between two powers of two.
    n_bins : int
    """
    lowest = (first + 1023) << split_bits
    return min(max((bits >> (FRACTION_BITS - split_bits)) - lowest + 1, 0), n_bins - 1)


@kernel(error_model="numpy")
def add_gaps(labels, d2, gaps, sample_weights, unit, grid, weights, farthest, least_gaps):
    """Add rows to the cells of their clusters. O(n).

    Parameters
    ----------
    labels : int32 (n,)
    d2 : float64 (n,)
        Squared distances to the centers of the labels.
    gaps : float64 (n,)
        How much larger the squared distance to the second nearest center is; NaN, where it is not known, counts as 0.
    sample_weights : float64 (n,) or (0,)
        Rows without weight are left out.
    unit : float64 (k,)
        By which squared distances and gaps of a cluster are multiplied before their bins are found.
    grid : int64 (2, 2)
        `first` and `split_bits` of squared distances and of gaps; see `bin_of`.
    weights, farthest, least_gaps : float64 (k, r, g), C-contiguous
        Changed: the weight of the rows of a cell, their largest squared distance and their least gap.
    """
    n_distances, n_gaps = weights.shape[1], weights.shape[2]
    n_cells = n_distances * n_gaps
    first, split, first_gap, split_gap = grid[0, 0], grid[0, 1], grid[1, 0], grid[1, 1]
    d2_numbers, gap_numbers, cells = unfilled(BATCH, np.float64), unfilled(BATCH, np.float64), unfilled(BATCH, np.int64)
    d2_bits, gap_bits = d2_numbers.view(np.int64), gap_numbers.view(np.int64)
    all_weights, all_farthest, all_gaps = weights.reshape(-1), farthest.reshape(-1), least_gaps.reshape(-1)
    for start in range(0, labels.shape[0], BATCH):
        n_rows = min(BATCH, labels.shape[0] - start)
        for i in range(n_rows):
            at = np.uint64(start + i)  # unsigned, here and below: no index counts from the end
            own = unit[np.uint64(labels[at])]
            d2_numbers[i] = d2[at] * own
            gap_numbers[i] = 0.0 if np.isnan(gaps[at]) else gaps[at] * own
        for i in range(n_rows):  # in vectors
            distance_bin = bin_of(d2_bits[i], first, split, n_distances)
            gap_bin = bin_of(gap_bits[i], first_gap, split_gap, n_gaps)
            cells[i] = distance_bin * n_gaps + gap_bin
        for i in range(n_rows):
            at = np.uint64(start + i)
            weight = sample_weights[at] if sample_weights.shape[0] else 1.0
            if weight == 0.0:
                continue
            cell = np.uint64(labels[at] * n_cells + cells[i])
            gap = 0.0 if np.isnan(gaps[at]) else gaps[at]
            all_weights[cell] += weight
            if d2[at] > all_farthest[cell]:  # seldom
                all_farthest[cell] = d2[at]
            if gap < all_gaps[cell]:
                all_gaps[cell] = gap
