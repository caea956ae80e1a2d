"""Documents in text files, plain or compressed: one in each line, line of JSON, or record of CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.chunks import Chunk, ChunkRuns, Origin
from streamkm.sources.compressed_text import WHOLE, compression, describe_line, opened_text, read_text
from streamkm.sources.documents.hashed import HashedText, TextBatch
from streamkm.sources.documents.memory_documents import (
    SAMPLE_BYTES,
    Fields,
    MalformedTextError,
    Record,
    batch_of,
    document_of,
    joined,
    shown,
)
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.text_lines import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    PLACE_BITS,
    LineLimit,
    LineReader,
    LongLineError,
    text_size,
)
from streamkm.text import FeatureHashing

NAMES = {"lines": "lines of text", "jsonl": "JSON lines", "csv": "CSV text"}
PROBES = 8  # places of plain text that are looked at
IDS_BYTES = 1 << 22  # text of which ids are taken at a time
# CSV is cut where records start, which quoted line feeds hide: so many bytes apart, or a part in so many of a file
STEP_BYTES, STEPS = 1 << 16, 1 << 16
_SHORT = LineLimit(0, 0, 1)  # of lines in a look at the text


class TextFiles(HashedText):
    """Documents of text files in the format `form`, one of `NAMES`. A byte range of plain text owns what starts in it.

    `fields`: of JSON; columns of CSV by name, or by number from 0. `options`: `decode_error`, `delimiter`, and
    `header`: whether the first record of every CSV file names its columns. CSV is read once to find places of records,
    which are kept and pickled along. Places are bytes of the unpacked text. Raises InvalidInputError if all files are
    empty, or the first documents have no `id_column`; SourceError.
    """

    def __init__(
        self,
        paths: Sequence[str],
        hashing: FeatureHashing,
        form: str,
        fields: tuple[str | int, ...] = (),
        id_column: str | int | None = None,
        **options: Any,
    ) -> None:
        self.paths = tuple(map(opened_path, paths))
        self.origin = Origin(self.paths, id_column=None if id_column is None else str(id_column))
        self.sizes = tuple(map(text_size, self.paths))
        if len(self.paths) > 1 << (63 - PLACE_BITS):
            raise InvalidParameterError(f"1 to {1 << (63 - PLACE_BITS):,} files are needed, got {len(self.paths):,}")
        self.n_bytes: int = sum(self.sizes)
        self.name = name_of(self.paths)
        packed = {compression(path).replace("plain", "none") for path in self.paths}
        self.access = replace(self.access, streams=packed != {"none"})
        taken: dict[str, Any] = {"form": form, "input": hashing.input, "decode_error": "strict", "fields": fields}
        taken |= {"delimiter": ",", "header": True, **options}
        super().__init__(hashing, {"format": NAMES[form], "compression": " and ".join(sorted(packed))}, taken)
        self.form, self.fields = form, fields
        self.decode_error, self.delimiter = taken["decode_error"], taken["delimiter"]
        self.has_names = form == "csv" and taken["header"]
        self._starts: dict[int, NDArray[np.int64]] = {}
        self._id_field = id_column
        first: list[str | None] = [] if id_column is None else next(self.ids(), [])
        if first and all(each is None for each in first):
            raise InvalidInputError(f"{self.name}: the first {len(first):,} documents have no field {id_column!r}")

    def cuts(self, text_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        for part, size in enumerate(self.sizes):
            n_chunks = -(-size // text_bytes)
            cuts = [size * number // n_chunks for number in range(n_chunks + 1)] if size else []
            if self.form == "csv" and n_chunks > 1:
                starts = self._record_starts(part)
                cuts = np.unique(starts[np.searchsorted(starts, cuts)]).tolist()
            for start, stop in pairwise(cuts):
                yield part, start, stop, stop - start

    def _record_starts(self, part: int) -> NDArray[np.int64]:
        """Places of records of CSV, at least a step apart, from the beginning of a file to its end."""
        if part not in self._starts:
            size, starts = self.sizes[part], [0]
            for place, _, _ in self._records(part):
                position = place - (part << PLACE_BITS)
                if position >= starts[-1] + max(STEP_BYTES, size // STEPS):
                    starts.append(position)
            self._starts[part] = np.array([*starts, size], np.int64)
        return self._starts[part]

    def batch(self, chunk: Chunk) -> TextBatch:
        return batch_of(list(self._records(chunk.part, chunk.start, chunk.stop)))

    def batches(self, text_bytes: int) -> Iterator[TextBatch]:
        return joined(chain.from_iterable(map(self._records, range(len(self.paths)))), text_bytes)

    def _records(
        self,
        part: int,
        start: int = 0,
        stop: int = WHOLE,
        *,
        is_look: bool = False,
        made: Callable[[Fields], Any] | None = None,
    ) -> Iterator[Record]:
        """Yield (place, document, bytes of text) of records that start in a byte range; `made` maps their fields.

        Raises LongLineError at a long line in a look at the text.
        """
        made = made or (lambda fields: document_of(fields, self.fields or fields, self.hashing.input))
        before = max(start - 1, 0)  # a line feed there tells that a line starts
        position = 0
        try:
            names = self._names(part) if self.has_names else []
            with opened_text(self.paths[part], before) as (fill, _):
                how: dict[str, Any] = {"limit": _SHORT} if is_look else {"source": self, "part": part}
                reader = LineReader(fill, before, **how)
                if start > 0 and not reader.skip_line(stop):
                    return
                records = self._of_csv(reader, names) if self.form == "csv" else self._of_lines(reader)
                for position, fields, end in islice(records, int(self.has_names and start == 0), None):
                    if position < stop:
                        yield part << PLACE_BITS | position, made(fields), end - position
                    if end >= stop:
                        break
        except MalformedTextError as problem:
            said, byte = (*problem.args, position)[:2]
            raise InvalidInputError(f"{self.describe(part << PLACE_BITS | byte)}: {said}") from None

    def _names(self, part: int) -> Sequence[str]:
        """Names of the columns of a file of CSV: its first record."""
        with opened_text(self.paths[part]) as (fill, _):
            reader = LineReader(fill, 0, STEP_BYTES, source=self, part=part)
            return [*next(self._of_csv(reader, ()), (0, {}, 0))[1].values()]

    def _of_lines(self, reader: LineReader) -> Iterator[tuple[int, Fields, int]]:
        """Yield (position, fields, position of the next) of lines of text or JSON."""
        for position, line in _lines(reader):
            end = position + len(line) + 1
            if self.form == "lines":
                yield position, {"line": decoded(line.removesuffix(b"\r"), position, self.decode_error)}, end
            elif line and not line.isspace():
                yield position, _object(decoded(line, position, self.decode_error), position), end

    def _of_csv(self, reader: LineReader, names: Sequence[str]) -> Iterator[tuple[int, Fields, int]]:
        """Yield records of CSV in the form of `_of_lines`, by Python's csv module; blank lines are left out."""
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
                if row:
                    yield start or 0, {**dict(zip(names, row, strict=False)), **dict(enumerate(row))}, end
                start = None
        except csv.Error as error:
            raise MalformedTextError(f"malformed CSV: {error}", start or 0) from None

    def sample(self) -> tuple[TextBatch, float | None]:
        """Look at places all through plain lines, else at the beginning of some files, each up to a long line."""
        if not self.access.streams and self.form != "csv":
            chunks = ChunkRuns.of(self.cuts(-(-max(self.n_bytes, SAMPLE_BYTES) // PROBES)))
            spread = [chunks[i] for i in np.unique(np.linspace(0, len(chunks) - 1, PROBES).astype(int)).tolist()]
            step = SAMPLE_BYTES // PROBES
            probes = [(chunk.part, chunk.start, min(chunk.start + step, chunk.stop)) for chunk in spread]
        else:
            parts = np.flatnonzero(self.sizes)[:PROBES].tolist()
            probes = [(part, 0, SAMPLE_BYTES // len(parts)) for part in parts]
        found: list[Record] = []
        for probe in probes:
            with suppress(LongLineError):  # those in front of a long line are kept
                found.extend(self._records(*probe, is_look=True))
        with opened_text(self.paths[int(np.argmax(self.sizes))]) as (fill, raw):
            unpacked = 1.0 if not self.access.streams else len(read_text(fill, BLOCK_BYTES)) / max(raw.tell(), 1)
        return batch_of(found), self.n_bytes * unpacked

    def _ids(self, column: str) -> Iterator[list[str | None]]:  # noqa: ARG002
        records = (self._records(part, made=self._id) for part in range(len(self.paths)))
        return (batch.documents for batch in joined(chain.from_iterable(records), IDS_BYTES))

    def _id(self, fields: Fields) -> str | None:
        value = fields.get(self._id_field)
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def describe(self, place: int) -> str:
        return describe_line(self.paths, place)


def _lines(reader: LineReader) -> Iterator[tuple[int, bytes]]:
    """Yield (position, line without its line feed) from a reader's position on."""
    while reader.load():
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


def decoded(text: bytes, position: int, decode_error: str) -> str:
    """UTF-8 at a byte of a file as text, without byte order mark. Raises MalformedTextError with the first bad byte."""
    try:
        found = text.decode("utf-8", decode_error)
        return found.removeprefix("\ufeff") if position == 0 else found
    except UnicodeDecodeError as error:
        problem = f"byte 0x{text[error.start]:02x} is not UTF-8 ({error.reason})"
        remedy = 'convert the file, or pass decode_error="replace"'
        raise MalformedTextError(f"{problem}; {remedy}", position + error.start) from None
