"""CSV text: how it is cut into records and fields, and how rows are made of them. Opens no file.

A kernel reads plain numbers, pyarrow all else: both give the same values. Python's csv module finds the first record
that neither can read, for the message.
"""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.core.matrix import Matrix
from streamkm.kernels.text.csv_numbers import count_line_feeds, parse_numbers
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.arrow import null_words, one_chunk
from streamkm.sources.formats import data_name, signed
from streamkm.sources.tables.columns import TableSchema, with_keys, without
from streamkm.sources.text_lines import MAX_LINE_BYTES

NULLS = ("", "NA", "N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none", "?", "-")
"""Fields that mean that a number is missing, unless the user says which."""

_NO_TEXT = ("utf-16", "parquet", "hdf5", "zip", "gzip", "bzip2", "xz", "zstd", "arrow")
_LINE_FEED, _RETURN, _QUOTE = 10, 13, 34
_NO_FEATURES = TableSchema((), np.dtype(float), 0)


Text: TypeAlias = NDArray[np.uint8]
Starts: TypeAlias = NDArray[np.int64]


class MalformedCsvError(Exception):
    """A record that cannot be read: what is wrong, and the byte of the text where the record starts."""

    def __init__(self, text: str, byte: int, column: str = "", cell: str = "") -> None:
        super().__init__(text)
        self.text, self.byte, self.column, self.cell = text, byte, column, cell  # a field not of the column's type


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

    def records(self, text: Text) -> tuple[Starts, int]:
        """Starts of the records that end in a text that begins with one, and the end of the last; no empty lines."""
        is_cut = not self.newlines_in_values or not (text == _QUOTE).any()
        ends = np.flatnonzero(text == _LINE_FEED) + 1 if is_cut else self._ends_beside_quotes(text)
        begins = np.concatenate([[0], ends])
        lengths = np.diff(begins)
        kept = (lengths > 2) | ((lengths == 2) & (text[begins[:-1]] != _RETURN))
        return begins[:-1][kept], int(begins[-1])

    def _ends_beside_quotes(self, text: Text) -> Starts:
        """Ends of records whose fields may hold line feeds; by Python's csv module where quotes stand within fields."""
        marks = np.flatnonzero((text == _LINE_FEED) | (text == _QUOTE))
        is_quote = text[marks] == _QUOTE
        inside = np.cumsum(is_quote) % 2 == 1
        opening = marks[is_quote & inside]
        if np.isin(text[np.maximum(opening - 1, 0)], [_LINE_FEED, _QUOTE, ord(self.delimiter)]).all():
            return marks[~is_quote & ~inside] + 1
        ends = marks[~is_quote] + 1
        # a last, empty line is a record of its own, or part of one whose quotes do not end
        whole = text[: ends[-1] if len(ends) else 0].tobytes().decode("latin-1").replace("\r", " ") + "\n"
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
        reader = csv.reader(io.StringIO(whole, newline="\n"), delimiter=self.delimiter)
        last_lines = np.array([reader.line_num for _ in reader], np.int64)[:-1]
        return ends[last_lines - 1]

    def begin(self, head: bytes, name: str) -> tuple[tuple[str, ...], int, bool]:
        """Names of a file's columns by its beginning, the byte of the first row, and whether names were there."""
        signature = signed(head)
        if signature in _NO_TEXT:
            remedy = "convert it to UTF-8" if signature == "utf-16" else "name it by what it is"
            raise InvalidInputError(f"{name} holds {data_name(str(signature))}, not CSV text; {remedy}")
        text = head.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
        at = len(head) - len(text)
        line = text[: text.find(b"\n") + 1 or None]
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
        return tuple(cell.strip() for cell in cells), at + len(line), True

    def check_first_record(self, line: str, names: Sequence[str], path: str) -> None:
        """Refuse one column that holds another delimiter; warn of numbers that may be names where `names` are none."""
        others = [mark for mark in ";\t|," if len(names) == 1 and 0 < names[0].count(mark) == line.count(mark)]
        if len(names) == 1 and len(cells := line.split()) > 1 and all(map(is_number, cells)):
            others.append(" ")
        if others:
            remedy = "; one space stands between values" if others[0] == " " else ""
            raise InvalidInputError(
                f"{path} has one column {names[0]!r}, and seems to be separated by {others[0]!r}; pass "
                f"delimiter={others[0]!r}{remedy}"
            )
        first = line.strip().replace("\r", " ")
        cells = next(csv.reader([first], delimiter=self.delimiter), [])
        if not names and self.header is None and all(cells) and len(set(cells)) == len(cells):
            shown = first if len(first) <= 40 else first[:37] + "..."
            words = "holds numbers only and is read as a row; pass header=True if it names the columns, or header=False"
            warnings.warn(f"{path}: its first record, {shown}, {words}", StreamkmWarning, stacklevel=2)


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


@dataclass(frozen=True, slots=True)
class CsvParser:
    """How rows are made of text: whole records, the last with its line feed."""

    format: CsvFormat
    names: tuple[str, ...]  # all columns of a record
    types: dict[str, Any]  # Arrow's, of features, as `kind_of` tells them; other columns are text
    layout: TableSchema = _NO_FEATURES
    keys: Mapping[str, str | None] = field(default_factory=dict)  # of folders, and their values

    def parse(self, text: Text, base: int, describe: Callable[[int], str]) -> tuple[Matrix, Starts]:
        """Rows of a text with `WINDOW` bytes behind it, and the place of each; `base`: place of its first byte."""
        import pyarrow as pa

        layout, end = self.layout, len(text) - WINDOW
        # other words for nothing are no numbers to the kernel, which stops there
        is_known = all(not is_number(word) or math.isnan(float(word)) for word in self.format.number_nulls)
        if is_known and all(map(pa.types.is_floating, self.types.values())):
            n_lines = count_line_feeds(text[:end])
            out, places = np.empty((n_lines, layout.n_features)), np.empty(n_lines, np.int64)
            columns = np.array([layout.names.index(name) if name in layout.names else -1 for name in self.names])
            n_rows, at = parse_numbers(text, (end, base), ord(self.format.delimiter), columns, out, places)
            if at == end:
                return np.ascontiguousarray(out[:n_rows], layout.dtype), places[:n_rows]
        batch, places = self.table(text[:end], base, layout.names)
        out = layout.empty(len(places))
        layout.fill(out, batch, lambda row: describe(int(places[row])))
        return layout.finish(out, [batch]), places

    def table(self, text: Text, base: int, names: Sequence[str]) -> tuple[Any, Starts]:
        """Columns as a pyarrow.Table, and the place of each row; see `parse`."""
        import pyarrow as pa

        starts, end = self.format.records(text)
        stored = without(names, self.keys) or self.names[:1]
        types = {name: self.types.get(name, pa.string()) for name in stored}
        problem, table = "a field in quotes does not end", None
        try:
            table = read_table(text, self.format, self.names, types, stored) if end == len(text) else None
        except (pa.ArrowException, UnicodeDecodeError) as error:
            problem = str(error)
        if table is not None and table.num_rows != len(starts):
            problem, table = f"{table.num_rows:,} records in {len(starts):,} lines", None
        has_return = (text[np.flatnonzero(text == _RETURN) + 1] != _LINE_FEED).any()  # where a record may seem to end
        wrong = self.located(text, base, problem if table is None else "") if table is None or has_return else None
        if wrong is not None:
            raise wrong from None
        # what names rows is never null but empty
        nulls = {name: ("", *(self.format.null_values or ())) if name in self.types else ("",) for name in stored}
        return with_keys(with_nulls(table, nulls), names, self.keys), starts + base

    def located(self, text: Text, base: int, problem: str) -> MalformedCsvError | None:
        """The first record that is wrong, by a loop over all; if none is, the first for a problem of its text."""
        starts, end = self.format.records(text)
        begins = [*starts.tolist(), *([end] if end < len(text) else ())]
        for begin, stop in zip(begins, [*begins[1:], len(text)], strict=True):
            wrong = self._wrong(text[begin:stop].tobytes().rstrip(b"\r\n"))
            if wrong:
                return MalformedCsvError(wrong[0], begin + base, *wrong[1:])
        return MalformedCsvError(f"cannot be read as CSV: {problem.partition(chr(10))[0]}", base) if problem else None

    def _wrong(self, line: bytes) -> tuple[str, ...]:
        """What is wrong with a record, if anything, and the column and the field where it is."""
        try:
            reader = csv.reader([line.decode("utf-8"), ""], delimiter=self.format.delimiter)
            cells = next(reader)
        except UnicodeDecodeError as error:
            return (f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file",)
        except csv.Error as error:
            remedy = "a carriage return without a line feed; write lines that end in line feeds"
            return (remedy if "new-line" in str(error) else f"malformed CSV: {error}",)
        if reader.line_num > 1:
            newlines = "or it goes on in the next line, which needs newlines_in_values=True"
            remedy = "or a quote in a field is not doubled" if self.format.newlines_in_values else newlines
            return (f"malformed CSV: a field in quotes does not end; the file is cut short, {remedy}",)
        if len(cells) != len(self.names):
            ends = len(cells) > len(self.names) and not cells[-1]
            hint = "; line 1 begins with #: remove the comments above the names" if self.names[0][:1] == "#" else ""
            hint = "; the line ends in a delimiter: remove it, or add one to line 1" if ends else hint
            return (f"a record of {len(cells):,}, where {len(self.names):,} columns are needed{hint}",)
        known = {"double": "numbers", "null": "numbers", "bool": "true and false", "timestamp[us]": "of type date"}
        for name, cell in zip(self.names, cells, strict=True):
            kind = str(self.types.get(name, "string"))
            if kind == "string" or cell in self.format.number_nulls:
                continue
            if not (is_number(cell) if kind == "double" else str(kind_of_cell(cell)) == kind):
                remedy = f'exclude="{name}", give its values, as in categories={{"{name}": [...]}}, or correct the file'
                needed = known.get(kind, f"of type {kind}")
                problem = f"column {name!r} holds {cell[:40]!r}, and its first rows are {needed}, or nothing"
                return f"{problem}; leave it out with {remedy}", name, cell
        return ()


def read_table(text: Text, form: CsvFormat, names: Sequence[str], types: dict[str, Any], wanted: Sequence[str]) -> Any:
    """Columns of whole records by pyarrow, text as it stands; `types` are those that are known, others are inferred."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # a last record of nothing, which is missing if quotes in front of it do not end: pyarrow says nothing of that
    last = form.delimiter * (len(names) - 1) or '""'
    data = pa.py_buffer(text.tobytes() + f"{last}\n".encode())
    moments = [name for name, kind in types.items() if pa.types.is_timestamp(kind)]
    for unit in ("us", "ns") if moments else ("us",):  # nanoseconds have room for few years
        try:
            table = arrow_csv.read_csv(
                data,
                arrow_csv.ReadOptions(use_threads=False, column_names=list(names), block_size=data.size),
                arrow_csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=form.newlines_in_values),
                arrow_csv.ConvertOptions(
                    column_types=types | {name: pa.timestamp(unit, types[name].tz) for name in moments},
                    null_values=list(form.number_nulls),
                    true_values=["true", "True", "TRUE"],  # 1 and 0 are numbers
                    false_values=["false", "False", "FALSE"],
                    include_columns=list(wanted),
                ),
            )
            return table.slice(0, table.num_rows - 1)
        except pa.ArrowInvalid as error:
            problem = error
    raise problem


def kind_of(kind: Any) -> Any:
    """The type of all values that a column may hold beside those of an Arrow type that was inferred."""
    import pyarrow as pa

    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if getattr(kind, "tz", None) else None)
    return pa.float64() if pa.types.is_integer(kind) else kind


def kind_of_cell(cell: str) -> Any:
    """The type of a column that holds a field."""
    text = np.frombuffer(('"' + cell.replace('"', '""') + '"\n').encode(), np.uint8)
    return kind_of(read_table(text, CsvFormat(newlines_in_values=True), "0", {}, "0")[0].type)


def with_nulls(table: Any, words: Mapping[str, Sequence[str]]) -> Any:
    """The table with nulls in place of some words in columns of text."""
    for at, (name, kind) in enumerate(zip(table.schema.names, map(str, table.schema.types), strict=True)):
        if kind == "string":
            table = table.set_column(at, name, null_words(one_chunk(table.column(at)), words[name]))
    return table


def is_number(cell: str) -> bool:
    """Whether a field holds a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
