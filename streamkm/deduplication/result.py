"""What is left of rows without near-duplicates, and what finding them took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.core.display import Lines
from streamkm.core.progress import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated(Lines):
    """Which rows are kept."""

    rows: NDArray[np.int64]  # (r,): numbers of the rows that are kept, ascending, counted from 0
    n_rows: int  # of the data
    n_skipped: int  # of them with NaN or infinity, which are not kept
    n_clusters: int  # within which rows were compared
    largest_cluster: int  # rows of the largest
    # pairs of rows: each with those of its cluster that were kept before it, and guests with those that were kept
    n_compared: int
    # share of the pairs at the threshold or above that have both rows in one cluster or one as its guest
    recall: float | None
    recall_pairs: int  # by how many pairs of a few rows with all others; None where there are no such pairs
    stages: tuple[Stage, ...] = ()  # seconds, rows and bytes read of each stage

    @property
    def n_removed(self) -> int:
        """Rows that are near-duplicates of one that is kept."""
        return self.n_rows - self.n_skipped - len(self.rows)

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        skipped = f" ({self.n_skipped:,} skipped)" if self.n_skipped else ""
        recall = "no near-duplicates among the pairs that were looked at"
        if self.recall is not None:
            recall = f"about {self.recall:.1%} of near pairs are compared, by {self.recall_pairs:,} of them"
        return [
            ("rows", f"{self.n_rows:,}{skipped}"),
            ("kept", f"{len(self.rows):,}"),
            ("removed", f"{self.n_removed:,}"),
            ("clusters", f"{self.n_clusters:,}, {self.largest_cluster:,} rows in the largest"),
            ("compared", f"{self.n_compared:,} pairs"),
            ("recall", recall),
            ("time", f"{sum(stage.seconds for stage in self.stages):.2f} s"),
        ]
