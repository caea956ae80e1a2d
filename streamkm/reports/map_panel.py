"""The map of clusters in a figure: points in colours that differ from those beside them, names that cover no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamkm.reports.drawing import COLOURS, FAINT, INK, halo
from streamkm.reports.maps import ClusterMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMED = 25  # clusters named one by one among points; more would overlap
_SPREADING_STEPS = 1000
_SPACING = 0.12  # of the map's width, between names of some of very many clusters


def draw_map(panel: Axes, places: ClusterMap, sizes: NDArray[np.float64], names: Mapping[int, str]) -> None:
    """Points in the colours of their clusters, which differ from those beside them; names beside large clusters."""
    panel.set_axis_off()
    if places.by_neighbours:
        panel.set_aspect("equal", adjustable="datalim")
    if not len(places.points):
        return
    present, inverse = np.unique(places.labels, return_inverse=True)
    counts = np.bincount(inverse)
    middles = np.column_stack([np.bincount(inverse, places.points[:, axis]) / counts for axis in (0, 1)])
    colours = np.array(COLOURS)[_spread_colours(middles, sizes[present])][inverse]
    if places.of_rows:
        panel.scatter(
            places.points[:, 0], places.points[:, 1], c=colours, s=14, alpha=0.75, linewidths=0, rasterized=True
        )
    else:
        areas = 6 + 120 * sizes[places.labels] / max(sizes[places.labels].max(), 1)
        panel.scatter(
            places.points[:, 0], places.points[:, 1], c=colours, s=areas, alpha=0.75, linewidths=0, rasterized=True
        )
    panel.autoscale_view()
    panel.margins(0.06)
    order = [at for at in np.argsort(-sizes[present], kind="stable").tolist() if int(present[at]) in names]
    anchors = np.array([_middle(places.points[inverse == at]) for at in order]).reshape(-1, 2)
    if len(order) > _MOST_NAMED:
        few = _far_apart(anchors)
        order, anchors = [order[at] for at in few], anchors[few]
    _write_names(panel, anchors, [names[int(present[at])] for at in order])


def _far_apart(anchors: NDArray[np.float64]) -> list[int]:
    """Some places that are far from each other, the first ones where there is a choice."""
    span = float(np.ptp(anchors, axis=0).max())
    kept: list[int] = []
    for at in range(len(anchors)):
        d2 = ((anchors[kept] - anchors[at]) ** 2).sum(axis=1)
        if len(kept) < _MOST_NAMED and (not kept or float(d2.min()) > (_SPACING * span) ** 2):
            kept.append(at)
    return kept


def _middle(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The point nearest to the medians of all: it lies among them."""
    return points[np.argmin(((points - np.median(points, axis=0)) ** 2).sum(axis=1))]


def _write_names(panel: Axes, anchors: NDArray[np.float64], names: Sequence[str]) -> None:
    """Names at their places, moved apart until none covers another; a line leads to what was moved far."""
    figure = panel.figure
    figure.canvas.draw()
    texts = [
        panel.text(x, y, name, ha="center", va="center", fontsize=10.5, weight="bold", color=INK, bbox=halo())
        for (x, y), name in zip(anchors.tolist(), names, strict=True)
    ]
    if not texts:
        return
    boxes = np.array([text.get_window_extent().size for text in texts]) + 5
    start = panel.transData.transform(anchors)
    frame = panel.get_window_extent()
    at = apart(start, boxes, (frame.x0, frame.y0, frame.x1, frame.y1))
    for text, place, moved, anchor in zip(
        texts, panel.transData.inverted().transform(at), at - start, anchors, strict=True
    ):
        text.set_position(tuple(place))
        if float(np.abs(moved).max()) > 14:
            panel.plot(*zip(anchor, place, strict=True), color=FAINT, linewidth=0.8, zorder=1)


def apart(places: NDArray[np.float64], sizes: NDArray[np.float64], frame: tuple[float, ...]) -> NDArray[np.float64]:
    """Move boxes as little as it takes, until none covers another and all are in a frame. O(n^2) a step.

    Parameters
    ----------
    places : float64 (n, 2)
        Middles of the boxes.
    sizes : float64 (n, 2)
        Widths and heights.
    frame : tuple of float
        Left, bottom, right and top.

    Returns
    -------
    float64 (n, 2)
    """
    low, high = np.array(frame[:2]) + sizes / 2, np.array(frame[2:]) - sizes / 2
    at = np.clip(places, low, np.maximum(low, high))
    rows, columns = np.triu_indices(len(at), 1)
    needed = (sizes[rows] + sizes[columns]) / 2
    for _ in range(_SPREADING_STEPS):
        away = at[columns] - at[rows]
        lacking = needed - np.abs(away)
        clash = np.flatnonzero((lacking > 0.01).all(axis=1))
        if not len(clash):
            break
        for pair in clash.tolist():
            axis = int(np.argmin(lacking[pair]))
            step = 0.6 * lacking[pair, axis] * (1 if away[pair, axis] >= 0 else -1)
            at[columns[pair], axis] += step
            at[rows[pair], axis] -= step
        at = np.clip(at, low, np.maximum(low, high))
    return at


def _spread_colours(middles: NDArray[np.float64], sizes: NDArray[Any]) -> NDArray[np.intp]:
    """A colour number a cluster: large ones first, each as far as can be from those of its colour. O(k^2)."""
    numbers = np.full(len(middles), -1)
    nearest = np.full((len(middles), len(COLOURS)), np.inf)  # d2 to the nearest middle of each colour
    for at in np.argsort(-sizes, kind="stable"):
        numbers[at] = np.argmax(nearest[at])
        d2 = ((middles - middles[at]) ** 2).sum(axis=1)
        nearest[:, numbers[at]] = np.minimum(nearest[:, numbers[at]], d2)
    return numbers
