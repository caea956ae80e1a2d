"""Labels and texts for people, one below the other."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

_LEFT = "text-align:left"


class Lines:
    """What prints as labels and texts, and is shown so by notebooks: a class with a method `lines`."""

    __slots__ = ()

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        cls._repr_pretty_ = Lines._repr_pretty_  # type: ignore[method-assign] # else IPython prefers the class's repr

    def __str__(self) -> str:
        return aligned(self.lines())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Print so in IPython."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        rows = (
            f'<tr><th style="{_LEFT}">{html.escape(label)}</th><td style="{_LEFT}">{html.escape(text)}</td></tr>'
            for label, text in self.lines()
        )
        return f"<table>{''.join(rows)}</table>"


def aligned(pairs: Iterable[tuple[str, str]]) -> str:
    """Lines of labels and texts, the texts below each other.

    Examples
    --------
    >>> print(aligned([("rows", "7"), ("features", "1,000")]))
    rows      7
    features  1,000
    """
    pairs = list(pairs)
    width = max((len(label) for label, _ in pairs), default=0)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in pairs)


def columns_text(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells, each column as wide as its widest cell: the last to the left, the others to the right.

    Examples
    --------
    >>> columns_text([("id", "name"), ("10", "a")])
    ['id  name', '10  a']
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [f"{'  '.join(map(str.rjust, line[:-1], widths))}  {line[-1]}".rstrip() for line in lines]
