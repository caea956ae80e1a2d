"""The silhouette of rows (Rousseeuw, 1987), with its standard error, by the distances between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


def mean_silhouette(distances: NDArray[np.float64], labels: NDArray[Any]) -> tuple[float, float]:
    """Mean of ``(b - a) / max(a, b)`` over rows and its standard error, by the distances (s, s); a row alone counts 0.

    a is the mean distance to the other rows of the own cluster, b that to the rows of the nearest other cluster. NaN
    unless there are two clusters and more rows than clusters. The error is that of drawing the rows.
    """
    n_rows, codes = len(labels), np.unique(labels, return_inverse=True)[1]
    counts, rows = np.bincount(codes), np.arange(n_rows)
    if not 2 <= len(counts) < n_rows:
        return np.nan, np.nan
    sums = distances @ sp.csr_array((np.ones(n_rows), (rows, codes)))
    alone = counts[codes] == 1
    within = sums[rows, codes] / np.where(alone, 1, counts[codes] - 1)
    means = sums / counts
    means[rows, codes] = np.inf
    nearest = means.min(axis=1)
    with np.errstate(invalid="ignore"):
        values = np.where(alone, 0.0, np.nan_to_num((nearest - within) / np.maximum(within, nearest)))
    return float(values.mean()), float(values.std(ddof=1)) / n_rows**0.5
