"""How figures look, and as what they are written: colours, panels, SVG.

Imports matplotlib, for those who draw: figure objects and never pyplot. Nothing here knows what is drawn.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import figure

from streamkm.reports.palette import COLOURS as COLOURS  # noqa: PLC0414 - with which others draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT, GRID = "#222222", "#757575", "#e4e4e4"
WIDTH_INCHES, DPI = 10.0, 130
_NOTEBOOK_DPI = 80  # as wide as a cell
TITLE: dict[str, Any] = {"loc": "left", "fontsize": 10, "color": INK}
_OF_PAGE = {INK: "ink", FAINT: "faint", GRID: "line", "#ffffff": "page"}  # colours in the page
_NOT_OF_PAGES = re.compile(r'\s*<metadata>.*?</metadata>| xmlns(:\w+)?="[^"]*"', re.DOTALL)  # what files alone need


class Figure(figure.Figure):
    """A figure that IPython shows where pyplot, which would tell it how, is not imported."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as buffer:
            self.savefig(buffer, format="png", dpi=_NOTEBOOK_DPI)
            return buffer.getvalue()


def empty_figure(width: float, height: float) -> Figure:
    """A figure of so many inches, which notebooks show, whatever the backend."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def new_figure(n_panels: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side."""
    figure = empty_figure(WIDTH_INCHES, height)
    axes = [figure.add_subplot(1, n_panels, number) for number in range(1, n_panels + 1)]
    for panel in axes:
        dress(panel)
    return figure, axes


def dress(panel: Axes) -> None:
    """Give a panel the colours of all: two faint axes, and a grid behind what is drawn."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color(FAINT)
    panel.tick_params(color=FAINT, labelcolor=INK)
    panel.xaxis.label.set_color(INK)
    panel.yaxis.label.set_color(INK)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)


def svg_file(drawn: figure.Figure) -> str:
    """A figure as the text of an SVG file, the same for the same figure."""
    with io.StringIO() as buffer, mpl.rc_context({"svg.hashsalt": "streamkm", "svg.fonttype": "none"}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()


def svg(drawn: figure.Figure) -> str:
    """A figure as an SVG element of a page, from which it takes its colours."""
    text = svg_file(drawn)
    for colour, name in _OF_PAGE.items():
        text = text.replace(colour, f"var(--{name})")
    return _NOT_OF_PAGES.sub("", text[text.index("<svg") :])
