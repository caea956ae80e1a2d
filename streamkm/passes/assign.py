"""Passes that label all rows of a fit: one over original rows, one over held blocks of sketched rows.

Each function here reads every row once. Knows no defaults of parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.blocks import BlockPass, Blocks, added
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.held_rows import HeldBlock, HeldRows
from streamkm.cluster.model import Model, Space
from streamkm.cluster.profile import Profile, absorb_profile, profile_bytes
from streamkm.cluster.rows import Totals, absorb_totals, merged
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.tracking.followed import Ground
from streamkm.core.progress import Stage
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Pass, run
from streamkm.kernels.cluster.totals import weighted_sum
from streamkm.passes.context import PassContext
from streamkm.passes.labels import GatheredLabels, HeldLabels, UnsavedLabels
from streamkm.passes.reader import ValidRows, changed_source
from streamkm.passes.sizes import FitSizes
from streamkm.passes.sketch import Sketched

LABEL_BYTES = 5  # of a row whose label is gathered: it, and what is being looked at
DRAWN_SLACK = 1.25  # of rows that a call may draw; see `seeding.draws`

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AssignResult:
    """The result of an assign pass."""

    # exact sums and counts of the clusters, and the exact sum of squared distances to the model's centers, all in the
    # model's space
    totals: Totals
    drawn: Drawn | None = None  # rows drawn by their share of the objective, in the model's space, if a rule was given
    # distances of the rows to the model's centers, by cluster; None for rows that can be read once only
    profile: Profile | None = None
    n_rows: NDArray[np.int64] | None = None  # of each cluster, where weights decay
    labels: Any = None  # (n,) or HeldLabels, -1 for invalid rows; None if no sink took them


class ScatteredLabels(UnsavedLabels):
    """Labels of the valid rows of each chunk that has some, at their places among all rows; -1 for the others.

    `chunk_rows`: int64 (chunks,), rows of each chunk. `kept`: numbers of the valid rows, by chunks that have others.
    """

    def __init__(self, chunk_rows: NDArray[np.int64], kept: Mapping[int, NDArray[np.int64]]):
        self._kept, self._ends = kept, np.cumsum(chunk_rows)
        n_valid = chunk_rows.copy()
        for number, rows in kept.items():
            n_valid[number] = len(rows)
        self._filled = iter(np.flatnonzero(n_valid).tolist())
        self.labels = np.full(int(chunk_rows.sum()), -1, np.int32)

    def take(self, output: NDArray[np.int32]) -> None:
        """Take the labels of the next chunk's valid rows."""
        number = next(self._filled)
        start, stop = self._ends[number - 1] if number else 0, self._ends[number]
        self.labels[start:stop][self._kept.get(number, slice(None))] = output


@dataclass(frozen=True, slots=True)
class AssignState:
    """The state of an assign pass."""

    totals: Totals | None  # None before the first row
    profile: Profile
    drawn: tuple[Drawn, ...] = ()  # rows drawn by their share of the objective, if there is a rule
    n_rows: NDArray[np.int64] | None = None  # (k,): rows of each cluster, where weights decay


@dataclass(frozen=True, slots=True)
class Decay:
    """Weights of rows that halve with each so many rows that come after."""

    half_life: float  # rows; infinite: no decay
    last_row: int  # number of the newest row, which keeps its weight

    def weights(self, given: NDArray[np.float64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Weights (v,) of rows by their own ones, (v,) or (0,), and their numbers (v,)."""
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

    @staticmethod
    def memory(sizes: FitSizes, space: Space) -> PassMemory:
        """Memory of sums and profiles, labels, drawn rows, and the kernels' tables of centers."""
        centers, chosen, reading = sizes.centers(sizes.width(space)), sizes.chosen, sizes.reading
        drawn = int(reading.usual_states * DRAWN_SLACK * chosen.drawn_rows * sizes.rows.placed_bytes(space))
        kept = drawn + sizes.sample_bytes * chosen.keeps_sample + LABEL_BYTES * sizes.rows.n_rows * sizes.labels
        kept += centers.table_bytes + (centers.double_bytes if chosen.drawn_rows else 0)  # those of the best pass
        state = centers.double_bytes + profile_bytes(sizes.n_clusters)
        if not centers.many:
            return PassMemory(kept=kept, state=state, reads=not sizes.once)
        n_states = reading.large_states(centers.double_bytes)
        looked_up = centers.double_bytes + sizes.sample_bytes + centers.near_bytes(held=True)
        kept += max(looked_up, centers.near_bytes() - n_states * state)
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
            drawn = self.rule.gather((*drawn, self.rule.draw(X, rows.places, weights, d2)))
        totals = replace(totals, d2=totals.d2 + float(weighted_sum(weights, d2)))
        n_rows = state.n_rows
        if n_rows is not None:
            n_rows = n_rows + np.bincount(labels, minlength=len(n_rows))
        return AssignState(totals, state.profile, drawn, n_rows), labels, d2

    def join(self, first: AssignState, second: AssignState) -> AssignState:
        """Add the second state to the first, in its memory."""
        totals = second.totals
        if first.totals is not None:
            totals = first.totals if totals is None else absorb_totals(first.totals, totals)
        drawn = () if self.rule is None else self.rule.gather((*first.drawn, *second.drawn))
        n_rows = None if first.n_rows is None or second.n_rows is None else first.n_rows + second.n_rows
        return AssignState(totals, absorb_profile(first.profile, second.profile), drawn, n_rows)

    def finish(self, state: AssignState) -> AssignResult:
        """Return sums, drawn rows and profile."""
        totals = Totals.zeros(*self.model.centers.shape) if state.totals is None else state.totals
        drawn = self.rule.join(state.drawn) if self.rule is not None and state.drawn else None
        return AssignResult(totals, drawn, state.profile, state.n_rows)


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

    `chunk_rows`: int64 (chunks,), rows of each chunk, from the pass before. `sink`: takes the labels. `record`: name
    under which labels and sums are saved as they come, and restored from an earlier run.
    """
    found = context.run(assign, stage, chunk_rows, sink=sink, record=record)
    if sink.n_taken != len(chunk_rows):
        raise changed_source(context.reader)
    return replace(found, labels=sink.labels)


class AssignBlock(BlockPass):
    """As `Assign`, over held blocks of sketched rows: labels, exact sums and the objective in the sketch."""

    def step(self, state: Totals | None, rows: HeldBlock) -> tuple[Totals, NDArray[np.int32]]:
        """Add the rows of a block; return their labels."""
        block = rows.block
        X = merged(block.X)
        labels = self.table.labels(X)
        totals, d2 = added(state, X, block.weights, labels, self.table, with_d2=True)
        gathered = float(weighted_sum(block.weights, d2))
        return Totals(totals.sums, totals.counts, totals.d2 + gathered), labels


def assign_blocks(sketched: Sketched, blocks: Blocks, model: Model, stage: Stage) -> AssignResult:
    """Label held blocks of sketched rows, for sources that can be read once only."""
    sink = ScatteredLabels(sketched.chunk_rows, sketched.kept)
    table = NearestCenters.build(model.centers, blocks.dtype)
    totals = run(AssignBlock(table), HeldRows(blocks.handles), blocks.executor, stage, sink=sink)
    return AssignResult(totals, labels=sink.labels)
