"""A report from plain values and a map: which figures are drawn, what clusters are called on them, and the page."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamkm.core.atomic_io import check_replaceable, replace_file
from streamkm.core.display import displayed
from streamkm.core.exceptions import MissingDependencyError, OutputError
from streamkm.reports.maps import ClusterMap
from streamkm.reports.page import TITLE, render_page

logger = logging.getLogger(__name__)

LONGEST_NAME = 16
_HEAD = 1 << 10  # characters that a page is known by
MOST_BARS = 30  # clusters whose sizes the table shows well enough


def check_page_place(path: str | os.PathLike[str]) -> None:
    """Refuse to replace what is no report of streamkm's.

    Raises
    ------
    OutputError
    """
    if not os.path.lexists(path):
        return
    check_replaceable(path)
    found = ""
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        found = file.read(_HEAD)
    if TITLE not in found:
        raise OutputError(f"{os.fspath(path)} exists and is no report that streamkm wrote; choose another name")


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page; readers see the old one or the whole new one, and nothing else is replaced.

    Raises
    ------
    DiskFullError, OutputError
        As `check_page_place`, or it cannot be written; what was there is as it was.
    """
    check_page_place(path)
    page = displayed(text).encode()
    replace_file(path, lambda file: file.write(page), len(page))


def report_page(facts: Mapping[str, Any], places: ClusterMap, next_steps: str) -> str:
    """Make the page of a report; without matplotlib it has no figures, which is logged.

    Parameters
    ----------
    facts : mapping
        Of `streamkm.estimators.fit_summary.summarize`.
    places : ClusterMap
    next_steps : str
        Commands or lines of Python that go on from here.

    Raises
    ------
    KeyError, TypeError
        If something is missing in `facts`.
    """
    counts = facts["result"]["counts"]
    if not has_matplotlib():
        logger.warning("the report has no figures: matplotlib is missing; pip install 'streamkm[plot]'")
        return render_page(facts, {}, next_steps)
    from streamkm.reports import figures
    from streamkm.reports.drawing import svg

    drawn = {}
    if len(counts) > 1 and len(places.points) > 1:
        drawn["map"] = figures.plot_map(places, counts, names_of(facts))
    if len(counts) > MOST_BARS:
        drawn["Sizes"] = figures.plot_sizes(counts, facts["result"].get("ids"))
    shown = {name: svg(figure) for name, figure in drawn.items()}
    return render_page({**facts, "map": caption(places)}, shown, next_steps)


def names_of(facts: Mapping[str, Any]) -> dict[int, str]:
    """What clusters are called on a map: by number, and by the first word where clusters have words."""
    ids = facts["result"].get("ids")
    if ids is not None:
        return {number: str(cluster) for number, cluster in enumerate(ids)}
    clusters = facts.get("clusters") or [{"cluster": c, "traits": ()} for c in range(len(facts["result"]["counts"]))]
    names = {}
    for row in clusters:
        word = row["traits"][0]["feature"] if facts.get("by_words") and row["traits"] else ""
        short = word if len(word) <= LONGEST_NAME else f"{word[: LONGEST_NAME - 1]}…"
        names[row["cluster"]] = f"{row['cluster']} {short}".strip()
    return names


def caption(places: ClusterMap) -> str:
    """What a map shows, and what is not to be read from it."""
    number = f"{len(places.points):,} "
    what = f"{number}sampled rows" if places.of_rows else f"The means of {number}clusters, with areas by size"
    if places.by_neighbours:
        return f"{what}: nearby points are similar; distances between groups carry little meaning."
    return f"{what}, on the plane that separates the means of the clusters most."


def check_matplotlib() -> None:
    """Refuse to draw without matplotlib.

    Raises
    ------
    MissingDependencyError
    """
    if not has_matplotlib():
        raise MissingDependencyError("figures need matplotlib; install streamkm[plot]")


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    from importlib.util import find_spec

    try:
        return find_spec("matplotlib") is not None
    except ValueError:  # it was taken out
        return False
