"""Where rows of text files lie, and how messages name it: ``x.svm, line 7 (byte 512)``.

Shared by svmlight text, CSV and documents; knows nothing of what the text means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamkm.core.exceptions import SourceError
from streamkm.sources.stored import file_size

Fill = Callable[[memoryview], int]
"""Fills a buffer with the bytes that come next; gives how many there were."""

PLACE_BITS = 44
"""A row's place is ``part << PLACE_BITS | byte``: files below 16 TiB, and half a million of them."""


def text_size(path: str) -> int:
    """Bytes of a file or object, for rows to have places in; see `stored.file_size` for errors."""
    size = file_size(path)
    if size >> PLACE_BITS:
        raise SourceError(f"{path}: {size:,} bytes; files of {1 << PLACE_BITS:,} bytes or more must be split")
    return size


def part_and_byte(place: int) -> tuple[int, int]:
    """The number of a place's file, and the byte in its text."""
    return place >> PLACE_BITS, place & ((1 << PLACE_BITS) - 1)


def describe_byte(paths: Sequence[str], place: int) -> str:
    """Say where a row is where nobody can count lines: ``x.svm, byte 512``."""
    part, byte = part_and_byte(place)
    return f"{paths[part]}, byte {byte:,}"


def line_number(fill: Fill, offset: int) -> int:
    """Count the line feeds in front of a byte of a text: a scan, for messages only. Lines are counted from 1."""
    n_lines, view = 1, memoryview(bytearray(1 << 20))
    while offset > 0 and (n_read := fill(view[: min(offset, len(view))])):
        n_lines += bytes(view[:n_read]).count(b"\n")
        offset -= n_read
    return n_lines
