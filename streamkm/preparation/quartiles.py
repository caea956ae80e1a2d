"""Medians and quartiles of features, by a sample of rows: what the step "robust" must know."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.preparation.scaling import Scaling

QUARTILES = (25, 50, 75)
_PIECE_BYTES = 1 << 22  # of columns at a time


def quartile_scaling(X: Matrix) -> Scaling:
    """Medians, and one over the distance between the quartiles; 1 where there is none. O(s log s * d).

    Parameters
    ----------
    X : ndarray (s, d) or csr_array (s, d)
        Sampled rows, at least one. Zeros that are not stored count; of sparse rows, medians are not taken off. NaN of
        dense rows does not count; the median of a feature without values is 0.
    """
    if sp.issparse(X):
        between = _sparse_ranges(X)
        return Scaling(np.empty(0), _factor(between))
    n_rows, n_features = X.shape
    medians, between = np.empty(n_features), np.empty(n_features)
    width = max(1, _PIECE_BYTES // (8 * n_rows))
    for start in range(0, n_features, width):
        part = slice(start, start + width)
        low, medians[part], high = _percentiles(X[:, part].astype(np.float64))
        between[part] = high - low
    return Scaling(medians, _factor(between))


def _percentiles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quartiles of columns (3, d); `values` (s, d) is changed where a column has none."""
    missing = np.isnan(values)
    if not missing.any():
        return np.asarray(np.percentile(values, QUARTILES, axis=0))
    values[:, missing.all(axis=0)] = 0.0
    return np.asarray(np.nanpercentile(values, QUARTILES, axis=0))


def _sparse_ranges(X: Any) -> NDArray[np.float64]:
    """Distances between quartiles; 0 where less than a quarter of the rows store a value."""
    n_rows, n_features = X.shape
    columns = X.tocsc()
    stored = np.diff(columns.indptr)
    between = np.zeros(n_features)
    for j in np.flatnonzero(stored > (n_rows - 1) // 4):
        values = np.zeros(n_rows)
        values[: stored[j]] = columns.data[columns.indptr[j] : columns.indptr[j + 1]]
        low, high = np.percentile(values, (QUARTILES[0], QUARTILES[2]))
        between[j] = high - low
    return between


def _factor(between: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(1.0, between, out=np.ones_like(between), where=between > 0)
