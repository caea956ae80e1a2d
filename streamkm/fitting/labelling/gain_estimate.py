"""What splitting some clusters and giving up others for it would gain, by rows that were drawn.

Arithmetic on blocks in memory: which clusters, and how often, `gain` decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.centers.neighbours import Neighbourhood
from streamkm.cluster.rows import Block, row_d2
from streamkm.kernels.cluster.totals import row_products, weighted_sum
from streamkm.kernels.intrinsics.hashing import hash_places

CERTAINTY = 2.0  # standard errors that an estimate is lowered by
HALVES_SEED = 0x9E3779B97F4A7C15  # of the hash that cuts drawn rows in two halves


@dataclass(frozen=True, slots=True)
class GainEstimate:
    """What another round could gain, by rows drawn in the pass before."""

    by_moving: float  # share of the objective that clusters gain by their own means as centers
    # share, estimated from below, that is gained where some split in two pay for others that merge
    by_swaps: float = 0.0
    swaps: tuple[tuple[int, int], ...] = ()  # tuple of (int, int), clusters to split, each with the one to give up
    # tuple of float64 (2, m), means of the two halves of each cluster that is to be split
    halves: tuple[NDArray[np.float64], ...] = ()

    @property
    def gain(self) -> float:
        """The larger share."""
        return min(1.0, max(self.by_moving, self.by_swaps))


@dataclass(frozen=True, slots=True)
class Merging:
    """What it costs to give up clusters, at most: all rows of each go to one other.

    Drawn rows do not tell: those of a small cluster lie near its center, and few are drawn.
    """

    means: NDArray[np.float64]  # (k, m): of the clusters, around the origin
    counts: NDArray[np.float64]  # (k,): rows, or their weight

    def costs(self) -> NDArray[np.float64]:
        """For each cluster, where all others stay (k,)."""
        table = NearestCenters.build(self.means, np.float64, around_origin=True)
        if table.n_clusters < FEWEST_CENTERS:
            seconds = table.nearest(self.means)[2]
        else:  # one near by may cost more than the cheapest, not less
            own = np.arange(table.n_clusters, dtype=np.int32)
            seconds = Neighbourhood.of(table).nearest(self.means, own)[2]
        return np.maximum(seconds + squares(self.means), 0.0) * self.counts

    def cost_of(self, given_up: list[int]) -> float:
        """For several together."""
        left = np.delete(self.means, given_up, axis=0)
        rows, table = self.means[given_up], NearestCenters.build(left, np.float64)
        return float(weighted_sum(self.counts[given_up], row_d2(rows, table.labels(rows), table)))


def squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared norms of rows (k,), in an order that no processor changes."""
    out = np.empty(len(rows))
    rows = np.ascontiguousarray(rows)
    row_products(rows, rows, out)
    return out


def part_of(block: Block, rows: NDArray[np.intp], times: NDArray[np.float64]) -> Block:
    """Some rows of a block, their weights multiplied, which stand for the whole."""
    return Block(block.X[rows], block.d2norms[rows], times[rows] * block.weights[rows])


def first_half(places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of two halves each row belongs to, by its place."""
    hashes = np.empty(len(places), np.int64)
    hash_places(np.uint64(HALVES_SEED), places, hashes)
    return (hashes & 1) == 0


def gained_by(
    block: Block, assigned: tuple[NDArray[np.int32], NDArray[np.float64]], split: int, halves: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What every row gains, by its weight, if one cluster is split in these halves (r,).

    `assigned`: (int32 (r,), float64 (r,)), labels, and squared distances to their centers.
    """
    labels, d2 = assigned
    out = np.zeros(len(labels))
    inside = np.flatnonzero(labels == split)
    if len(inside):
        X = block.X[inside]
        table = NearestCenters.build(halves, X.dtype, around_origin=True)
        out[inside] = d2[inside] - row_d2(X, table.labels(X), table)
    return out * block.weights
