"""Steps of Lloyd's algorithm with many centers: what each block does, and what a step leaves to the next.

A full step looks at all centers, by their index. One among neighbours looks at those near each row's last one, and
tells which rows are near borders between clusters; the next ones look at these rows only, but at all centers. What is
found is a partition of the rows at every step, and its objective is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.index import is_worth
from streamkm.cluster.centers.neighbours import Lists, Neighbourhood
from streamkm.cluster.centers.table import CenterTable
from streamkm.cluster.rows import Block, add_rows, step_labels
from streamkm.cluster.spill import loaded
from streamkm.cluster.totals import Totals, join_totals
from streamkm.compute import Executor
from streamkm.core.matrix import Matrix

Labels: TypeAlias = list[NDArray[np.int32]]
"""Of the rows of each block."""

Told: TypeAlias = tuple[NDArray[np.int32] | None, NDArray[np.bool_] | None]
"""What a step tells of a block: labels (n,), and which rows are near borders (n,), where it says."""

MOST_BORDER = 0.6
"""Share of all rows near borders, from which the next step looks at all rows."""

BORDER_ROWS = 8192
"""Rows near borders that are copied, and looked up, at a time."""


@dataclass(frozen=True, slots=True)
class Border:
    """Rows near borders between clusters, which a step looks at, and the sums of those that keep theirs.

    Attributes
    ----------
    rows : list of bool (n,)
        Which they are, of each block.
    rest : Totals
        Of all others.
    """

    rows: list[NDArray[np.bool_]]
    rest: Totals


@dataclass(frozen=True, slots=True)
class LastStep:
    """What a step with many centers leaves to the next.

    Attributes
    ----------
    labels : list of int32 (n,)
        Of the rows of each block.
    lists : Lists or None
        That a step among neighbours looked at; centers do not move far in a few steps.
    border : Border or None
        Where the next step looks at some rows only.
    """

    labels: Labels
    lists: Lists | None
    border: Border | None = None


def chosen_step(
    table: CenterTable, last: LastStep | None, executor: Executor, *, full: bool, reach: NDArray[np.float64] | None
) -> tuple[Callable[..., tuple[Totals, Told]], Any, Lists | None]:
    """What is called for each block, what all calls are given, and the lists that are looked at.

    Parameters
    ----------
    full, reach
        As of `Blocks.step`.
    """
    if last is None or full:
        return _full_step, table, None
    if last.border is not None:
        return _border_step, table, last.lists
    near = Neighbourhood.of(table, last.lists, executor)
    return (_near_step, near, near.lists) if reach is None else (_parting_step, (near, reach), near.lists)


def parted(totals: Totals, labels: Labels, rows: list[NDArray[np.bool_]], lists: Lists) -> tuple[Totals, LastStep]:
    """The totals of all rows, and what is left to the next step, of those that tell border rows apart.

    Parameters
    ----------
    totals : Totals
        Of 2 k clusters: those of the rows near borders follow all others.
    """
    n_clusters = len(totals.counts) // 2
    rest = Totals(totals.sums[:n_clusters], totals.counts[:n_clusters])
    both = join_totals([rest, Totals(totals.sums[n_clusters:], totals.counts[n_clusters:])])
    n_near, n_rows = sum(int(part.sum()) for part in rows), sum(len(part) for part in rows)
    if n_near > MOST_BORDER * n_rows:
        return both, LastStep(labels, lists)
    kept = Totals(rest.sums.copy(), rest.counts.copy())  # without the sums of the rows near borders
    return both, LastStep(labels, lists, Border(rows, kept))


def near_borders(
    found: tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]], reach: NDArray[np.float64], scale: float
) -> NDArray[np.bool_]:
    """Which rows are near a border between clusters (n,).

    Parameters
    ----------
    found : (int32 (n,), float (n,), float (n,))
        Labels, and scores of the nearest and of the second nearest center.
    reach : float64 (k,)
        How much farther, in squared distance, the second nearest center of such a row of each cluster is at most.
    scale : float
        Of the layout that the scores were found by.
    """
    labels, scores, seconds = found
    return seconds.astype(np.float64) - scores <= reach[labels] * scale**2


def border_labels(
    X: Matrix, labels: NDArray[np.int32], rows: NDArray[np.bool_], table: CenterTable
) -> NDArray[np.int32]:
    """Labels (n,): nearest centers of some rows, and the given ones of the others."""
    if is_worth(*table.centers.shape, guessed=True):
        table.index()  # for a few rows of each of many blocks
    picked, found = np.flatnonzero(rows), labels.copy()
    for start in range(0, len(picked), BORDER_ROWS):
        part = picked[start : start + BORDER_ROWS]
        found[part] = table.lowest(X[part], labels[part])[0]
    return found


def _full_step(state: Totals | None, item: list[Any], table: CenterTable) -> tuple[Totals, Told]:
    held, likely, _ = item
    block = loaded(held)
    if not isinstance(block.X, np.ndarray) or block.X.dtype == np.float64:
        return _with_rows(state, block, step_labels(block.X, table), table.n_clusters), (None, None)
    labels = table.lowest(block.X, likely)[0]
    return _with_rows(state, block, labels, table.n_clusters), (labels, None)


def _near_step(state: Totals | None, item: list[Any], near: Neighbourhood) -> tuple[Totals, Told]:
    held, last, _ = item
    block = loaded(held)
    labels = near.nearest(block.X, last)[0]
    return _with_rows(state, block, labels, len(near.columns)), (labels, None)


def _parting_step(
    state: Totals | None, item: list[Any], given: tuple[Neighbourhood, NDArray[np.float64]]
) -> tuple[Totals, Told]:
    """As `_near_step`; sums of the rows near borders follow those of all others."""
    (held, last, _), (near, reach) = item, given
    block, n_clusters = loaded(held), len(near.columns)
    found = near.nearest(block.X, last)
    rows = near_borders(found, reach, near.layout.scale)
    labels = found[0]
    apart = np.where(rows, labels + np.int32(n_clusters), labels)
    return _with_rows(state, block, apart, 2 * n_clusters), (labels, rows)


def _border_step(state: Totals | None, item: list[Any], table: CenterTable) -> tuple[Totals, Told]:
    """Sums of the rows near borders alone."""
    held, last, rows = item
    block = loaded(held)
    labels = border_labels(block.X, last, rows, table)
    return _with_rows(state, block, np.where(rows, labels, np.int32(-1)), table.n_clusters), (labels, rows)


def _with_rows(state: Totals | None, block: Block, labels: NDArray[np.int32], n_clusters: int) -> Totals:
    """The sums, and a block's rows; label -1 is left out."""
    totals = state or Totals(np.empty((n_clusters, block.X.shape[1])), np.zeros(n_clusters))
    add_rows(block.X, block.weights, labels, totals.sums, totals.counts, fresh=state is None)
    return totals
