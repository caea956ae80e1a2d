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
from numpy.random import Generator
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks, drawn_evenly
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.rows import Totals, row_d2
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map, outputs
from streamkm.kernels.centers.reduced import lowest_columns

CANDIDATES = 8  # clusters that a row may go to instead of its own, the cheapest ones
SCORES = 1 << 20  # of rows and clusters, computed at a time
ROUNDS = 9  # of prices and means by turns on held rows, at most
SWEEPS, COLD, DAMPING, LEAST_SLOPE = 40, 0.03, 0.7, 0.01  # of prices in each; see `Edges.tuned`
EDGE_ROWS, ROWS_PER_CLUSTER = 1 << 16, 8  # that are drawn in a round, or kept in a pass, at most: the larger number
FAR_OUTSIDE = 0.05  # share of the rows outside the bounds, by which centers are moved elsewhere
MOST_OUTSIDE = 0.015  # share of the rows outside the bounds, by which more is done than moves of single rows
MOVABLE, MOST_MOVABLE = 1000, 20_000  # fewest and most moves among which are chosen at once
SIZE_ROUNDS = 2  # passes that tune prices, at most
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
class Moves:
    """Single rows that go to another cluster than prices say."""

    rows: NDArray[np.int64]  # (r,): their numbers
    labels: NDArray[np.int32]  # (r,): their new clusters
    counts: NDArray[np.float64]  # (k,): sizes of all clusters then
    cost: float  # of squared distances and prices

    def balance(self, totals: Totals, evened: Evened, factor: float) -> dict[str, float]:
        """What `size_balance_` tells, by the sums of the last pass, its prices, and sizes without."""
        mean, cost = float(self.counts.mean()), self.cost - float((self.counts - totals.counts) @ evened.table_prices)
        d2 = totals.d2 + cost
        told = {"n_moved": len(self.rows), "inertia_before": factor * totals.d2, "inertia_after": factor * d2}
        for when, sizes in (("_before", evened.sizes), ("", self.counts)):
            told |= {"smallest" + when: factor * float(sizes.min()), "largest" + when: factor * float(sizes.max())}
        variation, largest = float(self.counts.std()) / mean, float(self.counts.max()) / mean
        return told | {"variation": variation, "largest_over_mean": largest}


@dataclass(frozen=True, slots=True)
class Edges:
    """Rows near the border of their cluster, and the clusters that they may belong to."""

    rows: NDArray[np.int64]  # (e,): numbers of the rows
    weights: NDArray[np.float64]  # (e,)
    candidates: NDArray[np.int32]  # (e, M): clusters, the row's own first
    costs: NDArray[np.float64]  # (e, M): squared distance and price, less those of the row's own cluster

    def cheapest(self, change: NDArray[np.float64]) -> NDArray[np.int32]:
        """Cluster of each row (e,) once prices have changed (k,)."""
        best = (self.costs + change[self.candidates]).argmin(axis=1)
        return self.candidates[np.arange(len(best)), best]

    def tuned(
        self, counts: NDArray[np.float64], prices: NDArray[np.float64], bounds: SizeBounds
    ) -> NDArray[np.float64]:
        """Prices by which the sizes keep the bounds, as far as these rows can tell. O(e * M) a sweep.

        Rows are shared out among their candidates, the more to the cheapest the colder it gets; a price moves by what
        its cluster's size lacks, over the size's slope. `counts` (k,), `prices` (k,): sizes and prices now.
        """
        n_clusters, names, weights = len(prices), np.ascontiguousarray(self.candidates.T), self.weights
        gaps = self.costs[:, 1:2][self.costs[:, 1:2] > 0]
        if not len(gaps):
            return prices
        fixed = counts - np.bincount(names[0], weights, n_clusters)
        costs = np.ascontiguousarray(self.costs.T) - prices[names]
        # rows that are not here, and clusters that a row does not name, are that far
        last = self.costs[:, min(CANDIDATES, n_clusters - 1)]
        trust = min(float(np.median(last)), float(self.costs[:, 1].max())) / 2
        found, best, least = prices, prices, np.inf
        for heat in float(np.median(gaps)) * np.geomspace(1, COLD, SWEEPS):
            outside = bounds.outside(fixed + np.bincount(self.cheapest(found - prices), weights, n_clusters))
            if outside <= least:
                best, least = found, outside
            priced = costs + found[names]
            shares = np.exp((priced.min(axis=0) - priced) / heat)
            shares /= shares.sum(axis=0)
            sizes = fixed + np.bincount(names.ravel(), (weights * shares).ravel(), n_clusters)
            slopes = np.bincount(names.ravel(), (weights * shares * (1 - shares)).ravel(), n_clusters)
            rate = DAMPING * heat / np.maximum(slopes, LEAST_SLOPE * counts.mean())
            wanted = np.clip(0, found + rate * (sizes - bounds.cap), found + rate * (sizes - bounds.floor))
            found = np.clip(wanted, np.maximum(found - heat, prices - trust), np.minimum(found + heat, prices + trust))
        return best

    def moved(self, counts: NDArray[np.float64], bounds: SizeBounds) -> Moves:
        """The cheapest moves of rows that bring sizes (k,) within the bounds: linear programs over the cheapest ones.

        Their solutions are whole numbers if rows weigh alike, and asked to be otherwise. What candidates do not allow
        stays outside.
        """
        from scipy.optimize import LinearConstraint, milp  # few fits need it

        n_clusters, width, chosen = len(counts), self.costs.shape[1] - 1, np.zeros(len(self.rows), np.intp)
        costs = (self.costs[:, 1:] * self.weights[:, None]).ravel()
        order = np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()]
        far, beyond = 1e3 * (1 + costs[order[-1:]].sum()), sp.eye_array(n_clusters)
        n_some = min(int(8 * bounds.outside(counts) / self.weights.mean()) + MOVABLE, MOST_MOVABLE)
        for first in range(0, len(order), n_some):
            if bounds.outside(counts) <= BEYOND:
                break
            some = order[first : first + n_some]
            some = some[chosen[some // width] == 0]
            rows, places, at, shape = some // width, some % width + 1, np.arange(len(some)), (n_clusters, len(some))
            weights, to = self.weights[rows], self.candidates[rows, places]
            change = sp.csr_array((weights, (to, at)), shape)
            change -= sp.csr_array((weights, (self.candidates[rows, 0], at)), shape)
            once = sp.csr_array((np.ones(len(some)), (np.unique(rows, return_inverse=True)[1], at)))
            none = sp.csr_array((once.shape[0], n_clusters))
            result = milp(
                np.append(costs[some], np.full(2 * n_clusters, far)),
                constraints=[
                    LinearConstraint(sp.hstack([once, none, none]), 0, 1),
                    LinearConstraint(sp.hstack([change, beyond, -beyond]), bounds.floor - counts, bounds.cap - counts),
                ],
                integrality=np.repeat([np.ptp(self.weights) > 0, False], [len(some), 2 * n_clusters]),
                options={"mip_rel_gap": 0.01},
            )
            taken = np.flatnonzero(result.x[: len(some)] > 0.5)
            chosen[rows[taken]] = places[taken]
            counts = counts + change[:, taken].sum(axis=1)
        there = np.flatnonzero(chosen)
        labels, cost = self.candidates[there, chosen[there]], self.costs[there, chosen[there]] @ self.weights[there]
        return Moves(self.rows[there], labels, counts, float(cost))


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """The rows whose candidates a pass keeps: those with the least differences to another cluster."""

    most: int
    # (k,): above 0 for clusters that take rows, as those at their floor while prices are tuned; below 0 if rows must go
    room: NDArray[np.float64]
    limit: float = np.inf  # of differences, for clusters that need not lose rows
    # all candidates but one take rows, and each row sees one in so many of these, so that all are seen; 0: one does
    one_in: int = 0

    def edges(
        self,
        X: Matrix,
        table: NearestCenters,
        rows: NDArray[np.int64],
        weights: NDArray[np.float64],
        known: tuple[NDArray[np.int32], NDArray[np.float64]] | None = None,
    ) -> Edges:
        """Candidates of rows (n, m), of those near a border if labels and gaps (n,) are `known`. O(n * m * k)."""
        labels, n_clusters = np.empty(len(rows), np.int32), table.n_clusters
        if known is not None:
            labels, gaps = known
            kept = np.flatnonzero((gaps <= self.limit) | (self.room[labels] < 0))
            X, rows, labels, weights = X[kept], rows[kept], labels[kept], weights[kept] if len(weights) else weights
        shape = len(rows), min(CANDIDATES, n_clusters - 1) if self.one_in == 0 else 1
        near, taking = np.empty(shape, np.int32), np.empty((shape[0], CANDIDATES + 1 - shape[1]), np.int32)
        barred, none = np.zeros((shape[0], CANDIDATES + 2), np.bool_), np.zeros(n_clusters, np.float32)
        turns = np.random.default_rng(0).integers(1 << 63, size=n_clusters, dtype=np.uint64)
        for first in range(0, len(rows), max(1, SCORES // n_clusters)):
            here = slice(first, min(first + max(1, SCORES // n_clusters), len(rows)))
            scores = np.array(table.scores(rows_between(X, here.start, here.stop)), np.float32, order="C")
            if known is None:
                labels[here] = scores.argmin(axis=1)
            scores[np.arange(len(scores)), labels[here]] = np.inf
            lowest_columns(scores, none, near[here])
            np.put_along_axis(scores, near[here].astype(np.intp), np.inf, axis=1)
            scores[:, self.room <= 0] = np.inf
            if self.one_in > 1:
                scores[(rows[here, None].astype(np.uint64) * turns >> 32) % self.one_in > 0] = np.inf
            lowest_columns(scores, none, taking[here])
            barred[here, 1 + shape[1] :] = np.isinf(np.take_along_axis(scores, taking[here].astype(np.intp), axis=1))
        candidates = np.concatenate([labels[:, None], near, taking], axis=1)
        costs = np.stack([row_d2(X, np.ascontiguousarray(each), table) for each in candidates.T], axis=1)
        costs += table.prices[candidates]
        costs = np.where(barred, np.inf, np.maximum(costs - costs[:, :1], 0))
        return Edges(rows, weights if len(weights) else np.ones(len(rows)), candidates, costs)

    def joined(self, parts: Sequence[Edges]) -> Edges:
        """The rows that are kept, in the order of their numbers."""
        names = ("rows", "weights", "candidates", "costs")
        whole = Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
        if len(whole.rows) <= self.most or whole.costs.shape[1] < 2:
            return whole
        later = self.room[whole.candidates[:, 0]] >= 0
        kept = np.sort(np.lexsort((whole.rows, whole.costs[:, 1:].min(axis=1), later))[: self.most])
        return Edges(*(getattr(whole, name)[kept] for name in names))


def edge_rows(n_rows: float, n_clusters: int) -> int:
    """Rows whose candidates a pass keeps, at most."""
    return int(min(n_rows, max(EDGE_ROWS, ROWS_PER_CLUSTER * n_clusters)))


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
        return self.rule.edges(drawn.X, self.table, np.zeros(drawn.n_rows, np.int64), drawn.weights)


@dataclass(frozen=True, slots=True)
class Evened:
    """Prices of clusters, and what held rows tell of them."""

    prices: NDArray[np.float64]  # (k,): at a floor below 0
    sizes: NDArray[np.float64]  # (k,): weights of the clusters without prices
    rule: EdgeRule  # for the next pass over all rows

    @property
    def table_prices(self) -> NDArray[np.float64]:
        """The prices from 0 on."""
        return self.prices - self.prices.min()


def even_out(
    blocks: Blocks,
    centers: NDArray[np.float64],
    n_clusters: int,
    bounds: SizeBounds,
    seed: int,
    n_rows: int,
    placed: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None,
) -> tuple[NDArray[np.float64], Evened]:
    """Find centers (k, m) and prices by turns, so that the sizes of clusters of held rows keep the bounds.

    Centers that are missing are made up by copies. `n_rows`: all rows. `placed`: as of `lloyd`.
    """
    centers, prices, missed = centers[np.arange(n_clusters) % len(centers)], np.zeros(n_clusters), np.zeros(n_clusters)
    n_parts, most = -(-blocks.n_rows // edge_rows(blocks.n_rows, n_clusters)), edge_rows(n_rows, n_clusters)
    before, labels, limit, wanted = np.full(n_clusters, blocks.total_weight), None, np.inf, 1
    rng = np.random.default_rng(seed)
    for index in range(ROUNDS if n_clusters > 1 else 0):
        priced, rule = replace(blocks, prices=prices - prices.min()), EdgeRule(blocks.n_rows, np.maximum(-prices, 0))
        drawn = DrawnEdges(priced.table(centers), rule, n_parts, seed)
        edges = rule.joined(list(outputs(drawn, blocks.placed(), blocks.executor, Stage("sizes"))))
        share = float(edges.weights.sum()) / blocks.total_weight
        sizes = np.bincount(edges.candidates[:, 0], edges.weights, n_clusters)
        before, part = sizes / share if index == 0 else before, bounds.times(share)
        change = edges.tuned(sizes + missed, prices, part) - prices
        prices, found = prices + change, edges.cheapest(change)
        sizes = np.bincount(found, edges.weights, n_clusters)
        outside = part.outside(sizes + missed) / sizes.sum()
        limit = float(np.quantile(edges.costs[:, 1], most / n_rows)) if most < n_rows else np.inf
        if index >= wanted and outside <= MOST_OUTSIDE:
            break
        if outside > (MOST_OUTSIDE if index else FAR_OUTSIDE):
            prices, wanted = prices[_relocate(edges, centers, change, part, rng)], index + 3
        totals, labels = replace(blocks, prices=prices - prices.min()).step(centers, labels, "sizes")
        missed = (wanted == 1) * (share * totals.counts - sizes)  # by the drawn rows
        centers = totals.means(fallback=centers)
        if placed is not None:
            centers = placed(centers)
    return centers, Evened(prices, before, EdgeRule(most, np.maximum(-prices, 0), limit))


def _relocate(
    edges: Edges, centers: NDArray[np.float64], change: NDArray[np.float64], bounds: SizeBounds, rng: Generator
) -> NDArray[np.intp]:
    """Move centers that are missed least to clusters that prices leave too large; return whose price each has now."""
    labels = edges.cheapest(change)
    sizes = np.bincount(labels, edges.weights, len(centers)).astype(np.float64)
    above, owners = np.maximum(sizes - bounds.cap, 0), np.arange(len(sizes))
    gaps = np.diff(np.sort(edges.costs + change[edges.candidates], axis=1)[:, :2], axis=1)[:, 0]
    lost = np.bincount(labels, edges.weights * gaps, len(sizes))
    lost[sizes < bounds.floor / 2] = -1
    lost[above > 0] = np.inf
    wanted = max(1, int((lost < 0).sum()), int(bounds.outside(sizes) / sizes.mean() / 2))
    gone = np.argsort(lost, kind="stable")[: min(wanted, int(np.isfinite(lost).sum()), len(sizes) // 2)]
    shares = edges.weights * ((above if above.any() else sizes) / np.maximum(sizes, BEYOND))[labels]
    rows = rng.choice(len(labels), len(gone), p=shares / shares.sum())
    owners[gone] = beside = labels[rows]
    other = edges.candidates[rows, rng.integers(1, 1 + min(CANDIDATES, len(sizes) - 1), len(gone))]
    centers[gone] = centers[beside] + rng.uniform(0.02, 0.3, (len(gone), 1)) * (centers[other] - centers[beside])
    return owners
