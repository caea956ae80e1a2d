"""Clusters that are followed over time: who they are, what is known of their rows, and what became of them.

Each cluster has an id for life. What is known of old rows is kept in sums, so that the objective about moved centers is
known without reading these rows again. Never sees a source or a file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.changed_share import ChangedShare, GapError
from streamkm.cluster.gap_histogram import GapHistogram
from streamkm.cluster.rows import add_rows, row_d2
from streamkm.core.matrix import Matrix

Kind = Literal["born", "died", "split", "joined", "renamed"]

CHILD_SHARE = 0.25
"""Least share of a cluster's rows that its heir takes over."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change of clusters.

    Attributes
    ----------
    update : int
        Number of the update, from 0.
    event : "born", "died", "split", "joined" or "renamed"
    id : int
        The cluster that was born, died, came out of a split, was joined to another, or has this id since a merge.
    other : int or None
        The cluster that it was split from or joined to, or the id that it had in the second estimator of a merge.
    rows : float
        Weight of the cluster's rows.
    gain : float
        How much lower the objective is for it, by Ward's formula; negative for joins and deaths.
    """

    update: int
    event: Kind
    id: int
    other: int | None
    rows: float
    gain: float


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """Weights of the rows of one update by cluster.

    Attributes
    ----------
    update : int
        Its number, from 0.
    ids : int64 (k,)
    rows : float64 (k,)
    """

    update: int
    ids: NDArray[np.int64]
    rows: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Transition:
    """How clusters before an update became those after it.

    Attributes
    ----------
    heirs : int64 (k before,)
        The cluster after the update that has the id of each, or -1.
    taken_by : int64 (k before,)
        The cluster after the update that the rows of each are counted in: the heir, or the one that it was joined to.
    parents : int64 (k after,)
        The cluster that a new one was split from; -1: none, as of clusters that have an old id or were born.
    """

    heirs: NDArray[np.int64]
    taken_by: NDArray[np.int64]
    parents: NDArray[np.int64]

    @classmethod
    def same(cls, n_clusters: int) -> Transition:
        """Of clusters that stay who they are."""
        everyone = np.arange(n_clusters)
        return cls(everyone, everyone, np.full(n_clusters, -1))

    @property
    def is_new(self) -> NDArray[np.bool_]:
        """Clusters (k after,) that get a new id."""
        new = np.ones(len(self.parents), np.bool_)
        new[self.heirs[self.heirs >= 0]] = False
        return new


def find_transition(
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    weights: NDArray[np.float64],
    is_old: NDArray[np.bool_],
    is_novel: NDArray[np.bool_],
    nearest: NDArray[np.int32],
    n_after: int,
) -> Transition:
    """Tell by the rows that clusters share which of them are the same.

    A cluster was born where most of its rows lie farther out than rows did before. Any other that takes over a quarter
    of the old rows of one before may be its heir. The pair with the largest weight in common is decided first, so that
    the larger part of a split and the larger one of a join keep their ids. What is left was split from the cluster that
    most of its rows were in.

    Parameters
    ----------
    before, after : int32 (s,)
        Labels of rows by the centers before and after.
    weights : float64 (s,)
    is_old : bool (s,)
        Rows that were there before the update.
    is_novel : bool (s,)
        Rows that lie farther from the centers before than rows did.
    nearest : int32 (k before,)
        The cluster afterwards that the mean of each lies in; it counts where a cluster has no old rows here.
    n_after : int

    References
    ----------
    Spiliopoulou, Ntoutsi, Theodoridis and Schult, "MONIC: modeling and monitoring cluster transitions", KDD 2006: ids
    follow the weight of the rows that two clusters share.
    """
    k = len(nearest)
    cells, cell = np.unique(before.astype(np.int64) * n_after + after, return_inverse=True)
    one, other = np.divmod(cells, n_after)  # pairs of clusters that share rows
    everyone = np.asarray(np.bincount(cell, weights, minlength=len(cells)), np.float64)
    old = np.asarray(np.bincount(cell, weights * is_old, minlength=len(cells)), np.float64)
    totals = np.bincount(one, old, minlength=k)
    shares = np.divide(old, totals[one], out=np.zeros(len(cells)), where=totals[one] > 0)
    held = np.bincount(after, weights, minlength=n_after)
    born = 2 * np.bincount(after, weights * is_novel, minlength=n_after) > held
    lone = np.flatnonzero(totals == 0)
    one, other = np.concatenate([one, lone]), np.concatenate([other, nearest[lone]])
    everyone, shares = np.concatenate([everyone, np.zeros(len(lone))]), np.concatenate([shares, np.ones(len(lone))])
    heirs, taken = np.full(k, -1, np.int64), np.zeros(n_after, np.bool_)
    candidates = np.flatnonzero((shares >= CHILD_SHARE) & ~born[other])
    for pair in candidates[np.lexsort((other[candidates], one[candidates], -everyone[candidates]))].tolist():
        if heirs[one[pair]] < 0 and not taken[other[pair]]:
            heirs[one[pair]], taken[other[pair]] = other[pair], True
    most = np.full(k, -1, np.int64)
    order = np.lexsort((other, shares, one))
    most[one[order]] = other[order]  # the last of each, which is the largest
    parents = np.full(n_after, -1, np.int64)
    order = np.lexsort((one, everyone, other))
    parents[other[order]] = one[order]
    parents[taken | born | (held == 0)] = -1
    # what was split from a cluster that is gone has no parent with an id
    parents[(parents >= 0) & (heirs[parents] < 0)] = -1
    return Transition(heirs, np.where(heirs >= 0, heirs, most), parents)


@dataclass(frozen=True, slots=True)
class TrackedClusters:
    """What is known of clusters and of all rows that were counted in them; rows weigh less with their age.

    Attributes
    ----------
    ids : int64 (k,)
        Ascending.
    centers : float64 (k, d)
        That label rows.
    means : float64 (k, d)
        Exact means of the rows of each cluster.
    counts : float64 (k,)
        Their weights.
    distances : float64 (k,)
        Weighted sums of distances of rows to their centers, as they were when the rows were labelled.
    reach : float64 (k,)
        Distance from the center within which 99 % of the rows lie, by the coreset.
    within : float
        Weighted sum of squared distances of all rows to the means of their clusters.
    variance : float
        Of `within`: above 0 once clusters were split, or rows are known by a coreset alone.
    changed : ChangedShare
        What is certain of the rows whose nearest center is another one since they were labelled.
    histogram : float64 (b,)
        Weights of rows of the coreset by distance over reach; see `metrics.drift.distance_histogram`. Zero: not known.
    unsearched : float
        Weight of rows since splits and joins were last looked for.
    n_effective : float
        Rows that would tell as much as the coreset: ``sum(w)^2 / sum(w^2)`` of its weights (Kish).
    origins : int64 (ids given so far,)
        Fingerprint of the center of each cluster when it got its id. Clusters that were followed apart are the same
        where their ids and all origins up to there agree.
    n_updates : int
    """

    ids: NDArray[np.int64]
    centers: NDArray[np.float64]
    means: NDArray[np.float64]
    counts: NDArray[np.float64]
    distances: NDArray[np.float64]
    reach: NDArray[np.float64]
    within: float
    variance: float
    changed: ChangedShare
    histogram: NDArray[np.float64]
    n_effective: float
    unsearched: float
    origins: NDArray[np.int64]
    n_updates: int

    @property
    def n_clusters(self) -> int:
        """Clusters, k."""
        return len(self.ids)

    @property
    def n_ids(self) -> int:
        """Ids that were given so far."""
        return len(self.origins)

    @property
    def inertia(self) -> float:
        """Weighted sum of squared distances of all rows to the centers of their clusters."""
        moved = self.means - self.centers
        return self.within + float(self.counts @ np.einsum("ij,ij->i", moved, moved))

    @property
    def error(self) -> float:
        """Standard error of `inertia`; 0 where it is exact."""
        return float(np.sqrt(self.variance))

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return (
            self.centers.nbytes
            + self.means.nbytes
            + 4 * self.ids.nbytes
            + self.origins.nbytes
            + self.changed.rows.n_bytes
        )

    def widened(self, n_features: int) -> TrackedClusters:
        """The same with more features, which no row had."""
        more = n_features - self.centers.shape[1]
        if more <= 0:
            return self
        wide = ((0, 0), (0, more))
        return replace(self, centers=np.pad(self.centers, wide), means=np.pad(self.means, wide))

    def faded(self, factor: float) -> TrackedClusters:
        """The same with all weights times a factor."""
        if factor == 1:
            return self
        return replace(
            self,
            counts=factor * self.counts,
            distances=factor * self.distances,
            within=factor * self.within,
            variance=factor * factor * self.variance,
            changed=self.changed.faded(factor),
            unsearched=factor * self.unsearched,
        )

    def labelled(self, histogram: GapHistogram, error: GapError) -> TrackedClusters:
        """With what is known of how far rows, which were labelled by the centers, are from having other ones."""
        return replace(self, changed=self.changed.labelled(histogram, error))

    def with_rows(
        self, counts: NDArray[np.float64], sums: NDArray[np.float64], d2: float, distances: NDArray[np.float64]
    ) -> TrackedClusters:
        """Count rows in that were labelled by the centers.

        Parameters
        ----------
        counts : float64 (k,)
        sums : float64 (k, d)
        d2 : float
            Sum of their squared distances to the centers.
        distances : float64 (k,)
            Sums of their distances to the centers.
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


def carry_over(
    tracked: TrackedClusters, transition: Transition, centers: NDArray[np.float64], parts: dict[int, Parts]
) -> tuple[TrackedClusters, NDArray[np.int64]]:
    """Count the rows of old clusters in those after an update, where they stay: nothing is read.

    Parameters
    ----------
    tracked : TrackedClusters
    transition : Transition
    centers : float64 (k after, d)
    parts : dict
        Of old clusters that were split, by their numbers: parts in the order of `family`.

    Returns
    -------
    clusters : TrackedClusters
        With new ids, in the order of ids.
    numbers : int64 (k after,)
        Of these clusters in `transition`.
    """
    n_after, is_new = len(centers), transition.is_new
    ids = np.empty(n_after, np.int64)
    ids[transition.heirs[transition.heirs >= 0]] = tracked.ids[transition.heirs >= 0]
    ids[is_new] = tracked.n_ids + np.arange(is_new.sum())
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
    places = np.empty(n_after, np.int64)
    places[order] = np.arange(n_after)
    came_from = np.where(transition.heirs >= 0, places[transition.heirs], -1)
    carried = replace(
        tracked,
        ids=ids[order],
        centers=centers[order],
        means=means[order],
        counts=counts[order],
        distances=distances[order],
        reach=reach[order],
        within=max(0.0, within),
        variance=variance,
        changed=tracked.changed.moved(tracked.centers, centers[order], came_from),
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


def family(transition: Transition, one: int) -> NDArray[np.int64]:
    """The heir of an old cluster, then those that were split from it."""
    return np.concatenate([transition.heirs[one : one + 1], np.flatnonzero(transition.parents == one)])


def joined_means(
    means: NDArray[np.float64], counts: NDArray[np.float64], others: NDArray[np.float64], added: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Join sets of rows pair by pair: their weights (k,), means (k, d), and what each join costs (k,).

    References
    ----------
    Ward, "Hierarchical grouping to optimize an objective function", JASA 58 (1963): the cost is
    ``n m / (n + m) ||a - b||^2``.
    """
    together = counts + added
    share = np.divide(added, together, out=np.zeros(len(counts)), where=together > 0)
    apart = others - means
    joined = means + share[:, None] * apart
    return together, joined, share * counts * np.einsum("ij,ij->i", apart, apart)


def join_costs(means: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """What it costs to join each cluster to the one that costs least (k,), and which that is (k,), by Ward's formula.

    O(k^2 d) time, O(k^2) memory a block of 1,000 clusters.
    """
    k = len(counts)
    costs, nearest = np.full(k, np.inf), np.zeros(k, np.intp)
    center = counts @ means / max(counts.sum(), 1e-300)
    moved = means - center
    norms = np.einsum("ij,ij->i", moved, moved)
    for start in range(0, k, JOINED_AT_ONCE):
        rows = slice(start, min(start + JOINED_AT_ONCE, k))
        d2 = np.maximum(norms[rows, None] + norms - 2 * moved[rows] @ moved.T, 0.0)
        share = counts[rows, None] * counts / np.maximum(counts[rows, None] + counts, 1e-300)
        cost = share * d2
        cost[np.arange(cost.shape[0]), np.arange(start, start + cost.shape[0])] = np.inf
        nearest[rows] = cost.argmin(axis=1)
        costs[rows] = cost.min(axis=1)
    return costs, nearest


JOINED_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Parts:
    """How the rows of a cluster fall apart, estimated from drawn ones.

    Attributes
    ----------
    shares : float64 (j,)
        Of the cluster's weight.
    means : float64 (j, d)
        Of the parts; their mean is that of the cluster.
    between : float
        Sum of squared distances of the parts' means to that of the cluster, for a weight of 1.
    error : float
        Its standard error, as if each row had been drawn with a probability of 1 / weight.
    """

    shares: NDArray[np.float64]
    means: NDArray[np.float64]
    between: float
    error: float

    @classmethod
    def of(
        cls, X: Matrix, weights: NDArray[np.float64], labels: NDArray[np.int32], mean: NDArray[np.float64], n_parts: int
    ) -> Parts:
        """Estimate from drawn rows (s, d) of the cluster, their weights (s,) and parts (s,), and its exact mean (d,).

        Without rows, all is in the first part, and nothing is known of the others.
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


def weighted_quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], labels: NDArray[np.int32], k: int, q: float
) -> NDArray[np.float64]:
    """The quantile q of the weighted values of each label (k,); 0 where there are none."""
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
