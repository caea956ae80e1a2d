"""Rows of one cluster, compared: which of them are kept where near-duplicates are to go.

Rows are of unit length and in memory. Knows no source and no clusters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import densified
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import row_d2, row_d2norms
from streamkm.core.matrix import Matrix, rows_between

BLOCK_ROWS = 256  # compared with others at a time
PANEL_ROWS = 4096  # of those others
EXACT_PAIRS = 4096  # whose cosines are found again at a time, at most


def kept_rows(X: Matrix, threshold: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which rows are kept, in their order: a row goes if its cosine to one kept before it is at least the threshold.

    Every row that goes is so near to one that stays. The second half is compared with what is kept of the first, then
    within itself. O(s * r * d) for s rows of which r are kept; holds a copy of the rows, and `BLOCK_ROWS` x
    `PANEL_ROWS` products.

    Parameters
    ----------
    X : ndarray or csr_array (s, d)
        Of unit length, in the order of preference.
    threshold : float
        Between -1 and 1.

    Returns
    -------
    kept : bool (s,)
        Depends on the rows alone: what products leave in doubt is found in float64, in a fixed order of sums.
    nearby : int64 (s,)
        A row that is kept, for each: the first one near it, or itself.
    """
    n_rows = X.shape[0]
    kept, nearby = np.ones(n_rows, np.bool_), np.arange(n_rows)
    if n_rows > BLOCK_ROWS:
        half = n_rows // 2
        kept[:half], nearby[:half] = kept_rows(rows_between(X, 0, half), threshold)
        before, left = np.flatnonzero(kept[:half]), np.arange(half, n_rows)
        found = first_near(rows_between(X, half, n_rows), X[before], threshold)
        nearby[left[found >= 0]] = before[found[found >= 0]]
        kept[left], left = found < 0, left[found < 0]
        kept[left], inside = kept_rows(X[left], threshold)
        nearby[left] = left[inside]
        return kept, nearby
    alike = near(X, X, threshold)
    for i in range(n_rows):
        if kept[i]:
            goes = alike[i] & kept
            goes[: i + 1] = False
            nearby[goes] = i
            kept &= ~goes
    return kept, nearby


def first_near(X: Matrix, Y: Matrix, threshold: float) -> NDArray[np.int64]:
    """The first row of Y whose cosine to each row of X is at least the threshold; -1 where none is. O(a * b * d)."""
    out = np.full(X.shape[0], -1)
    for start in range(0, X.shape[0], BLOCK_ROWS):
        block = rows_between(X, start, start + BLOCK_ROWS)
        left = np.arange(block.shape[0])
        for first in range(0, Y.shape[0], PANEL_ROWS):
            found = near(block[left], rows_between(Y, first, first + PANEL_ROWS), threshold)
            goes = found.any(axis=1)
            out[start + left[goes]] = first + found[goes].argmax(axis=1)
            left = left[~goes]
    return out


def near_pairs(X: Matrix, Y: Matrix, threshold: float) -> NDArray[np.int64]:
    """Pairs of a row of X and one of Y whose cosine is at least the threshold (p, 2). O(a * b * d)."""
    pairs = [np.empty((0, 2), np.int64)]
    for start in range(0, X.shape[0], BLOCK_ROWS):
        block = rows_between(X, start, start + BLOCK_ROWS)
        for first in range(0, Y.shape[0], PANEL_ROWS):
            found = near(block, rows_between(Y, first, first + PANEL_ROWS), threshold)
            pairs.append(np.argwhere(found) + np.array([start, first]))
    return np.concatenate(pairs)


def near(X: Matrix, Y: Matrix, threshold: float) -> NDArray[np.bool_]:
    """Which rows of X have a cosine to which rows of Y of at least the threshold (a, b). O(a * b * d).

    Parameters
    ----------
    X, Y : ndarray or csr_array (a, d), (b, d)
        Of unit length, or of zeros, whose cosine to anything is 0; both of one kind.
    """
    products = _products(X, Y)
    doubt = _doubt(X)
    found: NDArray[np.bool_] = products >= threshold + doubt
    first, second = np.nonzero(np.abs(products - threshold) < doubt)
    for start in range(0, len(first), EXACT_PAIRS):
        rows, others = first[start : start + EXACT_PAIRS], second[start : start + EXACT_PAIRS]
        found[rows, others] = _cosines(X, Y, rows, others) >= threshold
    return found


def count_compared(kept: NDArray[np.bool_]) -> int:
    """Pairs that `kept_rows` compares if it takes the rows one by one: each with those kept before it."""
    return int((np.cumsum(kept) - kept).sum())


def _products(X: Matrix, Y: Matrix) -> NDArray[Any]:
    """``X Y^T``, in the rows' dtype."""
    products = X @ Y.T
    return np.asarray(products if isinstance(products, np.ndarray) else products.toarray())


def _doubt(X: Matrix) -> float:
    """How far a product of two rows of unit length may be from their cosine.

    X sum of p products is off by at most p u / (1 - p u) of the lengths, u the unit roundoff, in any order of sums
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1); lengths are off by some u themselves.
    """
    n_products = X.shape[1] if isinstance(X, np.ndarray) else int(np.diff(X.indptr).max(initial=0))
    return float((1.05 * n_products + 64) * np.finfo(X.dtype).eps / 2)


def _cosines(X: Matrix, Y: Matrix, rows: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.float64]:
    """Cosines of pairs of rows (p,), by squared distances and norms in float64, whose sums have a fixed order."""
    distinct, at = np.unique(others, return_inverse=True)
    centers = densified(Y, distinct, X.shape[1])
    first = X[rows]
    d2 = row_d2(first, at.astype(np.int32), NearestCenters.build(centers, np.float64))
    norms, other_norms = row_d2norms(first), row_d2norms(centers)[at]
    scale = np.sqrt(norms * other_norms)
    products = (norms + other_norms - d2) / 2
    return np.divide(products, scale, out=np.zeros(len(d2)), where=scale > 0)
