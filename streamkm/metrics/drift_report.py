"""How new rows differ from those before, as values that print well: a verdict, its figures, and a table of clusters.

Nothing is computed here: `drift` does that.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from streamkm.core.display import columns_text
from streamkm.metrics.cluster_summary import html_line, number_text

if TYPE_CHECKING:
    from pandas import DataFrame

Verdict = Literal["too few updates", "stable", "shifted", "fit again"]
Reason = Literal["share", "mean", "novel", "new"]

FEWEST_UPDATES = 8
"""Updates with figures that a verdict needs."""
ALARMS = 3.0, 5.0, 5.0, 8.0
"""Deviations from the median of the updates before from which a figure is a change. Lower for shares and
distances, which few rows far out hardly alter. Set by `tests.benchmarks.bench_drift`."""

MANY_BEYOND = 0.1
"""Share of rows beyond the distances seen, above the usual one, from which clusters are to be found anew."""

HEAD = (
    "cluster", "rows", "share before", "share", "shift", "distance before", "distance", "beyond", "changed",
    "moved most",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of change, beside those of the updates before."""

    value: float
    units: float  # how far it is from what rows without change give, in standard errors by chance
    usual: float = math.nan  # median of the values of the updates before; NaN where there are none
    score: float = 0.0  # how far `units` is from its median in the updates before, in deviations


@dataclass(frozen=True, slots=True)
class Moved:
    """A feature whose mean moved in a cluster."""

    feature: str  # its name, its word, or its number
    before: float  # means of the rows before, and of new rows
    now: float


@dataclass(frozen=True, slots=True)
class ClusterDrift:
    """One cluster, before and now."""

    id: int
    rows: float  # new ones, or their weight
    share_before: float  # of all rows before, and of all new rows
    share: float
    # of its mean, in mean distances of the rows before; NaN where these tell no spread, or there are no new rows
    shift: float
    moved: tuple[Moved, ...]  # features that moved most, first
    distance_before: float  # mean distance to the center; NaN where there are no rows
    distance: float
    novel: float  # new rows beyond its reach
    # tuple of {"share", "mean", "novel", "new"}, what changed most in it; empty for most clusters
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """How new rows differ from those of before."""

    verdict: Verdict  # {"too few updates", "stable", "shifted", "fit again"}
    clusters: tuple[ClusterDrift, ...]  # the one with the most new rows first
    shares: Figure  # of the cluster whose share changed most for the number of its rows
    # mean distance to the center over the distance within which 99 % of the rows before lie, at most 1
    distances: Figure
    novelty: Figure  # share of new rows beyond this distance
    shift: Figure  # of the mean that moved most for the number of its rows, in mean distances
    n_updates: int  # updates before whose figures these are compared with
    # new rows, estimated, that an update has labelled and not counted: far from all clusters, and too few for one
    far_rows: int = 0
    far_feature: str = ""  # the feature in which the farthest of them differs most from its center

    @property
    def far_text(self) -> str:
        """Rows far from all clusters, for people; empty if there are none."""
        rows = "1 row lies" if self.far_rows == 1 else f"{self.far_rows:,} rows lie"
        return f"{rows} far beyond the clusters: look at feature {self.far_feature}" if self.far_rows else ""

    def with_far(self, n_rows: int, feature: str) -> Drift:
        """The same with rows far from all clusters, which are a change."""
        verdict: Verdict = "shifted" if self.verdict == "stable" else self.verdict
        return replace(self, verdict=verdict, far_rows=n_rows, far_feature=feature)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The four figures."""
        return self.shares, self.distances, self.novelty, self.shift

    @property
    def row(self) -> list[float]:
        """Values and units of the four figures, for later comparisons."""
        return [number for each in self.figures for number in (each.value, each.units)]

    def __str__(self) -> str:
        return f"{self.sentence()}\n{table_text(self.clusters)}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.sentence())}</p>{table_html(self.clusters)}"

    def most_changed(self, most: int) -> tuple[ClusterDrift, ...]:
        """At most so many clusters: those with the most reasons first, then those whose share changed most."""
        order = sorted(self.clusters, key=lambda each: (-len(each.reasons), -abs(each.share - each.share_before)))
        return tuple(order[:most])

    def labelled(self, n_rows: dict[int, int], new: Mapping[int, tuple[Moved, ...]]) -> Drift:
        """The same with the rows that an update has labelled, by id, and with its new clusters and their traits."""
        total = max(sum(n_rows.values()), 1)
        clusters = [
            replace(each, rows=float(n_rows.get(each.id, 0)), share=n_rows.get(each.id, 0) / total)
            for each in self.clusters
        ]
        nan = math.nan
        for id_, traits in new.items():
            share = n_rows[id_] / total
            clusters.append(ClusterDrift(id_, n_rows[id_], 0.0, share, nan, traits, nan, nan, nan, ("new",)))
        return replace(self, clusters=tuple(sorted(clusters, key=lambda each: -each.rows)))

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

    def sentence(self, verdict: str = "") -> str:
        """The verdict, or other words for it, in one sentence, with the numbers that decided."""
        verdict = verdict or self.verdict.capitalize()
        if self.verdict == "too few updates":
            return f"{verdict} to judge: {self.n_updates} before this one, {FEWEST_UPDATES} needed."
        if self.verdict == "stable":
            return f"{verdict}: these rows differ no more than those of the {self.n_updates} updates before."
        changed = [f"{name} {text}" for (name, text), alarm in zip(self.lines(), self.alarms(), strict=True) if alarm]
        named = [_cluster_text(each) for each in self.clusters if each.reasons]
        return f"{verdict}: {'; '.join([*([self.far_text] if self.far_rows else []), *changed, *named])}."

    def lines(self) -> list[tuple[str, str]]:
        """Name and text of each figure."""
        few = self.verdict == "too few updates"
        texts = (
            ("largest change of a share", self.shares, ".1%", " of the rows"),
            ("mean distance", self.distances, ".3f", " of the distance that holds 99 % of the rows before"),
            ("rows farther out", self.novelty, ".1%", " beyond that distance"),
            ("largest shift", self.shift, ".2f", " mean distances, of a cluster's mean"),
        )
        return [
            (name, f"{each.value:{form}}{unit}" + ("" if few else f", usually {each.usual:{form}}"))
            for name, each, form, unit in texts
        ]

    def alarms(self) -> list[bool]:
        """Which of the four figures are a change."""
        return [each.score > alarm for each, alarm in zip(self.figures, ALARMS, strict=True)]


def _cluster_text(cluster: ClusterDrift) -> str:
    """What shifted in a cluster, for people."""
    texts = {
        "share": f"share {cluster.share_before:.1%} to {cluster.share:.1%}",
        "mean": f"mean moved by {cluster.shift:.2g} of the mean distance",
        "new": "new",
        "novel": f"{weight_text(cluster.novel)} rows beyond the distances seen",
    }
    return f"cluster {cluster.id} ({', '.join(texts[reason] for reason in cluster.reasons)})"


def cells_of(cluster: ClusterDrift) -> tuple[str, ...]:
    """The line of a cluster in the table, as text."""
    return (
        str(cluster.id), weight_text(cluster.rows), f"{cluster.share_before:.1%}", f"{cluster.share:.1%}",
        number_text(cluster.shift), number_text(cluster.distance_before), number_text(cluster.distance),
        weight_text(cluster.novel) if cluster.novel == cluster.novel else "-", ", ".join(cluster.reasons) or "-",
        ", ".join(f"{moved.feature} {_apart(moved.before, moved.now)}" for moved in cluster.moved),
    )  # fmt: skip


def _apart(before: float, now: float) -> str:
    """Two numbers with four digits, or as many as show two digits of their difference."""
    size, step = max(abs(before), abs(now)), abs(now - before)
    digits = min(17, max(4, math.floor(math.log10(size)) - math.floor(math.log10(step)) + 2)) if step > 0 else 4
    return f"{before:.{digits}g} to {now:.{digits}g}"


def table_text(clusters: Sequence[ClusterDrift]) -> str:
    """A line of text for each cluster, below the heads of the columns."""
    return "\n".join(columns_text([HEAD, *map(cells_of, clusters)]))


def table_html(clusters: Sequence[ClusterDrift]) -> str:
    """The table for notebooks."""
    return f"<table>{html_line(HEAD, 'th')}{''.join(html_line(cells_of(each), 'td') for each in clusters)}</table>"


def weight_text(weight: float) -> str:
    """A weight of rows, without decimals above 100."""
    return f"{weight:,.0f}" if weight >= 100 else f"{weight:.4g}"


def plain(value: Any) -> Any:
    """A value as JSON takes it, None for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
