"""Prices of clusters that bring their sizes between a floor and a cap: coordinate ascent on the dual of transport."""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.intrinsics.forms import unfilled


@kernel
def ascend(candidates, costs, weights, starts, entries, given, bounds, trust, steps, prices):
    """Move each cluster's price, one after the other, to where its size keeps its bounds, or to 0. O(e * M^2).

    A row belongs to the candidate of the least cost and price. A cluster's size falls as its own price rises, so the
    price that maximizes the dual is 0, or the nearest one at which the size is at the cap or the floor.

    Parameters
    ----------
    candidates, costs : int32, float64 (e, M); of each row, the clusters and what they cost it without their prices
    weights : float64 (e,); of the rows
    starts, entries : int64 (k + 1,), (e * M,); positions in `candidates` of each cluster
    given : float64 (k, 2); weight in each cluster of rows that stay, and the price at the start
    bounds : float64 (2,); floor and cap
    trust : float64; a price moves at most this far from its start
    steps : float64 (k,); updated: how far a price moves at once
    prices : float64 (k,); updated

    Returns
    -------
    float64 : weight outside the bounds, as seen before each update
    """
    n_candidates, outside, longest = candidates.shape[1], 0.0, 0
    for j in range(prices.shape[0]):
        longest = max(longest, starts[j + 1] - starts[j])
    near, mass = unfilled(longest, np.float64), unfilled(longest, np.float64)
    for j in range(prices.shape[0]):
        price, step = prices[j], steps[j]
        size, now, n_near = given[j, 0], given[j, 0], 0
        for e in range(starts[j], starts[j + 1]):
            position = entries[e]
            i, t = position // n_candidates, position % n_candidates
            other = np.inf
            for u in range(n_candidates):
                if u != t:
                    other = min(other, costs[i, u] + prices[candidates[i, u]])
            leaves = other - costs[i, t]  # the price at which the row leaves the cluster
            now += weights[i] * (leaves > price)
            if leaves > price + step:
                size += weights[i]
            elif leaves > price - step:
                near[n_near], mass[n_near] = leaves, weights[i]
                n_near += 1
        outside += max(0.0, now - bounds[1], bounds[0] - now)
        order = np.argsort(-near[:n_near])
        before = price + step
        lowest = before if size > bounds[1] else -np.inf
        highest = np.inf if size >= bounds[0] else price - step
        for q in range(n_near):
            here = near[order[q]]
            if lowest == -np.inf and size + mass[order[q]] > bounds[1]:
                lowest = 0.5 * (here + before)
            size += mass[order[q]]
            if highest == price - step and size >= bounds[0]:
                after = near[order[q + 1]] if q + 1 < n_near else price - step
                highest = 0.5 * (here + after)
            before = here
        wanted = min(max(0.0, lowest), max(highest, lowest))
        moved = min(max(wanted, price - step, given[j, 1] - trust), price + step, given[j, 1] + trust)
        steps[j] = min(2.0 * step, trust) if abs(moved - price) >= step else 0.7 * step
        prices[j] = moved
    return outside
