"""How well sketches keep the objective, as users read it."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import Any

HEADS = ("sketch", "m", "eps", "ratio", "loss", "drss", "seconds")
LOSS = 0.01  # of the objective, that is worth a smaller sketch


@dataclass(frozen=True, slots=True)
class SketchDistortion:
    """What one sketch does to the objective of sampled rows.

    J(P) is the sum of squared distances to the means of the parts of a partition P, among the original features, and
    J'(P) in the sketch. P is the given partition; Q the one where Lloyd's algorithm in the sketch ends, started from
    P's means. c is what every partition loses alike by an orthogonal projection ("svd", "pca"), else 0.

    Attributes
    ----------
    sketch : str
    n_components : int
        m; fewer than asked for where the rows have no more.
    eps : float
        The larger of |J'(P) + c - J(P)| / J(P) and the same for Q: the eps of Liu et al.'s definition 2, as far as
        these two partitions tell. For other partitions it may be larger.
    ratio : float
        (J'(P) + c) / J(P).
    loss : float
        J(Q) / J(P): what clustering in the sketch costs among the original features. Near 1, below it where
        P was no local optimum.
    drss : float
        |J'(P) - J(P)|, the distortion of the residual sum of squares of the sampled rows (Senuma's definition 4.1), in
        the data's units squared, without c.
    fit_seconds, seconds : float
        Finding the sketch on the sample, and sketching the sample.
    """

    sketch: str
    n_components: int
    eps: float
    ratio: float
    loss: float
    drss: float
    fit_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Distortion:
    """Sketches side by side.

    Attributes
    ----------
    n_rows : int
        Sampled rows that were measured, s.
    n_features : int
    n_clusters : int
        Parts of the given partition that hold sampled rows.
    objective : float
        J(P) of the sampled rows.
    rows : tuple of SketchDistortion
        In the order asked for.
    """

    n_rows: int
    n_features: int
    n_clusters: int
    objective: float
    rows: tuple[SketchDistortion, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A table, for people."""
        table = [" ".join(f"{cell:>10}" for cell in line) for line in [HEADS, *map(_cells, self.rows)]]
        return [self._measured_on(), *table, self.verdict()]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        table = "".join(
            f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in line)}</tr>"
            for tag, line in [("th", HEADS), *(("td", _cells(row)) for row in self.rows)]
        )
        return f"<p>{self._measured_on()}</p><table>{table}</table><p>{html.escape(self.verdict())}</p>"

    def _measured_on(self) -> str:
        return f"{self.n_rows:,} rows of {self.n_features:,} features in {self.n_clusters} clusters"

    def verdict(self) -> str:
        """The fewest components whose clusters cost at most 1 % more than the given ones, in words."""
        enough = [row for row in self.rows if row.loss <= 1 + LOSS]
        if not enough:
            best = min(self.rows, key=lambda row: row.loss)
            return (
                f"verdict: too few components; the best, {best.sketch} with {best.n_components:,}, costs "
                f"{100 * (best.loss - 1):.2g} % of the objective"
            )
        few = min(enough, key=lambda row: row.n_components)
        cost = max(0.0, 100 * (few.loss - 1))
        what = f"{few.sketch} with {few.n_components:,} components"
        return f"verdict: {what} will do; it costs {cost:.2g} % of the objective"


def _cells(row: SketchDistortion) -> tuple[str, ...]:
    """A line of the table, as text."""
    numbers = (f"{number:.4f}" for number in (row.eps, row.ratio, row.loss))
    return (row.sketch, f"{row.n_components:,}", *numbers, f"{row.drss:.4g}", f"{row.fit_seconds + row.seconds:.3f}")
