"""Figures of a stream: its clusters over updates as a river, a band for each, and their shares before and now.

Figure objects of matplotlib and never pyplot. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from streamkm.cluster.tracking.transition import Event, UpdateRows
from streamkm.core.exceptions import InvalidInputError
from streamkm.metrics.drift_report import Drift
from streamkm.reports.figures import FAINT, INK, TITLE, new_figure
from streamkm.reports.maps import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BANDS = 30
"""Clusters with a band of their own; all others are one grey band."""
MOST_PAIRS = 30
"""Clusters whose shares before and now are drawn."""
REST = -1
_STEPS = 24  # points of a curve from update to update
_LABELLED = 0.03  # share from which on a band has its id on it
_MARKS = {
    "born": ("o", "born"),
    "died": ("X", "died"),
    "split": ("<", "split from its neighbour"),
    "joined": (">", "joined to another"),
}


def plot_river(updates: Sequence[UpdateRows], lineage: Sequence[Event]) -> Figure:
    """Draw the shares of clusters in the rows of each update, with births, deaths, splits and joins.

    `updates`: at least two, in order. Raises InvalidInputError: for fewer than two updates.
    """
    if len(updates) < 2:
        raise InvalidInputError(f"{len(updates)} update so far; a figure over time needs two: call update again")
    ids, shares = band_shares(updates, lineage)
    numbers = np.array([each.update for each in updates], np.float64)
    x = np.linspace(numbers[0], numbers[-1], (len(numbers) - 1) * _STEPS + 1)
    figure, (panel,) = new_figure("A", 10.0, 6.0)
    colours = [GREY if id_ == REST else COLOURS[place % len(COLOURS)] for place, id_ in enumerate(ids)]
    bands = PchipInterpolator(numbers, shares, axis=1)(x)
    panel.stackplot(x, bands, baseline="sym", colors=colours, alpha=0.85, edgecolor="#ffffff", linewidth=1.5)
    middle = shares.cumsum(axis=0) - shares / 2 - shares.sum(axis=0) / 2
    for place, id_ in enumerate(ids):
        widest = int(shares[place].argmax())
        if shares[place, widest] >= _LABELLED:
            _write(panel, numbers[widest], middle[place, widest], "others" if id_ == REST else str(id_))
    _mark_events(panel, ids, numbers, middle, lineage)
    panel.set_xlim(numbers[0], numbers[-1])
    panel.set_xticks(numbers[:: max(1, len(numbers) // 12)])
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.set_xlabel("update")
    panel.set_title("Shares of clusters in the rows of each update; ids are written on wide bands", **TITLE)
    return figure


def plot_shares(drift: Drift) -> Figure:
    """Draw the shares of the largest clusters before and now, as paired bars."""
    shown = sorted(drift.clusters, key=lambda each: -max(each.share_before, each.share))[:MOST_PAIRS]
    figure, (panel,) = new_figure("A", 10.0, 4.2)
    places = range(len(shown))
    before, now = [each.share_before for each in shown], [each.share for each in shown]
    panel.bar([place - 0.2 for place in places], before, 0.4, color=FAINT, label="before")
    panel.bar([place + 0.2 for place in places], now, 0.4, color=COLOURS[0], label="now")
    panel.set_xticks(list(places), [str(each.id) for each in shown])
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    panel.set_xlabel("cluster")
    more = f"; the {MOST_PAIRS} largest of {len(drift.clusters):,} clusters" if len(drift.clusters) > MOST_PAIRS else ""
    panel.set_title(f"Share of rows{more}", **TITLE)
    panel.legend(frameon=False, labelcolor=INK)
    return figure


def band_shares(updates: Sequence[UpdateRows], lineage: Sequence[Event]) -> tuple[list[int], NDArray[np.float64]]:
    """Bands from bottom to top: ids, `REST` last where there are others, and their shares (bands, updates)."""
    everyone = sorted({int(id_) for each in updates for id_ in each.ids})
    where = {id_: place for place, id_ in enumerate(everyone)}
    shares = np.zeros((len(everyone), len(updates)))
    for number, each in enumerate(updates):
        total = float(each.rows.sum())
        shares[[where[int(id_)] for id_ in each.ids], number] = each.rows / total if total else 0.0
    peaks = shares.max(axis=1)
    largest = set(np.argsort(-peaks, kind="stable")[:MOST_BANDS].tolist())
    ids = [id_ for id_ in _in_families(everyone, lineage) if where[id_] in largest and peaks[where[id_]] > 0]
    bands = shares[[where[id_] for id_ in ids]]
    rest = shares[[place for place in range(len(everyone)) if place not in largest]].sum(axis=0)
    return ([*ids, REST], np.vstack([bands, rest])) if rest.any() else (ids, bands)


def _in_families(ids: Sequence[int], lineage: Sequence[Event]) -> list[int]:
    """Ids so that a cluster lies beside an earlier one that it was split from, or joined."""
    beside: dict[int, int] = {}
    for event in lineage:
        if event.event in ("split", "joined") and event.other is not None:
            beside.setdefault(max(event.id, event.other), min(event.id, event.other))
    order: list[int] = []
    for id_ in ids:
        order.insert(order.index(beside[id_]) + 1 if beside.get(id_) in order else len(order), id_)
    return order


def _write(panel: Axes, x: float, y: float, text: str) -> None:
    """Write the id on a band, with a dark line around its letters, which are then read on every colour."""
    from matplotlib.patheffects import withStroke

    first, last = panel.dataLim.x0, panel.dataLim.x1
    outline = [withStroke(linewidth=2, foreground=INK)]
    side = "left" if x <= first else "right" if x >= last else "center"
    panel.annotate(
        text, (x, y), xytext=({"left": 6, "right": -6, "center": 0}[side], 0), textcoords="offset points", ha=side,
        va="center", fontsize=9, color="#ffffff", fontweight="bold", path_effects=outline,
    )  # fmt: skip


def _mark_events(
    panel: Axes,
    ids: Sequence[int],
    numbers: NDArray[np.float64],
    middle: NDArray[np.float64],
    lineage: Sequence[Event],
) -> None:
    """Mark where bands begin and end after the first update; below the figure it says which mark is which."""
    where, when = {id_: place for place, id_ in enumerate(ids)}, {number: at for at, number in enumerate(numbers)}
    for kind, (mark, text) in _MARKS.items():
        back = 0 if kind in ("born", "split") else 1  # what ends was there an update before
        at = [
            (max(0, when[event.update] - back), where[event.id])
            for event in lineage
            if event.event == kind and event.id in where and when.get(event.update, 0) > 0
        ]
        if at:
            xs, ys = zip(*[(numbers[number], middle[place, number]) for number, place in at], strict=True)
            panel.plot(
                xs, ys, mark, color="#ffffff", markeredgecolor=INK, markersize=6, label=text, clip_on=False, zorder=5
            )
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=4, frameon=False, labelcolor=INK)
