"""Long lines of plain text, found by probes before rows are read, so that memory can be planned for them.

Knows nothing of what the text means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.sources.remote.objects import is_remote
from streamkm.sources.stored import RawFile, open_binary, read_fully
from streamkm.sources.svmlight.lines import MAX_LINE_BYTES
from streamkm.sources.text_places import line_number

Units: TypeAlias = Callable[[NDArray[np.uint8]], int]
"""Counts what takes memory in a piece of text."""

LONG_BYTES, PROBES = 1 << 20, 1 << 11
"""Text between probes: so much, or a part in so many. A line longer than that and `NEAR_BYTES` is never missed."""

NEAR_BYTES = 1 << 16
"""Text behind a probe in which the lines that need no memory of their own have a line feed."""

MOST_FOUND = 16
"""Long lines that are looked at: where there are so many, others are like them."""


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line that takes more memory than what is planned for chunks.

    Attributes
    ----------
    path : str
    byte : int
        Where it starts.
    n_bytes : int
    n_units : int
        Of what its format counts: words, or values.
    largest_byte : int
    memory_bytes : int
        That a thread takes to make a row of it, and that the row takes where it is kept.
    """

    path: str
    byte: int
    n_bytes: int
    n_units: int
    largest_byte: int
    memory_bytes: int = 0

    def describe(self) -> str:
        """Say where it is, for messages: a scan of the text in front of it. Lines are counted from 1."""
        with open_binary(self.path) as raw:
            return f"{self.path}, line {line_number(lambda view: raw.readinto(view) or 0, self.byte):,}"


def find_long_lines(paths: Sequence[str], sizes: Sequence[int], units: Units) -> tuple[LongLine, ...]:
    """Find long lines of local plain text.

    Parameters
    ----------
    paths, sizes : sequences of str and int
        Files and their bytes; remote ones are not looked at.
    units : callable
    """
    found: list[LongLine] = []
    step = max(LONG_BYTES, sum(sizes) // PROBES)
    for path, size in zip(paths, sizes, strict=True):
        if size > step and not is_remote(path):
            with open_binary(path) as raw:
                found += _in_file(raw, path, size, step, units)
        if len(found) >= MOST_FOUND:
            break
    return tuple(found)


def by_memory(lines: Iterable[LongLine]) -> tuple[LongLine, ...]:
    """Those that take most memory first."""
    return tuple(sorted(lines, key=lambda line: -line.memory_bytes))


def _in_file(raw: RawFile, path: str, size: int, step: int, units: Units) -> list[LongLine]:
    """Find long lines of one file, at most `MOST_FOUND`."""
    found: list[LongLine] = []
    stop = 0  # of the last line that was looked at
    for at in range(0, size, step):
        if len(found) == MOST_FOUND:
            break
        if at < stop or b"\n" in _text(raw, at, min(at + NEAR_BYTES, size)).tobytes():
            continue
        back = max(stop, at - step)  # there is a line feed behind the probe before
        start = back + _text(raw, back, at).tobytes().rfind(b"\n") + 1
        stop, n_units, largest_byte = _walked(raw, start, size, units)
        if stop - start >= LONG_BYTES:
            found.append(LongLine(path, start, stop - start, n_units, largest_byte))
    return found


def _walked(raw: RawFile, start: int, size: int, units: Units) -> tuple[int, int, int]:
    """Where a line ends, as far as a line may reach; its units, and its largest byte."""
    at, last, n_units, largest_byte = start, min(size, start + MAX_LINE_BYTES), 0, 0
    while at < last:
        text = _text(raw, at, min(at + LONG_BYTES, last))
        end = text.tobytes().find(b"\n")
        text = text if end < 0 else text[:end]
        n_units += units(text)
        largest_byte = max(largest_byte, int(text.max(initial=0)))
        at += len(text)
        if end >= 0:
            break
    return at, n_units, largest_byte


def _text(raw: RawFile, start: int, stop: int) -> NDArray[np.uint8]:
    """Bytes of a file."""
    text = np.empty(stop - start, np.uint8)
    return text[: read_fully(raw, memoryview(text.data), start)]
