"""Medians and quartiles of features, by a sample of rows: what the step "robust" must know."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.preparation.scaling import Scaling, rounding_of

QUARTILES = (25, 50, 75)
_PIECE_BYTES = 1 << 22  # of columns at a time


def quartile_scaling(X: Matrix) -> Scaling:
    """Medians, and one over the distance between the quartiles; 1 where it is rounding. O(s log s * d).

    Parameters
    ----------
    X : ndarray (s, d) or csr_array (s, d)
        Sampled rows, at least one. Zeros that are not stored count; of sparse rows, medians are not taken off.
    """
    if sp.issparse(X):
        return Scaling(np.empty(0), _sparse_factor(X))
    n_rows, n_features = X.shape
    medians, factor = np.empty(n_features), np.empty(n_features)
    width = max(1, _PIECE_BYTES // (8 * n_rows))
    for start in range(0, n_features, width):
        part = slice(start, start + width)
        low, medians[part], high = np.percentile(X[:, part].astype(np.float64), QUARTILES, axis=0)
        factor[part] = _factor(low, high, X.dtype)
    return Scaling(medians, factor)


def _sparse_factor(X: Any) -> NDArray[np.float64]:
    """Factors of sparse features; 1 where less than a quarter of the rows store a value."""
    n_rows, columns = X.shape[0], X.tocsc()
    stored, factor = np.diff(columns.indptr), np.ones(X.shape[1])
    for j in np.flatnonzero(stored > (n_rows - 1) // 4):
        values = np.zeros(n_rows)
        values[: stored[j]] = columns.data[columns.indptr[j] : columns.indptr[j + 1]]
        low, high = np.percentile(values, (QUARTILES[0], QUARTILES[2]))
        factor[j] = _factor(low, high, X.dtype)
    return factor


def _factor(low: Any, high: Any, dtype: Any) -> Any:
    """One over the distances of quartiles; 1 where these are equal but for rounding."""
    varies = high - low > rounding_of(dtype) * np.maximum(np.abs(low), np.abs(high))
    return 1.0 / np.where(varies, high - low, 1.0)
