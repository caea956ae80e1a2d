"""Means and standard deviations of features, as sums over rows, for "standardize" and for filling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix, as_working
from streamkm.kernels.preparation import feature_moments as kernels
from streamkm.preparation.scaling import Fill, Scaling, rounding_of

SUM_BYTES = 24
"""Bytes of a feature's sums."""


@dataclass(frozen=True, slots=True)
class MomentsFit:
    """Sums for means and deviations, as a `SketchFit`: `step` adds a chunk, `join` adds states, `finish` scales.

    The state is a float64 array (3, 1 + d). Column 0 holds the number of rows; the others hold the number of values of
    each feature, their mean and the sum of their squared deviations. Of sparse rows, only stored values count.
    """

    centers: bool  # whether means are subtracted: for dense rows
    dtype: Any = np.float64  # of the rows, whose rounding is no deviation

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002
        """Add rows (n, d) to a state, which is changed unless sparse rows are wider; weights are ignored. O(nnz)."""
        state = _widened(np.zeros((3, 1)) if state is None else state, 1 + X.shape[1])
        state[0, 0] += X.shape[0]
        if isinstance(X, np.ndarray):
            kernels.add_dense(as_working(X), *state[:, 1:])
        else:
            kernels.add_entries(X.indices, as_working(X.data), *state[:, 1:])
        return state

    def join(self, states: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Add up states, in order; none of them is changed."""
        joined = _widened(states[0].copy(), max(state.shape[1] for state in states))
        for state in states[1:]:
            joined[0, 0] += state[0, 0]
            kernels.join(*joined[:, 1 : state.shape[1]], *state[:, 1:])
        return joined

    def finish(self, state: NDArray[np.float64]) -> Scaling:
        """Means and inverse standard deviations (divisor n); 1 for features that are constant but for rounding.

        For float64 this is scikit-learn's rule: a variance up to ``n eps var + (n eps mean)^2``.
        """
        n_rows, (counts, means, squares) = state[0, 0], state[:, 1:]
        # the values that are not stored are zeros
        variances = (squares + means * means * counts * ((n_rows - counts) / n_rows)) / n_rows
        lost = n_rows * np.finfo(np.float64).eps
        rounding = max(lost, rounding_of(self.dtype)) * means * counts / n_rows
        varies = variances > lost * variances + np.square(rounding)
        factor = 1.0 / np.sqrt(np.where(varies, variances, 1.0))
        return Scaling(means.copy() if self.centers else np.empty(0), factor)


@dataclass(frozen=True, slots=True)
class FillFit:
    """Means of the values of features, NaN left out: `step` adds a chunk, `join` adds states, `finish` gives the means.

    The state is a float64 array (3, 1 + d). Column 0 holds the number of rows; the others hold the number of values of
    each feature, their mean and the number of missing values. Zeros that sparse rows do not store count.
    """

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002
        """Add rows (n, d) to a state, which is changed unless sparse rows are wider; weights are ignored. O(nnz)."""
        n_rows, width = X.shape
        state = _widened(np.zeros((3, 1)) if state is None else state, 1 + width)
        counts, means, missing = state[:, 1 : 1 + width]
        state[0, 0] += n_rows
        if isinstance(X, np.ndarray):
            before = counts.copy()
            kernels.add_dense(as_working(X), counts, means, np.zeros(width))
            missing += n_rows - (counts - before)
        else:
            found = ~np.isnan(X.data)
            kernels.add_entries(X.indices[found], as_working(X.data[found]), counts, means, np.zeros(width))
            missing += np.bincount(X.indices[~found], minlength=width)
        return state

    def join(self, states: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Add up states, in order; none of them is changed."""
        joined = MomentsFit(centers=True).join(states)
        joined[2] = 0.0  # no squares, but numbers of missing values
        for state in states:
            joined[2, : state.shape[1]] += state[2]
        return joined

    def finish(self, state: NDArray[np.float64]) -> Fill:
        """Means, and shares of rows without a value."""
        n_rows, (counts, means, missing) = state[0, 0], state[:, 1:]
        return Fill(means * (counts / np.maximum(n_rows - missing, 1.0)), missing / n_rows)


def _widened(state: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """A state with zeros for further features."""
    if state.shape[1] >= width:
        return state
    wider = np.zeros((3, width))
    wider[:, : state.shape[1]] = state
    return wider


QUARTILES = (25, 50, 75)
_PIECE_BYTES = 1 << 22  # of columns at a time


def quartile_scaling(X: Matrix) -> Scaling:
    """Medians and inverse interquartile ranges of sampled rows (s, d); 1 where the range is rounding. O(s log s * d).

    Zeros that are not stored count. For sparse rows, medians are not subtracted.
    """
    n_rows, is_sparse = X.shape[0], not isinstance(X, np.ndarray)
    columns: Any = sp.csc_array(X) if is_sparse else X
    # of sparse features, those that a quarter of the rows store
    often = np.flatnonzero(np.diff(columns.indptr) > (n_rows - 1) // 4) if is_sparse else np.arange(X.shape[1])
    medians, factor = np.empty(X.shape[1]), np.ones(X.shape[1])
    width = max(1, _PIECE_BYTES // (8 * n_rows))
    for start in range(0, len(often), width):
        part = often[start : start + width]
        values = columns[:, part].toarray() if is_sparse else columns[:, part]
        low, medians[part], high = np.percentile(values.astype(np.float64), QUARTILES, axis=0)
        varies = high - low > rounding_of(X.dtype) * np.maximum(np.abs(low), np.abs(high))
        factor[part] = 1.0 / np.where(varies, high - low, 1.0)
    return Scaling(np.empty(0) if is_sparse else medians, factor)
