"""Numbers of clusters that are found again: each takes that of the known cluster it lies at.

Knows nothing of streams and estimators.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.normalization import Normalization


def order_like(known: NDArray[np.float64], centers: NDArray[np.float64]) -> NDArray[np.intp]:
    """The order in which centers lie at known ones, pair by pair, as far as there are both.

    The nearest pair is a pair, then the nearest of the others, and so on. O(k^2 * d) time for each of a few rounds,
    O(k * d) memory.

    Parameters
    ----------
    known : float64 (j, at most d)
        Features beyond are zero.
    centers : float64 (k, d)

    Returns
    -------
    order : intp (k,)
        ``centers[order]`` have the numbers of the known ones that they lie at; those that are left over fill the gaps.
    """
    known = np.pad(known, ((0, 0), (0, centers.shape[1] - known.shape[1])))
    frame = Normalization.of(known, moves=True)
    known, centers = frame.points(known), frame.points(centers)
    numbers = np.full(len(centers), -1)
    free, left = np.arange(len(known)), np.arange(len(centers))
    while len(free) and len(left):
        nearest = NearestCenters.build(known[free], np.float64).labels(centers[left])
        moved = centers[left] - known[free[nearest]]
        nearness = np.lexsort((left, np.einsum("ij,ij->i", moved, moved)))
        _, first = np.unique(nearest[nearness], return_index=True)
        paired = nearness[first]
        numbers[left[paired]] = free[nearest[paired]]
        free, left = np.delete(free, nearest[paired]), np.delete(left, paired)
    unused = np.setdiff1d(np.arange(max(len(known), len(centers))), numbers)
    numbers[left] = unused[: len(left)]
    return np.argsort(numbers, kind="stable")
