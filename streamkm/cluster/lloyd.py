"""Lloyd's algorithm on blocks, wherever they are held, and the sums that every step and every pass gathers.

The loop and its stopping rule are here; one step on one block is the kernels' work. Sums are float64, gathered in block
order in a fixed tree. Never sees a source or a file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.center_index import FEWEST_CENTERS
from streamkm.cluster.center_table import CenterTable
from streamkm.cluster.neighbours import Neighbourhood
from streamkm.cluster.rows import Block, add_rows, row_d2
from streamkm.cluster.spill import Held, loaded
from streamkm.compute import Executor, Joining, Listener
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.kernels.cluster import totals as kernels
from streamkm.kernels.cluster.rows import add_csr_rows

Labels: TypeAlias = tuple[NDArray[np.int32], ...]
"""Of the rows of each block."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a step gathers over rows: one addend of the reduction.

    Attributes
    ----------
    sums : float64 (k, m)
        Weighted sums of the rows of each cluster.
    counts : float64 (k,)
        Their total weight.
    d2 : float64
        Weighted sum of squared distances to the centers, where the step computes it.
    """

    sums: NDArray[np.float64]
    counts: NDArray[np.float64]
    d2: float = 0.0

    @classmethod
    def zeros(cls, n_clusters: int, n_components: int) -> Totals:
        """Start empty."""
        return cls(np.zeros((n_clusters, n_components)), np.zeros(n_clusters))

    def means(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cluster means (k, m); rows of `fallback` for clusters without weight."""
        out = np.empty_like(self.sums)
        kernels.means(self.sums, self.counts, fallback, out)
        return out

    def to_means(self, fallback: NDArray[np.float64]) -> NDArray[np.float64]:
        """As `means`, in place: overwrites the sums, as new memory costs more than the division."""
        if not self.sums.flags.writeable:  # as it came from a worker
            return self.means(fallback)
        kernels.means(self.sums, self.counts, fallback, self.sums)
        return self.sums

    def explained(self) -> float:
        """What the clusters' means explain of the rows' squared norms: the rest is squared distances to them."""
        return float(kernels.explained(self.sums, self.counts))


def assigned(
    totals: Totals | None,
    X: Matrix,
    weights: NDArray[np.float64],
    table: CenterTable,
    *,
    with_d2: bool,
    d2norms: NDArray[np.float64] | None = None,
    gaps: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.int32], Totals, NDArray[np.float64]]:
    """Find the nearest centers of rows and add the rows to the sums of their clusters, in the memory of `totals`.

    Parameters
    ----------
    totals : Totals or None
        None: sums begin with these rows.
    with_d2 : bool
        Squared distances are wanted, and labels that are the nearest centers in truth.
    d2norms : float64 (n,), optional
        Squared norms of the rows: such labels are wanted, but no exact distances.
    gaps : float64 (n,), optional
        Written, where such labels are wanted; see `CenterTable.labels`.

    Returns
    -------
    labels : int32 (n,)
    totals : Totals
    d2 : float64 (n,), or (0,) unless asked for
        Squared distances to the nearest centers; with `d2norms`, those of `labels_and_lifted`.
    """
    fresh = totals is None
    if totals is None:  # `add_rows` clears the sums
        totals = Totals(np.empty(table.centers.shape), np.zeros(table.n_clusters))
    if d2norms is not None:
        labels, lifted = table.labels_and_lifted(X, d2norms, gaps)
        add_rows(X, weights, labels, totals.sums, totals.counts, fresh=fresh)
        return labels, totals, lifted
    labels = table.labels(X, gaps=gaps) if with_d2 else step_labels(X, table)
    to = table if with_d2 else None
    return labels, totals, add_rows(X, weights, labels, totals.sums, totals.counts, fresh=fresh, to=to)


def step_labels(X: Matrix, table: CenterTable) -> NDArray[np.int32]:
    """Nearest centers of rows (n,) in a step of Lloyd's algorithm: as exact as the rows are stored."""
    return table.labels(X) if working_dtype(X.dtype) == np.float64 else table.lowest(X)[0]


def join_totals(parts: Sequence[Totals]) -> Totals:
    """Add up, in order; no addend is changed."""
    if len(parts) == 1:
        return parts[0]
    sums = np.empty_like(parts[0].sums)
    kernels.join(parts[0].sums, parts[1].sums, sums)
    for part in parts[2:]:
        kernels.join(sums, part.sums, sums)
    counts = sum((part.counts for part in parts[1:]), start=parts[0].counts)
    return Totals(sums, counts, sum(part.d2 for part in parts))


def absorb_totals(first: Totals, second: Totals) -> Totals:
    """As `join_totals` of both, in the memory of the first: new memory costs more than the sums."""
    kernels.join(first.sums, second.sums, first.sums)
    return Totals(first.sums, first.counts + second.counts, first.d2 + second.d2)


JOIN_TOTALS = Joining(join_totals, absorb_totals)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks in order, held by an executor.

    Attributes
    ----------
    handles : tuple
        Blocks, where blocks were written, or futures of blocks.
    n_rows, total_weight, total_d2norm : numbers
        Over all blocks; `total_d2norm` is the weighted sum of squared norms.
    largest_d2norm : float
        Largest squared norm of a row.
    n_components : int
    dtype : dtype
        Of the products with centers: float32 or float64.
    partable : bool
        Whether a run may look at some rows only: they are dense, and memory holds most of them once more.
    """

    executor: Executor
    handles: tuple[Any, ...]
    n_rows: int
    n_components: int
    dtype: np.dtype[Any]
    total_weight: float
    total_d2norm: float
    largest_d2norm: float
    partable: bool

    def table(self, centers: NDArray[np.float64]) -> CenterTable:
        """Lay out centers (k, m) for these blocks."""
        return CenterTable.build(centers, self.dtype)

    def totals(self, centers: NDArray[np.float64], stage: str = "lloyd") -> Totals:
        """Assign every row to its nearest center; gather sums and counts."""
        table = self.executor.share(self.table(centers))
        return self.executor.fold(stage, _step, JOIN_TOTALS, self.handles, len(self.handles), table)

    def step(
        self, centers: NDArray[np.float64], labels: Labels | None, stage: str, *, full: bool
    ) -> tuple[Totals, Labels | None]:
        """As `totals`; of many centers, among those near each row's last one.

        Parameters
        ----------
        labels : tuple of int32 (n,), optional
            Of the last step, for each block; None: all centers are looked at.
        full : bool
            Whether all are in any case.

        Returns
        -------
        totals : Totals
        labels : tuple of int32 (n,), or None
            For the next step; None where there are few centers, or rows are sparse.
        """
        if len(centers) < FEWEST_CENTERS:
            return self.totals(centers, stage), None
        found: list[NDArray[np.int32] | None] = []
        listener: Listener[Totals] = Listener(found.append)
        table, n_blocks = self.table(centers), len(self.handles)
        items = map(list, zip(self.handles, labels or [None] * n_blocks, strict=True))
        near = labels is not None and not full
        shared = self.executor.share(Neighbourhood.of(table, executor=self.executor) if near else table)
        step = _near_step if near else _full_step
        totals = self.executor.fold(stage, step, JOIN_TOTALS, items, n_blocks, shared, listener=listener)
        told = tuple(part for part in found if part is not None)
        return totals, told if len(told) == n_blocks else None

    def parted(
        self, centers: NDArray[np.float64], reach: NDArray[np.float64], stage: str
    ) -> tuple[Totals, Parted | None]:
        """As `totals`; the rows near borders between clusters become blocks of their own.

        Parameters
        ----------
        reach : float64 (k,)
            How much farther, in squared distance, the second nearest center of such a row of each cluster is at most.

        Returns
        -------
        totals : Totals
            Of all rows.
        parted : Parted or None
            None where more than `MOST_NEAR` of a block's rows are near.
        """
        shared = self.executor.share((self.table(centers), reach))
        handles: list[Any] = []
        n_near, few, rest, near = 0, True, None, None
        for handle, part in self.executor.hold(stage, _part, self.handles, shared):
            if part.n_near:
                handles.append(handle)
            n_near += part.n_near
            few &= part.few
            rest = part.rest if rest is None else join_totals([rest, part.rest])
            near = part.near if near is None else join_totals([near, part.near])
        assert rest is not None
        assert near is not None  # there are blocks
        parted = Parted(replace(self, handles=tuple(handles), n_rows=n_near), rest) if few and handles else None
        return join_totals([rest, near]), parted


@dataclass(frozen=True, slots=True)
class Parted:
    """Rows near borders between clusters, and the sums of all others.

    Attributes
    ----------
    near : Blocks
        `total_weight`, `total_d2norm` and `largest_d2norm` are those of all rows.
    rest : Totals
    """

    near: Blocks
    rest: Totals

    def totals(self, centers: NDArray[np.float64], stage: str) -> Totals:
        """Assign the rows near borders anew."""
        return join_totals([self.rest, self.near.totals(centers, stage)])


@dataclass(frozen=True, slots=True)
class LloydResult:
    """Where Lloyd's algorithm stopped.

    Attributes
    ----------
    centers : float64 (k, m)
    inertia : float
        Sum of squared distances of the last step's assignment to the centers that made it.
    n_iter : int
    converged : bool
        Whether the stopping rule ended it, not `max_iter`.
    history : tuple of float
        Inertia before each update; of an accelerated run, the lowest so far, about the clusters' own means.
    means : float64 (k, m) or None
        Of an accelerated run that may go on: the means that the best step left; `centers` are ahead of them.
    pace : int
        Steps since the acceleration began anew.
    labels : tuple of int32 (n,) or None
        Of an accelerated run with many centers: those of the last step, for each block.
    midway : bool
        Whether the next step depends on more than this: no other run can go on from here.
    """

    centers: NDArray[np.float64]
    inertia: float
    n_iter: int
    converged: bool
    history: tuple[float, ...]
    means: NDArray[np.float64] | None = None
    pace: int = 0
    labels: Labels | None = None
    midway: bool = False


MOST_MOMENTUM = 0.8
"""Share of its last way that a mean is carried on by, at most, in an accelerated run."""

FULL_STEPS = 4
"""Steps from one that looks at all centers to the next, where there are many."""

PARTED_STEPS = 3
"""Steps that look at the rows near borders between clusters only, after one that finds them."""

PARTED_WORK = 1 << 28
"""Products of numbers in a step (n * m * k), from which that is worth it."""

REACH = 4.0
"""How far borders are thought to move in these steps, in ways of the last step."""

MOST_NEAR = 0.7
"""Share of a block's rows near borders, from which all rows are looked at."""

WINDOW = 2
"""Steps that an accelerated run must lower the inertia in by more than `tol`: single ones may be short."""


def lloyd(
    blocks: Blocks,
    centers: NDArray[np.float64],
    *,
    max_iter: int,
    tol: float,
    on_step: Callable[[LloydResult], None] | None = None,
    begun: LloydResult | None = None,
    accelerated: bool = False,
) -> LloydResult:
    """Run Lloyd's algorithm.

    O(n * m * k) a step for dense blocks, O(nnz * k) for sparse ones. A cluster that loses all its rows is moved to
    the row farthest from its center.

    An accelerated run carries every mean on by a growing share of its last way (Nesterov's sequence, up to
    `MOST_MOMENTUM`), and begins anew at the best means whenever a step did not lower the inertia. Its fixed points are
    those of Lloyd's algorithm. It is where Lloyd's ends after about half the steps, and goes on to lower inertias. It
    holds two more arrays of centers. Where a step takes long, three of four look at the rows near borders between
    clusters only, and the others keep their clusters; it ends before `max_iter`
    only by a step that looks at all.

    Parameters
    ----------
    blocks : Blocks
    centers : float64 (k, m)
        Where to start.
    max_iter : int
        Steps at most.
    tol : float
        Stop when a step (of an accelerated run: `WINDOW` steps) lowers the inertia by no more than this share of it.
        0: stop at the fixed point.
    on_step : callable, optional
        Gets where the algorithm is after every step.
    begun : LloydResult, optional
        Where to go on, in place of `centers`.
    accelerated : bool

    Returns
    -------
    LloydResult
        `centers` may have fewer than k rows if the data have fewer distinct rows.

    References
    ----------
    Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 28 (1982). O'Donoghue and Candès, "Adaptive
    restart for accelerated gradient schemes", Found. Comput. Math. 15 (2015), section 3.2.
    """
    if accelerated:
        return _accelerated(blocks, centers, max_iter, tol, on_step, begun)
    history: list[float] = []
    converged = False
    if begun is not None:
        centers, history, converged = begun.centers, list(begun.history), begun.converged
    while len(history) < max_iter and not converged:
        totals = blocks.totals(centers, f"lloyd-{len(history) + 1}")
        inertia = inertia_of(totals, centers, blocks.total_d2norm)
        updated = totals.to_means(fallback=centers)
        empty = np.flatnonzero(totals.counts == 0)
        if len(empty):
            updated = _refill(blocks, centers, updated, empty)
        elif history:
            converged = history[-1] - inertia <= tol * inertia if tol > 0 else np.array_equal(updated, centers)
        history.append(inertia)
        centers = updated
        if on_step is not None:
            on_step(LloydResult(centers, inertia, len(history), converged, tuple(history)))
    return LloydResult(centers, history[-1] if history else float("nan"), len(history), converged, tuple(history))


def _accelerated(
    blocks: Blocks,
    centers: NDArray[np.float64],
    max_iter: int,
    tol: float,
    on_step: Callable[[LloydResult], None] | None,
    begun: LloydResult | None,
) -> LloydResult:
    state = LloydResult(centers, float("nan"), 0, False, ()) if begun is None else begun
    near: Parted | None = None
    n_left = 0
    while state.n_iter < max_iter and not state.converged:
        stage, labels = f"lloyd-{state.n_iter + 1}", None
        reach = _reach(blocks, state) if near is None else None
        whole = near is None
        if near is not None:
            totals, n_left = near.totals(state.centers, stage), n_left - 1
        elif reach is not None:
            (totals, near), n_left = blocks.parted(state.centers, reach, stage), PARTED_STEPS
        else:
            totals, labels = blocks.step(state.centers, state.labels, stage, full=state.n_iter % FULL_STEPS == 0)
        means = totals.means(fallback=state.centers)
        inertia = inertia_of(totals, means, blocks.total_d2norm)
        empty = np.flatnonzero(totals.counts == 0)
        converged, ahead, pace = False, means, 0
        if len(empty):
            means = ahead = _refill(blocks, state.centers, means, empty)
            labels = near = None  # there may be fewer centers
        elif state.means is not None and state.means.shape == means.shape:
            if inertia > state.inertia and state.pace > 0:  # too far: back to the best means
                means, ahead, inertia = state.means, state.means, state.inertia
                near = None
            else:
                behind = state.history[-WINDOW:]
                converged = inertia == state.inertia or (len(behind) == WINDOW and behind[0] - inertia <= tol * inertia)
                pace = state.pace + 1
                ahead = np.empty_like(means)
                kernels.carried_on(means, state.means, min(MOST_MOMENTUM, pace / (pace + 3)), ahead)
        if (converged and not whole) or n_left == 0:
            near = None
        history = (*state.history, inertia)
        n_iter, midway = state.n_iter + 1, near is not None
        state = LloydResult(ahead, inertia, n_iter, converged and whole, history, means, pace, labels, midway)
        if on_step is not None:
            on_step(state)
    return state if state.means is None else replace(state, centers=state.means, midway=False)


def _reach(blocks: Blocks, state: LloydResult) -> NDArray[np.float64] | None:
    """How near a border rows are looked at in the next steps, as of `Blocks.parted`; None: it is not worth it."""
    n_clusters, n_components = state.centers.shape
    few = n_clusters < FEWEST_CENTERS and blocks.n_rows * n_clusters * n_components >= PARTED_WORK
    if not few or not blocks.partable or state.means is None or state.pace < 1:
        return None
    ways = state.centers - state.means
    lengths = np.sqrt(np.einsum("ij,ij->i", ways, ways)) / min(MOST_MOMENTUM, state.pace / (state.pace + 3))
    usual = float(np.sqrt(np.mean(lengths * lengths)))
    return REACH * np.sqrt(state.inertia / blocks.total_weight) * (lengths + usual)


@dataclass(frozen=True, slots=True)
class _Part:
    """What tells of a block's rows: how many are near borders, whether few enough, and the sums of these and others."""

    n_near: int
    few: bool
    rest: Totals
    near: Totals


def _part(held: Held, shared: tuple[CenterTable, NDArray[np.float64]]) -> tuple[Block, _Part]:
    """The rows of a block that are near borders, none if they are too many, and what tells of them."""
    block, (table, _) = loaded(held), shared
    labels, near = labels_and_nearness(block.X, shared)
    totals = []
    for kept in (np.where(near, np.int32(-1), labels), np.where(near, labels, np.int32(-1))):
        part = Totals(np.empty(table.centers.shape), np.zeros(table.n_clusters))
        add_rows(block.X, block.weights, kept, part.sums, part.counts, fresh=True)
        totals.append(part)
    picked = np.flatnonzero(near)
    few = len(picked) <= MOST_NEAR * block.n_rows
    found = _Part(len(picked) if few else 0, few, *totals)
    picked = picked if few else picked[:0]
    weights = block.weights[picked] if len(block.weights) else block.weights
    return Block(block.X[picked], block.d2norms[picked], weights), found


def labels_and_nearness(
    X: Matrix, shared: tuple[CenterTable, NDArray[np.float64]]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Nearest centers of dense rows (n,), and whether they are near a border: by a table, and how near that is (k,)."""
    table, reach = shared
    labels, scores, seconds = table.nearest(X)
    gaps = seconds.astype(np.float64) - scores
    return labels, gaps <= reach[labels] * table.layout(table.dtype, sparse=False).scale ** 2


def inertia_of(totals: Totals, centers: NDArray[np.float64], total_d2norm: float) -> float:
    """Sum of squared distances from sums alone: ``sum w |x|^2 - 2 sum c.S + sum n |c|^2``, float64, at least 0."""
    return max(0.0, total_d2norm + float(kernels.crossed(totals.sums, totals.counts, centers)))


def _step(state: Totals | None, held: Held, table: CenterTable) -> tuple[Totals, None]:
    block = loaded(held)
    return assigned(state, block.X, block.weights, table, with_d2=False)[1], None


def _full_step(state: Totals | None, item: list[Any], table: CenterTable) -> tuple[Totals, NDArray[np.int32] | None]:
    held, likely = item
    block = loaded(held)
    if not isinstance(block.X, np.ndarray) or block.X.dtype == np.float64:
        return assigned(state, block.X, block.weights, table, with_d2=False)[1], None
    labels = table.lowest(block.X, likely)[0]
    return _with_rows(state, block, labels, table.n_clusters), labels


def _near_step(state: Totals | None, item: list[Any], near: Neighbourhood) -> tuple[Totals, NDArray[np.int32]]:
    held, last = item
    block = loaded(held)
    labels = near.nearest(block.X, last)[0]
    return _with_rows(state, block, labels, len(near.columns)), labels


def _with_rows(state: Totals | None, block: Block, labels: NDArray[np.int32], n_clusters: int) -> Totals:
    """The sums, and a block's rows."""
    totals = state or Totals(np.empty((n_clusters, block.X.shape[1])), np.zeros(n_clusters))
    add_rows(block.X, block.weights, labels, totals.sums, totals.counts, fresh=state is None)
    return totals


def _refill(
    blocks: Blocks, centers: NDArray[np.float64], updated: NDArray[np.float64], empty: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Move clusters without rows to the farthest rows; drop them where every row lies on its center."""
    shared = blocks.executor.share(blocks.table(centers))
    pieces = list(blocks.executor.map("refill", _farthest, blocks.handles, shared, len(empty)))
    d2 = np.concatenate([piece[0] for piece in pieces])
    rows = np.concatenate([piece[1] for piece in pieces])
    order = np.argsort(-d2, kind="stable")
    _, first = np.unique(rows[order], axis=0, return_index=True)  # equal rows fill one cluster, not several
    chosen = order[np.sort(first)][: len(empty)]
    chosen = chosen[d2[chosen] > 0]
    updated[empty[: len(chosen)]] = rows[chosen]
    logger.debug("%d clusters lost their rows; %d moved to the farthest rows", len(empty), len(chosen))
    return np.delete(updated, empty[len(chosen) :], axis=0)


def _farthest(held: Held, table: CenterTable, n_wanted: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The `n_wanted` distinct rows of a block farthest from their centers, densely, with their squared distances."""
    block = loaded(held)
    X = merged(block.X)
    labels, _ = table.lowest(X)
    d2 = row_d2(X, labels, table)
    if len(block.weights):
        d2[block.weights == 0] = 0
    d2[d2 <= 1e-12 * np.maximum(block.d2norms, np.finfo(float).tiny)] = 0  # on its center, but for rounding
    # equal rows have equal distances to the center and to any other point: keep the first of each
    elsewhere = np.random.default_rng(0).normal(0, 1, (1, table.centers.shape[1]))
    point = CenterTable.build(elsewhere * np.sqrt(block.d2norms.mean() / elsewhere.size), np.float64)
    keys = row_d2(X, np.zeros(len(d2), np.int32), point)
    order = np.argsort(-d2, kind="stable")
    _, firsts = np.unique(np.column_stack([d2, keys])[order], axis=0, return_index=True)
    top = order[np.sort(firsts)[:n_wanted]]
    return d2[top], densified(X, top, table.centers.shape[1])


def merged(X: Matrix) -> Matrix:
    """The same rows with entries that repeat an index added up; dense rows as they are."""
    if isinstance(X, np.ndarray):
        return X
    copy = X.copy()
    copy.sum_duplicates()
    return copy


def densified(X: Matrix, rows: NDArray[np.intp], n_components: int) -> NDArray[np.float64]:
    """Chosen rows as float64 (len(rows), n_components)."""
    if isinstance(X, np.ndarray):
        return X[rows].astype(np.float64)
    out = np.zeros((len(rows), n_components))
    add_csr_rows(X.indptr, X.indices, X.data, np.asarray(rows, np.int64), out)
    return out
