"""What another round could gain, and centers for that round.

The pass that assigns all rows knows their objective and draws rows by their share of it: what the sample missed is
among them. Reads no source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.blocks import densified
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks, nearest_in
from streamkm.cluster.lloyd import LloydResult, filled, lloyd
from streamkm.cluster.model import Model
from streamkm.cluster.normalization import Normalization
from streamkm.cluster.polish import POLISH_STEPS, POLISH_TOL, original_centers, polish
from streamkm.cluster.rows import NO_WEIGHTS, Block, add_rows, row_d2, row_d2norms
from streamkm.cluster.sampling.row_sample import Sample, as_block_matrix, stacked
from streamkm.cluster.search.split_merge import split_gains, swaps_of
from streamkm.cluster.seeding.draws import NO_OBJECTIVE, Drawn, DrawRule, combined
from streamkm.cluster.seeding.init import Streams, best_start, local_search
from streamkm.cluster.seeding.search_set import Pool
from streamkm.cluster.spherical import on_sphere, placed_in
from streamkm.cluster.totals import Totals
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.engine import Executor
from streamkm.fitting.labelling.gain_estimate import (
    CERTAINTY,
    GainEstimate,
    Merging,
    first_half,
    gained_by,
    part_of,
    squares,
)
from streamkm.fitting.labelling.inertia_estimate import InertiaEstimate
from streamkm.kernels.cluster.totals import weighted_sum

WORTH = 0.01  # share of the objective that another round should gain, at least
# Such a share, from which starts are searched anew, too: the first ones were blind to much of the data. That means of
# the sample are not those of all rows costs less: with s rows a cluster, 1 / s of the objective.
ANEW = 0.05
SPLIT_ENTRIES = 1 << 22  # of the halves that are looked at, at most, over 2
CARRIED_ON = 0.6  # share of their way that means are carried on by, where nothing is searched
MOST_SWAPS = 256  # looked at
FEWEST_CLUSTERS = 3  # of which one may be split and two others merge
CERTAIN = 0.9  # probability from which a row is in both halves of what was drawn
ULP = float(np.finfo(np.float64).eps)
ROWS_PER_CLUSTER = 50  # without so many, centers are not moved to means of drawn rows, which would fit these rows


@dataclass(frozen=True, slots=True)
class GlobalSearch:
    """What an assign pass leaves, to look further from."""

    here: Executor  # of this process
    model: Model  # its centers made the labels
    frame: Normalization  # in which clusters are looked for, of rows in the model's space
    totals: Totals  # of all rows
    rule: DrawRule | None
    drawn: Drawn | None  # rows that the pass drew by it, in the model's space; None where there was no room for them
    spherical: bool = False  # whether centers are to have unit length

    def outlook(self, promise: InertiaEstimate | None, n_rows: int) -> GainEstimate:
        """Estimate from below what another round could gain. O(r * m * k) for r drawn rows.

        One half of the drawn rows says which clusters to split and which to give up; the other half, which had no part
        in that, says what it gains. Rows that were sure to be drawn stand for no others: both halves have them. What
        clusters gain by moving to their means is known exactly. Where the promise is kept, nothing was missed. A gain
        below the rounding of `n_rows` rows and their means is none.
        """
        model, totals, drawn, rule = self.model, self.totals, self.drawn, self.rule
        if totals.d2 <= 0:
            return GainEstimate(0.0)
        means, by_moving = self._moved()
        # sums of n values of one sign lose up to n / 4 units of their last place, and means with them; rows are rounded
        # to their own dtype where clusters are looked for
        eps = np.finfo(np.float64 if drawn is None else working_dtype(drawn.X.dtype)).eps / self.frame.scale
        rounded = squares(model.centers) * (n_rows * ULP / 4) ** 2 + squares(self.frame.points(model.centers)) * eps**2
        lost = float(weighted_sum(totals.counts, rounded)) / totals.d2
        by_moving *= by_moving > lost
        if rule is None or drawn is None or (promise is not None and promise.is_kept(totals.d2)):
            return GainEstimate(by_moving)
        block, centers, shift = self._framed(drawn.X, rule.unbiased(drawn), model.centers)
        table = NearestCenters.build(centers, block.X.dtype, around_origin=True)
        labels = nearest_in(self.here, block.X, table, "search")
        d2 = row_d2(block.X, labels, table)
        chances = rule.probabilities(drawn.weights, drawn.d2, drawn.limit)
        certain, first = chances > CERTAIN, first_half(drawn.places)
        chosen, judged = np.flatnonzero(first | certain), np.flatnonzero(~first | certain)
        if not len(chosen) or not len(judged) or len(centers) < FEWEST_CLUSTERS:
            return GainEstimate(by_moving)
        times = np.where(certain, 1.0, 2.0)
        half, other = part_of(block, chosen, times), part_of(block, judged, times)
        merging = Merging(self.frame.points(means) - shift, totals.counts)
        most = max(1, min(MOST_SWAPS, len(centers), SPLIT_ENTRIES // centers.shape[1]))
        rng, share = np.random.default_rng(rule.seed), d2[chosen] * half.weights
        gains, pairs = self._splits(half, labels[chosen], share, len(centers), rng)
        swaps = swaps_of(gains, merging.costs(), most, set())
        halves = {
            split: self._placed(self._halves(half, np.flatnonzero(labels[chosen] == split), pairs[split]), shift)
            for split, _ in swaps
        }
        unsure = 1 - (chances / times)[judged]
        each = [gained_by(other, (labels[judged], d2[judged]), split, halves[split]) for split, _ in swaps]
        best, n_best = 0.0, 0
        for n_swaps in sorted({*(2**power for power in range(len(swaps).bit_length())), len(swaps)} - {0}):
            gained = np.sum(each[:n_swaps], axis=0)
            lower = float(gained.sum() - CERTAINTY * np.sqrt(weighted_sum(unsure, np.square(gained))))
            lower -= merging.cost_of([given_up for _, given_up in swaps[:n_swaps]])
            if lower > best:
                best, n_best = lower, n_swaps
        by_swaps = best / self.frame.scale / self.frame.scale / totals.d2
        if by_swaps <= lost:
            return GainEstimate(by_moving)
        return GainEstimate(by_moving, by_swaps, tuple(swaps[:n_best]), tuple(halves.values())[:n_best])

    def _moved(self) -> tuple[NDArray[np.float64], float]:
        """Where centers belong, the clusters' means or their directions (k, m), and what moving there gains at least.

        A share of the objective: of rows of unit length with the sum s, ``2 (|s| - s.c)`` in place of the squared
        distance between mean and center for each row.
        """
        centers, totals = self.model.centers, self.totals
        means = totals.means(fallback=centers)
        if not self.spherical:
            return means, float(weighted_sum(totals.counts, squares(means - centers))) / totals.d2
        directions, weights = on_sphere(means), totals.counts * np.sqrt(squares(means))
        return directions, float(weighted_sum(weights, squares(directions - centers))) / totals.d2

    def _placed(self, halves: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[np.float64]:
        """Means of halves, in the frame and around `shift`, where centers may be (2, m)."""
        return placed_in(self.frame)(halves + shift) - shift if self.spherical else halves

    def filled(self, n_clusters: int) -> NDArray[np.float64]:
        """Centers made up to `n_clusters` by drawn rows: fewer only if all rows lie on a center."""
        centers = self.model.centers
        if self.drawn is None or self.totals.d2 <= 0:
            return centers
        # rows that were not drawn lie on centers
        both = self._with_means(replace(self.drawn, X=as_block_matrix(self.drawn.X, sketched=False)), centers)
        block, centers, shift = self._framed(both.X, both.weights, centers)
        pieces, rng = LocalBlocks.of(self.here, block), np.random.default_rng(n_clusters)
        result = lloyd(pieces, filled(pieces, centers, n_clusters), max_iter=POLISH_STEPS, tol=POLISH_TOL)
        result = local_search(block, pieces, result, rng=rng)
        return self.frame.originals(result.centers + shift)

    def next_centers(
        self,
        sample: Sample,
        own_weights: NDArray[np.float64],
        found: GainEstimate,
        rng: np.random.Generator,
        n_rows: int,
        *,
        anew: bool,
    ) -> tuple[NDArray[np.float64], float]:
        """Centers for another round (k, m), and the share of the objective of the searched rows that they gain.

        The search goes on, on the sample and the rows that were drawn.

        `sample`: original rows, drawn evenly, or by weight. `own_weights`: float64 (s,), weights of the sampled rows
        themselves. `n_rows`: of the data. `anew`: whether starts are searched on these rows, too, and the better
        centers count.
        """
        start = self.totals.means(fallback=self.model.centers)
        both = self._joined(sample, own_weights)
        weights = both.weights * (self.totals.counts.sum() / both.weights.sum())
        both = self._with_means(replace(both, weights=weights), start)
        if both.n_rows < ROWS_PER_CLUSTER * len(start):
            return self.swapped(found), found.gain
        framed = not self._is_sketched(both.X)
        block, centers, shift = self._searched(both.X, both.weights, start)
        pieces = LocalBlocks.of(self.here, block)
        begun, gained = LloydResult(centers, float("nan"), 0, False, ()), found.gain
        result = local_search(block, pieces, begun, rng=rng)
        if anew:
            before = lloyd(pieces, centers, max_iter=1, tol=0).history[0]
            draw = partial(best_start, streams=Streams(*rng.spawn(2)), pool=Pool(n_rows=n_rows))
            other = draw(self.here, block, len(centers), init="k-means++", n_init="auto")
            result = min(result, lloyd(pieces, other, max_iter=1, tol=0), key=lambda each: each.inertia)
            # k means gain a share of k / n on the rows that they are means of
            gained = max(gained, 1 - result.inertia / max(before, NO_OBJECTIVE) - len(start) / both.n_rows)
        rows = Sample(self.frame.rows(both.X) if framed else both.X, both.places, both.weights, sample.complete)
        searched = result.centers + shift
        if not framed:
            searched, _ = original_centers(self.here, rows, block, result.centers)
        if len(searched) < len(start):
            return start, gained
        polished = polish(self.here, rows, searched, max_iter=POLISH_STEPS, tol=POLISH_TOL).centers
        return self.frame.originals(polished) if framed else polished, gained

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

    def _with_means(self, drawn: Drawn, means: NDArray[np.float64]) -> Drawn:
        """Drawn rows, and each cluster's mean with the weight that its drawn rows do not stand for.

        A cluster of few rows near their mean has hardly a share of the objective: without its mean, the search would
        not see it and would move its center elsewhere.
        """
        counts, weights = self.totals.counts, drawn.weights
        labels = nearest_in(self.here, drawn.X, self.model.table(), "search")
        missing = counts - np.bincount(labels, weights, minlength=len(counts))
        unseen = np.flatnonzero(missing > 0)
        more: Matrix = means[unseen].astype(drawn.X.dtype)
        if not isinstance(drawn.X, np.ndarray):
            more = sp.csr_array(more)
        X, places = stacked([drawn.X, more]), np.concatenate([drawn.places, np.full(len(unseen), -1)])
        return replace(drawn, X=X, places=places, weights=np.concatenate([weights, missing[unseen]]))

    def swapped(self, found: GainEstimate, *, carried_on: bool = False) -> NDArray[np.float64]:
        """Means of all rows as centers, but for clusters that are split and those given up for it (k, m).

        `carried_on`: means are carried on by a share of their last way, as in an accelerated run of Lloyd's algorithm:
        worth it where another pass may follow.
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
            X, n_clusters = as_block_matrix(self.model.sketched(X)), len(centers)
            points = self.model.sketched(centers)
            centers = densified(points, np.arange(n_clusters), points.shape[1])
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
        self, half: Block, labels: NDArray[np.int32], d2: NDArray[np.float64], n_clusters: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What splitting each cluster gains (k,), and the halves (k, 2, m); of wide sparse rows in the sketch."""
        if self._is_sketched(half.X):
            X = as_block_matrix(self.model.sketched(half.X))
            half = Block(X, row_d2norms(X), half.weights)
        return split_gains(self.here, half, labels, d2, n_clusters, rng, {})

    def _halves(self, half: Block, rows: NDArray[np.intp], pair: NDArray[np.float64]) -> NDArray[np.float64]:
        """The halves of one cluster in the model's space (2, m)."""
        if not self._is_sketched(half.X):
            return pair
        X = half.X[rows]
        sketched = as_block_matrix(self.model.sketched(X))
        labels = NearestCenters.build(pair, sketched.dtype, around_origin=True).labels(sketched)
        totals = Totals.zeros(2, self.model.centers.shape[1])
        add_rows(X, half.weights[rows], labels, totals.sums, totals.counts)
        return totals.means(fallback=np.zeros(totals.sums.shape))

    def _is_sketched(self, X: Matrix) -> bool:
        """Whether clusters of these rows are looked for in the sketch: wide sparse ones."""
        wide = self.model.space == "original" and not self.model.sketch.is_identity
        return wide and not isinstance(X, np.ndarray)
