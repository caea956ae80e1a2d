"""Passes with known centers: two that label all rows of a fit, and the first one over new rows of an update."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import BlockPass, Blocks, added
from streamkm.cluster.centers.index import held_index_bytes, index_bytes
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.even_sizes import EdgeRule, Edges, edge_rows
from streamkm.cluster.held_rows import HeldBlock, HeldRows
from streamkm.cluster.model import Model, Space
from streamkm.cluster.profile import BINS, Profile, absorb_profile, distance_histogram, profile_bytes
from streamkm.cluster.rows import Totals, absorb_totals, merged
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.tracking.followed import Ground
from streamkm.core.progress import Stage
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.engine.pass_memory import PassMemory, ReadingMemory
from streamkm.engine.passes import Pass, run
from streamkm.kernels.cluster.totals import weighted_sum
from streamkm.passes.labels import GatheredLabels, HeldLabels
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import ValidRows, changed_source
from streamkm.passes.sizes import FitSizes, UpdateSizes
from streamkm.passes.sketch import Sketched

LABEL_BYTES = 5  # of a row whose label is gathered: the label, and a flag while it is checked
# of a row near the border of its cluster, with its candidates, in a state of a pass; of the solver for moves after it
EDGE_BYTES, SOLVER_BYTES = 225, 40 << 20
DRAWN_SLACK = 1.25  # of rows that a call may draw; see `seeding.draws`

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AssignResult:
    """The result of an assign pass."""

    # exact sums and counts of the clusters, and the exact sum of squared distances to the model's centers, all in the
    # model's space
    totals: Totals
    drawn: Drawn | None = None  # rows drawn by their share of the objective, in the model's space, if a rule was given
    # distances of the rows to the model's centers, by cluster; None for rows that can be read only once
    profile: Profile | None = None
    n_rows: NDArray[np.int64] | None = None  # of each cluster, if weights decay
    edges: Edges | None = None  # rows near the border of their cluster, if sizes have bounds
    labels: Any = None  # (n,) or HeldLabels, -1 for invalid rows; None if no sink took them


@dataclass(frozen=True, slots=True)
class AssignState:
    """The state of an assign pass."""

    totals: Totals | None  # None before the first row
    profile: Profile
    drawn: tuple[Drawn, ...] = ()  # rows drawn by their share of the objective, if there is a rule
    n_rows: NDArray[np.int64] | None = None  # (k,): rows of each cluster, if weights decay
    edges: tuple[Edges, ...] = ()  # rows near the border of their cluster, if sizes have bounds


@dataclass(frozen=True, slots=True)
class Decay:
    """Weights of rows, which halve every `half_life` rows."""

    half_life: float  # rows; infinite: no decay
    last_row: int  # number of the newest row, which keeps its weight

    def weights(self, given: NDArray[np.float64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Weights (v,) of rows by their sample weights, (v,) or (0,), and their numbers (v,)."""
        if np.isinf(self.half_life):
            return given
        faded = np.exp2((numbers - self.last_row) / self.half_life)
        return given * faded if len(given) else faded


@dataclass(frozen=True, slots=True)
class Assign(Pass[AssignState, NDArray[np.int32], AssignResult]):
    """Label every row by its nearest center; gather exact sums, counts and the objective of the clusters."""

    saved_as = AssignState

    model: Model
    table: NearestCenters  # the model's
    rule: DrawRule | None = None  # by which rows are drawn in the same pass
    decay: Decay | None = None  # how weights fall with the age of rows
    ground: Ground | None = None  # rows far from it are labelled, and not counted
    edge_rule: EdgeRule | None = None  # by which rows near a border are kept

    @staticmethod
    def memory(sizes: FitSizes, space: Space) -> PassMemory:
        """Memory of sums and profiles, labels, drawn rows, and the kernels' tables of centers."""
        centers, chosen, reading = sizes.centers(sizes.width(space)), sizes.chosen, sizes.reading
        drawn = int(reading.usual_states * DRAWN_SLACK * chosen.drawn_rows * sizes.rows.placed_bytes(space))
        kept = drawn + sizes.sample_bytes * (chosen.keeps_sample or centers.many)
        kept += LABEL_BYTES * sizes.rows.n_rows * sizes.labels
        moved, edges = np.min_scalar_type(sizes.n_clusters).itemsize, edge_rows(sizes.rows.n_rows, sizes.n_clusters)
        kept += (moved * sizes.rows.n_rows + max(SOLVER_BYTES, reading.usual_states * EDGE_BYTES * edges)) * sizes.sized
        kept += centers.table_bytes + (centers.double_bytes if chosen.drawn_rows else 0)  # those of the best pass
        state = centers.double_bytes + profile_bytes(sizes.n_clusters)
        n_states, index = None, (sizes.n_clusters, centers.width, reading.n_threads)
        if centers.many:
            n_states = reading.large_states(centers.double_bytes)
            kept += max(centers.double_bytes + held_index_bytes(*index), index_bytes(*index) - n_states * state)
        return PassMemory(kept=kept, state=state, n_states=n_states, reads=not sizes.once)

    @property
    def state_bytes(self) -> float:
        """Bytes of the sums, the largest part of a state."""
        return 8 * self.model.centers.size

    def start(self) -> AssignState:
        """A state without rows."""
        n_rows = None if self.decay is None else np.zeros(self.table.n_clusters, np.int64)
        return AssignState(None, Profile.empty(self.table.n_clusters), n_rows=n_rows)

    def step(self, state: AssignState, rows: ValidRows) -> tuple[AssignState, NDArray[np.int32]]:
        """Add the rows of a chunk; return its labels (n_read,), -1 for invalid rows."""
        state, labels, _ = self.measured(state, rows)
        return state, rows.spread(self.model.names(labels), -1)

    def measured(
        self, state: AssignState, rows: ValidRows
    ) -> tuple[AssignState, NDArray[np.int32], NDArray[np.float64]]:
        """Add the rows of a chunk; return labels (v,) and squared distances (v,) of the valid ones."""
        model, table, weights = self.model, self.table, rows.weights
        if self.decay is not None:
            weights = self.decay.weights(weights, rows.first_row + rows.numbers)
        X = model.place(rows.X)
        gaps = np.empty(X.shape[0])
        if self.ground is not None:
            weights = np.where(self.ground.is_far(X), 0.0, weights if len(weights) else 1.0)
        labels = table.labels(X, gaps=gaps)
        totals, d2 = added(state.totals, X, weights, labels, table, with_d2=True)
        state.profile.add(labels, d2, gaps, weights=weights, first_row=rows.first_row, kept=rows.kept, X=rows.X)
        drawn = state.drawn
        if self.rule is not None and len(labels):
            drawn = self.rule.gather((*drawn, self.rule.draw(X, rows.row_ids, weights, d2)))
        totals = replace(totals, d2=totals.d2 + float(weighted_sum(weights, d2)))
        n_rows, edges = state.n_rows, state.edges
        if n_rows is not None:
            n_rows = n_rows + np.bincount(labels, minlength=len(n_rows))
        if self.edge_rule is not None:
            numbers = rows.first_row + rows.numbers
            more = self.edge_rule.edges(X, table, numbers, weights, (labels, gaps))
            edges = (self.edge_rule.joined((*edges, more)),)
        return AssignState(totals, state.profile, drawn, n_rows, edges), labels, d2

    def join(self, first: AssignState, second: AssignState) -> AssignState:
        """Add the second state to the first, in its memory."""
        totals = second.totals
        if first.totals is not None:
            totals = first.totals if totals is None else absorb_totals(first.totals, totals)
        drawn = () if self.rule is None else self.rule.gather((*first.drawn, *second.drawn))
        n_rows = None if first.n_rows is None or second.n_rows is None else first.n_rows + second.n_rows
        edges = (*first.edges, *second.edges)
        edges = () if self.edge_rule is None else (self.edge_rule.joined(edges),)
        return AssignState(totals, absorb_profile(first.profile, second.profile), drawn, n_rows, edges)

    def finish(self, state: AssignState) -> AssignResult:
        """Return sums, drawn rows and profile."""
        totals = Totals.zeros(*self.model.centers.shape) if state.totals is None else state.totals
        drawn = self.rule.join(state.drawn) if self.rule is not None and state.drawn else None
        return AssignResult(totals, drawn, state.profile, state.n_rows, *state.edges)


def assign_pass(
    context: PassContext,
    assign: Assign,
    chunk_rows: NDArray[np.int64],
    stage: Stage,
    *,
    sink: GatheredLabels | HeldLabels,
    record: str | None = None,
) -> AssignResult:
    """Read all rows once more: label each by its nearest center, and gather sums and the objective of the clusters.

    `chunk_rows` (chunks,) is from the pass before. Labels and sums are saved under the name `record` as they come.
    """
    found = context.run(assign, stage, chunk_rows, sink=sink, record=record)
    if sink.n_taken != len(chunk_rows):
        raise changed_source(context.reader)
    return replace(found, labels=sink.labels)


class AssignBlock(BlockPass):
    """Label held blocks of sketched rows; gather exact sums and the objective in the sketch."""

    def step(self, state: Totals | None, rows: HeldBlock) -> tuple[Totals, NDArray[np.int32]]:
        """Add the rows of a block; return their labels."""
        block = rows.block
        X = merged(block.X)
        labels = self.table.labels(X)
        totals, d2 = added(state, X, block.weights, labels, self.table, with_d2=True)
        return replace(totals, d2=totals.d2 + float(weighted_sum(block.weights, d2))), labels


def assign_blocks(sketched: Sketched, blocks: Blocks, model: Model, stage: Stage) -> AssignResult:
    """Label held blocks of sketched rows, for sources that can be read only once."""
    n_valid = sketched.chunk_rows.copy()
    for number, rows in sketched.kept.items():
        n_valid[number] = len(rows)
    sink = GatheredLabels(n_valid[n_valid > 0], CheckpointWriter())
    table = NearestCenters.build(model.centers, blocks.dtype)
    totals = run(AssignBlock(table), HeldRows(blocks.handles), blocks.executor, stage, sink=sink)
    labels = sink.labels
    if sketched.kept:
        chunks = np.split(np.ones(int(sketched.chunk_rows.sum()), np.bool_), np.cumsum(sketched.chunk_rows)[:-1])
        for number, rows in sketched.kept.items():
            chunks[number][:] = False
            chunks[number][rows] = True
        valid = np.concatenate(chunks)
        labels = np.full(len(valid), -1, np.int32)
        labels[valid] = sink.labels
    return AssignResult(totals, labels=labels)


HELD_CENTERS = 8  # of k clusters, beside states: before and now, with means, sums and kernels' tables
FOLLOW_CENTERS, FOLLOW_CORESETS = 7, 11  # while clusters go on, when no rows are read: beside those, and in all


@dataclass(frozen=True, slots=True)
class ObserveState:
    """Statistics of the rows so far, relative to the present centers."""

    passed: AssignState
    novel: NDArray[np.float64]  # (k,): weight of the rows of each cluster that lie beyond its reach
    # (b,): weights of rows by distance over reach; see `cluster.profile.distance_histogram`
    histogram: NDArray[np.float64]
    squares: float  # sum of the squares of the rows' weights
    chunk_rows: NDArray[np.int64]  # (chunks,): rows of each chunk, invalid ones included
    n_valid: int

    def plus(self, more: ObserveState, passed: AssignState) -> ObserveState:
        """The statistics of these rows and of those that follow, whose sums `passed` has."""
        return ObserveState(
            passed,
            self.novel + more.novel,
            self.histogram + more.histogram,
            self.squares + more.squares,
            np.concatenate([self.chunk_rows, more.chunk_rows]),
            self.n_valid + more.n_valid,
        )


@dataclass(frozen=True, slots=True)
class Observed(ObserveState):
    """Statistics of all rows, relative to the present centers."""

    gathered: AssignResult  # exact sums, counts and objective of the clusters, and drawn rows


@dataclass(frozen=True, slots=True)
class Observe(Pass[ObserveState, None, Observed]):
    """Gather sums and profiles of rows at known centers, count distant rows, and draw some."""

    saved_as = ObserveState

    assign: Assign
    reach: NDArray[np.float64]  # (k,): distance from each center beyond which a row is novel

    @staticmethod
    def memory(sizes: UpdateSizes, reading: ReadingMemory) -> PassMemory:
        """Memory of an update: centers, sums of each call, and, between its passes, copies of the coreset."""
        centers = 8 * sizes.n_clusters * sizes.n_features
        end = FOLLOW_CENTERS * centers + FOLLOW_CORESETS * sizes.coreset_bytes if sizes.coreset_bytes else 0
        return PassMemory(
            kept=HELD_CENTERS * centers,
            state=centers + profile_bytes(sizes.n_clusters),
            n_states=reading.large_states(centers),
            end=end,
        )

    @property
    def state_bytes(self) -> float:
        """Bytes of the sums, the largest part of a state."""
        return self.assign.state_bytes

    def start(self) -> ObserveState:
        """A state without rows."""
        novel, histogram = np.zeros(len(self.reach)), np.zeros(BINS + 1)
        return ObserveState(self.assign.start(), novel, histogram, 0.0, np.empty(0, np.int64), 0)

    def step(self, state: ObserveState, rows: ValidRows) -> tuple[ObserveState, None]:
        """Add the rows of a chunk."""
        passed, labels, d2 = self.assign.measured(state.passed, rows)
        reach, distances, weights = self.reach[labels], np.sqrt(d2), rows.weights if len(rows.weights) else None
        far = np.flatnonzero(distances > reach)
        novel = np.bincount(labels[far], None if weights is None else weights[far], minlength=len(self.reach))
        squares = float(len(labels) if weights is None else weights @ weights)
        histogram, n_read = distance_histogram(distances, reach, weights), np.array([rows.n_read], np.int64)
        return state.plus(
            ObserveState(passed, novel.astype(np.float64), histogram, squares, n_read, len(labels)), passed
        ), None

    def join(self, first: ObserveState, second: ObserveState) -> ObserveState:
        """Add the second state to the first, in its memory."""
        return first.plus(second, self.assign.join(first.passed, second.passed))

    def finish(self, state: ObserveState) -> Observed:
        """Return the statistics of all rows."""
        rest = state.novel, state.histogram, state.squares, state.chunk_rows, state.n_valid
        return Observed(state.passed, *rest, self.assign.finish(state.passed))
