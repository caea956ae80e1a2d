"""How rows are made of comma-separated text. Opens no file.

Plain numbers are read by a kernel of our own, whatever is not plain by pyarrow: both give the same values. Where
neither can read a record, it is looked for with Python's csv module, for the message.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.kernels.text import csv_numbers as kernel
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.arrow import day_numbers, null_words, one_chunk
from streamkm.sources.tables.columns import TableSchema, with_keys, without
from streamkm.sources.tables.csv_format import CsvFormat, is_number

_NO_FEATURES = TableSchema((), np.dtype(float), 0)


class MalformedCsvError(Exception):
    """A record that cannot be read: what is wrong, and the byte of the text where the record starts."""

    def __init__(self, text: str, byte: int, column: str = "", cell: str = "") -> None:
        super().__init__(text)
        self.text, self.byte = text, byte
        self.column, self.cell = column, cell  # that is not of the column's type


@dataclass(frozen=True, slots=True)
class CsvParser:
    """How rows are made of text."""

    format: CsvFormat
    names: tuple[str, ...]  # all columns of a record
    types: dict[str, Any]  # Arrow's, of features, as `kind_of` tells them; other columns are text
    layout: TableSchema = _NO_FEATURES
    keys: Mapping[str, str | None] = field(default_factory=dict)  # of folders, and their values

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
        import pyarrow as pa

        layout = self.layout
        words = _packed(self.format.number_nulls)
        if all(map(pa.types.is_floating, self.types.values())) and words is not None and start < end:
            n_lines = kernel.count_line_feeds(text[start:end])
            out, places = np.empty((n_lines, layout.n_features)), np.empty(n_lines, np.int64)
            columns = np.array([layout.names.index(name) if name in layout.names else -1 for name in self.names])
            span = (start, end, base)
            n_rows, at = kernel.parse_numbers(text, span, ord(self.format.delimiter), columns, words, out, places)
            if at == end:
                return np.ascontiguousarray(out[:n_rows], layout.dtype), places[:n_rows]
        batch, places = self.table(text, start, end, base, layout.names)
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
        types = {name: self.types.get(name, pa.string()) for name in names}
        if not len(starts):
            return pa.table({name: pa.array([], kind) for name, kind in types.items()}), starts
        stored = without(names, self.keys) or self.names[:1]
        days = [name for name in stored if _is_moment(types.get(name))]
        read = {name: pa.string() if name in days else types.get(name, pa.string()) for name in stored}
        try:
            table = read_table(text[start:end], self.format, self.names, read, stored)
            if table.num_rows != len(starts):
                raise self.located(text, start, end, base, f"{table.num_rows:,} records in {len(starts):,} lines")
            texts = [name for name, kind in read.items() if pa.types.is_string(kind)]
            # what names rows is never null but empty
            kept = {name: self.format.category_nulls if name in self.types else ("",) for name in texts}
            table = with_nulls(table, kept | dict.fromkeys(days, self.format.number_nulls))
            for name in days:
                moments = pa.array(days_of(one_chunk(table.column(name)), types[name]))
                table = table.set_column(stored.index(name), name, moments)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise self.located(text, start, end, base, str(error)) from None
        return with_keys(table, names, self.keys), starts + base

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
        stops = [*starts[1:].tolist(), end]
        for begin, stop in zip(starts.tolist(), stops, strict=True):
            wrong = self._wrong(bytes(text[begin:stop]).rstrip(b"\r\n"))
            if wrong:
                return MalformedCsvError(wrong[0], begin + base, *wrong[1:])
        return MalformedCsvError(f"cannot be read as CSV: {problem.partition(chr(10))[0]}", int(starts[0]) + base)

    def _wrong(self, line: bytes) -> tuple[str, ...]:
        """What is wrong with a record, if anything, and the column and the field where it is."""
        try:
            lines = line.decode("utf-8").splitlines(keepends=True)
            cells = next(csv.reader(lines, delimiter=self.format.delimiter))
        except UnicodeDecodeError as error:
            return (f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file",)
        except (csv.Error, StopIteration) as error:
            return (f"malformed CSV: {error}",)
        if len(cells) != len(self.names):
            ends = len(cells) > len(self.names) and not cells[-1]
            hint = "; line 1 begins with #: remove the comments above the names" if self.names[0][:1] == "#" else ""
            hint = "; the line ends in a delimiter: remove it, or add one to line 1" if ends else hint
            return (f"a record of {len(cells):,}, where {len(self.names):,} columns are needed{hint}",)
        if b"\r" in line:
            return ("a carriage return without a line feed; write lines that end in line feeds",)
        pairs = zip(self.names, cells, strict=True)
        return next(((self._refusal(*pair), *pair) for pair in pairs if not self._is_sound(*pair)), ())

    def _is_sound(self, name: str, cell: str) -> bool:
        """Whether a field holds a value of its column's type, or nothing."""
        import pyarrow as pa

        kind = self.types.get(name, pa.string())
        if pa.types.is_string(kind) or cell in self.format.number_nulls:
            return True
        return is_number(cell) if pa.types.is_floating(kind) else kind_of_cell(cell).equals(kind)

    def _refusal(self, name: str, cell: str) -> str:
        known = {"double": "numbers", "null": "numbers", "bool": "true and false"}
        needed = known.get(str(self.types[name]), f"of type {self.types[name]}")
        return (
            f"column {name!r} holds {cell[:40]!r}, and its first rows are {needed}, or nothing; leave it out with "
            f'exclude="{name}", give its values, as in categories={{"{name}": [...]}}, or correct the file'
        )


def read_table(
    text: NDArray[np.uint8], form: CsvFormat, names: Sequence[str], types: Mapping[str, Any], wanted: Sequence[str]
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
            true_values=["true", "True", "TRUE"],  # 1 and 0 are numbers
            false_values=["false", "False", "FALSE"],
            include_columns=list(wanted),
        ),
    )


def kind_of(kind: Any) -> Any:
    """The type of all values that a column may hold beside those of an Arrow type that was inferred."""
    import pyarrow as pa

    if pa.types.is_integer(kind):
        return pa.float64()
    if not _is_moment(kind):
        return kind
    return pa.timestamp("s", "UTC") if getattr(kind, "tz", None) else pa.date32()


def kind_of_cell(cell: str) -> Any:
    """The type of a column that holds a field."""
    text = np.frombuffer(('"' + cell.replace('"', '""') + '"\n').encode(), np.uint8)
    return kind_of(read_table(text, CsvFormat(newlines_in_values=True), "0", {}, "0")[0].type)


def _is_moment(kind: Any) -> bool:
    import pyarrow as pa

    return kind is not None and (pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def days_of(values: Any, kind: Any) -> NDArray[np.float64]:
    """Days since 1970 of an Arrow array of text; halves are read apart where no type of Arrow holds all values."""
    import pyarrow as pa

    for unit in ("s", "ns"):
        with suppress(pa.ArrowInvalid):
            return day_numbers(values.cast(pa.timestamp(unit, getattr(kind, "tz", None))))
    half = len(values) // 2
    if not half:
        raise pa.ArrowInvalid(f"{values} is not of type {kind}")
    return np.concatenate([days_of(values[:half], kind), days_of(values[half:], kind)])


def padded(text: bytes) -> NDArray[np.uint8]:
    """Text with the bytes behind it that kernels read."""
    return np.frombuffer(text + bytes(WINDOW), np.uint8)


def with_nulls(table: Any, words: Mapping[str, Sequence[str]]) -> Any:
    """The table with nulls in place of some words in columns of text."""
    for name, nulls in words.items():
        kept = null_words(one_chunk(table.column(name)), nulls)
        table = table.set_column(table.column_names.index(name), name, kept)
    return table


@cache
def _packed(words: tuple[str, ...]) -> NDArray[np.uint64] | None:
    """Words for nothing as the kernel takes them; None where one is too long, or a number, which the kernel reads."""
    raw = [word.encode() for word in words if word]
    if any(len(word) > kernel.MOST_WORD_BYTES for word in raw):
        return None
    if any(is_number(word) and not math.isnan(float(word)) for word in words):
        return None
    return np.array([(int.from_bytes(word, "little"), len(word)) for word in raw], np.uint64).reshape(-1, 2)
