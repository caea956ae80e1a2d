"""How new rows differ from those before, as values that print well: a verdict, its figures, and a table of clusters.

Nothing is computed here: `drift` does that.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pandas import DataFrame

Verdict = Literal["stable", "shifted", "fit again"]
Reason = Literal["share", "mean", "novel"]

HEAD = (
    "cluster", "rows before", "rows", "share before", "share", "shift", "distance before", "distance", "novel",
    "shifted", "moved most",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure of change, beside the one that rows without change would give.

    Attributes
    ----------
    value : float
        The population stability index, or a share of rows.
    by_chance : float
        Its expectation without change.
    p_value : float
        Probability of so large a change by chance.
    """

    value: float
    by_chance: float
    p_value: float

    def exceeds(self, limit: float, level: float) -> bool:
        """Whether it is more than `limit` above chance, and more than chance explains at this level."""
        return self.p_value < level and self.value - self.by_chance >= limit


@dataclass(frozen=True, slots=True)
class Moved:
    """A feature whose mean moved in a cluster.

    Attributes
    ----------
    feature : str
        Its name, its word, or its number.
    before, now : float
        Means of the rows before, and of new rows.
    """

    feature: str
    before: float
    now: float


@dataclass(frozen=True, slots=True)
class ClusterDrift:
    """One cluster, before and now.

    Attributes
    ----------
    id : int
    rows_before, rows : float
        Or their weights.
    share_before, share : float
        Of all rows before, and of all new rows.
    shift : float
        Of its mean, in mean distances of the rows before; NaN where these tell no spread, or there are no new rows.
    moved : tuple of Moved
        Features that moved most, first.
    distance_before, distance : float
        Mean distance to the center; NaN where there are no rows.
    novel : float
        New rows beyond its reach.
    reasons : tuple of {"share", "mean", "novel"}
        What shifted; empty for a cluster that did not.
    """

    id: int
    rows_before: float
    rows: float
    share_before: float
    share: float
    shift: float
    moved: tuple[Moved, ...]
    distance_before: float
    distance: float
    novel: float
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """How new rows differ from those of before.

    Attributes
    ----------
    verdict : {"stable", "shifted", "fit again"}
    clusters : tuple of ClusterDrift
        The one with the most new rows first.
    shares, distances : Evidence
        Population stability indices of clusters' shares and of distances over reach.
    novelty : Evidence
        Share of new rows beyond the reach of their clusters.
    n_before, n_now : float
        Effective numbers of rows.
    by_words : bool
        Whether features are words.
    """

    verdict: Verdict
    clusters: tuple[ClusterDrift, ...]
    shares: Evidence
    distances: Evidence
    novelty: Evidence
    n_before: float
    n_now: float
    by_words: bool = False

    def __str__(self) -> str:
        return f"{self.sentence()}\n{table_text(self.clusters)}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.sentence())}</p>{table_html(self.clusters)}"

    def most_changed(self, most: int) -> tuple[ClusterDrift, ...]:
        """At most so many clusters: those with the most reasons first, then those whose share changed most."""
        order = sorted(self.clusters, key=lambda each: (-len(each.reasons), -abs(each.share - each.share_before)))
        return tuple(order[:most])

    def to_dict(self) -> dict[str, Any]:
        """JSON values; None for what is not known."""
        return dict(plain(asdict(self)))

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for each cluster, ``moved`` and ``reasons`` as text. Needs pandas."""
        import pandas as pd

        rows = [
            asdict(each) | {"reasons": ", ".join(each.reasons), "moved": cells_of(each)[-1]} for each in self.clusters
        ]
        return pd.DataFrame(rows, columns=list(ClusterDrift.__dataclass_fields__)).set_index("id")

    def sentence(self) -> str:
        """The verdict in one sentence, with the numbers that decided."""
        figures = (
            f"PSI of shares {self.shares.value:.3f} ({self.shares.by_chance:.3f} by chance), "
            f"PSI of distances {self.distances.value:.3f} ({self.distances.by_chance:.3f}), "
            f"novel rows {self.novelty.value:.1%} ({self.novelty.by_chance:.1%})"
        )
        named = "; ".join(_cluster_text(each) for each in self.clusters if each.reasons)
        return f"{self.verdict.capitalize()}: {figures}{'; ' * bool(named)}{named}."

    def shifted(self) -> tuple[int, ...]:
        """The ids of the clusters that shifted, the one with the most new rows first."""
        return tuple(each.id for each in self.clusters if each.reasons)


def _cluster_text(cluster: ClusterDrift) -> str:
    """What shifted in a cluster, for people."""
    texts = {
        "share": f"share {cluster.share_before:.1%} to {cluster.share:.1%}",
        "mean": f"mean moved by {cluster.shift:.2g} of the mean distance",
        "novel": f"{weight_text(cluster.novel)} novel rows",
    }
    return f"cluster {cluster.id} ({', '.join(texts[reason] for reason in cluster.reasons)})"


def cells_of(cluster: ClusterDrift) -> tuple[str, ...]:
    """The line of a cluster in the table, as text."""
    return (
        str(cluster.id),
        weight_text(cluster.rows_before),
        weight_text(cluster.rows),
        f"{cluster.share_before:.1%}",
        f"{cluster.share:.1%}",
        number_text(cluster.shift),
        number_text(cluster.distance_before),
        number_text(cluster.distance),
        weight_text(cluster.novel),
        ", ".join(cluster.reasons) or "-",
        ", ".join(f"{moved.feature} {moved.before:.4g} to {moved.now:.4g}" for moved in cluster.moved),
    )


def table_text(clusters: Sequence[ClusterDrift]) -> str:
    """A line of text for each cluster, below the heads of the columns."""
    lines = [HEAD, *map(cells_of, clusters)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(f"{'  '.join(map(str.rjust, line[:-1], widths))}  {line[-1]}".rstrip() for line in lines)


def table_html(clusters: Sequence[ClusterDrift]) -> str:
    """The table for notebooks."""
    return f"<table>{_html_line(HEAD, 'th')}{''.join(_html_line(cells_of(each), 'td') for each in clusters)}</table>"


def weight_text(weight: float) -> str:
    """A weight of rows, without decimals above 100."""
    return f"{weight:,.0f}" if weight >= 100 else f"{weight:.4g}"


def number_text(value: float) -> str:
    """Four digits of a number; a dash for none."""
    return "-" if math.isnan(value) else f"{value:.4g}"


def plain(value: Any) -> Any:
    """A value as JSON takes it, None for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _html_line(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
