"""Drift of new rows and results of an update, as values that print well; `drift` and the update compute them."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from streamkm.cluster.tracking.transition import Event
from streamkm.core.display import Lines, columns_text
from streamkm.metrics.cluster_summary import ClusterDrift, Moved, html_line, number_text, plain, weight_text

if TYPE_CHECKING:
    from pandas import DataFrame

Verdict = Literal["too few updates", "stable", "shifted", "fit again"]

FEWEST_UPDATES = 8  # updates with figures that a verdict needs
# deviations from the median of earlier updates from which a figure is a change, by `tests.benchmarks.bench_drift`;
# lower for shares and distances, which few rows far out hardly alter
ALARMS = 3.0, 5.0, 5.0, 8.0
MANY_BEYOND = 0.1  # share of rows beyond the distances seen, above the usual one, from which to fit again
MOST_SHOWN = 15  # clusters, and events, of an update that are printed

HEAD = (
    "cluster", "rows", "share before", "share", "shift", "distance before", "distance", "beyond", "changed",
    "moved most",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DriftFigure:
    """A figure of change, beside those of the updates before."""

    value: float
    units: float  # how far it is from what rows without change give, in standard errors by chance
    usual: float = math.nan  # median of the values of the updates before; NaN where there are none
    score: float = 0.0  # how far `units` is from its median in the updates before, in deviations


@dataclass(frozen=True, slots=True)
class Drift:
    """Difference of new rows from those before."""

    verdict: Verdict  # {"too few updates", "stable", "shifted", "fit again"}
    clusters: tuple[ClusterDrift, ...]  # the one with the most new rows first
    shares: DriftFigure  # of the cluster whose share changed most for the number of its rows
    # mean distance to the center over the distance within which 99 % of the rows before lie, at most 1
    distances: DriftFigure
    novelty: DriftFigure  # share of new rows beyond this distance
    shift: DriftFigure  # of the mean that moved most for the number of its rows, in mean distances
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
        """Add rows far from all clusters, which are a change."""
        verdict: Verdict = "shifted" if self.verdict == "stable" else self.verdict
        return replace(self, verdict=verdict, far_rows=n_rows, far_feature=feature)

    @property
    def figures(self) -> tuple[DriftFigure, ...]:
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
        """The `most` clusters with the most reasons, and of these with the largest change of share."""
        order = sorted(self.clusters, key=lambda each: (-len(each.reasons), -abs(each.share - each.share_before)))
        return tuple(order[:most])

    def labelled(self, n_rows: dict[int, int], new: Mapping[int, tuple[Moved, ...]]) -> Drift:
        """Add the rows that an update has labelled, by id, and its new clusters with their traits."""
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
        """JSON values; None for unknown ones."""
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
        named = [str(each) for each in self.clusters if each.reasons]
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


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A cluster that an update has found, with its traits."""

    id: int
    # features whose mean lies farthest from that of all rows: before, of all rows; now, of the cluster
    traits: tuple[Moved, ...]


@dataclass(frozen=True, slots=True)
class Update(Lines):
    """Results of an update by new rows."""

    drift: Drift | None  # None for the first update
    events: tuple[Event, ...]
    n_rows: int  # new rows
    inertia: float  # of all rows so far, and the standard error of this estimate; NaN where they are not known
    inertia_error: float
    changed_share: float  # estimated share of the rows so far that would get another label than they have
    relabel: bool  # whether rows of before should be labelled anew
    seconds: float
    new: tuple[NewCluster, ...] = ()  # clusters that were born or split off
    fixed_k: int = 0  # number of clusters, if it may not change; else 0

    def __str__(self) -> str:
        told = Lines.__str__(self)
        if self.drift is None:
            return told
        table = table_text(self.drift.most_changed(MOST_SHOWN))
        return "\n".join([told, "", table, *self._left_out(self.drift)])

    def _repr_html_(self) -> str:
        told = Lines._repr_html_(self)
        if self.drift is None:
            return told
        left_out = "".join(f"<p>{html.escape(text)}</p>" for text in self._left_out(self.drift))
        return f"{told}{table_html(self.drift.most_changed(MOST_SHOWN))}{left_out}"

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        more = len(self.events) - MOST_SHOWN
        left_out = [f"and {more:,} more"] if more > 0 else []
        first, *events = [*map(self.event_text, self.events[:MOST_SHOWN]), *left_out] or ["none"]
        return [
            ("new rows", f"{self.n_rows:,}"),
            ("drift", self.sentence()),
            *([("", self.advice)] if self.advice else []),
            *([] if self.drift is None else self.drift.lines()),
            *([("far rows", self.drift.far_text)] if self.drift and self.drift.far_rows else []),
            ("events", first),
            *(("", text) for text in events),
            ("inertia", f"{number_text(self.inertia)} +- {number_text(self.inertia_error)}"),
            ("labels changed", f"{self.changed_share:.1%} of the rows so far, about"),
            ("label rows anew", "yes" if self.relabel else "no"),
        ]

    @property
    def has_followed(self) -> bool:
        """Whether clusters were born for rows that earlier clusters do not fit."""
        return any(event.event == "born" for event in self.events)

    @property
    def advice(self) -> str:
        """Advice to let clusters follow the rows; empty if they do."""
        k, drift = self.fixed_k, self.drift
        if not k or drift is None or self.has_followed or not (drift.novelty.value > MANY_BEYOND or drift.alarms()[2]):
            return ""
        few, many = max(1, k // 2), 2 * k
        return (
            f"k is fixed at {k}: rows far out cannot become a cluster of their own; with a range they can, such as "
            f"n_clusters=({few}, {many}), on the command line -k {few}:{many}"
        )

    def sentence(self) -> str:
        """Relation of the new rows to the clusters, in one sentence."""
        if self.drift is None:
            return "first update"
        follows = self.drift.verdict == "fit again" and self.has_followed
        return self.drift.sentence("Followed by a new cluster" if follows else "")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; None for unknown ones."""
        return dict(plain(asdict(self)))

    def to_pandas(self) -> DataFrame:
        """`Drift.to_pandas` with ``events`` as text; new clusters and a first update have no figures. Needs pandas."""
        import pandas as pd

        texts: dict[int, list[str]] = {}
        for event in self.events:
            texts.setdefault(event.id, []).append(self.event_text(event))
        events = pd.Series({id_: "; ".join(told) for id_, told in texts.items()}, dtype=object, name="events")
        frame = pd.DataFrame(index=pd.Index([], dtype="int64")) if self.drift is None else self.drift.to_pandas()
        joined = frame.join(events, how="outer") if len(events) else frame.assign(events="")
        return joined.fillna({"events": ""}).rename_axis("id").sort_index()

    def event_text(self, event: Event) -> str:
        """An event in words, with the traits of a new cluster."""
        words = {
            "born": f"was born: {weight_text(event.rows)} new rows",
            "died": "died: its rows stopped coming",
            "split": f"was split from cluster {event.other}: {weight_text(event.rows)} new rows",
            "joined": f"was joined to cluster {event.other}",
            "renamed": f"was cluster {event.other} elsewhere",
        }
        traits = next((each.traits for each in self.new if each.id == event.id), ())
        told = "; ".join(f"{each.feature} {each.now:.4g}, {each.before:.4g} in all rows" for each in traits)
        return f"cluster {event.id} {words[event.event]}{f' ({told})' if told else ''}"

    def _left_out(self, drift: Drift) -> list[str]:
        more = len(drift.clusters) - MOST_SHOWN
        return [f"and {more:,} clusters that changed less"] if more > 0 else []


def cells_of(cluster: ClusterDrift) -> tuple[str, ...]:
    """The line of a cluster in the table, as text."""
    return (
        str(cluster.id), weight_text(cluster.rows), f"{cluster.share_before:.1%}", f"{cluster.share:.1%}",
        number_text(cluster.shift), number_text(cluster.distance_before), number_text(cluster.distance),
        weight_text(cluster.novel) if cluster.novel == cluster.novel else "-", ", ".join(cluster.reasons) or "-",
        ", ".join(f"{moved.feature} {_apart(moved.before, moved.now)}" for moved in cluster.moved),
    )  # fmt: skip


def _apart(before: float, now: float) -> str:
    """Two numbers with four digits, or more until two digits of their difference show."""
    size, step = max(abs(before), abs(now)), abs(now - before)
    digits = min(17, max(4, math.floor(math.log10(size)) - math.floor(math.log10(step)) + 2)) if step > 0 else 4
    return f"{before:.{digits}g} to {now:.{digits}g}"


def table_text(clusters: Sequence[ClusterDrift]) -> str:
    """A line of text for each cluster, below the heads of the columns."""
    return "\n".join(columns_text([HEAD, *map(cells_of, clusters)]))


def table_html(clusters: Sequence[ClusterDrift]) -> str:
    """The table for notebooks."""
    return f"<table>{html_line(HEAD, 'th')}{''.join(html_line(cells_of(each), 'td') for each in clusters)}</table>"
