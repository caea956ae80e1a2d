"""Text for people: what cannot be written as UTF-8 is escaped; hints on names that are like others."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any


def displayed(text: str) -> str:
    """Make text, such as the name of a file, one that every encoder takes: bytes that are no UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def near_hint(name: Any, known: Sequence[str]) -> str:
    """A hint on the known name that is most like another, if there is one."""
    near = difflib.get_close_matches(str(name), known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
