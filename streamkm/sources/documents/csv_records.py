"""CSV: which columns of a record make a document, and where records start although fields may hold line feeds.

Opens no file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.sources.csv_boundaries import record_starts
from streamkm.sources.documents.formats import DecodeError, decoded
from streamkm.sources.documents.records import Lines, MalformedTextError
from streamkm.sources.text_lines import MAX_LINE_BYTES
from streamkm.sources.text_positions import Fill
from streamkm.text.feature_hashing import Input

_SHOWN_COLUMNS = 12


@dataclass(frozen=True)
class CsvRecords:
    """A document a record of comma-separated text (RFC 4180), read by Python's csv module; blank lines are left out."""

    # {"text", "tokens", "counts"}; cells are text; tokens are what blanks separate in them; counts are features
    # ``column=cell``
    input: Input
    decode_error: DecodeError  # {"strict", "ignore", "replace"}
    fields: tuple[str | int, ...]  # columns by name, or by number from 0. Texts and tokens of several follow each other
    delimiter: str = ","  # one ASCII character
    header: bool = True  # whether the first record of every file names its columns

    name = "CSV text"
    cut_anywhere = False

    def columns(self, lines: Lines) -> tuple[int, ...]:
        """Find the columns in the header; see `TextFormat.columns`."""
        numbers = [field for field in self.fields if isinstance(field, int)]
        if len(numbers) == len(self.fields):
            return tuple(numbers)
        _, names = next(self._rows(lines), (0, []))
        for field in self.fields:
            if isinstance(field, str) and field not in names:
                shown = ", ".join(names[:_SHOWN_COLUMNS]) + (", ..." if len(names) > _SHOWN_COLUMNS else "")
                raise MalformedTextError(f"column {field!r} is missing; the header has {shown or 'none'}", 0)
        return tuple(field if isinstance(field, int) else names.index(field) for field in self.fields)

    def records(self, lines: Lines, columns: tuple[int, ...] | None) -> Iterator[tuple[int, Any]]:
        """Yield documents; see `TextFormat.records`."""
        wanted = columns or ()
        names = [str(field) for field in self.fields]
        rows = self._rows(lines)
        if self.header and lines.position == 0:
            next(rows, None)
        for position, row in rows:
            if max(wanted) >= len(row):
                raise MalformedTextError(f"column {max(wanted)} is missing; the record has {len(row)} from 0", position)
            cells = [row[column] for column in wanted]
            if self.input == "counts":
                yield position, dict(zip(names, cells, strict=True))
            else:
                text = "\n".join(cells)
                yield position, text if self.input == "text" else text.split()

    def of_ids(self, column: str | int) -> CsvRecords:
        """Give the format whose documents are the cells of a column; see `TextFormat.of_ids`."""
        return replace(self, input="text", fields=(column,))

    def starts(self, fill: Fill, size: int, step: int) -> NDArray[np.int64]:
        """Find where records start; see `TextFormat.starts`. O(size)."""
        return record_starts(fill, size, step, self.delimiter)

    def _rows(self, lines: Lines) -> Iterator[tuple[int, list[str]]]:
        """Yield (position, cells); the csv module asks for a line only when it needs one."""
        # long documents are longer than the module's limit, which is one for all of the process
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
        texts = (decoded(line, position, self.decode_error) + "\n" for position, line in lines)
        reader = csv.reader(texts, delimiter=self.delimiter, strict=True)
        while True:
            position = lines.position
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise MalformedTextError(f"malformed CSV: {error}", position) from None
            if row:
                yield position, row
