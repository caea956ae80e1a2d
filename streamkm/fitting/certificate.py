"""What the sample promised, what another round could gain, and centers for that round.

The pass that assigns all rows knows their objective and draws rows by their share of it: what the sample missed is
among them. Reads no source.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import Totals, merged
from streamkm.cluster.center_index import FEWEST_CENTERS
from streamkm.cluster.center_table import CenterTable
from streamkm.cluster.draws import Drawn, DrawRule, combined
from streamkm.cluster.frame import Frame
from streamkm.cluster.in_memory import LocalBlocks, nearest_in
from streamkm.cluster.init import local_search
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.model import Model
from streamkm.cluster.neighbours import Neighbourhood
from streamkm.cluster.polish import POLISH_STEPS, POLISH_TOL, original_centers, polish
from streamkm.cluster.row_sample import Sample, as_block_matrix
from streamkm.cluster.rows import NO_WEIGHTS, Block, add_rows, row_d2, row_d2norms
from streamkm.cluster.spherical import on_sphere, placed_in
from streamkm.cluster.split_merge import split_gains, swaps_of
from streamkm.compute import Executor
from streamkm.core.matrix import Matrix, rows_between
from streamkm.kernels.cluster.totals import row_products, weighted_sum
from streamkm.kernels.intrinsics.hashing import hash_places
from streamkm.sketches import IdentitySketch

FEW_PROMISE_ROWS, PROMISE_ROWS = 2500, 10_000  # of the sample, whose objective is what it promises; more if unsure
WORTH = 0.01  # share of the objective that another round should gain, at least
SURE = 0.005  # share of a promised objective that its error may be, where it is trusted,
PRECISE = 0.002  # and where no more rows are looked at
CERTAINTY = 2.0  # standard errors that an estimate is lowered by
SPLIT_ENTRIES = 1 << 22  # of the halves that are looked at, at most, over 2
CARRIED_ON = 0.6  # share of their way that means are carried on by, where nothing is searched
MOST_SWAPS = 256  # looked at
FEWEST_CLUSTERS = 3  # of which one may be split and two others merge
CERTAIN = 0.9  # probability from which a row is in both halves of what was drawn
ROWS_PER_CLUSTER = 50  # without so many, centers are not moved to means of drawn rows, which would fit these rows
HALVES_SEED = 0x9E3779B97F4A7C15  # of the hash that cuts drawn rows in two halves

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Promise:
    """The objective that the sample promises for all rows.

    Attributes
    ----------
    inertia : float
    error : float
        Standard error of it; 0 where the sample holds all rows.
    """

    inertia: float
    error: float

    def times(self, factor: float) -> Promise:
        """The same of so many times the weight."""
        return Promise(factor * self.inertia, factor * self.error)

    def is_kept(self, inertia: float) -> bool:
        """Whether it was sure, and the objective is what it said."""
        sure = self.error <= SURE * self.inertia
        return sure and abs(inertia - self.inertia) <= max(CERTAINTY * self.error, SURE * self.inertia)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What another round could gain, by rows drawn in the pass before.

    Attributes
    ----------
    by_moving : float
        Share of the objective that clusters gain by their own means as centers.
    by_swaps : float
        Share, estimated from below, that is gained where some split in two pay for others that merge.
    swaps : tuple of (int, int)
        Clusters to split, each with the one to give up.
    halves : tuple of float64 (2, m)
        Means of the two halves of each cluster that is to be split.
    """

    by_moving: float
    by_swaps: float = 0.0
    swaps: tuple[tuple[int, int], ...] = ()
    halves: tuple[NDArray[np.float64], ...] = ()

    @property
    def gain(self) -> float:
        """The larger share."""
        return max(self.by_moving, self.by_swaps)


def promise_of(here: Executor, sample: Sample, model: Model, total_weight: float) -> Promise:
    """What the sample promises: a few rows of it, or more where these leave it unsure. O(PROMISE_ROWS * d * k).

    Parameters
    ----------
    sample : Sample
        Original rows.
    total_weight : float
        Of all rows.
    """
    table, d2, n_sampled = model.table(), np.empty(0), len(sample.rows)
    whole = sample.complete and n_sampled <= PROMISE_ROWS
    for n_rows in (PROMISE_ROWS,) if whole else (FEW_PROMISE_ROWS, PROMISE_ROWS):
        X = model.place(rows_between(sample.X, len(d2), n_rows))
        d2 = np.concatenate([d2, row_d2(X, nearest_in(here, X, table, "promise"), table)])
        promise = _promised(sample, d2, total_weight)
        if promise.error <= PRECISE * promise.inertia or len(d2) == n_sampled:
            break
    return promise


def _promised(sample: Sample, d2: NDArray[np.float64], total_weight: float) -> Promise:
    """The same by squared distances of the first rows."""
    weights = sample.weights[: len(d2)] if len(sample.weights) else np.ones(len(d2))
    mean = float(weighted_sum(weights, d2)) / float(weights.sum())
    if sample.complete and len(d2) == len(sample.rows):
        return Promise(total_weight * mean, 0.0)
    spread = float(np.sqrt(weighted_sum(np.square(weights), np.square(d2 - mean)))) / float(weights.sum())
    return Promise(total_weight * mean, total_weight * spread)


@dataclass(frozen=True, slots=True)
class Merging:
    """What it costs to give up clusters, at most: all rows of each go to one other.

    Drawn rows do not tell: those of a small cluster lie near its center, and few are drawn.

    Attributes
    ----------
    means : float64 (k, m)
        Of the clusters, around the origin.
    counts : float64 (k,)
        Rows, or their weight.
    """

    means: NDArray[np.float64]
    counts: NDArray[np.float64]

    def costs(self) -> NDArray[np.float64]:
        """For each cluster, where all others stay (k,)."""
        table = CenterTable.build(self.means, np.float64, around_origin=True)
        if table.n_clusters < FEWEST_CENTERS:
            seconds = table.nearest(self.means)[2]
        else:  # one near by may cost more than the cheapest, not less
            own = np.arange(table.n_clusters, dtype=np.int32)
            seconds = Neighbourhood.of(table).nearest(self.means, own)[2]
        return np.maximum(seconds + _squares(self.means), 0.0) * self.counts

    def cost_of(self, given_up: list[int]) -> float:
        """For several together."""
        left = np.delete(self.means, given_up, axis=0)
        rows, table = self.means[given_up], CenterTable.build(left, np.float64)
        return float(weighted_sum(self.counts[given_up], row_d2(rows, table.labels(rows), table)))


@dataclass(frozen=True, slots=True)
class AfterPass:
    """What an assign pass leaves, to look further from.

    Attributes
    ----------
    here : Executor
        Of this process.
    model : Model
        Its centers made the labels.
    frame : Frame
        In which clusters are looked for.
    totals : Totals
        Of all rows.
    rule : DrawRule or None
    drawn : Drawn or None
        Rows that the pass drew by it, in the model's space; None where there was no room for them.
    spherical : bool
        Whether centers are to have unit length.
    """

    here: Executor
    model: Model
    frame: Frame
    totals: Totals
    rule: DrawRule | None
    drawn: Drawn | None
    spherical: bool = False

    def outlook(self, promise: Promise | None) -> Outlook:
        """Estimate from below what another round could gain. O(r * m * k) for r drawn rows.

        One half of the drawn rows says which clusters to split and which to give up; the other half, which had no part
        in that, says what it gains. Rows that were sure to be drawn stand for no others: both halves have them. What
        clusters gain by moving to their means is known exactly. Where the promise is kept, nothing was missed.
        """
        model, totals, drawn, rule = self.model, self.totals, self.drawn, self.rule
        if totals.d2 <= 0:
            return Outlook(0.0)
        means, by_moving = self._moved()
        if rule is None or drawn is None or (promise is not None and promise.is_kept(totals.d2)):
            return Outlook(by_moving)
        block, centers, shift = self._framed(drawn.X, rule.unbiased(drawn), model.centers)
        table = CenterTable.build(centers, block.X.dtype, around_origin=True)
        labels = nearest_in(self.here, block.X, table, "search")
        d2 = row_d2(block.X, labels, table)
        chances = rule.probabilities(drawn.weights, drawn.d2, drawn.limit)
        certain, first = chances > CERTAIN, _first_half(drawn.places)
        chosen, judged = np.flatnonzero(first | certain), np.flatnonzero(~first | certain)
        if not len(chosen) or not len(judged) or len(centers) < FEWEST_CLUSTERS:
            return Outlook(by_moving)
        times = np.where(certain, 1.0, 2.0)
        half, other = _part(block, chosen, times), _part(block, judged, times)
        merging = Merging(self.frame.points(means) - shift, totals.counts)
        most = max(1, min(MOST_SWAPS, len(centers), SPLIT_ENTRIES // centers.shape[1]))
        rng = np.random.default_rng(rule.seed)
        gains, pairs = self._splits(half, labels[chosen], d2[chosen] * half.weights, len(centers), rng)
        swaps = swaps_of(gains, merging.costs(), most, set())
        halves = {
            split: self._placed(self._halves(half, np.flatnonzero(labels[chosen] == split), pairs[split]), shift)
            for split, _ in swaps
        }
        unsure = 1 - (chances / times)[judged]
        each = [_gained(other, (labels[judged], d2[judged]), split, halves[split]) for split, _ in swaps]
        best, n_best = 0.0, 0
        for n_swaps in sorted({*(2**power for power in range(len(swaps).bit_length())), len(swaps)} - {0}):
            gained = np.sum(each[:n_swaps], axis=0)
            lower = float(gained.sum() - CERTAINTY * np.sqrt(weighted_sum(unsure, np.square(gained))))
            lower -= merging.cost_of([given_up for _, given_up in swaps[:n_swaps]])
            if lower > best:
                best, n_best = lower, n_swaps
        by_swaps = best / self.frame.scale / self.frame.scale / totals.d2
        kept = tuple(swaps[:n_best])
        return Outlook(by_moving, by_swaps, kept, tuple(halves[split] for split, _ in kept))

    def _moved(self) -> tuple[NDArray[np.float64], float]:
        """Where centers belong, the clusters' means or their directions (k, m), and what moving there gains at least.

        A share of the objective: of rows of unit length with the sum s, ``2 (|s| - s.c)`` in place of the squared
        distance between mean and center for each row.
        """
        centers, totals = self.model.centers, self.totals
        means = totals.means(fallback=centers)
        if not self.spherical:
            return means, float(weighted_sum(totals.counts, _squares(means - centers))) / totals.d2
        directions = on_sphere(means)
        lengths = np.sqrt(_squares(means))
        return directions, float(weighted_sum(totals.counts * lengths, _squares(directions - centers))) / totals.d2

    def _placed(self, halves: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """Means of halves, in the frame and around `shift`, where centers may be (2, m)."""
        return placed_in(self.frame)(halves + shift) - shift if self.spherical else halves

    def next_centers(
        self, sample: Sample, own_weights: NDArray[np.float64], found: Outlook, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Centers for another round (k, m): the search goes on, on the sample and the rows that were drawn.

        Parameters
        ----------
        sample : Sample
            Original rows, drawn evenly, or by weight.
        own_weights : float64 (s,)
            Weights of the sampled rows themselves.
        """
        start = self.totals.means(fallback=self.model.centers)
        both = self._joined(sample, own_weights)
        if both.n_rows < ROWS_PER_CLUSTER * len(start):
            return self.swapped(found)
        framed = not self._is_sketched(both.X)
        block, centers, shift = self._searched(both.X, both.weights, start)
        pieces = LocalBlocks.of(self.here, block)
        begun = LloydResult(centers, float("nan"), 0, False, ())
        result = local_search(block, pieces, begun, rng=rng)
        rows = Sample(self.frame.rows(both.X) if framed else both.X, both.places, both.weights, sample.complete)
        searched = result.centers + shift
        if not framed:
            searched, _ = original_centers(self.here, rows, block, result.centers)
        if len(searched) < len(start):
            return start
        polished = polish(self.here, rows, searched, max_iter=POLISH_STEPS, tol=POLISH_TOL).centers
        return self.frame.originals(polished) if framed else polished

    def _joined(self, sample: Sample, own_weights: NDArray[np.float64]) -> Drawn:
        """Sampled and drawn rows as one drawing."""
        X, drawn, model = as_block_matrix(self.model.place(sample.X), sketched=False), self.drawn, self.model
        if sample.complete or drawn is None or self.rule is None:
            return Drawn(X, sample.rows, own_weights, NO_WEIGHTS, NO_WEIGHTS, np.inf)
        table = model.table()
        if model.far:
            shares = table.labels_and_shares(X, row_d2norms(X))[1]
        else:
            shares = row_d2(X, nearest_in(self.here, X, table, "draws"), table)
        # rows of weight w are in the sample with probability 1 - exp(-limit w)
        chance = own_weights[0] / sample.weights[0] if len(sample.weights) else X.shape[0] / self.totals.counts.sum()
        limit = float(-np.log1p(-min(chance, 1 - 1e-12)) / own_weights[0])
        evenly = DrawRule(len(shares), 0, 1.0, 0.0)
        taken = Drawn(X, sample.rows, own_weights, shares, NO_WEIGHTS, limit)
        drawn = replace(drawn, X=as_block_matrix(drawn.X, sketched=False))
        shares = np.concatenate([shares, drawn.d2])
        return combined([evenly, self.rule], [taken, drawn], [shares, shares])

    def swapped(self, found: Outlook, *, carried_on: bool = False) -> NDArray[np.float64]:
        """Means of all rows as centers, but for clusters that are split and those given up for it (k, m).

        Parameters
        ----------
        carried_on : bool
            Means are carried on by a share of their last way, as in an accelerated run of Lloyd's algorithm: worth it
            where another pass may follow.
        """
        start = self.totals.means(fallback=self.model.centers)
        if carried_on:
            start += CARRIED_ON * (start - self.model.centers)
        if not found.swaps or self.drawn is None:
            return start
        centers = self.frame.points(start)
        shift = self._shift(self.drawn.X)
        for (split, given_up), halves in zip(found.swaps, found.halves, strict=True):
            centers[[split, given_up]] = halves + shift
        return self.frame.originals(centers)

    def _searched(
        self, X: Matrix, weights: NDArray[np.float64], centers: NDArray[np.float64]
    ) -> tuple[Block, NDArray[np.float64], NDArray[np.float64]]:
        """Rows and centers where clusters are looked for, and what was taken from both; see `_is_sketched`."""
        if self._is_sketched(X):
            X = as_block_matrix(merged(self.model.sketch.apply(X)))
            centers = np.asarray(self.model.sketch.apply(centers), np.float64)
            return Block(X, row_d2norms(X), weights), centers, np.zeros(centers.shape[1])
        return self._framed(X, weights, centers, exactly=False)

    def _framed(
        self, X: Matrix, weights: NDArray[np.float64], centers: NDArray[np.float64], *, exactly: bool = True
    ) -> tuple[Block, NDArray[np.float64], NDArray[np.float64]]:
        """Rows and centers in the frame, dense ones around the origin; and what was taken from both.

        In float64, or in the dtype of products.
        """
        X, centers = as_block_matrix(self.frame.rows(X), sketched=False), self.frame.points(centers)
        shift = self._shift(X)
        if isinstance(X, np.ndarray):
            X = np.subtract(X, shift, dtype=np.float64 if exactly else X.dtype, casting="same_kind")
        return Block(X, row_d2norms(X), weights), centers - shift, shift

    def _shift(self, X: Matrix) -> NDArray[np.float64]:
        """What is taken from rows in the frame: from dense ones the mean of the centers."""
        if isinstance(X, np.ndarray):
            return np.asarray(self.frame.points(self.model.centers).mean(axis=0), np.float64)
        return np.zeros(self.model.centers.shape[1])

    def _splits(
        self,
        half: Block,
        labels: NDArray[np.int32],
        d2: NDArray[np.float64],
        n_clusters: int,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What splitting each cluster gains (k,), and the halves (k, 2, m); of wide sparse rows in the sketch."""
        if self._is_sketched(half.X):
            X = as_block_matrix(merged(self.model.sketch.apply(half.X)))
            half = Block(X, row_d2norms(X), half.weights)
        return split_gains(self.here, half, labels, d2, n_clusters, rng, {})

    def _halves(self, half: Block, rows: NDArray[np.intp], pair: NDArray[np.float64]) -> NDArray[np.float64]:
        """The halves of one cluster in the model's space (2, m)."""
        if not self._is_sketched(half.X):
            return pair
        X = half.X[rows]
        sketched = as_block_matrix(merged(self.model.sketch.apply(X)))
        labels = CenterTable.build(pair, sketched.dtype, around_origin=True).labels(sketched)
        totals = Totals.zeros(2, self.model.centers.shape[1])
        add_rows(X, half.weights[rows], labels, totals.sums, totals.counts)
        return totals.means(fallback=np.zeros(totals.sums.shape))

    def _is_sketched(self, X: Matrix) -> bool:
        """Whether clusters of these rows are looked for in the sketch: wide sparse ones."""
        wide = self.model.space == "original" and not isinstance(self.model.sketch, IdentitySketch)
        return wide and not isinstance(X, np.ndarray)


def _squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared norms of rows (k,), in an order that no processor changes."""
    out = np.empty(len(rows))
    rows = np.ascontiguousarray(rows)
    row_products(rows, rows, out)
    return out


def _part(block: Block, rows: NDArray[np.intp], times: NDArray[np.float64]) -> Block:
    """Some rows of a block, their weights multiplied, which stand for the whole."""
    return Block(block.X[rows], block.d2norms[rows], times[rows] * block.weights[rows])


def _first_half(places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of two halves each row belongs to, by its place."""
    hashes = np.empty(len(places), np.int64)
    hash_places(np.uint64(HALVES_SEED), places, hashes)
    return (hashes & 1) == 0


def _gained(
    block: Block,
    assigned: tuple[NDArray[np.int32], NDArray[np.float64]],
    split: int,
    halves: NDArray[np.float64],
) -> NDArray[np.float64]:
    """What every row gains, by its weight, if one cluster is split in these halves (r,).

    Parameters
    ----------
    assigned : (int32 (r,), float64 (r,))
        Labels, and squared distances to their centers.
    """
    labels, d2 = assigned
    out = np.zeros(len(labels))
    inside = np.flatnonzero(labels == split)
    if len(inside):
        X = block.X[inside]
        table = CenterTable.build(halves, X.dtype, around_origin=True)
        out[inside] = d2[inside] - row_d2(X, table.labels(X), table)
    return out * block.weights
