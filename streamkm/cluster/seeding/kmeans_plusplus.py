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
from streamkm.cluster.rows import Block, drawn_rows
from streamkm.core.matrix import aligned_empty
from streamkm.engine import Executor
from streamkm.kernels.centers.layout import lay_out
from streamkm.kernels.centers.nearest import scores_csr
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.products import multiply
from streamkm.kernels.seeding import draws as kernels

SHARED_ENTRIES = 1 << 20  # of a block whose products with a few rows are worth waking up threads
NEGLIGIBLE = 1e-6  # share of float32's rounding of squared norms below which squared distances are none


@dataclass(frozen=True, slots=True)
class Draws:
    """The random draws of one run of k-means++."""

    first: int  # row that is the first center
    # (k, t): in [0, 1): where in the running sum of the mass the rows are that are tried after each center
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

    `block`: dense rows should lie around the origin: squared distances are only as exact as squared norms.
    `n_clusters`: at least 1, at most the number of rows. `executor`: of this process; its threads share the work where
    there is enough of it. Returns centers float64 (at most k, m): fewer than k only if there are fewer distinct rows.

    References: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, section 2.2 and the
    greedy variant of its conclusion.
    """
    return seedings(block, n_clusters, 1, rng=rng, executor=executor)[0]


def seedings(
    block: Block, n_clusters: int, n_runs: int, *, rng: np.random.Generator, executor: Executor | None = None
) -> list[NDArray[np.float64]]:
    """The centers of several runs of `kmeans_plusplus`, one after the other: by a thread each where rows are few."""
    draws = [Draws.of(block, n_clusters, rng) for _ in range(n_runs)]
    n_entries = block.X.size if isinstance(block.X, np.ndarray) else block.X.nnz
    if executor is None:
        return [seeded(each, block) for each in draws]
    if n_entries > SHARED_ENTRIES:
        return [seeded(each, block, LocalBlocks.of(executor, block)) for each in draws]
    return executor.each("seed", seeded, draws, block)


def seeded(draws: Draws, block: Block, pieces: LocalBlocks | None = None) -> NDArray[np.float64]:
    """The centers of one run of `kmeans_plusplus`: by this thread, or by those that share the pieces of the block."""
    X, (n_clusters, n_trials) = block.X, draws.shares.shape
    # mass at which there are no more distinct rows
    negligible = NEGLIGIBLE * float(np.finfo(np.float32).eps) * max(block.total_d2norm(), np.finfo(float).tiny)
    (n_rows, n_components), padded = X.shape, -(-n_trials // LANES) * LANES
    centers, origin, exact = np.empty((n_clusters, n_components)), np.zeros(n_components), np.empty(n_trials)
    table, bias = aligned_empty((n_components * padded,), X.dtype), np.full(padded, np.inf, X.dtype)
    columns, scores = table.reshape(n_components, padded), np.empty((n_rows, padded), X.dtype)
    closest, mass = np.full(n_rows, np.inf), np.empty(n_rows)
    trials, n_tried = np.full(n_trials, draws.first), 1
    for found in range(n_clusters):
        candidates = densified(X, trials, n_components)
        if pieces is None:
            lay_out(candidates, origin, origin, 1.0, 0, columns, exact)
        if pieces is not None:
            pieces.score(NearestCenters.build(candidates, X.dtype, around_origin=True), scores)
        elif isinstance(X, np.ndarray):
            multiply(X, origin[:0], table, n_trials, False, scores)
            scores[:, :n_tried] += exact[:n_tried]
        else:
            bias[:n_trials] = exact
            scores_csr(X.indptr, X.indices, X.data, table, padded, bias, scores)
        best = int(kernels.best_trial(scores, n_tried, block.d2norms, block.weights, closest))
        centers[found] = candidates[best]
        kernels.take_trial(scores, best, trials[best], block.d2norms, block.weights, closest, mass)
        if mass[-1] <= negligible:
            return centers[: found + 1]
        trials, n_tried = drawn_rows(mass, draws.shares[found]), n_trials
    return centers


def random_rows(block: Block, n_clusters: int, *, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw rows as initial centers, without replacement, with probability proportional to their weights.

    Fewer than asked for where fewer rows have a positive weight.
    """
    p = block.weights / block.weights.sum() if len(block.weights) else None
    n_drawn = min(n_clusters, block.n_rows if p is None else int(np.count_nonzero(p)))
    rows = rng.choice(block.n_rows, n_drawn, replace=False, p=p)
    return densified(block.X, rows, block.X.shape[1])
