"""Seeding: greedy k-means++ on a block, drawn rows, LS++ exchanges, and starts recombined.

Seeding works on the block of sampled rows, in one process: k-means++ is sequential, and its quality saturates with some
tens of rows a cluster.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import Block, densified, drawn_rows
from streamkm.core.matrix import aligned_empty
from streamkm.engine import Executor
from streamkm.kernels.centers.layout import lay_out
from streamkm.kernels.centers.nearest import scores_csr
from streamkm.kernels.cluster.totals import row_products, weighted_sum
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.products import multiply
from streamkm.kernels.seeding import row_draws as kernels

SHARED_ENTRIES = 1 << 20  # of a block whose products with a few rows are worth waking up threads
NEGLIGIBLE = 1e-6  # share of float32's rounding of squared norms below which squared distances are none


logger = logging.getLogger(__name__)


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
    """Choose rows as initial centers by greedy k-means++. O(n * m * k log k), or O(nnz * k log k) for sparse rows.

    Each center is the best of ``2 + log(k)`` rows drawn in proportion to weight times squared distance to the centers
    so far. `block`: dense rows around the origin, as squared distances are only as exact as squared norms.
    `n_clusters`: at most the number of rows; fewer centers come back only if there are fewer distinct rows. `executor`:
    its local threads share large work.

    References: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007, section 2.2 and the
    greedy variant of its conclusion.
    """
    return seedings(block, n_clusters, 1, rng=rng, executor=executor)[0]


def seedings(
    block: Block, n_clusters: int, n_runs: int, *, rng: np.random.Generator, executor: Executor | None = None
) -> list[NDArray[np.float64]]:
    """Centers of several successive runs of `kmeans_plusplus`; with few rows, by one thread each."""
    draws = [Draws.of(block, n_clusters, rng) for _ in range(n_runs)]
    n_entries = block.X.size if isinstance(block.X, np.ndarray) else block.X.nnz
    if executor is None:
        return [seeded(each, block) for each in draws]
    if n_entries > SHARED_ENTRIES:
        return [seeded(each, block, LocalBlocks.of(executor, block)) for each in draws]
    return executor.each("seed", seeded, draws, block)


def seeded(draws: Draws, block: Block, pieces: LocalBlocks | None = None) -> NDArray[np.float64]:
    """Centers of one run of `kmeans_plusplus`: by this thread, or by those that share the pieces of the block."""
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
    """Draw rows as initial centers, without replacement, in proportion to weight; fewer if positive weights are."""
    p = block.weights / block.weights.sum() if len(block.weights) else None
    n_drawn = min(n_clusters, block.n_rows if p is None else int(np.count_nonzero(p)))
    rows = rng.choice(block.n_rows, n_drawn, replace=False, p=p)
    return densified(block.X, rows, block.X.shape[1])


STEPS = 3  # with twice the centers: without them, some local optima are never left


def recombined(pieces: Blocks, one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Combine the centers of two clusterings: a few steps of Lloyd's algorithm with all of them, then clusters merge.

    The cheapest merge comes first. Centers that lose their rows move to the farthest rows, a deliberate mutation: it
    leaves bad optima in which both agree. O(n * m * k) for each step, O(k^2 * m) for the pairs of clusters. `pieces`:
    rows; dense ones around the origin. Returns at most k centers.

    References: Fränti, Kivijärvi, Kaukoranta and Nevalainen, "Genetic algorithms for large-scale clustering problems",
    The Computer Journal 40 (1997): crossover by pairwise nearest neighbours.
    """
    both = lloyd(pieces, np.concatenate([one, other]), max_iter=STEPS, tol=0).centers
    totals = pieces.totals(both, "search")
    used = totals.counts > 0
    return merged_to(totals.means(fallback=both)[used], totals.counts[used], len(one))


def merged_to(means: NDArray[np.float64], counts: NDArray[np.float64], n_clusters: int) -> NDArray[np.float64]:
    """Merge the two clusters that raise the inertia least until `n_clusters` are left; return their means.

    `means`: float64 (c, m), around the origin. `counts`: float64 (c,), rows or their weight.
    """
    means, counts = means.copy(), counts.copy()
    left = np.ones(len(means), np.bool_)
    table, norms = NearestCenters.build(means, np.float64, around_origin=True), np.empty(len(means))
    row_products(means, means, norms)
    costs = np.maximum(table.scores(means) + norms[:, None], 0.0)
    costs *= counts[:, None] * counts / (counts[:, None] + counts)
    costs = np.minimum(costs, costs.T)  # rounding differs
    np.fill_diagonal(costs, np.inf)
    cheapest = costs.min(axis=1)
    for _ in range(len(means) - n_clusters):
        one = int(cheapest.argmin())
        other = int(costs[one].argmin())
        total = counts[one] + counts[other]
        means[one] = (means[one] * counts[one] + means[other] * counts[other]) / total
        left[other] = False
        to_one, to_other = costs[one].copy(), costs[other].copy()
        outdated = (to_one == cheapest) | (to_other == cheapest)  # the dead too, which stay at infinity
        to_both = (counts[one] + counts) * to_one + (counts[other] + counts) * to_other - counts * costs[one, other]
        counts[one] = total
        costs[one] = costs[:, one] = to_both / (total + counts)
        costs[other] = costs[:, other] = np.inf
        costs[one, one] = np.inf
        cheapest = np.minimum(cheapest, costs[one])
        cheapest[outdated] = costs[outdated].min(axis=1)
    return means[left]


LARGEST_TABLE = 1 << 25  # squared distances of rows to centers that are held; more rows than that are left out
TRIALS = 8  # rows drawn at once: their distances are one matrix product; what is left after a swap is drawn anew


def ls_plusplus(
    block: Block, centers: NDArray[np.float64], *, n_steps: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Improve centers by swaps with drawn rows. O(n * (m + k)) a step for dense rows.

    A swap costs O(n + rows of the old center * k). A step draws a row in proportion to weight times squared distance,
    and swaps it for the center that lowers the objective most, if one does. `block`: in random order, dense rows around
    the origin; its first 2^25 / k rows are used, on which the objective does not rise. `centers`: from k-means++.
    `n_steps`: a share of k (Choo et al.), up to k log log k (Lattanzi and Sohler).

    References: Lattanzi and Sohler, "A better k-means++ algorithm via local search", ICML 2019, algorithm 2; Choo,
    Grunau, Portmann and Rozhon, "k-means++: few more steps yield constant approximation", ICML 2020.
    """
    n_clusters = len(centers)
    n_rows = min(block.n_rows, max(1, LARGEST_TABLE // n_clusters))
    seen = Block(block.X[:n_rows], block.d2norms[:n_rows], block.weights[:n_rows])
    weights = seen.weights if len(seen.weights) else np.ones(n_rows)
    centers = centers.copy()
    d2 = _d2_to(seen, centers)
    labels, first, second = _two_nearest(d2)
    drawn: list[int] = []
    swaps = 0
    for _ in range(n_steps):
        mass = np.cumsum(weights * first)
        if mass[-1] <= 0:
            break
        if not drawn:
            drawn = np.searchsorted(mass, rng.random(TRIALS) * mass[-1]).clip(0, n_rows - 1).tolist()
            candidates = densified(seen.X, np.array(drawn), centers.shape[1])
            candidate_d2 = _d2_to(seen, candidates)
        trial = TRIALS - len(drawn)
        drawn.pop()
        to_row = np.ascontiguousarray(candidate_d2[:, trial])
        kept = np.minimum(to_row, first)
        lost = weights * (np.minimum(to_row, second) - kept)
        removal = np.bincount(labels, lost, minlength=n_clusters)
        out = int(np.argmin(removal))
        if float(weighted_sum(weights, kept)) + removal[out] >= mass[-1]:
            continue
        swaps += 1
        centers[out] = candidates[trial]
        d2[:, out] = to_row
        labels, first, second = _two_nearest(d2)
        drawn = []
    logger.debug("LS++: %d swaps of %d draws", swaps, n_steps)
    return centers


def _d2_to(block: Block, centers: NDArray[np.float64]) -> NDArray[np.float32]:
    table = NearestCenters.build(centers, block.X.dtype, around_origin=True)
    return np.maximum(table.scores(block.X) + block.d2norms[:, None], 0.0).astype(np.float32)


def _two_nearest(d2: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Label, squared distance to the nearest center and to the second nearest (infinite for one center)."""
    labels = d2.argmin(axis=1)
    rows = np.arange(len(d2))
    first = d2[rows, labels].copy()
    d2[rows, labels] = np.inf
    second = d2.min(axis=1)
    d2[rows, labels] = first
    return labels, first.astype(np.float64), second.astype(np.float64)
