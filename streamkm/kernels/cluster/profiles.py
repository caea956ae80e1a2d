"""Statistics of the distances of rows to their centers, gathered row by row for each cluster."""

from __future__ import annotations

import math

import numpy as np

from streamkm.kernels.compiling import inner_kernel, kernel
from streamkm.kernels.intrinsics.forms import unfilled

BATCH = 256  # rows that are measured at a time


@kernel(inline="always")
def placed_before(d2, row, other_d2, other_row):
    """Tell whether a row precedes another in a list of the nearest: by squared distance, then by number."""
    return d2 < other_d2 or (d2 == other_d2 and row < other_row)


@inner_kernel
def insert(d2, row, list_d2, list_rows):
    """Insert a row into a list of the nearest, which drops its last. O(r).

    Parameters
    ----------
    d2 : float64
    row : int64
    list_d2 : float64 (r,); ascending; written
    list_rows : int64 (r,); written
    """
    at = list_d2.shape[0] - 1
    if not placed_before(d2, row, list_d2[at], list_rows[at]):
        return
    while at > 0 and placed_before(d2, row, list_d2[at - 1], list_rows[at - 1]):
        list_d2[at], list_rows[at] = list_d2[at - 1], list_rows[at - 1]
        at -= 1
    list_d2[at], list_rows[at] = d2, row


@kernel(error_model="numpy")
def add_rows(labels, d2, gaps, weights, first_row, kept, sums, near_d2, near_rows, far_d2, far_rows):
    """Add rows to the profiles of their clusters. O(n + k), and O(r) for each row that enters a list.

    A row's simplified silhouette is ``(b - a) / b``, a and b its distances to the nearest and second nearest center.

    Parameters
    ----------
    labels : int32 (n,)
    d2 : float64 (n,); squared distances to the centers of the labels
    gaps : float64 (n,)
        How much larger the squared distance to the second nearest center is; infinite where there is none, NaN where
        it is not known, and no silhouette is then.
    weights : float64 (n,) or (0,); rows without weight are left out
    first_row : int
    kept : int64 (n,) or (0,); row i has the number ``first_row + kept[i]``, or ``first_row + i``
    sums : float64 (k, 2); written: weighted sums of distances and of silhouettes
    near_d2, far_d2 : float64 (k, r); written; those of the farthest are negative, so that both ascend
    near_rows, far_rows : int64 (k, r); written
    """
    n_clusters, last = near_d2.shape[0], near_d2.shape[1] - 1
    # what every row looks at, in one cache line: its cluster's sums and bounds
    lines = unfilled((n_clusters, 4), np.float64)
    for c in range(n_clusters):
        lines[c, 0], lines[c, 1] = sums[c, 0], sums[c, 1]
        lines[c, 2], lines[c, 3] = near_d2[c, last], -far_d2[c, last]
    away, silhouettes = unfilled(BATCH, np.float64), unfilled(BATCH, np.float64)
    for start in range(0, labels.shape[0], BATCH):
        n_rows = min(BATCH, labels.shape[0] - start)
        for i in range(n_rows):  # in vectors: divisions and roots take longest
            at = np.uint64(start + i)  # unsigned, here and below: no index counts from the end
            a = d2[at]
            b = a + gaps[at]
            away[i] = math.sqrt(a)
            silhouettes[i] = 0.0 if b == 0.0 else 1.0 - math.sqrt(a / b)
        for i in range(n_rows):
            at = np.uint64(start + i)
            weight = weights[at] if weights.shape[0] else 1.0
            if weight == 0:
                continue
            c = np.uint64(labels[at])
            lines[c, 0] += weight * away[i]
            lines[c, 1] += weight * silhouettes[i]
            if (d2[at] <= lines[c, 2]) | (d2[at] >= lines[c, 3]):
                row = first_row + (kept[at] if kept.shape[0] else np.int64(at))
                insert(d2[at], row, near_d2[c], near_rows[c])
                insert(-d2[at], row, far_d2[c], far_rows[c])
                lines[c, 2], lines[c, 3] = near_d2[c, last], -far_d2[c, last]
    for c in range(n_clusters):
        sums[c, 0], sums[c, 1] = lines[c, 0], lines[c, 1]


@kernel
def merge_lists(list_d2, list_rows, into_d2, into_rows):
    """Merge lists of the nearest rows of each cluster into others. O(k r).

    Parameters
    ----------
    list_d2 : float64 (k, r)
    list_rows : int64 (k, r)
    into_d2 : float64 (k, r); written
    into_rows : int64 (k, r); written
    """
    for c in range(list_d2.shape[0]):
        for j in range(list_d2.shape[1]):
            if list_rows[c, j] < 0:
                break
            insert(list_d2[c, j], list_rows[c, j], into_d2[c], into_rows[c])
