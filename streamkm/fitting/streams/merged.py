"""Clusters of two streams as those of one: nothing is read, and all sums add up.

What waits for an update is no matter of this module.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.cluster.tracking.clusters import TrackedClusters
from streamkm.cluster.tracking.followed import Followed
from streamkm.cluster.tracking.transition import Event, UpdateRows, joined_means
from streamkm.fitting.streams.followed import reaching


def merged(first: Followed, second: Followed, rule: CoresetRule) -> Followed:
    """Count the rows of the second in the clusters of the first where both have them, else in clusters with new ids.

    Clusters are the same if they have the same id and a common history. Their centers are those of the first, and
    rows stay in their clusters: all sums are exact.
    """
    part, means = rule.together([first.part, second.part]), np.union1d(first.means, second.means)
    fades = [rule.fade(each.part.last_place, part.last_place) for each in (first, second)]
    width = max(first.clusters.centers.shape[1], second.clusters.centers.shape[1])
    one, other = (each.clusters.faded(fade).widened(width) for each, fade in zip((first, second), fades, strict=True))
    names, origins = _names(one, other)
    clusters = reaching(_counted(one, other, names, origins), rule.finish(part), means)
    events = (*first.events, *_events(first, second, names), *_renamed(other, names, clusters.n_updates - 1))
    updates = [_renumbered(each, first.clusters.n_updates, names) for each in second.updates]
    given = np.concatenate([first.given, names[second.given]])
    gone = sum(fade * each.gone for fade, each in zip(fades, (first, second), strict=True))
    origin = first.labelled_by or (
        second.labelled_by and replace(second.labelled_by, ids=names[second.labelled_by.ids])
    )
    both = Followed(clusters, part, given, events, (*first.updates, *updates), means, first.figures, gone, origin)
    return both.reduced(rule)


def _names(one: TrackedClusters, other: TrackedClusters) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What the ids of the second are in both, and the origins of all ids.

    Ids of the common history stay, unless the first has let the cluster go.
    """
    n_most = min(one.n_ids, other.n_ids)
    differ = np.flatnonzero(one.origins[:n_most] != other.origins[:n_most])
    n_shared = int(differ[0]) if len(differ) else n_most
    names = np.arange(other.n_ids)
    names[n_shared:] += one.n_ids - n_shared
    alone = other.ids[(other.ids < n_shared) & ~np.isin(other.ids, one.ids)]
    names[alone] = one.n_ids + other.n_ids - n_shared + np.arange(len(alone))
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
    """Events of the second since the common history, by their names in both; "renamed" keeps the name it had before."""
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


def _renumbered(rows: UpdateRows, n_before: int, names: NDArray[np.int64]) -> UpdateRows:
    """Rows of an update of the second by their names in both."""
    ids = names[rows.ids]
    order = np.argsort(ids)
    return UpdateRows(n_before + rows.update, ids[order], rows.rows[order])


def _renamed(other: TrackedClusters, names: NDArray[np.int64], update: int) -> list[Event]:
    """Clusters of the second that have another id from now on."""
    return [Event(update, "renamed", int(names[old]), old, 0.0, 0.0) for old in other.ids.tolist() if names[old] != old]
