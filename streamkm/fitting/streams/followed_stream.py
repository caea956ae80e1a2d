"""Clusters of a stream that keep their ids, after an update or a merge, from rows that represent all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import add_rows
from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.cluster.tracking.followed import NO_PLACES, Followed, Ground, nearest_of
from streamkm.cluster.tracking.tracked import Parts, TrackedClusters, carry_over, origins_of, weighted_quantiles
from streamkm.cluster.tracking.transition import (
    Event,
    Kind,
    Transition,
    UpdateRows,
    family,
    find_transition,
    join_cost,
    join_costs,
    joined_means,
)
from streamkm.core.matrix import Matrix
from streamkm.engine import Executor
from streamkm.fitting.streams.coreset_clusters import StreamSettings, follow

# Share of a cluster's rows that lie within its reach.
REACH = 0.99
# Reaches from the nearest center beyond which most rows of a cluster that was born lie.
BORN_BEYOND = 1.5
# Share of all rows that may come, as they came before, until splits and joins are looked for.
UNSEARCHED = 0.1
# Share by which the size of a cluster changes from update to update without a reason.
USUAL_CHANGE = 0.05
# Nearest clusters, one of which may have taken over the rows of one that is gone.
BESIDE = 5
# Share of the expected rows below which a cluster that is gone has died, and was not joined.
FEW = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """An update before its rows are counted."""

    clusters: TrackedClusters  # rows of before in the clusters of now
    part: Part  # rows that stand for all, those of the update included
    transition: Transition
    before: TrackedClusters  # as of the newest row
    numbers: NDArray[np.int64]  # (k,): of the clusters of now in the arrays of `transition`


def begun(centers: NDArray[np.float64], coreset: Part, part: Part, earlier: Part | None) -> Step:
    """Clusters (k, d) with their first ids; earlier rows are counted by their coreset."""
    k, none = len(centers), np.zeros(len(centers))
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
    settings: StreamSettings,
    *,
    waiting: Part | None,
    new: Part | None,
    ground: Ground | None,
) -> Step:
    """Find the clusters after an update with the rows `new`.

    `waiting`: earlier rows without a count; the coreset estimates it. `ground`: new groups among the new rows, far from
    all clusters; waiting rows as far out and in no group are not counted.
    """
    if waiting is not None:
        near = Ground.of(followed.clusters.widened(waiting.X.shape[1]), waiting)
        waiting, ground = waiting.only(~near.is_far(waiting.X)), ground or near
    parts_of_all = [part for part in (followed.part, waiting, new) if part is not None]
    part = rule.together(parts_of_all)
    coreset, order = rule.finish(part), rule.order(part)
    n_old = len(followed.part.row_ids)
    n_counted = n_old + (0 if waiting is None else len(waiting.row_ids))
    is_old, is_waiting = order < n_old, (order >= n_old) & (order < n_counted)
    fade = rule.fade(followed.part.last_place, part.last_place)
    known = followed.clusters.faded(fade).widened(part.X.shape[1])
    before, d2 = nearest_of(known, coreset.X)
    is_novel = d2 > np.square(BORN_BEYOND * known.reach)[before]
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

    `more` is drawn from the new rows; `counts` (k,) and `sums` (k, d) are those of the new rows at their nearest
    centers.
    """
    part = rule.together([followed.part, more])
    fade = rule.fade(followed.part.last_place, part.last_place)
    known = followed.clusters.faded(fade).widened(part.X.shape[1])
    counts, sums = (each * (more.total_weight / max(float(counts.sum()), 1e-300)) for each in (counts, sums))
    together = counts + known.counts
    means = known.means + np.divide(
        sums - counts[:, None] * known.means, together[:, None], out=np.zeros(sums.shape), where=together[:, None] > 0
    )
    everyone = np.arange(known.n_clusters)
    transition = Transition(everyone, everyone, np.full(known.n_clusters, -1))  # all keep their identities
    since = replace(known, unsearched=known.unsearched + more.total_weight)
    clusters, numbers = carry_over(since, transition, means, {})
    return Step(clusters, part, transition, known, numbers)


def estimated(clusters: TrackedClusters, X: Matrix, weights: NDArray[np.float64]) -> TrackedClusters:
    """Add weighted rows (s, d) that represent others; the objective is an estimate from then on."""
    if not X.shape[0]:
        return clusters
    labels, d2 = nearest_of(clusters, X)
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
    """Events of clusters in an update, once its rows are counted in `clusters`.

    `came` (k before,): weight of the update's rows within the reach of each center before; `n_rows` (k,): its rows by
    cluster.
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
    """Whether a cluster that is gone got few rows, and none of its neighbours got about as many more."""
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


def reaching(clusters: TrackedClusters, coreset: Part, means: NDArray[np.int64] = NO_PLACES) -> TrackedClusters:
    """Clusters with the reach by the coreset, without its rows at `means` (j,), which represent others."""
    rows = np.flatnonzero(~np.isin(coreset.row_ids, means))
    if not len(rows):
        return clusters
    X, weights = coreset.X[rows], coreset.weights[rows]
    labels, d2 = nearest_of(clusters, X)
    reach = weighted_quantiles(np.sqrt(d2), weights, labels, clusters.n_clusters, REACH)
    reach = np.where(reach > 0, reach, clusters.reach)
    return replace(clusters, reach=reach)


def merged(first: Followed, second: Followed, rule: CoresetRule) -> Followed:
    """Count the rows of the second in the clusters of the first if both have them, else in clusters with new ids.

    Clusters are the same if they have the same id and a common history; their centers are those of the first. Rows stay
    in their clusters: all sums are exact.
    """
    part, means = rule.together([first.part, second.part]), np.union1d(first.means, second.means)
    fades = [rule.fade(each.part.last_place, part.last_place) for each in (first, second)]
    width = max(first.clusters.centers.shape[1], second.clusters.centers.shape[1])
    one = first.clusters.faded(fades[0]).widened(width)
    other = second.clusters.faded(fades[1]).widened(width)
    names, origins = _names(one, other)
    clusters = reaching(_counted(one, other, names, origins), rule.finish(part), means)
    n_before, update = first.clusters.n_updates, clusters.n_updates - 1
    events, updates = [*first.events, *_events(first, second, names)], [*first.updates]
    renamed = other.ids[names[other.ids] != other.ids].tolist()
    events += [Event(update, "renamed", int(names[old]), old, 0.0, 0.0) for old in renamed]
    for each in second.updates:
        order = np.argsort(names[each.ids])
        updates.append(UpdateRows(n_before + each.update, names[each.ids][order], each.rows[order]))
    given = np.concatenate([first.given, names[second.given]])
    gone = fades[0] * first.gone + fades[1] * second.gone
    origin = first.labelled_by
    if origin is None and second.labelled_by is not None:
        origin = replace(second.labelled_by, ids=names[second.labelled_by.ids])
    both = Followed(clusters, part, given, tuple(events), tuple(updates), means, first.figures, gone, origin)
    return both.reduced(rule)


def _names(one: TrackedClusters, other: TrackedClusters) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """New ids of the second's clusters, which keep those of the common history, and the origins of all ids."""
    n_most = min(len(one.origins), len(other.origins))
    differ = np.flatnonzero(one.origins[:n_most] != other.origins[:n_most])
    n_shared = int(differ[0]) if len(differ) else n_most
    names = np.arange(len(other.origins))
    names[n_shared:] += len(one.origins) - n_shared
    alone = other.ids[(other.ids < n_shared) & ~np.isin(other.ids, one.ids)]
    names[alone] = len(one.origins) + len(other.origins) - n_shared + np.arange(len(alone))
    return names, np.concatenate([one.origins, other.origins[n_shared:], other.origins[alone]])


def _counted(
    one: TrackedClusters, other: TrackedClusters, names: NDArray[np.int64], origins: NDArray[np.int64]
) -> TrackedClusters:
    """The clusters of both, with the rows of both."""
    theirs = names[other.ids]
    ids = np.union1d(one.ids, theirs)
    here, there = np.searchsorted(ids, one.ids), np.searchsorted(ids, theirs)
    shape = len(ids), one.centers.shape[1]
    centers, means = np.empty(shape), np.empty(shape)
    counts, added, distances, reach = (np.zeros(len(ids)) for _ in range(4))
    for each, places in ((other, there), (one, here)):
        centers[places], means[places] = each.centers, each.means
        distances[places] += each.distances
        reach[places] = np.maximum(reach[places], each.reach)
    counts[here], added[there] = one.counts, other.counts
    their_means = means.copy()
    their_means[there] = other.means
    together, joined, between = joined_means(means, counts, their_means, added)
    return replace(
        one,
        ids=ids,
        centers=centers,
        means=joined,
        counts=together,
        distances=distances,
        reach=reach,
        within=one.within + other.within + float(between.sum()),
        variance=one.variance + other.variance,
        origins=origins,
        n_updates=one.n_updates + other.n_updates,
    )


def _events(first: Followed, second: Followed, names: NDArray[np.int64]) -> list[Event]:
    """Events of the second since the common history, with its new ids; "renamed" keeps the name before."""
    n_common = next(
        (n for n, (one, other) in enumerate(zip(first.events, second.events, strict=False)) if one != other),
        min(len(first.events), len(second.events)),
    )
    return [
        replace(
            each,
            update=first.clusters.n_updates + each.update,
            id=int(names[each.id]),
            other=each.other if each.other is None or each.event == "renamed" else int(names[each.other]),
        )
        for each in second.events[n_common:]
    ]
