"""Choice of a reader for documents: `open_texts`, which refuses options that the reader does not take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.documents.hashed import HashedText
from streamkm.sources.documents.memory_documents import DocumentList, DocumentStream
from streamkm.sources.documents.stored_documents import ParquetDocuments, WholeFiles
from streamkm.sources.documents.text_files import NAMES, TextFiles
from streamkm.sources.formats import is_folder, suffix_format
from streamkm.sources.paths import locate, visible_files
from streamkm.sources.tables.csv_format import check_format
from streamkm.text import FeatureHashing

_JSON = (".jsonl", ".ndjson", ".json")
_FORMATS = {  # and their options
    "lines": ("decode_error",),
    "files": ("decode_error",),
    "jsonl": ("decode_error", "id_column"),
    "csv": ("decode_error", "delimiter", "header", "id_column"),
    "parquet": ("id_column",),
}


def open_texts(X: Any, field: Any, hashing: FeatureHashing, options: Mapping[str, Any]) -> HashedText:
    """Open any kind of documents with the given `options`; see `streamkm.open_documents`."""
    if isinstance(X, str | os.PathLike):
        return _open_paths([X], field, hashing, {**options})
    if isinstance(X, list | tuple) and X and all(isinstance(item, Path) for item in X):
        return _open_paths(X, field, hashing, {**options})
    for name in [*(["field"] if field is not None else []), *options]:
        raise InvalidParameterError(f"{name}= is for files; X is documents of type {type(X).__name__}")
    if isinstance(X, list | tuple):
        return DocumentList(X, hashing)
    if hasattr(X, "to_delayed") and (hasattr(X, "foldby") or getattr(X, "ndim", 0) == 1):  # of Dask
        return DocumentStream(lambda: (each for part in X.to_delayed() for each in part.compute()), hashing)
    if hasattr(X, "__array__") and getattr(X, "ndim", 0) == 1:
        return DocumentList(X.tolist(), hashing, f"{type(X).__name__} of documents")
    if not isinstance(X, bytes | Mapping) and (callable(X) or isinstance(X, Iterable)) and not hasattr(X, "__array__"):
        return DocumentStream(X, hashing)
    raise InvalidInputError(
        f"{type(X).__name__} has no documents that streamkm knows; pass a path, a list or iterable of documents, or a "
        f"Dask bag"
    )


def _open_paths(paths: Sequence[Any], field: Any, hashing: FeatureHashing, options: dict[str, Any]) -> HashedText:
    found = [path for given in paths for path, _ in locate(os.path.expanduser(os.fspath(given)))]
    form = _format_of(found, options.pop("format", "auto"))
    for name in options:
        if name not in _FORMATS[form]:
            known = ", ".join(_FORMATS[form])
            raise InvalidParameterError(f"{name}= does not apply to {form}; its options are {known}")
    if options.get("decode_error", "strict") not in ("strict", "ignore", "replace"):
        needed = '"strict", "ignore" or "replace"'
        raise InvalidParameterError(f"decode_error={options['decode_error']!r}; needed: {needed}")
    if form in ("lines", "files"):
        if field is not None or hashing.input == "counts":
            what = NAMES.get(form, "files that are a document each")
            raise InvalidParameterError(
                f'field= and input="counts" do not apply to {what}, which have no fields; use JSON lines'
            )
        return WholeFiles(found, hashing, **options) if form == "files" else TextFiles(found, hashing, form, **options)
    named, fields = options.get("header", True), tuple(field) if isinstance(field, list | tuple) else (field,)
    for name, columns in (("field", fields or (None,)), ("id_column", (options.get("id_column", fields[0]),))):
        for column in columns:
            if not (isinstance(column, str) and named) and (form != "csv" or type(column) is not int or column < 0):
                needed = "the name of what holds the documents" + (", or its number from 0" if form == "csv" else "")
                unnamed = "" if named else "; header=False leaves columns without names"
                raise InvalidParameterError(f"{name}={column!r}; needed for {form}: {needed}{unnamed}")
    if form == "parquet":
        return ParquetDocuments(found, hashing, fields, **options)
    if form == "csv":
        options["delimiter"] = check_format(found[0], options.get("delimiter")).delimiter
    return TextFiles(found, hashing, form, fields, **options)


def _format_of(paths: Sequence[str], form: str) -> str:
    """The one format of files."""
    if form not in ("auto", *_FORMATS):
        raise InvalidParameterError(f"format={form!r} is unknown; known are auto, {', '.join(_FORMATS)}")
    told = (document_format(path) or ("files" if is_folder(path) else "lines") for path in paths)
    formats = {form} if form != "auto" else {*told}
    if len(formats) > 1:
        raise InvalidInputError(f"{paths[0]}: files of several formats ({', '.join(sorted(formats))}); open one kind")
    return formats.pop()


def document_format(path: str) -> str | None:
    """The format of documents by suffix: "jsonl", "csv" or "parquet"; "files" for a folder of .txt; else None."""
    if is_folder(path):
        found = visible_files(path)
        return "files" if found and all(file.lower().endswith(".txt") for file in found) else None
    named, is_packed = suffix_format(path)
    stem = os.path.splitext(path)[0] if is_packed else path
    return "jsonl" if stem.lower().endswith(_JSON) else named if named in ("csv", "parquet") else None
