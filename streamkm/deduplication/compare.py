"""Buckets of clusters, compared: which rows go, how many pairs that took, and what clusters keep apart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import row_d2
from streamkm.core.matrix import rows_between
from streamkm.deduplication.buckets import Buckets, Members
from streamkm.deduplication.pairs import BLOCK_ROWS, count_compared, kept_rows, near, near_pairs


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
    """Compare the rows of each cluster of a bucket, those that are kept with its guests, and all with the probes."""
    gathered = buckets.load(bucket)
    members = gathered[np.flatnonzero(comparison.bucket_of[gathered.labels] == bucket)]
    X, rows, labels = members.X, members.rows, members.labels
    guests = np.argsort(gathered.others, kind="stable")
    d2 = row_d2(X, labels, NearestCenters.build(comparison.centers, np.float64))
    order = np.lexsort((rows, -d2 if comparison.farthest else d2, labels))
    cuts = np.flatnonzero(np.diff(labels[order], prepend=-1, append=-1))
    removed, needed, pairs, n_compared = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [], 0
    for start, stop in pairwise(cuts.tolist()):
        part = order[start:stop]
        kept, nearby = kept_rows(X[part], comparison.threshold)
        removed.append(rows[part[~kept]])
        needed.append(rows[part[nearby[~kept]]])
        hosts, label = part[kept], labels[part[0]]
        first, last = np.searchsorted(gathered.others[guests], [label, label + 1])
        here = guests[first:last]
        found = near_pairs(gathered.X[here], X[hosts], comparison.threshold)
        pairs.append(np.column_stack([gathered.rows[here][found[:, 0]], rows[hosts][found[:, 1]]]))
        n_compared += count_compared(kept) + len(here) * len(hosts)
    told = (np.concatenate(removed), np.concatenate(needed), np.concatenate([np.empty((0, 2), np.int64), *pairs]))
    return BucketResult(*told, n_compared, *_by_probes(members, comparison))


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
