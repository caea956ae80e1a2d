"""Comma-separated text: how it is cut into records and fields, and which fields mean nothing. Opens no file."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.kernels.text import csv_numbers as kernel
from streamkm.kernels.text.csv_records import records_of_piece
from streamkm.sources.formats import data_name, signed

NULLS = ("", "NA", "N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none", "?", "-")
"""Fields that mean that a number is missing, unless the user says which."""

_NO_TEXT = ("utf-16", "parquet", "hdf5", "zip", "gzip", "bzip2", "xz", "zstd", "arrow")
_OTHER_DELIMITERS = (";", "\t", "|", ",")
_SHOWN = 40  # characters of a first record
_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How text is cut into fields."""

    delimiter: str = ","  # one ASCII character
    # whether the first record of a file names the columns; None: unless it holds numbers only
    header: bool | None = None
    newlines_in_values: bool = False  # whether fields between quotes may hold line feeds
    # fields that mean that a number or a category is missing, beside the empty one; None: of numbers `NULLS`
    null_values: tuple[str, ...] | None = None

    @property
    def number_nulls(self) -> tuple[str, ...]:
        """Fields that mean that a number is missing."""
        return NULLS if self.null_values is None else ("", *self.null_values)

    @property
    def category_nulls(self) -> tuple[str, ...]:
        """Fields that mean that a category is missing: words of text are values unless the user says otherwise."""
        return ("", *(self.null_values or ()))

    def last_end(self, text: bytes, start: int) -> int:
        """Where the last record ends that ends in a text."""
        if not self.newlines_in_values:
            return text.rfind(b"\n") + 1
        return self.records(np.frombuffer(text, np.uint8), start, len(text))[1]

    def records(self, text: NDArray[np.uint8], start: int, end: int) -> tuple[NDArray[np.int64], int, int]:
        """Starts of records, behind the last one that ends, and the first one whose quotes do not; -1 if all do."""
        starts = np.empty(kernel.count_line_feeds(text[start:end]), np.int64)
        span, delimiter = (start, end), ord(self.delimiter)
        n_records, last, unclosed = records_of_piece(text, span, delimiter, self.newlines_in_values, starts)
        return starts[:n_records], last, unclosed

    def begin(self, head: bytes, name: str) -> tuple[tuple[str, ...], int, bool]:
        """Read the beginning of a file.

        Returns the names of the columns, numbers from 0 where there is no header, and the byte of the first record
        of values. Raises InvalidInputError: no text, or a header that cannot be read.
        """
        signature = signed(head)
        if signature in _NO_TEXT:
            remedy = "convert it to UTF-8" if signature == "utf-16" else "name it by what it is"
            raise InvalidInputError(f"{name} holds {data_name(str(signature))}, not CSV text; {remedy}")
        at = len(_MARK) if head.startswith(_MARK) else 0
        at = len(head) - len(head[at:].lstrip(b"\r\n"))
        stop = head.find(b"\n", at) + 1 or len(head)
        line = head[at:stop]
        try:
            cells = next(csv.reader([line.decode("utf-8")], delimiter=self.delimiter, strict=True), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{name}, line 1: not CSV text: {error}") from None
        is_header = self.header
        if is_header is None:
            counted = ["", *map(str, range(len(cells) - 1))]  # as pandas names an index and columns without names
            plain = all(cell in self.number_nulls or is_number(cell) for cell in cells)
            is_header = not plain or (len(cells) > 1 and cells == counted)
        if not is_header:
            return tuple(str(number) for number in range(len(cells))), at, False
        return tuple(cell.strip() for cell in cells), stop, True

    def check_first_record(self, line: str, names: Sequence[str], path: str) -> None:
        """Refuse a single column whose name and first value hold another delimiter alike; tell what may be names.

        `names`: of the columns, none where the first record is read as a row. It may name them if its values are
        distinct numbers.
        """
        for delimiter in _OTHER_DELIMITERS if len(names) == 1 else ():
            if names[0].count(delimiter) and line.count(delimiter) == names[0].count(delimiter):
                raise InvalidInputError(
                    f"{path} has one column {names[0]!r}, and seems to be separated by {delimiter!r}; pass "
                    f"delimiter={delimiter!r}"
                )
        if len(names) == 1 and len(cells := line.split()) > 1 and all(map(is_number, cells)):
            raise InvalidInputError(
                f"{path} has one column {names[0]!r}, and seems to be separated by spaces; pass "
                "delimiter=' ', with one space between values"
            )
        if names or self.header is not None:
            return
        first = line.strip()
        cells = next(csv.reader([first], delimiter=self.delimiter), [])
        if all(cells) and len(set(cells)) == len(cells):
            shown = first if len(first) <= _SHOWN else first[: _SHOWN - 3] + "..."
            warnings.warn(
                f"{path}: its first record, {shown}, holds numbers only and is read as a row; pass header=True if it "
                f"names the columns, or header=False",
                StreamkmWarning,
                stacklevel=2,
            )


def check_format(
    delimiter: Any, header: Any, newlines_in_values: Any, null_values: Any = None, *, tabbed: bool
) -> CsvFormat:
    """Check options of CSV. Raises InvalidParameterError."""
    delimiter = ("\t" if tabbed else ",") if delimiter is None else delimiter
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
        raise InvalidParameterError(f"delimiter={delimiter!r}; needed: one ASCII character, no quote and no line end")
    for name, value in (("header", header), ("newlines_in_values", newlines_in_values)):
        if value not in (None, True, False):
            raise InvalidParameterError(f"{name}={value!r}; needed: True or False")
    words = [null_values] if isinstance(null_values, str) else null_values
    if words is not None and not (isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)):
        raise InvalidParameterError(f'null_values={null_values!r}; needed: words, as in null_values=["NA", "-999"]')
    return CsvFormat(delimiter, header, bool(newlines_in_values), None if words is None else tuple(words))


def is_number(cell: str) -> bool:
    """Whether a field holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
