"""Buckets of clusters, compared: which rows go, how many pairs that took, and what clusters keep apart."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.center_table import CenterTable
from streamkm.cluster.rows import row_d2
from streamkm.core.matrix import rows_between
from streamkm.deduplication.buckets import Buckets, Members
from streamkm.deduplication.pairs import BLOCK_ROWS, count_compared, kept_rows, near
from streamkm.passes.resume import Record


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
    """

    centers: NDArray[np.float64]
    threshold: float
    farthest: bool
    probes: Members


@dataclass(frozen=True, slots=True)
class Told:
    """What comparing a bucket tells.

    Attributes
    ----------
    removed : int64 (r,)
        Numbers of rows.
    n_compared : int
        Pairs.
    n_near, n_together : int
        Pairs of a probe and another row at the threshold or above, and those of them in one cluster.
    """

    removed: NDArray[np.int64]
    n_compared: int
    n_near: int
    n_together: int


@dataclass(slots=True)
class Counted:
    """What all buckets so far have told.

    Attributes
    ----------
    removed : bool (n,)
    done : bool (k,)
        Clusters that were compared.
    n_compared, n_near, n_together : int
        As of `Told`.
    """

    removed: NDArray[np.bool_]
    done: NDArray[np.bool_]
    n_compared: int = 0
    n_near: int = 0
    n_together: int = 0

    @classmethod
    def restored(cls, record: Record | None, n_rows: int, n_clusters: int) -> Counted:
        """What an earlier run has counted, or nothing."""
        if record is None:
            return cls(np.zeros(n_rows, np.bool_), np.zeros(n_clusters, np.bool_))
        arrays, meta = record
        removed = np.unpackbits(arrays["removed"], count=n_rows).astype(np.bool_)
        return cls(removed, arrays["done"], meta["n_compared"], meta["n_near"], meta["n_together"])

    def pack(self) -> Record:
        """As a record."""
        counts = {"n_compared": self.n_compared, "n_near": self.n_near, "n_together": self.n_together}
        return {"removed": np.packbits(self.removed), "done": self.done}, counts

    def take(self, told: Told, clusters: NDArray[np.intp]) -> None:
        """Add what a bucket of some clusters tells."""
        self.removed[told.removed] = True
        self.done[clusters] = True
        self.n_compared += told.n_compared
        self.n_near += told.n_near
        self.n_together += told.n_together


def compare_bucket(bucket: int, buckets: Buckets, comparison: Comparison) -> Told:
    """Compare the rows of each cluster of a bucket, and all of them with the probes."""
    members = buckets.load(bucket)
    X, rows, labels = members.X, members.rows, members.labels
    d2 = row_d2(X, labels, CenterTable.build(comparison.centers, np.float64))
    order = np.lexsort((rows, -d2 if comparison.farthest else d2, labels))
    cuts = np.flatnonzero(np.diff(labels[order], prepend=-1, append=-1))
    removed, n_compared = [np.empty(0, np.int64)], 0
    for start, stop in pairwise(cuts.tolist()):
        part = order[start:stop]
        kept = kept_rows(X[part], comparison.threshold)
        removed.append(rows[part[~kept]])
        n_compared += count_compared(kept)
    return Told(np.concatenate(removed), n_compared, *_by_probes(members, comparison))


def _by_probes(members: Members, comparison: Comparison) -> tuple[int, int]:
    """Pairs of probes with these rows at the threshold or above, and those of them in one cluster."""
    probes, n_near, n_together = comparison.probes, 0, 0
    for start in range(0, len(members.rows), BLOCK_ROWS):
        stop = start + BLOCK_ROWS
        found = near(rows_between(members.X, start, stop), probes.X, comparison.threshold)
        found &= members.rows[start:stop, None] != probes.rows
        n_near += int(found.sum())
        n_together += int((found & (members.labels[start:stop, None] == probes.labels)).sum())
    return n_near, n_together
