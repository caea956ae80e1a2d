"""What kind of file a path is: one rule, for Python and the command line.

A file's first bytes tell, and where these say nothing, its suffix: that of the name without the compression's. CSV,
Parquet and Arrow files are tables of numbers; that they hold documents, only the user can say. Opens nothing but the
file's beginning.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from urllib.parse import unquote

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.sources.formats import COMPRESSED, FORMATS, signed
from streamkm.sources.local import natural
from streamkm.sources.remote.objects import Address, is_remote, look
from streamkm.sources.stored import open_binary

TABLES = ("csv", "parquet", "arrow")
"""Formats of tables with named columns."""
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_READ_PACKED = ("csv", "mtx")  # beside svmlight text
_ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")
_STORE_MARK = b'"streamkm_store"'
_HEAD_BYTES = 4096
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # of a key of a folder
# comment lines, then the number that a row of svmlight text starts with
_ROW = re.compile(rb"\s*(?:#[^\n\0]*\n\s*)*[-+.]?[0-9]")


def file_format(path: str) -> str:
    """Tell the format of a file or directory.

    Returns
    -------
    str
        A key of `FORMATS`. "compressed" is svmlight text in gzip, bzip2, xz or zstd; text that is nothing else is
        svmlight. CSV and Matrix Market may be compressed too.

    Raises
    ------
    SourceError
        Missing, a directory that is no Zarr store, a .zip file with neither Zarr nor NumPy arrays, or binary data of
        no known format.
    """
    if is_remote(path):
        return _remote_format(path if isinstance(path, Address) else Address(path))
    if os.path.isdir(path):
        if is_folder(path):
            raise SourceError(f"{path} is a directory, and no Zarr store; name the files in it")
        return "store" if _is_store(path) else "zarr"
    with open_binary(path) as file:
        return _told_by(path, file.read(_HEAD_BYTES))


def _told_by(path: str, head: bytes) -> str:
    """Tell the format by a file's first bytes, else by its name."""
    signature = signed(head)
    if signature == "zip":
        return _zip_format(path)
    named, is_packed = suffix_format(path)
    if signature in COMPRESSED or (signature is None and is_packed):
        return named if named in _READ_PACKED else "compressed"
    found = signature if signature in FORMATS else named
    # text, or so much like it that its reader had better name line and byte of what is not
    if found is None and not (b"\0" not in head or signature == "utf-16" or _ROW.match(head)):
        raise SourceError(
            f"{path} is binary and of no format that streamkm reads "
            f"({', '.join(dict.fromkeys(reader.what for reader in FORMATS.values()))}); convert it to one of these"
        )
    return found or "svmlight"


def suffix_format(path: str) -> tuple[str | None, bool]:
    """What a name says: the format by its suffix, and whether there is one of a compression behind it."""
    stem, suffix = os.path.splitext(str(path).partition("?")[0] if is_remote(path) else path)
    is_packed = suffix.lower() in _PACKED
    if is_packed:
        suffix = os.path.splitext(stem)[1]
    named = (name for name, reader in FORMATS.items() if suffix.lower() in reader.suffixes)
    return next(named, None), is_packed


def is_folder(path: str) -> bool:
    """Whether a path is a local directory that is no Zarr store."""
    return os.path.isdir(path) and not any(os.path.exists(os.path.join(path, mark)) for mark in _ZARR_MARKS)


def folder_files(path: str) -> list[str]:
    """Tables in a folder and in those below it, in natural order; files whose names begin with . or _ are none.

    Raises SourceError: there are none; a table of Delta Lake or Iceberg, whose log says which files count.
    """
    _refuse_logged(path)
    found = [file for file in visible_files(path) if suffix_format(file)[0] in TABLES]
    if not found:
        raise SourceError(
            f"{path} is a directory and no Zarr store (it has none of {', '.join(_ZARR_MARKS)}), nor has it tables; "
            f"for other files in it pass a glob such as {os.path.join(path, '*')}; if each file is a document, use "
            f"open_documents, or data.format: files in a configuration"
        )
    return sorted(found, key=natural)


def visible_files(folder: str) -> list[str]:
    """All files in a folder and in those below it; those whose names begin with . or _ are none. Raises SourceError."""

    def refuse(error: OSError) -> None:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}") from error

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        found += [os.path.join(place, name) for name in names if not name.startswith((".", "_"))]
    return found


def folder_keys(given: Sequence[str], files: Sequence[str]) -> tuple[Mapping[str, str | None], ...]:
    """Keys and values of each file's folders, as ``zone=01``, below the deepest folder that holds all that was given.

    Of a glob that is the folder in front of its first wildcard.
    """
    folders = [
        path.rstrip("/").split("/") if is_folder(path) else re.split(r"[*?[]", path)[0].split("/")[:-1]
        for path in given
    ]
    n_shared = sum(1 for _ in takewhile(lambda names: len({*names}) == 1, zip(*folders, strict=False)))
    pairs = [[part.partition("=") for part in file.split("/")[n_shared:-1] if "=" in part] for file in files]
    return tuple({key: None if value == _NO_VALUE else unquote(value) for key, _, value in found} for found in pairs)


def _refuse_logged(path: str) -> None:
    """Refuse a folder whose files may hold rows that its table has no more."""
    remedies = {
        "Delta Lake": ("_delta_log", ".json", "deltalake.DeltaTable(path).to_pyarrow_dataset()"),
        "Iceberg": ("metadata", ".metadata.json", "polars.scan_iceberg(path)"),
    }
    for name, (log, suffix, remedy) in remedies.items():
        place = os.path.join(path, log)
        if os.path.isdir(place) and any(each.endswith(suffix) for each in os.listdir(place)):
            raise SourceError(
                f"{path} is a table of {name}, whose files may hold rows that were deleted since; pass {remedy}, or "
                f"for all that is in the files a glob such as {os.path.join(path, '**', '*.parquet')}"
            )


def _remote_format(address: Address) -> str:
    """As `file_format`, for what a URL names."""
    name = address.partition("?")[0].rstrip("/")
    if name.endswith(".zarr"):
        return "zarr"
    try:
        version = None if address.endswith("/") else address.version or look(address)
    except SourceNotFoundError:
        if not address.is_http or not _is_zarr(address):  # web servers have no directories, but what is in them
            raise
        return "zarr"
    if version is None:
        if _is_zarr(address):
            return "zarr"
        raise SourceError(
            f"{address} is a directory and no Zarr store (it has none of {', '.join(_ZARR_MARKS)}); for the objects in "
            f"it pass a glob such as {name}/*"
        )
    with open_binary(address) as file:
        head = file.read(_HEAD_BYTES)
    if address.is_http and head.lstrip().startswith(b"<") and _is_zarr(address):
        return "zarr"  # the server's own page about the directory
    if signed(head) == "zip":
        raise SourceError(
            f"{address} is a .zip file, which is read from local disks only; download it and pass the file"
        )
    return _told_by(address, head)


def _is_zarr(address: Address) -> bool:
    """Whether a URL is that of a Zarr store's root."""
    for mark in _ZARR_MARKS:
        with suppress(SourceNotFoundError):
            return look(address.at(mark)) is not None
    return False


def _is_store(path: str) -> bool:
    """Whether a Zarr directory is a sketch store: an attribute of its group says so."""
    root = os.path.join(path, "zarr.json")
    if not os.path.exists(root):
        return False
    with open_binary(root) as file:
        return _STORE_MARK in file.read()


def _zip_format(path: str) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise SourceError(f"{path} is a damaged .zip file: {error}") from error
    if any(name in _ZARR_MARKS for name in names):
        return "zarr"
    if any(name.endswith(".npy") for name in names):
        return "npz"
    raise SourceError(f"{path} is a .zip file with neither a Zarr store nor NumPy arrays at its root")
