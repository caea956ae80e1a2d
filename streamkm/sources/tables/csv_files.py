"""CSV files: plain ones in chunks, which own the records that start in them; compressed or multi-line ones in order."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, StreamkmWarning
from streamkm.core.progress import Stage
from streamkm.kernels.text.csv_numbers import parse_numbers
from streamkm.kernels.text.machine_words import WINDOW
from streamkm.sources.arrow import WORKING_BYTES, pyarrow
from streamkm.sources.chunks import Access, Chunk, ChunkRuns, Origin
from streamkm.sources.compressed_text import PLAIN, compression, describe_line, opened_text, read_text
from streamkm.sources.fitted_tables import CSV_KEYS, TableOptions, read_options
from streamkm.sources.remote import remote_library
from streamkm.sources.row_source import Rows, RowSource
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.tables.columns import (
    TableSchema,
    check_file,
    choose,
    lay_out,
    one_hot,
    unknown_categories,
    with_keys,
    without,
)
from streamkm.sources.tables.csv_format import (
    OPEN_QUOTES,
    CsvFormat,
    MalformedCsvError,
    Text,
    check_format,
    is_number,
    joined_kind,
    kind_of,
    with_nulls,
)
from streamkm.sources.tables.row_groups import columns_text, gather_values, take_layout
from streamkm.sources.text_lines import MAX_LINE_BYTES, PLACE_BITS, LongLineError, text_size, whole_lines

_HEAD_BYTES = 1 << 20  # that a header is read from, and types of columns are inferred from
_IDS_BYTES = 1 << 24  # of text, of which one column is read
_MOST_BYTES = 1 << 26  # of unpacked text at a time
_PIECE_BYTES = 1 << 18  # of text that is unpacked at once
_LINE_FEED = 10


class CsvFiles(RowSource):
    """Common part of plain and compressed CSV files: headers, columns, errors."""

    # the text, numbers that pyarrow makes of it, rows
    access = Access(decodes=True, read_factor=5.0, producer_bytes=WORKING_BYTES)
    _layout, _rows_a_byte = TableSchema((), np.dtype(np.float64), 0), 0.0  # until they are known

    def __init__(self, paths: Sequence[str], options: TableOptions, csv_format: CsvFormat) -> None:
        pyarrow(f"CSV ({paths[0]})")
        self.paths = tuple(opened_path(path) for path in paths)
        self.origin = Origin(self.paths, id_column=options.id_column)
        self.name = name_of(self.paths)
        self.access = replace(self.access, libraries=("pyarrow", *remote_library(*self.paths)))
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes: int = sum(self.sizes)
        self._format, self._options = csv_format, options
        self._begin_files()
        self._layout = layout = self._lay_out()
        take_layout(self, layout)
        self.origin = replace(self.origin.also_made_with(csv=asdict(csv_format)), has_long_integers=self._counts)

    def _begin_files(self) -> None:
        """Read every file's header."""
        self._starts: list[int] = []
        self._columns: list[tuple[str, ...]] = []  # of the records of each file
        names: tuple[str, ...] = ()
        for path in self.paths:
            with opened_text(path) as (fill, raw):
                text = read_text(fill, _HEAD_BYTES)
                used = raw.tell()
            found, start, named = self._format.begin(text, path) if text.strip() else (names, len(text), True)
            if not names:
                self._named, names, self._used = named, found, len(text) / max(1, used)
            self._starts.append(start)
            self._columns.append(found if named else names)

    def _lay_out(self) -> TableSchema:
        """Determine columns and their types from the first rows, and from all rows if necessary."""
        pa = pyarrow(self.name)
        has_rows = (piece for piece in self._pieces(_HEAD_BYTES) if len(self._format.records(piece[1][:-WINDOW])[0]))
        part, text, base = next(has_rows, (0, np.empty(0, np.uint8), 0))
        if not len(text):
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")
        options, path, head = self._options, self.paths[part], text[:-WINDOW]
        known = [[*names, *without(options.keys.get(number, {}), names)] for number, names in enumerate(self._columns)]
        first = known[part]
        chosen = choose(first, options, path)
        for number, names in enumerate(known):
            if self._columns[number]:
                check_file(names, first, options, self.paths[number], path)
        texts = dict.fromkeys(options.categories if isinstance(options.categories, dict) else (), pa.string())
        unnamed = [name for name in first[:1] if not name and name not in (*chosen, *options.exclude)]
        table, _ = self._table(part, head, base, [*chosen, *unnamed], texts)
        for column in map(table.column, unnamed):
            if pa.types.is_floating(column.type) or len(column.unique()) < len(column):
                taken = 'columns= with "" among the names takes it, exclude="" leaves it out without this warning'
                warnings.warn(f"{path}: its first column has no name and is left out; {taken}", StreamkmWarning, 2)
        self._rows_a_byte = table.num_rows / len(head)
        self._counts = any(pa.types.is_integer(table.column(name).type) for name in chosen)
        kinds = {name: kind_of(table.column(name), days=options.dates) for name in chosen if name not in texts}
        self._types = {name: kinds.get(name, pa.string()) for name in chosen}
        found = self._look_through()
        typed = replace(options, dtype=options.dtype or np.dtype(np.float64))
        shown = dict.fromkeys(chosen, self._format.number_nulls)  # what messages show is no number
        layout = lay_out(
            first, self._types, typed, path, lambda names: with_nulls(table.select(names), shown), named=self._named
        )
        return one_hot(layout, found) if unknown_categories(layout, options) else layout

    def _look_through(self) -> dict[str, dict[str, None]]:
        """Complete types of columns by all rows, and find values of categories; columns of only nulls are numbers.

        If all text is a category, a column with values of several types is text, and is read once more.
        """
        pa = pyarrow(self.name)
        options, types, text_type = self._options, self._types, pa.string()
        is_mixed = isinstance(options.categories, str)  # whether any column may be text
        started, texts = time.perf_counter(), None
        found: dict[str, dict[str, None]] = {}
        while texts != (
            texts := [name for name in types if types[name] == text_type and options.encoding_of(name) == "onehot"]
        ):
            found = {name: {} for name in texts}
            known = dict.fromkeys(texts, text_type)
            others = [name for name, kind in types.items() if kind == pa.null() or (is_mixed and kind != text_type)]
            for part, text, base in self._pieces(1 << 22) if texts or others else ():
                table, _ = self._table(part, text[:-WINDOW], base, [*texts, *others], known)
                for name in others:
                    kind = kind_of(table.column(name), days=options.dates)
                    types[name] = joined_kind(types[name], kind, is_mixed=is_mixed)
                if not gather_values(found, table):
                    break
                stage = Stage("categories", time.perf_counter() - started, self.n_bytes)
                self.origin = replace(self.origin, stages_before=(stage,))
        types |= {name: pa.float64() for name, kind in types.items() if pa.types.is_null(kind)}
        return found

    def _table(
        self, part: int, text: Text, base: int, names: Sequence[str], types: Mapping[str, Any]
    ) -> tuple[Any, NDArray[np.int64]]:
        """Columns of a text as a pyarrow.Table, and the place of each row; types that are not given are inferred."""
        keys, columns = self._options.keys.get(part, {}), self._columns[part]
        try:
            table, starts = self._format.table(text, columns, types, without(names, keys) or columns[:1])
        except MalformedCsvError as error:
            problem, byte = error.args
            raise self._located(part, base + byte, problem) from None
        # what names rows is never null but empty
        nulls = ("", *(self._format.null_values or ()))
        words = {name: ("",) if name == self.origin.id_column else nulls for name in table.schema.names}
        return with_keys(with_nulls(table, words), names, keys), starts + (part << PLACE_BITS | base)

    def _parse(self, part: int, text: Text, base: int) -> Rows:
        """Rows of a text of whole records with `WINDOW` bytes behind it."""
        layout, end, first = self._layout, len(text) - WINDOW, part << PLACE_BITS
        # other words for nothing are no numbers to the kernel, which stops there
        is_known = all(not is_number(word) or word.lower() == "nan" for word in self._format.number_nulls)
        if is_known and all(str(kind) == "double" for kind in self._types.values()):
            n_lines = np.count_nonzero(text[:end] == _LINE_FEED)
            out, row_ids = np.empty((n_lines, layout.n_features)), np.empty(n_lines, np.int64)
            features = {name: feature for feature, name in enumerate(layout.names)}
            columns = np.array([features.get(name, -1) for name in self._columns[part]])
            n_rows, at = parse_numbers(text, (end, base), ord(self._format.delimiter), columns, out, row_ids)
            if at == end:
                return Rows(np.ascontiguousarray(out[:n_rows], layout.dtype), row_ids[:n_rows] + first)
        table, row_ids = self._table(part, text[:end], base, layout.names, self._types)
        return Rows(layout.matrix([table], len(row_ids), lambda row: self.describe(int(row_ids[row]))), row_ids)

    def _located(self, part: int, byte: int, problem: str) -> InvalidInputError:
        return InvalidInputError(f"{self.describe(part << PLACE_BITS | byte)}: {problem}")

    def _too_long(self, part: int, byte: int) -> InvalidInputError:
        problem = f"a record is longer than {MAX_LINE_BYTES:,} bytes, the most that is accepted; {OPEN_QUOTES}"
        return self._located(part, byte, problem)

    def _ids(self, column: str) -> Iterator[Any]:
        types = {column: pyarrow(self.name).string()}
        for part, text, base in self._pieces(_IDS_BYTES):
            yield self._table(part, text[:-WINDOW], base, [column], types)[0].column(column)

    def _pieces(self, text_bytes: int) -> Iterator[tuple[int, Text, int]]:
        """Yield all text in order: the file, whole records with `WINDOW` bytes behind them, place of the first."""
        for part in range(len(self.paths)):
            with opened_text(self.paths[part]) as (fill, _):
                read_text(fill, self._starts[part])
                held, base, more = b"", self._starts[part], b"\n"
                while more:
                    # what is held is looked through again: so much more that this is seldom
                    more = read_text(fill, max(text_bytes - len(held), len(held), _PIECE_BYTES if held else 1))
                    text = held + more + b"\n" * (not more and held != b"")
                    end = self._format.records(np.frombuffer(text, np.uint8))[1] if more else len(text)
                    if end:
                        yield part, np.frombuffer(text[:end] + bytes(WINDOW), np.uint8), base
                    elif len(text) > MAX_LINE_BYTES:
                        raise self._too_long(part, base)
                    held, base = text[end:], base + end

    @property
    def estimated_rows(self) -> int:
        return max(1, round(self.n_bytes * self._used * self._rows_a_byte))

    def _text_of(self, target_bytes: int) -> int:
        """Approximate bytes of text for rows of `target_bytes`, at most twice as many."""
        decoded = self._rows_a_byte * self._layout.row_bytes
        return max(1, round(min(target_bytes / max(decoded, 1e-9), 2 * target_bytes)))

    def describe(self, place: int) -> str:
        return describe_line(self.paths, place)

    def details(self) -> dict[str, str]:
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        return {
            "format": f"CSV{files}",
            **columns_text(self._layout),
            "compression": " and ".join(sorted({compression(path).replace("plain", "none") for path in self.paths})),
        }


class CsvTable(CsvFiles):
    """Rows of plain CSV files without line feeds in fields; see `CsvFiles`."""

    def chunks(self, target_bytes: int) -> ChunkRuns:
        return ChunkRuns.of(self._cuts(self._text_of(target_bytes)))

    def _cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        decoded = max(self._rows_a_byte * self._layout.row_bytes, 0.5)
        for part, (begin, size) in enumerate(zip(self._starts, self.sizes, strict=True)):
            n_chunks = -(-(size - begin) // text_bytes)
            cuts = [begin + (size - begin) * i // n_chunks for i in range(n_chunks + 1)] if n_chunks > 0 else []
            for start, stop in pairwise(cuts):
                yield part, start, stop, int((stop - start) * decoded) + 1

    def read(self, chunk: Chunk) -> Rows:
        return self._parse(chunk.part, *self._lines(chunk.part, chunk.start, chunk.stop))

    def _pieces(self, text_bytes: int) -> Iterator[tuple[int, Text, int]]:
        for part, start, stop, _ in self._cuts(text_bytes):
            yield part, *self._lines(part, start, stop)

    def _lines(self, part: int, start: int, stop: int) -> tuple[Text, int]:
        """Text of the lines that start in a byte range of a file, and the place of the first."""
        # one byte back, for the line feed that tells whether the first byte starts a line
        base = max(start - 1, self._starts[part])
        try:
            with opened_text(self.paths[part], base, stop, PLAIN) as (fill, _):
                text = whole_lines(fill, stop - base, MAX_LINE_BYTES, is_inside=start > base)
        except LongLineError as line:
            raise self._too_long(part, base + line.args[0]) from None
        begin = text.find(b"\n") + 1 if start > base else 0
        return np.frombuffer(text, np.uint8)[begin:], base + begin


class CsvStream(CsvFiles):
    """Rows of CSV files in order; see `CsvFiles`. Places count bytes after decompression."""

    access = replace(CsvFiles.access, streams=True)

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        for part, text, base in self._pieces(min(self._text_of(target_bytes), _MOST_BYTES)):
            rows = self._parse(part, text, base)
            if len(rows.row_ids):
                yield rows


def open_csv(paths: Sequence[str], **options: Any) -> RowSource:
    """Open CSV files, plain or compressed; see `open_source` for options, `CsvFiles` for errors."""
    form = check_format(paths[0], **{name: options.pop(name) for name in CSV_KEYS if name in options})
    is_cut = not form.newlines_in_values and {compression(path) for path in paths} == {"plain"}
    return (CsvTable if is_cut else CsvStream)(paths, read_options(options), form)
