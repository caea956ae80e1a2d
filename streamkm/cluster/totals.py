"""The sums that every step and every pass gathers, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.kernels.cluster import totals as kernels


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a step over rows: one addend of the reduction."""

    sums: NDArray[np.float64]  # (k, m): weighted sums of the rows of each cluster
    counts: NDArray[np.float64]  # (k,): their total weight
    d2: float = 0.0  # float64, weighted sum of squared distances to the centers, where the step computes it

    @classmethod
    def zeros(cls, n_clusters: int, n_components: int) -> Totals:
        """Start empty."""
        return cls(np.zeros((n_clusters, n_components)), np.zeros(n_clusters))

    @classmethod
    def unwritten(cls, table: NearestCenters) -> Totals:
        """Start with sums that hold anything: rows that are added `fresh` clear them."""
        return cls(np.empty(table.centers.shape), np.zeros(table.n_clusters))

    def means(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cluster means (k, m); rows of `fallback` for clusters without weight."""
        out = np.empty_like(self.sums)
        kernels.means(self.sums, self.counts, fallback, out)
        return out

    def to_means(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
        """As `means`, in place: overwrites the sums, as new memory costs more than the division."""
        if not self.sums.flags.writeable:  # as it came from a worker
            return self.means(fallback)
        kernels.means(self.sums, self.counts, fallback, self.sums)
        return self.sums

    def explained(self) -> float:
        """What the clusters' means explain of the rows' squared norms: the rest is squared distances to them."""
        return kernels.explained(self.sums, self.counts)


def absorb_totals(first: Totals, second: Totals) -> Totals:
    """Add up both, in the memory of the first: new memory costs more than the sums."""
    kernels.join(first.sums, second.sums, first.sums)
    return Totals(first.sums, first.counts + second.counts, first.d2 + second.d2)


def inertia_of(totals: Totals, centers: NDArray[np.float64], total_d2norm: float) -> float:
    """Sum of squared distances from sums alone: ``sum w |x|^2 - 2 sum c.S + sum n |c|^2``, float64, at least 0."""
    return max(0.0, total_d2norm + kernels.crossed(totals.sums, totals.counts, centers))
