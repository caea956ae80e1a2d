"""Clusters whose sizes keep a floor and a cap: prices that are added to squared distances, and single rows moved.

A row goes to the center with the least sum of squared distance and price (a power diagram); the prices are duals of the
transport problem. Reference: Aurenhammer, Hoffmann and Aronov, "Minkowski-type theorems and least-squares clustering",
Algorithmica 20 (1998).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks, drawn_evenly
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.rows import Totals, row_d2, rows_by_label
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map, outputs
from streamkm.kernels.centers.reduced import lowest_columns
from streamkm.kernels.cluster.size_prices import ascend
from streamkm.kernels.cluster.totals import weighted_sum

CANDIDATES, FEW_CLUSTERS = 8, 16  # clusters that a row may belong to, the cheapest ones; all, if there are so few
SCORES = 1 << 22  # of rows and clusters, computed at a time
ROUNDS, MORE_ROUNDS, SWEEPS = 3, 6, 15  # of prices and means by turns on held rows; over the prices in each
ROUND_ROWS = 64  # a cluster, that prices are found on in a round
SIZE_ROUNDS, MORE_SIZE_ROUNDS = 2, 3  # passes that tune prices, at most, and passes that find more candidates
EDGE_ROWS = 1 << 17  # at least, of those kept in a pass; more with many clusters
MOVABLE_ROWS, MOST_MOVABLE = 1000, 10_000  # fewest and most among which rows are chosen at once that are moved
MOST_OUTSIDE = 0.01  # share of the rows that prices leave outside the bounds before centers are moved elsewhere
BEYOND = 1e-6  # weight outside the bounds that is a rounding error


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """The least and the largest weight of a cluster."""

    floor: float
    cap: float

    @classmethod
    def of(cls, given: Sequence[Any], total: float, n_clusters: int, *, whole: bool) -> SizeBounds:
        """The bounds for rows of a total weight; floats are multiples of the mean, rounded inward if `whole`.

        Raises InvalidParameterError: if no k clusters keep them.
        """
        mean = total / n_clusters
        pairs = zip(given, (0.0, total), strict=False)
        least, most = (usual if one is None else one * mean if isinstance(one, float) else one for one, usual in pairs)
        if whole:  # to within one row, if the mean is no whole number
            least, most = min(ceil(least), max(floor(mean), int(least))), max(floor(most), min(ceil(mean), ceil(most)))
        if least > most or least * n_clusters > total or most * n_clusters < total:
            sizes = (
                f"clusters of {least:,.6g} to {most:,.6g} hold {least * n_clusters:,.6g} to {most * n_clusters:,.6g}"
            )
            why = f"{n_clusters:,} {sizes}, and there are {total:,.6g} rows"
            raise InvalidParameterError(f"cluster_size={tuple(given[:2])} cannot be kept: {why}")
        return cls(least, most)

    def times(self, factor: float) -> SizeBounds:
        """The bounds for a part of the rows."""
        return SizeBounds(self.floor * factor, self.cap * factor)

    def outside(self, counts: NDArray[np.float64]) -> float:
        """Weight above the cap and below the floor."""
        return float(np.maximum(counts - self.cap, 0).sum() + np.maximum(self.floor - counts, 0).sum())


@dataclass(frozen=True, slots=True)
class Edges:
    """Rows near the border of their cluster, and the clusters that they may belong to."""

    rows: NDArray[np.int64]  # (e,): numbers of the rows
    weights: NDArray[np.float64]  # (e,)
    candidates: NDArray[np.int32]  # (e, M): clusters, the row's own first
    costs: NDArray[np.float64]  # (e, M): squared distance and price, less those of the row's own cluster

    @classmethod
    def of(
        cls,
        X: Matrix,
        table: NearestCenters,
        rows: NDArray[np.int64],
        weights: NDArray[np.float64],
        rule: EdgeRule,
        known: tuple[NDArray[np.int32], NDArray[np.float64]] | None = None,
    ) -> Edges:
        """Candidates of rows (n, m). O(e * m * k). `known`: labels and gaps (n,), for exact costs of some."""
        if known is not None:
            labels, gaps = known
            kept = np.flatnonzero((gaps <= rule.limit) | (rule.spreads & (rule.room[labels] < 0)))
            X, rows, labels, weights = X[kept], rows[kept], labels[kept], weights[kept] if len(weights) else weights
        n_rows, n_clusters = X.shape[0], table.n_clusters
        width = min(n_clusters, FEW_CLUSTERS if n_clusters <= FEW_CLUSTERS else CANDIDATES)
        taking = np.flatnonzero(rule.room > 0) if width < n_clusters else np.empty(0, np.intp)
        shape = n_rows, width + (len(taking) > 0)
        candidates, costs, none = np.empty(shape, np.int32), np.empty(shape), np.zeros(n_clusters, np.float32)
        for first in range(0, n_rows, max(1, SCORES // n_clusters)):
            here = slice(first, min(first + max(1, SCORES // n_clusters), n_rows))
            scores = np.ascontiguousarray(table.scores(rows_between(X, here.start, here.stop)), np.float32)
            lowest = np.empty((len(scores), width), np.int32)
            lowest_columns(scores, none, lowest)
            candidates[here, :width] = lowest
            if len(taking):  # one more, of those that need rows: the cheapest, or one after the other
                ranks = rows[here] % len(taking) if rule.spreads else np.zeros(len(scores), np.intp)
                order = scores[:, taking].argsort(axis=1) if ranks.any() else scores[:, taking].argmin(axis=1)[:, None]
                candidates[here, width] = taking[np.take_along_axis(order, ranks[:, None], axis=1)[:, 0]]
            costs[here] = np.take_along_axis(scores, candidates[here].astype(np.intp), axis=1)
        if known is not None:  # of equal costs another one may come first
            for i in np.flatnonzero(candidates[:, 0] != labels):
                at = int(np.append(np.flatnonzero(candidates[i, :width] == labels[i]), width - 1)[0])
                candidates[i, at], candidates[i, 0] = candidates[i, 0], labels[i]
            for column in range(shape[1]):
                costs[:, column] = row_d2(X, np.ascontiguousarray(candidates[:, column]), table)
            costs += table.prices[candidates]
        costs = np.maximum(costs - costs[:, :1], 0)
        if len(taking):  # a candidate that the row has already
            costs[(candidates[:, :width] == candidates[:, width:]).any(axis=1), width] = np.inf
        return cls(rows, weights if len(weights) else np.ones(n_rows), candidates, costs)

    def tuned(
        self, counts: NDArray[np.float64], prices: NDArray[np.float64], bounds: SizeBounds
    ) -> NDArray[np.float64]:
        """Prices by which the sizes keep the bounds, as far as these rows can tell.

        `counts` (k,), `prices` (k,): sizes of the clusters and prices now.
        """
        n_clusters, width = len(prices), self.costs.shape[1]
        if width < 2 or not len(self.rows):
            return prices
        given = np.stack([counts - np.bincount(self.candidates[:, 0], self.weights, n_clusters), prices], axis=1)
        costs = self.costs - prices[self.candidates]
        entries, starts = rows_by_label(self.candidates.ravel(), n_clusters)
        # rows that are not here, and clusters that a row does not name, are that far
        last = self.costs[:, min(width, CANDIDATES) - 1]
        trust = float(np.median(last)) / 2 if width < n_clusters else np.inf
        found, best, least = prices.copy(), prices, bounds.outside(counts)
        steps = np.full(n_clusters, max(float(np.median(self.costs[:, 1])) / 2, 1e-30))
        for _ in range(SWEEPS):
            before = found.copy()
            outside = ascend(
                self.candidates, costs, self.weights, starts, entries, given, np.array([bounds.floor, bounds.cap]),
                trust, steps, found,
            )  # fmt: skip
            if outside <= least:
                best, least = before, outside
            if outside == 0:
                break
        return best

    def moved(self, counts: NDArray[np.float64], bounds: SizeBounds) -> Moves:
        """The cheapest rows that bring sizes (k,) within the bounds: linear programs over rows of the least costs.

        Their solutions are whole numbers if rows weigh alike, and asked to be otherwise. What candidates do not allow
        stays outside.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # few fits need it

        (n_rows, width), n_clusters, best = self.costs.shape, len(counts), np.zeros(len(self.rows), np.intp)
        order = np.argsort(self.costs[:, 1:].min(axis=1, initial=np.inf), kind="stable")
        n_some = min(int(4 * bounds.outside(counts) / self.weights.mean()) + MOVABLE_ROWS, MOST_MOVABLE)
        for first in range(0, n_rows, n_some):
            if bounds.outside(counts) <= BEYOND:
                break
            some = order[first : first + n_some]
            own, costs, weights = self.candidates[some], self.costs[some], self.weights[some]
            at, here = np.arange(own.size), np.arange(len(some))
            fixed = counts - np.bincount(own[:, 0], weights, n_clusters)
            sizes = sp.csr_array((np.repeat(weights, width), (own.ravel(), at)), (n_clusters, own.size))
            once = sp.csr_array((np.ones(own.size), (at // width, at)), (len(some), own.size))
            beyond, none = sp.eye_array(n_clusters), sp.csr_array((len(some), n_clusters))
            allowed, far = np.isfinite(costs), 1e3 * (1 + float(costs[np.isfinite(costs)].max()))
            result = milp(
                np.concatenate([np.where(allowed, costs * weights[:, None], 0).ravel(), np.full(2 * n_clusters, far)]),
                constraints=[
                    LinearConstraint(sp.hstack([once, none, none]), 1, 1),
                    LinearConstraint(sp.hstack([sizes, beyond, -beyond]), bounds.floor - fixed, bounds.cap - fixed),
                ],
                integrality=np.repeat([np.ptp(self.weights) > 0, False], [own.size, 2 * n_clusters]),
                options={"mip_rel_gap": 0.01},
                bounds=Bounds(0, np.concatenate([allowed.ravel() * 1.0, np.full(2 * n_clusters, np.inf)])),
            )
            best[some] = result.x[: own.size].reshape(own.shape).argmax(axis=1)
            counts = fixed + np.bincount(own[here, best[some]], weights, n_clusters)
        there = np.flatnonzero(best)
        labels, costs = self.candidates[there, best[there]], self.costs[there, best[there]]
        return Moves(self.rows[there], labels, counts, float(weighted_sum(self.weights[there], costs)))


@dataclass(frozen=True, slots=True)
class Moves:
    """Single rows that go to another cluster than prices say."""

    rows: NDArray[np.int64]  # (r,): their numbers
    labels: NDArray[np.int32]  # (r,): their new clusters
    counts: NDArray[np.float64]  # (k,): sizes of all clusters then
    cost: float  # of squared distances and prices

    def balance(
        self, totals: Totals, prices: NDArray[np.float64], factor: float, before: NDArray[np.float64]
    ) -> dict[str, float]:
        """What `size_balance_` tells, by the sums of the last pass, its prices, and sizes without."""
        after, mean = totals.d2 + self.cost - float((self.counts - totals.counts) @ prices), float(self.counts.mean())
        return {
            "n_moved": len(self.rows),
            "inertia_before": factor * totals.d2,
            "inertia_after": factor * after,
            "smallest_before": factor * float(before.min()),
            "largest_before": factor * float(before.max()),
            "smallest": factor * float(self.counts.min()),
            "largest": factor * float(self.counts.max()),
            "variation": float(self.counts.std()) / mean,
            "largest_over_mean": float(self.counts.max()) / mean,
        }


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """The rows whose candidates a pass keeps: those with the least differences to another cluster."""

    room: NDArray[np.float64]  # (k,): above 0 for clusters that need rows, below 0 for those that must lose some
    most: int
    limit: float = np.inf  # of differences, for clusters that need not lose rows
    spreads: bool = False  # whether rows get one of the clusters that need rows after the other, not the cheapest

    def joined(self, parts: Sequence[Edges]) -> Edges:
        """The rows that are kept, in the order of their numbers."""
        names = ("rows", "weights", "candidates", "costs")
        whole = Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
        if len(whole.rows) <= self.most or whole.costs.shape[1] < 2:
            return whole
        kept = np.sort(np.lexsort((whole.rows, whole.costs[:, 1:].min(axis=1)))[: self.most])
        return Edges(*(getattr(whole, name)[kept] for name in names))


def edge_rows(n_rows: float, n_clusters: int) -> int:
    """Rows whose candidates a pass keeps, at most."""
    return int(min(n_rows, max(EDGE_ROWS, ROUND_ROWS * n_clusters)))


@dataclass(frozen=True, slots=True)
class DrawnEdges(Map[Edges]):
    """Candidates of rows that are drawn evenly from each block."""

    table: NearestCenters
    rule: EdgeRule
    n_parts: int
    seed: int  # below 2^64

    def output(self, rows: HeldBlock) -> Edges:
        """Candidates of about one in `n_parts` rows of a block."""
        drawn = drawn_evenly(rows, self.n_parts, self.seed)
        return Edges.of(drawn.X, self.table, np.zeros(drawn.n_rows, np.int64), drawn.weights, self.rule)


def even_out(
    blocks: Blocks,
    centers: NDArray[np.float64],
    n_clusters: int,
    bounds: SizeBounds,
    seed: int,
    placed: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Centers (k, m) and prices (k,), found by turns, of held clusters whose sizes keep the bounds; sizes (k,) before.

    Centers that are missing are made up by copies. `placed`: as of `lloyd`.
    """
    centers = centers[np.arange(n_clusters) % len(centers)]
    n_parts, prices = max(1, blocks.n_rows // (ROUND_ROWS * n_clusters)), np.zeros(n_clusters)
    room, sizes = np.zeros(n_clusters), np.full(n_clusters, blocks.total_weight)
    labels, n_rounds, rng = None, ROUNDS, np.random.default_rng(seed)
    for index in range(ROUNDS + MORE_ROUNDS):
        if n_clusters == 1 or index == n_rounds:
            break
        priced = replace(blocks, prices=prices - prices.min())
        drawn = DrawnEdges(priced.table(centers), EdgeRule(room, blocks.n_rows), n_parts, seed)
        edges = drawn.rule.joined(list(outputs(drawn, blocks.placed(), blocks.executor, Stage("sizes"))))
        counts, before = np.bincount(edges.candidates[:, 0], edges.weights, n_clusters).astype(np.float64), prices
        share = float(counts.sum()) / blocks.total_weight
        sizes, part = counts / share if index == 0 else sizes, bounds.times(share)
        prices = edges.tuned(counts, before, part)
        if index == n_rounds - 1 and index < MORE_ROUNDS and _relocate(edges, centers, prices, before, part, rng):
            n_rounds = index + ROUNDS
        totals, labels = replace(blocks, prices=prices - prices.min()).step(centers, labels, "sizes")
        centers, room = totals.means(fallback=centers), bounds.floor - totals.counts
        if placed is not None:
            centers = placed(centers)
    return centers, prices, sizes


def _relocate(
    edges: Edges,
    centers: NDArray[np.float64],
    prices: NDArray[np.float64],
    before: NDArray[np.float64],
    bounds: SizeBounds,
    rng: np.random.Generator,
) -> bool:
    """Move centers that are missed least beside clusters that prices leave far too large; False if none is needed."""
    costs, n_clusters, width = edges.costs + (prices - before)[edges.candidates], len(prices), edges.costs.shape[1]
    best = costs.argmin(axis=1)
    labels, weights = edges.candidates[np.arange(len(best)), best], edges.weights
    sizes = np.bincount(labels, weights, n_clusters).astype(np.float64)
    if bounds.outside(sizes) <= MOST_OUTSIDE * sizes.sum():
        return False
    above = np.maximum(sizes - bounds.cap, 0)
    large = np.repeat(np.arange(n_clusters), (above / sizes.mean()).astype(int))
    lost = np.bincount(labels, weights * np.diff(np.sort(costs, axis=1)[:, :2], axis=1)[:, 0], n_clusters)
    lost[sizes < bounds.floor / 2] = -1
    lost[above > 0] = np.inf
    n_moved = min(max(len(large), int((lost < 0).sum()), 1), int(np.isfinite(lost).sum()), n_clusters // 2)
    large = np.concatenate([large, np.argsort(-sizes, kind="stable")])
    for center, beside in zip(np.argsort(lost, kind="stable")[:n_moved], large, strict=False):
        rows = np.flatnonzero(labels == beside)
        other = edges.candidates[rng.choice(rows), rng.integers(1, width)] if len(rows) else center
        centers[center] = centers[beside] + rng.uniform(0.02, 0.3) * (centers[other] - centers[beside])
        prices[center] = prices[beside]
    return n_moved > 0
