"""The pass that adds up rows by cluster, as they stand in the data: what metacells are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS, add_rows
from streamkm.cluster.totals import Totals, absorb_totals
from streamkm.engine.memory import PassMemory, ReadingMemory
from streamkm.engine.passes import Pass
from streamkm.passes.reader import ValidRows

LABEL_BYTES = 4


@dataclass(frozen=True, slots=True)
class ClusterSums(Pass[Totals, None, Totals]):
    """Sums of the rows of each cluster, in float64, and how many these are.

    `labels` (n,): of all rows, in order, -1 for rows that are left out.
    """

    saved_as = Totals

    labels: NDArray[np.int32]
    n_clusters: int
    n_features: int

    @staticmethod
    def memory(n_rows: int, n_clusters: int, n_features: int, reading: ReadingMemory) -> PassMemory:
        """Labels, and sums in float64, of which each thread has some of its own."""
        state = 8 * n_clusters * (n_features + 1)
        return PassMemory(kept=LABEL_BYTES * n_rows, state=state, n_states=reading.large_states(state))

    @property
    def state_bytes(self) -> float:
        """The sums are what is large."""
        return 8 * self.n_clusters * self.n_features

    def start(self) -> Totals:
        """No rows."""
        return Totals.zeros(self.n_clusters, self.n_features)

    def step(self, state: Totals, rows: ValidRows) -> tuple[Totals, None]:
        """Add the rows of a chunk. O(nnz), dense O(n d)."""
        labels = self.labels[rows.first_row : rows.first_row + rows.n_read]
        labels = np.ascontiguousarray(labels if rows.kept is None else labels[rows.kept])
        add_rows(rows.X, NO_WEIGHTS, labels, state.sums, state.counts)
        return state, None

    def join(self, first: Totals, second: Totals) -> Totals:
        """Of both, in the memory of the first."""
        return absorb_totals(first, second)
