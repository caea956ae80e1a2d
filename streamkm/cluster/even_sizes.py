"""Clusters whose sizes keep a floor and a cap: prices that are added to squared distances, and single rows moved.

A row goes to the center with the least sum of squared distance and price (a power diagram); the prices are duals of the
transport problem. Reference: Aurenhammer, Hoffmann and Aronov, "Minkowski-type theorems and least-squares clustering",
Algorithmica 20 (1998).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.random import Generator
from numpy.typing import NDArray

from streamkm.cluster.blocks import Blocks, drawn_evenly
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock
from streamkm.cluster.rows import Totals, inertia_of, row_d2
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage
from streamkm.engine.passes import Map, outputs
from streamkm.kernels.centers.reduced import lowest_columns

CANDIDATES = 8  # clusters that a row may go to instead of its own, the cheapest ones
SCORES = 1 << 20  # of rows and clusters, computed at a time
ROUNDS, SIZE_ROUNDS = 9, 2  # of prices and means by turns on held rows, and passes that tune prices, at most
SWEEPS, COLD, DAMPING, LEAST_SLOPE = 40, 0.03, 0.7, 0.01  # of prices in each; see `Edges.tuned`
MARGIN, MOST_MARGIN = 0.4, 0.08  # within the bounds, by which prices are found: of the way to the mean, and of the mean
EDGE_ROWS, ROWS_PER_CLUSTER = 1 << 16, 8  # that are drawn in a round, or kept in a pass, at most: the larger number
# shares of rows, rows and clusters, and of the objective (the least gain after which rounds go on); see `even_out`
FAR_OUTSIDE, MOST_OUTSIDE, MOST_STARVED, SETTLED = 0.05, 0.015, 1e-3, 0.008
# fewest and most moves among which are chosen at once (or as many as clusters), and what a row outside costs, by the
# dearest of these
MOVABLE, MOST_MOVABLE, OUTSIDE_COST = 1000, 4000, 100.0
Floats: TypeAlias = NDArray[np.float64]
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
            held = f"{least * n_clusters:,.6g} to {most * n_clusters:,.6g}, and there are {total:,.6g} rows"
            why = f"{n_clusters:,} clusters of {least:,.6g} to {most:,.6g} hold {held}"
            raise InvalidParameterError(f"cluster_size={tuple(given[:2])} cannot be kept: {why}")
        return cls(least, most)

    def times(self, factor: float) -> SizeBounds:
        """The bounds for a part of the rows."""
        return SizeBounds(self.floor * factor, self.cap * factor)

    def outside(self, counts: Floats) -> float:
        """Weight above the cap and below the floor."""
        return float(np.maximum(counts - self.cap, 0).sum() + np.maximum(self.floor - counts, 0).sum())


@dataclass(frozen=True, slots=True)
class Moves:
    """Single rows that go to another cluster than prices say."""

    labels: NDArray[np.unsignedinteger[Any]]  # (n,): their new clusters; k for all others
    counts: Floats  # (k,): sizes of all clusters then
    cost: float  # of squared distances and prices

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Whether each row moves (n,)."""
        return self.labels != len(self.counts)


@dataclass(frozen=True, slots=True)
class Edges:
    """Rows near the border of their cluster, and the clusters that they may belong to."""

    rows: NDArray[np.int64]  # (e,): numbers of the rows
    weights: Floats  # (e,)
    candidates: NDArray[np.int32]  # (e, M): clusters, the row's own first
    costs: Floats  # (e, M): squared distance and price, less those of the row's own cluster

    def cheapest(self, change: Floats) -> NDArray[np.int32]:
        """Cluster of each row (e,) once prices have changed (k,)."""
        best = (self.costs + change[self.candidates]).argmin(axis=1)
        return self.candidates[np.arange(len(best)), best]

    def tuned(self, counts: Floats, prices: Floats, bounds: SizeBounds) -> Floats:
        """Prices by which the sizes keep the bounds, as far as these rows can tell. O(e * M) a sweep.

        Rows are shared out among their candidates, the more to the cheapest the colder it gets; a price moves by what
        its cluster's size lacks, over the size's slope. Prices keep sizes a little within the bounds, so that few rows
        have to be moved singly. `counts` (k,), `prices` (k,): sizes and prices now.
        """
        from scipy.special import softmax  # few fits need it

        mean = counts.mean()
        low, high = (min(MARGIN * abs(mean - end), MOST_MARGIN * mean) for end in (bounds.floor, bounds.cap))
        bounds = SizeBounds(bounds.floor + low * (bounds.floor > 0), bounds.cap - high)
        n_clusters, names, weights = len(prices), np.ascontiguousarray(self.candidates.T), self.weights
        gaps = self.costs[self.costs[:, 1] > 0, 1]
        if not len(gaps):
            return prices
        fixed = counts - np.bincount(names[0], weights, n_clusters)
        costs = np.ascontiguousarray(self.costs.T) - prices[names]
        # rows that are not here, and clusters that a row does not name, are that far
        trust = min(float(np.median(self.costs[:, min(CANDIDATES, n_clusters - 1)])), float(self.costs[:, 1].max())) / 2
        found, best, least = prices, prices, np.inf
        for heat in float(np.median(gaps)) * np.geomspace(1, COLD, SWEEPS):
            outside = bounds.outside(fixed + np.bincount(self.cheapest(found - prices), weights, n_clusters))
            best, least = min((found, outside), (best, least), key=lambda pair: pair[1])
            shares = softmax(-(costs + found[names]) / heat, axis=0)
            sizes = fixed + np.bincount(names.ravel(), (weights * shares).ravel(), n_clusters)
            slopes = np.bincount(names.ravel(), (weights * shares * (1 - shares)).ravel(), n_clusters)
            rate = DAMPING * heat / np.maximum(slopes, LEAST_SLOPE * mean)
            wanted = np.clip(0, found + rate * (sizes - bounds.cap), found + rate * (sizes - bounds.floor))
            found = np.clip(wanted, np.maximum(found - heat, prices - trust), np.minimum(found + heat, prices + trust))
        return best

    def moved(self, before: Moves, bounds: SizeBounds) -> Moves:
        """The moves before, and the cheapest of other rows that bring sizes within the bounds.

        Linear programs over the cheapest ones, whose solutions are whole numbers if rows weigh alike, and asked to be
        otherwise. What candidates do not allow stays outside.
        """
        from scipy.optimize import Bounds, milp  # few fits need it

        counts, n_clusters, width = before.counts, len(before.counts), self.costs.shape[1] - 1
        chosen, beyond = np.zeros(len(self.rows), np.intp), sp.eye_array(n_clusters)
        costs = (self.costs[:, 1:] * self.weights[:, None]).ravel()
        order = np.argsort(costs, kind="stable")[: np.isfinite(costs).sum()]
        n_some = MOVABLE + 8 * bounds.outside(counts) / self.weights.max(initial=BEYOND)
        n_some = int(min(n_some, max(MOST_MOVABLE, n_clusters)))
        for first in range(0, len(order), n_some):
            some = order[first : first + n_some]
            some = some[chosen[some // width] == 0]
            if not len(some) or bounds.outside(counts) <= BEYOND:
                continue
            rows, places, at, shape = some // width, some % width + 1, np.arange(len(some)), (n_clusters, len(some))
            into, out = (sp.csr_array((self.weights[rows], (self.candidates[rows, j], at)), shape) for j in (places, 0))
            low, high = bounds.floor - counts, bounds.cap - counts
            numbers = np.unique(rows, return_inverse=True)[1]
            once = sp.csr_array((np.ones(len(some)), (numbers, at)), (len(some), len(some) + 2 * n_clusters))
            result = milp(
                np.append(costs[some] / max(costs[some[-1]], BEYOND), np.full(2 * n_clusters, OUTSIDE_COST)),
                constraints=[(once, 0, 1), (sp.hstack([into - out, beyond, -beyond]), low, high)],
                bounds=Bounds(0, np.append(np.full(len(some), np.inf), np.maximum(np.append(low, -high), 0))),
                integrality=np.repeat([np.ptp(self.weights) > 0, False], [len(some), 2 * n_clusters]),
                options={"mip_rel_gap": 0.01},
            )
            if result.x is not None:  # presolving may fail where nothing can move
                taken = np.flatnonzero(result.x[: len(some)] > 0.5)
                chosen[rows[taken]] = places[taken]
                counts = counts + (into - out)[:, taken].sum(axis=1)
        there, labels = np.flatnonzero(chosen), before.labels.copy()
        labels[self.rows[there]] = self.candidates[there, chosen[there]]
        return Moves(labels, counts, before.cost + float(self.costs[there, chosen[there]] @ self.weights[there]))


@dataclass(frozen=True, slots=True)
class EdgeRule:
    """The rows whose candidates a pass keeps: those with the least differences to another cluster."""

    most: int
    limit: float = np.inf  # of differences
    # (k,): 1 for clusters that take rows, -1 for those that give them; empty while prices are tuned, for all of them
    roles: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    one_in: int = 1  # each row sees one in so many of the clusters that take rows, so that all are seen
    moves: Moves | None = None  # of rows that are left out

    def edges(
        self,
        X: Matrix,
        table: NearestCenters,
        rows: NDArray[np.int64],
        weights: Floats,
        known: tuple[NDArray[np.int32], Floats] | None = None,
    ) -> Edges:
        """Candidates of rows (n, m), of those near a border if labels and gaps (n,) are `known`. O(n * m * k)."""
        if known is not None and len(rows) > EDGE_ROWS // 4:  # candidates take more memory than rows
            halves = slice(0, len(rows) // 2), slice(len(rows) // 2, len(rows))
            given = ((X[half], table, rows[half], weights[half], (known[0][half], known[1][half])) for half in halves)
            return self.joined([self.edges(*each) for each in given])
        if known is not None:
            labels, gaps = known
            kept = np.flatnonzero(self.roles[labels] < 0 if len(self.roles) else gaps <= self.limit)
            if self.moves is not None:
                kept = kept[self.moves.labels[rows[kept]] == table.n_clusters]
            X, rows, labels, weights = X[kept], rows[kept], labels[kept], weights[kept] if len(weights) else weights
        takers = np.flatnonzero(self.roles > 0) if len(self.roles) else np.arange(table.n_clusters)
        near, parts = np.empty((len(rows), CANDIDATES + 1), np.int32), np.arange(len(takers)) % self.one_in
        for part in range(self.one_in):
            seeing = np.flatnonzero(rows % self.one_in == part)
            near[seeing] = _cheapest(X[seeing], table, takers[parts == part], near.shape[1])
        labels = near[:, 0] if known is None else labels
        others = np.take_along_axis(near, np.argsort(near == labels[:, None], axis=1, kind="stable"), axis=1)[:, :-1]
        barred = (others < 0) | (others == labels[:, None])
        candidates = np.hstack([labels[:, None], np.where(barred, labels[:, None], others)])
        costs = np.stack([row_d2(X, np.ascontiguousarray(each), table) for each in candidates.T], axis=1)
        costs = np.maximum(costs + table.prices[candidates] - costs[:, :1] - table.prices[labels][:, None], 0)
        costs[:, 1:][barred] = np.inf
        return Edges(rows, weights if len(weights) else np.ones(len(rows)), candidates, costs)

    def among(self, moves: Moves, bounds: SizeBounds) -> EdgeRule:
        """The rule for the rows that still have to move: out of clusters that are too large, then to too small ones."""
        counts, gives, takes = moves.counts, moves.counts > bounds.cap + BEYOND, moves.counts < bounds.cap
        if not gives.any():
            gives, takes = counts > bounds.floor, counts < bounds.floor
        # rows that are alike see the same clusters, which should have room for twice the rows of one
        wanted = 2 * (counts.max() - bounds.cap) / (CANDIDATES * (bounds.cap - counts[takes]).mean())
        one_in = int(np.clip(np.ceil(wanted), 1, 1 + takes.sum() // CANDIDATES))
        return replace(self, roles=takes.astype(np.int8) - gives, one_in=one_in, moves=moves)

    def joined(self, parts: Sequence[Edges]) -> Edges:
        """The rows that are kept, in the order of their numbers."""
        rows, least = np.hstack([(part.rows, part.costs[:, 1:].min(axis=1)) for part in parts])
        kept = np.sort(np.lexsort((rows, least))[: self.most])
        if np.array_equal(kept, np.arange(len(parts[0].rows))):
            return parts[0]
        return Edges(*(np.concatenate([getattr(part, name) for part in parts])[kept] for name in Edges.__slots__))


def _cheapest(X: Matrix, table: NearestCenters, columns: NDArray[np.intp], n_wanted: int) -> NDArray[np.intp]:
    """Clusters among `columns` with the least squared distances and prices (n, n_wanted); -1 where there are fewer."""
    found, step = np.empty((X.shape[0], min(n_wanted, len(columns))), np.int32), max(1, SCORES // len(columns))
    if len(columns) < table.n_clusters:
        table = NearestCenters.build(table.centers[columns], table.dtype, prices=table.prices[columns])
    for first in range(0, X.shape[0], step):
        scores = np.ascontiguousarray(table.scores(rows_between(X, first, first + step)), np.float32)
        lowest_columns(scores, np.zeros(len(columns), np.float32), found[first : first + step])
    return np.pad(columns[found], ((0, 0), (0, n_wanted - found.shape[1])), constant_values=-1)


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

    prices: Floats  # (k,): at a floor below 0
    sizes: Floats  # (k,): weights of the clusters without prices
    rule: EdgeRule  # for the next pass over all rows; without moves while prices are tuned

    @property
    def table_prices(self) -> Floats:
        """The prices from 0 on."""
        return self.prices - self.prices.min()

    def balance(self, moves: Moves, totals: Totals, factor: float) -> dict[str, float]:
        """What `size_balance_` tells, by the sums of the last pass."""
        after = factor * (totals.d2 + (moves.cost - float((moves.counts - totals.counts) @ self.table_prices)))
        told = {"n_moved": int(moves.moving.sum()), "inertia_before": factor * totals.d2, "inertia_after": after}
        for when, sizes in (("_before", self.sizes), ("", moves.counts)):
            told |= {"smallest" + when: factor * float(sizes.min()), "largest" + when: factor * float(sizes.max())}
        shares = moves.counts / moves.counts.mean()
        return told | {"variation": float(shares.std()), "largest_over_mean": float(shares.max())}


def even_out(
    blocks: Blocks, centers: Floats, bounds: SizeBounds, seed: int, n_rows: int, placed: Callable[..., Floats] | None
) -> tuple[Floats, Evened]:
    """Find centers (k, m) and prices by turns, so that the sizes of clusters of held rows keep the bounds.

    Rounds end when few rows are left outside, which moves of single rows bring in, few clusters below half of the
    floor, which prices cannot fill, and the objective has settled. Where the former fails, centers are moved elsewhere,
    at first only if many rows are outside. `n_rows`: all rows. `placed`: as of `lloyd`.
    """
    n_clusters, rng, known, inertias = len(centers), np.random.default_rng(seed), False, [np.inf, np.inf]
    n_parts, most = -(-blocks.n_rows // edge_rows(blocks.n_rows, n_clusters)), edge_rows(n_rows, n_clusters)
    before, labels, limit, rule = np.full(n_clusters, blocks.total_weight), None, np.inf, EdgeRule(blocks.n_rows)
    prices = missed = np.zeros(n_clusters)  # `missed` by the drawn rows, of the sizes, if these are `known`
    for index in range(ROUNDS if n_clusters > 1 else 0):
        drawn = DrawnEdges(replace(blocks, prices=prices - prices.min()).table(centers), rule, n_parts, seed)
        edges = rule.joined(list(outputs(drawn, blocks.placed(), blocks.executor, Stage("sizes"))))
        share = float(edges.weights.sum()) / blocks.total_weight
        now = np.bincount(edges.candidates[:, 0], edges.weights, n_clusters)
        before, part = now / share if index == 0 else before, bounds.times(share)
        change = edges.tuned(now + missed, prices, part) - prices
        prices, found = prices + change, np.bincount(edges.cheapest(change), edges.weights, n_clusters)
        limit = float(np.quantile(edges.costs[:, 1], most / n_rows)) if most < n_rows else np.inf
        sizes, outside = found + missed, part.outside(found + missed) / found.sum()
        starved = known and (sizes < part.floor / 2).sum() > MOST_STARVED * n_clusters
        if known and outside <= MOST_OUTSIDE and not starved and inertias[1] >= (1 - SETTLED) * inertias[0]:
            break
        known = not starved and outside <= (MOST_OUTSIDE if known else FAR_OUTSIDE)
        if not known:
            _relocate(edges, centers, prices, change, sizes, part, rng)
        totals, labels = replace(blocks, prices=prices - prices.min()).step(centers, labels, "sizes")
        inertias = [inertias[1], inertia_of(totals, centers, blocks.total_d2norm)]  # of the last two rounds
        missed = known * (share * totals.counts - found)
        centers = totals.means(fallback=centers) if placed is None else placed(totals.means(fallback=centers))
    return centers, Evened(prices, before, EdgeRule(most, limit))


def _relocate(
    edges: Edges, centers: Floats, prices: Floats, change: Floats, sizes: Floats, bounds: SizeBounds, rng: Generator
) -> None:
    """Move centers that are missed least, with prices, to clusters that prices leave too large.

    Each goes to where a row of such a cluster lies on the way to another center.
    """
    labels, above = edges.cheapest(change), np.maximum(sizes - bounds.cap, 0)
    gaps = np.diff(np.sort(edges.costs + change[edges.candidates], axis=1)[:, :2], axis=1)[:, 0]
    lost = np.bincount(labels, edges.weights * gaps, len(sizes))
    lost = np.where(above > 0, np.inf, np.where(sizes < bounds.floor / 2, -1, lost))
    wanted = max(1, int((lost < 0).sum()), int(bounds.outside(sizes) / sizes.mean() / 2))
    gone = np.argsort(lost, kind="stable")[: min(wanted, int(np.isfinite(lost).sum()), len(sizes) // 2)]
    shares = edges.weights * (above / np.maximum(sizes, BEYOND) + BEYOND)[labels]
    rows = rng.choice(len(labels), len(gone), p=shares / shares.sum())
    places = rng.integers(1, 1 + min(CANDIDATES, len(sizes) - 1), len(gone))
    own, other, before = edges.candidates[rows, 0], edges.candidates[rows, places], prices - change
    way, excess = centers[other] - centers[own], edges.costs[rows, places] - before[other] + before[own]
    share = (1 - excess / np.maximum(np.square(way).sum(axis=1), BEYOND)) / 2
    centers[gone], prices[gone] = centers[own] + np.clip(share, -0.5, 0.5)[:, None] * way, prices[own]
