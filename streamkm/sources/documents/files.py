"""Documents in text files, plain or compressed: one a line, one a line of JSON, or one a record of CSV.

A record is what `TextFormat` says; `TextFiles` opens files and cuts them into ranges of bytes.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.documents.base import (
    SAMPLE_BYTES,
    Batch,
    Documents,
    Fields,
    MalformedTextError,
    Record,
    batch_of,
    batches,
    document_of,
    shown,
)
from streamkm.sources.long_lines import refuse_long
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.svmlight.compressed import compression, describe_line, opened_text, read_text
from streamkm.sources.text_lines import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    PLACE_BITS,
    LineReader,
    LongLineError,
    Watch,
    stop_at_long,
    text_size,
)
from streamkm.text.feature_hashing import Input

DecodeError = Literal["strict", "ignore", "replace"]
NAMES = {"lines": "lines of text", "jsonl": "JSON lines", "csv": "CSV text"}
PROBES = 8  # places of plain text that are looked at
IDS_BYTES = 1 << 22  # text of which ids are taken at a time
# CSV is cut where records start, which quoted line feeds hide: so many bytes apart, or a part in so many of a file
STEP_BYTES, STEPS = 1 << 16, 1 << 16
_EVERYTHING = 1 << 62


@dataclass(frozen=True)
class TextFormat:
    """The format of documents in text files."""

    form: str  # of `NAMES`
    input: Input  # {"text", "tokens", "counts"}; what documents are, as `FeatureHashing` has it
    decode_error: DecodeError  # {"strict", "ignore", "replace"}; what becomes of bytes that are not UTF-8
    fields: tuple[str | int, ...] = ()  # of JSON; columns of CSV by name, or by number from 0
    delimiter: str = ","  # one ASCII character
    header: bool = True  # whether the first record of every file of CSV names its columns

    def records(self, reader: LineReader, names: list[str] | None = None) -> Iterator[tuple[int, Fields, int]]:
        """Yield (position, fields, position of the next); the first record of CSV is a header where `names` is None."""
        if self.form == "csv":
            yield from self._rows(reader, names)
            return
        for position, line in _lines(reader):
            end = position + len(line) + 1
            if self.form == "lines":
                yield position, {"line": decoded(line.removesuffix(b"\r"), position, self.decode_error)}, end
            elif line and not line.isspace():
                yield position, _object(decoded(line, position, self.decode_error), position), end

    def _rows(self, reader: LineReader, header: list[str] | None) -> Iterator[tuple[int, Fields, int]]:
        """Yield the records that Python's csv module finds; blank lines are left out."""
        # long documents are longer than the module's limit, which is one for all of the process
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
        start: int | None = None
        end = 0

        def texts() -> Iterator[str]:
            nonlocal start, end
            for position, line in _lines(reader):  # the module asks for a line only when it needs one
                start, end = position if start is None else start, position + len(line) + 1
                yield decoded(line, position, self.decode_error) + "\n"

        try:
            for row in csv.reader(texts(), delimiter=self.delimiter, strict=True):
                if row and header is None and self.header:
                    header = row
                elif row:
                    record: dict[Any, Any] = {}
                    for name, cell in zip(header or (), row, strict=False):
                        record.setdefault(name, cell)  # of equal names the first counts
                    yield start or 0, record | dict(enumerate(row)), end
                start = None
        except csv.Error as error:
            raise MalformedTextError(f"malformed CSV: {error}", start or 0) from None


class TextFiles(Documents):
    """Documents of text files. Plain text is cut at byte ranges, of which each owns what starts in it.

    CSV is read once to find places where records start, which are kept and pickled along. Places are bytes of the
    unpacked text. Raises InvalidParameterError, SourceError, SourceNotFoundError: no path; a path that does not exist
    or is no regular file. Raises InvalidInputError if all files are empty.
    """

    n_rows = None
    _id_field: str | int | None = None  # the field of which ids are made, in place of documents

    def __init__(self, paths: Sequence[str | os.PathLike[str]], text_format: TextFormat) -> None:
        self.files = self.paths = tuple(opened_path(os.fspath(path)) for path in paths)
        if not 0 < len(self.paths) <= 1 << (63 - PLACE_BITS):
            raise InvalidParameterError(f"1 to {1 << (63 - PLACE_BITS):,} files are needed, got {len(self.paths):,}")
        self.text_format = text_format
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes: int = sum(self.sizes)
        self.name = name_of(self.paths)
        packed = {compression(path).replace("plain", "none") for path in self.paths}
        self.chunked = packed == {"none"}
        self._starts: dict[int, NDArray[np.int64]] = {}
        files = f" in {len(paths):,} files" if len(paths) > 1 else ""
        self.details = {"format": NAMES[text_format.form] + files, "compression": " and ".join(sorted(packed))}
        self.taken = asdict(text_format)
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: empty, 0 bytes; at least 1 document is needed")

    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        return ChunkRuns.of(self._cuts(text_bytes))

    def _cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        for part, size in enumerate(self.sizes):
            n_chunks = -(-size // text_bytes)
            cuts = [size * number // n_chunks for number in range(n_chunks + 1)] if size else []
            if self.text_format.form == "csv" and n_chunks > 1:
                starts = self._record_starts(part)
                cuts = np.unique(starts[np.searchsorted(starts, cuts)]).tolist()
            for start, stop in pairwise(cuts):
                yield part, start, stop, stop - start

    def _record_starts(self, part: int) -> NDArray[np.int64]:
        """Places of records of CSV, a step or more apart, from the beginning of a file to its end."""
        if part not in self._starts:
            size, starts = self.sizes[part], [0]
            for place, _, _ in self._records(part):
                position = place - (part << PLACE_BITS)
                if position >= starts[-1] + max(STEP_BYTES, size // STEPS):
                    starts.append(position)
            self._starts[part] = np.array([*starts, size], np.int64)
        return self._starts[part]

    def read(self, chunk: Chunk) -> Batch:
        return batch_of(list(self._records(chunk.part, chunk.start, chunk.stop)))

    def stream(self, text_bytes: int) -> Iterator[Batch]:
        """Yield all documents in order; pieces may span files."""
        parts = np.flatnonzero(self.sizes).tolist()
        return batches(chain.from_iterable(map(self._records, parts)), text_bytes)

    def _records(
        self, part: int, start: int = 0, stop: int = _EVERYTHING, watch: Watch | None = None
    ) -> Iterator[Record]:
        """Yield (place, document, bytes of text) for records that start in a range of bytes."""
        if watch is None and self._line_bound is not None:
            watch = partial(refuse_long, lambda byte: self.describe(part << PLACE_BITS | byte), *self._line_bound)
        before = max(start - 1, 0)  # a line feed there tells that a line starts
        with opened_text(self.paths[part], before) as (fill, _):
            reader = LineReader(fill, before, watch=watch)
            if start > 0 and not reader.skip_line(stop):
                return
            position = 0
            try:
                names = self._names(part) if start > 0 else None
                for position, fields, end in self.text_format.records(reader, names):
                    if position < stop:
                        yield part << PLACE_BITS | position, self._made(fields), end - position
                    if end >= stop:
                        break
            except MalformedTextError as problem:
                place = part << PLACE_BITS | (position if problem.byte is None else problem.byte)
                raise InvalidInputError(f"{self.describe(place)}: {problem}") from None

    def _names(self, part: int) -> list[str] | None:
        """Names of the columns of a file of CSV, for records behind its beginning."""
        if self.text_format.form != "csv" or not self.text_format.header:
            return None
        with opened_text(self.paths[part]) as (fill, _):
            rows = replace(self.text_format, header=False).records(LineReader(fill, 0, STEP_BYTES))
            return [*next(rows)[1].values()]

    def _made(self, fields: Fields) -> Any:
        """The document of a record, or its id."""
        if self._id_field is None:
            return document_of(fields, self.text_format.fields or fields, self.text_format.input)
        value = fields.get(self._id_field)
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def sample(self) -> tuple[Batch, float | None]:
        """Look at places all through plain lines, else at the beginning of the first files; up to a long line each."""
        if spread_out := self.chunked and self.text_format.form != "csv":
            chunks, step = self.chunks(-(-max(self.n_bytes, SAMPLE_BYTES) // PROBES)), SAMPLE_BYTES // PROBES
            spread = [chunks[i] for i in np.unique(np.linspace(0, len(chunks) - 1, PROBES).astype(int)).tolist()]
            probes = [(chunk.part, chunk.start, min(chunk.start + step, chunk.stop)) for chunk in spread]
        else:
            probes = [(part, 0, SAMPLE_BYTES) for part in np.flatnonzero(self.sizes).tolist()]
        found: list[Record] = []
        for probe in probes:
            with suppress(LongLineError):
                for record in self._records(*probe, stop_at_long):
                    found.append(record)  # noqa: PERF402 - those in front of a long line are kept
            if sum(n_bytes for _, _, n_bytes in found) >= SAMPLE_BYTES and not spread_out:
                break
        with opened_text(self.paths[int(np.argmax(self.sizes))]) as (fill, raw):
            unpacked = 1.0 if self.chunked else len(read_text(fill, BLOCK_BYTES)) / max(raw.tell(), 1)
        return batch_of(found), self.n_bytes * unpacked

    def name_by(self, column: str | int) -> None:
        """Take a field or column for the documents' names. Raises InvalidInputError: the first documents have none."""
        self.id_column = str(column)
        self._ids = copy(self)
        self._ids._id_field = column
        first = next(self.ids(), [])
        if first and all(each is None for each in first):
            raise InvalidInputError(f"{self.name}: the first {len(first):,} documents have no field {column!r}")

    def ids(self) -> Iterator[list[str | None]]:
        """See `Documents.ids`: one pass over the text."""
        return (batch.documents for batch in self._ids.stream(IDS_BYTES))

    def describe(self, place: int) -> str:
        """Say where a document is: ``x.jsonl, line 7 (byte 512)``; lines are counted from 1."""
        return describe_line(self.paths, place)


def _lines(reader: LineReader) -> Iterator[tuple[int, bytes]]:
    """Yield (position, line without its line feed) from where a reader is."""
    while True:
        try:
            loaded = reader.load()
        except InvalidInputError as error:
            raise MalformedTextError(str(error), reader.position) from None
        if not loaded:
            return
        block = bytes(reader.text[reader.start : reader.end])
        position, reader.start = reader.position, reader.end
        at = 0
        while at < len(block):
            end = block.index(b"\n", at)
            yield position + at, block[at:end]
            at = end + 1


def _object(text: str, position: int) -> Fields:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedTextError(f"malformed JSON: {error}; a JSON object a line is needed", position) from None
    if not isinstance(found, dict):
        raise MalformedTextError(f"JSON {shown(found)} is no object; needed: {{field: ...}}", position)
    return found


def decoded(text: bytes, position: int, decode_error: DecodeError) -> str:
    """UTF-8 at a byte of a file as text, without a byte order mark at its beginning.

    Raises MalformedTextError naming the first byte that is wrong.
    """
    try:
        found = text.decode("utf-8", decode_error)
        return found.removeprefix("\ufeff") if position == 0 else found
    except UnicodeDecodeError as error:
        problem = f"byte 0x{text[error.start]:02x} is not UTF-8 ({error.reason})"
        remedy = 'convert the file, or pass decode_error="replace"'
        raise MalformedTextError(f"{problem}; {remedy}", position + error.start) from None
