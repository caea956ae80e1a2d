"""Comparison of buckets: rows to remove, numbers of pairs, and near pairs that clusters separate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import densified, row_d2, row_d2norms
from streamkm.core.matrix import Matrix, rows_between
from streamkm.deduplication.buckets import Buckets, Members

BLOCK_ROWS = 256  # compared with others at a time
PANEL_ROWS = 4096  # of those others
EXACT_PAIRS = 4096  # whose cosines are found again at a time, at most


def kept_rows(X: Matrix, threshold: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Decide which rows stay: a row goes if its cosine to one kept before it is at least the threshold. O(s * r * d).

    The second half of the s rows is compared with the r kept of the first, then within itself, with a copy of the rows
    and `BLOCK_ROWS` x `PANEL_ROWS` products in memory. Doubtful products are found in float64, in a fixed order of
    sums, so the result depends on the rows alone. `X` (s, d): unit rows, in the order of preference. Returns kept bool
    (s,), and int64 (s,), for each row the first kept one near it, or itself.
    """
    n_rows = X.shape[0]
    kept, nearby = np.ones(n_rows, np.bool_), np.arange(n_rows)
    if n_rows > BLOCK_ROWS:
        half = n_rows // 2
        kept[:half], nearby[:half] = kept_rows(rows_between(X, 0, half), threshold)
        before, left = np.flatnonzero(kept[:half]), np.arange(half, n_rows)
        found = first_near(rows_between(X, half, n_rows), X[before], threshold)
        nearby[left[found >= 0]] = before[found[found >= 0]]
        kept[left], left = found < 0, left[found < 0]
        kept[left], inside = kept_rows(X[left], threshold)
        nearby[left] = left[inside]
        return kept, nearby
    alike = near(X, X, threshold)
    for i in range(n_rows):
        if kept[i]:
            goes = alike[i] & kept
            goes[: i + 1] = False
            nearby[goes] = i
            kept &= ~goes
    return kept, nearby


def first_near(X: Matrix, Y: Matrix, threshold: float) -> NDArray[np.int64]:
    """The first row of Y whose cosine to each row of X is at least the threshold; -1 where none is. O(a * b * d)."""
    out = np.full(X.shape[0], -1)
    for start in range(0, X.shape[0], BLOCK_ROWS):
        block = rows_between(X, start, start + BLOCK_ROWS)
        left = np.arange(block.shape[0])
        for first in range(0, Y.shape[0], PANEL_ROWS):
            found = near(block[left], rows_between(Y, first, first + PANEL_ROWS), threshold)
            goes = found.any(axis=1)
            out[start + left[goes]] = first + found[goes].argmax(axis=1)
            left = left[~goes]
    return out


def near_pairs(X: Matrix, Y: Matrix, threshold: float) -> NDArray[np.int64]:
    """Pairs of a row of X and one of Y whose cosine is at least the threshold (p, 2). O(a * b * d)."""
    pairs = [np.empty((0, 2), np.int64)]
    for start in range(0, X.shape[0], BLOCK_ROWS):
        block = rows_between(X, start, start + BLOCK_ROWS)
        for first in range(0, Y.shape[0], PANEL_ROWS):
            found = near(block, rows_between(Y, first, first + PANEL_ROWS), threshold)
            pairs.append(np.argwhere(found) + np.array([start, first]))
    return np.concatenate(pairs)


def near(X: Matrix, Y: Matrix, threshold: float) -> NDArray[np.bool_]:
    """Whether rows of X (a, d) and Y (b, d) have a cosine of at least the threshold (a, b). O(a * b * d).

    Both are of one kind, of unit rows, or rows of zeros, whose cosine to anything is 0.
    """
    products = X @ Y.T
    if not isinstance(products, np.ndarray):
        products = products.toarray()
    doubt = _doubt(X)
    found: NDArray[np.bool_] = products >= threshold + doubt
    first, second = np.nonzero(np.abs(products - threshold) < doubt)
    for start in range(0, len(first), EXACT_PAIRS):
        rows, others = first[start : start + EXACT_PAIRS], second[start : start + EXACT_PAIRS]
        found[rows, others] = _cosines(X, Y, rows, others) >= threshold
    return found


def count_compared(kept: NDArray[np.bool_]) -> int:
    """Pairs that `kept_rows` compares row by row: each row with those kept before it."""
    return int((np.cumsum(kept) - kept).sum())


def _doubt(X: Matrix) -> float:
    """Bound of the error of a cosine as a product of two unit rows."""
    # p u / (1 - p u) of the lengths for p products in any order of sums, u the unit roundoff (Higham, Accuracy and
    # Stability of Numerical Algorithms, section 3.1); lengths are off by some u themselves
    n_products = X.shape[1] if isinstance(X, np.ndarray) else int(np.diff(X.indptr).max(initial=0))
    return float((1.05 * n_products + 64) * np.finfo(X.dtype).eps / 2)


def _cosines(X: Matrix, Y: Matrix, rows: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.float64]:
    """Cosines of pairs of rows (p,), by squared distances and norms in float64, with a fixed order of sums."""
    distinct, at = np.unique(others, return_inverse=True)
    centers = densified(Y, distinct, X.shape[1])
    first = X[rows]
    d2 = row_d2(first, at.astype(np.int32), NearestCenters.build(centers, np.float64))
    norms, other_norms = row_d2norms(first), row_d2norms(centers)[at]
    scale = np.sqrt(norms * other_norms)
    products = (norms + other_norms - d2) / 2
    return np.divide(products, scale, out=np.zeros(len(d2)), where=scale > 0)


@dataclass(slots=True)
class Compared:
    """Results of all comparisons so far."""

    removed: NDArray[np.bool_]  # (n,)
    needed: NDArray[np.bool_]  # rows that must stay, as removed ones are near them (n,)
    done: NDArray[np.bool_]  # clusters that were compared (k,)
    # guests and rows that were kept, at the threshold or above (p, 2), in parts
    pairs: list[NDArray[np.int64]] = field(default_factory=list)
    # pairs that were compared; pairs of a probe and another row at the threshold or above; those of them in the first
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))

    def joined(self) -> Compared:
        """Join all pairs in one array."""
        self.pairs = [np.concatenate([np.empty((0, 2), np.int64), *self.pairs])]
        return self

    def finish(self) -> None:
        """Remove rows that are near one of another cluster, at the end: the first of two stays, or a needed one."""
        (pairs,) = self.joined().pairs
        pairs = pairs[~self.removed[pairs].any(axis=1)]
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        pairs = pairs[~self.needed[pairs[:, 0]]]  # the first of each may go
        for row, other in pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))].tolist():
            if self.needed[other] or (other < row and not self.removed[other]):
                self.removed[row] = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """Settings and results of comparisons."""

    centers: NDArray[np.float64]  # (k, d)
    threshold: float  # cosine
    farthest: bool  # whether rows far from the center come first
    probes: Members  # rows that are compared with all others
    bucket_of: NDArray[np.int64]  # (k,)
    told: Compared


def compare_bucket(
    bucket: int, buckets: Buckets, comparison: Comparison
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compare the rows of each cluster of a bucket, kept ones with its guests, and all with the probes.

    A large cluster, alone in its bucket, is compared by pieces, with the same result. Repeated calls mark the same
    rows. Returns pairs and counts, as of `Compared`.
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
    """Pairs and counts of a bucket, by order within its `pieces`, which also store kept rows; `parts` has guests."""
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
    """Near pairs of probes with these rows, and the compared ones of them."""
    probes, counts = comparison.probes, np.zeros(2, np.int64)
    for start in range(0, len(members.rows), BLOCK_ROWS):
        part = members[start : start + BLOCK_ROWS]
        labels, others = part.labels[:, None], part.others[:, None]
        found = near(part.X, probes.X, comparison.threshold) & (part.rows[:, None] != probes.rows)
        together = (labels == probes.labels) | (others == probes.labels) | (labels == probes.others)
        counts += found.sum(), (found & together).sum()
    return counts
