"""The clusters of a stream over its updates, as a river: a band for each, which branches where the cluster was split.

Figure objects of matplotlib and never pyplot. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.tracking.transition import Event, UpdateRows
from streamkm.core.exceptions import InvalidInputError
from streamkm.reports.drawing import COLOURS, FAINT, INK, TITLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BANDS = 30
"""Clusters with a band of their own; all others are one grey band."""
REST = -1
_GAP = 0.012  # between bands
_FULL_GAP = 0.01  # share from which on a band has the whole gap
_STEPS = 24  # points of a curve from update to update
_LABELLED = 0.03  # share from which on a band has its id on it
_MARKS = {"born": ("o", "born"), "died": ("X", "died"), "split": ("<", "split from its neighbour"),
          "joined": (">", "joined to another")}  # fmt: skip


def plot_river(updates: Sequence[UpdateRows], lineage: Sequence[Event]) -> Figure:
    """Draw the shares of clusters in the rows of each update, with births, deaths, splits and joins.

    `updates`: at least two, in order. Raises InvalidInputError: for fewer than two updates.
    """
    if len(updates) < 2:
        raise InvalidInputError(f"{len(updates)} update so far; a figure over time needs two: call update again")
    ids, shares = band_shares(updates, lineage)
    numbers = np.array([each.update for each in updates], np.float64)
    x, fine = _curves(numbers, shares)
    lower, upper = _edges(fine)
    figure, (panel,) = new_figure(1, height=6.0)
    for place, id_ in enumerate(ids):
        colour = FAINT if id_ == REST else COLOURS[place % len(COLOURS)]
        alpha = 0.35 if id_ == REST else 0.85
        shown = fine[place] > 0
        panel.fill_between(x, lower[place], upper[place], where=shown, color=colour, alpha=alpha, linewidth=0)
    middle = (lower + upper)[:, ::_STEPS] / 2
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
    """Ids so that a cluster lies beside the one that it was split from, or else joined to."""
    beside: dict[int, int] = {}
    for kind in ("split", "joined"):
        for event in lineage:
            if event.event == kind and event.other is not None:
                beside.setdefault(event.id, event.other)
    children: dict[int, list[int]] = {}
    for id_ in ids:
        if id_ in beside:
            children.setdefault(beside[id_], []).append(id_)
    known, order, placed = set(ids), [], set()
    roots = [id_ for id_ in ids if beside.get(id_) not in known]
    waiting = [*reversed(ids), *reversed(roots)]  # roots first; what only leads to itself comes last
    while waiting:
        id_ = waiting.pop()
        if id_ not in placed:
            placed.add(id_)
            order.append(id_)
            waiting += children.get(id_, [])
    return order


def _curves(
    numbers: NDArray[np.float64], shares: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares between updates, by a curve that is level at each."""
    t = np.arange((len(numbers) - 1) * _STEPS + 1) / _STEPS
    left = np.minimum(t.astype(np.int64), len(numbers) - 2)
    part = t - left
    part = part * part * (3 - 2 * part)
    fine = shares[:, left] * (1 - part) + shares[:, left + 1] * part
    return np.interp(t, np.arange(len(numbers)), numbers), fine


def _edges(fine: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lower and the upper edge of each band, stacked about the middle; a band that is gone has no gap."""
    gaps = _GAP * np.minimum(fine / _FULL_GAP, 1.0)
    tops = np.cumsum(fine + gaps, axis=0)
    tops -= tops[-1] / 2
    return tops - fine - gaps, tops - gaps


def _write(panel: Axes, x: float, y: float, text: str) -> None:
    first, last = panel.dataLim.x0, panel.dataLim.x1
    side = "left" if x <= first else "right" if x >= last else "center"
    panel.annotate(
        text, (x, y), xytext=({"left": 6, "right": -6, "center": 0}[side], 0), textcoords="offset points", ha=side,
        va="center", fontsize=9, color="#ffffff", fontweight="bold", path_effects=_outline(),
    )  # fmt: skip


def _outline() -> list[object]:
    """A dark line around letters, which are then read on every colour."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2, foreground=INK)]


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
        begins = kind in ("born", "split")
        found = [
            (when[event.update], where[event.id])
            for event in lineage
            if event.event == kind and event.id in where and when.get(event.update, 0) > 0
        ]
        at = [(number if begins else max(0, number - 1), place) for number, place in found]
        if at:
            xs, ys = zip(*[(numbers[number], middle[place, number]) for number, place in at], strict=True)
            panel.plot(
                xs, ys, mark, color="#ffffff", markeredgecolor=INK, markersize=6, label=text, clip_on=False, zorder=5
            )
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=4, frameon=False, labelcolor=INK)
