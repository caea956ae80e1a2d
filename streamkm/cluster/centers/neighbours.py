"""Lists of near centers, so that rows are compared only with centers near their last one.

Groups of a few centers each have a list of the centers nearest to their mean, for all rows whose last center is in the
group: a row costs about sqrt(k). The objective of the resulting partition is exact, but a row's nearest center may be
another. Results have the same bits for any threads and on any processor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.centers.packed import PackedCenters
from streamkm.cluster.rows import dense_batches, rows_by_label
from streamkm.core.matrix import aligned_empty
from streamkm.engine import Executor
from streamkm.kernels.centers import nearby
from streamkm.kernels.centers.nearest import search_room
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.kernels.intrinsics.products import BLOCK_ROWS

SMALLEST_GROUP, LARGEST_GROUP = 4, 64
MOST_GROUPS = 1024  # but for those bounds
FEWEST_LISTED, LISTED = 64, 8  # centers that a list holds: so many, and so many groups' worth
SCORED_ENTRIES = 1 << 22  # of scores between means of groups and centers that are there at a time


def neighbours_bytes(n_clusters: int, width: int, n_threads: int, itemsize: int) -> int:
    """Memory of the lists under construction, with each thread's comparisons; 0 where there are none."""
    if n_clusters < FEWEST_CENTERS:
        return 0
    n_scored = min(max(1, SCORED_ENTRIES // n_clusters), -(-n_clusters // (2 * group_size(n_clusters))))  # groups
    return held_neighbours_bytes(n_clusters, width, n_threads, itemsize) + 2 * 4 * n_scored * n_clusters


def held_neighbours_bytes(n_clusters: int, width: int, n_threads: int, itemsize: int) -> int:
    """Memory of the finished lists, with each thread's comparisons; 0 where there are none."""
    if n_clusters < FEWEST_CENTERS:
        return 0
    size, column = group_size(n_clusters), itemsize * width
    listed = min(FEWEST_LISTED + LISTED * size, n_clusters)
    return n_clusters * (column + 4 * listed // size + 16) + n_threads * column * (listed + BLOCK_ROWS)


def group_size(n_clusters: int) -> int:
    """Centers of a group."""
    return min(LARGEST_GROUP, max(SMALLEST_GROUP, n_clusters // MOST_GROUPS))


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of the centers that rows are compared with; valid while centers have not moved far."""

    group_of: NDArray[np.int32]  # (k,): group of each center
    candidates: NDArray[np.int32]  # (g, l): centers of each group's list, ascending; those of the group are among them

    @classmethod
    def of(cls, table: NearestCenters, executor: Executor | None = None) -> Lists:
        """Group the centers and find the lists, by threads if an executor is given. O(k * m * log(k) + k^1.5 * m)."""
        centers, n_clusters = table.centers, table.n_clusters
        size = group_size(n_clusters)
        n_groups = -(-n_clusters // size)
        order, starts = np.empty(n_clusters, np.int64), np.empty(n_groups + 1, np.int64)
        nearby.balanced_groups(centers, n_groups, order, starts)
        group_of = np.empty(n_clusters, np.int32)
        group_of[order] = np.repeat(np.arange(n_groups, dtype=np.int32), np.diff(starts))
        means = np.add.reduceat(centers[order], starts[:-1]) / np.diff(starts)[:, None]
        found = cls(group_of, np.empty((n_groups, min(FEWEST_LISTED + LISTED * size, n_clusters)), np.int32))
        n_threads = 1 if executor is None else executor.n_workers
        step = max(1, min(SCORED_ENTRIES // n_clusters, -(-n_groups // 2)) // n_threads)
        _by_threads(executor, found._list, range(0, n_groups, step), step, table, means, (order, starts))
        return found

    def _list(
        self,
        first: int,
        n_lists: int,
        table: NearestCenters,
        means: NDArray[np.float64],
        members: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> None:
        """Find the lists of some groups by their means."""
        (order, starts), part = members, means[first : first + n_lists]
        scores = np.empty((len(part), -(-table.n_clusters // LANES) * LANES), table.dtype)
        table.score(part, scores)
        own = order[starts[first] : starts[first + len(part)]]
        scores[self.group_of[own] - first, own] = -np.inf
        wanted = self.candidates.shape[1]
        limits = np.empty(len(part), table.dtype)
        for i, row in enumerate(scores[:, : table.n_clusters]):  # one at a time: no copy of all
            limits[i] = np.partition(row, wanted - 1)[wanted - 1]  # in numba it takes six seconds to compile
        nearby.lowest_set(scores, limits, table.n_clusters, self.candidates[first : first + n_lists])


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Centers, and the lists that rows are compared with."""

    layout: PackedCenters  # of the centers, for dense rows
    columns: NDArray[Any]  # float32 or float64 (k, m), of its table
    lists: Lists

    @classmethod
    def of(cls, table: NearestCenters, lists: Lists | None = None, executor: Executor | None = None) -> Neighbourhood:
        """Find the lists, by threads if an executor is given; `lists` may be of centers near these."""
        layout = table.layout(table.dtype, sparse=False)
        return cls(layout, layout.columns_of(*table.centers.shape), lists or Lists.of(table, executor))

    def without(self, removed: NDArray[np.integer[Any]]) -> Neighbourhood:
        """Remove some centers that no row is near."""
        bias = self.layout.bias.copy()
        bias[removed] = np.inf
        return replace(self, layout=replace(self.layout, bias=bias))

    def nearest(
        self, X: NDArray[Any], labels: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
        """Find every row's two nearest centers among those near its last one.

        `X`: (n, m) of any real dtype. `labels`: int32 (n,), of the last step. Returns labels int32 (n,), scores and
        seconds (n,), as of `NearestCenters.nearest` but among the listed centers.
        """
        layout, dtype, candidates = self.layout, self.columns.dtype, self.lists.candidates
        found = np.empty(len(X), np.int32), np.empty(len(X), dtype), np.empty(len(X), dtype)
        n_features, wanted = X.shape[1], candidates.shape[1]
        padded = -(-wanted // LANES) * LANES
        few_bias = np.full(padded, np.inf, dtype)
        table = aligned_empty((n_features * padded,), dtype)
        _, totals, state = search_room(table, 1)
        room = (aligned_empty((BLOCK_ROWS, n_features), dtype), table, few_bias, totals, state)
        for start, batch in dense_batches(X):
            here = slice(start, start + len(batch))
            order, starts = rows_by_label(self.lists.group_of[labels[here]], len(candidates))
            parts = tuple(array[here] for array in found)
            moved = (layout.moved, layout.scale)
            nearby.nearest_among(
                batch, order, starts, *moved, self.columns, layout.bias, candidates, room, *parts
            )  # fmt: skip
        return found


def _by_threads(executor: Executor | None, function: Callable[..., None], items: Sequence[int], *given: Any) -> None:
    """Call a function for each item, by threads if an executor is given."""
    if executor is not None:
        executor.each("neighbours", function, items, *given)
    else:
        for item in items:
            function(item, *given)
