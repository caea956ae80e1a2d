"""Parquet and Arrow IPC files (Feather version 2).

A row group that is larger than a chunk is decoded once, where its pieces are read in turn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.arrow import guarded, readable
from streamkm.sources.tables.row_groups import RowGroupTable, Run, TableFile, sliced

_BATCH_BYTES = 1 << 21  # decoded, of what pyarrow gives at once
_BUFFER_BYTES = 1 << 18  # of a column that is read through a buffer, not whole
_OTHERS_S = 0.02  # that another thread may take until it comes for the rows in front of those that are wanted


class ParquetTable(RowGroupTable):
    """Rows of Parquet files; see `RowGroupTable`.

    Only the chosen columns are read, page by page. A piece of a row group continues where the piece in front of it
    ended, where that was read in this process; else the rows in front of it are decoded and dropped.
    """

    form = "Parquet"
    unit_name = "row groups"
    splits = True
    read_factor = 2.5
    page_bytes = 9 << 18  # a page of a column, its dictionary, and what they are unpacked from

    def __init__(self, paths: Sequence[str], **given: Any) -> None:
        self._open = OpenGroup()
        super().__init__(paths, **given)

    def _look(self, path: str) -> TableFile:
        with _parquet(path) as file, guarded(path, "Parquet"):
            meta, schema = file.metadata, file.schema_arrow
            return TableFile(schema, schema.names, [meta.row_group(i).num_rows for i in range(meta.num_row_groups)])

    def _batches(self, run: Run, names: list[str]) -> Iterator[Any]:
        path, skip, n_rows = self.paths[run.part], run.skip, run.n_rows
        if len(run.units) == 1 and n_rows < run.n_stored:
            return iter(self._open.take(path, run.units[0], skip, skip + n_rows, run.n_stored, names))
        return sliced(_decoded(path, run.units, names), skip, n_rows)


class OpenGroup:
    """The row group that a piece was read of last, open behind that piece. Thread-safe; pickles empty."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenGroup, ()

    def _close(self) -> None:
        self._key: Any = None  # the row group, and its columns
        self._at = 0
        self._batches: Any = None
        self._left: Any = None  # of a batch

    def _waits_for(self, key: Any, start: int) -> Any:
        """Where the open row group is, while another thread may be about to go on there; None once none may."""
        in_front = self._key is not None and (self._at < start if key == self._key else start == 0)
        return (self._key, self._at) if in_front else None

    def take(self, path: str, group: int, start: int, stop: int, n_rows: int, names: list[str]) -> list[Any]:
        """Read rows of a row group that has `n_rows`; waits while another thread comes to the rows in front."""
        key, seen = (path, group, tuple(names)), None
        taken: list[Any] = []
        with self._turn:
            while (at := self._waits_for(key, start)) not in (None, seen):
                seen = at
                self._turn.wait(_OTHERS_S)
            try:
                if key != self._key or self._at > start:
                    self._close()
                    self._key, self._batches = key, _decoded(path, [group], names)
                while self._at < stop:
                    batch = next(self._batches) if self._left is None else self._left
                    taken += sliced([batch], max(0, start - self._at), stop - max(start, self._at))
                    held = min(batch.num_rows, stop - self._at)
                    self._at += held
                    self._left = batch.slice(held) if held < batch.num_rows else None
            except BaseException:
                self._close()
                raise
            finally:
                if self._at >= n_rows:
                    self._close()
                self._turn.notify_all()
        return taken


def _decoded(path: str, groups: list[int], names: list[str]) -> Iterator[Any]:
    """Batches of all rows of some row groups."""
    where = f", row group {groups[0]:,}" + (f" to {groups[-1]:,}" if len(groups) > 1 else "")
    with _parquet(path) as file:
        with guarded(path, "Parquet", where):
            held = [file.metadata.row_group(number) for number in groups]
            n_rows, n_bytes = (
                sum(sizes) for sizes in zip(*((each.num_rows, each.total_byte_size) for each in held), strict=True)
            )
            row_bytes = max(1, n_bytes * len(names) // (max(1, n_rows) * max(1, file.metadata.num_columns)))
            batch_rows = min(1 << 16, max(1 << 10, _BATCH_BYTES // row_bytes))
            batches = file.iter_batches(batch_rows, row_groups=groups, columns=names, use_threads=True)
        at = 0
        while at < n_rows:
            with guarded(path, "Parquet", where):
                batch = next(batches, None)
            if batch is None:
                raise SourceError(
                    f"{path}{where} has {at:,} rows, and its metadata say {n_rows:,}; the file is damaged"
                )
            at += batch.num_rows
            yield batch


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """Give a pyarrow.parquet.ParquetFile: few large requests to servers, few bytes at a time of local files."""
    with ExitStack() as closed:
        with guarded(path, "Parquet"):
            from pyarrow import parquet

            opened, remote = readable(path)
            closed.enter_context(remote or nullcontext())
            size = _BUFFER_BYTES if remote is None else 0
            how = {"pre_buffer": remote is not None, "buffer_size": size, "page_checksum_verification": True}
            file = parquet.ParquetFile(opened, **how)
            closed.callback(file.close, force=True)
        yield file


class ArrowTable(RowGroupTable):
    """Rows of Arrow IPC files; see `RowGroupTable`. Record batches are read whole, but for columns left out."""

    form = "Arrow IPC"
    unit_name = "record batches"
    splits = False
    read_factor = 3.0
    page_bytes = 0

    def _look(self, path: str) -> TableFile:
        with _arrow(path) as reader:
            schema = reader.schema
        with _arrow(path, [0]) as reader:  # a column tells how many rows a batch has
            rows = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
        return TableFile(schema, schema.names, rows)

    def _batches(self, run: Run, names: list[str]) -> Iterator[Any]:
        path, numbers = self.paths[run.part], run.units
        with _arrow(path, sorted(self._names[run.part].index(name) for name in names)) as reader:
            yield from sliced(map(_checked, map(reader.get_batch, numbers)), run.skip, run.n_rows)


@contextmanager
def _arrow(path: str, fields: list[int] | None = None) -> Iterator[Any]:
    """Give a pyarrow.RecordBatchFileReader of some columns; see `guarded` for errors."""
    with guarded(path, "Arrow IPC"):
        import pyarrow as pa

        opened, remote = readable(path)
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with remote or nullcontext(), pa.OSFile(opened) if remote is None else opened as file:
            if file.read(4) == b"\xff\xff\xff\xff":
                stream = "is a stream of Arrow, not an Arrow file; give pyarrow.ipc.open_stream of it"
                raise InvalidInputError(f"{path} {stream}")
            file.seek(0)
            yield pa.ipc.open_file(file, options=options)


def _checked(batch: Any) -> Any:
    """The batch, unless it is damaged and tells of more values than it has."""
    batch.validate()
    return batch
