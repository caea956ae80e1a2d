"""The reader that documents need: `open_texts`, which refuses options that the reader has no use for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.documents.base import DocumentList, Documents, DocumentStream
from streamkm.sources.documents.files import NAMES, TextFiles, TextFormat
from streamkm.sources.documents.stored import ParquetDocuments, WholeFiles
from streamkm.sources.formats import is_folder, suffix_format
from streamkm.sources.paths import locate, visible_files
from streamkm.sources.tables.csv_format import check_format
from streamkm.text.feature_hashing import Input

_JSON, _TABBED = (".jsonl", ".ndjson", ".json"), (".tsv", ".tab")
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
    form = _format_of(found, options.get("format", "auto"))
    for name in options:
        if name not in ("format", *_FORMATS[form]):
            known = ", ".join(_FORMATS[form])
            raise InvalidParameterError(f"{name}= does not apply to {form}; its options are {known}")
    id_column, decode_error = options.get("id_column"), options.get("decode_error", "strict")
    header = bool(options.get("header", True))
    if not (id_column is None or _is_column(id_column, form, header)):
        raise InvalidParameterError(f"id_column={id_column!r}; needed: the name of a field or column")
    if decode_error not in ("strict", "ignore", "replace"):
        raise InvalidParameterError(f'decode_error={decode_error!r}; needed: "strict", "ignore" or "replace"')
    if form in ("lines", "files"):
        what = NAMES.get(form, "files that are a document each")
        if fields:
            raise InvalidParameterError(f"field={fields[0]!r} does not apply to {what}, which have no fields")
        if kind == "counts":
            raise InvalidParameterError(f'{what} hold no mappings, as input="counts" needs; use JSON lines')
    elif not fields or not all(_is_column(field, form, header) for field in fields):
        needed = "the name of what holds the documents" + (", or its number from 0" if form == "csv" else "")
        unnamed = "" if header else "; header=False leaves columns without names"
        raise InvalidParameterError(f"field={fields or None!r}; needed for {form}: {needed}{unnamed}")
    if form == "files":
        return WholeFiles(found, kind, decode_error)
    if form == "parquet":
        return ParquetDocuments(found, tuple(map(str, fields)), kind, id_column)
    tabbed = any(suffix in found[0].lower() for suffix in _TABBED)
    delimiter = check_format(options.get("delimiter"), None, None, tabbed=tabbed).delimiter if form == "csv" else ","
    text = TextFiles(found, TextFormat(form, kind, decode_error, fields, delimiter, header))
    if id_column is not None:
        text.name_by(id_column)
    return text


def _is_column(field: Any, form: str, header: bool) -> bool:
    """Whether a field names one of a record: columns of CSV have numbers too, and names where there is a header."""
    return header if isinstance(field, str) else form == "csv" and type(field) is int and field >= 0


def _format_of(paths: Sequence[str], form: str) -> str:
    """The one format of files."""
    if form not in ("auto", *_FORMATS):
        raise InvalidParameterError(f"format={form!r} is unknown; known are auto, {', '.join(_FORMATS)}")
    if form != "auto":
        return form
    formats = {document_format(path) or ("files" if is_folder(path) else "lines") for path in paths}
    if len(formats) > 1:
        raise InvalidInputError(f"{paths[0]}: files of several formats ({', '.join(sorted(formats))}); open one kind")
    return formats.pop()


def refuse_options(field: Any, options: Mapping[str, Any], what: str) -> None:
    """Refuse what is of use for files only."""
    for name in [*(["field"] if field is not None else []), *options]:
        raise InvalidParameterError(f"{name}= is for files; X is {what}")


def document_format(path: str) -> str | None:
    """What a suffix alone tells of documents: "jsonl", "csv" or "parquet"; "files" of a folder of .txt; else None."""
    if is_folder(path):
        found = visible_files(path)
        return "files" if found and all(file.lower().endswith(".txt") for file in found) else None
    named, is_packed = suffix_format(path)
    stem = os.path.splitext(path)[0] if is_packed else path
    return "jsonl" if stem.lower().endswith(_JSON) else named if named in ("csv", "parquet") else None
