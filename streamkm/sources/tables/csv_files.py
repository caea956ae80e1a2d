"""What plain and compressed CSV files of numbers share: headers, types of columns, parsing, words for errors.

Pieces of text come from the readers in `csv_tables`, rows go out.
"""

from __future__ import annotations

import csv
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.core.progress import Stage
from streamkm.sources.base import Rows, RowSource, SentRows
from streamkm.sources.remote.objects import Address, remote_library
from streamkm.sources.stored import RawFile, name_of, open_binary, opened_path
from streamkm.sources.svmlight.compressed import compression_of, opened_text
from streamkm.sources.tables.arrow import WORKING_BYTES, pyarrow
from streamkm.sources.tables.categories import Column
from streamkm.sources.tables.columns import (
    TableOptions,
    TableSchema,
    check_file,
    choose,
    lay_out,
    needs_values,
    one_hot,
    unknown_categories,
    with_keys,
    without,
)
from streamkm.sources.tables.csv_format import CsvFormat
from streamkm.sources.tables.csv_parser import CsvParser, MalformedCsvError, padded, read_table, with_nulls
from streamkm.sources.tables.row_groups import columns_text, described_table, gather_values, take_layout
from streamkm.sources.text_positions import PLACE_BITS, Fill, describe_byte, line_number, part_and_byte, text_size

_HEAD_BYTES = 1 << 20  # that types of columns are inferred from
_FIRST_BYTES = 1 << 16  # of every other file, for its header
_IDS_BYTES = 1 << 24  # of text, of which one column is read
_SHOWN = 40  # characters of a first record
_OTHER_DELIMITERS = (";", "\t", "|", ",")


class CsvFiles(RowSource, ABC):
    """What plain and compressed CSV files share: headers, columns, words for errors.

    `paths`: in the order in which their rows count. Raises SourceError, SourceNotFoundError, MissingDependencyError: a
    file that is missing or cannot be read; no pyarrow. Raises InvalidInputError: no rows; columns that are no features,
    or not the same in all files; a head that is no CSV text.
    """

    n_rows = None
    producer_bytes = WORKING_BYTES
    decodes = True
    read_factor = 5.0  # the text, numbers that pyarrow makes of it, rows

    def __init__(self, paths: Sequence[str], options: TableOptions, csv_format: CsvFormat) -> None:
        pyarrow(f"CSV ({paths[0]})")
        self.files = self.paths = tuple(opened_path(path) for path in paths)
        self.name = name_of(self.paths)
        self.in_process = any(isinstance(path, Address) and path.in_process for path in self.paths)
        self.libraries = ("pyarrow", *remote_library(*self.paths))
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes: int = sum(self.sizes)
        self._format = csv_format
        self._begin_files()
        self._options = options
        self._parser = self._find_columns(options)
        if needs_values(self._parser.layout, options):
            self._find_categories()
        layout, self.id_column = self._parser.layout, options.id_column
        take_layout(self, layout)
        dialect = {
            name: value for name, value in asdict(csv_format).items() if name != "null_values" or value is not None
        }
        self.made_with = {**described_table(layout), "csv": dialect}

    @contextmanager
    def _open(self, part: int) -> Iterator[tuple[Fill, RawFile]]:
        """Give the text of a file, and the file itself, whose position says how much of it has been used."""
        with opened_text(self.paths[part]) as opened:
            yield opened

    def _begin_files(self) -> None:
        """Read every file's header, and the head of the first that has rows."""
        self._starts: list[int] = []
        self._columns: list[tuple[str, ...]] = []  # of the records of each file
        self._head = b""
        names: tuple[str, ...] = ()
        for part, path in enumerate(self.paths):
            with self._open(part) as (fill, raw):
                text = read_text(fill, _FIRST_BYTES if self._head else _HEAD_BYTES)
                used = raw.tell()
            if not text.strip():
                self._starts.append(len(text))
                self._columns.append(names)
                continue
            found, start, named = self._format.begin(text, path)
            if names and not named:
                if len(found) != len(names):
                    raise InvalidInputError(f"{path} has {len(found):,} columns and {self.paths[0]} {len(names):,}")
                found = names
            self._starts.append(start)
            self._columns.append(found)
            if not names:
                self._named, names, self._first, self._part_of_head = named, found, part, part
            if not self._head and text[start:].strip():
                whole = len(text) < _HEAD_BYTES
                self._head = text[start:] + b"\n" if whole else text[start : self._format.last_end(text, start)]
                self._part_of_head = part
                self._used = len(text) / max(1, used)
        if not self._head.strip():
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")

    def _find_columns(self, options: TableOptions) -> CsvParser:
        """Tell types of columns by the head."""
        pa = pyarrow(self.name)
        path = self.paths[self._part_of_head]
        known = [[*names, *without(list(options.keys_of(part)), names)] for part, names in enumerate(self._columns)]
        first = known[self._first]
        try:
            chosen = choose(first, options, self.paths[self._first])
            for part, names in enumerate(known[self._first :], self._first):
                check_file(names, first, options, self.paths[part], self.paths[self._first])
        except InvalidInputError as error:
            if self._named or options.columns is None:
                raise
            raise InvalidInputError(f"{error}; it has no header, and columns are numbered from '0'") from None
        self._check_delimiter(path)
        self._warn_of_names(path)
        text = padded(self._head)
        columns, keys = self._columns[self._part_of_head], options.keys_of(self._part_of_head)
        try:
            kinds = dict.fromkeys(options.categories if isinstance(options.categories, dict) else (), pa.string())
            stored = without(chosen, keys) or columns[:1]
            head = read_table(text[: len(self._head)], self._format, columns, kinds, stored)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise self._bad_head(text, str(error), chosen) from None
        self._rows_a_byte = head.num_rows / len(self._head)
        texts = [field.name for field in head.schema if pa.types.is_string(field.type)]
        head = with_nulls(head, dict.fromkeys(texts, self._format.number_nulls))  # what messages show is no number
        head = with_keys(head, chosen, keys)
        layout = lay_out(
            first,
            {name: head.schema.field(name).type for name in chosen},
            replace(options, dtype=options.dtype or np.dtype(np.float64)),
            path,
            head.select,
            named=self._named,
        )
        booleans = frozenset(name for name in chosen if pa.types.is_boolean(head.schema.field(name).type))
        dates = {column.name: head.schema.field(column.name).type for column in layout.columns if column.kind == "date"}
        return CsvParser(self._format, columns, layout, booleans, dates, keys)

    def _parser_of(self, part: int) -> CsvParser:
        return replace(self._parser, names=self._columns[part], keys=self._options.keys_of(part))

    def _check_delimiter(self, path: str) -> None:
        """Refuse a single column whose name and first value hold another delimiter alike."""
        first = self._head[: self._head.find(b"\n")].decode("utf-8", "replace")
        names = self._columns[self._first]
        for delimiter in _OTHER_DELIMITERS:
            count = names[0].count(delimiter)
            if len(names) == 1 and self._named and count and first.count(delimiter) == count:
                raise InvalidInputError(
                    f"{path} has one column {names[0]!r}, and seems to be separated by {delimiter!r}; pass "
                    f"delimiter={delimiter!r}"
                )

    def _warn_of_names(self, path: str) -> None:
        """Say so where a first record that is read as a row could name the columns: distinct numbers."""
        if self._named or self._format.header is not None:
            return
        first = self._head[: self._head.find(b"\n")].decode("utf-8", "replace").strip()
        cells = next(csv.reader([first], delimiter=self._format.delimiter), [])
        if all(cells) and len(set(cells)) == len(cells):
            shown = first if len(first) <= _SHOWN else first[: _SHOWN - 3] + "..."
            warnings.warn(
                f"{path}: its first record, {shown}, holds numbers only and is read as a row; pass header=True if it "
                f"names the columns, or header=False",
                StreamkmWarning,
                stacklevel=2,
            )

    def _bad_head(self, text: NDArray[np.uint8], problem: str, chosen: list[str]) -> InvalidInputError:
        """Say what is wrong with the head; no types are inferred, so whatever fields hold is fine."""
        columns = tuple(Column(name, "category", np.dtype(object)) for name in chosen)
        part = self._part_of_head
        schema = TableSchema(columns, (), np.dtype(float), 0, None)
        parser = CsvParser(self._format, self._columns[part], schema, frozenset())
        return self._named_place(part, parser.located(text, 0, len(self._head), self._starts[part], problem))

    def _named_place(self, part: int, problem: MalformedCsvError) -> InvalidInputError:
        return InvalidInputError(f"{self.describe(part << PLACE_BITS | problem.byte)}: {problem.text}")

    @contextmanager
    def _places_named(self, part: int) -> Iterator[None]:
        """Let errors of a parser name the file, line and byte."""
        try:
            yield
        except MalformedCsvError as problem:
            raise self._named_place(part, problem) from None

    def _parse(self, part: int, text: NDArray[np.uint8], start: int, end: int, base: int) -> Rows:
        with self._places_named(part):
            X, places = self._parser_of(part).parse(
                text, start, end, base, lambda byte: self.describe(part << PLACE_BITS | byte)
            )
        return Rows(X, places + (part << PLACE_BITS))

    def ids(self) -> Iterator[Any]:
        """Yield what names rows, as text; see `RowSource.ids`."""
        if self.id_column is None:
            yield from super().ids()
            return
        for part, text, start, end, base in self._pieces(_IDS_BYTES):
            with self._places_named(part):
                table, _ = self._parser_of(part).table(text, start, end, base, [self.id_column])
            yield table.column(self.id_column)

    def _find_categories(self) -> None:
        """RowReader all rows once, for the values of columns of text."""
        started = time.perf_counter()
        names = unknown_categories(self._parser.layout)
        found: dict[str, dict[str, None]] = {name: {} for name in names}
        for part, text, start, end, base in self._pieces(1 << 24):
            with self._places_named(part):
                table, _ = self._parser_of(part).table(text, start, end, base, names)
            if not gather_values(found, table):
                break
        layout = one_hot(self._parser.layout, {name: list(values) for name, values in found.items()})
        self._parser = replace(self._parser, layout=layout)
        self.stages_before = (Stage("categories", time.perf_counter() - started, self.n_bytes),)

    @abstractmethod
    def _pieces(self, text_bytes: int) -> Iterator[tuple[int, NDArray[np.uint8], int, int, int]]:
        """Yield all text in order: file, text, its first record, behind its last one, position of its byte 0."""

    @property
    def estimated_rows(self) -> int:
        """Rows, roughly: by the head of the first file."""
        return max(1, round(self.n_bytes * self._used * self._rows_a_byte))

    def _text_of(self, target_bytes: int) -> int:
        """Bytes of text that become rows of `target_bytes`, about; no more than twice as many."""
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        decoded = self._rows_a_byte * self._parser.layout.row_bytes
        return max(1, round(min(target_bytes / max(decoded, 1e-9), 2 * target_bytes)))

    def _decoded(self, text_bytes: int) -> int:
        """Bytes that a chunk of so much text is planned with."""
        return int(text_bytes * max(self._rows_a_byte * self._parser.layout.row_bytes, 0.5)) + 1

    def describe(self, place: int) -> str:
        """Say where a row is: ``x.csv, line 7 (byte 512)``. Lines are counted from 1, the header too."""
        part, offset = part_and_byte(place)
        return f"{self.paths[part]}, line {self._line_number(part, offset):,} (byte {offset:,})"

    def _line_number(self, part: int, offset: int) -> int:
        with self._open(part) as (fill, _):
            return line_number(fill, offset)

    def details(self) -> dict[str, str]:
        """Say what the text is; see `RowSource.details`."""
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        return {
            "format": f"CSV{files}",
            **columns_text(self._parser.layout),
            "compression": " and ".join(sorted({self._compression(path) for path in self.paths})),
        }

    @staticmethod
    def _compression(path: str) -> str:
        with open_binary(path) as raw:
            return compression_of(path, raw).replace("plain", "none")

    def stand_in(self) -> RowSource:
        """Give what calls on a cluster need; see `RowSource.stand_in`."""
        return SentRows(self, partial(describe_byte, self.paths)) if self.in_process else self


def read_text(fill: Fill, n_bytes: int) -> bytes:
    """As much text as there is, up to `n_bytes`."""
    view = memoryview(bytearray(n_bytes))
    done = 0
    while done < n_bytes and (n_read := fill(view[done:])):
        done += n_read
    return bytes(view[:done])
