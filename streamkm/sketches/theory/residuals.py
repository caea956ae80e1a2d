"""How far hashing features moves the objective of one partition: Senuma's bound, from sampled rows of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.sketches.theory.records import Bound

ONE_PARTITION = "the cost of the given partition, up to an addend of drss"
MOST_ROWS = 20_000
"""Whose inner products are held: 3 GB."""


def hashing_spread(X: Matrix, labels: ArrayLike, *, n_rows: int | None = None) -> float:
    """Psi: m times the variance of the hashed objective of a partition, from sampled rows of it.

    With r_i the residual of row i, the row less its cluster's mean, ``Psi = sum over i, l of psi(r_i, r_l)``, where
    ``psi(x, y) = 2 (<x, y>^2 - sum_j x_j^2 y_j^2)`` is m times the covariance of their hashed squared lengths. Of s
    sampled rows of n, pairs count (n / s)^2 times, nearly, and rows with themselves n / s times. O(nnz s + s^2).

    Parameters
    ----------
    X : ndarray or csr_array (s, d)
        All rows, or sampled ones: drawn evenly.
    labels : int (s,)
        From 0.
    n_rows : int, optional
        n. None: s.

    Returns
    -------
    float
        In the data's units to the fourth power.

    Raises
    ------
    InvalidInputError
        If labels are not of these rows, or of more than `MOST_ROWS`.

    References
    ----------
    Senuma, "K-means clustering with feature hashing", ACL student session 2011, sections 2.4 and 4.
    """
    rows = sp.csr_array(X).astype(np.float64)
    own = np.asarray(labels)
    if own.shape != (rows.shape[0],) or not 0 < len(own) <= MOST_ROWS or own.min() < 0:
        raise InvalidInputError(
            f"labels {own.shape} of {rows.shape[0]:,} rows; needed: one from 0 for each of 1 to {MOST_ROWS:,} rows"
        )
    own = np.unique(own, return_inverse=True)[1]
    members = sp.csr_array((np.ones(len(own)), (own, np.arange(len(own)))))
    counts = members.sum(axis=1)
    means = sp.csr_array(sp.diags_array(1 / counts) @ (members @ rows))

    def centered(of_rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return of_rows - (members @ of_rows / counts[:, None])[own]

    products = centered(centered((rows @ rows.T).toarray()).T)  # of residuals
    squares = np.square(products).sum() - np.square(_column_squares(rows, means, counts)).sum()
    alone = np.square(np.diag(products)).sum() - _fourth_powers(rows, members, means, counts)
    s, n = len(own), len(own) if n_rows is None else n_rows
    if s in (n, 1):
        return float(2 * squares * (n / s))
    return float(2 * (alone * (n / s) + (squares - alone) * (n * (n - 1) / (s * (s - 1)))))


def feature_hashing(
    X: Matrix, labels: ArrayLike, *, drss: float, delta: float = 0.1, n_rows: int | None = None
) -> Bound:
    """Components that keep the hashed objective of a partition within an addend: ``m >= Psi / (delta drss^2)``.

    The objective of the partition at its means, hashed less not hashed, DRSS, is then below `drss` with probability
    1 - delta. It is of one partition and not of all, is not relative, and not divided by rows. Features that are heavy
    and say nothing (function words) raise Psi most: leave them out first.

    Parameters
    ----------
    X : ndarray or csr_array (s, d)
        All rows, or sampled ones: drawn evenly.
    labels : int (s,)
        From 0.
    drss : float
        Above 0, in the data's units squared, of all n rows: such as ``0.1 * kmeans.inertia_``.
    delta : float
        In (0, 1).
    n_rows : int, optional
        n. None: s.

    Returns
    -------
    Bound

    Raises
    ------
    InvalidInputError
        If labels are not of these rows, or of more than `MOST_ROWS`.
    InvalidParameterError
        For a `drss` or `delta` out of range.

    References
    ----------
    Senuma, "K-means clustering with feature hashing", ACL student session 2011, definition 4.1 and theorem 4.5.
    """
    if not 0 < drss < math.inf:
        raise InvalidParameterError(f"drss={drss}; needed: a finite number above 0")
    if not 0 < delta < 1:
        raise InvalidParameterError(f"delta={delta}; needed: between 0 and 1, both excluded")
    spread = max(0.0, hashing_spread(X, labels, n_rows=n_rows))
    source = f"Senuma, ACL student session 2011, theorem 4.5, with Psi = {spread:.4g} of these rows"
    m = max(1, math.ceil(spread / (delta * drss**2)))
    return Bound("senuma-2011", m, "Psi / (delta drss^2)", source, ONE_PARTITION, sketch="countsketch")


def _column_squares(rows: Any, means: Any, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of squares of each feature of the residuals (d,)."""
    of_rows = np.bincount(rows.indices, np.square(rows.data), minlength=rows.shape[1])
    of_means = means.power(2).T @ counts
    return np.asarray(of_rows - of_means)


def _fourth_powers(rows: Any, members: Any, means: Any, counts: NDArray[np.float64]) -> float:
    """Sum of the fourth powers of all entries of the residuals, by sums of powers in each cluster."""
    third, second = (members @ rows.power(p) for p in (3, 2))
    total = float((rows.data**4).sum()) - 4 * means.multiply(third).sum() + 6 * means.power(2).multiply(second).sum()
    # -4 mu^3 sum(x) + n mu^4, with sum(x) = n mu
    return float(total - 3 * (means.power(4).sum(axis=1) @ counts))
