"""Steps of Lloyd's algorithm with many centers: what each block does, and what a step leaves to the next.

A full step looks at all centers, by their index. One among neighbours looks at those near each row's last one. What is
found is a partition of the rows at every step, and its objective is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.neighbours import Lists, Neighbourhood
from streamkm.cluster.centers.table import CenterTable
from streamkm.cluster.rows import Block, add_rows, step_labels
from streamkm.cluster.spill import loaded
from streamkm.cluster.totals import Totals
from streamkm.compute import Executor

Labels: TypeAlias = list[NDArray[np.int32]]
"""Of the rows of each block."""


@dataclass(frozen=True, slots=True)
class LastStep:
    """What a step with many centers leaves to the next.

    Attributes
    ----------
    labels : list of int32 (n,)
        Of the rows of each block.
    lists : Lists or None
        That a step among neighbours looked at; centers do not move far in a few steps.
    """

    labels: Labels
    lists: Lists | None


def chosen_step(
    table: CenterTable, last: LastStep | None, executor: Executor, *, full: bool
) -> tuple[Callable[..., tuple[Totals, NDArray[np.int32] | None]], Any, Lists | None]:
    """What is called for each block, what all calls are given, and the lists that are looked at.

    Parameters
    ----------
    full : bool
        As of `Blocks.step`.
    """
    if last is None or full:
        return _full_step, table, None
    near = Neighbourhood.of(table, last.lists, executor)
    return _near_step, near, near.lists


def _full_step(state: Totals | None, item: list[Any], table: CenterTable) -> tuple[Totals, NDArray[np.int32] | None]:
    held, likely = item
    block = loaded(held)
    if not isinstance(block.X, np.ndarray) or block.X.dtype == np.float64:
        return _with_rows(state, block, step_labels(block.X, table), table.n_clusters), None
    labels = table.lowest(block.X, likely)[0]
    return _with_rows(state, block, labels, table.n_clusters), labels


def _near_step(state: Totals | None, item: list[Any], near: Neighbourhood) -> tuple[Totals, NDArray[np.int32] | None]:
    held, last = item
    block = loaded(held)
    labels = near.nearest(block.X, last)[0]
    return _with_rows(state, block, labels, len(near.columns)), labels


def _with_rows(state: Totals | None, block: Block, labels: NDArray[np.int32], n_clusters: int) -> Totals:
    """The sums, and a block's rows."""
    totals = state or Totals(np.empty((n_clusters, block.X.shape[1])), np.zeros(n_clusters))
    add_rows(block.X, block.weights, labels, totals.sums, totals.counts, fresh=state is None)
    return totals
