"""Where clustering starts: greedy k-means++ on a block, and drawn rows.

Seeding works on the block of sampled rows, in one process: k-means++ is sequential, and its quality saturates with some
tens of rows a cluster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import densified
from streamkm.cluster.center_table import CenterTable
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.rows import Block
from streamkm.compute import Executor
from streamkm.core.matrix import aligned_empty
from streamkm.kernels.cluster import trials as kernels
from streamkm.kernels.intrinsics.lanes import LANES

SHARED_ENTRIES = 1 << 19  # of a block whose products with a few rows are worth waking up threads


def kmeans_plusplus(
    block: Block, n_clusters: int, *, rng: np.random.Generator, executor: Executor | None = None
) -> NDArray[np.float64]:
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
    executor : Executor, optional
        Of this process; its threads share the work where there is enough of it.

    Returns
    -------
    centers : float64 (at most k, m)
        Fewer than k only if there are fewer distinct rows.

    References
    ----------
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, section 2.2 and the greedy
    variant of its conclusion.
    """
    n_rows, n_components = block.X.shape
    first = int(rng.choice(n_rows, p=block.weights / block.weights.sum() if len(block.weights) else None))
    draws = rng.random((n_clusters, 2 + int(np.log(n_clusters))))
    negligible = 1e-6 * float(np.finfo(np.float32).eps) * max(block.total_d2norm(), np.finfo(float).tiny)
    centers = np.empty((n_clusters, n_components))
    n_entries = n_rows * n_components if isinstance(block.X, np.ndarray) else block.X.nnz
    pieces = LocalBlocks.of(executor, block) if executor is not None and n_entries >= SHARED_ENTRIES else None
    if pieces is not None or isinstance(block.X, np.ndarray):
        found = _step_by_step(block, pieces, first, draws, negligible, centers)
    else:
        X, padded = block.X, -(-draws.shape[1] // LANES) * LANES
        given = (X.indptr, X.indices, X.data, block.d2norms, block.weights, first, draws, negligible)
        table, bias = aligned_empty((n_components * padded,), X.dtype), np.empty(padded, X.dtype)
        found = int(kernels.all_trials(*given, table, bias, centers))
    return centers[:found]


def _step_by_step(
    block: Block,
    pieces: LocalBlocks | None,
    first: int,
    draws: NDArray[np.float64],
    negligible: float,
    centers: NDArray[np.float64],
) -> int:
    """As `kernels.all_trials`, by matrix products for dense rows, and by threads where there are pieces."""
    n_rows, n_components = block.X.shape
    closest, mass = np.full(n_rows, np.inf), np.empty(n_rows)
    trials = np.array([first])
    for found in range(len(centers)):
        candidates = densified(block.X, trials, n_components)
        table = CenterTable.build(candidates, block.X.dtype, around_origin=True)
        scores = np.empty((n_rows, -(-len(trials) // LANES) * LANES), block.X.dtype)
        if pieces is None:
            table.score(block.X, scores)
        else:
            pieces.score(table, scores)
        best = int(kernels.best_trial(scores, len(trials), block.d2norms, block.weights, closest))
        centers[found] = candidates[best]
        kernels.take_trial(scores, best, trials[best], block.d2norms, block.weights, closest, mass)
        if mass[-1] <= negligible:
            return found + 1
        trials = np.searchsorted(mass, draws[found] * mass[-1]).clip(0, n_rows - 1)
    return len(centers)


def random_rows(block: Block, n_clusters: int, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw rows as initial centers, without replacement, with probability proportional to their weights.

    Fewer than asked for where fewer rows have a positive weight.
    """
    p = block.weights / block.weights.sum() if len(block.weights) else None
    n_drawn = min(n_clusters, block.n_rows if p is None else int(np.count_nonzero(p)))
    rows = rng.choice(block.n_rows, n_drawn, replace=False, p=p)
    return densified(block.X, rows, block.X.shape[1])
