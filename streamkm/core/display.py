"""Text for people: what cannot be written as UTF-8 is escaped."""

from __future__ import annotations


def displayed(text: str) -> str:
    """Make text, such as the name of a file, one that every encoder takes: bytes that are no UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()
