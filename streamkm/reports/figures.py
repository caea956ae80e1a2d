"""Figures of fits (map, sizes, scores) and of streams (shares), without pyplot; nothing is written."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib import figure
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray
from scipy.interpolate import PchipInterpolator

from streamkm.cluster.tracking.transition import Event, UpdateRows
from streamkm.core.exceptions import InvalidInputError
from streamkm.metrics.drift_report import Drift
from streamkm.reports.maps import COLOURS, GREY, REST, ClusterMap, apart, band_shares, cluster_colours, text_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

Floats: TypeAlias = NDArray[np.float64]

INK, FAINT, GRID = "#222222", "#757575", "#e4e4e4"
DPI = 130
_NOTEBOOK_DPI = 80  # as wide as a cell
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": INK}
_STYLE: dict[Any, Any] = {  # of panels
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": FAINT, "axes.labelcolor": INK,
    "xtick.color": FAINT, "xtick.labelcolor": INK, "ytick.color": FAINT, "ytick.labelcolor": INK,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID, "axes.axisbelow": True,
}  # fmt: skip
_OF_PAGE = {INK: "ink", FAINT: "faint", GRID: "line", "#ffffff": "page"}  # colours in the page
_NOT_OF_PAGES = re.compile(r'\s*<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', re.DOTALL)  # what files alone need
MOST_PAIRS = 30  # clusters whose shares before and now are drawn
_STEPS = 24  # points of a curve from update to update
_LABELLED = 0.03  # share from which on a band has its id on it
_MARKS = {
    "born": ("o", "born"),
    "died": ("X", "died"),
    "split": ("<", "split from its neighbour"),
    "joined": (">", "joined to another"),
}
_MOST_BARS = 40  # clusters named one by one below bars; more would overlap


class Figure(figure.Figure):
    """A figure that IPython shows even if pyplot is not imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_NOTEBOOK_DPI)
        return buffer.getvalue()


def new_figure(panels: str, width: float, height: float, **ratios: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure, sizes in inches, with lettered panels, faint axes and a grid behind the data."""
    drawn = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    with mpl.rc_context(_STYLE):
        made = drawn.subplot_mosaic(panels, **ratios)
    return drawn, [made[letter] for letter in sorted(made)]


def svg_file(drawn: figure.Figure) -> str:
    """A figure as SVG text, equal for equal figures."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "streamkm", "svg.fonttype": "none"}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def svg(drawn: figure.Figure) -> str:
    """A figure as an SVG element that takes its colours from the page."""
    text = svg_file(drawn)
    for colour, name in _OF_PAGE.items():
        text = text.replace(colour, f"var(--{name})")
    return _NOT_OF_PAGES.sub("", text[text.index("<svg") :])


def plot_sizes(counts: ArrayLike, ids: Sequence[int] | None = None) -> Figure:
    """Draw cluster sizes (k,), the largest first, on a logarithmic axis if they differ widely; `ids`: the labels."""
    figure, (panel,) = new_figure("A", 6.0, 2.8)
    _draw_sizes(panel, np.asarray(counts, np.float64), ids)
    return figure


def _draw_sizes(panel: Axes, sizes: Floats, ids: Sequence[int] | None = None) -> None:
    """Draw sizes as bars in the clusters' colours, or many as an outline; the title describes their spread."""
    order = np.argsort(-sizes, kind="stable").tolist()
    ranked, positions, is_named = sizes[order], np.arange(1, len(sizes) + 1), len(sizes) <= _MOST_BARS
    if is_named:
        panel.bar(positions, ranked, color=cluster_colours(-positions), width=0.75)
        size = 9 if len(ranked) <= 15 else 7 if len(ranked) <= 25 else 5.5
        panel.set_xticks(positions, [str(each if ids is None else ids[each]) for each in order], fontsize=size)
    else:
        panel.stairs(ranked, np.arange(len(ranked) + 1) + 0.5, fill=True, color=COLOURS[0])
    panel.set_xlabel(f"cluster{' label' if is_named else 's'}, largest first")
    panel.set_xlim(0.4, len(ranked) + 0.6)
    positive = ranked[ranked > 0]
    is_wide = len(positive) and positive[0] > 50 * positive[-1]
    panel.set_yscale("log" if is_wide else "linear")
    panel.set_ylim(bottom=max(0.5, positive[-1] / 2) if is_wide else 0)
    panel.set_ylabel("rows (logarithmic)" if is_wide else "rows")
    span = f"{ranked[-1]:,.0f} to {ranked[0]:,.0f} rows, median {np.median(ranked):,.0f}"
    span = span if ranked[0] > ranked[-1] else f"{ranked[0]:,.0f} rows each"
    panel.set_title(f"{len(ranked):,} clusters of {span}", **TITLE)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def plot_clusters(
    places: ClusterMap, sizes: ArrayLike, names: Mapping[int, str], ids: Sequence[int] | None = None
) -> Figure:
    """Draw the map of the clusters beside their sizes (k,); `names` are shown on the map, numbers for others."""
    figure, (left, right) = new_figure("AB", 12.0, 5.6, width_ratios=(3, 2))
    rows = np.asarray(sizes, np.float64)
    draw_map(left, places, rows, names)
    what = "sampled rows" if places.of_rows else "means of clusters"
    how = ": nearby points are similar" if places.by_neighbours else ", along directions that separate clusters most"
    left.set_title(f"{len(places.points):,} {what}{how}", **TITLE)
    _draw_sizes(right, rows, ids)
    return figure


def plot_map(places: ClusterMap, sizes: ArrayLike, names: Mapping[int, str]) -> Figure:
    """Draw the map alone; see `plot_clusters`."""
    figure, (panel,) = new_figure("A", 6.0, 4.8)
    draw_map(panel, places, np.asarray(sizes, np.float64), names)
    return figure


def draw_map(panel: Axes, places: ClusterMap, sizes: Floats, names: Mapping[int, str]) -> None:
    """Draw points in the colours of their clusters, with names beside the largest."""
    panel.set_axis_off()
    if places.by_neighbours:
        panel.set_aspect("equal", adjustable="datalim")
    points, labels, colours = places.points, places.labels, cluster_colours(sizes)
    areas = np.full(len(points), 14.0) if places.of_rows else 6 + 120 * sizes[labels] / max(sizes[labels].max(), 1)
    shown = np.argsort([colours[label] != GREY for label in labels], kind="stable")  # grey ones lie below the others
    x, y, shades = *points[shown].T, [colours[label] for label in labels[shown]]
    panel.scatter(x, y, c=shades, s=areas[shown], alpha=0.8, linewidths=0, rasterized=True)
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


def _middle(points: Floats) -> Floats:
    """The point nearest to the medians of all, so that it lies among them."""
    return points[np.argmin(((points - np.median(points, axis=0)) ** 2).sum(axis=1))]


def _move_apart(panel: Axes, anchors: Floats, texts: Sequence[Text]) -> None:
    """Move names until none covers another; a line leads to each that moved far."""
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


def plot_river(updates: Sequence[UpdateRows], lineage: Sequence[Event]) -> Figure:
    """Draw shares of clusters by update, births, deaths, splits and joins; InvalidInputError for fewer than two."""
    if len(updates) < 2:
        raise InvalidInputError(f"{len(updates)} update so far; a figure over time needs two: call update again")
    ids, shares = band_shares(updates, lineage)
    numbers = np.array([each.update for each in updates], np.float64)
    x = np.linspace(numbers[0], numbers[-1], (len(numbers) - 1) * _STEPS + 1)
    figure, (panel,) = new_figure("A", 10.0, 6.0)
    colours = [GREY if id_ == REST else COLOURS[place % len(COLOURS)] for place, id_ in enumerate(ids)]
    bands = PchipInterpolator(numbers, shares, axis=1)(x)
    panel.stackplot(x, bands, baseline="sym", colors=colours, alpha=0.85, edgecolor="#ffffff", linewidth=1.5)
    outline = [withStroke(linewidth=2, foreground=INK)]  # ids are read on every colour
    middle = shares.cumsum(axis=0) - shares / 2 - shares.sum(axis=0) / 2
    for place, id_ in enumerate(ids):
        widest = int(shares[place].argmax())
        if shares[place, widest] >= _LABELLED:
            side = "left" if widest == 0 else "right" if widest == len(numbers) - 1 else "center"
            panel.text(
                numbers[widest], middle[place, widest], " others " if id_ == REST else f" {id_} ", ha=side, va="center",
                fontsize=9, color="#ffffff", fontweight="bold", path_effects=outline,
            )  # fmt: skip
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
    places = np.arange(len(shown))
    panel.bar(places - 0.2, [each.share_before for each in shown], 0.4, color=FAINT, label="before")
    panel.bar(places + 0.2, [each.share for each in shown], 0.4, color=COLOURS[0], label="now")
    panel.set_xticks(places, [str(each.id) for each in shown])
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    panel.set_xlabel("cluster")
    more = f"; the {MOST_PAIRS} largest of {len(drift.clusters):,} clusters" if len(drift.clusters) > MOST_PAIRS else ""
    panel.set_title(f"Share of rows{more}", **TITLE)
    panel.legend(frameon=False, labelcolor=INK)
    return figure


def plot_scores(rows: Sequence[Any], best: int, n_rows: int) -> Figure:
    """Draw inertia, silhouette and agreement of a sweep by the number of clusters, the suggested one marked."""
    figure, panels = new_figure("ABC", 10.0, 3.4)
    ks, errors = [row.n_clusters for row in rows], [row.silhouette_error for row in rows]
    titles = f"inertia a row, of {n_rows:,} rows", "silhouette, with its standard error", "agreement of two halves"
    for panel, name, title in zip(panels, ("inertia", "silhouette", "agreement"), titles, strict=True):
        values = [getattr(row, name) / (n_rows if name == "inertia" else 1) for row in rows]
        panel.axvline(best, color=COLOURS[3], linestyle=":")
        panel.errorbar(ks, values, errors if name == "silhouette" else None, color=COLOURS[0], marker=".")
        panel.set_title(title, **TITLE)
        panel.set_xlabel("clusters, k")
        panel.locator_params(axis="x", integer=True, nbins=6)
    place = ((best, 0.94), (4, 0), ("data", "axes fraction"), "offset points")
    panels[0].annotate(f"k = {best:,}", *place, color=COLOURS[3])
    return figure


def _mark_events(panel: Axes, ids: Sequence[int], numbers: Floats, middle: Floats, lineage: Sequence[Event]) -> None:
    """Mark where bands begin and end after the first update, with a legend of the marks below the figure."""
    where, when = {id_: place for place, id_ in enumerate(ids)}, {number: at for at, number in enumerate(numbers)}
    for kind, (mark, text) in _MARKS.items():
        back = kind not in ("born", "split")  # what ends was there an update before
        shown = [each for each in lineage if each.event == kind and each.id in where and when.get(each.update, 0) > 0]
        if shown:
            at, places = [when[each.update] - back for each in shown], [where[each.id] for each in shown]
            style: dict[str, Any] = {"color": "#ffffff", "markeredgecolor": INK, "clip_on": False, "zorder": 5}
            panel.plot(numbers[at], middle[places, at], mark, markersize=6, label=text, **style)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=4, frameon=False, labelcolor=INK)
