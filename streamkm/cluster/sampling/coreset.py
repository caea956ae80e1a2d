"""Weighted coresets of rows: few rows that stand for many.

Parts are reduced where they are read, then joined and reduced in the order of a `CoresetTree`. Hashes of row ids decide
about rows, so a result depends neither on workers nor on timing. Never sees a source or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.sampling import sensitivity as importance
from streamkm.cluster.sampling.row_sample import as_block_matrix, stacked
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix, added_in_order, matrix_bytes
from streamkm.kernels.intrinsics.hashing import hash_integers
from streamkm.kernels.seeding.row_draws import balance

SIZE_PER_CLUSTER = 500
SMALLEST_SIZE = 10_000
NEGLIGIBLE = 1e-30  # share of the whole weight at which a row may go for nothing
ORDER_STREAM, SKETCH_STREAM = 1, 2  # of hashes; reductions and their rounds take those from 3 on
FIRST_STREAM = 3


def default_size(n_clusters: int) -> int:
    """Rows of a coreset that loses little for k-means; see `SIZE_PER_CLUSTER`."""
    return max(SMALLEST_SIZE, SIZE_PER_CLUSTER * n_clusters)


@dataclass(frozen=True, slots=True)
class Part:
    """Weighted rows that stand for others: on their way into a coreset, or one, in random order."""

    X: Matrix  # ndarray or csr_array (s, m), in the dtype that they came in
    weights: NDArray[np.float64]  # (s,): what each row stands for, as of `last_place` where weights decay
    row_ids: NDArray[np.int64]  # (s,)
    depth: int  # how often rows were left out on the way
    last_place: int  # the highest place of all rows that the part stands for
    n_rows: int  # their number, those without weight included
    total_weight: float  # their weight, as of `last_place`

    @property
    def complete(self) -> bool:
        """Whether these are all rows of positive weight, with their own weights."""
        return self.depth == 0

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return matrix_bytes(self.X) + self.weights.nbytes + self.row_ids.nbytes

    def rows(self, some: NDArray[np.intp]) -> Part:
        """Some rows, which stand for all that the part stands for."""
        return replace(self, X=self.X[some], weights=self.weights[some], row_ids=self.row_ids[some])

    def only(self, kept: NDArray[np.bool_]) -> Part:
        """Drop the other rows with their weight."""
        total = max(0.0, float(self.total_weight - self.weights[~kept].sum()))
        return replace(self.rows(np.flatnonzero(kept)), total_weight=total)

    def faded(self, factor: float) -> Part:
        """Multiply all weights by a factor."""
        return replace(self, weights=factor * self.weights, total_weight=factor * self.total_weight)


@dataclass(frozen=True, slots=True)
class CoresetRule:
    """The choice of the rows of a coreset, and their weights.

    Rows are drawn by importance (see `sensitivity`), certain ones always, and take over the weight of the others: each
    weight keeps its expectation, so the objective of any centers is unbiased, and the weights' sum is exact.

    References: Feldman and Langberg, "A unified framework for approximating and clustering data", STOC 2011; Cormode,
    Shkapenyuk, Srivastava and Xu, "Forward decay", ICDE 2009.
    """

    size: int  # rows at most, from 4
    n_clusters: int  # k
    seed: int  # of the hashes of row ids; below 2^64
    # rows back at which a row weighs half as much; infinite: weights do not decay. Weights are relative to the newest
    # row, so that nothing overflows, however long a stream is
    half_life: float = np.inf

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        if self.size < 4 or self.n_clusters < 1 or not self.half_life > 0:
            raise InvalidParameterError(
                f"size={self.size}, n_clusters={self.n_clusters}, half_life={self.half_life}; needed: at least 4, at "
                "least 1, and a positive number of rows"
            )

    def fade(self, last_place: int, now: int) -> float:
        """The factor by which weights fall between two row ids."""
        return float(np.exp2((last_place - now) / self.half_life))

    def part(self, X: Matrix, row_ids: NDArray[np.int64], weights: NDArray[np.float64]) -> Part:
        """Make a part of rows (n, m) just read; keeps at most `size`, and none of weight 0.

        `row_ids`: int64 (n,), n at least 1. `weights`: float64 (n,) or (0,), empty: every row weighs 1.
        """
        weights = weights if len(weights) else np.ones(len(row_ids))
        last_place, n_rows = int(row_ids.max()), len(row_ids)
        decayed = weights * np.exp2((row_ids - last_place) / self.half_life)
        total = float(decayed.sum())
        kept = decayed > 0
        part = Part(X, decayed, row_ids, 0, last_place, n_rows, total)
        return self.reduced(part if kept.all() else part.rows(np.flatnonzero(kept)))

    def join(self, parts: Sequence[Part]) -> Part:
        """Make one part of several, with at most `size` rows; none is changed."""
        return parts[0] if len(parts) == 1 else self.reduced(self.together(parts))

    def together(self, parts: Sequence[Part]) -> Part:
        """All rows of several parts, with their weights as of the newest part."""
        last_place = max(part.last_place for part in parts)
        fades = [self.fade(part.last_place, last_place) for part in parts]
        return Part(
            stacked([part.X for part in parts]),
            np.concatenate([fade * part.weights for part, fade in zip(parts, fades, strict=True)]),
            np.concatenate([part.row_ids for part in parts]),
            max(part.depth for part in parts),
            last_place,
            sum(part.n_rows for part in parts),
            added_in_order(fade * part.total_weight for part, fade in zip(parts, fades, strict=True)),
        )

    def finish(self, part: Part) -> Part:
        """The coreset, in random order: every prefix is a fair sample of it."""
        return part.rows(self.order(part))

    def order(self, part: Part) -> NDArray[np.intp]:
        """The order (s,) of a part's rows in `finish`."""
        return np.lexsort((part.row_ids, self._draws(ORDER_STREAM, part.row_ids)))

    def reduced(self, part: Part) -> Part:
        """Draw at most `size` rows of a part by importance, where there are more."""
        if len(part.row_ids) <= self.size:
            return part
        heavy = np.flatnonzero(part.weights > NEGLIGIBLE * part.total_weight)
        if len(heavy) < len(part.row_ids):
            part = part.rows(heavy)
            if len(part.row_ids) <= self.size:
                return replace(part, depth=part.depth + 1)
        X = importance.measurable(as_block_matrix(part.X), self._seed(SKETCH_STREAM))
        depth = part.depth + 1
        stream = FIRST_STREAM + depth * (importance.ROUNDS + 1)
        shares, labels, d2 = importance.sensitivity(
            X, part.weights, self.n_clusters, lambda round_: self._draws(stream + 1 + round_, part.row_ids)
        )
        tops = part.weights / _probabilities(shares, self.size - 1)
        order = np.lexsort((part.row_ids, d2, labels))  # neighbours are alike
        drawn = part.weights[order]
        balance(drawn, tops[order], self._draws(stream, part.row_ids)[order])
        kept = np.sort(order[drawn > 0])
        weights = np.empty(len(order))
        weights[order] = drawn
        return replace(part.rows(kept), weights=weights[kept], depth=depth)

    def _draws(self, stream: int, row_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Uniform numbers in (0, 1) by place, independent between streams."""
        hashes = np.empty(len(row_ids), np.int64)
        hash_integers(np.uint64(self._seed(stream)), row_ids, hashes)
        return np.asarray(((hashes >> 11) + 0.5) / 2.0**52, np.float64)

    def _seed(self, stream: int) -> int:
        return int(np.random.SeedSequence([self.seed, stream]).generate_state(1, np.uint64)[0])


def _probabilities(shares: NDArray[np.float64], wanted: int) -> NDArray[np.float64]:
    """Probabilities proportional to `shares`, at most 1, with sum `wanted`, which is below the number of shares."""
    certain = np.zeros(len(shares), bool)
    while True:
        rest = float(shares[~certain].sum())
        factor = (wanted - int(certain.sum())) / rest
        more = ~certain & (shares * factor >= 1)
        if not more.any():
            return np.where(certain, 1.0, shares * factor)
        certain |= more


@dataclass(eq=False, repr=False)
class CoresetTree:
    """Joins parts, two neighbours at a time, whatever order they come in.

    A node of level l stands for parts ``i 2^l`` to ``(i + 1) 2^l - 1``, and is made as soon as both halves are there.
    So nodes depend on the set of parts alone; consecutive parts leave at most ``log2(parts) + 1``.
    """

    rule: CoresetRule
    nodes: dict[tuple[int, int], Part] = field(default_factory=dict)

    def add(self, index: int, X: Matrix, row_ids: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Take the rows of part number `index`; as for `CoresetRule.part`."""
        self.insert(self.rule.part(X, row_ids, weights), index)

    def insert(self, part: Part, index: int, level: int = 0) -> None:
        """Take a part, or a node of another tree of the same rule; a second one of the same number joins the first."""
        while True:
            same = self.nodes.pop((level, index), None)
            if same is not None:
                part = self.rule.join([same, part])
            other = self.nodes.pop((level, index ^ 1), None)
            if other is None:
                self.nodes[level, index] = part
                return
            part = self.rule.join([other, part] if index & 1 else [part, other])
            level, index = level + 1, index >> 1

    def merged(self, other: CoresetTree) -> CoresetTree:
        """A tree of the parts of both, unchanged ones; raises InvalidParameterError if their rules differ."""
        if other.rule != self.rule:
            raise InvalidParameterError(f"coresets by different rules: {self.rule} and {other.rule}; needed: the same")
        tree = CoresetTree(self.rule, dict(self.nodes))
        tree.absorb(other)
        return tree

    def absorb(self, other: CoresetTree) -> None:
        """Take the parts of another tree of the same rule, which is not changed."""
        for (level, index), part in sorted(other.nodes.items(), key=_first_part):
            self.insert(part, index, level)

    def part(self) -> Part | None:
        """All rows so far as one part, or None.

        Nodes are joined two at a time, the last and smallest first, so that only one join is in memory beside them.
        """
        parts = [part for _, part in sorted(self.nodes.items(), key=_first_part)]
        while len(parts) > 1:
            last = parts.pop()
            parts[-1] = self.rule.join([parts[-1], last])
        return parts[0] if parts else None

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return sum(part.n_bytes for part in self.nodes.values())

    def __sizeof__(self) -> int:
        """Return `n_bytes`, by which Dask decides about moves and spills."""
        return self.n_bytes


def _first_part(item: tuple[tuple[int, int], Part]) -> tuple[int, int]:
    (level, index), _ = item
    return index << level, level
