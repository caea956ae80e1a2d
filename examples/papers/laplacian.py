"""Features chosen by Laplacian scores on a graph of neighbouring rows; the studies compare sketches with them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix, as_working
from streamkm.sketches import FeatureSelection

N_NEIGHBORS = 5
BATCH_ENTRIES = 1 << 22  # of differences of rows at once


def by_laplacian_scores(X: Matrix, n_components: int) -> FeatureSelection:
    """Keep the m features of lowest score, the first of equals; all if there are no more."""
    kept = np.sort(np.argsort(laplacian_scores(X), kind="stable")[:n_components])
    return FeatureSelection(kept.astype(np.int64), np.ones(len(kept)))


def laplacian_scores(X: Matrix, *, n_neighbors: int = N_NEIGHBORS) -> NDArray[np.float64]:
    """Score features by how much they vary along the graph's edges, against how much they vary at all.

    With S the weights of the edges, D their sums at each row, and f a feature less its D-weighted mean:
    ``score = sum_ij S_ij (f_i - f_j)^2 / 2 / sum_i D_i f_i^2``. Features of low score keep neighbours together.
    O(s^2 * nnz(row)) for the graph, O(s * n_neighbors * d) for the scores.

    Parameters
    ----------
    X : ndarray or csr_array (s, d)
        Sampled rows, at least 2.
    n_neighbors : int
        Two rows share an edge if either is among the other's nearest; fewer where there are fewer rows.

    Returns
    -------
    float64 (d,)
        From 0; infinite for features that do not vary.

    Notes
    -----
    An edge weighs ``exp(-d2 / t)``, t the mean d2 of the edges: the paper leaves t open.

    References
    ----------
    He, Cai and Niyogi, "Laplacian score for feature selection", NIPS 2005.
    """
    import scipy.sparse as sp
    from sklearn.neighbors import kneighbors_graph

    n_rows = X.shape[0]
    if n_rows < 2 or n_neighbors < 1:
        raise ValueError(f"{n_rows} rows and n_neighbors={n_neighbors}; needed: at least 2 and 1")
    X = as_working(X) if isinstance(X, np.ndarray) else sp.csr_array((as_working(X.data), X.indices, X.indptr), X.shape)
    graph = kneighbors_graph(X, min(n_neighbors, n_rows - 1), mode="connectivity", include_self=False)
    first, second = sp.triu(graph.maximum(graph.T), k=1, format="coo").coords  # each edge once
    length = np.empty(len(first))
    n_batch = max(1, BATCH_ENTRIES // max(1, X.shape[1] if isinstance(X, np.ndarray) else 1 + X.nnz // n_rows))
    pieces = [slice(start, start + n_batch) for start in range(0, len(first), n_batch)]
    for piece in pieces:
        length[piece] = _squares(X, first[piece], second[piece]).sum(axis=1)
    scale = length.mean()
    weights = np.exp(-length / scale) if scale > 0 else np.ones_like(length)
    along = np.zeros(X.shape[1])
    for piece in pieces:
        along += _squares(X, first[piece], second[piece]).T @ weights[piece]
    degrees = np.bincount(np.concatenate([first, second]), np.concatenate([weights, weights]), n_rows)
    around = _variation(X, np.asarray(degrees, np.float64))
    return np.divide(along, around, out=np.full(len(along), np.inf), where=around > 0)


def _squares(X: Matrix, first: NDArray[np.intp], second: NDArray[np.intp]) -> Matrix:
    """Squared differences of pairs of rows, in float64."""
    difference: Any = X[first].astype(np.float64) - X[second].astype(np.float64)
    return difference**2 if isinstance(difference, np.ndarray) else difference.power(2)


def _variation(X: Matrix, degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    """``sum_i D_i (x_i - mean)^2`` of every feature; 0 where only rounding is left."""
    total = degrees.sum()
    mean = X.T @ degrees / total
    if isinstance(X, np.ndarray):
        varied = np.zeros(X.shape[1])
        for start in range(0, X.shape[0], 1024):
            varied += degrees[start : start + 1024] @ (X[start : start + 1024] - mean) ** 2
        squares = varied + total * mean**2
    else:
        squares = X.power(2).astype(np.float64).T @ degrees
        varied = squares - total * mean**2
    return np.where(varied > 1e-12 * squares, varied, 0.0)
