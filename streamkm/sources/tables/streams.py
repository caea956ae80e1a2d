"""Tables that a program has or makes: frames in memory, streams of record batches, lazy frames, datasets, relations.

What they are, the Arrow protocol tells and what they offer, not their class. Lazy frames of polars and datasets of
pyarrow are asked in words of their own. Imports pyarrow alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, MissingDependencyError
from streamkm.core.progress import Stage
from streamkm.sources.base import ChunkedSource, Rows, RowSource, row_places
from streamkm.sources.chunks import Chunk
from streamkm.sources.dense import cut_rows
from streamkm.sources.memory.arrays import open_array
from streamkm.sources.memory.frames import column_kinds, index_of
from streamkm.sources.memory.iterables import PassHash
from streamkm.sources.tables.arrow import WORKING_BYTES, guarded, pyarrow
from streamkm.sources.tables.columns import (
    TableOptions,
    TableSchema,
    choose,
    lay_out,
    one_hot,
    read_options,
    unknown_categories,
)
from streamkm.sources.tables.row_groups import column_of, columns_text, found_values, take_layout

Batches = Callable[[list[str] | None], Iterator[Any]]
"""Gives record batches, or tables, of some columns, None: of all; begins anew each time."""

_HEAD_ROWS = 1024
_BATCH_ROWS = 1 << 16
_KNOWN_STREAMS = "a pyarrow table, reader or dataset, a polars frame, a relation of DuckDB"


class MemoryTable(ChunkedSource):
    """Rows of a table in memory, of which each chunk is converted when it is read. Pickles with all of its values.

    `name`, `form`: what messages call it, and what it is, for people. Raises InvalidInputError: no rows; columns that
    are no features.
    """

    in_process = True
    read_factor = 2.0

    def __init__(self, table: Any, options: TableOptions, *, name: str, form: str) -> None:
        self.name, self._form = name, form
        if not table.num_rows:
            raise InvalidInputError(f"{name} has 0 rows; at least 1 is needed")
        layout = _layout_of(table.schema, options, name, lambda names: table.select(names).slice(0, _HEAD_ROWS))
        if names := unknown_categories(layout, options):
            layout = one_hot(layout, found_values(names, [table])[0])
        self._layout, self.id_column = layout, options.id_column
        self._ids = None if self.id_column is None else table.column(self.id_column)
        self._table = table.select(layout.names)
        self.n_rows: int = table.num_rows
        self.n_bytes = self.resident_bytes = max(1, self._table.get_total_buffer_size())
        take_layout(self, layout)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows; see `ChunkedSource.chunks`. O(1)."""
        return cut_rows(self.n_rows, self._layout.row_bytes, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        piece = self._table.slice(chunk.start, chunk.stop - chunk.start)
        out = self._layout.empty(piece.num_rows)
        self._layout.fill(out, piece, self.describe, chunk.start)
        return Rows(self._layout.finish(out, [piece]), row_places(chunk.start, chunk.stop))

    def ids(self) -> Iterator[Any]:
        """Give what names rows; see `RowSource.ids`."""
        yield from super().ids() if self._ids is None else (self._ids,)

    def details(self) -> dict[str, str]:
        """Say what the table is; see `RowSource.details`."""
        return {"format": self._form, **columns_text(self._layout)}


class BatchStream(RowSource):
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

    def __init__(
        self, batches: Batches, schema: Any, options: TableOptions, *, name: str, form: str, replayable: bool
    ) -> None:
        self.name, self._form, self.replayable = name, form, replayable
        self._batches, self._passes = batches, PassHash()
        self._begun: tuple[Any, Iterator[Any]] | None = None  # of what comes once: its first batch, and the rest
        self._is_over = False
        layout = _layout_of(schema, options, name, self._head)
        if names := unknown_categories(layout, options):
            layout = self._find_categories(layout, names)
        self._layout, self.id_column = layout, options.id_column
        take_layout(self, layout)
        self.producer_bytes = WORKING_BYTES + 2 * _BATCH_ROWS * layout.row_bytes

    def _head(self, names: list[str]) -> Any:
        """The first rows; what was taken of a stream that comes once is kept for its pass."""
        pa = pyarrow(self.name)
        if self.replayable:
            batch = next(self._batches(names), None)
        else:
            if self._begun is None:
                rest = self._batches(None)
                self._begun = next(rest, None), rest
            batch = self._begun[0]
        if batch is None or not batch.num_rows:
            return pa.table({name: pa.array([], pa.null()) for name in names})
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        return table.select(names).slice(0, _HEAD_ROWS)

    def _find_categories(self, layout: TableSchema, names: list[str]) -> TableSchema:
        if not self.replayable:
            raise InvalidInputError(
                f"{self.name} can be read once only, and the values of one-hot columns are looked for in a pass of "
                f'their own; give them, as in categories={{"column": [...]}}, or pass categories="hash"'
            )
        started = time.perf_counter()
        found, n_rows = found_values(names, self._batches(names))
        self.stages_before = (Stage("categories", time.perf_counter() - started, 0, n_rows),)
        return one_hot(layout, found)

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        """Yield all rows in order, large batches cut; see `RowSource.stream`."""
        remedy = "sort it, keep its order (polars: group_by(..., maintain_order=True)), or collect it into memory first"
        return self._passes.compared(self._cut_batches(target_bytes), self.name, remedy)

    def _cut_batches(self, target_bytes: int) -> Iterator[Rows]:
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        layout, place = self._layout, 0
        most = max(1, target_bytes // layout.row_bytes)
        for batch in self._start():
            for start in range(0, batch.num_rows, most):
                piece = batch.slice(start, most)
                out = layout.empty(piece.num_rows)
                layout.fill(out, piece, self.describe, place)
                yield Rows(layout.finish(out, [piece]), row_places(place, place + piece.num_rows))
                place += piece.num_rows
        if place == 0:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")

    def _start(self) -> Iterator[Any]:
        if self.replayable:
            yield from self._batches(self._layout.names)
            return
        if self._is_over:
            raise InvalidInputError(f"{self.name} can be read once only; write it to a file, or pass what makes it")
        begun, self._begun, self._is_over = self._begun, None, True
        if begun is None:
            yield from self._batches(None)
        elif begun[0] is not None:
            yield begun[0]
            yield from begun[1]

    def ids(self) -> Iterator[Any]:
        """Yield what names rows; see `RowSource.ids`."""
        if self.id_column is None:
            yield from super().ids()
        elif not self.replayable:
            raise InvalidInputError(f"{self.name} can be read once only, which is for its rows; give its ids yourself")
        else:
            for batch in self._batches([self.id_column]):
                yield column_of(batch, self.id_column)

    def details(self) -> dict[str, str]:
        """Say where the rows come from; see `RowSource.details`."""
        once = "" if self.replayable else ", read once only"
        return {"format": self._form + once, **columns_text(self._layout)}


def open_frame(X: Any, **options: Any) -> RowSource:
    """Open a frame in memory; see `open_source` for options.

    Raises InvalidInputError, InvalidParameterError, MissingDependencyError, also where pyarrow cannot make a table of
    it.
    """
    if not options and not _has_lists(X):
        return open_array(X)
    name = f"{type(X).__module__.partition('.')[0]} {type(X).__name__}"
    pa = pyarrow(name)
    try:
        table = pa.Table.from_pandas(X, preserve_index=False) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} cannot be made an Arrow table: {error}") from error
    return MemoryTable(table, read_options(options), name="data frame", form=f"{name} in memory")


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


def _layout_of(schema: Any, options: TableOptions, name: str, head: Callable[[list[str]], Any]) -> TableSchema:
    options = replace(options, index=index_of(schema.names, schema))
    chosen = choose(schema.names, options, name)
    return lay_out(schema.names, {column: schema.field(column).type for column in chosen}, options, name, head)


def _has_lists(X: Any) -> bool:
    """Whether a frame has columns of lists; only what speaks Arrow is asked."""
    kinds = () if hasattr(X, "iloc") else column_kinds(X)
    return any(kind.startswith(("list", "array", "fixed_size_list", "large_list")) for kind in kinds)


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
            from streamkm.sources.tables.parquet import ParquetTable

            return ParquetTable(files, options)

    how = _checked_pages(X) | {
        "batch_size": _BATCH_ROWS, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False,
    }  # fmt: skip

    def batches(names: list[str] | None) -> Iterator[Any]:
        with guarded("dataset", kind):
            yield from (batch for batch in X.to_batches(columns=names, **how) if batch.num_rows)

    return BatchStream(batches, X.schema, options, name="dataset", form=kind, replayable=True)


def _checked_pages(X: Any) -> dict[str, Any]:
    """Options for a dataset of Parquet to verify checksums of pages; none where files are encrypted."""
    formats: list[Any] = [getattr(part, "format", None) for part in getattr(X, "children", [X])]
    if any(getattr(each, "default_extname", None) != "parquet" for each in formats):
        return {}
    given = formats[0].default_fragment_scan_options
    if getattr(given, "parquet_decryption_config", None) is not None:
        return {}  # a copy of them would lose their keys
    options = copy.copy(given)
    options.page_checksum_verification = True
    return {"fragment_scan_options": options}
