"""Labels and texts for people, one below the other."""

from __future__ import annotations

from collections.abc import Iterable


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
