"""Sums of joined clusters, and what joins cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

JOINED_AT_ONCE = 1000


def joined_means(
    means: NDArray[np.float64], counts: NDArray[np.float64], others: NDArray[np.float64], added: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Join sets of rows pair by pair: their weights (k,), means (k, d), and what each join costs (k,).

    References
    ----------
    Ward, "Hierarchical grouping to optimize an objective function", JASA 58 (1963): the cost is
    ``n m / (n + m) ||a - b||^2``.
    """
    together = counts + added
    share = np.divide(added, together, out=np.zeros(len(counts)), where=together > 0)
    apart = others - means
    joined = means + share[:, None] * apart
    return together, joined, share * counts * np.einsum("ij,ij->i", apart, apart)


def join_cost(one: NDArray[np.float64], n_one: float, other: NDArray[np.float64], n_other: float) -> float:
    """What it costs to join two sets of rows, by their means (d,) and weights; see `joined_means`."""
    _, _, cost = joined_means(one[None], np.array([n_one]), other[None], np.array([n_other]))
    return float(cost[0])


def join_costs(means: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """What it costs to join each cluster to the one that costs least (k,), and which that is (k,), by Ward's formula.

    O(k^2 d) time, O(k^2) memory a block of 1,000 clusters.
    """
    k = len(counts)
    costs, nearest = np.full(k, np.inf), np.zeros(k, np.intp)
    center = counts @ means / max(counts.sum(), 1e-300)
    moved = means - center
    norms = np.einsum("ij,ij->i", moved, moved)
    for start in range(0, k, JOINED_AT_ONCE):
        rows = slice(start, min(start + JOINED_AT_ONCE, k))
        d2 = np.maximum(norms[rows, None] + norms - 2 * moved[rows] @ moved.T, 0.0)
        share = counts[rows, None] * counts / np.maximum(counts[rows, None] + counts, 1e-300)
        cost = share * d2
        cost[np.arange(cost.shape[0]), np.arange(start, start + cost.shape[0])] = np.inf
        nearest[rows] = cost.argmin(axis=1)
        costs[rows] = cost.min(axis=1)
    return costs, nearest
