"""What is left of rows without near-duplicates, and what finding them took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamkm.core.progress import Stage
from streamkm.core.text_table import Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated(Lines):
    """Which rows are kept.

    Attributes
    ----------
    rows : int64 (r,)
        Numbers of the rows that are kept, ascending, counted from 0.
    n_rows : int
        Of the data.
    n_skipped : int
        Of them with NaN or infinity, which are not kept.
    n_clusters : int
        Within which rows were compared.
    largest_cluster : int
        Rows of the largest.
    n_compared : int
        Pairs of rows: each with those of its cluster that were kept before it, and guests with those that were kept.
    recall : float or None
        Share of the pairs at the threshold or above that have both rows in one cluster or one as its guest, by
    recall_pairs : int
        pairs of a few rows with all others; None where there are no such pairs.
    stages : tuple of Stage
        Seconds, rows and bytes read of each stage.
    """

    rows: NDArray[np.int64]
    n_rows: int
    n_skipped: int
    n_clusters: int
    largest_cluster: int
    n_compared: int
    recall: float | None
    recall_pairs: int
    stages: tuple[Stage, ...] = ()

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
