"""The first pass over new rows of followed clusters: how they lie about the present centers, and rows drawn of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Model
from streamkm.cluster.profile import BINS, distance_histogram, profile_bytes
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.engine.memory import PassMemory, ReadingMemory
from streamkm.engine.passes import Pass
from streamkm.passes.assign import Assign, AssignResult, AssignState
from streamkm.passes.reader import ValidRows

HELD_CENTERS = 8  # of k clusters, beside states: as they were and as they are, with means, sums, and what kernels read
FOLLOW_CENTERS, FOLLOW_CORESETS = 7, 11  # while clusters go on, when no rows are read: beside those, and in all


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSizes:
    """Sizes that the memory of an update follows from."""

    n_clusters: int
    n_features: int
    coreset_bytes: int  # of the rows of a coreset; 0: clusters stay where they are, as when rows are only labelled
    held_bytes: int  # of the state of before, which the process holds already


@dataclass(frozen=True, slots=True)
class ObserveState:
    """The state of `Observe`; see `Observed`."""

    passed: AssignState
    novel: NDArray[np.float64]
    histogram: NDArray[np.float64]
    squares: float
    chunk_rows: NDArray[np.int64]
    n_valid: int


@dataclass(frozen=True, slots=True)
class Observed:
    """Rows as they lie about the present centers."""

    gathered: AssignResult  # exact sums, counts and objective of the clusters, and drawn rows
    novel: NDArray[np.float64]  # (k,): weight of the rows of each cluster that lie beyond its reach
    # (b,): weights of rows by distance over reach; see `cluster.profile.distance_histogram`
    histogram: NDArray[np.float64]
    squares: float  # sum of the squares of the rows' weights
    chunk_rows: NDArray[np.int64]  # (chunks,): rows of each chunk, invalid ones included
    n_valid: int

    @property
    def near(self) -> NDArray[np.float64]:
        """Weight of the rows of each cluster within its reach (k,)."""
        return self.gathered.totals.counts - self.novel

    @property
    def drawn(self) -> Drawn | None:
        """Rows drawn by their share of the objective."""
        return self.gathered.drawn


@dataclass(frozen=True, slots=True)
class Observe(Pass[ObserveState, None, Observed]):
    """Gather sums and profiles of rows about known centers, count those that lie far out, and draw some."""

    saved_as = ObserveState

    assign: Assign
    reach: NDArray[np.float64]  # (k,): distance from each center beyond which a row is novel

    @classmethod
    def of(cls, model: Model, reach: NDArray[np.float64], rule: DrawRule | None) -> Observe:
        """About the centers of a model; `reach` are distances (k,)."""
        return cls(Assign(model, model.table(), rule), reach)

    @staticmethod
    def memory(sizes: UpdateSizes, reading: ReadingMemory) -> PassMemory:
        """Memory of an update: centers, sums of each call, and, between its passes, copies of the coreset."""
        centers = 8 * sizes.n_clusters * sizes.n_features
        end = 0
        if sizes.coreset_bytes:
            end = FOLLOW_CENTERS * centers + FOLLOW_CORESETS * sizes.coreset_bytes
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
        return ObserveState(
            self.assign.start(), np.zeros(len(self.reach)), np.zeros(BINS + 1), 0.0, np.empty(0, np.int64), 0
        )

    def step(self, state: ObserveState, rows: ValidRows) -> tuple[ObserveState, None]:
        """Add the rows of a chunk."""
        passed, labels, d2 = self.assign.measured(state.passed, rows)
        reach, distances, weights = self.reach[labels], np.sqrt(d2), rows.weights if len(rows.weights) else None
        far = np.flatnonzero(distances > reach)
        novel = np.bincount(labels[far], None if weights is None else weights[far], minlength=len(self.reach))
        squares = float(len(labels) if weights is None else weights @ weights)
        return ObserveState(
            passed,
            state.novel + novel,
            state.histogram + distance_histogram(distances, reach, weights),
            state.squares + squares,
            np.append(state.chunk_rows, rows.n_read),
            state.n_valid + len(labels),
        ), None

    def join(self, first: ObserveState, second: ObserveState) -> ObserveState:
        """Add the second state to the first, in its memory."""
        return ObserveState(
            self.assign.join(first.passed, second.passed),
            first.novel + second.novel,
            first.histogram + second.histogram,
            first.squares + second.squares,
            np.concatenate([first.chunk_rows, second.chunk_rows]),
            first.n_valid + second.n_valid,
        )

    def finish(self, state: ObserveState) -> Observed:
        """Return what was gathered."""
        rest = state.novel, state.histogram, state.squares, state.chunk_rows, state.n_valid
        return Observed(self.assign.finish(state.passed), *rest)
