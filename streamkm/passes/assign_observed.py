"""The pass that labels rows with missing values by the features that they have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.observed import BATCH_ENTRIES, ObservedCenters, ObservedTotals
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Pass
from streamkm.passes.assign import LABEL_BYTES
from streamkm.passes.reader import ValidRows
from streamkm.passes.sizes import FitSizes


@dataclass(frozen=True, slots=True)
class AssignObserved(Pass[ObservedTotals, NDArray[np.int32], ObservedTotals]):
    """Label every row by its nearest center; gather sums, weights and the objective of the values that rows have."""

    saved_as = ObservedTotals

    table: ObservedCenters

    @staticmethod
    def memory(sizes: FitSizes) -> PassMemory:
        """Memory of sums and weights, labels, and the centers in two orders."""
        centers = sizes.centers(sizes.rows.n_features)
        kept = LABEL_BYTES * sizes.rows.n_rows * sizes.labels + 2 * centers.double_bytes
        return PassMemory(kept=kept, state=2 * centers.double_bytes, call=8 * BATCH_ENTRIES)

    @property
    def state_bytes(self) -> float:
        """Sums and weights."""
        return 2 * self.table.centers.nbytes

    def start(self) -> ObservedTotals:
        """No rows."""
        return ObservedTotals.zeros(*self.table.centers.shape)

    def step(self, state: ObservedTotals, rows: ValidRows) -> tuple[ObservedTotals, NDArray[np.int32]]:
        """Add the rows of a chunk; its labels (n_read,), -1 for invalid rows."""
        if not isinstance(rows.X, np.ndarray):
            raise InvalidInputError('on_missing="masked" is for dense rows')
        labels, d2 = self.table.nearest(rows.X)
        return state.added(rows.X, labels, d2, rows.weights), rows.spread(labels, -1)

    def join(self, first: ObservedTotals, second: ObservedTotals) -> ObservedTotals:
        """Of both, in the memory of the first."""
        return first.absorb(second)
