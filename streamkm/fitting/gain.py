"""The gain of another round, estimated on rows that the assign pass drew, and centers for that round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.centers.neighbours import Neighbourhood
from streamkm.cluster.in_memory import nearest_in
from streamkm.cluster.model import Model
from streamkm.cluster.normalization import Normalization, on_sphere
from streamkm.cluster.rows import Block, Totals, add_rows, row_d2, row_d2norms
from streamkm.cluster.sampling.row_sample import as_block_matrix
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.seeding.split_merge import split_gains, swaps_of
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.engine import Executor
from streamkm.fitting.state import CERTAINTY, InertiaEstimate
from streamkm.kernels.cluster.totals import row_products, weighted_sum
from streamkm.kernels.intrinsics.hashing import hash_integers

SPLIT_ENTRIES = 1 << 22  # of the halves that are judged, at most, over 2
CARRIED_ON = 0.6  # share of their last way by which means move on if nothing is searched
MOST_SWAPS = 256  # judged
FEWEST_CLUSTERS = 3  # of which one may be split and two others merge
CERTAIN = 0.9  # probability from which a drawn row is in both halves
HALVES_SEED = 0x9E3779B97F4A7C15  # of the hash that cuts drawn rows in two halves
ULP = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class GainEstimate:
    """The gain of another round, estimated on rows drawn in the pass before."""

    by_moving: float  # share of the objective that clusters gain by their own means as centers
    # share, estimated from below, that is gained if some split in two and others merge
    by_swaps: float = 0.0
    swaps: tuple[tuple[int, int], ...] = ()  # tuple of (int, int), clusters to split, each with the one to give up
    # tuple of float64 (2, m), means of the two halves of each cluster that is to be split
    halves: tuple[NDArray[np.float64], ...] = ()

    @property
    def gain(self) -> float:
        """The larger share."""
        return min(1.0, max(self.by_moving, self.by_swaps))


@dataclass(frozen=True, slots=True)
class GlobalSearch:
    """Results of an assign pass from which the search goes on."""

    here: Executor  # of this process
    model: Model  # its centers made the labels
    normalization: Normalization  # of rows in the model's space, for the search
    totals: Totals  # of all rows
    rule: DrawRule | None
    drawn: Drawn | None  # rows that the pass drew by it, in the model's space; None without room for them
    spherical: bool = False  # whether centers are to have unit length

    def estimate(self, inertia: InertiaEstimate | None, n_rows: int) -> GainEstimate:
        """Estimate from below what another round could gain. O(r * m * k) for r drawn rows.

        One half of the drawn rows chooses the clusters to split and to give up; the other half estimates the gain. Rows
        that were certain to be drawn are in both halves. The gain of moving clusters to their means is known exactly. A
        gain below the rounding of `n_rows` rows and their means counts as none.
        """
        model, totals, drawn, rule = self.model, self.totals, self.drawn, self.rule
        if totals.d2 <= 0:
            return GainEstimate(0.0)
        means, by_moving = self._moved()
        # sums of n values of one sign lose up to n / 4 units of their last place, and means with them; rows are rounded
        # to their own dtype where clusters are looked for
        eps = np.finfo(np.float64 if drawn is None else working_dtype(drawn.X.dtype)).eps / self.normalization.scale
        rounded = squares(model.centers) * (n_rows * ULP / 4) ** 2
        rounded += squares(self.normalization.points(model.centers)) * eps**2
        lost = float(weighted_sum(totals.counts, rounded)) / totals.d2
        by_moving *= by_moving > lost
        if rule is None or drawn is None or (inertia is not None and inertia.is_kept(totals.d2)):
            return GainEstimate(by_moving)
        block, centers, shift = self.normalized(drawn.X, rule.unbiased(drawn), model.centers)
        table = NearestCenters.build(centers, block.X.dtype, around_origin=True)
        labels = nearest_in(self.here, block.X, table, "search")
        d2 = row_d2(block.X, labels, table)
        chances = rule.probabilities(drawn.weights, drawn.d2, drawn.limit)
        hashes, certain = np.empty(len(drawn.row_ids), np.int64), chances > CERTAIN
        hash_integers(np.uint64(HALVES_SEED), drawn.row_ids, hashes)
        first = (hashes & 1) == 0
        chosen, judged = np.flatnonzero(first | certain), np.flatnonzero(~first | certain)
        if not len(chosen) or not len(judged) or len(centers) < FEWEST_CLUSTERS:
            return GainEstimate(by_moving)
        times = np.where(certain, 1.0, 2.0)
        half, other = part_of(block, chosen, times), part_of(block, judged, times)
        means = self.normalization.points(means) - shift
        most = max(1, min(MOST_SWAPS, len(centers), SPLIT_ENTRIES // centers.shape[1]))
        rng, share = np.random.default_rng(rule.seed), d2[chosen] * half.weights
        gains, pairs = self._splits(half, labels[chosen], share, len(centers), rng)
        swaps = swaps_of(gains, merge_costs(means, totals.counts), most, set())
        halves = {
            split: self._halves(half, np.flatnonzero(labels[chosen] == split), pairs[split], shift)
            for split, _ in swaps
        }
        unsure = 1 - (chances / times)[judged]
        each = [gained_by(other, (labels[judged], d2[judged]), split, halves[split]) for split, _ in swaps]
        best, n_best = 0.0, 0
        for n_swaps in sorted({*(2**power for power in range(len(swaps).bit_length())), len(swaps)} - {0}):
            gained = np.sum(each[:n_swaps], axis=0)
            lower = float(gained.sum() - CERTAINTY * np.sqrt(weighted_sum(unsure, np.square(gained))))
            lower -= cost_of_all(means, totals.counts, [given_up for _, given_up in swaps[:n_swaps]])
            if lower > best:
                best, n_best = lower, n_swaps
        by_swaps = best / self.normalization.scale / self.normalization.scale / totals.d2
        if by_swaps <= lost:
            return GainEstimate(by_moving)
        return GainEstimate(by_moving, by_swaps, tuple(swaps[:n_best]), tuple(halves.values())[:n_best])

    def _moved(self) -> tuple[NDArray[np.float64], float]:
        """The clusters' means, or their directions (k, m), and a lower bound on the share that moving there gains.

        For unit rows with the sum s, ``2 (|s| - s.c)`` replaces the squared distance of mean and center for each row.
        """
        centers, totals = self.model.centers, self.totals
        means = totals.means(fallback=centers)
        if not self.spherical:
            return means, float(weighted_sum(totals.counts, squares(means - centers))) / totals.d2
        directions, weights = on_sphere(means), totals.counts * np.sqrt(squares(means))
        return directions, float(weighted_sum(weights, squares(directions - centers))) / totals.d2

    def swapped(self, found: GainEstimate, *, carried_on: bool = False) -> NDArray[np.float64]:
        """Means of all rows as centers, except for clusters that are split and those given up for it (k, m).

        If `carried_on`, means move on by a share of their last way, as in accelerated Lloyd.
        """
        start = self.totals.means(fallback=self.model.centers)
        if carried_on:
            start += CARRIED_ON * (start - self.model.centers)
        if not found.swaps or self.drawn is None:
            return start
        centers = self.normalization.points(start)
        shift = self._shift(self.drawn.X)
        for (split, given_up), halves in zip(found.swaps, found.halves, strict=True):
            centers[[split, given_up]] = halves + shift
        return self.normalization.originals(centers)

    def normalized(
        self, X: Matrix, weights: NDArray[np.float64], centers: NDArray[np.float64], *, exactly: bool = True
    ) -> tuple[Block, NDArray[np.float64], NDArray[np.float64]]:
        """Normalized rows and centers, dense ones around the origin, in float64 if `exactly`; and the shift of both."""
        X, centers = as_block_matrix(self.normalization.rows(X), sketched=False), self.normalization.points(centers)
        shift = self._shift(X)
        if isinstance(X, np.ndarray):
            X = np.subtract(X, shift, dtype=np.float64 if exactly else X.dtype, casting="same_kind")
        return Block(X, row_d2norms(X), weights), centers - shift, shift

    def _shift(self, X: Matrix) -> NDArray[np.float64]:
        """The shift of normalized rows: the mean of the centers for dense ones, else 0."""
        if isinstance(X, np.ndarray):
            return np.asarray(self.normalization.points(self.model.centers).mean(axis=0), np.float64)
        return np.zeros(self.model.centers.shape[1])

    def _splits(
        self, half: Block, labels: NDArray[np.int32], d2: NDArray[np.float64], n_clusters: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The gain of splitting each cluster (k,), and the halves (k, 2, m); for wide sparse rows in the sketch."""
        if self.is_sketched(half.X):
            X = as_block_matrix(self.model.sketched(half.X))
            half = Block(X, row_d2norms(X), half.weights)
        return split_gains(self.here, half, labels, d2, n_clusters, rng, {})

    def _halves(
        self, half: Block, rows: NDArray[np.intp], pair: NDArray[np.float64], shift: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The halves of one cluster in the model's space (2, m), around `shift`, where centers may be."""
        if self.is_sketched(half.X):
            X = half.X[rows]
            sketched = as_block_matrix(self.model.sketched(X))
            labels = NearestCenters.build(pair, sketched.dtype, around_origin=True).labels(sketched)
            totals = Totals.zeros(2, self.model.centers.shape[1])
            add_rows(X, half.weights[rows], labels, totals.sums, totals.counts)
            pair = totals.means(fallback=np.zeros(totals.sums.shape))
        return self.normalization.on_sphere(pair + shift) - shift if self.spherical else pair

    def is_sketched(self, X: Matrix) -> bool:
        """Whether clusters of these rows are searched in the sketch, as for wide sparse ones."""
        wide = self.model.space == "original" and not self.model.sketch.is_identity
        return wide and not isinstance(X, np.ndarray)


def squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared norms of rows (k,), with the same bits on every processor."""
    out = np.empty(len(rows))
    rows = np.ascontiguousarray(rows)
    row_products(rows, rows, out)
    return out


def merge_costs(means: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The most that giving up each cluster costs (k,), by means (k, m) and weights (k,): all its rows go to one other.

    Drawn rows cannot show this: few are drawn from a small cluster, whose rows lie near its center.
    """
    table = NearestCenters.build(means, np.float64, around_origin=True)
    if table.n_clusters < FEWEST_CENTERS:
        seconds = table.nearest(means)[2]
    else:  # one near by may cost more than the cheapest, not less
        seconds = Neighbourhood.of(table).nearest(means, np.arange(table.n_clusters, dtype=np.int32))[2]
    return np.maximum(seconds + squares(means), 0.0) * counts


def cost_of_all(means: NDArray[np.float64], counts: NDArray[np.float64], given_up: list[int]) -> float:
    """The most that giving up several clusters together costs; see `merge_costs`."""
    rows, table = means[given_up], NearestCenters.build(np.delete(means, given_up, axis=0), np.float64)
    return float(weighted_sum(counts[given_up], row_d2(rows, table.labels(rows), table)))


def part_of(block: Block, rows: NDArray[np.intp], times: NDArray[np.float64]) -> Block:
    """Some rows of a block, with multiplied weights, which represent the whole."""
    return Block(block.X[rows], block.d2norms[rows], times[rows] * block.weights[rows])


def gained_by(
    block: Block, assigned: tuple[NDArray[np.int32], NDArray[np.float64]], split: int, halves: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The weighted gain of every row (r,) if one cluster is split in these halves; `assigned`: labels and d2."""
    labels, d2 = assigned
    out = np.zeros(len(labels))
    inside = np.flatnonzero(labels == split)
    if len(inside):
        X = block.X[inside]
        table = NearestCenters.build(halves, X.dtype, around_origin=True)
        out[inside] = d2[inside] - row_d2(X, table.labels(X), table)
    return out * block.weights
