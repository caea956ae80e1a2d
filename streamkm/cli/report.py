"""The report of a run, with its pictures: convergence, cluster sizes, the sketch in two dimensions; that of a sweep.

Responsible for how results are drawn. Everything drawn comes from the files in a results directory, so a report can be
made again. The only module that imports matplotlib, through Figure objects and never through pyplot.
"""

from __future__ import annotations

import io
import json
import logging
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkm.cli.html import render_page
from streamkm.cli.results import REPORT, SUMMARY, VIEW, write_text
from streamkm.core.exceptions import SourceError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from streamkm.model_selection.sweep_result import SweepResult

logger = logging.getLogger(__name__)

# Okabe and Ito's colours, told apart with every kind of colour vision; without black and yellow, which is weak on white
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5195")
_INK, _FAINT, _GRID = "#222222", "#757575", "#e4e4e4"
_WIDTH_INCHES, _DPI = 10.0, 130
_TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10}
_MOST_BARS, _MOST_NAMED = 40, 25  # clusters named one by one below bars, and among points; more would overlap
SWEEP_CSV, SWEEP_JSON, SWEEP_SVG = "sweep.csv", "sweep.json", "sweep.svg"
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


def write_report(directory: str | os.PathLike[str]) -> Path:
    """Make report.html from the summary and the 2-D view in a results directory.

    Without matplotlib the report has no pictures, which is logged.

    Parameters
    ----------
    directory : path
        As `streamkm.cli.results.write_results` leaves it.

    Returns
    -------
    Path
        Of the report.

    Raises
    ------
    SourceError
        The directory holds no such results, or damaged ones.
    OutputError
        The report cannot be written.
    """
    folder = Path(directory)
    try:
        summary = json.loads((folder / SUMMARY).read_text("utf-8"))
        with open(folder / VIEW, "rb") as file, np.load(file, allow_pickle=False) as stored:
            view = {name: stored[name] for name in ("points", "labels", "shares")}
        result, history = summary["result"], summary["history"]
        figures = _figures(result, history, view)
        text = render_page(summary, {name: _png(figure) for name, figure in figures.items()})
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise SourceError(f"{folder} has no complete results of streamkm fit ({error}); run the fit again") from error
    write_text(folder / REPORT, text)
    return folder / REPORT


def _figures(result: dict[str, Any], history: list[dict[str, Any]], view: dict[str, NDArray[Any]]) -> dict[str, Figure]:
    try:
        import matplotlib  # noqa: F401, ICN001
    except ImportError:
        logger.warning("the report has no pictures: matplotlib is missing; pip install 'streamkm[plot]'")
        return {}
    return {
        "Convergence": plot_convergence(history),
        "Cluster sizes": plot_sizes(result["counts"]),
        "The sketch in two dimensions": plot_sketch_2d(view["points"], view["labels"], view["shares"]),
    }


def plot_convergence(history: list[dict[str, Any]]) -> Figure:
    """Draw the objective by iteration, a panel for each stage: their spaces and rows differ, so do their objectives.

    Parameters
    ----------
    history : list of dict
        ``stage``, ``iteration`` and ``inertia``, in order.

    Returns
    -------
    Figure
    """
    from matplotlib.ticker import MaxNLocator

    stages: dict[str, list[tuple[int, float]]] = {}
    for entry in history:
        if entry["inertia"] is not None:
            stages.setdefault(entry["stage"], []).append((entry["iteration"], entry["inertia"]))
    lines = {name: points for name, points in stages.items() if len(points) > 1}
    single = [f"{_stage_name(name)}: {points[0][1]:,.6g}" for name, points in stages.items() if len(points) == 1]
    figure, axes = _new_figure(max(1, len(lines)), height=3.8 if lines else 0.8)
    for number, ((name, points), panel) in enumerate(zip(lines.items(), axes, strict=False)):
        iterations, values = zip(*points, strict=True)
        panel.plot(iterations, values, color=_COLOURS[0], marker="o" if len(points) <= 40 else None, markersize=4)
        fall = 100 * (1 - values[-1] / values[0]) if values[0] else 0.0
        panel.set_title(f"{_stage_name(name)}\n{len(points)} iterations, last {fall:.2g} % below first", **_TITLE)
        panel.set_xlabel("iteration")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        if number == 0:
            panel.set_ylabel("sum of squared distances")
    if not lines:
        axes[0].set_axis_off()
        axes[0].text(0, 0.9, "No stage took more than one iteration.", color=_FAINT, va="top")
    if single:
        figure.supxlabel("   ".join(single), fontsize=9, color=_FAINT, x=0.01, ha="left")
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
    sizes = np.asarray(counts, np.float64)
    order = np.argsort(-sizes, kind="stable")
    ranked = sizes[order]
    figure, (panel,) = _new_figure(1, height=3.8)
    positions = np.arange(1, len(ranked) + 1)
    if len(ranked) <= _MOST_BARS:
        panel.bar(positions, ranked, color=_COLOURS[0], width=0.75)
        panel.set_xticks(positions, [str(label) for label in order], fontsize=9 if len(ranked) <= 25 else 7)
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
    return figure


def plot_sketch_2d(points: NDArray[Any], labels: NDArray[Any], shares: ArrayLike) -> Figure:
    """Draw the sampled rows on the sketch's first two principal components, coloured by cluster.

    Clusters that lie side by side get different colours. Up to 25 are named; of more, the middles are drawn, with areas
    by size.

    Parameters
    ----------
    points : ndarray of shape (s, 2)
    labels : int ndarray of shape (s,)
        Rows labelled -1 are left out.
    shares : array of shape (2,)
        Part of the variance that each component shows.

    Returns
    -------
    Figure
    """
    points, labels = points[labels >= 0], labels[labels >= 0]
    present, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    figure, (panel,) = _new_figure(1, height=7.0)
    first, second = (100 * share for share in np.asarray(shares, np.float64))
    panel.set_xlabel(f"component 1 ({first:.0f} % of the variance)")
    panel.set_ylabel(f"component 2 ({second:.0f} % of the variance)")
    panel.set_title(f"{len(points):,} sampled rows in {len(present):,} clusters; neighbours differ in colour", **_TITLE)
    panel.set_aspect("equal", adjustable="datalim")
    panel.grid(axis="x", color=_GRID, linewidth=0.8)
    if not len(points):
        return figure
    sums = np.zeros((len(present), 2))
    np.add.at(sums, inverse, points)
    middles = sums / sizes[:, None]
    colours = np.array(_COLOURS)[_spread_colours(middles, sizes)]
    shuffled = np.random.default_rng(0).permutation(len(points))  # no cluster hides the others
    spot = float(np.clip(3e4 / len(points), 5, 30))
    named = len(present) <= _MOST_NAMED
    panel.scatter(
        points[shuffled, 0],
        points[shuffled, 1],
        c=colours[inverse[shuffled]],
        s=spot,
        alpha=0.55 if named else 0.3,
        linewidths=0,
    )
    if named:
        for label, (x, y) in zip(present, middles.tolist(), strict=True):
            panel.text(x, y, str(label), ha="center", va="center", fontsize=10, weight="bold", color=_INK, bbox=_halo())
    else:
        area = 10 + 80 * sizes / sizes.max()
        panel.scatter(middles[:, 0], middles[:, 1], c=colours, s=area, edgecolors=_INK, linewidths=0.6)
    return figure


def write_sweep(directory: str | os.PathLike[str], result: SweepResult) -> Path:
    """Write sweep.csv, sweep.json and the picture sweep.svg into a directory, which is made where it is missing.

    Without matplotlib there is no picture, which is logged.

    Returns
    -------
    Path
        Of the directory.

    Raises
    ------
    OutputError
        If they cannot be written.
    """
    folder, table = Path(directory), result.to_dict()
    write_text(folder / SWEEP_CSV, result.csv_text())
    try:
        import matplotlib as mpl
    except ImportError:
        logger.warning("the sweep has no picture: matplotlib is missing; pip install 'streamkm[plot]'")
    else:
        # the same file for the same sweep
        with io.StringIO() as buffer, mpl.rc_context({"svg.hashsalt": "streamkm"}):
            sweep_figure(table).savefig(buffer, format="svg", metadata={"Date": None})
            write_text(folder / SWEEP_SVG, buffer.getvalue())
    write_text(folder / SWEEP_JSON, json.dumps(table, indent=2, allow_nan=False) + "\n")
    return folder


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
        _mark(top, table["best"], lowest[ks.index(table["best"])], f"elbow: k = {table['best']:,}", above=False)
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


def _mark(panel: Axes, x: float, y: float, text: str, *, above: bool) -> None:
    """Point out the best k, on the side of the curve that is free."""
    panel.plot([x], [y], "o", color=_COLOURS[3], markersize=7)
    left = x > sum(panel.get_xlim()) / 2
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
    return {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.75, "linewidth": 0}


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
    panel.grid(axis="y", color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)


def _png(figure: Figure) -> bytes:
    with io.BytesIO() as buffer:
        figure.savefig(buffer, format="png")
        return buffer.getvalue()
