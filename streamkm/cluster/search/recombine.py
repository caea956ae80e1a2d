"""One clustering from two of the same rows: what either found well is kept, what both found is kept once.

Works on the sampled rows, in one process.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.lloyd import lloyd
from streamkm.kernels.cluster.totals import row_products

STEPS = 3  # with twice the centers: without them, some local optima are never left


def recombined(pieces: Blocks, one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centers from those of two clusterings: a few steps of Lloyd's algorithm with all of them, then clusters merge.

    The cheapest merge first. Steps move centers that lose their rows to the farthest rows, on purpose: that is the
    mutation by which bad optima are left, in which both clusterings agree. O(n * m * k) for each step, O(k^2 * m) for
    the pairs of clusters.

    Parameters
    ----------
    pieces : Blocks
        Rows; dense ones around the origin.
    one, other : float64 (k, m), (at most k, m)

    Returns
    -------
    centers : float64 (at most k, m)

    References
    ----------
    Fränti, Kivijärvi, Kaukoranta and Nevalainen, "Genetic algorithms for large-scale clustering problems", The
    Computer Journal 40 (1997): crossover by pairwise nearest neighbours.
    """
    both = lloyd(pieces, np.concatenate([one, other]), max_iter=STEPS, tol=0).centers
    totals = pieces.totals(both, "search")
    used = totals.counts > 0
    return merged_to(totals.means(fallback=both)[used], totals.counts[used], len(one))


def merged_to(means: NDArray[np.float64], counts: NDArray[np.float64], n_clusters: int) -> NDArray[np.float64]:
    """Merge the two clusters that raise the inertia least, until `n_clusters` are left.

    Parameters
    ----------
    means : float64 (c, m)
        Around the origin.
    counts : float64 (c,)
        Rows, or their weight.

    Returns
    -------
    means : float64 (at most n_clusters, m)
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
