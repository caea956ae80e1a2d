"""Whether epochs of moving averages run in a fit, and how: decided here for the plan and for the fit alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from streamkm.cluster.model import Space
from streamkm.cluster.moving_averages import Schedule
from streamkm.core.matrix import Matrix
from streamkm.passes.sizes import ClusterOn


class Iterations(Protocol):
    """What a user asked of iterations; the settings of a fit have it."""

    @property
    def n_clusters(self) -> int:
        """Clusters that are looked for."""

    @property
    def n_init(self) -> Any:
        """Starts."""

    @property
    def max_iter(self) -> int:
        """Epochs and steps at most."""

    @property
    def tol(self) -> float:
        """Of Lloyd's algorithm."""

    @property
    def searches(self) -> bool:
        """Whether the start is looked for, and not given or drawn at random."""


@dataclass(frozen=True, slots=True)
class Clustered:
    """The rows on which iterations run."""

    cluster_on: ClusterOn
    needs_polishing: bool  # of the sketch
    space: Space  # where rows will be assigned
    stored: float | None = None  # share of the sketched rows' entries that are stored; None: they are dense
    counted: bool = True  # whether the plan knows about how many rows there are

    @property
    def polished_alone(self) -> bool:
        """Whether centers of a sketch move in the original space only, by steps that polish them on the row sample."""
        return self.needs_polishing and self.cluster_on == "sample" and self.space == "original"

    def schedule(self, n_rows: int, asked: Iterations) -> Schedule | None:
        """Epochs on so many rows; None where Lloyd's algorithm is expected, or is as good."""
        plain = not asked.searches or asked.n_init == 1 or asked.tol == 0
        # a batch would read all rows from disk; rows that are not counted may lie there, unless workers hold them
        on_disk = self.cluster_on == "spilled" or (self.cluster_on == "blocks" and not self.counted)
        if plain or self.polished_alone or on_disk:
            return None
        return Schedule.of(n_rows, asked.n_clusters, asked.max_iter, stored=self.stored)


def stored_share(X: Matrix) -> float | None:
    """Share of the entries of sparse rows that are stored; None for dense rows."""
    return None if isinstance(X, np.ndarray) else X.nnz / max(1, X.shape[0] * X.shape[1])


@dataclass(frozen=True, slots=True)
class PlannedEpochs:
    """Epochs that a fit will run."""

    schedule: Schedule | None  # None where the number of rows is not known
    n_rows: int  # that the epochs look at; where their number is not known, the fewest that epochs run on
    exact: bool = True  # whether the fit will find as many

    def __str__(self) -> str:
        if self.schedule is None:
            return f"if there are {self.n_rows:,} rows or more; settled after the first pass"
        n_epochs, n_batches, n_steps = self.schedule.n_epochs, self.schedule.n_batches, self.schedule.n_steps
        about = "" if self.exact else "about "
        return (
            f"{about}{n_epochs} of {n_batches:,} batches of {self.n_rows // n_batches:,} rows, then at most "
            f"{n_steps} steps of Lloyd's algorithm"
        )
