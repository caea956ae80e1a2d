"""Distances between all rows of two matrices. scikit-learn's take its metrics along, and these most of SciPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import row_d2norms
from streamkm.core.matrix import Matrix


def euclidean_distances(X: Matrix, Y: Matrix | None = None) -> NDArray[np.float64]:
    """Distances of rows to rows, from products and norms in float64: short ones are as exact as long ones' squares.

    Parameters
    ----------
    X : ndarray or csr_array (n, d)
        CSR entries must not repeat an index.
    Y : ndarray or csr_array (m, d), optional
        None: X, and rows have no distance from themselves.

    Returns
    -------
    float64 ndarray (n, m)
        O(n m d) time; X and Y are copied where they are no float64.
    """
    left = X.astype(np.float64, copy=False)
    right = left if Y is None else Y.astype(np.float64, copy=False)
    products = left @ right.T
    d2: NDArray[np.float64] = products if isinstance(products, np.ndarray) else products.toarray()
    d2 *= -2
    d2 += row_d2norms(left)[:, None]
    d2 += row_d2norms(right)
    np.maximum(d2, 0.0, out=d2)
    if Y is None:
        np.fill_diagonal(d2, 0.0)
    return np.sqrt(d2, out=d2)
