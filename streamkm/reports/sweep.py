"""What a sweep looks like: its picture, and the page of its report."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from streamkm.reports.page import render
from streamkm.reports.report import has_matplotlib

logger = logging.getLogger(__name__)

_COLUMNS = {
    "n_clusters": "clusters", "seed": "run", "inertia_per_row": "objective a row", "silhouette": "silhouette",
    "calinski_harabasz": "Calinski-Harabasz", "davies_bouldin": "Davies-Bouldin", "stability": "stability",
    "seconds": "seconds",
}  # fmt: skip


def sweep_svg(table: dict[str, Any]) -> str | None:
    """The picture of a sweep as an SVG file; None without matplotlib, which is logged.

    Parameters
    ----------
    table : dict
        As of `SweepResult.to_dict`.
    """
    if not has_matplotlib():
        logger.warning("the sweep has no picture: matplotlib is missing; pip install 'streamkm[plot]'")
        return None
    from streamkm.reports.drawing import svg_file
    from streamkm.reports.sweep_figure import sweep_figure

    return svg_file(sweep_figure(table))


def sweep_page(table: dict[str, Any], lines: Sequence[tuple[str, str]], next_step: str, drawn: str | None) -> str:
    """The page of a sweep, one file that needs no other.

    Parameters
    ----------
    table : dict
        As of `SweepResult.to_dict`.
    lines : sequence of (str, str)
        As of `SweepResult.lines`.
    next_step : str
        The command, or line of Python, that clusters all rows as the sweep did.
    drawn : str or None
        As of `sweep_svg`.
    """
    best = table["best"]
    elbow = "The curve has no elbow." if best is None else f"The elbow is at {best:,} clusters."
    used = [name for name in _COLUMNS if any(row[name] is not None for row in table["rows"])]
    svg = None
    if drawn is not None:
        from streamkm.reports.drawing import svg_of_page

        svg = svg_of_page(drawn)
    return render(
        "sweep.html.jinja",
        svg=svg,
        cautions=" ".join(f"{text[:1].upper()}{text[1:]}." for text in table["cautions"]),
        verdict=f"Verdict: {dict(lines)['verdict']}. {elbow}",
        lines=lines,
        next=next_step,
        rows=[[_text(name, row) for name in used] for row in table["rows"]],
        head=[_COLUMNS[name] for name in used],
    )


def _text(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
