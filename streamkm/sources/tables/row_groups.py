"""Tables whose files say where their rows are: row groups of Parquet, record batches of Arrow files.

Responsible for cutting many files of any sizes into chunks of like sizes, and for filling a chunk from the pieces of
storage that it is made of. How a piece is read, the module of its format knows.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.progress import Stage
from streamkm.sources.base import ChunkedSource, Rows, RowSource, SentRows, row_places
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.dense import check_count
from streamkm.sources.memory.frames import index_of
from streamkm.sources.remote.objects import Address, remote_library
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.tables.arrow import WORKING_BYTES, trim_heap
from streamkm.sources.tables.categories import MOST_VALUES, encoded
from streamkm.sources.tables.columns import (
    TableOptions,
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


@dataclass(frozen=True, slots=True)
class TableFile:
    """What a file says of its rows."""

    names: list[str]  # of all columns, in their order; one may be there twice
    fields: Mapping[str, Any]  # types of the columns
    rows: list[int]  # of each unit of storage
    index: tuple[str, ...] = ()  # columns that are one

    @classmethod
    def of(cls, schema: Any, rows: list[int], keys: Iterable[str]) -> TableFile:
        """What a pyarrow.Schema and the units' rows say; keys of folders are columns of text."""
        import pyarrow as pa

        names = list(schema.names)
        fields = dict.fromkeys(keys, pa.string()) | {field.name: field.type for field in schema}
        return cls([*names, *without(list(keys), names)], fields, rows, index_of(names, schema))


class Run(NamedTuple):
    """Units of one file that follow each other, and which of their rows are wanted."""

    part: int
    units: list[int]
    skip: int
    n_rows: int


class RowGroupTable(ChunkedSource):
    """Rows of files that are stored in units of known length; places are numbers of rows, through all files.

    `paths`: in the order in which their rows count. Raises SourceError, SourceNotFoundError, MissingDependencyError: a
    file that is missing, damaged or of another format; no pyarrow. Raises InvalidInputError: no rows; columns that are
    no features, or not the same in all files.
    """

    form: str
    unit_name: str
    splits: bool
    """Whether a unit can be read from its middle on."""

    def __init__(self, paths: Sequence[str], options: TableOptions) -> None:
        self.files = self.paths = tuple(opened_path(path) for path in paths)
        self.name = name_of(self.paths)
        self.in_process = any(isinstance(path, Address) and path.in_process for path in self.paths)
        self.libraries = ("pyarrow", *remote_library(*self.paths))
        self._options, self.id_column = options, options.id_column
        found = [self._look(part) for part in range(len(self.paths))]
        self._options = replace(options, index=tuple({name for file in found for name in file.index}))
        self._stored = [without(file.names, options.keys_of(part)) for part, file in enumerate(found)]
        parts = [part for part, file in enumerate(found) for _ in file.rows]
        self._parts = np.array(parts, np.int64)
        self._numbers = np.array([number for file in found for number in range(len(file.rows))], np.int64)
        self._ends = np.cumsum([rows for file in found for rows in file.rows], dtype=np.int64)
        self.n_rows: int = int(self._ends[-1]) if len(self._ends) else 0
        if self.n_rows == 0:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")
        self._row_names: list[str] = []  # what rows are made of; heads are read before it is known
        self._layout = self._lay_out(found)
        self.n_bytes = self._stored_bytes()
        if names := unknown_categories(self._layout, options):
            self._find_categories(names)
        layout = self._layout
        self._row_names = without(layout.names, options.keys_of(0))
        take_layout(self, layout)
        largest = int(np.diff(self._ends, prepend=0).max()) * layout.row_bytes
        self.shared_bytes = largest if self.splits and largest >= LARGE_UNIT_BYTES else 0
        self.sequential = self.shared_bytes > 0
        self.producer_bytes = WORKING_BYTES + self._decoder_bytes(largest)

    @abstractmethod
    def _look(self, part: int) -> TableFile:
        """Read what a file says of itself."""

    @abstractmethod
    def _stored_bytes(self) -> int:
        """Bytes of the chosen columns in all files."""

    @abstractmethod
    def _decoder_bytes(self, largest_unit: int) -> int:
        """What is held to decode units, beside what goes with chunks."""

    @abstractmethod
    def _batches(self, run: Run, names: list[str]) -> Iterator[Any]:
        """Yield the rows of a run, in order, as record batches or tables of the named columns."""

    _layout: TableSchema

    def _rows(self, run: Run, names: list[str]) -> Iterator[Any]:
        """As `_batches`, with the keys of folders."""
        keys = self._options.keys_of(run.part)
        stored = without(names, keys) or self._stored[run.part][:1]
        return (with_keys(batch, names, keys) for batch in self._batches(run, stored))

    def _lay_out(self, found: list[TableFile]) -> TableSchema:
        first = found[0].names
        chosen = choose(first, self._options, self.paths[0])
        layouts: dict[tuple[str, ...], TableSchema] = {}
        part_of_rows = int(self._parts[int(np.searchsorted(self._ends, 0, side="right"))])
        for part, file in enumerate(found):
            check_file(file.names, first, self._options, self.paths[part], self.paths[0])
            wanted = {name: file.fields[name] for name in chosen}
            key = tuple(map(str, wanted.values()))
            if key not in layouts:
                at = part if layouts else part_of_rows
                layouts[key] = lay_out(file.names, wanted, self._options, self.paths[part], partial(self._head, at))
        made = next(iter(layouts.values()))
        for other in layouts.values():
            for column, wanted_column in zip(other.columns, made.columns, strict=True):
                if (column.kind, column.width) != (wanted_column.kind, wanted_column.width):
                    raise InvalidInputError(
                        f"{self.name}: column {column.name!r} is {column.kind} of {column.width:,} in one file and "
                        f"{wanted_column.kind} of {wanted_column.width:,} in another; files must have the same columns"
                    )
        dtype = np.result_type(*(each.dtype for each in layouts.values()))
        return replace(made, dtype=dtype)

    def _head(self, part: int, names: list[str]) -> Any:
        """The first rows of a file, as a table; none of one that has none."""
        import pyarrow as pa

        units = np.flatnonzero((self._parts == part) & (np.diff(self._ends, prepend=0) > 0))
        if not len(units):
            return pa.table({name: pa.array([], pa.null()) for name in names})
        unit = int(units[0])
        n_rows = min(1024, int(np.diff(self._ends, prepend=0)[unit]))
        batch = next(iter(self._rows(Run(part, [int(self._numbers[unit])], 0, n_rows), names)))
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        return table.slice(0, n_rows)

    def ids(self) -> Iterator[Any]:
        """Yield what names rows; see `RowSource.ids`."""
        if self.id_column is None:
            yield from super().ids()
            return
        for run in self._runs(0, self.n_rows):
            for batch in self._rows(run, [self.id_column]):
                yield column_of(batch, self.id_column)

    def _find_categories(self, names: list[str]) -> None:
        """Read all rows once, for the values of columns of text."""
        started = time.perf_counter()
        batches = (batch for run in self._runs(0, self.n_rows) for batch in self._rows(run, names))
        self._layout = one_hot(self._layout, found_values(names, batches)[0])
        self.stages_before = (Stage("categories", time.perf_counter() - started, self.n_bytes or 0, self.n_rows),)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Join units that are small, through the ends of files, and cut large ones where they can be; O(chunks)."""
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        row_bytes = self._layout.row_bytes
        most = max(1, target_bytes // row_bytes)
        check_count(-(-self.n_rows // most), self.n_rows, target_bytes)
        cuts = [0]
        before = 0
        for end in self._ends.tolist():
            n_rows = end - before
            if end - cuts[-1] > most and before > cuts[-1]:
                cuts.append(before)
            if self.splits and n_rows > most and cuts[-1] == before:
                n_pieces = -(-n_rows // most)
                cuts += [before + n_rows * piece // n_pieces for piece in range(1, n_pieces)]
                cuts.append(end)
            before = end
        if cuts[-1] != self.n_rows:
            cuts.append(self.n_rows)
        return ChunkRuns.of((0, start, stop, (stop - start) * row_bytes) for start, stop in pairwise(cuts))

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        out = self._layout.empty(chunk.stop - chunk.start)
        kept: list[Any] = []
        at = 0
        for run in self._runs(chunk.start, chunk.stop):
            for batch in self._rows(run, self._layout.names):
                self._layout.fill(out[at : at + batch.num_rows], batch, self.describe, chunk.start + at)
                at += batch.num_rows
                if self.is_sparse:
                    kept.append(batch)
        trim_heap()
        return Rows(self._layout.finish(out, kept), row_places(chunk.start, chunk.stop))

    def _runs(self, start: int, stop: int) -> Iterator[Run]:
        """Stored units that hold rows start..stop-1, those of a file together."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        begins = np.concatenate([[0], self._ends])
        while first <= last:
            part = int(self._parts[first])
            behind = min(last + 1, int(np.searchsorted(self._parts, part, side="right")))
            begin, end = max(start, int(begins[first])), min(stop, int(begins[behind]))
            yield Run(part, self._numbers[first:behind].tolist(), begin - int(begins[first]), end - begin)
            first = behind

    def describe(self, place: int) -> str:
        """Say where a row is: ``row 7 of x.parquet``, by its number in the file."""
        return _describe_row(self._file_ends(), self.paths, place)

    def _is_piece(self, run: Run) -> bool:
        """Whether a run is a part of one unit."""
        unit = np.flatnonzero((self._parts == run.part) & (self._numbers == run.units[0]))
        return len(run.units) == 1 and run.n_rows < int(np.diff(self._ends, prepend=0)[unit[0]])

    def _file_ends(self) -> NDArray[np.int64]:
        behind = np.searchsorted(self._parts, np.arange(len(self.paths)), side="right")
        return np.concatenate([[0], self._ends])[behind]

    def details(self) -> dict[str, str]:
        """Say how the rows are stored; see `RowSource.details`."""
        files = f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""
        units = f"{len(self._ends):,} {self.unit_name}"
        return {"format": self.form + files, "chunks": units, **columns_text(self._layout)}

    def stand_in(self) -> RowSource:
        """Give what calls on a cluster need; see `RowSource.stand_in`."""
        return SentRows(self, partial(_describe_row, self._file_ends(), self.paths)) if self.in_process else self


def _describe_row(ends: NDArray[np.int64], paths: Sequence[str], place: int) -> str:
    """Say where a row is by its number in its file. `ends`: rows up to the end of each file."""
    part = int(np.searchsorted(ends, place, side="right"))
    return f"row {place - (int(ends[part - 1]) if part else 0):,} of {paths[part]}"


def column_of(batch: Any, name: str) -> Any:
    """A column of a record batch or a table, as a chunked array."""
    import pyarrow as pa

    column = batch.column(name)
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def gather_values(found: dict[str, dict[str, None]], batch: Any) -> bool:
    """Add the values of a batch's columns of text to those that were found; whether more can be taken."""
    for name, values in found.items():
        for piece in column_of(batch, name).chunks:
            values.update(dict.fromkeys(encoded(piece)[1]))
        if len(values) > MOST_VALUES:
            return False
    return True


def found_values(names: Sequence[str], batches: Iterable[Any]) -> tuple[dict[str, dict[str, None]], int]:
    """Values of columns of text in batches, as far as they may be one-hot, and the number of rows."""
    found: dict[str, dict[str, None]] = {name: {} for name in names}
    n_rows = 0
    for batch in batches:
        n_rows += batch.num_rows
        if not gather_values(found, batch):
            break
    return found, n_rows


def take_layout(source: RowSource, layout: TableSchema) -> None:
    """Say of a source what its layout says."""
    source.n_features, source.dtype, source.is_sparse = layout.n_features, layout.dtype, layout.is_sparse
    source.feature_names, source.has_long_integers = layout.feature_names, layout.has_long_integers
    source.made_with = described_table(layout)


def described_table(layout: TableSchema) -> dict[str, Any]:
    """How rows are made of a table's columns, as JSON values: options that open other tables alike."""
    made: dict[str, Any] = {"columns": layout.names}
    if layout.dtype.kind == "f":
        made["dtype"] = str(layout.dtype)
    values = {encoder.column: list(encoder.values) for encoder in layout.encoders}
    texts = [column.name for column in layout.columns if column.kind == "category"]
    made |= {"categories": {name: values.get(name, "hash") for name in texts}} if texts else {}
    made |= {"n_features": layout.n_hashed} if layout.is_sparse else {}
    made |= {"categories_unseen": layout.unseen} if values and layout.unseen != "raise" else {}
    if any(column.kind == "date" for column in layout.columns):
        made["dates"] = "days"
    return {"table": made}


def columns_text(layout: TableSchema) -> dict[str, str]:
    """For people: how many columns of which kind become features."""
    kinds = [("number", "numbers"), ("date", "dates"), ("vector", "vectors"), ("category", "categories")]
    counts = [(sum(column.kind == kind for column in layout.columns), word) for kind, word in kinds]
    text = {"columns": ", ".join(f"{count:,} of {word}" for count, word in counts if count)}
    return text | ({"left out": layout.left_out} if layout.left_out else {})
