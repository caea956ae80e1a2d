"""Statistics of followed clusters and of all rows counted in them, updated without reading these again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import add_rows, row_d2
from streamkm.cluster.tracking.transition import Transition, family, joined_means
from streamkm.core.matrix import Matrix


@dataclass(frozen=True, slots=True)
class TrackedClusters:
    """Statistics of clusters and of all rows counted in them; rows weigh less with their age."""

    ids: NDArray[np.int64]  # (k,): ascending
    centers: NDArray[np.float64]  # (k, d): that label rows
    means: NDArray[np.float64]  # (k, d): exact means of the rows of each cluster
    counts: NDArray[np.float64]  # (k,): their weights
    # (k,): weighted sums of distances of rows to their centers, as they were when the rows were labelled
    distances: NDArray[np.float64]
    reach: NDArray[np.float64]  # (k,): distance from the center within which 99 % of the rows lie, by the coreset
    within: float  # weighted sum of squared distances of all rows to the means of their clusters
    variance: float  # of `within`: above 0 once clusters were split, or rows are known by a coreset alone
    unsearched: float  # weight of rows since splits and joins were last looked for
    # (ids given so far,): fingerprint of the center of each cluster when it got its id. Clusters that were followed
    # apart are the same where their ids and all origins up to there agree
    origins: NDArray[np.int64]
    n_updates: int

    @property
    def n_clusters(self) -> int:
        """Clusters, k."""
        return len(self.ids)

    @property
    def inertia(self) -> float:
        """Weighted sum of squared distances of all rows to the centers of their clusters."""
        moved = self.means - self.centers
        return self.within + float(self.counts @ np.einsum("ij,ij->i", moved, moved))

    @property
    def error(self) -> float:
        """Standard error of `inertia`; 0 if it is exact."""
        return float(np.sqrt(self.variance))

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return self.centers.nbytes + self.means.nbytes + 4 * self.ids.nbytes + self.origins.nbytes

    def widened(self, n_features: int) -> TrackedClusters:
        """Add features that no row had."""
        more = n_features - self.centers.shape[1]
        if more <= 0:
            return self
        wide = ((0, 0), (0, more))
        return replace(self, centers=np.pad(self.centers, wide), means=np.pad(self.means, wide))

    def faded(self, factor: float) -> TrackedClusters:
        """Multiply all weights by a factor."""
        if factor == 1:
            return self
        names = ("counts", "distances", "within", "unsearched")
        faded: dict[str, Any] = {name: factor * getattr(self, name) for name in names}
        return replace(self, **faded, variance=factor * factor * self.variance)

    def with_rows(
        self, counts: NDArray[np.float64], sums: NDArray[np.float64], d2: float, distances: NDArray[np.float64]
    ) -> TrackedClusters:
        """Count in rows that the centers have labelled.

        `counts`: float64 (k,). `sums`: float64 (k, d). `d2`, `distances`: their sum of squared distances to the
        centers, and sums of distances (k,).
        """
        means = np.divide(sums, counts[:, None], out=self.centers.copy(), where=counts[:, None] > 0)
        moved = means - self.centers
        within = max(0.0, d2 - float(counts @ np.einsum("ij,ij->i", moved, moved)))
        together, joined, between = joined_means(self.means, self.counts, means, counts)
        return replace(
            self,
            means=joined,
            counts=together,
            distances=self.distances + distances,
            within=self.within + within + float(between.sum()),
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """The division of a cluster's rows into parts, estimated from drawn ones."""

    shares: NDArray[np.float64]  # (j,): of the cluster's weight
    means: NDArray[np.float64]  # (j, d): of the parts; their mean is that of the cluster
    between: float  # sum of squared distances of the parts' means to that of the cluster, for a weight of 1
    error: float  # its standard error, as if each row had been drawn with a probability of 1 / weight

    @classmethod
    def of(
        cls, X: Matrix, weights: NDArray[np.float64], labels: NDArray[np.int32], mean: NDArray[np.float64], n_parts: int
    ) -> Parts:
        """Estimate from drawn rows (s, d) of the cluster, their weights (s,) and parts (s,), and its exact mean (d,).

        Without rows, the first part has everything, and nothing is known of the others.
        """
        sums, counts = np.zeros((n_parts, len(mean))), np.zeros(n_parts)
        add_rows(X, weights, labels, sums, counts)
        if not counts.any():
            counts[0], sums[0] = 1.0, mean
        shares = counts / counts.sum()
        means = np.divide(sums, counts[:, None], out=np.tile(mean, (n_parts, 1)), where=counts[:, None] > 0)
        means += mean - shares @ means
        apart = means - mean
        between = float(shares @ np.einsum("ij,ij->i", apart, apart))
        whole = row_d2(X, np.zeros_like(labels), NearestCenters.build(mean[None], np.float64))
        gains = whole - row_d2(X, labels, NearestCenters.build(means, np.float64))
        error = float(np.sqrt(np.square(weights * (gains - between)).sum())) / float(counts.sum())
        return cls(shares, means, between, error)


def carry_over(
    tracked: TrackedClusters, transition: Transition, centers: NDArray[np.float64], parts: dict[int, Parts]
) -> tuple[TrackedClusters, NDArray[np.int64]]:
    """Assign the statistics of old clusters to those after an update, without reading rows.

    `centers`: float64 (k after, d). `parts`: of old clusters that were split, by number, in the order of `family`.
    Returns clusters in the order of ids, new ones included; and their numbers in `transition`, int64 (k after,).
    """
    n_after, is_new = len(centers), transition.is_new
    ids = np.empty(n_after, np.int64)
    ids[transition.heirs[transition.heirs >= 0]] = tracked.ids[transition.heirs >= 0]
    ids[is_new] = len(tracked.origins) + np.arange(is_new.sum())
    means, counts, distances, reach = centers.copy(), np.zeros(n_after), np.zeros(n_after), np.zeros(n_after)
    within, variance = tracked.within, tracked.variance
    for one in range(tracked.n_clusters):
        weight = float(tracked.counts[one])
        fallen = parts.get(one)
        if fallen is None:
            into, shares, their_means = transition.taken_by[one : one + 1], np.ones(1), tracked.means[one : one + 1]
        else:
            into, shares, their_means = family(transition, one), fallen.shares, fallen.means
            within -= weight * fallen.between
            variance += (weight * fallen.error) ** 2
        together, joined, between = joined_means(means[into], counts[into], their_means, weight * shares)
        means[into], counts[into] = np.where(together[:, None] > 0, joined, means[into]), together
        within += float(between.sum())
        distances[into] += shares * tracked.distances[one]
        reach[into] = np.maximum(reach[into], tracked.reach[one])
    order = np.argsort(ids, kind="stable")
    arrays: dict[str, Any] = {"ids": ids, "centers": centers, "means": means, "counts": counts}
    arrays |= {"distances": distances, "reach": reach}
    carried = replace(
        tracked,
        **{name: each[order] for name, each in arrays.items()},
        within=max(0.0, within),
        variance=variance,
        origins=np.append(tracked.origins, origins_of(centers[is_new])),
        n_updates=tracked.n_updates + 1,
    )
    return carried, order.astype(np.int64)


def origins_of(centers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Fingerprints (k,) of centers (k, d)."""
    rows = np.ascontiguousarray(centers)
    return np.array(
        [int.from_bytes(blake2b(row, digest_size=8).digest(), "little", signed=True) for row in rows], np.int64
    )


def weighted_quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], labels: NDArray[np.int32], k: int, q: float
) -> NDArray[np.float64]:
    """The quantile q of the weighted values of each label (k,); 0 for labels without values."""
    order = np.lexsort((values, labels))
    labels, values, weights = labels[order], values[order], weights[order]
    found = np.zeros(k)
    bounds = np.searchsorted(labels, np.arange(k + 1))
    for label in range(k):
        start, stop = bounds[label], bounds[label + 1]
        if stop > start:
            sums = np.cumsum(weights[start:stop])
            found[label] = values[start + min(int(np.searchsorted(sums, q * sums[-1])), stop - start - 1)]
    return found
