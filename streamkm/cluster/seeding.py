"""Where clustering starts: greedy k-means++ on a block, and drawn rows.

Seeding works on the block of sampled rows, in one process: k-means++ is sequential, and its quality saturates with some
tens of rows a cluster. May import blocks and below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Block, CenterTable
from streamkm.cluster.lloyd import densified


def kmeans_plusplus(block: Block, n_clusters: int, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Choose rows as initial centers by greedy k-means++.

    Each center is the best of ``2 + log(k)`` rows drawn with probability proportional to weight times squared
    distance to the centers so far. O(n * m * k log k) for dense rows, O(nnz * k log k) for sparse ones.

    Parameters
    ----------
    block : Block of n rows
        Dense rows should lie around the origin: squared distances are only as exact as squared norms.
    n_clusters : int
        At least 1, at most the number of rows.
    rng : Generator

    Returns
    -------
    centers : float64 (at most k, m)
        Fewer than k only if there are fewer distinct rows.

    References
    ----------
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, section 2.2 and the greedy
    variant of its conclusion.
    """
    weights = block.weights if len(block.weights) else np.ones(block.n_rows)
    n_components = block.X.shape[1]
    n_trials = 2 + int(np.log(n_clusters))
    first = rng.choice(block.n_rows, p=weights / weights.sum())
    centers = densified(block.X, np.array([first]), n_components)
    closest = _d2_to(block, centers)[:, 0]
    negligible = 1e-6 * float(np.finfo(np.float32).eps) * max(float(weights @ block.d2norms), np.finfo(float).tiny)
    while len(centers) < n_clusters:
        mass = np.cumsum(weights * closest)
        if mass[-1] <= negligible:
            break
        trials = np.searchsorted(mass, rng.random(n_trials) * mass[-1]).clip(0, block.n_rows - 1)
        candidates = densified(block.X, trials, n_components)
        after = np.minimum(closest[:, None], _d2_to(block, candidates))
        best = int(np.argmin(weights @ after))
        centers = np.vstack([centers, candidates[best]])
        closest = after[:, best]
        closest[trials[best]] = 0
    return centers


def random_rows(block: Block, n_clusters: int, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw rows as initial centers, without replacement, with probability proportional to their weights.

    Fewer than asked for where fewer rows have a positive weight.
    """
    p = block.weights / block.weights.sum() if len(block.weights) else None
    n_drawn = min(n_clusters, block.n_rows if p is None else int(np.count_nonzero(p)))
    rows = rng.choice(block.n_rows, n_drawn, replace=False, p=p)
    return densified(block.X, rows, block.X.shape[1])


def _d2_to(block: Block, centers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances (n, len(centers)), at least 0."""
    table = CenterTable.build(centers, block.X.dtype, around_origin=True)
    return np.maximum(table.scores(block.X) + block.d2norms[:, None], 0.0)
