"""What an update of clusters by new rows brought, as values that print well: drift, events, and figures.

Nothing is computed here: `drift` and the update do that.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from streamkm.cluster.tracking import Event
from streamkm.core.text_table import Lines

if TYPE_CHECKING:
    from pandas import DataFrame

Verdict = Literal["stable", "shifted", "fit again"]
Reason = Literal["share", "mean", "novel"]

_HEAD = (
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
        lines = [_HEAD, *self.cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ("  ".join(map(str.rjust, line[:-1], widths)) + f"  {line[-1]}" for line in lines)
        return "\n".join([self.sentence(), *map(str.rstrip, table)])

    def _repr_html_(self) -> str:
        lines = [_html_line(_HEAD, "th"), *(_html_line(line, "td") for line in self.cells())]
        return f"<p>{html.escape(self.sentence())}</p><table>{''.join(lines)}</table>"

    def cells(self) -> list[tuple[str, ...]]:
        """The table as text, a line for each cluster."""
        return [
            (
                str(each.id),
                f"{each.rows_before:,.6g}",
                f"{each.rows:,.6g}",
                f"{each.share_before:.1%}",
                f"{each.share:.1%}",
                _number(each.shift),
                _number(each.distance_before),
                _number(each.distance),
                f"{each.novel:,.6g}",
                ", ".join(each.reasons) or "-",
                ", ".join(f"{moved.feature} {moved.before:.4g} to {moved.now:.4g}" for moved in each.moved),
            )
            for each in self.clusters
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; None for what is not known."""
        return dict(_plain(asdict(self)))

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for each cluster, ``moved`` and ``reasons`` as text. Needs pandas."""
        import pandas as pd

        rows = [
            asdict(each) | {"reasons": ", ".join(each.reasons), "moved": cells[-1]}
            for each, cells in zip(self.clusters, self.cells(), strict=True)
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
        "novel": f"{cluster.novel:,.6g} novel rows",
    }
    return f"cluster {cluster.id} ({', '.join(texts[reason] for reason in cluster.reasons)})"


@dataclass(frozen=True, slots=True)
class Update(Lines):
    """What an update by new rows brought.

    Attributes
    ----------
    drift : Drift or None
        None for the first update.
    events : tuple of Event
    n_rows : int
        New rows.
    inertia, inertia_error : float
        Of all rows so far, and the standard error of this estimate; NaN where they are not known.
    changed_share_bound : float
        At most this share of the rows of before would get another label.
    relabel : bool
        Whether rows of before should be labelled anew.
    seconds : float
    """

    drift: Drift | None
    events: tuple[Event, ...]
    n_rows: int
    inertia: float
    inertia_error: float
    changed_share_bound: float
    relabel: bool
    seconds: float

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        others = ("" if each.other is None else f" with {each.other}" for each in self.events)
        events = (f"{each.id} {each.event}{other}" for each, other in zip(self.events, others, strict=True))
        return [
            ("new rows", f"{self.n_rows:,}"),
            ("drift", "first update" if self.drift is None else self.drift.sentence()),
            ("events", ", ".join(events) or "none"),
            ("inertia", f"{_number(self.inertia)} +- {_number(self.inertia_error)}"),
            ("labels changed", f"at most {self.changed_share_bound:.1%} of the rows before"),
            ("label rows anew", "yes" if self.relabel else "no"),
            ("seconds", f"{self.seconds:.2f}"),
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values; None for what is not known."""
        return dict(_plain(asdict(self)))


def _plain(value: Any) -> Any:
    """A value as JSON takes it, None for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float) -> str:
    """Four digits of a number; a dash for none."""
    return "-" if math.isnan(value) else f"{value:.4g}"


def _html_line(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
