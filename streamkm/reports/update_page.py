"""The page of an update, or of a drift alone: the verdict first, then figures, events, and a table of clusters.

Responsible for what it says; the template holds the markup and escapes what comes from data.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from streamkm.metrics.drift_report import HEAD, Drift, cells_of
from streamkm.metrics.update import Update
from streamkm.reports.page import render
from streamkm.reports.report import has_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

MOST_BARS = 30
"""Clusters whose shares are drawn."""
_FOLLOWED = "The new rows differ from those before; the clusters have followed"
_VERDICTS = {
    "too few updates": "Too few updates to judge these rows",
    "stable": "The new rows are like those before",
    "shifted": "The new rows differ from those before",
    "fit again": "The new rows do not fit the clusters: fit again",
}


def update_page(brought: Update | Drift) -> str:
    """Render the page, HTML that needs no other file; without matplotlib it has no pictures, which is logged."""
    update = brought if isinstance(brought, Update) else None
    drift = brought.drift if isinstance(brought, Update) else brought
    figures = {}
    if drift is not None and not has_matplotlib():
        logger.warning("the page has no pictures: matplotlib is missing; pip install 'streamkm[plot]'")
    elif drift is not None:
        from streamkm.reports.drawing import svg

        figures["Shares of clusters"] = svg(plot_shares(drift))
    texts = update or drift
    lines = [] if texts is None else [pair for pair in texts.lines() if pair[0] not in ("drift", "events", "")]
    follows = update is not None and update.has_followed
    sentence = "" if update is None or drift is None else f"{update.sentence()} {update.advice}"
    return render(
        "update.html.jinja",
        title="Drift" if update is None else "Update",
        verdict="These are the first rows" if drift is None else _FOLLOWED if follows else _VERDICTS[drift.verdict],
        is_fine=drift is None or drift.verdict in ("stable", "too few updates"),
        sentence=drift.sentence() if update is None and drift is not None else sentence,
        lines=lines,
        events=None if update is None else [update.event_text(event) for event in update.events],
        figures=figures,
        head=HEAD,
        rows=[] if drift is None else [cells_of(each) for each in drift.clusters],
    )


def plot_shares(drift: Drift) -> Figure:
    """Draw the shares of the largest clusters before and now, as paired bars."""
    from streamkm.reports.drawing import COLOURS, FAINT, INK, TITLE, new_figure

    shown = sorted(drift.clusters, key=lambda each: -max(each.share_before, each.share))[:MOST_BARS]
    figure, (panel,) = new_figure(1, height=4.2)
    places = range(len(shown))
    before, now = [each.share_before for each in shown], [each.share for each in shown]
    panel.bar([place - 0.2 for place in places], before, 0.4, color=FAINT, label="before")
    panel.bar([place + 0.2 for place in places], now, 0.4, color=COLOURS[0], label="now")
    panel.set_xticks(list(places), [str(each.id) for each in shown])
    panel.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    panel.set_xlabel("cluster")
    more = f"; the {MOST_BARS} largest of {len(drift.clusters):,} clusters" if len(drift.clusters) > MOST_BARS else ""
    panel.set_title(f"Share of rows{more}", **TITLE)
    panel.legend(frameon=False, labelcolor=INK)
    return figure
