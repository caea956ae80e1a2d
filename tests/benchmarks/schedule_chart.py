"""The chart and the table of `bench_schedule`: schedules by how far they end above the best, and by their time.

A run is compared with the best objective that any schedule reached from the same centers, and with the seconds of the
schedule of this release. Medians are over sets, sizes and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

Rows = Sequence[dict[str, str]]
Key = tuple[str, ...]

ALONE = ("0", "0", "0.0")
REFERENCE = ("4", "8", "0.4")
FEW_ROWS, MANY_CENTERS = 128, 512
COLOURS = {"2": "#56B4E9", "4": "#0072B2", "8": "#D55E00"}
SHAPES = {
    ("4", "0.3"): "1",
    ("4", "0.4"): "v",
    ("4", "0.5"): "2",
    ("8", "0.3"): "<",
    ("8", "0.4"): "o",
    ("8", "0.5"): ">",
    ("16", "0.4"): "^",
    ("16", "0.5"): "D",
}


def _rows_each(row: dict[str, str]) -> float:
    return int(row["n"]) / int(row["k"])


def _many(row: dict[str, str]) -> bool:
    return int(row["k"]) >= MANY_CENTERS


PANELS: dict[str, Callable[[dict[str, str]], bool]] = {
    "64 to 256 centers, fewer than 128 rows each": lambda row: not _many(row) and _rows_each(row) < FEW_ROWS,
    "64 to 256 centers, 128 rows each or more": lambda row: not _many(row) and _rows_each(row) >= FEW_ROWS,
    "512 centers": _many,
}


def compared(rows: Rows) -> dict[Key, list[tuple[float, float]]]:
    """Of each schedule (epochs, batch rows, rate, steps): objectives over the best, and seconds over the reference's.

    The reference is `REFERENCE` with 4 steps.
    """
    runs: dict[Key, dict[Key, tuple[float, float]]] = {}
    for row in rows:
        place = tuple(row[name] for name in ("data", "n", "k", "seed", "processor", "commit"))
        point = tuple(row[name] for name in ("epochs", "batch_rows", "rate", "steps"))
        runs.setdefault(place, {})[point] = float(row["objective"]), float(row["seconds_cpu"])
    found: dict[Key, list[tuple[float, float]]] = {}
    for points in runs.values():
        best = min(objective for objective, _ in points.values())
        unit = points[(*REFERENCE, "4")][1]
        for point, (objective, seconds) in points.items():
            found.setdefault(point, []).append((objective / best, seconds / unit))
    return found


def table(rows: Rows) -> str:
    """Median and worst objective over the best, in percent above it, and median time, a line a schedule."""
    lines = []
    for name, belongs in PANELS.items():
        found = compared([row for row in rows if belongs(row)])
        lines.append(f"{name}: {max(map(len, found.values()), default=0)} runs of each")
        order = sorted(found, key=lambda point: median(objective for objective, _ in found[point]))
        for point in order:
            objectives, seconds = zip(*found[point], strict=True)
            above, worst = (100 * (value - 1) for value in (median(objectives), max(objectives)))
            lines.append(f"  {said(point):46} {above:7.3f} % {worst:7.3f} % {median(seconds):6.2f} x")
    return "\n".join(lines)


def said(point: Key) -> str:
    """A schedule for people."""
    epochs, batch_rows, rate, steps = point
    if (epochs, batch_rows, rate) == ALONE:
        return f"Lloyd's steps alone, {steps}"
    return f"{epochs} epochs, {batch_rows} rows, rate {rate}, {steps} steps"


def draw(rows: Rows, path: Path) -> None:
    """Draw a panel for each kind of task; a line is a schedule by the steps behind its epochs."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "streamkm", "font.size": 10, "svg.fonttype": "path"}):
        figure = Figure((10.5, 5.2), layout="constrained", facecolor="white")
        shown = {name: [row for row in rows if belongs(row)] for name, belongs in PANELS.items()}
        shown = {name: own for name, own in shown.items() if own}
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        handles = {}
        for axes, (name, own) in zip(panels, shown.items(), strict=True):
            found = compared(own)
            lines: dict[Key, list[tuple[float, float]]] = {}
            for point in sorted(found, key=lambda point: int(point[3])):
                objectives, seconds = zip(*found[point], strict=True)
                lines.setdefault(point[:3], []).append((median(seconds), 100 * (median(objectives) - 1)))
            for schedule, middles in lines.items():
                label, colour, shape = _style(schedule)
                face, order = (colour if schedule[2] == "0.4" else "white"), 2 + (schedule == REFERENCE)
                (handles[label],) = axes.plot(
                    *zip(*middles, strict=True), shape + "-", color=colour, markersize=5, linewidth=1.1,
                    zorder=order, markerfacecolor=face,
                )  # fmt: skip
            axes.set_title(name, fontsize=10, loc="left")
            _scales(axes)
        panels[0].set_ylabel("objective, % above the best")
        panels[len(panels) // 2].set_xlabel("processor seconds, over those of 4 epochs, 8 rows, rate 0.4, 4 steps")
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))


def _style(schedule: Key) -> tuple[str, str, str]:
    """Label, colour and shape of a schedule."""
    if schedule == ALONE:
        return "Lloyd's steps alone (12, 25, 100)", "#000000", "s"
    epochs, batch_rows, rate = schedule
    return f"{epochs} epochs, {batch_rows} rows, rate {rate}", COLOURS[epochs], SHAPES[batch_rows, rate]


def _scales(axes: object) -> None:
    from matplotlib.axes import Axes
    from matplotlib.ticker import LogLocator

    assert isinstance(axes, Axes)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: "")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
