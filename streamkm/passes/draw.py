"""The pass that draws rows by their share of an objective, after a pass that sampled them evenly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.table import CenterTable
from streamkm.cluster.model import Model
from streamkm.cluster.rows import row_d2
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.passes.context import PassContext
from streamkm.passes.reader import Walk, Weighed


@dataclass(frozen=True, slots=True)
class Shares:
    """What rows are drawn by: squared distances to centers, and more for rows of small clusters.

    Attributes
    ----------
    model : Model
    added : float64 (k,)
        Added to the squared distances of a cluster's rows. Those of a small cluster lie near its center, wherever it
        is: with the objective over k times the cluster's rows added, each cluster is drawn from.

    References
    ----------
    Feldman and Langberg, "A unified framework for approximating and clustering data", STOC 2011; Bachem, Lucic and
    Krause, "Practical coreset constructions for machine learning", 2017, section 2.4: bounds of sensitivities.
    """

    model: Model
    added: NDArray[np.float64]

    @classmethod
    def of(cls, model: Model, X: Matrix, n_rows: int) -> tuple[Shares, float]:
        """By some of all rows, in original features; and the sum of the shares of all rows, about."""
        labels, d2 = _nearest(model, model.table(), X)
        per_row = n_rows / max(1, len(labels))
        counts = np.maximum(1, np.bincount(labels, minlength=len(model.centers))) * per_row
        objective = float(d2.sum()) * per_row
        return cls(model, objective / (len(model.centers) * counts)), 2 * objective

    def __call__(self, X: Matrix, table: CenterTable) -> NDArray[np.float64]:
        """Shares of original rows (n,); `table` is that of the model."""
        labels, d2 = _nearest(self.model, table, X)
        return np.asarray(d2 + self.added[labels])


def draw_pass(
    context: PassContext, shares: Shares, rule: DrawRule, chunk_rows: NDArray[np.int64], stage: Stage
) -> Drawn:
    """Read all rows once more; draw some of them by `rule`, by their shares in place of squared distances.

    Parameters
    ----------
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from the pass before.

    Returns
    -------
    Drawn
        Original rows; their `places` are row numbers.
    """
    shared, items = context.share(shares, shares.model.table(), rule), context.items(chunk_rows)
    parts: tuple[Drawn, ...] = ()
    first_rows = np.cumsum(chunk_rows) - chunk_rows
    for first_row, part in zip(first_rows, context.executor.map(stage.name, _draw_item, items, shared), strict=True):
        parts = rule.gather((*parts, replace(part, places=part.places + first_row)))
        stage.advance()
    stage.rows, stage.read_bytes = int(chunk_rows.sum()), context.walk.source.take_read_bytes()
    return rule.join(parts)


def _nearest(model: Model, table: CenterTable, X: Matrix) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Labels of original rows, and squared distances to their centers, in the model's space."""
    placed = model.place(X)
    labels = table.labels(placed)
    return labels, row_d2(placed, labels, table)


def _draw_item(item: Weighed, shared: tuple[Walk, Shares, CenterTable, DrawRule]) -> Drawn:
    """Rows drawn from one chunk; their places are counted within it."""
    walk, shares, table, rule = shared
    rows, weights = walk.read_weighed(item)
    drawn = rule.draw(rows.X, rows.places, weights, shares(rows.X, table))
    within = np.searchsorted(rows.places, drawn.places)
    return replace(drawn, places=_numbers(rows.kept, within))


def _numbers(kept: NDArray[np.int64] | None, within: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers of valid rows among those that were read."""
    return within.astype(np.int64) if kept is None else kept[within]
