"""Starts improved: by LS++ exchanges of k-means++, and by centers of several starts recombined."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks, densified
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.lloyd import lloyd
from streamkm.cluster.rows import Block
from streamkm.kernels.cluster.totals import row_products, weighted_sum

STEPS = 3  # with twice the centers: without them, some local optima are never left


def recombined(pieces: Blocks, one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centers from those of two clusterings: a few steps of Lloyd's algorithm with all of them, then clusters merge.

    The cheapest merge first. Steps move centers that lose their rows to the farthest rows, on purpose: that is the
    mutation by which bad optima are left, in which both clusterings agree. O(n * m * k) for each step, O(k^2 * m) for
    the pairs of clusters.

    `pieces`: rows; dense ones around the origin. `one`, `other`: float64 (k, m), (at most k, m). Returns centers
    float64 (at most k, m).

    References: Fränti, Kivijärvi, Kaukoranta and Nevalainen, "Genetic algorithms for large-scale clustering problems",
    The Computer Journal 40 (1997): crossover by pairwise nearest neighbours.
    """
    both = lloyd(pieces, np.concatenate([one, other]), max_iter=STEPS, tol=0).centers
    totals = pieces.totals(both, "search")
    used = totals.counts > 0
    return merged_to(totals.means(fallback=both)[used], totals.counts[used], len(one))


def merged_to(means: NDArray[np.float64], counts: NDArray[np.float64], n_clusters: int) -> NDArray[np.float64]:
    """Merge the two clusters that raise the inertia least, until `n_clusters` are left.

    `means`: float64 (c, m), around the origin. `counts`: float64 (c,), rows, or their weight. Returns means float64 (at
    most n_clusters, m).
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


logger = logging.getLogger(__name__)

LARGEST_TABLE = 1 << 25  # squared distances of rows to centers that are held; more rows than that are left out
TRIALS = 8  # rows drawn at once: their distances are one matrix product; what is left after a swap is drawn anew


def ls_plusplus(
    block: Block, centers: NDArray[np.float64], *, n_steps: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Improve centers by swaps with drawn rows.

    A step draws a row with probability proportional to weight times squared distance to the nearest center, finds the
    center whose exchange for it lowers the objective most, and makes the exchange if it does. O(n * (m + k)) a step
    for dense rows; a swap costs O(n + rows of the old center * k).

    `block`: in random order; dense ones around the origin. The first 2^25 / k rows are looked at. `centers`: float64
    (k, m), from k-means++. `n_steps`: rows to draw: a share of k (Choo et al.), up to k log log k (Lattanzi and
    Sohler). Returns centers float64 (k, m): given ones and rows; their objective on the rows looked at is not above
    that of the given ones.

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
