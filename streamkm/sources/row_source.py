"""The contract of row sources, and the pieces in which rows come.

A source is cheap to pickle and repeatable: reading a chunk again, in any process, gives the same rows.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix
from streamkm.sources.chunks import Access, Chunk, ChunkRuns, Origin

if TYPE_CHECKING:
    from streamkm.sources.text_lines import LineLimit


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as read from a source."""

    # (n, d), of any real dtype; where the source's `n_features` is None, as wide as its largest feature index demands
    X: Matrix
    # (n,): a distinct number for each row, whatever the chunks: its number, or the position of a line's first byte
    row_ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """Rows of a chunk whose row ids are known and whose values are not read yet."""

    row_ids: NDArray[np.int64]  # (n,): as `Rows` has them
    n_features: int  # columns that the chunk would have if it were read
    take: Callable[[NDArray[np.int64]], Matrix]  # reads chosen rows, counted from 0; raises as `RowSource.read`


class RowSource(ABC):
    """Rows in chunks that can be read in any order, or in order only, by `stream`; readers set some attributes."""

    name: str  # in messages: ``x.h5:/X``
    n_rows: int | None = None  # None if unknown before rows are read,
    n_features: int | None = None  # as well
    dtype: np.dtype[Any]  # of the values as read
    is_sparse: bool = False  # whether `Rows.X` is a csr_array
    n_bytes: int | None = None  # stored bytes that one pass reads (compressed size); None if unknown
    access: Access = Access()
    origin: Origin = Origin()
    feature_names: tuple[str, ...] | None = None  # names of the columns
    tfidf: Any = None  # the `TfIdf` that weights the rows

    def take_after(self, source: RowSource, **changed: Any) -> None:
        """Copy every attribute of `source` except those in `changed`, for a wrapper of it."""
        for attribute in RowSource.__annotations__:
            setattr(self, attribute, changed[attribute] if attribute in changed else getattr(source, attribute))

    @property
    def estimated_rows(self) -> int | None:
        """Number of rows, exact or estimated from a few places of the text; None if unknown."""
        return self.n_rows

    @property
    def estimated_features(self) -> int | None:
        """Number of features, exact or estimated (text: the widest row of its head); None if unknown."""
        return self.n_features

    @property
    def estimated_occurring(self) -> int | None:
        """Number of distinct features that occur, estimated from a few documents; None if unknown."""
        return None

    @property
    def lies_as_read(self) -> bool:
        """Whether dense rows are stored in local files as they are read, so that reads cost as much as copies."""
        access, origin = self.access, self.origin
        there = origin.files and not (self.is_sparse or access.decodes or access.in_process or access.streams)
        return bool(there) and origin.prepared_by is None and self.computed is None

    def chunks(self, target_bytes: int) -> ChunkRuns:  # noqa: ARG002
        """Cut the source into chunks of about `target_bytes` decoded bytes, always the same ones. Reads no rows.

        Chunks are in order, disjoint and covering. They end where storage chunks end, so that a pass reads each storage
        chunk once; a storage chunk above `target_bytes` is not split. There are none if the source `streams`.
        """
        return ChunkRuns.of(())

    def read(self, chunk: Chunk) -> Rows:  # noqa: ARG002
        """Read one chunk. Thread-safe and repeatable. Errors name the file, the dataset, row, line and byte."""
        raise TypeError(f"{self.name} streams rows; it has no chunks to read")

    def index_rows(self, chunk: Chunk) -> IndexedRows | None:  # noqa: ARG002
        """Find the rows of a chunk without reading them; None if that is no faster than `read`, or not safe."""
        return None

    @property
    def original(self) -> RowSource:
        """The source before its preparation; the source itself if there is none."""
        return self

    @property
    def computed(self) -> Any:
        """The Dask source whose tasks make the rows, if any: a cluster gets the graph of each chunk."""
        return None

    def original_bytes(self, target_bytes: int) -> int:
        """Decoded bytes of `original` that become `target_bytes` of these rows."""
        return target_bytes

    def finished(self, X: Matrix) -> Matrix:
        """Finish rows that a graph of Dask tasks has made."""
        return X

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        """Yield all rows in order, in pieces of about `target_bytes` decoded bytes, one piece in memory at a time."""
        for chunk in self.chunks(target_bytes):
            yield self.read(chunk)

    def describe(self, place: int) -> str:
        """Say where a row is, for messages: ``row 17 of x.h5:/X``. Rows are counted from 0."""
        return f"row {place:,} of {self.name}"

    def ids(self) -> Iterator[Any]:
        """Yield the values of `Origin.id_column` in order, by one pass over that column alone.

        Pieces are pyarrow.ChunkedArray; of documents, lists of str or None. Raises InvalidInputError: there is no such
        column, or rows can be read only once.
        """
        if self.origin.id_column is None:
            raise InvalidInputError(f"{self.name} has no column that names rows; give one as id_column=")
        return self._ids(self.origin.id_column)

    def _ids(self, column: str) -> Iterator[Any]:
        """Yield the values of a column that identifies rows."""
        raise NotImplementedError

    def stored_rows(self, apart: str) -> Iterator[Any]:
        """Batches of Arrow with all columns as stored; InvalidInputError: no Parquet, or a column named `apart`."""
        told = f"{self.name} is no Parquet table, whose rows alone are written by {apart}; convert it, as by DuckDB: "
        raise InvalidInputError(f"{told}COPY ... TO 'rows.parquet', or write labels alone to NAME.parquet")

    def details(self) -> dict[str, str]:
        """Describe the storage by labels and texts for people. Reads no rows, or a few at the head."""
        return {"not stored": lost} if (lost := self.origin.missing_chunks) else {}

    def take_read_bytes(self) -> int:
        """Return the stored bytes that the last pass read, and reset the count."""
        return self.n_bytes or 0

    def with_line_limit(self, limit: LineLimit) -> RowSource:  # noqa: ARG002
        """Return the source, refusing lines of text for which a plan has no room."""
        return self

    def remote_view(self) -> RowSource:
        """Return the source for calls on a cluster that get its rows sent: cheap to pickle, with the same row ids."""
        return RemoteView(self) if self.access.in_process else self


class WrappedSource(RowSource):
    """Rows of another source, changed by `apply` or cached; number and row ids are equal."""

    source: RowSource
    growth: float = 1.0  # bytes of a row over those of the source's

    def apply(self, X: Matrix) -> Matrix:
        """The rows made of the source's."""
        return X

    @property
    def estimated_rows(self) -> int | None:
        return self.source.estimated_rows

    @property
    def estimated_features(self) -> int | None:
        return self.source.estimated_features if self.n_features is None else self.n_features

    @property
    def estimated_occurring(self) -> int | None:
        return self.source.estimated_occurring

    @property
    def computed(self) -> Any:
        return self.source.computed

    def chunks(self, target_bytes: int) -> ChunkRuns:
        found = self.source.chunks(self.original_bytes(target_bytes))
        return found if self.growth == 1 else found.resized(lambda n_bytes: n_bytes * self.growth)

    def read(self, chunk: Chunk) -> Rows:
        return self._applied(self.source.read(chunk))

    def stream(self, target_bytes: int) -> Iterator[Rows]:
        return map(self._applied, self.source.stream(self.original_bytes(target_bytes)))

    def finished(self, X: Matrix) -> Matrix:
        return self.apply(self.source.finished(X))

    def describe(self, place: int) -> str:
        return self.source.describe(place)

    def details(self) -> dict[str, str]:
        return self.source.details()

    def ids(self) -> Iterator[Any]:
        return self.source.ids()

    def stored_rows(self, apart: str) -> Iterator[Any]:
        return self.source.stored_rows(apart)

    def take_read_bytes(self) -> int:
        return self.source.take_read_bytes()

    def with_line_limit(self, room: LineLimit) -> RowSource:
        return self._over(self.source.with_line_limit(room))

    def remote_view(self) -> RowSource:
        return self._over(self.source.remote_view())

    def _over(self, source: RowSource) -> RowSource:
        """A copy of this wrapper around another source."""
        if source is self.source:
            return self
        other = copy(self)
        other.source = source
        return other

    def original_bytes(self, target_bytes: int) -> int:
        return max(1, int(target_bytes / self.growth))

    def _applied(self, rows: Rows) -> Rows:
        return Rows(self.apply(rows.X), rows.row_ids)


class RemoteView(RowSource):
    """Attributes of a source whose rows are sent to a cluster; `describe` is needed if row ids are not row numbers."""

    def __init__(self, source: RowSource, describe: Callable[[int], str] | None = None) -> None:
        # the rows, and who makes them, are elsewhere
        access = replace(source.access, streams=True, resident_bytes=0, unloaded_bytes=0, producer_bytes=0)
        self.take_after(source, access=access)
        self._describe = describe

    def stream(self, target_bytes: int) -> NoReturn:  # noqa: ARG002
        raise TypeError(f"the rows of {self.name} are in another process, which sends them")

    chunks = stream

    def describe(self, place: int) -> str:
        return super().describe(place) if self._describe is None else self._describe(place)


def started(source: RowSource, made: Any) -> Iterator[Any]:
    """What a program makes for a source, from its start: `made` is an iterable, or a callable that returns one."""
    found = made() if callable(made) else made
    if not isinstance(found, Iterable):
        raise InvalidInputError(f"{source.name} gives {type(found).__name__}; a callable must return an iterator")
    return iter(found)


def restarted(source: RowSource, made: Any, begun: Iterator[Any] | None) -> Iterator[Any]:
    """The iterator that a first look has begun, or a fresh one. Raises InvalidInputError: an iterator was read."""
    if begun is None and not source.access.replayable:
        raise InvalidInputError(
            f"{source.name} is an iterator, which can be read only once; pass a list, or a callable that returns a "
            f"fresh iterator for every pass"
        )
    return begun or started(source, made)


def row_ids_between(start: int, stop: int) -> NDArray[np.int64]:
    """Places of rows that are identified by their number."""
    return np.arange(start, stop, dtype=np.int64)
