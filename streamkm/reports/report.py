"""Reports from plain values and a map: figures with names, cautions and pages."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import check_new, replace_file
from streamkm.core.display import displayed
from streamkm.core.exceptions import MissingDependencyError, OutputError
from streamkm.metrics.cluster_summary import ClusterRow
from streamkm.metrics.drift_report import HEAD, Update, cells_of
from streamkm.reports.maps import ClusterMap
from streamkm.reports.page import TITLE, render, render_page

logger = logging.getLogger(__name__)

LITTLE_EXPLAINED, FEW_ROWS, MUCH_OBJECTIVE = 0.1, 0.001, 0.1  # shares from which a result is poor
MANY_DEVIATIONS = 10  # of a few rows from the mean of all, which is poor too
MOST_ERRORS = 3  # between the objective and what the sample predicted
FEWEST_COUNTED = 200  # sampled rows by which a feature is known as a counter
LONGEST_NAME = 16
_HEAD = 1 << 10  # characters that a page is known by
MOST_BARS = 30  # clusters whose sizes the table shows well enough
_FOLLOWED = "The new rows differ from those before; the clusters have followed"
_VERDICTS = {
    "too few updates": "Too few updates to judge these rows",
    "stable": "The new rows are like those before",
    "shifted": "The new rows differ from those before",
    "fit again": "The new rows do not fit the clusters: fit again",
}


def check_page_place(path: str | os.PathLike[str]) -> None:
    """Refuse with OutputError to replace any file but a report of streamkm."""
    if os.path.lexists(path):
        check_new(path, overwrite=True)
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            if TITLE in file.read(_HEAD):
                return
        raise OutputError(f"{os.fspath(path)} exists and is no report that streamkm wrote; choose another name")


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page atomically; DiskFullError or OutputError leave an old page unchanged."""
    page = displayed(text).encode()
    replace_file(path, lambda file: file.write(page), len(page))


def report_page(facts: Mapping[str, Any], places: ClusterMap, next_steps: str) -> str:
    """Make the page of a report as `render_page` does; without matplotlib it has no figures, which is logged."""
    counts = facts["result"]["counts"]
    if not has_matplotlib():
        logger.warning("the report has no figures: matplotlib is missing; pip install 'streamkm[plot]'")
        return render_page(facts, {}, next_steps)
    from streamkm.reports.figures import plot_map, plot_sizes, svg

    shown = {}
    if len(counts) > 1 and len(places.points) > 1:
        shown["map"] = svg(plot_map(places, counts, names_of(facts)))
    if len(counts) > MOST_BARS:
        shown["Sizes"] = svg(plot_sizes(counts, facts["result"].get("ids")))
    return render_page({**facts, "map": caption(places)}, shown, next_steps)


def update_page(update: Update) -> str:
    """Render an update as HTML that needs no other file; without matplotlib it has no pictures, which is logged."""
    drift, figures, verdict, sentence = update.drift, {}, "These are the first rows", ""
    if drift is not None:
        verdict = _FOLLOWED if update.has_followed else _VERDICTS[drift.verdict]
        sentence = f"{update.sentence()} {update.advice}"
        if has_matplotlib():
            from streamkm.reports.figures import plot_shares, svg

            figures["Shares of clusters"] = svg(plot_shares(drift))
        else:
            logger.warning("the page has no pictures: matplotlib is missing; pip install 'streamkm[plot]'")
    return render(
        "update.html.jinja",
        verdict=verdict,
        is_fine=drift is None or drift.verdict in ("stable", "too few updates"),
        sentence=sentence,
        lines=[pair for pair in update.lines() if pair[0] not in ("drift", "events", "")],
        events=[update.event_text(event) for event in update.events],
        figures=figures,
        head=HEAD,
        rows=[cells_of(each) for each in drift.clusters] if drift else [],
    )


def names_of(facts: Mapping[str, Any]) -> dict[int, str]:
    """Names of clusters on a map: the number, and the first word if clusters have words."""
    result, rows = facts["result"], facts.get("clusters") or () if facts.get("by_words") else ()
    words = {row["cluster"]: row["traits"][0]["feature"] for row in rows if row["traits"]}
    names = {}
    for cluster, label in enumerate(result.get("ids") or range(len(result["counts"]))):
        word = words.get(cluster, "")
        short = word if len(word) <= LONGEST_NAME else f"{word[: LONGEST_NAME - 1]}…"
        names[cluster] = f"{label} {short}".strip()
    return names


def caption(places: ClusterMap) -> str:
    """The content of a map, and the limits of its distances."""
    number = f"{len(places.points):,} "
    what = f"{number}sampled rows" if places.of_rows else f"The means of {number}clusters, with areas by size"
    if places.by_neighbours:
        return f"{what}: nearby points are similar; distances between groups carry little meaning."
    return f"{what}, on the plane that separates the means of the clusters most."


def check_matplotlib() -> None:
    """Raise MissingDependencyError without matplotlib."""
    if not has_matplotlib():
        raise MissingDependencyError("figures need matplotlib; install streamkm[plot]")


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    with suppress(ValueError):  # it was taken out
        return find_spec("matplotlib") is not None
    return False


def cautions(rows: Sequence[ClusterRow], result: Mapping[str, Any]) -> Iterator[str]:
    """Warn of a poor `result`, by its ``objective``, ``explained``, ``expected_inertia`` and its error, if known."""
    objective, explained = result["objective"], result.get("explained")
    if explained is not None and explained < LITTLE_EXPLAINED:
        yield f"the clusters explain {explained:.1%} of the variance: rows differ more within them than between them"
    n_rows = sum(row.size for row in rows)
    for row in rows:
        # the sum of squared distances is at least this, by the inequality of Cauchy and Schwarz
        share = row.size * (row.mean_distance or 0.0) ** 2 / objective if objective > 0 else 0.0
        apart = abs(row.traits[0].deviations) if row.traits else 0.0
        if row.size and row.share < FEW_ROWS and (share > MUCH_OBJECTIVE or apart > MANY_DEVIATIONS):
            look = f", {apart:.0f} standard deviations: look at {row.traits[0].feature}" if row.traits else ""
            yield (
                f"{row.size:,.6g} rows of {n_rows:,.9g} lie far away, cluster {row.cluster} with {share:.0%} of the "
                f"objective{look}"
            )
    expected, error = result.get("expected_inertia"), result.get("expected_inertia_error")
    if expected is not None and error and abs(objective - expected) > MOST_ERRORS * error:
        yield (
            f"the sample predicted an objective of {expected:,.6g} +- {error:,.2g}, and all rows give {objective:,.6g}"
            '; it misses rows that matter: pass coreset="sensitivity", or raise memory_limit'
        )


def counter_cautions(rows: NDArray[np.float64], n_rows: int, name: Callable[[int], str]) -> Iterator[str]:
    """Warn of features like counters or ids in sampled rows (n, d): distinct whole numbers up to 2 `n_rows` apart."""
    if len(rows) < FEWEST_COUNTED:
        return
    numbers = np.sort(np.rint(rows), axis=0)
    integral = (np.abs(rows - np.rint(rows)) < 0.25).all(axis=0)  # scaled back, they are not quite whole
    distinct = (numbers[1:] > numbers[:-1]).all(axis=0)
    for number in np.flatnonzero(integral & distinct & (numbers[-1] - numbers[0] <= 2 * n_rows)).tolist():
        yield f"{name(number)} looks like a counter or an id: leave it out, or pass it as the id column"
