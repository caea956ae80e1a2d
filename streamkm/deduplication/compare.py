"""Buckets of clusters, compared: which rows go, how many pairs that took, and what clusters keep apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import row_d2
from streamkm.core.matrix import rows_between
from streamkm.deduplication.buckets import Buckets, Members
from streamkm.deduplication.pairs import BLOCK_ROWS, count_compared, first_near, kept_rows, near, near_pairs


@dataclass(frozen=True, slots=True)
class Comparison:
    """How rows are compared.

    Attributes
    ----------
    centers : float64 (k, d)
    threshold : float
        Cosine.
    farthest : bool
        Whether rows far from the center come first.
    probes : Members
        Rows that are compared with all others.
    bucket_of : int64 (k,)
    """

    centers: NDArray[np.float64]
    threshold: float
    farthest: bool
    probes: Members
    bucket_of: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BucketResult:
    """What comparing a bucket tells.

    Attributes
    ----------
    removed : int64 (r,)
        Numbers of rows.
    needed : int64 (q,)
        Rows that some of them are near, which must stay.
    pairs : int64 (p, 2)
        Guests and rows that were kept, at the threshold or above.
    n_compared : int
        Pairs.
    n_near, n_together : int
        Pairs of a probe and another row at the threshold or above, and those of them that are compared.
    """

    removed: NDArray[np.int64]
    needed: NDArray[np.int64]
    pairs: NDArray[np.int64]
    n_compared: int
    n_near: int
    n_together: int


@dataclass(slots=True)
class Counted:
    """What all buckets so far have told.

    Attributes
    ----------
    removed : bool (n,)
    needed : bool (n,)
        Rows that must stay.
    done : bool (k,)
        Clusters that were compared.
    pairs : list of int64 (p, 2)
        As of `BucketResult`.
    n_compared, n_near, n_together : int
        As of `BucketResult`.
    """

    removed: NDArray[np.bool_]
    needed: NDArray[np.bool_]
    done: NDArray[np.bool_]
    pairs: list[NDArray[np.int64]] = field(default_factory=list)
    n_compared: int = 0
    n_near: int = 0
    n_together: int = 0

    @classmethod
    def empty(cls, n_rows: int, n_clusters: int) -> Counted:
        """Of no bucket."""
        return cls(np.zeros(n_rows, np.bool_), np.zeros(n_rows, np.bool_), np.zeros(n_clusters, np.bool_))

    def joined(self) -> Counted:
        """The same, with all pairs in one array."""
        return replace(self, pairs=[self._all_pairs()])

    def take(self, told: BucketResult, clusters: NDArray[np.intp]) -> None:
        """Add what a bucket of some clusters tells."""
        self.removed[told.removed] = True
        self.needed[told.needed] = True
        self.pairs.append(told.pairs)
        self.done[clusters] = True
        self.n_compared += told.n_compared
        self.n_near += told.n_near
        self.n_together += told.n_together

    def finish(self) -> None:
        """Remove rows that are near one of another cluster, when all are done: the first of two stays, or who must."""
        pairs = self._all_pairs()
        pairs = pairs[~self.removed[pairs].any(axis=1)]
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        pairs = pairs[~self.needed[pairs[:, 0]]]  # the first of each may go
        for row, other in pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].tolist():
            if self.needed[other] or (other < row and not self.removed[other]):
                self.removed[row] = True

    def _all_pairs(self) -> NDArray[np.int64]:
        return np.concatenate([np.empty((0, 2), np.int64), *self.pairs])


def compare_bucket(bucket: int, buckets: Buckets, comparison: Comparison) -> BucketResult:
    """Compare the rows of each cluster of a bucket, those that are kept with its guests, and all with the probes.

    A cluster that is larger than a piece, alone in its bucket, is compared piece by piece, with the same result.
    """
    most, n_bytes = buckets.piece_bytes, int(buckets.n_bytes[bucket])
    is_large = n_bytes > most and np.count_nonzero(comparison.bucket_of == bucket) == 1
    gathered = None if is_large else [buckets.load(bucket)]
    parts = partial(buckets.parts, bucket) if gathered is None else partial(iter, gathered)
    table, heads = NearestCenters.build(comparison.centers, np.float64), []
    for part in parts():
        own = part[np.flatnonzero(comparison.bucket_of[part.labels] == bucket)]
        heads.append((own.labels, row_d2(own.X, own.labels, table)))
    labels, d2 = map(np.concatenate, zip(*heads, strict=True))
    order = np.lexsort((-d2 if comparison.farthest else d2, labels))  # stable: equal rows stay in the data's order
    ranks, first = np.argsort(order), 0
    n_pieces = -(-n_bytes // most) if is_large else 1
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
) -> BucketResult:
    """The result of a bucket.

    `pieces`: its rows, and room for as many pieces of rows that are kept. `orders`: of each piece's rows. `parts`:
    gives rows among which guests are.
    """
    removed, needed, pairs = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty((0, 2), np.int64)]
    threshold, counts, n_before = comparison.threshold, np.zeros(3, np.int64), 0
    for at, order in enumerate(orders):
        members, hosts = pieces.load(at)[order], []
        pieces.drop(at)
        counts[1:] += _by_probes(members, comparison)
        for start, stop in pairwise(np.flatnonzero(np.diff(members.labels, prepend=-1, append=-1)).tolist()):
            left = np.arange(start, stop)
            for before in map(pieces.load, range(len(orders), len(orders) + at)):  # of the one cluster of all pieces
                nearby = first_near(members.X[left], before.X, threshold)
                removed.append(members.rows[left[nearby >= 0]])
                needed.append(before.rows[nearby[nearby >= 0]])
                left = left[nearby < 0]
            kept, nearby = kept_rows(members.X[left], threshold)
            removed.append(members.rows[left[~kept]])
            needed.append(members.rows[left[nearby[~kept]]])
            counts[0] += count_compared(np.isin(np.arange(start, stop), left[kept])) + n_before * (stop - start)
            hosts.append((members.labels[start], members[left[kept]]))
        for part in parts():
            for label, host in hosts:
                guests = np.flatnonzero(part.others == label)
                found = near_pairs(part.X[guests], host.X, threshold)
                pairs.append(np.column_stack([part.rows[guests][found[:, 0]], host.rows[found[:, 1]]]))
                counts[0] += len(guests) * len(host.rows)
        for _, host in hosts if len(orders) > 1 else ():
            pieces.add(len(orders) + at, host)
            n_before += len(host.rows)
    told = (np.concatenate(removed), np.concatenate(needed), np.concatenate(pairs))
    return BucketResult(*told, *counts.tolist())


def _by_probes(members: Members, comparison: Comparison) -> tuple[int, int]:
    """Pairs of probes with these rows at the threshold or above, and those of them that are compared."""
    probes, n_near, n_together = comparison.probes, 0, 0
    for start in range(0, len(members.rows), BLOCK_ROWS):
        stop = start + BLOCK_ROWS
        labels, others = members.labels[start:stop, None], members.others[start:stop, None]
        found = near(rows_between(members.X, start, stop), probes.X, comparison.threshold)
        found &= members.rows[start:stop, None] != probes.rows
        n_near += int(found.sum())
        together = (labels == probes.labels) | (others == probes.labels) | (labels == probes.others)
        n_together += int((found & together).sum())
    return n_near, n_together
