"""Comma-separated text: what its columns are, and how rows are made of its bytes. Opens no file.

Plain numbers are read by a kernel of our own, whatever is not plain by pyarrow: both give the same values. Where
neither can read a record, it is looked for with Python's csv module, for the message.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.kernels.text import csv_numbers as kernel
from streamkm.kernels.text.csv_records import records_of_piece
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.signatures import NAMES, signed
from streamkm.sources.tables.columns import Layout
from streamkm.sources.tables.values import null_words, one_chunk

NULLS = ("", "NA", "N/A", "n/a", "na", "NaN", "nan", "NULL", "null", "None", "none", "?", "-")
"""Fields that mean that a number is missing, unless the user says which."""

_NO_TEXT = ("utf-16", "parquet", "hdf5", "zip", "gzip", "bzip2", "xz", "zstd", "arrow")
_MARK = b"\xef\xbb\xbf"


class MalformedCsvError(Exception):
    """A record that cannot be read: what is wrong, and the byte of the text where the record starts."""

    def __init__(self, text: str, byte: int) -> None:
        super().__init__(text)
        self.text, self.byte = text, byte


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """How text is cut into fields.

    Attributes
    ----------
    delimiter : str
        One ASCII character.
    header : bool or None
        Whether the first record of a file names the columns; None: unless it holds numbers only.
    newlines_in_values : bool
        Whether fields between quotes may hold line feeds.
    null_values : tuple of str, or None
        Fields that mean that a number or a category is missing, beside the empty one; None: of numbers `NULLS`.
    """

    delimiter: str = ","
    header: bool | None = None
    newlines_in_values: bool = False
    null_values: tuple[str, ...] | None = None

    @property
    def number_nulls(self) -> tuple[str, ...]:
        """Fields that mean that a number is missing."""
        return NULLS if self.null_values is None else ("", *self.null_values)

    @property
    def category_nulls(self) -> tuple[str, ...]:
        """Fields that mean that a category is missing: words of text are values unless the user says otherwise."""
        return ("", *(self.null_values or ()))

    def is_number(self, cell: str) -> bool:
        """Whether a field holds a number, or says that one is missing."""
        return cell in self.number_nulls or _is_number(cell)

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

        Returns
        -------
        names : tuple of str
            Of the columns; numbers from 0 where there is no header.
        start : int
            Byte of the first record of values.
        named : bool

        Raises
        ------
        InvalidInputError
            No text, or a header that cannot be read.
        """
        signature = signed(head)
        if signature in _NO_TEXT:
            remedy = "convert it to UTF-8" if signature == "utf-16" else "name it by what it is"
            raise InvalidInputError(f"{name} holds {NAMES.get(str(signature), str(signature))}, not CSV text; {remedy}")
        at = len(_MARK) if head.startswith(_MARK) else 0
        while at < len(head) and head[at : at + 1] in (b"\n", b"\r"):
            at += 1
        end = head.find(b"\n", at)
        stop = len(head) if end < 0 else end + 1
        line = head[at:stop]
        try:
            cells = next(csv.reader([line.decode("utf-8")], delimiter=self.delimiter, strict=True), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidInputError(f"{name}, line 1: not CSV text: {error}") from None
        is_header = not all(self.is_number(cell) for cell in cells) if self.header is None else self.header
        if not is_header:
            return tuple(str(number) for number in range(len(cells))), at, False
        names = tuple(cell.strip() for cell in cells)
        return names, stop, True


@dataclass(frozen=True, slots=True)
class CsvParser:
    """How rows are made of text.

    Attributes
    ----------
    format : CsvFormat
    names : tuple of str
        All columns of a record.
    layout : Layout
    booleans : frozenset of str
        Columns of ``true`` and ``false``.
    """

    format: CsvFormat
    names: tuple[str, ...]
    layout: Layout
    booleans: frozenset[str]

    def parse(
        self, text: NDArray[np.uint8], start: int, end: int, base: int, describe: Callable[[int], str]
    ) -> tuple[Matrix, NDArray[np.int64]]:
        """Read all records of a piece of text.

        Parameters
        ----------
        text : uint8 ndarray
            With `WINDOW` readable bytes behind `end`.
        start, end : int
            A record's first byte; behind a line feed that ends one.
        base : int
            Position of byte 0 of `text`.
        describe : callable
            Says which record starts at a position, for messages.

        Returns
        -------
        X : ndarray or csr_array
        places : int64 ndarray
            First byte of each record.

        Raises
        ------
        MalformedCsvError
            A record that cannot be read.
        InvalidInputError
            A category that is not known.
        """
        layout = self.layout
        words = _packed(self.format.number_nulls)
        if layout.is_plain and not self.booleans and words is not None and start < end:
            n_lines = kernel.count_line_feeds(text[start:end])
            out, places = np.empty((n_lines, layout.n_features)), np.empty(n_lines, np.int64)
            columns = np.array([layout.names.index(name) if name in layout.names else -1 for name in self.names])
            span = (start, end, base)
            n_rows, at = kernel.parse_numbers(text, span, ord(self.format.delimiter), columns, words, out, places)
            if at == end:
                return np.ascontiguousarray(out[:n_rows], layout.dtype), places[:n_rows]
        batch, places = self.table(text, start, end, base, self.layout.names)
        out = layout.empty(len(places))
        layout.fill(out, batch, lambda row: describe(int(places[row])))
        return layout.finish(out, [batch]), places

    def table(
        self, text: NDArray[np.uint8], start: int, end: int, base: int, names: Sequence[str]
    ) -> tuple[Any, NDArray[np.int64]]:
        """Read columns by pyarrow: a table, and the first byte of each of its rows; see `parse`."""
        import pyarrow as pa

        starts, _, unclosed = self.format.records(text, start, end)
        if unclosed >= 0:  # pyarrow takes the end of a text for that of its quotes
            raise self._unclosed(unclosed + base)
        n_rows = len(starts)
        kinds = {column.name: column.kind for column in self.layout.columns}
        # a column that names rows is no feature, and text
        text_columns = {name for name in names if kinds.get(name, "category") == "category"}
        types = {
            name: pa.string() if name in text_columns else pa.bool_() if name in self.booleans else pa.float64()
            for name in names
        }
        if n_rows == 0:
            return pa.table({name: pa.array([], types[name]) for name in names}), starts
        try:
            table = read_table(text[start:end], self.format, self.names, types, names)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise self.located(text, start, end, base, str(error)) from None
        if table.num_rows != n_rows:
            raise self.located(text, start, end, base, f"{table.num_rows:,} records in {n_rows:,} lines")
        # what names rows is never null but empty
        nulls = {name: self.format.category_nulls if name in kinds else ("",) for name in text_columns}
        return with_nulls(table, nulls), starts + base

    def _unclosed(self, place: int) -> MalformedCsvError:
        remedy = (
            "or a quote in a field is not doubled"
            if self.format.newlines_in_values
            else "or it goes on in the next line, which needs newlines_in_values=True"
        )
        return MalformedCsvError(
            f"malformed CSV: a field in quotes does not end; the file is cut short, {remedy}", place
        )

    def located(self, text: NDArray[np.uint8], start: int, end: int, base: int, problem: str) -> MalformedCsvError:
        """Find the first record that is wrong; a loop over all of them, for messages only."""
        starts, _, unclosed = self.format.records(text, start, end)
        if unclosed >= 0:
            return self._unclosed(unclosed + base)
        kinds = {column.name: column.kind for column in self.layout.columns}
        stops = [*starts[1:].tolist(), end]
        for begin, stop in zip(starts.tolist(), stops, strict=True):
            wrong = self._wrong(bytes(text[begin:stop]).rstrip(b"\r\n"), kinds)
            if wrong is not None:
                return MalformedCsvError(wrong, begin + base)
        return MalformedCsvError(f"cannot be read as CSV: {problem.partition(chr(10))[0]}", int(starts[0]) + base)

    def _wrong(self, line: bytes, kinds: Mapping[str, str]) -> str | None:
        """What is wrong with a record, if anything."""
        try:
            lines = line.decode("utf-8").splitlines(keepends=True)
            cells = next(csv.reader(lines, delimiter=self.format.delimiter))
        except UnicodeDecodeError as error:
            return f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file"
        except (csv.Error, StopIteration) as error:
            return f"malformed CSV: {error}"
        if len(cells) != len(self.names):
            return f"a record of {len(cells):,}, where {len(self.names):,} columns are needed"
        if b"\r" in line:
            return "a carriage return without a line feed; write lines that end in line feeds"
        numbers = [pair for pair in zip(self.names, cells, strict=True) if kinds.get(pair[0]) == "number"]
        return next(filter(None, (self._wrong_cell(*pair) for pair in numbers)), None)

    def _wrong_cell(self, name: str, cell: str) -> str | None:
        if cell in self.format.number_nulls:
            return None
        if name in self.booleans:
            good, needed = cell.lower() in ("true", "false", "0", "1"), "true and false"
        else:
            good, needed = _is_number(cell), "numbers"
        if good:
            return None
        return (
            f"column {name!r} holds {cell[:40]!r}, and its first rows are {needed}; leave it out with "
            f'exclude="{name}", or correct the file'
        )


def read_table(
    text: NDArray[np.uint8],
    form: CsvFormat,
    names: Sequence[str],
    types: Mapping[str, Any],
    wanted: Sequence[str],
) -> Any:
    """Read columns by pyarrow, text as it stands; `types` are those that are known, others are inferred."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    return arrow_csv.read_csv(
        pa.py_buffer(text.data),
        read_options=arrow_csv.ReadOptions(use_threads=False, column_names=list(names), block_size=max(1, len(text))),
        parse_options=arrow_csv.ParseOptions(
            delimiter=form.delimiter, newlines_in_values=form.newlines_in_values, ignore_empty_lines=True
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict(types),
            null_values=list(form.number_nulls),
            include_columns=list(wanted),
        ),
    )


def padded(text: bytes) -> NDArray[np.uint8]:
    """Text with the bytes behind it that kernels read."""
    return np.frombuffer(text + bytes(WINDOW), np.uint8)


def with_nulls(table: Any, words: Mapping[str, Sequence[str]]) -> Any:
    """The table with nulls in place of some words in columns of text."""
    for name, nulls in words.items():
        kept = null_words(one_chunk(table.column(name)), nulls)
        table = table.set_column(table.column_names.index(name), name, kept)
    return table


def check_format(
    delimiter: Any, header: Any, newlines_in_values: Any, null_values: Any = None, *, tabbed: bool
) -> CsvFormat:
    """Check options of CSV.

    Raises
    ------
    InvalidParameterError
    """
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


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


@cache
def _packed(words: tuple[str, ...]) -> NDArray[np.uint64] | None:
    """Words for nothing as the kernel takes them; None where one is too long, or a number, which the kernel reads."""
    raw = [word.encode() for word in words if word]
    if any(len(word) > kernel.MOST_WORD_BYTES for word in raw):
        return None
    if any(_is_number(word) and not math.isnan(float(word)) for word in words):
        return None
    return np.array([(int.from_bytes(word, "little"), len(word)) for word in raw], np.uint64).reshape(-1, 2)
