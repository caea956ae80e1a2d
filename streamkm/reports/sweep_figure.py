"""The figure of a sweep: its objective and its scores by the number of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkm.reports.drawing import COLOURS, FAINT, TITLE, halo, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OF_A_NAME = 0.15  # of a wide panel, that a short text takes
_SCORES = {  # name, heading, whether more is better
    "silhouette": ("silhouette", True),
    "calinski_harabasz": ("Calinski-Harabasz", True),
    "davies_bouldin": ("Davies-Bouldin", False),
    "stability": ("agreement of seeds (ARI)", True),
}


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
    figure, (top, *panels) = new_figure(max(1, len(scores)), height=6.4 if scores else 3.8, below=bool(scores))
    lowest = [min(row["inertia_per_row"] for row in rows if row["n_clusters"] == k) for k in ks]
    _draw_seeds(top, rows, "inertia_per_row")
    top.plot(ks, lowest, color=COLOURS[0], linewidth=1.6)
    if table["best"] is not None:
        top.plot([ks[0], ks[-1]], [lowest[0], lowest[-1]], color=FAINT, linewidth=1, linestyle=":")
        # a curve that falls less and less leaves room between its elbow and the line from end to end
        elbow, name = (table["best"], lowest[ks.index(table["best"])]), f"elbow: k = {table['best']:,}"
        _mark(top, *elbow, name, above=True, left=False)
    part = "all" if table["n_sampled"] == table["n_samples"] else "a sample of"
    seeds = len({row["seed"] for row in rows})
    top.set_title(
        f"Objective of {len(ks):,} numbers of clusters, {seeds} seed{'s' * (seeds > 1)}, on {part} "
        f"{table['n_sampled']:,} rows, in the {table['space']} space",
        **TITLE,
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
        panel.plot(*zip(*points, strict=True), color=COLOURS[0], linewidth=1.2)
        # of equal ones the fewest clusters, but where seeds agree: on few they nearly always do
        first = points[::-1] if name == "stability" else points
        best = (max if more else min)(first, key=lambda point: point[1])
        _mark(panel, *best, f"k = {best[0]:,}", above=more)
        panel.set_title(f"{heading}\n{'more' if more else 'less'} is better", **TITLE)
        panel.set_xlabel("clusters, k")
        panel.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    return figure


def _draw_seeds(panel: Axes, rows: list[dict[str, Any]], name: str) -> None:
    """A faint dot for every run."""
    points = [(row["n_clusters"], row[name]) for row in rows if row[name] is not None]
    panel.plot(*zip(*points, strict=True), ".", color=COLOURS[5], markersize=4, alpha=0.6)


def _mark(panel: Axes, x: float, y: float, text: str, *, above: bool, left: bool | None = None) -> None:
    """Point out the best k, on the side of the curve that is free; by default the wider side."""
    panel.plot([x], [y], "o", color=COLOURS[3], markersize=7)
    first, last = panel.get_xlim()
    if left is None:
        left = x > (first + last) / 2
    elif last - x < _OF_A_NAME * (last - first):
        left = True
    panel.annotate(
        text, (x, y), xytext=(-8 if left else 8, 8 if above else -8), textcoords="offset points",
        color=COLOURS[3], bbox=halo(), ha="right" if left else "left", va="bottom" if above else "top",
    )  # fmt: skip
    panel.margins(y=0.16)
