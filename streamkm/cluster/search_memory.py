"""Memory of clustering by sizes: laid-out centers, steps of Lloyd's algorithm, the search. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamkm.cluster.centers.index import FEWEST_CENTERS, held_index_bytes, index_bytes
from streamkm.cluster.centers.neighbours import held_neighbours_bytes, neighbours_bytes
from streamkm.engine.pass_memory import MIB
from streamkm.kernels.intrinsics.lanes import LANES

PLACED_ROW_BYTES = 16  # of a row of a coreset, or drawn: its weight and its place
SEARCH_COPIES = 12  # of the centers
SEARCH_SETS = 5  # of rows that starts are searched on: drawn, joined, shuffled, around their mean
ALL_SETS = 4  # of all rows in blocks, where starts are searched on them, or on most as clusters are split later
DRAWING_BYTES = 22 * MIB  # what each thread leaves that draws them, two at most; measured
PORTION_SETS, SEARCHED_ROW_BYTES = 1.5, 128  # of rows that starts are searched on in portions; numbers of a row
STEP_CENTERS = 3  # of many clusters, while a step gathers sums: those it began with, means of the last, those to start
STEP_LABELS = 3  # labels of a row in a step of Lloyd's algorithm with many centers: the last, the new, one of a sum
LAYOUT_ROWS = 3  # of float64, while centers are laid out


@dataclass(frozen=True, slots=True, kw_only=True)
class CenterSizes:
    """Sizes that the memory of centers follows from."""

    n_clusters: int  # k, and features of a center
    width: int
    itemsize: int  # bytes of a number in products of rows and centers
    n_threads: int
    dense: bool  # whether rows are dense: many centers of such rows have an index and neighbours

    @property
    def many(self) -> bool:
        """Whether there are so many centers of dense rows that an index excludes most."""
        return self.dense and self.n_clusters >= FEWEST_CENTERS

    @property
    def double_bytes(self) -> int:
        """Bytes of the centers, or of sums, in float64."""
        return 8 * self.n_clusters * self.width

    @property
    def table_bytes(self) -> int:
        """Bytes of centers laid out for kernels."""
        return self.width * self.itemsize * -(-self.n_clusters // LANES) * LANES

    def near_bytes(self, *, held: bool = False) -> int:
        """Bytes of the index of many centers: under construction, or `held`."""
        if not self.many:
            return 0
        given = (self.n_clusters, self.width, self.n_threads)
        if held:
            return max(held_index_bytes(*given), held_neighbours_bytes(*given, self.itemsize))
        return max(index_bytes(*given), neighbours_bytes(*given, self.itemsize))

    def step_bytes(self, n_rows: int, n_sums: int, *, in_blocks: bool = False) -> int:
        """Bytes of a step of Lloyd's algorithm beside its rows: centers, sums, means, and the table as it is made."""
        centers, table = self.double_bytes, self.table_bytes + LAYOUT_ROWS * 8 * self.width
        if not self.many:
            return 4 * centers + table
        labels = (STEP_LABELS - in_blocks) * 4 * n_rows
        gathering = STEP_CENTERS * centers + n_sums * centers + self.near_bytes(held=True)
        return max(gathering, STEP_CENTERS * centers + self.near_bytes()) + table + labels


def search_bytes(centers: CenterSizes, n_rows: int, row_bytes: int, drawn_rows: int, n_portions: int) -> int:
    """Bytes of a search on `n_rows` rows: drawn rows, halves of clusters of two rounds, and centers.

    `drawn_rows`: rows that starts are searched on, in `n_portions` successive portions.
    """
    drawn, k = min(drawn_rows, n_rows), -(-centers.n_clusters // n_portions)
    searching = SEARCH_COPIES * 8 * k * centers.width + replace(centers, n_clusters=k).near_bytes()
    if n_portions == 1:
        copied = drawn if drawn < n_rows else 0
        left = min(DRAWING_BYTES, n_rows * row_bytes) * min(2, centers.n_threads) * (copied > 0)
        return searching + SEARCH_SETS * copied * (PLACED_ROW_BYTES + row_bytes) + left
    found = -(-drawn // n_portions) * int(PORTION_SETS * row_bytes + SEARCHED_ROW_BYTES)
    return centers.double_bytes + found + 2 * n_rows + searching  # with labels of coarse clusters
