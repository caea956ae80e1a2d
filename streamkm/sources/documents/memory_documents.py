"""Documents in memory or made by a program, and the document in a record of any file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chunks import Chunk
from streamkm.sources.documents.hashed import HashedText, TextBatch
from streamkm.sources.row_source import restarted, row_ids_between, started
from streamkm.sources.text_lines import BLOCK_BYTES
from streamkm.text.feature_hashing import KINDS, FeatureHashing, Input, kind_remedy

SAMPLE_BYTES = 1 << 17  # text that is looked at to tell how many rows there are, and how large they become
OBJECT_BYTES = 64  # of a document as a Python object, beside its text
_SHOWN, _SHOWN_NAMES = 60, 12  # characters of a value, and names, in messages


Fields: TypeAlias = Mapping[Any, Any]
"""Values of a record by name; of CSV also by number, from 0."""

Record: TypeAlias = tuple[int, Any, int]
"""The place of a document, the document, and its bytes of text."""


class MalformedTextError(Exception):
    """Malformed text, or a missing or unfit field; and the byte of the file, if known."""


class DocumentList(HashedText):
    """Documents of a sequence in memory, which is not copied; pickles with all of them."""

    access = replace(HashedText.access, in_process=True)
    _ends: NDArray[np.int64]  # (units,): bytes up to each, and with it

    def __init__(self, documents: Sequence[Any], hashing: FeatureHashing, name: str = "list of documents") -> None:
        self._documents = documents
        self.name = name
        self.n_rows: int = len(documents)
        sizes = np.fromiter(map(document_bytes, documents), np.int64, self.n_rows)
        self._ends, self.n_bytes = np.cumsum(sizes), int(sizes.sum())
        super().__init__(hashing, {"format": "documents in memory"})
        self.access = replace(self.access, resident_bytes=self.n_bytes + OBJECT_BYTES * self.n_rows)

    def cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Runs of documents of about `text_bytes`. O(runs log n)."""
        start = done = 0
        while start < len(self._ends):
            stop = max(start + 1, int(np.searchsorted(self._ends, done + text_bytes, side="right")))
            end = int(self._ends[stop - 1])
            yield 0, start, stop, end - done
            start, done = stop, end

    def batch(self, chunk: Chunk) -> TextBatch:
        documents = [self.document(number) for number in range(chunk.start, chunk.stop)]
        return TextBatch(documents, row_ids_between(chunk.start, chunk.stop), chunk.n_bytes)

    def document(self, number: int) -> Any:
        """The document at a number, from 0."""
        return self._documents[number]

    def sample(self) -> tuple[TextBatch, float | None]:
        """Look at documents all through the list, except long ones."""
        sizes, total = np.diff(self._ends, prepend=0), int(self._ends[-1])
        chosen = np.flatnonzero(sizes < BLOCK_BYTES)[:: max(1, total // SAMPLE_BYTES)]
        documents = [self.document(number) for number in chosen.tolist()]
        return TextBatch(documents, chosen, int(sizes[chosen].sum())), float(total)


class DocumentStream(HashedText):
    """Documents that a program makes one at a time while they are read.

    `documents`: an iterator is read once; other iterables, and callables that return a fresh iterator, every pass.
    """

    access = replace(HashedText.access, in_process=True, streams=True)
    name = "iterable of documents"

    def __init__(self, documents: Iterable[Any] | Callable[[], Iterable[Any]], hashing: FeatureHashing) -> None:
        self._documents = documents
        self.access = replace(self.access, replayable=not isinstance(documents, Iterator))
        how = "made anew for every pass" if self.access.replayable else "read only once"
        super().__init__(hashing, {"format": f"documents of a program, {how}"})
        iterator = started(self, documents)
        self._head = next(joined(_numbered(iterator), SAMPLE_BYTES), None)
        if self._head is None:
            raise InvalidInputError(f"{self.name} gives no documents; at least 1 is needed")
        self._begun: Iterator[Any] | None = chain(self._head.documents, iterator)

    def batches(self, text_bytes: int) -> Iterator[TextBatch]:
        iterator, self._begun = restarted(self, self._documents, self._begun), None
        yield from joined(_numbered(iterator), text_bytes)

    def sample(self) -> tuple[TextBatch, float | None]:
        assert self._head is not None
        return self._head, None


def batch_of(records: Sequence[Record]) -> TextBatch:
    """One batch of all records."""
    row_ids, documents, sizes = zip(*records, strict=True) if records else ((), (), ())
    return TextBatch(list(documents), np.array(row_ids, np.int64), sum(sizes))


def joined(records: Iterable[Record], text_bytes: int) -> Iterator[TextBatch]:
    """Records in batches that end with the document that reaches `text_bytes`."""
    held: list[Record] = []
    size = 0
    for record in records:
        held.append(record)
        size += record[2]
        if size >= text_bytes:
            yield batch_of(held)
            held, size = [], 0
    if held:
        yield batch_of(held)


def _numbered(documents: Iterable[Any]) -> Iterator[Record]:
    return ((place, document, document_bytes(document)) for place, document in enumerate(documents))


def document_bytes(document: Any) -> int:
    """Characters of a document, as Python shows it, and one for its end."""
    return len(str(document)) + 1


def document_of(record: Fields, fields: Iterable[str | int], kind: Input) -> Any:
    """One document from fields of a record; blanks separate the tokens of text. Raises MalformedTextError.

    One field is the document itself, or its count. Of several, texts and lists of tokens are joined in order, and
    counts keep their fields' names; null counts are left out.
    """
    values: dict[str, Any] = {}
    for field in fields:
        if field not in record:
            raise MalformedTextError(f"field {field!r} is missing; the record has {shown_names(record)}")
        value = record[field]
        values[str(field)] = value.split() if kind == "tokens" and isinstance(value, str) else value
    if kind == "counts":
        only = next(iter(values.values()))
        counts = only if len(values) == 1 and isinstance(only, Mapping) else values
        return {name: count for name, count in counts.items() if count is not None}
    types, what = KINDS[kind]
    for name, value in values.items():
        if not isinstance(value, types):
            remedy = kind_remedy(value, "give every record one, if empty")
            raise MalformedTextError(f'field {name!r} holds {shown(value)} where input="{kind}" needs {what}{remedy}')
    return "\n".join(values.values()) if kind == "text" else [*chain.from_iterable(values.values())]


def shown_names(names: Iterable[str | int]) -> str:
    """The first names of fields or columns, for messages."""
    return ", ".join(map(str, islice(names, _SHOWN_NAMES)))


def shown(value: Any) -> str:
    """The beginning of a value, for messages."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
