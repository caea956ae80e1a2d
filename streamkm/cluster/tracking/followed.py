"""Followed clusters, with the rows that stand for all, and the distances of these to the present centers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.profile import distance_histogram
from streamkm.cluster.rows import Totals, add_rows, row_d2
from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.cluster.tracking.tracked import TrackedClusters
from streamkm.cluster.tracking.transition import Event, UpdateRows, join_costs
from streamkm.core.matrix import Matrix

NO_PLACES = np.empty(0, np.int64)
IDLE_UPDATES, DUE_ROWS, FEW_OF_DUE = 3, 10.0, 0.03
"""A cluster dies after `IDLE_UPDATES` with less than `FEW_OF_DUE` of its due rows, if at least `DUE_ROWS` were due."""
STANDING_FOR_FIT = 1000
"""Kept rows that stand for those of a fit."""
SLACK = 2
"""Size of a waiting coreset, relative to its limit, at which it is reduced."""
FAR = 10.0
"""Distance, relative to the largest reach of a cluster, from which a row is far from all clusters."""
MANY_FAR, GROUP, GROUP_ROWS = 0.1, 0.002, 8
"""Share of new rows from which all far ones count; share and number from which far ones close together form a group."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Regions where rows are expected: near clusters, and near new groups of far rows.

    The mean of a cluster of n rows moves by at most m / n times the limit for m rows within it, so that a few of these
    break no cluster; the same number of rows beyond it can lie far enough to do so.
    """

    centers: NDArray[np.float64]  # float64 (k, d), (g, d)
    groups: NDArray[np.float64]
    limit: float  # distance from the nearest of both beyond which rows are not counted; infinite: all rows are

    @classmethod
    def of(cls, clusters: TrackedClusters, part: Part | None, row_weight: float = 1.0) -> Ground:
        """Regions about clusters before an update, with groups of rows that stand for it (`row_weight`: mean weight).

        All rows count if the far ones are a tenth or more of them, and no fewer than a group has.
        """
        centers, reach = clusters.centers, float(clusters.reach.max(initial=0.0))
        ground = cls(centers, centers[:0], FAR * reach if reach > 0 else np.inf)
        if part is None or np.isinf(ground.limit):
            return ground
        far = np.flatnonzero(ground.is_far(part.X))
        fewest, total = GROUP_ROWS * row_weight, float(part.weights.sum())
        weight, groups = float(part.weights[far].sum()), []
        if weight >= max(MANY_FAR * total, fewest):
            return replace(ground, limit=np.inf)
        while float(part.weights[far].sum()) >= max(GROUP * total, fewest):
            first = np.asarray(part.X[far[:1]].T @ np.ones(1))
            near = ~replace(ground, centers=first[None]).is_far(part.X[far])
            weights = part.weights[far[near]]
            if float(weights.sum()) >= max(GROUP * total, fewest):
                groups.append(np.asarray(part.X[far[near]].T @ weights) / weights.sum())
            far = far[~near]
        return replace(ground, groups=np.reshape(groups, (-1, centers.shape[1])))

    def is_far(self, X: Matrix) -> NDArray[np.bool_]:
        """Whether rows lie beyond the limit."""
        table = NearestCenters.build(np.vstack([self.centers, self.groups]), np.float64)
        return row_d2(X, table.labels(X), table) > self.limit**2


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Statistics of rows by cluster, about given centers."""

    ids: NDArray[np.int64]  # (k,)
    counts: NDArray[np.float64]  # (k,): weights of the rows; decayed ones are no integers
    means: NDArray[np.float64]  # (k, d): of the rows; of any value where there are none
    distances: NDArray[np.float64]  # (k,): mean distances to the centers
    histogram: NDArray[np.float64]  # (b,): as of `distance_histogram`
    n_rows: float  # effective number of rows, ``sum(w)**2 / sum(w**2)`` (Kish)
    shown: NDArray[np.float64] | None = None  # (k, d): optional, the means in the units to tell; by default `means`

    @classmethod
    def of(
        cls,
        known: TrackedClusters,
        totals: Totals,
        away: NDArray[np.float64],
        histogram: NDArray[np.float64],
        squares: float,
    ) -> ClusterState:
        """Compute the state from sums of rows, of their distances (k,), and of their squared weights."""
        counts = totals.counts
        distances = np.divide(away, counts, out=np.zeros(len(counts)), where=counts > 0)
        n_rows = float(counts.sum()) ** 2 / max(squares, 1e-300)
        return cls(known.ids, counts, totals.means(known.centers), distances, histogram, n_rows)

    def shares(self) -> NDArray[np.float64]:
        """Shares of the clusters in all rows."""
        total = self.counts.sum()
        return self.counts / total if total else np.zeros_like(self.counts)

    def effective(self) -> NDArray[np.float64]:
        """Effective number of rows of each cluster."""
        return self.shares() * self.n_rows


@dataclass(frozen=True, slots=True)
class Followed:
    """Clusters with ids, and the state for the next update."""

    clusters: TrackedClusters
    part: Part  # weighted rows that stand for all rows that were counted
    given: NDArray[np.int64]  # (s,): ids that these rows got when they came
    events: tuple[Event, ...] = ()  # what became of clusters so far
    updates: tuple[UpdateRows, ...] = ()  # rows of each update by cluster
    # (j,): row ids in `part` that have the means of a fit, which stand for its rows
    means: NDArray[np.int64] = field(default_factory=lambda: NO_PLACES)
    # (u, 8): `Drift.row` of the last updates, which later ones are judged by
    figures: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 8)))
    gone: float = 0.0  # weight of the rows of clusters that died, as of the newest row of `part`
    labelled_by: TrackedClusters | None = None  # clusters by whose centers the rows of a fit were labelled

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return sum(each.n_bytes for each in (self.clusters, self.part, self.labelled_by) if each is not None)

    @property
    def is_real(self) -> NDArray[np.bool_]:
        """Whether rows of `part` (s,) came as such, and are not means of a fit."""
        return ~np.isin(self.part.row_ids, self.means)

    def changed_share(self) -> float:
        """Estimated share of rows whose nearest cluster has changed since they were labelled.

        The rows of a fit are not kept: the oldest later rows within the reach of its clusters stand for them.
        """
        X, real, weights = self.part.X, self.is_real, self.part.weights
        labels, _ = nearest_of(self.clusters, X)
        now = self.clusters.ids[labels]
        changed, of_fit = float(weights[real] @ (now != self.given)[real]) + self.gone, float(weights[~real].sum())
        if self.labelled_by is not None:
            labels, d2 = nearest_of(self.labelled_by, X)
            was, old = self.labelled_by.ids[labels], np.flatnonzero(real & (d2 <= self.labelled_by.reach[labels] ** 2))
            old = old[np.argsort(self.part.row_ids[old], kind="stable")[:STANDING_FOR_FIT]]
            changed += of_fit * float(weights[old] @ (now != was)[old]) / max(float(weights[old].sum()), 1e-300)
        return changed / max(float(weights.sum()) + self.gone, 1e-300)

    def named(self, was: Followed | None) -> Followed:
        """Give rows that `was` lacks the ids that they have now; others keep theirs."""
        given = self.clusters.ids[nearest_of(self.clusters, self.part.X)[0]]
        if was is not None:
            _, here, there = np.intersect1d(self.part.row_ids, was.part.row_ids, return_indices=True)
            given[here] = was.given[there]
        return replace(self, given=given)

    def reduced(self, rule: CoresetRule) -> Followed:
        """Reduce the rows if they are many more than a coreset has."""
        if len(self.part.row_ids) <= SLACK * rule.size:
            return self
        return replace(self, part=rule.reduced(self.part)).named(self)

    def state(self, rule: CoresetRule) -> ClusterState:
        """State of all rows about the present centers, estimated by kept rows, or by the means of a fit."""
        part = rule.finish(self.part)
        real = self.is_real[rule.order(self.part)]
        rows = np.flatnonzero(real if real.any() else ~real)
        X, weights, k = part.X[rows], part.weights[rows], self.clusters.n_clusters
        known, (labels, d2) = self.clusters.widened(X.shape[1]), nearest_of(self.clusters, X)
        distances, totals = np.sqrt(d2), Totals.zeros(*known.centers.shape)
        add_rows(X, weights, labels, totals.sums, totals.counts)
        away = np.asarray(np.bincount(labels, weights * distances, minlength=k), np.float64)
        histogram = distance_histogram(distances, known.reach[labels], weights)
        return ClusterState.of(known, totals, away, histogram, float(weights @ weights))

    def check(self, n_features: int) -> None:
        """Refuse arrays from a file that do not fit together. Raises ValueError."""
        clusters, part, k, n_rows = self.clusters, self.part, self.clusters.n_clusters, len(self.part.row_ids)
        floats: dict[str, tuple[Any, tuple[int, ...]]] = {"weights": (part.weights, (n_rows,))}
        floats |= {name: (getattr(clusters, name), (k,)) for name in ("counts", "distances", "reach")}
        floats |= {name: (getattr(clusters, name), (k, n_features)) for name in ("centers", "means")}
        floats["figures"] = self.figures, (len(self.figures), 8)
        ids, origins = clusters.ids, clusters.origins
        whole = {"ids": (ids, (k,)), "origins": (origins, (len(origins),))}
        whole |= {"places": (part.row_ids, (n_rows,)), "given": (self.given, (n_rows,))}
        for dtype, arrays in ((np.float64, floats), (np.int64, whole)):
            for name, (array, shape) in arrays.items():
                if array.dtype != dtype or array.shape != shape:
                    raise ValueError(f"{name} of {array.dtype} {array.shape}; needed: {np.dtype(dtype)} {shape}")
        if k == 0 or (np.diff(ids) <= 0).any() or not 0 <= ids[0] <= ids[-1] < len(origins):
            raise ValueError(f"clusters {ids.tolist()} that do not ascend, of {len(origins)} ids that were given")
        if part.X.shape[0] != n_rows or part.X.shape[1] > n_features:
            raise ValueError(f"rows {part.X.shape}; needed: {n_rows} of at most {n_features} features")


def nearest_of(clusters: TrackedClusters, X: Matrix) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Places of the nearest clusters of rows, and squared distances to their centers."""
    table = NearestCenters.build(clusters.widened(X.shape[1]).centers, np.float64)
    labels = table.labels(X)
    return labels, row_d2(X, labels, table)


def idle_clusters(followed: Followed, counts: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Clusters with hardly any of the rows due in this update (`counts`: its rows) and the two before."""
    clusters, rows, due = followed.clusters, counts, float(counts.sum())
    before = followed.updates[1 - IDLE_UPDATES :]
    for update in before:
        known = dict(zip(update.ids.tolist(), update.rows.tolist(), strict=True))
        rows = rows + np.array([known.get(id_, np.inf) for id_ in clusters.ids.tolist()])
        due += float(update.rows.sum())
    of_each = due * clusters.counts / max(float(clusters.counts.sum()), 1e-300)
    return (len(before) == IDLE_UPDATES - 1) & (of_each >= DUE_ROWS) & (rows < FEW_OF_DUE * of_each)


def without(followed: Followed, gone: NDArray[np.bool_]) -> Followed:
    """Remove some clusters, recording events, and the rows that stand for theirs."""
    known, part = followed.clusters.widened(followed.part.X.shape[1]), followed.part
    labels, d2 = nearest_of(known, part.X)
    left, dropped = ~gone[labels], gone[labels]
    d2 = (part.weights * d2)[dropped]
    fields = {name: getattr(known, name)[~gone] for name in ("ids", "centers", "means", "counts", "distances", "reach")}
    costs, _ = join_costs(known.means, known.counts)
    events = [
        Event(known.n_updates, "died", int(known.ids[one]), None, 0.0, -float(costs[one]))
        for one in np.flatnonzero(gone).tolist()
    ]
    clusters = replace(
        known, **fields, within=max(0.0, known.within - float(d2.sum())), variance=known.variance + float(d2 @ d2)
    )
    return replace(
        followed,
        clusters=clusters,
        part=part.only(left),
        given=followed.given[left],
        events=(*followed.events, *events),
        gone=followed.gone + float(known.counts[gone].sum()),
    )
