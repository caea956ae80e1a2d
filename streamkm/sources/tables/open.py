"""Tables that a program has or makes: frames in memory, streams of record batches, lazy frames, datasets, relations.

What they are, the Arrow protocol tells and what they offer, not their class. Lazy frames of polars and datasets of
pyarrow are asked in words of their own. Imports pyarrow alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MissingDependencyError
from streamkm.sources.arrow import WORKING_BYTES, guarded, pyarrow
from streamkm.sources.base import ChunkedSource, Rows, RowSource
from streamkm.sources.chunks import Chunk
from streamkm.sources.dense import cut_rows
from streamkm.sources.memory.arrays import open_array
from streamkm.sources.memory.frames import frame_table, has_columns_of, index_of
from streamkm.sources.memory.iterables import PassHash
from streamkm.sources.svmlight.compressed import compression
from streamkm.sources.tables.columns import (
    TableOptions,
    TableSchema,
    choose,
    lay_out,
    read_options,
    unknown_categories,
)
from streamkm.sources.tables.csv_format import check_format
from streamkm.sources.tables.row_groups import BatchTable, head_of

Batches = Callable[[list[str] | None], Iterator[Any]]
"""Gives record batches, or tables, of some columns, None: of all; begins anew each time."""

_BATCH_ROWS = 1 << 16
_KNOWN_STREAMS = "a pyarrow table, reader or dataset, a polars frame, a relation of DuckDB"


class MemoryTable(BatchTable, ChunkedSource):
    """Rows of a table in memory, of which each chunk is converted when it is read. Pickles with all of its values.

    `name`, `form`: what messages call it, and what it is, for people. Raises InvalidInputError: no rows; columns that
    are no features.
    """

    in_process = True
    read_factor = 2.0

    def __init__(self, table: Any, options: TableOptions, *, name: str, form: str) -> None:
        self.name, self.form, self._table = name, form, table
        if not table.num_rows:
            raise InvalidInputError(f"{name} has 0 rows; at least 1 is needed")
        self.n_rows: int = table.num_rows
        self.n_bytes = 0
        self._take(_layout_of(table.schema, options, name, self._columns), options)
        self._table = table.select([*self._layout.names, *([] if self.id_column is None else [self.id_column])])
        self.n_bytes = self.resident_bytes = max(1, self._table.select(self._layout.names).get_total_buffer_size())

    def _columns(self, names: list[str]) -> Iterator[Any]:
        yield self._table.select(names)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows; see `ChunkedSource.chunks`. O(1)."""
        return cut_rows(self.n_rows, self._layout.row_bytes, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        return self._filled([self._table.slice(chunk.start, chunk.stop - chunk.start)], chunk.start, chunk.stop)


class BatchStream(BatchTable):
    """Rows of record batches that come in order.

    `batches`: see `Batches`. `name`, `form`: what messages call it, and what it is, for people. `replayable`: whether
    `batches` can begin anew. Raises InvalidInputError: columns that are no features; by `stream`: a second pass over
    what can be read once, no rows.
    """

    in_process = True
    n_rows = None
    n_bytes = None
    read_factor = 2.0
    libraries = ("pyarrow",)
    _is_over = False

    def __init__(
        self, batches: Batches, schema: Any, options: TableOptions, *, name: str, form: str, replayable: bool
    ) -> None:
        self.name, self.form, self.replayable = name, form + ("" if replayable else ", read once only"), replayable
        self._batches, self._passes = batches, PassHash()
        self._once = iter(()) if replayable else batches(None)
        layout = _layout_of(schema, options, name, self._first)
        if not replayable and unknown_categories(layout, options):
            raise InvalidInputError(
                f"{name} can be read once only, and the values of one-hot columns are looked for in a pass of their "
                f'own; give them, as in categories={{"column": [...]}}, or pass categories="hash"'
            )
        self._take(layout, options)
        self.producer_bytes = WORKING_BYTES + 2 * _BATCH_ROWS * self._layout.row_bytes

    def _first(self, names: list[str]) -> Iterator[Any]:
        """The first batch; that of a stream that comes once is kept for its pass."""
        if self.replayable:
            return self._batches(names)
        first = [*islice(self._once, 1)]
        self._once = chain(first, self._once)
        return iter(first)

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        """Yield all rows in order, large batches cut; see `RowSource.stream`."""
        remedy = "sort it, keep its order (polars: group_by(..., maintain_order=True)), or collect it into memory first"
        return self._passes.compared(self._cut_batches(target_bytes), self.name, remedy)

    def _cut_batches(self, target_bytes: int) -> Iterator[Rows]:
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        most, place = max(1, target_bytes // self._layout.row_bytes), 0
        for batch in self._columns(self._layout.names if self.replayable else None):
            for start in range(0, batch.num_rows, most):
                piece = batch.slice(start, most)
                yield self._filled([piece], place, place + piece.num_rows)
                place += piece.num_rows
        if place == 0:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")

    def _columns(self, names: list[str] | None) -> Iterator[Any]:
        if self.replayable:
            return self._batches(names)
        if names is not None or self._is_over:
            raise InvalidInputError(f"{self.name} can be read once only; write it to a file, or pass what makes it")
        self._is_over = True
        return self._once


def open_csv(
    paths: Sequence[str],
    *,
    delimiter: Any = None,
    header: Any = None,
    newlines_in_values: Any = None,
    null_values: Any = None,
    **options: Any,
) -> RowSource:
    """Open CSV files, plain or compressed; see `open_source` for options, `CsvFiles` for errors."""
    from streamkm.sources.tables.csv_files import CsvStream, CsvTable

    name = paths[0].partition("?")[0].lower()
    tabbed = ".tsv" in name[-8:] or name.endswith(".tab")
    form = check_format(delimiter, header, newlines_in_values, null_values, tabbed=tabbed)
    is_cut = not form.newlines_in_values and {compression(path) for path in paths} == {"plain"}
    return (CsvTable if is_cut else CsvStream)(paths, read_options(options), form)


def open_parquet(paths: Sequence[str], **options: Any) -> RowSource:
    """Open Parquet files; see `open_source` for options, `RowGroupTable` for errors."""
    from streamkm.sources.tables.files import ParquetTable

    return ParquetTable(paths, read_options(options))


def open_arrow(paths: Sequence[str], **options: Any) -> RowSource:
    """Open Arrow IPC files; see `open_source` for options, `RowGroupTable` for errors."""
    from streamkm.sources.tables.files import ArrowTable

    return ArrowTable(paths, read_options(options))


def open_frame(X: Any, **options: Any) -> RowSource:
    """Open a frame in memory; see `open_source` for options, `frame_table` for errors."""
    if not options and (hasattr(X, "iloc") or not has_columns_of(X, "list", "array", "fixed_size_list", "large_list")):
        return open_array(X)
    form = f"{type(X).__module__.partition('.')[0]} {type(X).__name__} in memory"
    return MemoryTable(frame_table(X, "data frame"), read_options(options), name="data frame", form=form)


def open_stream(X: Any, **options: Any) -> RowSource:
    """Open what gives record batches; see `open_source` for options.

    Raises InvalidInputError, InvalidParameterError, MissingDependencyError.
    """
    kind = f"{type(X).__module__.partition('.')[0].lstrip('_')} {type(X).__name__}"
    pa = pyarrow(kind)
    chosen = read_options(options)
    if hasattr(X, "collect_schema"):
        return _open_lazy_frame(X, chosen, kind)
    if hasattr(X, "get_fragments"):
        return _open_dataset(X, chosen, kind)
    once = hasattr(X, "read_next_batch") or hasattr(X, "__next__")
    try:
        first = pa.RecordBatchReader.from_stream(X)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"{kind} is no table: {error}; pass {_KNOWN_STREAMS}") from error
    readers = [first]

    def batches(names: list[str] | None) -> Iterator[Any]:
        with guarded(type(X).__name__, f"a stream of batches ({kind})"):
            reader = readers.pop() if readers else pa.RecordBatchReader.from_stream(X)
            for batch in reader:
                yield batch if names is None else batch.select(names)

    return BatchStream(
        batches, first.schema, chosen, name=type(X).__name__, form=f"{kind}, a stream of batches", replayable=not once
    )


def _layout_of(
    schema: Any, options: TableOptions, name: str, first: Callable[[list[str]], Iterator[Any]]
) -> TableSchema:
    """The layout of what has a schema. `first`: gives the first batch, of some columns at least."""
    options = replace(options, index=index_of(schema.names, schema))
    fields = {column: schema.field(column).type for column in choose(schema.names, options, name)}
    return lay_out(schema.names, fields, options, name, lambda names: head_of(first(names), names))


def _open_lazy_frame(X: Any, options: TableOptions, kind: str) -> RowSource:
    if not hasattr(X, "collect_batches"):
        raise MissingDependencyError(
            f"{kind} gives no batches in this version of polars; use a newer one, or pass frame.collect()"
        )

    def batches(names: list[str] | None) -> Iterator[Any]:
        frame = X if names is None else X.select(names)
        for piece in frame.collect_batches(chunk_size=_BATCH_ROWS, maintain_order=True, engine="streaming"):
            if piece.height:
                yield piece.to_arrow()

    schema = X.head(0).collect().to_arrow().schema
    return BatchStream(batches, schema, options, name="lazy frame", form=kind, replayable=True)


def _open_dataset(X: Any, options: TableOptions, kind: str) -> RowSource:
    """Open a dataset: of plain Parquet files by their row groups, else as a stream of batches."""
    from pyarrow import fs

    files, filesystem = getattr(X, "files", None), getattr(X, "filesystem", None)
    if files and isinstance(filesystem, fs.LocalFileSystem) and X.format.default_extname == "parquet":
        unfiltered = not getattr(X, "_scan_options", None)
        if unfiltered and all(set(X.schema.names) == set(each.physical_schema.names) for each in X.get_fragments()):
            from streamkm.sources.tables.files import ParquetTable

            return ParquetTable(files, options)

    how = {"batch_size": _BATCH_ROWS, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}

    def batches(names: list[str] | None) -> Iterator[Any]:
        with guarded("dataset", kind):
            yield from (batch for batch in X.to_batches(columns=names, **how) if batch.num_rows)

    return BatchStream(batches, X.schema, options, name="dataset", form=kind, replayable=True)
