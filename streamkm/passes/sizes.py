"""Sizes of a fit that are known before its first pass; passes compute their memory from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from streamkm.cluster.model import Space
from streamkm.cluster.search_memory import CenterSizes
from streamkm.engine.pass_memory import ReadingMemory

ClusterOn: TypeAlias = Literal["sample", "blocks", "coreset", "spilled"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that a plan chooses beside `cluster_on` and space: for one thread, as they change results."""

    chunk_bytes: int  # decoded bytes of a chunk, about
    sample_rows: int  # rows of the row sample, at most
    # rows that the last pass draws by their share of the objective, to find clusters that the sample missed; 0: none
    drawn_rows: int = 0
    keeps_sample: bool = False  # whether the row sample is kept, so that a further pass begins with a search
    # rows drawn from all held rows to search starts on: at most, and at least
    searched_rows: int = 0
    fewest_searched: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSizes:
    """Sizes of the rows."""

    n_rows: int
    n_features: int
    n_components: int
    row_bytes: int  # bytes of a row as read, and as sketched
    block_row_bytes: int
    sample_floats: int = 0  # bytes of a sampled row of original features as floats, if it must be converted; else 0
    itemsize: int = 4  # bytes of a value in products with centers
    dense: bool = False  # whether rows are dense when they are clustered and assigned
    n_occurring: int = 0  # estimated number of features that occur, which the first pass finds; 0: any may

    @property
    def center_features(self) -> int:
        """Features of centers in the original space."""
        return self.n_occurring or self.n_features

    def placed_bytes(self, space: Space) -> int:
        """Bytes of a row in the space in which it is assigned."""
        return self.block_row_bytes if space == "sketch" else self.row_bytes

    def float_bytes(self, space: Space) -> int:
        """Bytes of a row as floats when it is assigned."""
        return self.block_row_bytes if space == "sketch" else max(self.row_bytes, self.sample_floats)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSizes:
    """Sizes of a fit."""

    n_clusters: int
    rows: RowSizes
    reading: ReadingMemory
    chosen: Sizes
    coreset_rows: int  # rows of a coreset, if one is wanted
    fitted: bool = False  # whether the sketch is found on sampled rows
    n_portions: int = 1  # portions of the rows on which starts are searched, one after the other
    directions: int = 0  # singular vectors that are found in a separate pass; 0: none
    sums_bytes: int = 0  # bytes of the sums of a preparation's pass; 0: there is no such pass
    once: bool = False  # whether rows can be read only once, so that held blocks of sketched rows are labelled
    labels: bool = True  # whether labels are gathered in this process
    ahead: bool = False  # whether the sketch is found on rows that are read before the first pass
    sized: bool = False  # whether sizes of clusters have bounds

    @property
    def kept_rows(self) -> int:
        """Rows of the sample."""
        return min(self.rows.n_rows, self.chosen.sample_rows)

    @property
    def sample_bytes(self) -> int:
        """Bytes of the row sample."""
        return self.kept_rows * self.rows.row_bytes

    @property
    def chunk_rows(self) -> int:
        """Approximate rows of a chunk."""
        return max(1, self.reading.largest_chunk // self.rows.row_bytes)

    def width(self, space: Space) -> int:
        """Features of centers in a space."""
        return self.rows.center_features if space == "original" else self.rows.n_components

    def centers(self, width: int) -> CenterSizes:
        """Sizes of centers with `width` features."""
        of_rows: dict[str, Any] = {"itemsize": self.rows.itemsize, "dense": self.rows.dense}
        return CenterSizes(n_clusters=self.n_clusters, width=width, n_threads=self.reading.n_threads, **of_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSizes:
    """Sizes that determine the memory of an update."""

    n_clusters: int
    n_features: int
    coreset_bytes: int  # of the rows of a coreset; 0: clusters do not change, rows are only labelled
    held_bytes: int  # of the state of before, which the process holds already
