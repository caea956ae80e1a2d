"""The contract of documents: texts, token lists or dicts in order, in pieces; and those that are in memory already.

What becomes of documents is not known here: `hashed` makes rows of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.base import row_places
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.long_lines import LineCost, LineRoom, LongLine

SAMPLE_BYTES = 1 << 17
"""Text that is looked at to tell how many rows there are, and how large they become."""

OBJECT_BYTES = 64
"""Of a document as a Python object, beside its text."""

_IN_WORDS = np.array([chr(byte).isalnum() or byte == ord("_") or byte >= 0x80 for byte in range(256)])


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents as read."""

    documents: list[Any]  # of str, of lists of str, or of mappings
    places: NDArray[np.int64]  # (documents,); as in `Rows`
    n_bytes: int  # text that they take up


class Documents(ABC):
    """Documents in order; cheap to pickle unless they are in memory.

    `name`, `n_rows`, `n_bytes`, `replayable`, `resident_bytes`, `in_process`, `files`, `libraries`, `id_column`: as of
    `RowSource`.
    """

    name: str
    n_rows: int | None
    n_bytes: int | None
    replayable: bool = True
    resident_bytes: int = 0
    in_process: bool = False
    files: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("words",)  # what takes texts apart
    id_column: str | None = None

    @abstractmethod
    def stream(self, text_bytes: int) -> Iterator[Batch]:
        """Yield all documents in order, about `text_bytes` of text at a time."""

    @abstractmethod
    def sample(self) -> tuple[Batch, float | None]:
        """Look at a few documents: these, and the bytes of text in all if that is known. Bounded effort."""

    def describe(self, place: int) -> str:
        """Say where a document is; see `RowSource.describe`."""
        return f"row {place:,} of {self.name}"

    def with_line_room(self, room: LineRoom, cost: LineCost) -> Documents:  # noqa: ARG002
        """Give the same documents; of files, lines that take too much are refused; see `RowSource.with_line_room`."""
        return self

    def ids(self) -> Iterator[list[str | None]]:
        """Yield ids of the documents in order, None for each without one; nothing where there is no `id_column`."""
        return iter(())

    def details(self) -> dict[str, str]:
        """See `RowSource.details`."""
        return {}

    def taken(self) -> dict[str, Any]:
        """What of the files makes a document, as JSON values."""
        return {}


class ChunkedDocuments(Documents):
    """Documents whose pieces can be read in any order, in any thread or process."""

    @abstractmethod
    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        """Cut into chunks of about `text_bytes` of text, which is their `n_bytes`; see `ChunkedSource.chunks`."""

    @abstractmethod
    def read(self, chunk: Chunk) -> Batch:
        """Read one chunk. Thread-safe and repeatable."""

    def stream(self, text_bytes: int) -> Iterator[Batch]:
        for chunk in self.chunks(text_bytes):
            yield self.read(chunk)

    @property
    def long_lines(self) -> tuple[LongLine, ...]:
        """Those that were seen; see `find_long_lines`. None, where documents are no lines of files."""
        return ()


class DocumentList(ChunkedDocuments):
    """Documents of a sequence in memory, which is not copied. Pickles with all of them."""

    in_process = True

    def __init__(self, documents: Sequence[Any], *, name: str = "list of documents") -> None:
        if not len(documents):
            raise InvalidInputError(f"{name} has 0 documents; at least 1 is needed")
        self._documents = documents
        self.name = name
        self.n_rows: int = len(documents)
        sizes = np.fromiter(map(document_bytes, documents), np.int64, len(documents))
        self._ends = np.cumsum(sizes)
        self.n_bytes = int(self._ends[-1])
        self.resident_bytes = self.n_bytes + OBJECT_BYTES * self.n_rows

    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        """Cut between documents; O(chunks log n)."""
        return cut_documents(self._ends, text_bytes)

    def read(self, chunk: Chunk) -> Batch:
        before = self._ends[chunk.start - 1] if chunk.start else 0
        documents = list(self._documents[chunk.start : chunk.stop])
        return Batch(documents, row_places(chunk.start, chunk.stop), int(self._ends[chunk.stop - 1] - before))

    def sample(self) -> tuple[Batch, float | None]:
        return self.read(self.chunks(SAMPLE_BYTES)[0]), float(self._ends[-1])

    def details(self) -> dict[str, str]:
        return {"format": "documents in memory"}


class DocumentStream(Documents):
    """Documents that a program makes while they are read, one at a time.

    `documents`: an iterator is read once; any other iterable, and a callable that returns a fresh iterator, as often as
    it takes.
    """

    n_rows = None
    n_bytes = None
    in_process = True

    def __init__(
        self, documents: Iterable[Any] | Callable[[], Iterable[Any]], *, name: str = "iterable of documents"
    ) -> None:
        self.name = name
        self._documents = documents
        self.replayable = not isinstance(documents, Iterator)
        iterator = self._start()
        self._head: list[Any] = []
        size = 0
        for document in iterator:
            self._head.append(document)
            size += document_bytes(document)
            if size >= SAMPLE_BYTES:
                break
        if not self._head:
            raise InvalidInputError(f"{name} gives no documents; at least 1 is needed")
        self._head_bytes = size
        self._begun: Iterator[Any] | None = chain(list(self._head), iterator)

    def stream(self, text_bytes: int) -> Iterator[Batch]:
        if self._begun is None and not self.replayable:
            raise InvalidInputError(
                f"{self.name} is an iterator, which can be read once only; pass a list, or a callable that returns a "
                f"fresh iterator for every pass"
            )
        iterator, self._begun = self._begun or self._start(), None
        held: list[Any] = []
        place = size = 0
        for document in iterator:
            held.append(document)
            size += document_bytes(document)
            if size >= text_bytes:
                yield Batch(held, row_places(place, place + len(held)), size)
                place, held, size = place + len(held), [], 0
        if held:
            yield Batch(held, row_places(place, place + len(held)), size)

    def sample(self) -> tuple[Batch, float | None]:
        return Batch(self._head, row_places(0, len(self._head)), self._head_bytes), None

    def details(self) -> dict[str, str]:
        return {
            "format": f"documents of a program, {'made anew for every pass' if self.replayable else 'read once only'}"
        }

    def _start(self) -> Iterator[Any]:
        made = self._documents() if callable(self._documents) else self._documents
        if not isinstance(made, Iterable):
            raise InvalidInputError(f"{self.name} gives {type(made).__name__}; a callable must return an iterator")
        return iter(made)


def document_bytes(document: Any) -> int:
    """Text of a document, about: characters, and one more for whatever ends it."""
    if isinstance(document, str):
        return len(document) + 1
    if isinstance(document, Mapping):
        return sum(len(str(name)) + 9 for name in document) + 1
    if isinstance(document, list | tuple):
        return sum(len(str(token)) + 1 for token in document) + 1
    return 1


def count_words(text: NDArray[np.uint8]) -> int:
    """Words in a piece of text, about."""
    in_words = _IN_WORDS[text]
    return int(np.count_nonzero(in_words[1:] > in_words[:-1])) + 1


def check_target(n_bytes: int) -> None:
    """Refuse a size of chunks that is not positive."""
    if n_bytes < 1:
        raise InvalidParameterError(f"target_bytes must be positive, got {n_bytes}")


def cut_documents(ends: NDArray[np.int64], text_bytes: int) -> ChunkRuns:
    """Cut between documents into chunks of about so many bytes; `ends` (n,): bytes up to each. O(chunks log n)."""
    return ChunkRuns.of(_cuts(ends, text_bytes))


def _cuts(ends: NDArray[np.int64], text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    start, done = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + text_bytes, side="right")))
        end = int(ends[stop - 1])
        yield 0, start, stop, end - done
        start, done = stop, end
