"""What a sweep looks like: its picture, and the page of its report."""

from __future__ import annotations

import html
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from streamkm.reports.page import POLICY, STYLE, TITLE, figure_html, table_html
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
    picture = ""
    if drawn is not None:
        from streamkm.reports.drawing import svg_of_page

        picture = figure_html("Numbers of clusters", svg_of_page(drawn))
    best = table["best"]
    elbow = "The curve has no elbow." if best is None else f"The elbow is at {best:,} clusters."
    cautions = " ".join(f"{text[:1].upper()}{text[1:]}." for text in table["cautions"])
    caution = f'<p class="lead warn">{html.escape(cautions)}</p>\n' if cautions else ""
    verdict = f"Verdict: {dict(lines)['verdict']}. {elbow}"
    used = [name for name in _COLUMNS if any(row[name] is not None for row in table["rows"])]
    rows = [tuple(_text(name, row) for name in used) for row in table["rows"]]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{POLICY}{TITLE}sweep</title>\n"
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n'
        f'<h1>How many clusters?</h1>\n{caution}<p class="lead">{html.escape(verdict)}</p>\n'
        f'<div class="screen">\n<section style="margin:0">{picture}</section>\n<section style="margin:0">'
        f"<h2>What was found</h2>\n{table_html(lines)}<h2>What to do next</h2>\n"
        f"<pre tabindex=0>{html.escape(_next_steps(next_step))}</pre></section>\n</div>\n"
        f'<details><summary>All runs</summary><div class="scroll" tabindex="0" role="region" aria-label="All runs">'
        f"{table_html(rows, tuple(_COLUMNS[name] for name in used))}</div></details>\n</main>\n</body>\n</html>\n"
    )


def _next_steps(next_step: str) -> str:
    return f"# all rows, with the number of clusters you choose\n{next_step}"


def _text(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
