"""Figures that notebooks show, whatever the backend. Imports matplotlib: for those who draw."""

from __future__ import annotations

import io

from matplotlib import figure

_DPI = 80  # in notebooks: as wide as a cell


class Figure(figure.Figure):
    """A figure that IPython shows where pyplot, which would tell it how, is not imported."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as buffer:
            self.savefig(buffer, format="png", dpi=_DPI)
            return buffer.getvalue()
