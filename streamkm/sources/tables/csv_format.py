"""CSV text: cut into records and fields, and into columns by pyarrow; Python's csv module finds bad records."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.arrow import one_chunk

NULLS = ("", "NA", "N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none", "?", "-")
"""Fields that mean a missing number, unless the user gives others."""

_LINE_FEED, _RETURN, _QUOTE = 10, 13, 34
OPEN_QUOTES = "the file is cut short, needs newlines_in_values=True, or has a quote in a field that is not doubled"
_COLUMNS = "remove comments above the names, and a delimiter at the end of a line"
# a quote opens a field only as its first byte; the last record of a text may lack its line feed
_RECORD = rb'(?:[^"\n]*+(?:(?<![^%s\n])"[^"]*+(?:""[^"]*+)*+"?|"))*+[^"\n]*+(\n?)'
# what pyarrow says of a record, and of a field that is not of the column's type
_ROW, _COUNTS = re.compile(r"Row #(\d+): "), re.compile(r"Expected (\d+) columns, got (\d+)")
_CONVERSION = re.compile(r"In CSV column #(\d+): Row #\d+: CSV conversion error to ([^:]*): (?:invalid value )?(.*)")

Text: TypeAlias = NDArray[np.uint8]
Starts: TypeAlias = NDArray[np.int64]


class MalformedCsvError(Exception):
    """A record that cannot be read; its arguments are the problem, and the byte of the text where the record starts."""


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The rules by which text is cut into fields."""

    delimiter: str = ","  # one ASCII character
    # whether the first record of a file names the columns; None: unless it holds numbers only
    header: bool | None = None
    newlines_in_values: bool = False  # whether fields between quotes may hold line feeds
    # fields that mean that a number or a category is missing, beside the empty one; None: of numbers `NULLS`
    null_values: tuple[str, ...] | None = None

    @property
    def number_nulls(self) -> tuple[str, ...]:
        """Fields that mean a missing number."""
        return NULLS if self.null_values is None else ("", *self.null_values)

    def records(self, text: Text) -> tuple[Starts, int]:
        """Starts of the complete records of a text that begins with one, and the end of the last; no empty lines."""
        ends = np.flatnonzero(text == _LINE_FEED) + 1
        if self.newlines_in_values and (text == _QUOTE).any():
            marks = np.flatnonzero((text == _LINE_FEED) | (text == _QUOTE))
            is_quote = text[marks] == _QUOTE
            inside = np.cumsum(is_quote) % 2 == 1
            ends = marks[~is_quote & ~inside] + 1
            before = text[np.maximum(marks[is_quote & inside] - 1, 0)]  # what opening quotes stand behind
            if not np.isin(before, [_LINE_FEED, _QUOTE, ord(self.delimiter)]).all():
                record = _RECORD % re.escape(self.delimiter.encode())  # takes three times as long
                ends = np.array([found.end() for found in re.finditer(record, text.data) if found[1]], np.int64)
        begins = np.concatenate([[0], ends])
        lengths = np.diff(begins)
        kept = (lengths > 2) | ((lengths == 2) & (text[begins[:-1]] != _RETURN))
        return begins[:-1][kept], int(begins[-1])

    def begin(self, head: bytes, name: str) -> tuple[tuple[str, ...], int, bool]:
        """Column names from a file's beginning, the byte of the first row, and whether the file gives the names."""
        text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
        at = len(head) - len(text)
        line = text[: text.find(b"\n") + 1 or None]
        try:
            cells = next(csv.reader([line.decode("utf-8")], delimiter=self.delimiter, strict=True), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{name}, line 1: not CSV text: {error}; convert it to UTF-8") from None
        is_header = self.header
        if is_header is None:
            counted = ["", *map(str, range(len(cells) - 1))]  # as pandas names an index and columns without names
            plain = all(cell in self.number_nulls or is_number(cell) for cell in cells)
            is_header = not plain or (len(cells) > 1 and cells == counted)
        if not is_header:
            return tuple(str(number) for number in range(len(cells))), at, False
        return tuple(cell.strip() for cell in cells), at + len(line), True

    def table(
        self, text: Text, names: Sequence[str], types: Mapping[str, Any], wanted: Sequence[str]
    ) -> tuple[Any, Starts]:
        """Columns of whole records by pyarrow, and their starts; types that are not given are inferred, text stays.

        Raises MalformedCsvError.
        """
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        starts, end = self.records(text)
        # a last record of nothing, which is missing if quotes in front of it do not end: pyarrow says nothing of that
        last = self.delimiter * (len(names) - 1) or '""'
        data = pa.py_buffer(text.tobytes() + f"{last}\n".encode())
        try:
            table = arrow_csv.read_csv(
                data,
                arrow_csv.ReadOptions(use_threads=False, column_names=list(names), block_size=data.size),
                arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=self.newlines_in_values),
                arrow_csv.ConvertOptions(
                    column_types=types,
                    null_values=list(self.number_nulls),
                    true_values=["true", "True", "TRUE"],  # 1 and 0 are numbers
                    false_values=["false", "False", "FALSE"],
                    include_columns=list(wanted),
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise self._wrong(text, names, str(error)) from None
        if end == len(text) and table.num_rows == len(starts) + 1:
            return table.slice(0, len(starts)), starts
        problem = f"{table.num_rows - 1:,} records in {len(starts):,} lines, which end in line feeds"
        raise self._wrong(text, names, problem)

    def _wrong(self, text: Text, names: Sequence[str], problem: str) -> MalformedCsvError:
        """The record that pyarrow names, or the first in which quotes do not end."""
        starts, end = self.records(text)
        begins = starts if end == len(text) else np.append(starts, end)
        is_open = np.add.reduceat(text == _QUOTE, begins, dtype=np.int64) % 2 == 1
        found = _ROW.search(problem)
        at = min(int(found[1]), len(begins)) - 1 if found else int(is_open.argmax())
        words = f"malformed CSV: {problem.partition(chr(10))[0]}"
        if is_open[at]:
            words = f"malformed CSV: a field in quotes does not end; {OPEN_QUOTES}"
        elif counts := _COUNTS.search(problem):
            words = f"a record of {counts[2]}, where {counts[1]} columns are needed; {_COLUMNS}"
        elif conversion := _CONVERSION.search(problem):
            name = names[int(conversion[1])]
            remedy = f'leave it out with exclude="{name}", give its values, as in categories={{"{name}": [...]}}'
            words = f"column {name!r} holds {conversion[3]}, and its first rows are of type {conversion[2]}, or nothing"
            words = f"{words}; {remedy}, or correct the file"
        return MalformedCsvError(words, int(begins[at]))


def check_format(
    path: str, delimiter: Any = None, header: Any = None, newlines_in_values: Any = None, null_values: Any = None
) -> CsvFormat:
    """Check options of CSV; a path's suffix tells whether tabs separate fields. Raises InvalidParameterError."""
    name = path.partition("?")[0].lower()
    tabbed = ".tsv" in name[-8:] or name.endswith(".tab")
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


def kind_of(values: Any, *, days: str | None = None) -> Any:
    """The type of all values that a column may hold besides those of its inferred Arrow type."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_string(kind) and days:
        with suppress(pa.ArrowInvalid):  # dates of which some are too far away for nanoseconds
            one_chunk(values).cast(pa.timestamp("us"))
            return pa.timestamp("us")
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if getattr(kind, "tz", None) else None)
    return pa.float64() if pa.types.is_integer(kind) else kind


def joined_kind(old: Any, new: Any, *, is_mixed: bool) -> Any:
    """The type of a column with values of two types: text if allowed, else the first; nulls have none."""
    import pyarrow as pa

    if new in (old, pa.null()):
        return old
    if old == pa.null() and (is_mixed or new != pa.string()):
        return new
    return pa.string() if is_mixed else pa.float64() if old == pa.null() else old


def with_nulls(table: Any, words: Mapping[str, Sequence[str]]) -> Any:
    """The table with nulls in place of some words in columns of text."""
    import pyarrow as pa
    from pyarrow import compute

    for at, (name, kind) in enumerate(zip(table.schema.names, table.schema.types, strict=True)):
        if pa.types.is_string(kind):
            values = one_chunk(table.column(at))
            is_word = compute.is_in(values, pa.array(words[name], kind))
            table = table.set_column(at, name, compute.if_else(is_word, None, values))
    return table


def is_number(cell: str) -> bool:
    """Whether a field holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
