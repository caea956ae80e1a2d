"""What plain and compressed CSV files of numbers share: headers, types of columns, parsing, words for errors.

Pieces of text come from the readers in `csv_tables`, rows go out.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.core.progress import Stage
from streamkm.sources.arrow import WORKING_BYTES, one_chunk, pyarrow
from streamkm.sources.base import Rows, RowSource, SentRows
from streamkm.sources.remote.objects import Address, remote_library
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.svmlight.compressed import compression, describe_line, opened_text
from streamkm.sources.tables.categories import encoded
from streamkm.sources.tables.columns import (
    TableOptions,
    check_file,
    choose,
    lay_out,
    one_hot,
    unknown_categories,
    with_keys,
    without,
)
from streamkm.sources.tables.csv_format import CsvFormat
from streamkm.sources.tables.csv_parser import (
    CsvParser,
    MalformedCsvError,
    days_of,
    kind_of,
    kind_of_cell,
    padded,
    read_table,
    with_nulls,
)
from streamkm.sources.tables.row_groups import columns_text, described_table, gather_values, take_layout
from streamkm.sources.text_positions import PLACE_BITS, Fill, describe_byte, text_size

_HEAD_BYTES = 1 << 20  # that types of columns are inferred from
_FIRST_BYTES = 1 << 16  # of every other file, for its header
_IDS_BYTES = 1 << 24  # of text, of which one column is read
_FIRST = "column 0"  # a first column without a name


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
        self._is_mixed = isinstance(options.categories, str)  # whether any column may be text
        self._parser = self._find_columns(options)
        layout, self.id_column = self._parser.layout, options.id_column
        take_layout(self, layout)
        self.has_long_integers = self._counts
        told = {key: value for key, value in asdict(csv_format).items() if key != "null_values" or value is not None}
        self.made_with = {**described_table(layout), "csv": told}

    def _begin_files(self) -> None:
        """Read every file's header, and the head of the first that has rows."""
        self._starts: list[int] = []
        self._columns: list[tuple[str, ...]] = []  # of the records of each file
        self._head = b""
        names: tuple[str, ...] = ()
        for part, path in enumerate(self.paths):
            with opened_text(path) as (fill, raw):
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
        self._name_first(path, options)
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
        line = self._head[: self._head.find(b"\n")].decode("utf-8", "replace")
        self._format.check_first_record(line, self._columns[self._first] if self._named else (), path)
        text = padded(self._head)
        columns, keys = self._columns[self._part_of_head], options.keys_of(self._part_of_head)
        try:
            named = options.categories if isinstance(options.categories, dict) else ()
            stored = without(chosen, keys) or columns[:1]
            head = read_table(text[: len(self._head)], self._format, columns, dict.fromkeys(named, pa.string()), stored)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            parser, start = CsvParser(self._format, columns, {}), self._starts[self._part_of_head]
            problem = parser.located(text, 0, len(self._head), start, str(error))
            raise self._named_place(self._part_of_head, problem) from None
        self._rows_a_byte = head.num_rows / len(self._head)
        texts = [field.name for field in head.schema if pa.types.is_string(field.type)]
        head = with_nulls(head, dict.fromkeys(texts, self._format.number_nulls))  # what messages show is no number
        head = with_keys(head, chosen, keys)
        types = {name: kind_of(head.schema.field(name).type) for name in chosen}
        self._counts = any(pa.types.is_integer(head.schema.field(name).type) for name in chosen)
        for name in texts if options.has_days else ():
            if name in types and name not in named:
                with suppress(pa.ArrowInvalid):  # no type of Arrow has room for all dates
                    days_of(one_chunk(head.column(name)), pa.date32())
                    types[name] = pa.date32()
        found = self._look_through(CsvParser(self._format, columns, types, keys=keys))
        typed = replace(options, dtype=options.dtype or np.dtype(np.float64))
        layout = lay_out(first, types, typed, path, head.select, named=self._named)
        layout = one_hot(layout, found) if unknown_categories(layout, options) else layout
        return CsvParser(self._format, columns, types, layout, keys)

    def _look_through(self, parser: CsvParser) -> dict[str, dict[str, None]]:
        """Complete the types of columns by all rows where the first ones do not tell, and find values of categories.

        Columns of nothing but nulls are numbers. Where all text is a category, a column of values of several types is
        text, and is read once more.
        """
        pa = pyarrow(self.name)
        held: dict[str, dict[str, None]] = {}
        started, types, is_text = time.perf_counter(), parser.types, pa.types.is_string
        one_hot_columns = [name for name in types if self._options.encoding_of(name) == "onehot"]
        self._parser, n_texts = parser, -1
        while self._unknown(types) and n_texts < (n_texts := sum(is_text(types[name]) for name in one_hot_columns)):
            found: dict[str, dict[str, None]] = {name: {} for name in one_hot_columns}
            for part, text, start, end, base in self._pieces(1 << 22):
                table = None
                while table is None and (names := self._unknown(types)):
                    try:
                        table, _ = self._parser_of(part).table(text, start, end, base, names)
                    except MalformedCsvError as problem:
                        self._widen(types, problem, part)
                held = {name: values for name, values in found.items() if is_text(types[name])}
                if table is None or not gather_values(held, table):
                    break
                self.stages_before = (Stage("categories", time.perf_counter() - started, self.n_bytes),)
        types |= {name: pa.float64() for name, kind in types.items() if pa.types.is_null(kind)}
        return held

    def _unknown(self, types: dict[str, Any]) -> list[str]:
        """Columns whose types may be others, or whose values must be found."""
        pa = pyarrow(self.name)
        how = self._options.encoding_of
        return [
            name
            for name, kind in types.items()
            if pa.types.is_null(kind) or (how(name) == "onehot" if pa.types.is_string(kind) else self._is_mixed)
        ]

    def _widen(self, types: dict[str, Any], problem: MalformedCsvError, part: int) -> None:
        """Give a column a type that the field has which is not of its type. Raises InvalidInputError: there is none."""
        pa = pyarrow(self.name)
        kind = types.get(problem.column)
        types[problem.column] = new = kind_of_cell(problem.cell) if kind == pa.null() else pa.string()
        if kind is None or (new == pa.string() and not self._is_mixed):
            raise self._named_place(part, problem) from None

    def _parser_of(self, part: int) -> CsvParser:
        return replace(self._parser, names=self._columns[part], keys=self._options.keys_of(part))

    def _name_first(self, path: str, options: TableOptions) -> None:
        """Name a first column without a name by its place, unless its values tell rows apart, as an index does."""
        names = self._columns[self._part_of_head]
        if names[:1] != ("",) or "" in (options.columns or ()):
            return
        is_known = _FIRST in (*(options.columns or ()), *options.exclude, options.id_column)
        pa, text = pyarrow(self.name), np.frombuffer(self._head, np.uint8)
        try:
            first = one_chunk(read_table(text, self._format, [str(i) for i in range(len(names))], {}, "0")[0])
        except pa.ArrowException:
            return  # the head is read again, and the record named
        is_index = not pa.types.is_floating(first.type) and len(encoded(first)[1]) in (0, len(first))
        if is_known or not is_index:
            self._columns = [(_FIRST, *names[1:]) if names[:1] == ("",) else names for names in self._columns]
        if not (is_known or is_index):
            warnings.warn(
                f"{path}: its first column has no name, and its values are no index; it is the feature {_FIRST!r}. "
                f'Leave it out with exclude="{_FIRST}"',
                StreamkmWarning,
                stacklevel=2,
            )

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
        first = part << PLACE_BITS
        with self._places_named(part):
            X, places = self._parser_of(part).parse(text, start, end, base, lambda byte: self.describe(first | byte))
        return Rows(X, places + first)

    def ids(self) -> Iterator[Any]:
        """Yield what names rows, as text; see `RowSource.ids`."""
        if self.id_column is None:
            yield from super().ids()
            return
        for part, text, start, end, base in self._pieces(_IDS_BYTES):
            with self._places_named(part):
                table, _ = self._parser_of(part).table(text, start, end, base, [self.id_column])
            yield table.column(self.id_column)

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
        return describe_line(self.paths, place)

    def details(self) -> dict[str, str]:
        """Say what the text is; see `RowSource.details`."""
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        return {
            "format": f"CSV{files}",
            **columns_text(self._parser.layout),
            "compression": " and ".join(sorted({compression(path).replace("plain", "none") for path in self.paths})),
        }

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
