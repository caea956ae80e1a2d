"""Colours of clusters, the same in tables and figures. Nothing is drawn here."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

# Okabe and Ito's colours, then others of other lightness: each two differ for every kind of colour vision
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5195", "#D8C800", "#782d00", "#00d8be",
    "#5a87ff", "#5a3c5a", "#691e96", "#964b3c", "#4bd287", "#78d2ff", "#78c3c3", "#5af096", "#2d4bc3", "#2d69e1",
)  # fmt: skip
GREY = "#9a9a9a"
DARK, LIGHT = "#111111", "#fefefe"  # text on a colour; pages replace neither


def cluster_colours(sizes: ArrayLike) -> list[str]:
    """Give each cluster its colour: those of `COLOURS` to the largest, grey to the others."""
    found = [GREY] * np.size(sizes)
    for rank, cluster in enumerate(np.argsort(-np.asarray(sizes, np.float64), kind="stable")[: len(COLOURS)]):
        found[cluster] = COLOURS[rank]
    return found


def text_on(colour: str) -> str:
    """The colour of text that is read on another one."""
    red, green, blue = bytes.fromhex(colour[1:])
    return DARK if 0.3 * red + 0.6 * green + 0.1 * blue > 110 else LIGHT
