"""Which centers lie near each other, so that rows are compared with those near their last center only.

Groups of a few centers each have a list of the centers nearest to their mean; rows whose last center is in a group are
compared with its list. The cost of a row grows like the square root of the number of centers. What is found is a
partition of the rows, and its objective is true; that no other center is nearer is not said. The same bits for any
threads and on any processor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.center_index import FEWEST_CENTERS
from streamkm.cluster.center_table import CenterTable, Layout
from streamkm.cluster.rows import dense_batches, rows_by_label
from streamkm.core.matrix import aligned_empty
from streamkm.kernels.cluster import nearby
from streamkm.kernels.cluster.nearest import search_room
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.products import BLOCK_ROWS

SMALLEST_GROUP, LARGEST_GROUP = 4, 64
MOST_GROUPS = 1024  # but for those bounds
FEWEST_LISTED, LISTED = 64, 8  # centers that a list holds: so many, and so many groups' worth
TABLES_BYTES = 1 << 27  # of all lists, laid out
SCORED_ENTRIES = 1 << 22  # of scores between means of groups and centers that are there at a time


def neighbours_bytes(n_clusters: int, width: int, n_threads: int) -> int:
    """Memory that lists of centers take, and each thread that compares rows with one; 0 where there are none."""
    if n_clusters < FEWEST_CENTERS:
        return 0
    size = group_size(n_clusters)
    listed = min(FEWEST_LISTED + LISTED * size, n_clusters)
    scored = 2 * 4 * max(SCORED_ENTRIES, n_clusters)
    tables = 4 * width * (listed + LANES) * -(-n_clusters // size)
    scored += tables if tables <= 2 * TABLES_BYTES else 0  # of float64, or not
    return n_clusters * (4 * width + 4 * listed // size + 16) + scored + n_threads * 4 * width * (listed + BLOCK_ROWS)


def group_size(n_clusters: int) -> int:
    """Centers of a group."""
    return min(LARGEST_GROUP, max(SMALLEST_GROUP, n_clusters // MOST_GROUPS))


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Centers, and the lists that rows are compared with.

    Attributes
    ----------
    layout : Layout
        Of the centers, for dense rows.
    columns : float32 or float64 (k, m)
        Of its table.
    group_of : int32 (k,)
        Group of each center.
    candidates : int32 (g, l)
        Centers of each group's list, ascending.
    tables : dtype of the columns (g, m * p) or (0, 0)
        Of the lists, laid out once for all blocks where they take little memory; they are not sent to other processes.
    """

    layout: Layout
    columns: NDArray[Any]
    group_of: NDArray[np.int32]
    candidates: NDArray[np.int32]
    tables: NDArray[Any]

    def __getstate__(self) -> tuple[Any, ...]:
        return self.layout, self.columns, self.group_of, self.candidates

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        names = ("layout", "columns", "group_of", "candidates", "tables")
        for name, value in zip(names, (*state, np.empty((0, 0), state[1].dtype)), strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, table: CenterTable) -> Neighbourhood:
        """Group the centers and find the lists. O(k * m * log(k) + k^1.5 * m)."""
        centers, n_clusters = table.centers, table.n_clusters
        size = group_size(n_clusters)
        n_groups = -(-n_clusters // size)
        order, starts = np.empty(n_clusters, np.int64), np.empty(n_groups + 1, np.int64)
        nearby.balanced_groups(centers, n_groups, order, starts)
        group_of = np.empty(n_clusters, np.int32)
        group_of[order] = np.repeat(np.arange(n_groups, dtype=np.int32), np.diff(starts))
        means = np.add.reduceat(centers[order], starts[:-1]) / np.diff(starts)[:, None]
        candidates = np.empty((n_groups, min(FEWEST_LISTED + LISTED * size, n_clusters)), np.int32)
        step = max(1, SCORED_ENTRIES // n_clusters)
        for first in range(0, n_groups, step):
            part = means[first : first + step]
            scores = np.empty((len(part), -(-n_clusters // LANES) * LANES), table.dtype)
            table.score(part, scores)
            stop = starts[first + len(part)]
            scores[group_of[order[starts[first] : stop]] - first, order[starts[first] : stop]] = -np.inf  # its own
            nearby.lowest_set(scores, n_clusters, candidates[first : first + step])
        layout = table.layout(table.dtype, sparse=False)
        columns = layout.columns_of(*centers.shape)
        padded = -(-candidates.shape[1] // LANES) * LANES
        shape = (n_groups, centers.shape[1] * padded)
        if shape[0] * shape[1] * columns.itemsize > TABLES_BYTES:
            shape = (0, 0)
        tables = aligned_empty(shape, columns.dtype)
        nearby.lay_out_lists(columns, candidates[: shape[0]], padded, tables)
        return cls(layout, columns, group_of, candidates, tables)

    def without(self, removed: NDArray[np.integer[Any]]) -> Neighbourhood:
        """The same, but for some centers that no row is near."""
        bias = self.layout.bias.copy()
        bias[removed] = np.inf
        return replace(self, layout=replace(self.layout, bias=bias))

    def nearest(
        self, X: NDArray[Any], labels: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """Find every row's two nearest centers among those near its last one.

        Parameters
        ----------
        X : ndarray (n, m) of any real dtype
        labels : int32 (n,)
            Of the last step.

        Returns
        -------
        labels : int32 (n,)
        scores, seconds : (n,)
            As of `CenterTable.nearest`, of the centers that were looked at.
        """
        layout, dtype = self.layout, self.columns.dtype
        found = np.empty(len(X), np.int32), np.empty(len(X), dtype), np.empty(len(X), dtype)
        n_features, wanted = X.shape[1], self.candidates.shape[1]
        padded = -(-wanted // LANES) * LANES
        few_bias = np.full(padded, np.inf, dtype)
        table = aligned_empty((n_features * padded,), dtype)
        _, totals, *state = search_room(table, 1, wanted)
        room = (aligned_empty((BLOCK_ROWS, n_features), dtype), table, few_bias, totals[0], *state)
        for start, batch in dense_batches(X):
            here = slice(start, start + len(batch))
            order, starts = rows_by_label(self.group_of[labels[here]], len(self.candidates))
            parts = tuple(array[here] for array in found)
            moved = (layout.moved, layout.scale)
            nearby.nearest_among(
                batch, order, starts, *moved, self.columns, layout.bias, self.candidates, self.tables, room, *parts
            )  # fmt: skip
        return found
