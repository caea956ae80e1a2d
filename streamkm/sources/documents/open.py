"""Which reader documents need: `open_texts`.

Responsible for telling what a value or a file of documents is, and for refusing options that it has no use for. May
import the modules of documents, opening and errors. Reads no documents but for a look at a stream's first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources.documents.base import DocumentList, Documents, DocumentStream
from streamkm.sources.documents.csv_records import CsvRecords
from streamkm.sources.documents.files import CompressedTextFiles, PlainTextFiles
from streamkm.sources.documents.formats import DecodeError, JsonLines, TextLines
from streamkm.sources.documents.records import TextFormat
from streamkm.sources.documents.whole_files import WholeFiles, is_folder_of_texts
from streamkm.sources.paths import locate
from streamkm.sources.registry import is_folder
from streamkm.sources.svmlight.compressed import compression
from streamkm.sources.tables.csv_format import check_format
from streamkm.text.feature_hashing import Input

_PACKED = {".gz", ".bz2", ".xz", ".zst"}
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_FORMATS = {
    "lines": ("decode_error",),
    "files": ("decode_error",),
    "jsonl": ("decode_error", "id_column"),
    "csv": ("decode_error", "delimiter", "header", "id_column"),
    "parquet": ("id_column",),
}


def open_texts(X: Any, field: Any, kind: Input, options: Mapping[str, Any]) -> Documents:
    """Open whatever has documents, but Dask's; see `streamkm.open_documents` for all but `kind`.

    `kind` ({"text", "tokens", "counts"}): what documents are, as `FeatureHashing` has it. `options`: those that were
    given. Raises InvalidParameterError, InvalidInputError, SourceError, MissingDependencyError.
    """
    fields = _fields(field)
    if isinstance(X, str | os.PathLike):
        return _open_paths([X], fields, kind, options)
    if isinstance(X, list | tuple) and X and all(isinstance(item, Path) for item in X):
        return _open_paths(X, fields, kind, options)
    refuse_options(fields or None, options, f"documents of type {type(X).__name__}")
    if isinstance(X, list | tuple):
        return DocumentList(X)
    if hasattr(X, "__array__") and getattr(X, "ndim", 0) == 1:
        return DocumentList(X.tolist(), name=f"{type(X).__name__} of documents")
    if not isinstance(X, bytes | Mapping) and (callable(X) or isinstance(X, Iterable)) and not hasattr(X, "__array__"):
        return DocumentStream(X)
    raise InvalidInputError(
        f"{type(X).__name__} has no documents that streamkm knows; pass a path, a list or iterable of documents, or a "
        f"Dask bag"
    )


def _open_paths(
    paths: Sequence[Any], fields: tuple[str | int, ...], kind: Input, options: Mapping[str, Any]
) -> Documents:
    found = [path for given in paths for path, _ in locate(os.path.expanduser(os.fspath(given)))]
    form = options.get("format", "auto")
    if form not in ("auto", *_FORMATS):
        raise InvalidParameterError(f"format={form!r} is unknown; known are auto, {', '.join(_FORMATS)}")
    own = ("files" if is_folder(path) else document_format(path) or "lines" for path in found)
    formats = set(own) if form == "auto" else {form}
    if len(formats) > 1:
        folder = next((path for path in found if is_folder(path)), None)
        if folder is not None:
            raise SourceError(f"{folder} is a directory among files; name files, or folders alone")
        raise InvalidInputError(f"{found[0]}: files of several formats ({', '.join(sorted(formats))}); open one kind")
    (form,) = formats
    for name in options:
        if name not in ("format", *_FORMATS[form]):
            raise InvalidParameterError(
                f"{name}= does not apply to {form}; its options are {', '.join(_FORMATS[form]) or 'none'}"
            )
    id_column = options.get("id_column")
    is_number = form == "csv" and type(id_column) is int and id_column >= 0
    if not (id_column is None or isinstance(id_column, str) or is_number):
        raise InvalidParameterError(f"id_column={id_column!r}; needed: the name of a field or column")
    if form == "files":
        return _open_files(found, fields, kind, options)
    if form == "parquet":
        from streamkm.sources.documents.parquet import ParquetDocuments

        table = ParquetDocuments(found, _names(fields, form), kind)
        if isinstance(id_column, str):
            table.name_by(id_column)
        return table
    text_format = _text_format(form, fields, kind, options, tabbed=found[0].lower().find(".tsv") > 0)
    packed = any(compression(path) != "plain" for path in found)
    text = (CompressedTextFiles if packed else PlainTextFiles)(found, text_format)
    if id_column is not None:
        text.name_by(id_column)
    return text


def _open_files(
    paths: Sequence[str], fields: tuple[str | int, ...], kind: Input, options: Mapping[str, Any]
) -> WholeFiles:
    if fields:
        raise InvalidParameterError(f"field={fields[0]!r} does not apply to files that are a document each")
    if kind == "counts":
        raise InvalidParameterError('files of text hold no mappings, as input="counts" needs; use JSON lines')
    return WholeFiles(paths, kind, _decode_error(options))


def _decode_error(options: Mapping[str, Any]) -> DecodeError:
    given: DecodeError = options.get("decode_error", "strict")
    if given not in ("strict", "ignore", "replace"):
        raise InvalidParameterError(f'decode_error={given!r}; needed: "strict", "ignore" or "replace"')
    return given


def _text_format(
    form: str, fields: tuple[str | int, ...], kind: Input, options: Mapping[str, Any], *, tabbed: bool
) -> TextFormat:
    decode_error = _decode_error(options)
    if form == "lines":
        if fields:
            raise InvalidParameterError(f"field={fields[0]!r} does not apply to lines of text, which have no fields")
        if kind == "counts":
            raise InvalidParameterError('lines of text hold no mappings, as input="counts" needs; use JSON lines')
        return TextLines(kind, decode_error)
    if form == "jsonl":
        return JsonLines(kind, decode_error, _names(fields, form))
    header = options.get("header", True)
    delimiter = check_format(options.get("delimiter"), None, None, tabbed=tabbed).delimiter
    for field in fields:
        if isinstance(field, int) and field < 0:
            raise InvalidParameterError(f"field={field}; columns are counted from 0")
        if isinstance(field, str) and not header:
            raise InvalidParameterError(f"field={field!r} names a column, and header=False; give its number, from 0")
    if not fields:
        raise InvalidParameterError("field= is missing; give the CSV column that holds the documents")
    return CsvRecords(kind, decode_error, fields, delimiter, bool(header))


def _fields(field: Any) -> tuple[str | int, ...]:
    fields = tuple(field) if isinstance(field, list | tuple) else () if field is None else (field,)
    if any(not isinstance(each, str | int) or isinstance(each, bool) for each in fields):
        raise InvalidParameterError(f"field={field!r}; needed: a name, a number, or a list of these")
    return fields


def _names(fields: tuple[str | int, ...], form: str) -> tuple[str, ...]:
    if not fields or not all(isinstance(field, str) for field in fields):
        raise InvalidParameterError(
            f"field={fields or None!r}; needed for {form}: the name of what holds the documents"
        )
    return tuple(str(field) for field in fields)


def refuse_options(field: Any, options: Mapping[str, Any], what: str) -> None:
    """Refuse what is of use for files only."""
    for name in [*(["field"] if field is not None else []), *options]:
        raise InvalidParameterError(f"{name}= is for files; X is {what}")


def document_format(path: str) -> str | None:
    """What a suffix alone tells of documents: "jsonl", "csv" or "parquet"; "files" of a folder of .txt; else None."""
    if is_folder_of_texts(path):
        return "files"
    stem, suffix = os.path.splitext(path.lower())
    if suffix in _PACKED:
        suffix = os.path.splitext(stem)[1]
    return _SUFFIXES.get(suffix)
