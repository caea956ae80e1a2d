"""Rows drawn by their share of an objective; a uniform sample misses them.

Half of a row's rate is its share of all weight, the other half its share of the objective of known centers. Keys are
hashes of row ids, so draws depend neither on workers nor on timing; several calls join by keeping the lowest keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import stacked
from streamkm.core.matrix import Matrix, matrix_bytes
from streamkm.kernels.seeding.row_draws import draw_chances, lowest_by_rate

SPARE = 1.5  # rows expected for each that is kept, where the objective is what was expected
MOST_PARTS = 64  # draws that wait: more take longer to send than their rows
SLACK = 1.25  # rows that may wait for each that is kept, before the highest keys are dropped
ROWS_PER_CLUSTER, FEWEST_ROWS = 40, 4096
NO_OBJECTIVE = 1e-100  # expected of rows that lie on centers: all that do not are drawn before them
DRAW_BYTES = 4 << 20  # of the rows that one call may hold


@dataclass(frozen=True, slots=True)
class Drawn:
    """Drawn rows, in the order of their row ids."""

    X: Matrix  # ndarray or csr_array (r, m)
    row_ids: NDArray[np.int64]  # (r,)
    weights: NDArray[np.float64]  # (r,): their own
    d2: NDArray[np.float64]  # (r,): squared distances that they were drawn by
    keys: NDArray[np.float64]  # (r,)
    limit: float  # every row whose key is below it is here

    @property
    def n_rows(self) -> int:
        """Rows."""
        return len(self.row_ids)

    def rows(self, some: NDArray[np.intp]) -> tuple[Any, ...]:
        """The fields of some rows, but for the limit."""
        return tuple(array[some] for array in (self.X, self.row_ids, self.weights, self.d2, self.keys))

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return matrix_bytes(self.X) + 32 * len(self.row_ids)


@dataclass(frozen=True, slots=True)
class DrawRule:
    """The choice of the rows with the lowest keys, a row of weight w at the rate ``w (per_weight + per_d2 d2)``.

    References: Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012), algorithm 2:
    rounds of draws by share of the objective. Efraimidis and Spirakis, Inf. Process. Lett. 97 (2006): exponential keys.
    Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007: probabilities given the lowest key left
    out.
    """

    size: int  # rows at most
    seed: int  # of the hash of row ids; below 2^64
    per_weight: float
    per_d2: float

    @classmethod
    def of(cls, size: int, seed: int, total_weight: float, objective: float) -> DrawRule:
        """Make the rule for as many expected draws by weight as by share of the objective."""
        return cls(size, seed, size / 2 / total_weight, size / 2 / max(objective, NO_OBJECTIVE))

    def draw(
        self, X: Matrix, row_ids: NDArray[np.int64], weights: NDArray[np.float64], d2: NDArray[np.float64]
    ) -> Drawn:
        """Draw some of the rows (n, m).

        `row_ids`: int64 (n,). `weights`: float64 (n,) or (0,). `d2`: float64 (n,), to the nearest centers.
        """
        for most in (self.size, len(row_ids)):  # the second where far more lies far away than was expected
            picked, keys = np.empty(most + 1, np.int64), np.empty(most + 1)
            given = (np.uint64(self.seed), row_ids, weights, d2, self.per_weight, self.per_d2, SPARE, most)
            found = lowest_by_rate(*given, picked, keys)
            if found <= most:
                break
        picked, keys = picked[:found], keys[:found]
        own = weights[picked] if len(weights) else np.ones(found)
        return self._lowest(Drawn(X[picked], row_ids[picked], own, d2[picked], keys, SPARE))

    def gather(self, parts: Sequence[Drawn]) -> tuple[Drawn, ...]:
        """Keep several draws apart while they are few and hold little more than wanted, else join them."""
        if len(parts) <= MOST_PARTS and sum(part.n_rows for part in parts) <= SLACK * self.size:
            return tuple(parts)
        return (self.join(parts),)

    def join(self, parts: Sequence[Drawn]) -> Drawn:
        """The draw of all rows at once, in the order of row ids, whatever the order of `parts`."""
        limit = min(part.limit for part in parts)
        X, *others = zip(*(part.rows(np.flatnonzero(part.keys < limit)) for part in parts), strict=True)
        row_ids, weights, d2, keys = map(np.concatenate, others)
        return self._lowest(Drawn(stacked(X), row_ids, weights, d2, keys, limit))

    def probabilities(self, weights: NDArray[np.float64], d2: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
        """Probabilities that rows with these weights and squared distances are drawn, by keys below `limit`."""
        out = np.empty(len(weights))
        draw_chances(weights, d2, self.per_weight, self.per_d2, limit, out)
        return out

    def unbiased(self, drawn: Drawn) -> NDArray[np.float64]:
        """Weights with which sums over the drawn rows are those over all rows, in expectation."""
        return drawn.weights / self.probabilities(drawn.weights, drawn.d2, drawn.limit)

    def _lowest(self, drawn: Drawn) -> Drawn:
        """The rows of the lowest keys, in the order of row ids."""
        order, limit = np.argsort(drawn.row_ids, kind="stable"), drawn.limit
        if drawn.n_rows > self.size:
            limit = float(np.partition(drawn.keys, self.size)[self.size])
            order = order[drawn.keys[order] < limit]
        X, row_ids, weights, d2, keys = drawn.rows(order)
        return Drawn(X, row_ids, weights, d2, keys, limit)


def draw_rows(n_clusters: int, row_bytes: int) -> int:
    """Number of rows, of `row_bytes` each, that a pass draws for k clusters."""
    return min(max(FEWEST_ROWS, ROWS_PER_CLUSTER * n_clusters), DRAW_BYTES // max(1, row_bytes))


def combined(rules: Sequence[DrawRule], parts: Sequence[Drawn], d2s: Sequence[NDArray[np.float64]]) -> Drawn:
    """Join several drawings of the same rows, with weights that keep every sum unbiased.

    A row drawn twice appears twice: by the balance heuristic, each time with its weight over the sum of its
    probabilities. `d2s`: for each rule, the float64 (r,) by which it would have drawn the rows of all parts, part after
    part.

    References: Veach and Guibas, "Optimally combining sampling techniques for Monte Carlo rendering", SIGGRAPH 1995,
    section 3.2.
    """
    weights = np.concatenate([part.weights for part in parts])
    chances = sum(rule.probabilities(weights, d2, part.limit) for rule, part, d2 in zip(rules, parts, d2s, strict=True))
    return Drawn(
        stacked([part.X for part in parts]),
        np.concatenate([part.row_ids for part in parts]),
        weights / chances,
        NO_WEIGHTS,
        NO_WEIGHTS,
        np.inf,
    )
