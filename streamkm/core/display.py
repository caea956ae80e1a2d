"""Text for people: tables, escapes, hints on similar names, URLs without secrets."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

MASK = "***"  # a URL with it leads nowhere

# every pattern walks a text once: none begins again within what it has walked in vain
_URL = re.compile(r"(?<=[A-Za-z0-9+.-])://[^\s'\"<>]*[^\s'\"<>.,:;()\[\]{}]")
_USER = re.compile(r"(?<=://)[^/?#]*@")  # greedy: passwords may hold an @
# of one URL of a chain; what stands behind # or ; is one where it has values, else part of a name
_QUERY = re.compile(r"(?:\?|[#;](?=[^:/#;]*=)).*?(?=::|\Z)", re.DOTALL)
_VALUE = re.compile(r"(?P<name>[^?#&;=]+=)?(?P<value>[^?#&;]+)")
_LEFT = "text-align:left"


def displayed(text: str) -> str:
    """Make text that every encoder takes: bytes that are not UTF-8, in a file name for example, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def near_hint(name: Any, known: Sequence[str]) -> str:
    """A hint on the most similar known name, or ""."""
    import difflib

    near = difflib.get_close_matches(str(name), known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def masked(url: str) -> str:
    """Show a URL without its secrets: ``https://***@host/x.npy?token=***``."""
    return _QUERY.sub(lambda query: _VALUE.sub(rf"\g<name>{MASK}", query[0]), _USER.sub(f"{MASK}@", url))


def without_secrets(text: str) -> str:
    """Mask every URL in a text, as `masked` does."""
    return _URL.sub(lambda found: masked(found[0]), text) if "://" in text else text


class Lines:
    """Base of classes that print, also in notebooks, as the labels and texts of their method `lines`."""

    __slots__ = ()

    def lines(self) -> list[tuple[str, str]]:
        """Labels and texts for people."""
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
