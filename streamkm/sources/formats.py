"""The table of file formats: their names, detection and readers. Opens only the beginning of a file.

A new format is one reader module and one line here. The first bytes of a file tell its format, else its suffix, without
that of a compression. Tables of numbers may hold documents, too; only the user can tell.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidParameterError, SourceError, SourceNotFoundError
from streamkm.sources.remote import Address, is_remote, look
from streamkm.sources.row_source import RowSource
from streamkm.sources.stored import open_binary


@dataclass(frozen=True, slots=True)
class Reader:
    """A function that opens a source, and the options that it takes."""

    what: str  # name of the format or kind of value, for messages
    function: str  # ``module:name``; a module that begins with a dot is one of `streamkm.sources`
    options: tuple[str, ...] = ()  # keyword arguments of the function
    suffixes: tuple[str, ...] = ()  # in lower case, with the dot; they count where the first bytes say nothing
    signature: bytes = b""  # of every file of the format; empty if there is no such thing

    def open(self, X: Any, options: Mapping[str, Any], **found: Any) -> RowSource:
        """Open X; `found` are arguments that are not the user's. Raises InvalidParameterError for unfit options."""
        for name in options:
            if name not in self.options:
                raise InvalidParameterError(
                    f"{name}= does not apply to {self.what}{near_hint(name, self.options)}; its options are "
                    f"{', '.join(self.options) or 'none'}"
                )
        module, name = self.function.split(":")
        opened: RowSource = getattr(import_module(module, "streamkm.sources"), name)(X, **options, **found)
        return opened


COLUMNS = ("columns", "exclude", "id_column", "categories", "categories_unseen", "dates", "dtype", "n_features")
"""Options of tables with named columns."""
GENES = ("var_column", "genes")
"""Options of cells with a table of their genes."""
STORED = ("missing_chunks", *GENES)
"""Options of arrays and groups of Zarr."""
_CSV = (*COLUMNS, "delimiter", "header", "newlines_in_values", "null_values")
_SVMLIGHT = ("n_features", "zero_based", "dtype")
_HDF5, _HDF5_BEGIN = (".h5", ".hdf5", ".h5ad"), b"\x89HDF\r\n\x1a\n"
FORMATS = {
    "svmlight": Reader("svmlight text", ".svmlight_text:SvmlightSource", _SVMLIGHT),
    "compressed": Reader("svmlight text", ".svmlight_text:CompressedSvmlightSource", _SVMLIGHT),
    "hdf5": Reader("HDF5", ".binary.hdf5:open_hdf5", ("dataset", "follow_external", *GENES), _HDF5, _HDF5_BEGIN),
    "zarr": Reader("Zarr", ".binary.zarr:open_zarr", ("dataset", *STORED), suffixes=(".zarr",)),
    "store": Reader("a sketch store", ".sketch_store:StoreSource"),
    "npy": Reader(".npy", ".binary.numpy_files:open_npy", suffixes=(".npy",), signature=b"\x93NUMPY"),
    "npz": Reader(".npz", ".binary.numpy_files:open_npz", ("key",), suffixes=(".npz",)),
    "csv": Reader("CSV", ".tables.csv_files:open_csv", _CSV, suffixes=(".csv", ".tsv", ".tab")),
    "parquet": Reader("Parquet", ".tables.files:ParquetTable", COLUMNS, (".parquet", ".pq"), b"PAR1"),
    "arrow": Reader("Arrow IPC", ".tables.files:ArrowTable", COLUMNS, (".arrow", ".feather", ".ipc"), b"ARROW1"),
    "mtx": Reader("Matrix Market", ".matrix_market:MatrixMarketSource", (), (".mtx",), b"%%MatrixMarket"),
}
"""Readers by the names of ``format=`` and `file_format`; only the latter gives "compressed"."""
_GIVEN = {name for reader in FORMATS.values() for name in reader.options}
READ_OPTIONS = ("feature_names", "format", "storage_options", *sorted(_GIVEN))
"""All options of `open_source`."""
_OTHERS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # an empty archive
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
COMPRESSED = frozenset({"gzip", "bzip2", "xz", "zstd"})
TABLES = ("csv", "parquet", "arrow")
"""Formats of tables with named columns."""
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_READ_PACKED = ("csv", "mtx")  # beside svmlight text
ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")
_STORE_MARK = b'"streamkm_store"'
_HEAD_BYTES = 4096
# comment lines, then the number that a row of svmlight text starts with
_ROW = re.compile(rb"\s*(?:#[^\n\0]*\n\s*)*[-+.]?[0-9]")


def signed(head: bytes) -> str | None:
    """The format that the first bytes of a file show; None if unknown."""
    for name, reader in FORMATS.items():
        if reader.signature and head.startswith(reader.signature):
            return name
    if FORMATS["hdf5"].signature in (head[at : at + 8] for at in (512, 1024, 2048)):  # behind a block of the user's
        return "hdf5"
    return next((kind for signature, kind in _OTHERS.items() if head.startswith(signature)), None)


def file_format(path: str) -> str:
    """Detect the format of a file or directory: a key of `FORMATS`, which is "svmlight" for text of no other format.

    "compressed" is svmlight text in gzip, bzip2, xz or zstd; CSV and Matrix Market may be compressed too. Raises
    SourceError: missing, a directory that is no Zarr store, or binary data (or a .zip file) of no known format.
    """
    address = Address(path) if is_remote(path) and not isinstance(path, Address) else path
    if isinstance(address, Address) and _is_remote_zarr(address):
        return "zarr"
    if os.path.isdir(path):
        root = os.path.join(path, "zarr.json")
        if not os.path.exists(root):
            return "zarr"
        with open_binary(root) as file:  # an attribute of the group marks a sketch store
            return "store" if _STORE_MARK in file.read() else "zarr"
    with open_binary(address) as file:
        return _told_by(address, file.read(_HEAD_BYTES))


def _told_by(path: str, head: bytes) -> str:
    """Detect the format by a file's first bytes, else by its name."""
    signature = signed(head)
    if signature == "zip" and is_remote(path):
        raise SourceError(f"{path} is a .zip file, which is read from local disks only; download it and pass the file")
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
    """The format by the suffix of a path, and whether the suffix of a compression follows it."""
    stem, suffix = os.path.splitext(str(path).partition("?")[0] if is_remote(path) else path)
    is_packed = suffix.lower() in _PACKED
    if is_packed:
        suffix = os.path.splitext(stem)[1]
    named = (name for name, reader in FORMATS.items() if suffix.lower() in reader.suffixes)
    return next(named, None), is_packed


def is_folder(path: str) -> bool:
    """Whether a path is a local directory that is no Zarr store."""
    return os.path.isdir(path) and not any(os.path.exists(os.path.join(path, mark)) for mark in ZARR_MARKS)


def _is_remote_zarr(address: Address) -> bool:
    """Whether a URL is that of a Zarr store, as all directories are."""
    name = address.partition("?")[0].rstrip("/")
    # web servers have no directories, but what is in them
    if name.endswith(".zarr") or (address.is_http and not os.path.splitext(name)[1] and _is_zarr(address)):
        return True
    return address.endswith("/") or (address.version or look(address)) is None


def _is_zarr(address: Address) -> bool:
    """Whether a URL is that of a Zarr store's root."""
    for mark in ZARR_MARKS:
        with suppress(SourceNotFoundError):
            return look(address.at(mark)) is not None
    return False


def _zip_format(path: str) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise SourceError(f"{path} is a damaged .zip file: {error}") from error
    if any(name in ZARR_MARKS for name in names):
        return "zarr"
    if any(name.endswith(".npy") for name in names):
        return "npz"
    raise SourceError(f"{path} is a .zip file with neither a Zarr store nor NumPy arrays at its root")
