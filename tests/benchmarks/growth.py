"""The chart of many clusters: how the processor time of a row grows with their number.

    python -m tests.benchmarks.growth embeddings.npy    # measures; writes results/growth.json and results/growth.svg
    python -m tests.benchmarks.growth                   # draws the chart again

Of seeding (rows that stand for all, by one thread), of a step of Lloyd's algorithm (the mean of four: one looks at all
centers, three at those near each row's last one), and of the final pass, which proves each label. What is laid out for
each step and pass counts. Rows are those of make_embeddings.py.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.in_memory import LocalBlocks, label_sums
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.seeding.kmeans_plusplus import kmeans_plusplus
from streamkm.cluster.seeding.search_set import centered, prefix, search_rows
from streamkm.cluster.seeding.two_level import two_level_plusplus
from streamkm.core.blas import ONE_BLAS_THREAD
from streamkm.engine import open_executor
from tests.benchmarks.measure import machine, versions

RESULTS = Path(__file__).parent / "results" / "growth.json"
SIZES = (256, 1024, 4096, 16_384, 65_536)
BEYOND, SLOPE = 1000, 0.6
STEPS = 4  # whose mean time is told
STAGES = {"seeding": "#b35900", "a step": "#0b6e4f", "the final pass": "#28559a"}


def measure(path: Path, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Microseconds of a row, by stage and number of clusters."""
    X = np.load(path)
    found: dict[str, dict[str, float]] = {stage: {} for stage in STAGES}
    with ONE_BLAS_THREAD, open_executor(1) as executor:
        whole, shift = centered(executor, Block(X, row_d2norms(X), NO_WEIGHTS))
        pieces = LocalBlocks.of(executor, whole)
        kmeans_plusplus(prefix(whole, 1000), 16, rng=np.random.default_rng(0), executor=executor)  # loads kernels
        for k in sizes:
            many = k >= FEWEST_CENTERS
            some = prefix(whole, search_rows(k, X.shape[1], many=many))
            start = two_level_plusplus if many else kmeans_plusplus
            seconds, centers = _timed(start, some, k, rng=np.random.default_rng(0), executor=executor)
            found["seeding"][str(k)] = 1e6 * seconds / some.n_rows
            (totals, labels), steps = pieces.step(centers, None, "first"), []
            for _ in range(STEPS):
                centers = totals.to_means(fallback=centers)
                seconds, (totals, labels) = _timed(pieces.step, centers, labels, "step")
                steps.append(seconds)
            found["a step"][str(k)] = 1e6 * float(np.mean(steps)) / len(X)
            centers = totals.to_means(fallback=centers) + shift
            seconds, _ = _timed(_assign, X, centers, executor)
            found["the final pass"][str(k)] = 1e6 * seconds / len(X)
            print(k, {stage: round(each[str(k)], 2) for stage, each in found.items()}, flush=True)
    return {"rows": len(X), "features": X.shape[1], "microseconds": found, "machine": machine(), "versions": versions()}


def _assign(X: Any, centers: Any, executor: Any) -> None:
    """Labels that are right for certain, and sums."""
    labels = NearestCenters.build(centers, np.float32).labels(X)
    label_sums(executor, X, NO_WEIGHTS, labels, len(centers))


def _timed(function: Callable[..., Any], *given: Any, **named: Any) -> tuple[float, Any]:
    started = time.process_time()
    found = function(*given, **named)
    return time.process_time() - started, found


def slopes(results: dict[str, Any]) -> dict[str, float]:
    """Power of the number of clusters that the time of a row grows with, beyond `BEYOND`, by least squares."""
    out = {}
    for stage, each in results["microseconds"].items():
        points = [(np.log(int(k)), np.log(value)) for k, value in each.items() if int(k) > BEYOND]
        out[stage] = float(np.polyfit(*zip(*points, strict=True), 1)[0])
    return out


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw microseconds of a row over the number of clusters, both on logarithmic scales."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "streamkm", "font.size": 10, "svg.fonttype": "path"}):
        figure = Figure((7.2, 4.2), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        for (stage, each), slope in zip(results["microseconds"].items(), slopes(results).values(), strict=True):
            sizes, values = [int(k) for k in each], list(each.values())
            axes.plot(sizes, values, "o-", color=STAGES[stage], markersize=5)
            axes.annotate(
                f"{stage}: slope {slope:.2f}", (sizes[-1], values[-1]), xytext=(8, 0), textcoords="offset points",
                va="center", color=STAGES[stage], fontsize=9,
            )  # fmt: skip
        sizes = [k for k in sizes if k > BEYOND]
        lowest = min(min(each.values()) for each in results["microseconds"].values()) / 2
        axes.plot(sizes, [lowest * (k / sizes[0]) ** SLOPE for k in sizes], ":", color="#777777")
        end = lowest * (sizes[-1] / sizes[0]) ** SLOPE
        axes.annotate(
            f"slope {SLOPE}", (sizes[-1], end), xytext=(8, 0), textcoords="offset points", color="#777777", fontsize=9
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(200, 65_536 * 8)
        ticks = [256, 1024, 4096, 16_384, 65_536]
        axes.set_xticks(ticks, [f"{k:,}" for k in ticks])
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes.set_xlabel("clusters")
        axes.set_ylabel("microseconds of one processor for each row")
        axes.set_title(f"{results['rows']:,} x {results['features']} float32", fontsize=10, loc="left")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(
            path, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")) if path.suffix == ".svg" else None
        )


def main() -> None:
    """Measure where rows are given; draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where figures are, or go; the chart beside them")
    args = parser.parse_args()
    if args.data is not None:
        args.out.write_text(json.dumps(measure(args.data), indent=1) + "\n")
    results = json.loads(args.out.read_text())
    draw(results, args.out.with_suffix(".svg"))
    print({stage: round(slope, 2) for stage, slope in slopes(results).items()})


if __name__ == "__main__":
    main()
