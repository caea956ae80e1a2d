"""Files, globs, folders and URLs as one source: their list, and the readers of their formats. Reads no rows."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.sources import remote
from streamkm.sources.formats import FORMATS, TABLES, ZARR_MARKS, file_format, is_folder, suffix_format
from streamkm.sources.local import natural
from streamkm.sources.remote import Address, is_remote
from streamkm.sources.row_source import RowSource
from streamkm.sources.stored import opened_path

_TEXT = ("svmlight", "compressed")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # of a key of a folder
# the first part may be an address: s3://bucket/x.zarr
_INNER = re.compile(r"(?P<file>(?:.*://)?.+?):(?P<inner>/(?!/)[^:]*)")


def open_paths(paths: list[Any], options: dict[str, Any]) -> RowSource:
    """Open files as one source: svmlight text together, others as one part a file."""
    forced, known = options.pop("format", "auto"), ("auto", *(name for name in FORMATS if name != "compressed"))
    if forced not in known:
        raise InvalidParameterError(
            f"format={forced!r} is unknown{near_hint(forced, known)}; known are {', '.join(known)}"
        )
    reached = options.pop("storage_options", None)
    if reached is not None and not isinstance(reached, Mapping):
        raise InvalidParameterError(f"storage_options must be a mapping of options, got {type(reached).__name__}")
    found = [entry for path in paths for entry in _files(os.path.expanduser(os.fspath(path)), reached or {})]
    if reached and not any(is_remote(path) for path, _ in found):
        raise InvalidParameterError(f"storage_options= does not apply to {found[0][0]}, which is no URL; leave it out")
    found = [(_looked_at(path, forced), inner) for path, inner in found]
    formats = [file_format(path) if forced in ("auto", "svmlight") else forced for path, _ in found]
    if forced == "svmlight":
        formats = [form if form in _TEXT else "svmlight" for form in formats]
    kinds = ["svmlight text" if form in _TEXT else form for form in formats]
    if not any(kind in ("svmlight text", *TABLES) for kind in kinds):
        return join([_open_file(*entry, form, options) for entry, form in zip(found, formats, strict=True)])
    for (path, inner), kind in zip(found, kinds, strict=True):
        if kind != kinds[0]:
            raise InvalidInputError(
                f"{found[0][0]} is {kinds[0]} and {path} is {kind}; text and tables are read from files of one format"
            )
        if inner is not None:
            raise InvalidParameterError(f"{path} is {kind} and has nothing inside; leave :{inner} out")
    files = [path for path, _ in found]
    if kinds[0] in TABLES:
        given = [os.path.expanduser(os.fspath(path)) for path in paths]
        return FORMATS[kinds[0]].open(files, options, keys=folder_keys(given, files))
    return FORMATS["compressed" if "compressed" in formats else "svmlight"].open(files, options)


def _files(path: str, storage_options: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Files by `locate`, and the tables of folders."""
    return [
        each
        for entry in locate(path, storage_options)
        for each in ([(file, None) for file in folder_files(entry[0])] if is_folder(entry[0]) else [entry])
    ]


def _looked_at(path: str, forced: str) -> str:
    """A path with the state of its file or object, requested once for all readers."""
    if isinstance(path, Address) and (forced == "zarr" or path.endswith((".zarr", "/"))):
        return path
    try:
        return opened_path(path)
    except SourceNotFoundError:
        if not isinstance(path, Address):
            raise
        return path  # a web server's Zarr store; what else is missing is found when it is opened


def _open_file(path: str, inner: str | None, form: str, options: Mapping[str, Any]) -> RowSource:
    if inner is None:
        return FORMATS[form].open(path, options)
    name, value = ("key", inner.strip("/")) if form == "npz" else ("dataset", inner)
    if name in options:
        raise InvalidParameterError(f"{path}:{inner} names a dataset already; leave {name}={options[name]!r} out")
    return FORMATS[form].open(path, {**options, name: value})


def locate(path: str, storage_options: Mapping[str, Any] | None = None) -> list[tuple[str, str | None]]:
    """Files of a path or glob, each with the path inside of it, or None; URLs become addresses."""
    match = _INNER.fullmatch(path)
    if is_remote(path):
        address = Address(match["file"] if match else path, storage_options)
        return [(each, match["inner"] if match else None) for each in remote.named(address)]
    if os.path.exists(path):
        return [(path, None)]
    file, inner = (match["file"], match["inner"]) if match else (path, None)
    if os.path.exists(file):
        return [(file, inner)]
    if glob.has_magic(file):
        files = sorted(glob.glob(file, recursive=True), key=natural)
        if not files:
            raise SourceNotFoundError(f"no file matches {file}")
        return [(each, inner) for each in files]
    if os.path.islink(file):
        raise SourceNotFoundError(f"{file} is a link to {os.readlink(file)}, which does not exist")
    folder = Path(file).parent
    here = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    raise SourceNotFoundError(f"{file} does not exist{near_hint(Path(file).name, here)}")


def folder_files(path: str) -> list[str]:
    """Tables in a folder and below, in natural order, except files whose names begin with . or _.

    Raises SourceError: there are none; a table of Delta Lake or Iceberg, whose log lists the valid files.
    """
    _refuse_logged(path)
    found = [file for file in visible_files(path) if suffix_format(file)[0] in TABLES]
    if not found:
        raise SourceError(
            f"{path} is a directory and no Zarr store (it has none of {', '.join(ZARR_MARKS)}), nor has it tables; "
            f"for other files in it pass a glob such as {os.path.join(path, '*')}; if each file is a document, use "
            f"open_documents, or data.format: files in a configuration"
        )
    return sorted(found, key=natural)


def visible_files(folder: str) -> list[str]:
    """All files in a folder and below, except those whose names begin with . or _. Raises SourceError."""

    def refuse(error: OSError) -> None:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}") from error

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        found += [os.path.join(place, name) for name in names if not name.startswith((".", "_"))]
    return found


def folder_keys(given: Sequence[str], files: Sequence[str]) -> tuple[Mapping[str, str | None], ...]:
    """Keys and values of each file's folders, as ``zone=01``, below the deepest folder that holds all files.

    For a glob, that is the folder in front of its first wildcard.
    """
    folders = [
        path.rstrip("/").split("/") if is_folder(path) else re.split(r"[*?[]", path)[0].split("/")[:-1]
        for path in given
    ]
    n_shared = sum(1 for _ in takewhile(lambda names: len({*names}) == 1, zip(*folders, strict=False)))
    pairs = [[part.partition("=") for part in file.split("/")[n_shared:-1] if "=" in part] for file in files]
    return tuple({key: None if value == _NO_VALUE else unquote(value) for key, _, value in found} for found in pairs)


def _refuse_logged(path: str) -> None:
    """Refuse a folder whose files may hold rows that were deleted from its table."""
    for name, log, remedy in (
        ("Delta Lake", "_delta_log/*.json", "deltalake.DeltaTable(path).to_pyarrow_dataset()"),
        ("Iceberg", "metadata/*.metadata.json", "polars.scan_iceberg(path)"),
    ):
        if glob.glob(os.path.join(glob.escape(path), log)):
            raise SourceError(
                f"{path} is a table of {name}, whose files may hold rows that were deleted since; pass {remedy}, or "
                f"for all that is in the files a glob such as {os.path.join(path, '**', '*.parquet')}"
            )


def join(parts: list[RowSource]) -> RowSource:
    """One source with the rows of several."""
    if len(parts) == 1:
        return parts[0]
    for number, part in enumerate(parts):
        if part.access.streams:
            raise InvalidInputError(f"item {number} of the list ({part.name}) is no matrix and no path; open it alone")
    from streamkm.sources.concat import PartsSource

    return PartsSource(parts)
