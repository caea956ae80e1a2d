"""Figures: the map of clusters, their sizes and silhouettes, convergence, sweeps.

The only module that imports matplotlib, through Figure objects and never through pyplot. Plain values and arrays come
in; nothing is written.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkm.reports.maps import ClusterMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every kind of colour vision; without black and yellow, which is weak on white
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5195")
_INK, _FAINT, _GRID = "#222222", "#757575", "#e4e4e4"
_WIDTH_INCHES, _DPI = 10.0, 130
_TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": _INK}
_MOST_BARS, _MOST_NAMED = 40, 25  # clusters named one by one below bars, and among points; more would overlap
_SPREADING_STEPS = 1000
_SPACING = 0.12  # of the map's width, between names of some of very many clusters
_OF_A_NAME = 0.15  # of a wide panel, that a short text takes
_OF_PAGE = {_INK: "ink", _FAINT: "faint", _GRID: "line", "#ffffff": "page", "#0072b2": "bar"}  # colours in the page
_NOT_OF_PAGES = re.compile(r'\s*<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', re.DOTALL)  # what files alone need
_LEAST_FALL = 0.01  # of the objective, that is worth a picture
_SCORES = {  # name, heading, whether more is better
    "silhouette": ("silhouette", True),
    "calinski_harabasz": ("Calinski-Harabasz", True),
    "davies_bouldin": ("Davies-Bouldin", False),
    "stability": ("agreement of seeds (ARI)", True),
}
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
    figure, axes = _new_figure(len(lines), height=3.4)
    for number, ((name, points), panel) in enumerate(zip(lines.items(), axes, strict=True)):
        iterations, values = zip(*points, strict=True)
        panel.plot(iterations, values, color=_COLOURS[0], marker="o" if len(points) <= 40 else None, markersize=4)
        fall = 100 * (1 - values[-1] / values[0]) if values[0] else 0.0
        panel.set_title(f"{_stage_name(name)}\n{len(points)} iterations, last {fall:.2g} % below first", **_TITLE)
        panel.set_xlabel("iteration")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        if number == 0:
            panel.set_ylabel("sum of squared distances")
    return figure


def plot_sizes(counts: ArrayLike) -> Figure:
    """Draw cluster sizes from the largest to the smallest; the axis is logarithmic where they differ widely.

    Parameters
    ----------
    counts : array of shape (k,)

    Returns
    -------
    Figure
    """
    figure, (panel,) = _new_figure(1, height=3.8)
    _draw_sizes(panel, np.asarray(counts, np.float64))
    return figure


def _draw_sizes(panel: Axes, sizes: NDArray[np.float64]) -> None:
    order = np.argsort(-sizes, kind="stable")
    ranked = sizes[order]
    positions = np.arange(1, len(ranked) + 1)
    if len(ranked) <= _MOST_BARS:
        panel.bar(positions, ranked, color=_COLOURS[0], width=0.75)
        panel.set_xticks(positions, [str(label) for label in order], fontsize=_tick_size(len(ranked)))
        panel.set_xlabel("cluster label, largest first")
    else:
        panel.stairs(ranked, np.arange(len(ranked) + 1) + 0.5, fill=True, color=_COLOURS[0])
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
    panel.axhline(median, color=_COLOURS[3], linewidth=1.2, linestyle="--")
    panel.annotate(
        f"median {median:,.0f}", (1, median), xycoords=("axes fraction", "data"), xytext=(-4, 3),
        textcoords="offset points", ha="right", va="bottom", color=_COLOURS[3], bbox=_halo(),
    )  # fmt: skip
    panel.set_title(f"{len(ranked):,} clusters of {ranked[-1]:,.0f} to {ranked[0]:,.0f} rows", **_TITLE)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def plot_clusters(
    places: ClusterMap, sizes: ArrayLike, names: Mapping[int, str], silhouettes: Mapping[int, float]
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

    Returns
    -------
    Figure
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_INCHES + 2, 5.6), dpi=_DPI, layout="constrained")
    grid = figure.add_gridspec(2 if silhouettes else 1, 2, width_ratios=(3, 2))
    left, top = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    _draw_map(left, places, np.asarray(sizes, np.float64), names)
    _dress(top)
    _draw_sizes(top, np.asarray(sizes, np.float64))
    if silhouettes:
        bottom = figure.add_subplot(grid[1, 1])
        _dress(bottom)
        _draw_silhouettes(bottom, silhouettes)
    return figure


def plot_map(places: ClusterMap, sizes: ArrayLike, names: Mapping[int, str]) -> Figure:
    """Draw the map alone; see `plot_clusters`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.0), dpi=_DPI, layout="constrained")
    _draw_map(figure.add_subplot(), places, np.asarray(sizes, np.float64), names)
    return figure


def _draw_map(panel: Axes, places: ClusterMap, sizes: NDArray[np.float64], names: Mapping[int, str]) -> None:
    """Points in the colours of their clusters, which differ from those beside them; names beside large clusters."""
    panel.set_axis_off()
    if places.by_neighbours:
        panel.set_aspect("equal", adjustable="datalim")
    if not len(places.points):
        return
    present, inverse = np.unique(places.labels, return_inverse=True)
    counts = np.bincount(inverse)
    middles = np.column_stack([np.bincount(inverse, places.points[:, axis]) / counts for axis in (0, 1)])
    colours = np.array(_COLOURS)[_spread_colours(middles, sizes[present])][inverse]
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
        panel.text(x, y, name, ha="center", va="center", fontsize=10.5, weight="bold", color=_INK, bbox=_halo())
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
            panel.plot(*zip(anchor, place, strict=True), color=_FAINT, linewidth=0.8, zorder=1)


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


def _draw_silhouettes(panel: Axes, silhouettes: Mapping[int, float]) -> None:
    """How far rows are inside of their clusters, from the best to the worst."""
    order = sorted(silhouettes, key=lambda cluster: -silhouettes[cluster])
    values, positions = [silhouettes[cluster] for cluster in order], np.arange(1, len(order) + 1)
    if len(order) <= _MOST_BARS:
        panel.bar(positions, values, color=_COLOURS[2], width=0.75)
        panel.set_xticks(positions, [str(cluster) for cluster in order], fontsize=_tick_size(len(order)))
    else:
        panel.stairs(values, np.arange(len(values) + 1) + 0.5, fill=True, color=_COLOURS[2])
    panel.set_xlim(0.4, len(order) + 0.6)
    panel.set_title("simplified silhouettes: 1 far from other clusters, 0 on a border", **_TITLE)


def _tick_size(n_bars: int) -> float:
    return 9 if n_bars <= 15 else 7 if n_bars <= 25 else 5.5


def sweep_figure(table: dict[str, Any]) -> Figure:
    """Draw a sweep: the objective by the number of clusters with its elbow, and below it the scores with their best k.

    Parameters
    ----------
    table : dict
        As of `SweepResult.to_dict`. Scores without a value are left out.

    Returns
    -------
    Figure
    """
    from matplotlib.ticker import MaxNLocator

    rows = table["rows"]
    ks = sorted({row["n_clusters"] for row in rows})
    scores = [name for name in _SCORES if any(row[name] is not None for row in rows)]
    figure, (top, *panels) = _new_figure(max(1, len(scores)), height=6.4 if scores else 3.8, below=bool(scores))
    lowest = [min(row["inertia_per_row"] for row in rows if row["n_clusters"] == k) for k in ks]
    _draw_seeds(top, rows, "inertia_per_row")
    top.plot(ks, lowest, color=_COLOURS[0], linewidth=1.6)
    if table["best"] is not None:
        top.plot([ks[0], ks[-1]], [lowest[0], lowest[-1]], color=_FAINT, linewidth=1, linestyle=":")
        # a curve that falls less and less leaves room below and to the left
        elbow, name = (table["best"], lowest[ks.index(table["best"])]), f"elbow: k = {table['best']:,}"
        _mark(top, *elbow, name, above=False, left=True)
    part = "all" if table["n_sampled"] == table["n_samples"] else "a sample of"
    seeds = len({row["seed"] for row in rows})
    top.set_title(
        f"Objective of {len(ks):,} numbers of clusters, {seeds} seed{'s' * (seeds > 1)}, on {part} "
        f"{table['n_sampled']:,} rows, in the {table['space']} space",
        **_TITLE,
    )
    top.set_ylabel("squared distance a row")
    top.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    top.set_xlabel("clusters, k")
    for panel, name in zip(panels, scores, strict=True):
        heading, more = _SCORES[name]
        means = {k: [row[name] for row in rows if row["n_clusters"] == k and row[name] is not None] for k in ks}
        points = [(k, sum(values) / len(values)) for k, values in means.items() if values]
        if name != "stability":
            _draw_seeds(panel, rows, name)
        panel.plot(*zip(*points, strict=True), color=_COLOURS[0], linewidth=1.2)
        best = (max if more else min)(points, key=lambda point: point[1])
        _mark(panel, *best, f"k = {best[0]:,}", above=more)
        panel.set_title(f"{heading}\n{'more' if more else 'less'} is better", **_TITLE)
        panel.set_xlabel("clusters, k")
        panel.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return figure


def _draw_seeds(panel: Axes, rows: list[dict[str, Any]], name: str) -> None:
    """A faint dot for every run."""
    points = [(row["n_clusters"], row[name]) for row in rows if row[name] is not None]
    panel.plot(*zip(*points, strict=True), ".", color=_COLOURS[5], markersize=4, alpha=0.6)


def _mark(panel: Axes, x: float, y: float, text: str, *, above: bool, left: bool | None = None) -> None:
    """Point out the best k, on the side of the curve that is free; by default the wider side."""
    panel.plot([x], [y], "o", color=_COLOURS[3], markersize=7)
    first, last = panel.get_xlim()
    if left is None:
        left = x > (first + last) / 2
    elif x - first < _OF_A_NAME * (last - first):
        left = False
    panel.annotate(
        text, (x, y), xytext=(-8 if left else 8, 8 if above else -8), textcoords="offset points",
        color=_COLOURS[3], bbox=_halo(), ha="right" if left else "left", va="bottom" if above else "top",
    )  # fmt: skip
    panel.margins(y=0.16)


def _spread_colours(middles: NDArray[np.float64], sizes: NDArray[Any]) -> NDArray[np.intp]:
    """A colour number a cluster: large ones first, each as far as can be from those of its colour. O(k^2)."""
    numbers = np.full(len(middles), -1)
    nearest = np.full((len(middles), len(_COLOURS)), np.inf)  # d2 to the nearest middle of each colour
    for at in np.argsort(-sizes, kind="stable"):
        numbers[at] = np.argmax(nearest[at])
        d2 = ((middles - middles[at]) ** 2).sum(axis=1)
        nearest[:, numbers[at]] = np.minimum(nearest[:, numbers[at]], d2)
    return numbers


def _stage_name(stage: str) -> str:
    return _STAGES.get(stage.partition("-")[0], stage)


def _halo() -> dict[str, Any]:
    return {"boxstyle": "round,pad=0.15", "facecolor": "#ffffff", "alpha": 0.75, "linewidth": 0}


def _new_figure(n_panels: int, height: float, *, below: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side; `below`: under one more panel, the first, that is as wide as all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_INCHES, height), dpi=_DPI, layout="constrained")
    grid = figure.add_gridspec(2 if below else 1, n_panels)
    axes = [figure.add_subplot(grid[0, :])] if below else []
    axes += [figure.add_subplot(grid[-1, column]) for column in range(n_panels)]
    for panel in axes:
        _dress(panel)
    return figure, axes


def _dress(panel: Axes) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(_FAINT)
    panel.tick_params(color=_FAINT, labelcolor=_INK)
    panel.xaxis.label.set_color(_INK)
    panel.yaxis.label.set_color(_INK)
    panel.grid(axis="y", color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)


def svg_file(figure: Figure, **options: Any) -> str:
    """A figure as the text of an SVG file, the same for the same figure."""
    import matplotlib as mpl

    with io.StringIO() as buffer, mpl.rc_context({"svg.hashsalt": "streamkm", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, **options)
        return buffer.getvalue()


def svg(figure: Figure) -> str:
    """A figure as an SVG element of a page, from which it takes its colours."""
    text = svg_file(figure, transparent=True)
    for colour, name in _OF_PAGE.items():
        text = text.replace(colour, f"var(--{name})")
    return _NOT_OF_PAGES.sub("", text[text.index("<svg") :])
