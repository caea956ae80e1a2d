"""Figures of a result: the map of clusters, their sizes and silhouettes.

Figure objects of matplotlib and never pyplot. Plain values and arrays come in; nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkm.reports.drawing import FAINT, TITLE, WIDTH_INCHES, dress, empty_figure
from streamkm.reports.maps import ClusterMap
from streamkm.reports.palette import COLOURS, GREY, cluster_colours, text_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_SPREADING_STEPS = 1000
_MOST_BARS = 40  # clusters named one by one below bars; more would overlap


def plot_sizes(counts: ArrayLike, ids: Sequence[int] | None = None) -> Figure:
    """Draw cluster sizes from the largest to the smallest; the axis is logarithmic where they differ widely.

    `counts`: array of shape (k,). `ids`: sequence of int, what labels are; by default the numbers of the clusters.
    """
    figure = empty_figure(6.0, 2.8)
    panel = figure.add_subplot()
    dress(panel)
    _draw_sizes(panel, np.asarray(counts, np.float64), ids)
    return figure


def _draw_sizes(panel: Axes, sizes: NDArray[np.float64], ids: Sequence[int] | None = None) -> None:
    """Bars of rows; the title says how they differ."""
    order = np.argsort(-sizes, kind="stable").tolist()
    ranked = sizes[order]
    _draw_bars(panel, ranked, order if ids is None else [ids[cluster] for cluster in order])
    positive = ranked[ranked > 0]
    is_wide = len(positive) and positive[0] > 50 * positive[-1]
    panel.set_ylim(bottom=0)
    if is_wide:
        panel.set_yscale("log")
        panel.set_ylim(bottom=max(0.5, positive[-1] / 2))
    panel.set_ylabel("rows (logarithmic)" if is_wide else "rows")
    span = f"{ranked[-1]:,.0f} to {ranked[0]:,.0f} rows, median {np.median(ranked):,.0f}"
    span = span if ranked[0] > ranked[-1] else f"{ranked[0]:,.0f} rows each"
    panel.set_title(f"{len(ranked):,} clusters of {span}", **TITLE)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _draw_bars(panel: Axes, values: ArrayLike, labels: Sequence[int]) -> None:
    """Bars of clusters in their colours, the largest cluster first; an outline where they are many."""
    heights = np.asarray(values)
    if len(heights) <= _MOST_BARS:
        positions = np.arange(1, len(heights) + 1)
        panel.bar(positions, heights, color=cluster_colours(-positions), width=0.75)
        size = 9 if len(heights) <= 15 else 7 if len(heights) <= 25 else 5.5
        panel.set_xticks(positions, [str(label) for label in labels], fontsize=size)
    else:
        panel.stairs(heights, np.arange(len(heights) + 1) + 0.5, fill=True, color=COLOURS[0])
    panel.set_xlabel(f"cluster{' label' if len(heights) <= _MOST_BARS else 's'}, largest first")
    panel.set_xlim(0.4, len(heights) + 0.6)


def plot_clusters(
    places: ClusterMap,
    sizes: ArrayLike,
    names: Mapping[int, str],
    silhouettes: Mapping[int, float],
    ids: Sequence[int] | None = None,
) -> Figure:
    """Draw what is known of clusters: the map, their sizes, and their silhouettes where they are known.

    `sizes`: array (k,). `names`: what clusters are called on the map; the others by their numbers. `silhouettes`:
    mapping of int to float, of clusters; empty where nothing is known. `ids`: sequence of int, as of `plot_sizes`.
    """
    figure = empty_figure(WIDTH_INCHES + 2, 5.6)
    grid = figure.add_gridspec(2 if silhouettes else 1, 2, width_ratios=(3, 2))
    left, top = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    rows = np.asarray(sizes, np.float64)
    draw_map(left, places, rows, names)
    what = "sampled rows" if places.of_rows else "means of clusters"
    how = ": nearby points are similar" if places.by_neighbours else ", along directions that separate clusters most"
    left.set_title(f"{len(places.points):,} {what}{how}", **TITLE)
    dress(top)
    _draw_sizes(top, rows, ids)
    if silhouettes:
        bottom = figure.add_subplot(grid[1, 1])
        dress(bottom)
        order = np.argsort(-rows, kind="stable").tolist()
        _draw_bars(bottom, [silhouettes.get(cluster, np.nan) for cluster in order], order)
        bottom.set_ylim(min(0.0, *silhouettes.values()), 1)
        bottom.set_title("simplified silhouettes: 1 far from other clusters, 0 on a border", **TITLE)
    return figure


def plot_map(places: ClusterMap, sizes: ArrayLike, names: Mapping[int, str]) -> Figure:
    """Draw the map alone; see `plot_clusters`."""
    figure = empty_figure(6.0, 4.8)
    draw_map(figure.add_subplot(), places, np.asarray(sizes, np.float64), names)
    return figure


def draw_map(panel: Axes, places: ClusterMap, sizes: NDArray[np.float64], names: Mapping[int, str]) -> None:
    """Points in the colours of their clusters; beside those of the largest, names in the same colour."""
    panel.set_axis_off()
    if places.by_neighbours:
        panel.set_aspect("equal", adjustable="datalim")
    if not len(places.points):
        return
    points, labels, colours = places.points, places.labels, cluster_colours(sizes)
    areas = np.full(len(points), 14.0) if places.of_rows else 6 + 120 * sizes[labels] / max(sizes[labels].max(), 1)
    for is_grey in (True, False):  # below the others
        shown = np.flatnonzero([(colours[label] == GREY) == is_grey for label in labels])
        x, y, shades = *points[shown].T, [colours[labels[at]] for at in shown]
        panel.scatter(x, y, c=shades, s=areas[shown], alpha=0.8, linewidths=0, rasterized=True)
    panel.autoscale_view()
    panel.margins(0.06)
    panel.figure.canvas.draw()
    largest = np.argsort(-sizes, kind="stable")[: len(COLOURS)].tolist()
    present = set(labels.tolist())
    named = [cluster for cluster in largest if cluster in present and cluster in names]
    anchors = np.array([_middle(points[labels == cluster]) for cluster in named]).reshape(-1, 2)
    texts = [
        panel.text(
            x, y, names[cluster], ha="center", va="center", fontsize=10, weight="bold", color=text_on(colours[cluster]),
            bbox={"boxstyle": "round,pad=0.2", "facecolor": colours[cluster], "edgecolor": "#ffffff"},
        )
        for (x, y), cluster in zip(anchors.tolist(), named, strict=True)
    ]  # fmt: skip
    _move_apart(panel, anchors, texts)


def _middle(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The point nearest to the medians of all: it lies among them."""
    return points[np.argmin(((points - np.median(points, axis=0)) ** 2).sum(axis=1))]


def _move_apart(panel: Axes, anchors: NDArray[np.float64], texts: Sequence[Text]) -> None:
    """Put names above their points, and move them until none covers another; a line leads to what was moved far."""
    if not texts:
        return
    boxes = np.array([text.get_window_extent().size for text in texts]) + 9
    start = panel.transData.transform(anchors) + boxes * (0, 0.5) + (0, 6)
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

    `places`: float64 (n, 2), middles of the boxes. `sizes`: float64 (n, 2), widths and heights. `frame`: tuple of
    float, left, bottom, right and top. Returns float64 (n, 2).
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
