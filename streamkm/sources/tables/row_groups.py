"""Tables of record batches, and of files with units of known length: row groups, batches of Arrow files.

Cuts files of any sizes into chunks of similar sizes, and fills chunks from pieces that the format's module reads.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.core.progress import Stage
from streamkm.sources.arrow import MOST_VALUES, WORKING_BYTES, encoded, one_chunk, pyarrow
from streamkm.sources.chunks import Chunk, ChunkRuns, Origin
from streamkm.sources.dense import check_count
from streamkm.sources.fitted_tables import TableOptions, described_table, read_options
from streamkm.sources.frames import index_of
from streamkm.sources.remote import remote_library
from streamkm.sources.row_source import Rows, RowSource, row_ids_between
from streamkm.sources.stored import file_size, name_of, opened_path
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

LARGE_UNIT_BYTES = 16 << 20  # decoded; from here on a unit may be cut
_OTHERS_S = 0.02  # that another thread may take until it comes for the rows in front of those that are wanted
HEAD_ROWS = 1024  # that are looked at before rows are read


class BatchTable(RowSource):
    """Rows of Arrow's record batches."""

    form: str  # what the table is, for people
    _stored: Mapping[str, str] = MappingProxyType({})  # details of its units
    _layout = TableSchema((), np.dtype(np.float64), 0)  # until it is known

    @abstractmethod
    def _columns(self, names: list[str]) -> Iterator[Any]:
        """Give the named columns of all rows, in order, as record batches or tables."""

    def _take_schema(self, schema: Any, options: TableOptions, first: Callable[[list[str]], Iterator[Any]]) -> None:
        """Lay out the columns of an Arrow schema; `first` gives the first batch, with at least some columns."""
        options = replace(options, index=index_of(schema.names, schema))
        fields = {column: schema.field(column).type for column in choose(schema.names, options, self.name)}
        layout = lay_out(schema.names, fields, options, self.name, lambda names: head_of(first(names), names))
        self._take(layout, options)

    def _take(self, layout: TableSchema, options: TableOptions) -> None:
        """Set the layout, after a pass for the values of text columns if it needs one."""
        if self.n_rows == 0:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")
        self._layout, self.origin = layout, replace(self.origin, id_column=options.id_column)
        if names := unknown_categories(layout, options):
            started, n_rows = time.perf_counter(), 0
            found: dict[str, dict[str, None]] = {name: {} for name in names}
            for batch in self._columns(names):
                n_rows += batch.num_rows
                if not gather_values(found, batch):
                    break
            self._layout = one_hot(layout, found)
            stage = Stage("categories", time.perf_counter() - started, self.n_bytes or 0, n_rows)
            self.origin = replace(self.origin, stages_before=(stage,))
        take_layout(self, self._layout)

    def _filled(self, batches: Iterable[Any], start: int, stop: int) -> Rows:
        """Rows start..stop-1, from batches that hold only these."""
        X = self._layout.matrix(batches, stop - start, lambda row: self.describe(start + row))
        return Rows(X, row_ids_between(start, stop))

    def _ids(self, column: str) -> Iterator[Any]:
        for batch in self._columns([column]):
            yield pyarrow(self.name).chunked_array([one_chunk(batch.column(column))])

    def details(self) -> dict[str, str]:
        return {"format": self.form, **self._stored, **columns_text(self._layout)}


class PiecesInTurn:
    """Pieces of large units, each read from the end of the one before. Thread-safe; pickles empty."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._unit, self._batches = range(0), iter(())
        self._at = -1  # row in front of which the batches stand; none after an error
        self._left: Any = None  # of a batch

    def __reduce__(self) -> tuple[Any, ...]:
        return PiecesInTurn, ()

    def take(self, piece: range, unit: range, batches: Iterator[Any]) -> list[Any]:
        """Take rows of a unit, after other threads took those before; `batches` gives all of the unit."""
        taken: list[Any] = []
        with self._turn:
            seen = -1
            while seen < self._at < piece.start:
                seen = self._at
                self._turn.wait(_OTHERS_S)
            at, self._at = self._at, -1
            if self._unit != unit or not unit.start <= at <= piece.start:
                at, self._unit, self._batches, self._left = unit.start, unit, batches, None
            while at < piece.stop:
                batch = next(self._batches) if self._left is None else self._left
                held = min(batch.num_rows, piece.stop - at)
                skipped = min(held, max(0, piece.start - at))
                taken.append(batch.slice(skipped, held - skipped))
                self._left = batch.slice(held) if held < batch.num_rows else None
                at += held
            if at == unit.stop:
                self._unit, self._batches = range(0), iter(())
            self._at = at
            self._turn.notify_all()
        return taken


class RowGroupTable(BatchTable):
    """Rows of files with units of known length, in the order of `paths`; row ids number the rows of all files.

    Raises SourceError, SourceNotFoundError, MissingDependencyError: a file is missing, damaged or of another format; no
    pyarrow. Raises InvalidInputError: no rows; columns that cannot be features, or differ between files.
    """

    unit_names: str
    page_bytes: int  # held of a column while a piece of a unit is decoded; 0: units are read whole

    def __init__(self, paths: Sequence[str], **given: Any) -> None:
        options, self._pieces = read_options(given), PiecesInTurn()
        self.paths = tuple(opened_path(path) for path in paths)
        self.origin = Origin(self.paths)
        self.name = name_of(self.paths)
        schemas, self._names, units = zip(*map(self._look, self.paths), strict=True)
        rows = np.array([n_rows for of_file in units for n_rows in of_file], np.int64)
        self._differ = any(not schema.equals(schemas[0]) for schema in schemas)
        self._parts = np.repeat(np.arange(len(units)), [len(of_file) for of_file in units])
        self._begins = np.concatenate([[0], np.cumsum(rows)])
        self._firsts = self._begins[np.searchsorted(self._parts, np.arange(len(units)))]  # rows in front of each file
        self.n_rows: int = int(self._begins[-1])
        index = {name for schema in schemas for name in index_of(schema.names, schema)}
        self._options = options = replace(options, index=tuple(index))
        layout = self._lay_out(schemas)
        share = min(1.0, len(layout.columns) / max(1, *map(len, schemas)))  # as if all columns were alike
        self.n_bytes = -int(-sum(map(file_size, self.paths)) * share // 1)
        self._take(layout, options)
        largest = int(rows.max()) * self._layout.row_bytes
        shared_bytes = largest if self.page_bytes and largest >= LARGE_UNIT_BYTES else 0
        self.access = replace(
            self.access,
            sequential=shared_bytes > 0,
            shared_bytes=shared_bytes,
            # of a unit that ends and the one that begins
            producer_bytes=WORKING_BYTES + 2 * min(self.page_bytes * len(layout.columns), 2 * largest),
            libraries=("pyarrow", *remote_library(*self.paths)),
        )
        self.form += f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        self._stored = {"chunks": f"{len(rows):,} {self.unit_names}"}

    @abstractmethod
    def _look(self, path: str) -> tuple[Any, list[str], list[int]]:
        """The schema of a file, its column names (in damaged files perhaps no UTF-8), and the rows of each unit."""

    @abstractmethod
    def _batches(self, part: int, units: list[int], names: list[str]) -> Iterator[Any]:
        """Yield the rows of units of a file, in order, as record batches of the named columns."""

    def _rows(self, start: int, stop: int, names: list[str]) -> Iterator[Any]:
        """Yield rows start..stop-1, with the keys of folders."""
        while start < stop:
            unit = int(np.searchsorted(self._begins, start, side="right")) - 1
            part = int(self._parts[unit])
            first, behind = np.searchsorted(self._parts, [part, part + 1]).tolist()
            behind = min(behind, int(np.searchsorted(self._begins, stop)))
            begin, end = self._begins[[unit, behind]].tolist()
            keys = self._options.keys.get(part, {})
            stored = without(names, keys) or without(self._names[part], keys)[:1]
            batches = self._batches(part, list(range(unit - first, behind - first)), stored)
            for batch in sliced(batches, start - begin, min(stop, end) - start, self.paths[part]):
                yield with_keys(batch, names, keys)
            start = end

    def _columns(self, names: list[str]) -> Iterator[Any]:
        return self._rows(0, self.n_rows, names)

    def _lay_out(self, schemas: Sequence[Any]) -> TableSchema:
        made: dict[tuple[str, ...], TableSchema] = {}
        known = [[*names, *without(self._options.keys.get(i, {}), names)] for i, names in enumerate(self._names)]
        chosen = choose(known[0], self._options, self.paths[0])
        for part, (path, schema) in enumerate(zip(self.paths, schemas, strict=True)):
            check_file(known[part], known[0], self._options, path, self.paths[0])
            stored = dict.fromkeys(self._options.keys.get(part, ()), pyarrow(path).string())
            stored |= dict(zip(schema.names, schema.types, strict=True))
            fields = {name: stored[name] for name in chosen}
            key = tuple(map(str, fields.values()))
            if key not in made:
                made[key] = lay_out(known[part], fields, self._options, path, partial(self._head, part))
        layouts = [*made.values()]
        for alike in zip(*(layout.columns for layout in layouts), strict=True):
            if len(found := {f"{column.kind} of {column.width:,}" for column in alike}) > 1:
                raise InvalidInputError(
                    f"{self.name}: column {alike[0].name!r} is {' and '.join(sorted(found))} in several files; files "
                    f"must have the same columns"
                )
        return replace(layouts[0], dtype=np.result_type(*(layout.dtype for layout in layouts)))

    def _head(self, part: int, names: list[str]) -> Any:
        """The first rows at or after the beginning of a file, all from one file."""
        start = int(self._firsts[part])
        return head_of(self._rows(start, min(self.n_rows, start + HEAD_ROWS), names), names)

    def chunks(self, target_bytes: int) -> ChunkRuns:
        """Join small units, across files, and cut large ones if possible. O(chunks)."""
        row_bytes = self._layout.row_bytes
        most = max(1, target_bytes // row_bytes)
        check_count(-(-self.n_rows // most), self.n_rows, target_bytes)
        cuts = [0]
        for before, end in pairwise(self._begins.tolist()):
            if end - cuts[-1] > most and before > cuts[-1]:
                cuts.append(before)
            n_pieces = -(-(end - before) // most) if self.page_bytes and cuts[-1] == before else 1
            cuts += [before + (end - before) * piece // n_pieces for piece in range(1, n_pieces + 1) if n_pieces > 1]
        cuts = sorted({*cuts, self.n_rows})
        return ChunkRuns.of((0, start, stop, (stop - start) * row_bytes) for start, stop in pairwise(cuts))

    def read(self, chunk: Chunk) -> Rows:
        start, stop, names = chunk.start, chunk.stop, self._layout.names
        number = int(np.searchsorted(self._begins, start, side="right"))
        unit = range(*self._begins[number - 1 : number + 1].tolist())
        batches: Iterable[Any] = self._rows(start, stop, names)
        if len(unit) > stop - start:
            batches = self._pieces.take(range(start, stop), unit, self._rows(unit.start, unit.stop, names))
        rows = self._filled(batches, start, stop)
        pyarrow(self.name).default_memory_pool().release_unused()  # each thread's own would stay otherwise
        return rows

    def describe(self, place: int) -> str:
        part = int(np.searchsorted(self._firsts, place, side="right")) - 1
        return f"row {place - int(self._firsts[part]):,} of {self.paths[part]}"


def sliced(batches: Iterable[Any], skip: int, n_rows: int, path: str) -> Iterator[Any]:
    """Some rows of consecutive batches. Raises SourceError: there are fewer."""
    for batch in batches:
        first, stop = min(skip, batch.num_rows), min(skip + n_rows, batch.num_rows)
        skip, n_rows = skip - first, n_rows - (stop - first)
        if stop > first:
            yield batch.slice(first, stop - first)
        if not n_rows:
            return
    raise SourceError(f"{path} lacks {n_rows:,} of its rows; truncated or damaged")


def head_of(batches: Iterator[Any], names: list[str]) -> Any:
    """The first rows of the first batch, in the named columns; no rows without a batch."""
    import pyarrow as pa

    batch = next(batches, None)
    return pa.table({name: pa.nulls(0) for name in names}) if batch is None else batch.select(names).slice(0, HEAD_ROWS)


def gather_values(found: dict[str, dict[str, None]], batch: Any) -> bool:
    """Add the values of a batch's text columns to those found; give whether there is room for more."""
    for name, values in found.items():
        values.update(dict.fromkeys(encoded(one_chunk(batch.column(name)))[1]))
    return all(len(values) <= MOST_VALUES for values in found.values())


def take_layout(source: RowSource, layout: TableSchema) -> None:
    """Set a source's attributes by its layout."""
    source.n_features, source.dtype, source.is_sparse = layout.n_features, layout.dtype, layout.n_hashed > 0
    source.feature_names = layout.feature_names
    has_long = any(column.dtype in (np.int64, np.uint64) for column in layout.columns)
    source.origin = replace(source.origin, has_long_integers=has_long, made_with=described_table(layout))


def columns_text(layout: TableSchema) -> dict[str, str]:
    """The number of columns of each kind that become features, for people."""
    kinds = [("number", "numbers"), ("date", "dates"), ("vector", "vectors"), ("category", "categories")]
    counts = [(sum(column.kind == kind for column in layout.columns), word) for kind, word in kinds]
    text = {"columns": ", ".join(f"{count:,} of {word}" for count, word in counts if count)}
    return text | ({"left out": layout.left_out} if layout.left_out else {})
