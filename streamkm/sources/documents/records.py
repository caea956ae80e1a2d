"""Lines of text with their places, and the contract of formats that make documents of them.

Opens no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.formats import data_name, signed
from streamkm.sources.text_lines import MAX_LINE_BYTES, LineReader
from streamkm.sources.text_positions import Fill

_NO_TEXT = ("utf-16", "parquet", "hdf5", "zip")


class MalformedTextError(Exception):
    """Text that is malformed: what is wrong, and the byte of the file where it is."""

    def __init__(self, text: str, byte: int) -> None:
        super().__init__(text)
        self.text, self.byte = text, byte


class Lines:
    """Lines of one file from a byte on, each with its position. `reader`: at the beginning of a line."""

    def __init__(self, reader: LineReader) -> None:
        self._reader = reader
        self.position = reader.position

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield (position, line without its line feed); `position` is then that of the next line."""
        reader = self._reader
        while self._load():
            block = bytes(reader.text[reader.start : reader.end])
            begin, reader.start = reader.position, reader.end
            at = 0
            while at < len(block):
                end = block.index(b"\n", at)
                self.position = begin + end + 1
                yield begin + at, block[at:end]
                at = end + 1

    def _load(self) -> bool:
        reader = self._reader
        at_start = reader.base == 0 and reader.end == 0
        try:
            loaded = reader.load()
        except InvalidInputError:
            raise MalformedTextError(
                f"a line is longer than {MAX_LINE_BYTES:,} bytes, the most that is accepted; check that the file is "
                f"text with line feeds between its documents",
                reader.position,
            ) from None
        if loaded and at_start:
            head = bytes(reader.text[: min(reader.end, 8)])
            signature = signed(head)
            if signature in _NO_TEXT:
                remedy = "convert it to UTF-8" if signature == "utf-16" else "name its format, or unpack it"
                raise MalformedTextError(f"{data_name(signature)}, not UTF-8 text; {remedy}", 0)
        return loaded


class TextFormat(Protocol):
    """What a record of text is. A small picklable value."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def cut_anywhere(self) -> bool:
        """Whether every line feed ends a record."""

    def columns(self, lines: Lines) -> tuple[int, ...] | None:
        """Which columns hold the documents, by the beginning of a file; None where there are no columns."""

    def records(self, lines: Lines, columns: tuple[int, ...] | None) -> Iterator[tuple[int, Any]]:
        """Yield (position, document) from the beginning of a record on; asks for its lines as it needs them.

        Raises MalformedTextError.
        """

    def of_ids(self, column: str | int) -> TextFormat:
        """Give the format whose documents are the ids that a field or column holds, as text.

        Raises InvalidParameterError where records have none.
        """

    def starts(self, fill: Fill, size: int, step: int) -> NDArray[np.int64]:
        """Where the first record at or behind each multiple of `step` starts, up to `size`; reads the file once."""
