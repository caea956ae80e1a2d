"""The pass that draws rows by their share of an objective, after a pass that sampled them evenly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model
from streamkm.cluster.rows import row_d2
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.core.matrix import Matrix
from streamkm.core.progress import Stage
from streamkm.engine.memory import PassMemory
from streamkm.engine.passes import Map
from streamkm.passes.context import PassContext
from streamkm.passes.reader import ValidRows

DRAWN_COPIES = 4  # of drawn rows: of each chunk, waiting, joined


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares by which rows are drawn: squared distances to centers, increased for rows of small clusters.

    Attributes
    ----------
    model : Model
    added : float64 (k,)
        Added to the squared distances of a cluster's rows: the objective over k times the cluster's rows. Otherwise
        few rows of a small cluster would be drawn, as they lie near its center.

    References
    ----------
    Feldman and Langberg, "A unified framework for approximating and clustering data", STOC 2011; Bachem, Lucic and
    Krause, "Practical coreset constructions for machine learning", 2017, section 2.4: bounds of sensitivities.
    """

    model: Model
    added: NDArray[np.float64]

    @classmethod
    def of(cls, model: Model, X: Matrix, n_rows: int) -> tuple[Shares, float]:
        """Shares by a sample of the original rows, and about the sum of the shares of all rows."""
        labels, d2 = _nearest(model, model.table(), X)
        per_row = n_rows / max(1, len(labels))
        counts = np.maximum(1, np.bincount(labels, minlength=len(model.centers))) * per_row
        objective = float(d2.sum()) * per_row
        return cls(model, objective / (len(model.centers) * counts)), 2 * objective

    def __call__(self, X: Matrix, table: NearestCenters) -> NDArray[np.float64]:
        """Shares of original rows (n,); `table` is that of the model."""
        labels, d2 = _nearest(self.model, table, X)
        return np.asarray(d2 + self.added[labels])


@dataclass(frozen=True, slots=True)
class Draw(Map[Drawn]):
    """Rows drawn by their shares; places are row numbers of the whole source.

    Attributes
    ----------
    shares : Shares
    table : NearestCenters
        Of the shares' model.
    rule : DrawRule
    """

    shares: Shares
    table: NearestCenters
    rule: DrawRule

    @staticmethod
    def memory(n_drawn: int, row_bytes: int, centers_bytes: int) -> PassMemory:
        """Memory of the drawn rows, and of the centers in each call."""
        return PassMemory(kept=DRAWN_COPIES * n_drawn * row_bytes + centers_bytes, call=centers_bytes)

    def output(self, rows: ValidRows) -> Drawn:
        """The rows drawn from a chunk; places are row numbers."""
        drawn = self.rule.draw(rows.X, rows.places, rows.weights, self.shares(rows.X, self.table))
        within = np.searchsorted(rows.places, drawn.places)
        return replace(drawn, places=rows.first_row + rows.numbers[within])


def draw_pass(
    context: PassContext, shares: Shares, rule: DrawRule, chunk_rows: NDArray[np.int64], stage: Stage
) -> Drawn:
    """Read all rows once more; draw some of them by `rule`, with shares in place of squared distances.

    Parameters
    ----------
    chunk_rows : int64 (chunks,)
        Rows of each chunk, from an earlier pass.

    Returns
    -------
    Drawn
        Original rows; their `places` are row numbers.
    """
    parts: tuple[Drawn, ...] = ()
    for part in context.outputs(Draw(shares, shares.model.table(), rule), stage, chunk_rows):
        parts = rule.gather((*parts, part))
    return rule.join(parts)


def _nearest(model: Model, table: NearestCenters, X: Matrix) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Labels of original rows, and squared distances to their centers, in the model's space."""
    placed = model.place(X)
    labels = table.labels(placed)
    return labels, row_d2(placed, labels, table)
