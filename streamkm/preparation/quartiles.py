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
        Sampled rows, at least one. Zeros that are not stored count; of sparse rows, medians are not taken off.
    """
    if sp.issparse(X):
        between = _sparse_ranges(X)
        return Scaling(np.empty(0), _factor(between))
    n_rows, n_features = X.shape
    medians, between = np.empty(n_features), np.empty(n_features)
    width = max(1, _PIECE_BYTES // (8 * n_rows))
    for start in range(0, n_features, width):
        part = slice(start, start + width)
        low, medians[part], high = np.percentile(X[:, part].astype(np.float64), QUARTILES, axis=0)
        between[part] = high - low
    return Scaling(medians, _factor(between))


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
