"""What a record of text is: a line, or a line of JSON, and which fields of a record make a document.

Opens no file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sources.documents.records import Lines, MalformedTextError, TextFormat
from streamkm.sources.text_positions import Fill
from streamkm.text.feature_hashing import Input

DecodeError = Literal["strict", "ignore", "replace"]
_SHOWN = 60
_INPUTS = ((str, "text"), (list, "tokens"), (dict, "counts"))


@dataclass(frozen=True)
class LineFormat:
    """What formats share in which every line feed ends a record."""

    input: Input  # {"text", "tokens", "counts"}; what documents are, as `FeatureHashing` has it
    decode_error: DecodeError  # {"strict", "ignore", "replace"}; what becomes of bytes that are not UTF-8

    cut_anywhere = True

    def columns(self, lines: Lines) -> None:
        """There are none."""

    def of_ids(self, column: str | int) -> TextFormat:
        """Give the format whose documents are ids; lines have none."""
        raise InvalidParameterError(f"id_column={column!r} does not apply to lines of text")

    def starts(self, fill: Fill, size: int, step: int) -> NDArray[np.int64]:  # noqa: ARG002
        """Every line starts a record, so multiples of `step` serve as they are."""
        return np.minimum(np.arange(0, size + step, step, dtype=np.int64), size)


@dataclass(frozen=True)
class TextLines(LineFormat):
    """A document a line, blank lines too. Tokens are what blanks separate."""

    name = "lines of text"

    def records(self, lines: Lines, columns: tuple[int, ...] | None) -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        for position, line in lines:
            text = decoded(line.removesuffix(b"\r"), position, self.decode_error)
            yield position, text if self.input == "text" else text.split()


@dataclass(frozen=True)
class JsonLines(LineFormat):
    """A JSON object a line, of which some fields make the document. Blank lines are left out."""

    fields: tuple[str, ...]

    name = "JSON lines"

    def records(self, lines: Lines, columns: tuple[int, ...] | None) -> Iterator[tuple[int, Any]]:  # noqa: ARG002
        for position, line in lines:
            if line and not line.isspace():
                text = decoded(line, position, self.decode_error)
                yield position, self._document(text, position)

    def of_ids(self, column: str | int) -> JsonIds:
        """Give the format whose documents are the values of a field; see `TextFormat.of_ids`."""
        return JsonIds("text", self.decode_error, (str(column),))

    def _record(self, text: str, position: int) -> dict[str, Any]:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedTextError(f"malformed JSON: {error}; a JSON object a line is needed", position) from None
        if not isinstance(record, dict):
            raise MalformedTextError(
                f"JSON {_shown(record)} is no object; needed: {{{', '.join(self.fields)}: ...}}", position
            )
        return record

    def _document(self, text: str, position: int) -> Any:
        record = self._record(text, position)
        for field in self.fields:
            if field not in record:
                known = ", ".join(map(str, record)) or "none"
                raise MalformedTextError(f"field {field!r} is missing; the object has {_shorten(known)}", position)
        try:
            return document_of({field: record[field] for field in self.fields}, self.input)
        except ValueError as error:
            raise MalformedTextError(str(error), position) from None


class JsonIds(JsonLines):
    """The values of one field as text, None where it is missing or null."""

    def _document(self, text: str, position: int) -> str | None:
        value = self._record(text, position).get(self.fields[0])
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
    wanted, what = (str, "a text") if kind == "text" else (list, "a list of tokens")
    for name, value in values.items():
        if not isinstance(value, wanted):
            fitting = next((name for each, name in _INPUTS if isinstance(value, each)), None)
            remedy = f'; pass FeatureHashing(input="{fitting}")' if fitting else "; give every record one, if empty"
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


def _shown(value: Any) -> str:
    return _shorten(json.dumps(value, default=repr))


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
