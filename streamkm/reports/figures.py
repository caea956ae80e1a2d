"""Figures of a result: the map of clusters, their sizes and silhouettes, convergence.

Figure objects of matplotlib and never pyplot. Plain values and arrays come in; nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkm.reports.drawing import FAINT, TITLE, WIDTH_INCHES, dress, empty_figure, halo, new_figure
from streamkm.reports.maps import ClusterMap
from streamkm.reports.palette import COLOURS, GREY, cluster_colours, text_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_SPREADING_STEPS = 1000
_MOST_BARS = 40  # clusters named one by one below bars; more would overlap
_ALIKE = 1.2  # times the smallest cluster, up to which a median says nothing
_LEAST_FALL = 0.01  # of the objective, that is worth a picture
_STAGES = {
    "lloyd": "Lloyd on the sketch",
    "polish": "polish: sampled rows, original space",
    "refine": "refine: all rows, original space",
}


def plot_convergence(history: list[dict[str, Any]]) -> Figure | None:
    """Draw the objective by iteration, a panel for each stage: their spaces and rows differ, so do their objectives.

    Parameters
    ----------
    history : list of dict
        ``stage``, ``iteration`` and ``inertia``, in order.

    Returns
    -------
    Figure or None
        None where there is nothing to see: no stage has more than two iterations and ends 1 % below its first.
    """
    from matplotlib.ticker import MaxNLocator

    stages: dict[str, list[tuple[int, float]]] = {}
    for entry in history:
        if entry["inertia"] is not None:
            stages.setdefault(entry["stage"], []).append((entry["iteration"], entry["inertia"]))
    lines = {
        name: points
        for name, points in stages.items()
        if len(points) > 2 and points[0][1] - points[-1][1] >= _LEAST_FALL * abs(points[0][1])
    }
    if not lines:
        return None
    figure, axes = new_figure(len(lines), height=3.4)
    for number, ((name, points), panel) in enumerate(zip(lines.items(), axes, strict=True)):
        iterations, values = zip(*points, strict=True)
        panel.plot(iterations, values, color=COLOURS[0], marker="o" if len(points) <= 40 else None, markersize=4)
        fall = 100 * (1 - values[-1] / values[0]) if values[0] else 0.0
        panel.set_title(f"{_stage_name(name)}\n{len(points)} iterations, last {fall:.2g} % below first", **TITLE)
        panel.set_xlabel("iteration")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        if number == 0:
            panel.set_ylabel("sum of squared distances")
    return figure


def plot_sizes(counts: ArrayLike, ids: Sequence[int] | None = None) -> Figure:
    """Draw cluster sizes from the largest to the smallest; the axis is logarithmic where they differ widely.

    Parameters
    ----------
    counts : array of shape (k,)
    ids : sequence of int, optional
        What labels are; by default the numbers of the clusters.

    Returns
    -------
    Figure
    """
    figure = empty_figure(6.0, 2.8)
    panel = figure.add_subplot()
    dress(panel)
    _draw_sizes(panel, np.asarray(counts, np.float64), ids)
    return figure


def _draw_sizes(panel: Axes, sizes: NDArray[np.float64], ids: Sequence[int] | None = None) -> None:
    order = np.argsort(-sizes, kind="stable")
    ranked = sizes[order]
    positions = np.arange(1, len(ranked) + 1)
    if len(ranked) <= _MOST_BARS:
        colours = cluster_colours(sizes)
        panel.bar(positions, ranked, color=[colours[cluster] for cluster in order], width=0.75)
        labels = order if ids is None else [ids[cluster] for cluster in order]
        panel.set_xticks(positions, [str(label) for label in labels], fontsize=_tick_size(len(ranked)))
        panel.set_xlabel("cluster label, largest first")
    else:
        panel.stairs(ranked, np.arange(len(ranked) + 1) + 0.5, fill=True, color=COLOURS[0])
        panel.set_xlabel("clusters, largest first")
    panel.set_xlim(0.4, len(ranked) + 0.6)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("rows")
    positive = ranked[ranked > 0]
    if len(positive) and positive[0] > 50 * positive[-1]:
        panel.set_yscale("log")
        panel.set_ylabel("rows (logarithmic)")
        panel.set_ylim(bottom=max(0.5, positive[-1] / 2))
    median = float(np.median(ranked))
    if ranked[0] > _ALIKE * ranked[-1]:
        panel.axhline(median, color=COLOURS[3], linewidth=1.2, linestyle="--")
        panel.annotate(
            f"median {median:,.0f}", (1, median), xycoords=("axes fraction", "data"), xytext=(-4, 3),
            textcoords="offset points", ha="right", va="bottom", color=COLOURS[3], bbox=halo(),
        )  # fmt: skip
    span = f"{ranked[-1]:,.0f} to {ranked[0]:,.0f} rows" if ranked[0] > ranked[-1] else f"{ranked[0]:,.0f} rows each"
    panel.set_title(f"{len(ranked):,} clusters of {span}", **TITLE)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def plot_clusters(
    places: ClusterMap,
    sizes: ArrayLike,
    names: Mapping[int, str],
    silhouettes: Mapping[int, float],
    ids: Sequence[int] | None = None,
) -> Figure:
    """Draw what is known of clusters: the map, their sizes, and their silhouettes where they are known.

    Parameters
    ----------
    places : ClusterMap
    sizes : array (k,)
    names : mapping of int to str
        What clusters are called on the map; the others by their numbers.
    silhouettes : mapping of int to float
        Of clusters; empty where nothing is known.
    ids : sequence of int, optional
        As of `plot_sizes`.

    Returns
    -------
    Figure
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
        known = {cluster: silhouettes[cluster] for cluster in order if cluster in silhouettes}
        _draw_silhouettes(bottom, known, cluster_colours(rows))
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
        panel.scatter(
            *points[shown].T, c=[colours[labels[at]] for at in shown], s=areas[shown], alpha=0.8, linewidths=0,
            rasterized=True,
        )  # fmt: skip
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


def _draw_silhouettes(panel: Axes, silhouettes: Mapping[int, float], colours: Sequence[str]) -> None:
    """How far rows are inside of their clusters, in the order that these are given in."""
    order = list(silhouettes)
    values, positions = [silhouettes[cluster] for cluster in order], np.arange(1, len(order) + 1)
    if len(order) <= _MOST_BARS:
        panel.bar(positions, values, color=[colours[cluster] for cluster in order], width=0.75)
        panel.set_xticks(positions, [str(cluster) for cluster in order], fontsize=_tick_size(len(order)))
    else:
        panel.stairs(values, np.arange(len(values) + 1) + 0.5, fill=True, color=COLOURS[2])
    panel.set_xlim(0.4, len(order) + 0.6)
    panel.set_ylim(min(0.0, *values), 1)
    panel.set_xlabel(f"cluster{' label' if len(order) <= _MOST_BARS else 's'}, largest first")
    panel.set_title("simplified silhouettes: 1 far from other clusters, 0 on a border", **TITLE)


def _tick_size(n_bars: int) -> float:
    return 9 if n_bars <= 15 else 7 if n_bars <= 25 else 5.5


def _stage_name(stage: str) -> str:
    return _STAGES.get(stage.partition("-")[0], stage)
