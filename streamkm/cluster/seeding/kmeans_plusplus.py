"""Where clustering starts: greedy k-means++ on a block, and drawn rows.

Seeding works on the block of sampled rows, in one process: k-means++ is sequential, and its quality saturates with some
tens of rows a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import densified
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.rows import Block
from streamkm.core.matrix import aligned_empty
from streamkm.engine import Executor
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.seeding import trials as kernels
from streamkm.kernels.seeding.dense_trials import all_dense_trials

SHARED_ENTRIES = 1 << 20  # of a block whose products with a few rows are worth waking up threads
NEGLIGIBLE = 1e-6  # share of float32's rounding of squared norms below which squared distances are none


@dataclass(frozen=True, slots=True)
class Draws:
    """The random draws of one run of k-means++.

    Attributes
    ----------
    first : int
        Row that is the first center.
    shares : float64 (k, t)
        In [0, 1): where in the running sum of the mass the rows are that are tried after each center.
    """

    first: int
    shares: NDArray[np.float64]

    @classmethod
    def of(cls, block: Block, n_clusters: int, rng: np.random.Generator) -> Draws:
        """Draw."""
        p = block.weights / block.weights.sum() if len(block.weights) else None
        first = int(rng.choice(block.n_rows, p=p))
        return cls(first, rng.random((n_clusters, 2 + int(np.log(n_clusters)))))


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
    return seedings(block, n_clusters, 1, rng=rng, executor=executor)[0]


def seedings(
    block: Block, n_clusters: int, n_runs: int, *, rng: np.random.Generator, executor: Executor | None = None
) -> list[NDArray[np.float64]]:
    """The centers of several runs of `kmeans_plusplus`, one after the other: by a thread each where rows are few."""
    draws = [Draws.of(block, n_clusters, rng) for _ in range(n_runs)]
    n_entries = block.X.size if isinstance(block.X, np.ndarray) else block.X.nnz
    if n_entries > SHARED_ENTRIES:
        pieces = None if executor is None else LocalBlocks.of(executor, block)
        return [_step_by_step(each, block, pieces) for each in draws]
    if executor is None:
        return [seeded_at_once(each, block) for each in draws]
    return executor.each("seed", seeded_at_once, draws, block)


def seeded_at_once(draws: Draws, block: Block) -> NDArray[np.float64]:
    """The centers of one run of `kmeans_plusplus`, all steps in one call of a kernel."""
    X, (n_clusters, n_trials) = block.X, draws.shares.shape
    centers, padded = np.empty((n_clusters, X.shape[1])), -(-n_trials // LANES) * LANES
    table = aligned_empty((X.shape[1] * padded,), X.dtype)
    given = (block.d2norms, block.weights, draws.first, draws.shares, _negligible(block))
    if isinstance(X, np.ndarray):
        found = all_dense_trials(np.ascontiguousarray(X), *given, table, centers)
    else:
        bias = np.empty(padded, X.dtype)
        found = kernels.all_trials(X.indptr, X.indices, X.data, *given, table, bias, centers)
    return centers[: int(found)]


def _negligible(block: Block) -> float:
    """Mass at which there are no more distinct rows."""
    return NEGLIGIBLE * float(np.finfo(np.float32).eps) * max(block.total_d2norm(), np.finfo(float).tiny)


def _step_by_step(draws: Draws, block: Block, pieces: LocalBlocks | None) -> NDArray[np.float64]:
    """The same, one step after the other; by threads where there are pieces."""
    (n_rows, n_components), negligible = block.X.shape, _negligible(block)
    centers = np.empty((len(draws.shares), n_components))
    closest, mass = np.full(n_rows, np.inf), np.empty(n_rows)
    trials = np.array([draws.first])
    for found in range(len(centers)):
        candidates = densified(block.X, trials, n_components)
        table = NearestCenters.build(candidates, block.X.dtype, around_origin=True)
        scores = np.empty((n_rows, -(-len(trials) // LANES) * LANES), block.X.dtype)
        if pieces is None:
            table.score(block.X, scores)
        else:
            pieces.score(table, scores)
        best = int(kernels.best_trial(scores, len(trials), block.d2norms, block.weights, closest))
        centers[found] = candidates[best]
        kernels.take_trial(scores, best, trials[best], block.d2norms, block.weights, closest, mass)
        if mass[-1] <= negligible:
            return centers[: found + 1]
        trials = np.searchsorted(mass, draws.shares[found] * mass[-1]).clip(0, n_rows - 1)
    return centers


def random_rows(block: Block, n_clusters: int, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw rows as initial centers, without replacement, with probability proportional to their weights.

    Fewer than asked for where fewer rows have a positive weight.
    """
    p = block.weights / block.weights.sum() if len(block.weights) else None
    n_drawn = min(n_clusters, block.n_rows if p is None else int(np.count_nonzero(p)))
    rows = rng.choice(block.n_rows, n_drawn, replace=False, p=p)
    return densified(block.X, rows, block.X.shape[1])
