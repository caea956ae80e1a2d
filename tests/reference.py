"""The reference of the API as HTML pages, made of the docstrings: ``python -m tests.reference [FOLDER]``."""

from __future__ import annotations

import sys
from pathlib import Path

import pdoc

import streamkm

MODULES = (
    "streamkm",
    "streamkm.sketches",
    "streamkm.sketches.theory.bounds",
    "streamkm.metrics",
    "streamkm.sources",
    "streamkm.text",
    "streamkm.preparation",
    "streamkm.planning.forecast",
    "streamkm.planning.forecast.cost_model",
)


def build(folder: Path) -> list[str]:
    """Write the pages; give the names of the modules."""
    for name in streamkm.__all__:  # they are imported when they are first asked for
        getattr(streamkm, name)
    pdoc.render.configure(docformat="numpy")
    pdoc.pdoc(*MODULES, output_directory=folder)
    return list(MODULES)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "out/reference"))
