"""Buckets of clusters, compared: which rows go, how many pairs that took, and what clusters keep apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import row_d2
from streamkm.deduplication.buckets import Buckets, Members
from streamkm.deduplication.pairs import BLOCK_ROWS, count_compared, first_near, kept_rows, near, near_pairs


@dataclass(slots=True)
class Compared:
    """What all comparisons so far have told."""

    removed: NDArray[np.bool_]  # (n,)
    needed: NDArray[np.bool_]  # rows that must stay, as removed ones are near them (n,)
    done: NDArray[np.bool_]  # clusters that were compared (k,)
    # guests and rows that were kept, at the threshold or above (p, 2), in parts
    pairs: list[NDArray[np.int64]] = field(default_factory=list)
    # pairs that were compared; pairs of a probe and another row at the threshold or above; those of them in the first
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))

    @classmethod
    def nothing(cls, n_rows: int, n_clusters: int) -> Compared:
        """The state before the first bucket."""
        return cls(np.zeros(n_rows, np.bool_), np.zeros(n_rows, np.bool_), np.zeros(n_clusters, np.bool_))

    def joined(self) -> Compared:
        """The same, with all pairs in one array."""
        self.pairs = [np.concatenate([np.empty((0, 2), np.int64), *self.pairs])]
        return self

    def finish(self) -> None:
        """Remove rows that are near one of another cluster, when all are done: the first of two stays, or who must."""
        (pairs,) = self.joined().pairs
        pairs = pairs[~self.removed[pairs].any(axis=1)]
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        pairs = pairs[~self.needed[pairs[:, 0]]]  # the first of each may go
        for row, other in pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].tolist():
            if self.needed[other] or (other < row and not self.removed[other]):
                self.removed[row] = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """How rows are compared, and what that told."""

    centers: NDArray[np.float64]  # (k, d)
    threshold: float  # cosine
    farthest: bool  # whether rows far from the center come first
    probes: Members  # rows that are compared with all others
    bucket_of: NDArray[np.int64]  # (k,)
    told: Compared


def compare_bucket(
    bucket: int, buckets: Buckets, comparison: Comparison
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compare the rows of each cluster of a bucket, those that are kept with its guests, and all with the probes.

    A cluster that is larger than a piece, alone in its bucket, is compared piece by piece, with the same result. Marks
    rows that go or must stay; comparing a bucket again marks the same. Returns pairs and counts, as of `Compared`.
    """
    most, is_alone = buckets.piece_bytes, np.count_nonzero(comparison.bucket_of == bucket) == 1
    n_pieces = -(-int(buckets.n_bytes[bucket]) // most) if is_alone else 1
    parts = partial(buckets.parts, bucket) if n_pieces > 1 else partial(iter, [buckets.load(bucket)])
    table, heads = NearestCenters.build(comparison.centers, np.float64), []
    for part in parts():
        own = part[np.flatnonzero(comparison.bucket_of[part.labels] == bucket)]
        heads.append((own.labels, row_d2(own.X, own.labels, table)))
    labels, d2 = map(np.concatenate, zip(*heads, strict=True))
    order = np.lexsort((-d2 if comparison.farthest else d2, labels))  # stable: equal rows stay in the data's order
    ranks, first = np.argsort(order), 0
    piece_of = ranks // -(-len(ranks) // n_pieces)
    with closing(Buckets(2 * n_pieces, buckets.n_features, most, most)) as pieces:
        for part in parts():
            own = np.flatnonzero(comparison.bucket_of[part.labels] == bucket)
            places = piece_of[first : first + len(own)]
            first += len(own)
            for place in np.unique(places).tolist():
                pieces.add(place, part[own[places == place]])
        return _compared(pieces, [np.argsort(ranks[piece_of == at]) for at in range(n_pieces)], parts, comparison)


def _compared(
    pieces: Buckets, orders: list[NDArray[np.intp]], parts: Callable[[], Iterable[Members]], comparison: Comparison
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs and counts of a bucket.

    `pieces`: its rows, and room for as many pieces of rows that are kept. `orders`: of each piece's rows. `parts`:
    gives rows among which guests are.
    """
    threshold, told, n_before = comparison.threshold, comparison.told, 0
    pairs, counts = [np.empty((0, 2), np.int64)], np.zeros(3, np.int64)
    for at, order in enumerate(orders):
        members, hosts = pieces.load(at)[order], []
        pieces.drop(at)
        counts[1:] += _by_probes(members, comparison)
        for start, stop in pairwise(np.flatnonzero(np.diff(members.labels, prepend=-1, append=-1)).tolist()):
            left = np.arange(start, stop)
            for before in map(pieces.load, range(len(orders), len(orders) + at)):  # of the one cluster of all pieces
                nearby = first_near(members.X[left], before.X, threshold)
                told.needed[before.rows[nearby[nearby >= 0]]] = True
                left = left[nearby < 0]
            kept, nearby = kept_rows(members.X[left], threshold)
            told.needed[members.rows[left[nearby[~kept]]]] = True
            left = left[kept]
            told.removed[np.delete(members.rows[start:stop], left - start)] = True
            counts[0] += count_compared(np.isin(np.arange(start, stop), left)) + n_before * (stop - start)
            hosts.append((members.labels[start], members[left]))
        for part in parts():
            for label, host in hosts:
                guests = np.flatnonzero(part.others == label)
                found = near_pairs(part.X[guests], host.X, threshold)
                pairs.append(np.column_stack([part.rows[guests][found[:, 0]], host.rows[found[:, 1]]]))
                counts[0] += len(guests) * len(host.rows)
        for _, host in hosts if len(orders) > 1 else ():
            pieces.add(len(orders) + at, host)
            n_before += len(host.rows)
    return np.concatenate(pairs), counts


def _by_probes(members: Members, comparison: Comparison) -> NDArray[np.int64]:
    """Pairs of probes with these rows at the threshold or above, and those of them that are compared."""
    probes, counts = comparison.probes, np.zeros(2, np.int64)
    for start in range(0, len(members.rows), BLOCK_ROWS):
        part = members[start : start + BLOCK_ROWS]
        labels, others = part.labels[:, None], part.others[:, None]
        found = near(part.X, probes.X, comparison.threshold) & (part.rows[:, None] != probes.rows)
        together = (labels == probes.labels) | (others == probes.labels) | (labels == probes.others)
        counts += found.sum(), (found & together).sum()
    return counts
