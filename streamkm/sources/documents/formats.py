"""Documents in text: one a line, one a line of JSON, or one a record of CSV. Opens no file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.formats import data_name, signed
from streamkm.sources.text_lines import MAX_LINE_BYTES, LineReader
from streamkm.text.feature_hashing import KINDS, Input, kind_remedy

DecodeError = Literal["strict", "ignore", "replace"]
NAMES = {"lines": "lines of text", "jsonl": "JSON lines", "csv": "CSV text"}
_NO_TEXT = ("utf-16", "parquet", "hdf5", "zip")
_SHOWN, _SHOWN_COLUMNS = 60, 12


class MalformedTextError(Exception):
    """Text that is malformed: what is wrong, and the byte of the file where it is."""

    def __init__(self, text: str, byte: int) -> None:
        super().__init__(text)
        self.text, self.byte = text, byte


@dataclass(frozen=True)
class TextFormat:
    """The format of documents in text files. Tokens of lines and of cells are what blanks separate."""

    form: str  # of `NAMES`
    input: Input  # {"text", "tokens", "counts"}; what documents are, as `FeatureHashing` has it
    decode_error: DecodeError  # {"strict", "ignore", "replace"}; what becomes of bytes that are not UTF-8
    fields: tuple[str | int, ...] = ()  # of JSON; columns of CSV by name, or by number from 0
    delimiter: str = ","  # one ASCII character
    header: bool = True  # whether the first record of every file of CSV names its columns
    of_ids: bool = False  # whether documents are the ids that the one field holds, None for records without one

    def of(self, column: str | int) -> TextFormat:
        """The format whose documents are the ids in a field or column."""
        return replace(self, input="text", fields=(column,), of_ids=True)

    def columns(self, reader: LineReader) -> tuple[int, ...]:
        """Numbers of the columns of CSV, from the beginning of a file; empty for other formats."""
        if self.form != "csv" or all(isinstance(field, int) for field in self.fields):
            return tuple(field for field in self.fields if isinstance(field, int))
        names = next((row for _, row, _ in self._rows(reader)), [])
        for field in self.fields:
            if isinstance(field, str) and field not in names:
                raise MalformedTextError(f"column {field!r} is missing; the header has {shown_names(names)}", 0)
        return tuple(field if isinstance(field, int) else names.index(field) for field in self.fields)

    def records(self, reader: LineReader, columns: tuple[int, ...] = ()) -> Iterator[tuple[int, Any, int]]:
        """Yield (position, document, position of the next) from the beginning of a line on.

        Raises MalformedTextError.
        """
        if self.form == "csv":
            yield from self._cells(reader, columns)
            return
        for position, line in _lines(reader):
            end = position + len(line) + 1
            if self.form == "lines":
                text = decoded(line.removesuffix(b"\r"), position, self.decode_error)
                yield position, text if self.input == "text" else text.split(), end
            elif line and not line.isspace():
                yield position, self._of_json(decoded(line, position, self.decode_error), position), end

    def _of_json(self, text: str, position: int) -> Any:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedTextError(f"malformed JSON: {error}; a JSON object a line is needed", position) from None
        if not isinstance(record, dict):
            needed = ", ".join(map(str, self.fields))
            raise MalformedTextError(f"JSON {_shown(record)} is no object; needed: {{{needed}: ...}}", position)
        if self.of_ids:
            value = record.get(self.fields[0])
            return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for field in self.fields:
            if field not in record:
                known = _shorten(", ".join(record) or "none")
                raise MalformedTextError(f"field {field!r} is missing; the object has {known}", position)
        try:
            return document_of({str(field): record[field] for field in self.fields}, self.input)
        except ValueError as error:
            raise MalformedTextError(str(error), position) from None

    def _cells(self, reader: LineReader, columns: tuple[int, ...]) -> Iterator[tuple[int, Any, int]]:
        skipped = self.header and reader.position == 0
        names = [str(field) for field in self.fields]
        for position, row, end in self._rows(reader):
            if skipped:
                skipped = False
                continue
            if max(columns) >= len(row):
                raise MalformedTextError(
                    f"column {max(columns)} is missing; the record has {len(row)} from 0", position
                )
            cells: list[Any] = [row[column] for column in columns]
            if self.input == "tokens":
                cells = [cell.split() for cell in cells]
            yield position, document_of(dict(zip(names, cells, strict=True)), self.input), end

    def _rows(self, reader: LineReader) -> Iterator[tuple[int, list[str], int]]:
        """Yield (position, cells, position of the next) by Python's csv module; blank lines are left out."""
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
                    yield start or 0, row, end
                start = None
        except csv.Error as error:
            raise MalformedTextError(f"malformed CSV: {error}", start or 0) from None


def _lines(reader: LineReader) -> Iterator[tuple[int, bytes]]:
    """Yield (position, line without its line feed) from where a reader is."""
    while True:
        at_start = reader.base == 0 and reader.end == 0
        try:
            loaded = reader.load()
        except InvalidInputError as error:
            raise MalformedTextError(str(error), reader.position) from None
        if not loaded:
            return
        block = bytes(reader.text[reader.start : reader.end])
        signature = signed(block[:8]) if at_start else None
        if signature in _NO_TEXT:
            remedy = "convert it to UTF-8" if signature == "utf-16" else "name its format, or unpack it"
            raise MalformedTextError(f"{data_name(signature)}, not UTF-8 text; {remedy}", 0)
        position, reader.start = reader.position, reader.end
        at = 0
        while at < len(block):
            end = block.index(b"\n", at)
            yield position + at, block[at:end]
            at = end + 1


def document_of(values: Mapping[str, Any], kind: Input) -> Any:
    """Make one document of the fields of a record.

    One field is the document itself, or its count. Of several, texts and lists of tokens follow each other, and counts
    keep their fields' names; a count that is null is none.

    Raises ValueError naming a field that is not what `kind` asks for.
    """
    if kind == "counts":
        only = next(iter(values.values()))
        counts = only if len(values) == 1 and isinstance(only, Mapping) else values
        return {name: count for name, count in counts.items() if count is not None}
    types, what = KINDS[kind]
    for name, value in values.items():
        if not isinstance(value, types):
            remedy = kind_remedy(value, "give every record one, if empty")
            raise ValueError(f'field {name!r} holds {_shown(value)} where input="{kind}" needs {what}{remedy}')
    if kind == "text":
        return "\n".join(values.values())
    return [token for tokens in values.values() for token in tokens]


def decoded(text: bytes, position: int, decode_error: DecodeError) -> str:
    """Decode UTF-8 that stands at a byte of a file; a byte order mark at its beginning is left out.

    Raises MalformedTextError naming the first byte that is wrong.
    """
    try:
        found = text.decode("utf-8", decode_error)
        return found.removeprefix("\ufeff") if position == 0 else found
    except UnicodeDecodeError as error:
        wrong = text[error.start]
        raise MalformedTextError(
            f'byte 0x{wrong:02x} is not UTF-8 ({error.reason}); convert the file, or pass decode_error="replace"',
            position + error.start,
        ) from None


def shown_names(names: list[str]) -> str:
    """The first names of columns, for messages."""
    return ", ".join(names[:_SHOWN_COLUMNS]) + (", ..." if len(names) > _SHOWN_COLUMNS else "") or "none"


def _shown(value: Any) -> str:
    return _shorten(json.dumps(value, default=repr))


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
