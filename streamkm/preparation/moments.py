"""Means and standard deviations of features, as sums over rows: what "standardize" and filling must know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix, as_working
from streamkm.kernels.preparation import moments as kernels
from streamkm.preparation.scaling import Fill, Scaling, rounding_of

SUM_BYTES = 24
"""Of the sums of a feature."""


@dataclass(frozen=True, slots=True)
class MomentsFit:
    """Sums that means and deviations follow from: `step` chunk by chunk, `join`, `finish`; a `SketchFit` in form.

    The state is a float64 array (3, 1 + d): the number of rows in front; then of each feature the number of values,
    their mean and the sum of their squared deviations from it. Of sparse rows, stored values alone are counted.

    Attributes
    ----------
    centers : bool
        Whether means are taken off: of dense rows.
    """

    centers: bool
    dtype: Any = np.float64  # of the rows, whose rounding is no deviation

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002
        """Add rows, each once, whatever it weighs. O(nnz).

        Parameters
        ----------
        state : float64 (3, 1 + d), or None to start
            Changed, but for sparse rows that are wider.
        X : ndarray (n, d) or csr_array (n, d)
        weights : ignored
        """
        state = _widened(np.zeros((3, 1)) if state is None else state, 1 + X.shape[1])
        state[0, 0] += X.shape[0]
        if isinstance(X, np.ndarray):
            kernels.add_dense(as_working(X), *state[:, 1:])
        else:
            kernels.add_entries(X.indices, as_working(X.data), *state[:, 1:])
        return state

    def join(self, states: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Add up states, in order; changes none of them."""
        joined = _widened(states[0].copy(), max(state.shape[1] for state in states))
        for state in states[1:]:
            joined[0, 0] += state[0, 0]
            kernels.join(*joined[:, 1 : state.shape[1]], *state[:, 1:])
        return joined

    def finish(self, state: NDArray[np.float64]) -> Scaling:
        """Means, and one over standard deviations, by n; 1 for features whose values are equal but for rounding.

        For float64 that is what scikit-learn takes for constant: a variance up to ``n eps var + (n eps mean)^2``.
        """
        n_rows, lost, variances = state[0, 0], state[0, 0] * np.finfo(np.float64).eps, _variances(state)
        rounding = max(lost, rounding_of(self.dtype)) * state[1, 1:] * state[0, 1:] / n_rows
        varies = variances > lost * variances + np.square(rounding)
        factor = 1.0 / np.sqrt(np.where(varies, variances, 1.0))
        return Scaling(state[1, 1:].copy() if self.centers else np.empty(0), factor)


def _variances(state: NDArray[np.float64]) -> NDArray[np.float64]:
    """Variances by the number of rows (d,), of a state of `MomentsFit`."""
    n_rows, (counts, means, squares) = state[0, 0], state[:, 1:]
    # the values that are not stored are zeros
    return np.asarray((squares + means * means * counts * ((n_rows - counts) / n_rows)) / n_rows)


@dataclass(frozen=True, slots=True)
class FillFit:
    """Means of the values that features have, NaN left out: `step` chunk by chunk, `join`, `finish`.

    The state is a float64 array (3, 1 + d): the number of rows in front; then of each feature the number of values that
    rows hold, their mean, and the number of missing values. Entries that sparse rows do not store are zeros, and count.
    """

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> NDArray[np.float64]:  # noqa: ARG002
        """Add rows, each once, whatever it weighs. O(nnz).

        Parameters
        ----------
        state : float64 (3, 1 + d), or None to start
            Changed, but for sparse rows that are wider.
        X : ndarray (n, d) or csr_array (n, d)
        weights : ignored
        """
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
        """Add up states, in order; changes none of them."""
        joined = _widened(states[0].copy(), max(state.shape[1] for state in states))
        for state in states[1:]:
            counts, means, missing = joined[:, 1 : state.shape[1]]
            joined[0, 0] += state[0, 0]
            kernels.join(counts, means, np.zeros(len(counts)), *state[:2, 1:], np.zeros(len(counts)))
            missing += state[2, 1:]
        return joined

    def finish(self, state: NDArray[np.float64]) -> Fill:
        """Means, and shares of rows without a value."""
        n_rows, (counts, means, missing) = state[0, 0], state[:, 1:]
        return Fill(means * (counts / np.maximum(n_rows - missing, 1.0)), missing / n_rows)


def _widened(state: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The state with zeros for further features."""
    if state.shape[1] >= width:
        return state
    wider = np.zeros((3, width))
    wider[:, : state.shape[1]] = state
    return wider


QUARTILES = (25, 50, 75)
_PIECE_BYTES = 1 << 22  # of columns at a time


def quartile_scaling(X: Matrix) -> Scaling:
    """Medians, and one over the distance between the quartiles; 1 where it is rounding. O(s log s * d).

    Parameters
    ----------
    X : ndarray (s, d) or csr_array (s, d)
        Sampled rows, at least one. Zeros that are not stored count; of sparse rows, medians are not taken off.
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
