"""What an update of clusters by new rows brought, as values that print well: drift, events, and figures.

Nothing is computed here: the update does that.
"""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from streamkm.cluster.tracking.transition import Event
from streamkm.core.display import Lines
from streamkm.metrics.cluster_summary import number_text
from streamkm.metrics.drift_report import MANY_BEYOND, Drift, Moved, plain, table_html, table_text, weight_text

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_SHOWN = 15
"""Clusters, and events, that are printed."""


@dataclass(frozen=True, slots=True)
class NewCluster:
    """What sets a cluster apart that an update has found."""

    id: int
    # features whose mean lies farthest from that of all rows: before, of all rows; now, of the cluster
    traits: tuple[Moved, ...]


@dataclass(frozen=True, slots=True)
class Update(Lines):
    """What an update by new rows brought."""

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
        """Whether clusters were born for rows that the clusters of before do not fit."""
        return any(event.event == "born" for event in self.events)

    @property
    def advice(self) -> str:
        """How clusters would follow rows that they do not follow; empty where they do."""
        k, drift = self.fixed_k, self.drift
        if not k or drift is None or self.has_followed or not (drift.novelty.value > MANY_BEYOND or drift.alarms()[2]):
            return ""
        few, many = max(1, k // 2), 2 * k
        return (
            f"k is fixed at {k}: rows far out cannot become a cluster of their own; with a range they can, such as "
            f"n_clusters=({few}, {many}), on the command line -k {few}:{many}"
        )

    def sentence(self) -> str:
        """What the new rows are to the clusters, in one sentence."""
        if self.drift is None:
            return "first update"
        follows = self.drift.verdict == "fit again" and self.has_followed
        return self.drift.sentence("Followed by a new cluster" if follows else "")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; None for what is not known."""
        return dict(plain(asdict(self)))

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for each cluster, as of `Drift.to_pandas`, and ``events`` as text. Needs pandas.

        Clusters that are new have no drift: their figures are missing. The first update has events alone.
        """
        import pandas as pd

        texts: dict[int, list[str]] = {}
        for event in self.events:
            texts.setdefault(event.id, []).append(self.event_text(event))
        events = pd.Series({id_: "; ".join(told) for id_, told in texts.items()}, dtype=object, name="events")
        frame = pd.DataFrame(index=pd.Index([], dtype="int64")) if self.drift is None else self.drift.to_pandas()
        joined = frame.join(events, how="outer") if len(events) else frame.assign(events="")
        return joined.fillna({"events": ""}).rename_axis("id").sort_index()

    def event_text(self, event: Event) -> str:
        """An event in words, with what sets a new cluster apart."""
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
