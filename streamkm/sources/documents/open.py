"""The reader that documents need: `open_texts`, which refuses options that the reader has no use for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources.documents.base import DocumentList, Documents, DocumentStream
from streamkm.sources.documents.files import TextFiles
from streamkm.sources.documents.formats import TextFormat
from streamkm.sources.documents.whole_files import WholeFiles
from streamkm.sources.formats import is_folder
from streamkm.sources.paths import locate, visible_files
from streamkm.sources.tables.csv_format import check_format
from streamkm.text.feature_hashing import Input

_PACKED = {".gz", ".bz2", ".xz", ".zst"}
_SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
_FORMATS = {  # and their options
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
    fields = tuple(field) if isinstance(field, list | tuple) else () if field is None else (field,)
    if any(not isinstance(each, str | int) or isinstance(each, bool) for each in fields):
        raise InvalidParameterError(f"field={field!r}; needed: a name, a number, or a list of these")
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
    form = _checked_format(found, options)
    id_column, decode_error = options.get("id_column"), options.get("decode_error", "strict")
    is_number = form == "csv" and type(id_column) is int and id_column >= 0
    if not (id_column is None or isinstance(id_column, str) or is_number):
        raise InvalidParameterError(f"id_column={id_column!r}; needed: the name of a field or column")
    if decode_error not in ("strict", "ignore", "replace"):
        raise InvalidParameterError(f'decode_error={decode_error!r}; needed: "strict", "ignore" or "replace"')
    if form in ("lines", "files"):
        what = "lines of text" if form == "lines" else "files that are a document each"
        if fields:
            raise InvalidParameterError(f"field={fields[0]!r} does not apply to {what}, which have no fields")
        if kind == "counts":
            raise InvalidParameterError(f'{what} hold no mappings, as input="counts" needs; use JSON lines')
    elif form == "csv":
        _check_columns(fields, options)
    elif not fields or not all(isinstance(field, str) for field in fields):
        raise InvalidParameterError(
            f"field={fields or None!r}; needed for {form}: the name of what holds the documents"
        )
    if form == "files":
        return WholeFiles(found, kind, decode_error)
    if form == "parquet":
        from streamkm.sources.documents.parquet import ParquetDocuments

        return ParquetDocuments(found, tuple(map(str, fields)), kind, id_column)
    text_format = TextFormat(form, kind, decode_error, fields)
    if form == "csv":
        tabbed = found[0].lower().find(".tsv") > 0
        delimiter = check_format(options.get("delimiter"), None, None, tabbed=tabbed).delimiter
        text_format = replace(text_format, delimiter=delimiter, header=bool(options.get("header", True)))
    text = TextFiles(found, text_format)
    if id_column is not None:
        text.name_by(id_column)
    return text


def _checked_format(paths: Sequence[str], options: Mapping[str, Any]) -> str:
    """The one format of files, to which all options apply."""
    form = options.get("format", "auto")
    if form not in ("auto", *_FORMATS):
        raise InvalidParameterError(f"format={form!r} is unknown; known are auto, {', '.join(_FORMATS)}")
    own = ("files" if is_folder(path) else document_format(path) or "lines" for path in paths)
    formats = set(own) if form == "auto" else {form}
    if len(formats) > 1:
        folder = next((path for path in paths if is_folder(path)), None)
        if folder is not None:
            raise SourceError(f"{folder} is a directory among files; name files, or folders alone")
        raise InvalidInputError(f"{paths[0]}: files of several formats ({', '.join(sorted(formats))}); open one kind")
    (form,) = formats
    for name in options:
        if name not in ("format", *_FORMATS[form]):
            known = ", ".join(_FORMATS[form])
            raise InvalidParameterError(f"{name}= does not apply to {form}; its options are {known}")
    return str(form)


def _check_columns(fields: tuple[str | int, ...], options: Mapping[str, Any]) -> None:
    for field in fields:
        if isinstance(field, int) and field < 0:
            raise InvalidParameterError(f"field={field}; columns are counted from 0")
        if isinstance(field, str) and not options.get("header", True):
            raise InvalidParameterError(f"field={field!r} names a column, and header=False; give its number, from 0")
    if not fields:
        raise InvalidParameterError("field= is missing; give the CSV column that holds the documents")


def refuse_options(field: Any, options: Mapping[str, Any], what: str) -> None:
    """Refuse what is of use for files only."""
    for name in [*(["field"] if field is not None else []), *options]:
        raise InvalidParameterError(f"{name}= is for files; X is {what}")


def document_format(path: str) -> str | None:
    """What a suffix alone tells of documents: "jsonl", "csv" or "parquet"; "files" of a folder of .txt; else None."""
    if is_folder(path):
        found = visible_files(path)
        return "files" if found and all(file.lower().endswith(".txt") for file in found) else None
    stem, suffix = os.path.splitext(path.lower())
    return _SUFFIXES.get(os.path.splitext(stem)[1] if suffix in _PACKED else suffix)
