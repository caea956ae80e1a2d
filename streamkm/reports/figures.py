"""How figures look, the map of clusters, their sizes and silhouettes; figures as SVG.

Figure objects of matplotlib and never pyplot. Plain values and arrays come in; nothing is written.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib import figure
from numpy.typing import ArrayLike, NDArray

from streamkm.reports.maps import COLOURS, GREY, ClusterMap, cluster_colours, text_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

INK, FAINT, GRID = "#222222", "#757575", "#e4e4e4"
DPI = 130
_NOTEBOOK_DPI = 80  # as wide as a cell
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": INK}
_OF_PAGE = {INK: "ink", FAINT: "faint", GRID: "line", "#ffffff": "page"}  # colours in the page
_NOT_OF_PAGES = re.compile(r'\s*<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', re.DOTALL)  # what files alone need
_SPREADING_STEPS = 1000
_MOST_BARS = 40  # clusters named one by one below bars; more would overlap


class Figure(figure.Figure):
    """A figure that IPython shows where pyplot, which would tell it how, is not imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_NOTEBOOK_DPI)
        return buffer.getvalue()


def new_figure(panels: str, width: float, height: float, **ratios: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches and its panels, a letter for each, with faint axes and a grid behind what is drawn."""
    drawn = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    made = drawn.subplot_mosaic(panels, **ratios)
    for panel in made.values():
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(FAINT)
        panel.tick_params(color=FAINT, labelcolor=INK)
        panel.xaxis.label.set_color(INK)
        panel.yaxis.label.set_color(INK)
        panel.grid(axis="y", color=GRID, linewidth=0.8)
        panel.set_axisbelow(True)
    return drawn, [made[letter] for letter in sorted(made)]


def svg_file(drawn: figure.Figure) -> str:
    """A figure as the text of an SVG file, the same for the same figure."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "streamkm", "svg.fonttype": "none"}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def svg(drawn: figure.Figure) -> str:
    """A figure as an SVG element of a page, from which it takes its colours."""
    text = svg_file(drawn)
    for colour, name in _OF_PAGE.items():
        text = text.replace(colour, f"var(--{name})")
    return _NOT_OF_PAGES.sub("", text[text.index("<svg") :])


def plot_sizes(counts: ArrayLike, ids: Sequence[int] | None = None) -> Figure:
    """Draw cluster sizes from the largest to the smallest; the axis is logarithmic where they differ widely.

    `counts`: array of shape (k,). `ids`: sequence of int, what labels are; by default the numbers of the clusters.
    """
    figure, (panel,) = new_figure("A", 6.0, 2.8)
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
    figure, (left, top, *others) = new_figure("AB;AC" if silhouettes else "AB", 12.0, 5.6, width_ratios=(3, 2))
    rows = np.asarray(sizes, np.float64)
    draw_map(left, places, rows, names)
    what = "sampled rows" if places.of_rows else "means of clusters"
    how = ": nearby points are similar" if places.by_neighbours else ", along directions that separate clusters most"
    left.set_title(f"{len(places.points):,} {what}{how}", **TITLE)
    _draw_sizes(top, rows, ids)
    for bottom in others:
        order = np.argsort(-rows, kind="stable").tolist()
        _draw_bars(bottom, [silhouettes.get(cluster, np.nan) for cluster in order], order)
        bottom.set_ylim(min(0.0, *silhouettes.values()), 1)
        bottom.set_title("simplified silhouettes: 1 far from other clusters, 0 on a border", **TITLE)
    return figure


def plot_map(places: ClusterMap, sizes: ArrayLike, names: Mapping[int, str]) -> Figure:
    """Draw the map alone; see `plot_clusters`."""
    figure, (panel,) = new_figure("A", 6.0, 4.8)
    draw_map(panel, places, np.asarray(sizes, np.float64), names)
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
