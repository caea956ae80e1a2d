"""Distances between all rows of two matrices, and histograms of distances.

scikit-learn's distances take its metrics along, and these most of SciPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.normalization import WHOLE, Normalization
from streamkm.cluster.rows import row_d2norms
from streamkm.core.matrix import Matrix

BINS = 20  # of distances within reach, of equal width; one more for those beyond


def euclidean_distances(X: Matrix, Y: Matrix | None = None) -> NDArray[np.float64]:
    """Distances of rows to rows, from products and norms in float64: short ones are as exact as long ones' squares.

    Rows that lie far from the origin are moved to it first, as products and norms would lose what tells them apart.

    `X`: ndarray or csr_array (n, d), CSR entries must not repeat an index. `Y`: ndarray or csr_array (m, d), None: X,
    and rows have no distance from themselves. Returns float64 ndarray (n, m): O(n m d) time; X and Y are copied where
    they are no float64.
    """
    others = X if Y is None else Y
    # sparse rows cannot be moved as far as dense ones
    frame = (
        Normalization.of(others, moves=True) if isinstance(X, np.ndarray) == isinstance(others, np.ndarray) else WHOLE
    )
    left = frame.rows(X.astype(np.float64, copy=False))
    right = left if Y is None else frame.rows(Y.astype(np.float64, copy=False))
    products = left @ right.T
    d2: NDArray[np.float64] = products if isinstance(products, np.ndarray) else products.toarray()
    d2 *= -2
    d2 += row_d2norms(left)[:, None]
    d2 += row_d2norms(right)
    np.maximum(d2, 0.0, out=d2)
    if Y is None:
        np.fill_diagonal(d2, 0.0)
    np.sqrt(d2, out=d2)
    d2 /= frame.scale
    return d2


def distance_histogram(
    distances: NDArray[np.float64], reach: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Weights of rows by distance over reach: `BINS` equal bins from 0 to 1, and one for rows beyond.

    `distances`: float64 (n,), to the nearest center. `reach`: float64 (n,), of the cluster of each row. Rows at 0 are
    within a reach of 0. `weights`: float64 (n,), optional. Returns float64 (BINS + 1,).
    """
    ratios = np.divide(distances, reach, out=np.where(distances > 0, np.inf, 0.0), where=reach > 0)
    bins = np.where(ratios <= 1, np.minimum(ratios * BINS, BINS - 1), BINS).astype(np.int64)
    return np.bincount(bins, weights, minlength=BINS + 1).astype(np.float64)
