"""Charts of how far objectives are above the best, a line a method: against processor seconds, or peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.methods import OURS

STYLES = {  # colours that colour-blind people tell apart (Okabe and Ito), and shapes for all others
    OURS: ("#000000", "o"),
    "scikit-learn KMeans": ("#E69F00", "s"),
    "scikit-learn MiniBatchKMeans": ("#E69F00", "^"),
    "faiss Kmeans": ("#0072B2", "s"),
    "faiss SuperKMeans": ("#0072B2", "^"),
    "superkmeans flat": ("#009E73", "s"),
    "superkmeans sq8": ("#009E73", "^"),
    "superkmeans hierarchical": ("#009E73", "v"),
    "betula-cluster": ("#D55E00", "D"),
    "clostera dense": ("#CC79A7", "s"),
    "clostera auto": ("#CC79A7", "^"),
    "sparsekmeans Lloyd": ("#56B4E9", "D"),
}
LINEAR = 0.5  # percent, below which the scale is linear
TICKS = (0, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 20, 50, 100)

Rows = Sequence[dict[str, str]]
Panels = dict[str, dict[str, list[tuple[float, float]]]]  # points by title and method


def curves(rows: Rows) -> Panels:
    """Processor seconds and objectives, medians over seeds, by data and method: of the newest setting of each."""
    newest = {(row["data"], row["method"]): _setting(row) for row in rows}
    found: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}
    for row in rows:
        if _setting(row) == newest[row["data"], row["method"]]:
            efforts = found.setdefault(row["data"], {}).setdefault(row["method"], {})
            efforts.setdefault(row["effort"], []).append((float(row["seconds_cpu"]), float(row["objective"])))
    return {
        data: {name: [_middle(runs) for runs in efforts.values()] for name, efforts in methods.items()}
        for data, methods in found.items()
    }


def _setting(row: dict[str, str]) -> list[str]:
    return [row[name] for name in ("commit", "version", "processor", "threads", "k")]


def _middle(runs: list[tuple[float, float]]) -> tuple[float, float]:
    seconds, objectives = zip(*runs, strict=True)
    return median(seconds), median(objectives)


def draw(rows: Rows, path: Path) -> None:
    """Draw a panel for each data set."""
    sizes = {row["data"]: f"{int(row['n']):,} x {int(row['d']):,}, k={int(row['k']):,}" for row in rows}
    _draw({f"{data}, {sizes[data]}": methods for data, methods in curves(rows).items()}, "processor seconds", path)


def draw_bounded(rows: Rows, path: Path) -> None:
    """Draw a panel for each number of clusters of the most rows, with runs of several methods that ended."""
    found: Panels = {}
    for row in rows:
        if row["objective"] and row["n"] == max((each["n"] for each in rows), key=int):
            title = f"{int(row['n']):,} x 128, k={int(row['k']):,}"
            points = found.setdefault(title, {}).setdefault(row["method"], [])
            points.append((float(row["peak_mib"]), float(row["objective"])))
    for methods in found.values():
        for points in methods.values():
            points.sort()
    found = {title: methods for title, methods in found.items() if len(methods) > 1}
    _draw(found, "peak memory of the process, MiB", path)


def _draw(found: Panels, against: str, path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "streamkm", "font.size": 10, "svg.fonttype": "path"}):
        figure = Figure((10.5, 4.6), layout="constrained", facecolor="white")
        panels = figure.subplots(1, len(found), squeeze=False)[0]
        for axes, (title, methods) in zip(panels, found.items(), strict=True):
            best = min(objective for points in methods.values() for _, objective in points)
            for name in (name for name in STYLES if name in methods):
                taken, objectives = zip(*methods[name], strict=True)
                colour, shape = STYLES[name]
                ours = name == OURS
                axes.plot(
                    taken, [100 * (objective / best - 1) for objective in objectives], shape + "-", color=colour,
                    label=name, markersize=7 if ours else 5, linewidth=2.5 if ours else 1.2, zorder=3 if ours else 2,
                )  # fmt: skip
            axes.set_title(title, fontsize=10, loc="left")
            _scales(axes)
            axes.set_xlabel(against)
        panels[0].set_ylabel("objective, % above the best")
        handles = {
            label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        names = [name for name in STYLES if name in handles]
        figure.legend([handles[name] for name in names], names, loc="outside lower center", ncols=4, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))


def _scales(axes: Any) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: "")
    axes.set_yscale("symlog", linthresh=LINEAR, linscale=0.7)
    top = axes.get_ylim()[1]
    axes.set_ylim(-0.05, 1.1 * top)
    axes.set_yticks([tick for tick in TICKS if tick <= top])
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
