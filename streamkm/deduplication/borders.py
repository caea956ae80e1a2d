"""Rows near the border of their cluster: guests of the one behind it, which may hold their near-duplicates.

Knows no source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import row_d2
from streamkm.core.matrix import rows_between
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map
from streamkm.passes.reader import ValidRows

WAITING = 6  # chunks whose rows wait to be put to their clusters, or are being put there
SCORE_BYTES = 1 << 24  # of distances to all centers that are held at a time
DEVIATIONS = 3.0  # of the way that near-duplicates in random directions lie apart across a border


Bordering: TypeAlias = tuple[Any, NDArray[np.int64], int, NDArray[np.int32], NDArray[np.int32]]
"""Valid rows of a chunk, their numbers in it, its rows, and each valid row's nearest and second nearest cluster."""


@dataclass(frozen=True, slots=True)
class BorderRows(Map[Bordering]):
    """The rows of each chunk, and between which clusters they lie."""

    large = True

    table: NearestCenters
    width: float  # share of the distance between two centers that products of guests with them may differ by

    @classmethod
    def of(cls, centers: NDArray[np.float64], threshold: float) -> BorderRows:
        """Borders of spherical clusters (k, d) of rows whose near-duplicates have a cosine of at least the threshold.

        Rows x and y on both sides of the border between centers a and b: ``(x - y) @ (a - b)`` is at most
        ``|x - y| |a - b|``, and has a standard deviation of ``1 / sqrt(d)`` of that for random directions. One of them
        lies at most half as far from the border.
        """
        apart = float(np.sqrt(2.0 - 2.0 * threshold))
        width = apart / 2 * min(1.0, DEVIATIONS / centers.shape[1] ** 0.5)
        return cls(NearestCenters.build(centers, np.float32), width)

    @staticmethod
    def memory(chunk_bytes: int) -> PassMemory:
        """Memory of rows that wait to be put to their clusters, and of a chunk's rows at unit length in each call."""
        return PassMemory(kept=WAITING * chunk_bytes, call=2 * chunk_bytes)

    def output(self, rows: ValidRows) -> Bordering:
        """Rows of one chunk; the second nearest cluster is -1 for those far from the border. O(n * k * d)."""
        n_rows, k = rows.X.shape[0], self.table.n_clusters
        nearest, second = np.zeros(n_rows, np.int32), np.full(n_rows, -1, np.int32)
        step = max(1, SCORE_BYTES // (4 * k))
        for start in range(0, n_rows if k > 1 else 0, step):
            part = rows_between(rows.X, start, min(start + step, n_rows))
            scores, each = self.table.scores(part), np.arange(part.shape[0])
            first = scores.argmin(axis=1).astype(np.int32)
            lowest = scores[each, first].copy()
            scores[each, first] = np.inf
            other = scores.argmin(axis=1).astype(np.int32)
            pairs, pair_of = np.unique(np.stack([first, other]), axis=1, return_inverse=True)
            # one at a time, as centers may have many features
            d2 = [row_d2(self.table.centers[[a]], pairs[1:, at], self.table)[0] for at, a in enumerate(pairs[0])]
            # squared distances differ by twice the products
            behind = scores[each, other] - lowest <= 2.0 * self.width * np.sqrt(d2)[pair_of]
            nearest[start : start + step] = first
            second[start : start + step] = np.where(behind, other, -1)
        return rows.X, rows.numbers, rows.n_read, nearest, second


def invited(
    own: NDArray[np.int32], nearest: NDArray[np.int32], second: NDArray[np.int32], room: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Clusters that the next rows are guests of, or -1 (n,).

    Parameters
    ----------
    own : int32 (n,)
        Their clusters: the nearest, or another one where that was full.
    nearest, second : int32 (n,)
        As of `BorderRows.output`.
    room : int64 (k,)
        Guests that each cluster may still have; lowered.
    """
    others = np.where(nearest == own, second, nearest).astype(np.int32)
    others[others == own] = -1
    rows = np.flatnonzero(others >= 0)
    order = rows[np.argsort(others[rows], kind="stable")]
    hosts = others[order]
    starts = np.flatnonzero(np.diff(hosts, prepend=-1))
    counts = np.diff(starts, append=len(hosts))
    before = np.arange(len(hosts)) - np.repeat(starts, counts)
    others[order[before >= room[hosts]]] = -1
    room[hosts[starts]] -= np.minimum(counts, room[hosts[starts]])
    return others
