"""Clusters of a stream that keep their ids: what an update makes of them, from rows that stand for all.

Nothing here reads files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import add_rows, row_d2
from streamkm.cluster.sampling.coreset import Coreset, CoresetRule, Part
from streamkm.cluster.tracking.clusters import Parts, TrackedClusters, carry_over, origins_of, weighted_quantiles
from streamkm.cluster.tracking.followed import NO_PLACES, Followed, Ground
from streamkm.cluster.tracking.transition import Event, Kind, Transition, family, find_transition, join_cost, join_costs
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.fitting.streams.follow import FollowSettings, follow

REACH = 0.99
"""Share of a cluster's rows that lie within its reach."""
BORN_BEYOND = 1.5
"""Reaches from the nearest center beyond which most rows of a cluster that was born lie."""
UNSEARCHED = 0.1
"""Share of all rows that may come, as they came before, until splits and joins are looked for."""
USUAL_CHANGE = 0.05
"""Share by which the size of a cluster changes from update to update without a reason."""
BESIDE = 5
"""Nearest clusters, one of which may have taken over the rows of one that is gone."""
FEW = 0.1
"""Share of the expected rows below which a cluster that is gone has died, and was not joined."""


@dataclass(frozen=True, slots=True)
class Step:
    """An update before its rows are counted."""

    clusters: TrackedClusters  # rows of before in the clusters of now
    part: Part  # rows that stand for all, those of the update included
    transition: Transition
    before: TrackedClusters  # as of the newest row
    numbers: NDArray[np.int64]  # (k,): of the clusters of now in the arrays of `transition`


def begun(centers: NDArray[np.float64], coreset: Coreset, part: Part, earlier: Coreset | None) -> Step:
    """Clusters (k, d) that get their first ids; rows from before the update are counted as their coreset tells."""
    k = len(centers)
    none = np.zeros(k)
    # counts, distances and reach; then within, variance and unsearched
    new = TrackedClusters(np.arange(k), centers, centers, none, none, none, 0.0, 0.0, 0.0, origins_of(centers), 1)
    nobody = replace(new, ids=new.ids[:0], centers=centers[:0], means=centers[:0], counts=none[:0], origins=new.ids[:0])
    transition = Transition(np.empty(0, np.int64), np.empty(0, np.int64), np.full(k, -1))
    counted = new if earlier is None else estimated(new, earlier.X, earlier.weights)
    return Step(reaching(counted, coreset), part, transition, nobody, np.arange(k))


def advanced(
    here: Executor,
    followed: Followed,
    rule: CoresetRule,
    settings: FollowSettings,
    *,
    waiting: Part | None,
    new: Part | None,
    ground: Ground | None,
) -> Step:
    """Find the clusters after an update.

    `waiting`: rows that came before the update and were not counted; they are counted as the coreset tells. `new`: rows
    of the update. `ground`: new groups in these, far from all clusters; waiting rows as far out and in no group are not
    counted.
    """
    if waiting is not None:
        near = Ground.of(followed.clusters.widened(waiting.X.shape[1]), waiting)
        waiting, ground = waiting.only(~near.is_far(waiting.X)), ground or near
    parts_of_all = [part for part in (followed.part, waiting, new) if part is not None]
    part = rule.together(parts_of_all)
    coreset, order = rule.finish(part), rule.order(part)
    n_old = len(followed.part.places)
    n_counted = n_old + (0 if waiting is None else len(waiting.places))
    is_old, is_waiting = order < n_old, (order >= n_old) & (order < n_counted)
    fade = rule.fade(followed.part.last_place, part.last_place)
    known = followed.clusters.faded(fade).widened(part.X.shape[1])
    table = NearestCenters.build(known.centers, np.float64)
    before = table.labels(coreset.X)
    is_novel = row_d2(coreset.X, before, table) > np.square(BORN_BEYOND * known.reach)[before]
    centers = follow(here, coreset, known.means, settings, None if ground is None else ground.groups)
    after = NearestCenters.build(centers, np.float64)
    transition = find_transition(
        before, after.labels(coreset.X), coreset.weights, is_old, is_novel, after.labels(known.means), len(centers)
    )
    parts = {}
    for one in np.unique(transition.parents[transition.parents >= 0]).tolist():
        rows, members = np.flatnonzero((before == one) & is_old), family(transition, one)
        labels = NearestCenters.build(centers[members], np.float64).labels(coreset.X[rows])
        parts[one] = Parts.of(coreset.X[rows], coreset.weights[rows], labels, known.means[one], len(members))
    clusters, numbers = carry_over(replace(known, unsearched=0.0), transition, centers, parts)
    counted = estimated(clusters, coreset.X[is_waiting], coreset.weights[is_waiting])
    return Step(reaching(counted, coreset, followed.means), part, transition, known, numbers)


def moved(
    followed: Followed, more: Part, rule: CoresetRule, counts: NDArray[np.float64], sums: NDArray[np.float64]
) -> Step:
    """Move each center to the mean of its rows and new ones, by their exact sums; nothing is split or joined.

    `more`: drawn from the new rows. `counts`, `sums`: float64 (k,), (k, d), of the new rows, by the center they are
    nearest to.
    """
    part = rule.together([followed.part, more])
    fade = rule.fade(followed.part.last_place, part.last_place)
    known = followed.clusters.faded(fade).widened(part.X.shape[1])
    counts, sums = (each * (more.total_weight / max(float(counts.sum()), 1e-300)) for each in (counts, sums))
    together = counts + known.counts
    means = known.means + np.divide(
        sums - counts[:, None] * known.means, together[:, None], out=np.zeros(sums.shape), where=together[:, None] > 0
    )
    transition = Transition.same(known.n_clusters)
    since = replace(known, unsearched=known.unsearched + more.total_weight)
    clusters, numbers = carry_over(since, transition, means, {})
    return Step(clusters, part, transition, known, numbers)


def estimated(clusters: TrackedClusters, X: Matrix, weights: NDArray[np.float64]) -> TrackedClusters:
    """Count rows in by weighted ones (s, d) that stand for them; the objective is an estimate from then on."""
    if not X.shape[0]:
        return clusters
    table = NearestCenters.build(clusters.centers, np.float64)
    labels = table.labels(X)
    d2 = row_d2(X, labels, table)
    sums, counts = np.zeros(clusters.centers.shape), np.zeros(clusters.n_clusters)
    add_rows(X, weights, labels, sums, counts)
    distances = np.asarray(np.bincount(labels, weights * np.sqrt(d2), minlength=clusters.n_clusters), np.float64)
    total = float(weights @ d2)
    counted = clusters.with_rows(counts, sums, total, distances)
    spread = weights * (d2 - total / float(weights.sum()))
    return replace(counted, variance=counted.variance + float(spread @ spread))


def events_of(
    step: Step, clusters: TrackedClusters, came: NDArray[np.float64], n_rows: NDArray[np.int64]
) -> list[Event]:
    """What became of clusters in an update, once its rows are counted.

    `clusters`: with all rows. `came`: float64 (k before,), weight of the update's rows that lay within the reach of
    each center before. `n_rows`: int64 (k,), rows of the update in each cluster.
    """
    transition, known, number = step.transition, step.before, clusters.n_updates - 1
    told: list[Event] = []

    def tell(event: Kind, cluster: int, other: int | None, rows: float, gain: float) -> None:
        told.append(Event(number, event, cluster, other, float(rows), float(gain)))

    place = np.empty(len(step.numbers), np.int64)  # in `clusters`, of the numbers of the transition
    place[step.numbers] = np.arange(len(step.numbers))
    for one in np.flatnonzero(transition.heirs < 0).tolist():
        into = int(place[transition.taken_by[one]])
        cost = join_cost(known.means[one], known.counts[one], clusters.means[into], clusters.counts[into])
        if _is_without_rows(known, came, one):
            tell("died", int(known.ids[one]), None, 0, -cost)
        else:
            tell("joined", int(known.ids[one]), int(clusters.ids[into]), 0, -cost)
    costs, _ = join_costs(clusters.means, clusters.counts)
    for new in sorted(np.flatnonzero(transition.is_new).tolist(), key=lambda new: int(place[new])):
        at, parent = int(place[new]), int(transition.parents[new])
        if parent < 0:
            gain = costs[at] if len(costs) > 1 else 0.0
            tell("born", int(clusters.ids[at]), None, n_rows[at], gain)
            continue
        heir = int(place[transition.heirs[parent]])
        gain = join_cost(clusters.means[at], clusters.counts[at], clusters.means[heir], clusters.counts[heir])
        tell("split", int(clusters.ids[at]), int(known.ids[parent]), n_rows[at], gain)
    return told


def _is_without_rows(known: TrackedClusters, came: NDArray[np.float64], one: int) -> bool:
    """Whether a cluster that is gone got few rows, and none of those next to it got about as many more."""
    held = known.counts > 0
    usual = known.counts * (float(np.median(came[held] / known.counts[held])) if held.any() else 0.0)
    if came[one] >= FEW * usual[one]:
        return False
    apart = known.means - known.means[one]
    d2 = np.einsum("ij,ij->i", apart, apart)
    d2[one] = np.inf
    beside = np.argsort(d2, kind="stable")[:BESIDE]
    more, error = came[beside] - usual[beside], np.sqrt(usual[beside] + (USUAL_CHANGE * usual[beside]) ** 2)
    return not bool(((np.abs(more - usual[one]) < 0.5 * usual[one]) & (more > 3 * error)).any())


def reaching(clusters: TrackedClusters, coreset: Coreset, means: NDArray[np.int64] = NO_PLACES) -> TrackedClusters:
    """The same with what the coreset tells of distances; those at `means` (j,) stand for rows, and are none."""
    rows = np.flatnonzero(~np.isin(coreset.places, means))
    if not len(rows):
        return clusters
    X, weights = coreset.X[rows], coreset.weights[rows]
    table = NearestCenters.build(clusters.centers, np.float64)
    labels = table.labels(X)
    distances = np.sqrt(row_d2(X, labels, table))
    reach = weighted_quantiles(distances, weights, labels, clusters.n_clusters, REACH)
    reach = np.where(reach > 0, reach, clusters.reach)
    return replace(clusters, reach=reach)
