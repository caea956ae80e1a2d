"""Tables of a program: frames in memory, and streams of record batches from lazy frames, datasets and relations.

Objects are recognized by the Arrow protocol, lazy frames of polars and datasets of pyarrow by their methods.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import raw
from streamkm.sources.arrow import WORKING_BYTES, guarded, pyarrow
from streamkm.sources.chunks import Access, Chunk, ChunkRuns
from streamkm.sources.dense import cut_rows
from streamkm.sources.fitted_tables import read_options
from streamkm.sources.frames import frame_table
from streamkm.sources.row_source import Rows, RowSource
from streamkm.sources.tables.files import ParquetTable
from streamkm.sources.tables.row_groups import BatchTable

_BATCH_ROWS = 1 << 16
_ONCE = 'write it to a file, pass what makes it, or give values of one-hot columns: categories={"column": [...]}'


class MemoryTable(BatchTable):
    """Rows of a frame in memory, converted chunk by chunk when they are read; pickles with all values.

    Raises InvalidInputError: no table, no rows, columns that cannot be features.
    """

    access = Access(in_process=True, read_factor=2.0)

    def __init__(self, X: Any, name: str = "data frame", **options: Any) -> None:
        self.name, self.form = name, f"{type(X).__module__.partition('.')[0]} {type(X).__name__} in memory"
        self._table = table = frame_table(X, name)
        self.n_rows, self.n_bytes = table.num_rows, 0
        self._take_schema(table.schema, read_options(options), self._columns)
        names = (*self._layout.names, self.origin.id_column)
        self._table = table.select([name for name in names if name is not None])
        self.n_bytes = max(1, self._table.select(self._layout.names).get_total_buffer_size())
        self.access = replace(self.access, resident_bytes=self.n_bytes)

    def _columns(self, names: list[str]) -> Iterator[Any]:
        return iter(self._table.select(names).to_batches())

    def chunks(self, target_bytes: int) -> ChunkRuns:
        return cut_rows(self.n_rows or 0, self._layout.row_bytes, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        return self._filled([self._table.slice(chunk.start, chunk.stop - chunk.start)], chunk.start, chunk.stop)


class PassHash:
    """A hash of the rows of the first whole pass, with which all later passes are compared.

    Floats count to 16 digits of their bits: a database that adds up in another order changes the last ones.
    """

    def __init__(self) -> None:
        self._first: int | None = None

    def compared(self, rows: Iterator[Rows], name: str, remedy: str) -> Iterator[Rows]:
        """Yield the rows of a pass. Raises InvalidInputError at its end if they differ from the first pass."""
        found = 0
        for each in rows:
            X = each.X
            values = _rounded(X) if isinstance(X, np.ndarray) else _rounded(X.data) + X.indices.astype(np.int64)
            found = zlib.crc32(raw(values), found)
            del X, values
            yield each
            del each
        self._first = found if self._first is None else self._first
        if found != self._first:
            raise InvalidInputError(
                f"{name} gave other rows in this pass than before, or the same in another order; {remedy}"
            )


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (values * 0.7390851332).astype(np.float32)  # no round number is halfway between two others then
    return (scaled.view(np.uint32) + np.uint32(0x80)) >> np.uint32(8)


class BatchStream(BatchTable):
    """Rows of record batches in order: of a lazy frame, a dataset, or any object with an Arrow stream.

    Raises InvalidInputError: no table, columns that cannot be features; by `stream`: no rows, a second pass.
    """

    access = Access(streams=True, in_process=True, read_factor=2.0, libraries=("pyarrow",))

    def __init__(self, X: Any, **options: Any) -> None:
        kind = f"{type(X).__module__.partition('.')[0].lstrip('_')} {type(X).__name__}"
        pa = pyarrow(kind)
        self._X, self._passes = X, PassHash()
        replayable = not (hasattr(X, "read_next_batch") or hasattr(X, "__next__"))
        self.access = replace(self.access, replayable=replayable)
        once = "" if replayable else ", read only once"
        self.name, self.form = type(X).__name__, f"a stream of batches ({kind}){once}"
        if hasattr(X, "collect_schema"):
            self.name, schema = "lazy frame", X.head(0).collect().to_arrow().schema
        elif hasattr(X, "get_fragments"):
            schema = X.schema
        else:
            with guarded(kind, "a stream of record batches"):
                self._begun: Any = pa.RecordBatchReader.from_stream(X)
            schema = self._begun.schema
        self._take_schema(schema, read_options(options), self._columns if replayable else lambda _: iter(()))
        self.access = replace(self.access, producer_bytes=WORKING_BYTES + 2 * _BATCH_ROWS * self._layout.row_bytes)

    def _started(self, names: list[str]) -> Iterable[Any]:
        X = self._X
        if hasattr(X, "collect_schema"):
            how = {"chunk_size": _BATCH_ROWS, "maintain_order": True, "engine": "streaming"}
            return (piece.to_arrow() for piece in X.select(names).collect_batches(**how))
        if hasattr(X, "get_fragments"):
            how = {"batch_size": _BATCH_ROWS, "batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
            return iter(X.to_batches(columns=names, **how))
        if not self.access.replayable and (self._begun is None or names != self._layout.names):
            raise InvalidInputError(f"{self.name} can be read only once; {_ONCE}")
        reader, self._begun = self._begun or pyarrow(self.name).RecordBatchReader.from_stream(X), None
        return (batch.select(names) for batch in reader)

    def _columns(self, names: list[str]) -> Iterator[Any]:
        with guarded(self.name, self.form):
            yield from (batch for batch in self._started(names) if batch.num_rows)

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        remedy = "sort it, keep its order (polars: group_by(..., maintain_order=True)), or collect it into memory first"
        return self._passes.compared(self._cut_batches(target_bytes), self.name, remedy)

    def _cut_batches(self, target_bytes: int) -> Iterator[Rows]:
        most, place = max(1, target_bytes // self._layout.row_bytes), 0
        for batch in self._columns(self._layout.names):
            for start in range(0, batch.num_rows, most):
                piece = batch.slice(start, most)
                yield self._filled([piece], place, place + piece.num_rows)
                place += piece.num_rows
        if place == 0:
            raise InvalidInputError(f"{self.name} has 0 rows; at least 1 is needed")


def open_stream(X: Any, **options: Any) -> RowSource:
    """Open an object with record batches; datasets of plain Parquet files are read by row groups. See `open_source`.

    Raises InvalidInputError, InvalidParameterError, MissingDependencyError.
    """
    is_whole = getattr(X, "files", None) and not getattr(X, "_scan_options", None)
    is_local = is_whole and X.filesystem.type_name == "local" and X.format.default_extname == "parquet"
    if is_local and all({*X.schema.names} == {*each.physical_schema.names} for each in X.get_fragments()):
        return ParquetTable(X.files, **options)
    return BatchStream(X, **options)
