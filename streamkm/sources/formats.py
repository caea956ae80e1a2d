"""The table of file formats: what each is called, told by, and read with.

A new format is one reader module and one line here. Opens nothing, and imports a reader when a file needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sources.base import RowSource
from streamkm.sources.dense import BFLOAT16, Bfloat16Source


@dataclass(frozen=True, slots=True)
class Reader:
    """A function that opens a source, and the options that it has a use for.

    Attributes
    ----------
    what : str
        Name of the format or kind of value, for messages.
    function : str
        ``module:name``, imported when it is needed; a module that begins with a dot is one of `streamkm.sources`.
    options : tuple of str
        Keyword arguments of the function.
    words : bool
        Whether 16-bit words may be bfloat16, for which the format has no type, if ``dtype`` says so.
    suffixes : tuple of str
        Of files, in lower case, with the dot; they count where the first bytes say nothing.
    signature : bytes
        What every file of the format begins with; empty if there is no such thing.
    """

    what: str
    function: str
    options: tuple[str, ...] = ()
    words: bool = False
    suffixes: tuple[str, ...] = ()
    signature: bytes = b""

    def open(self, X: Any, options: Mapping[str, Any], **found: Any) -> RowSource:
        """Open X, or raise InvalidParameterError for options that do not apply; `found` is no option of the user's."""
        if self.words and options.get("dtype") == BFLOAT16:
            return Bfloat16Source(
                self.open(X, {key: value for key, value in options.items() if key != "dtype"}, **found)
            )
        for name in options:
            if name not in self.options:
                raise InvalidParameterError(
                    f"{name}= does not apply to {self.what}; its options are {', '.join(self.options) or 'none'}"
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
    "svmlight": Reader("svmlight text", ".svmlight.source:SvmlightSource", _SVMLIGHT),
    "compressed": Reader("svmlight text", ".svmlight.compressed:CompressedSvmlightSource", _SVMLIGHT),
    "hdf5": Reader("HDF5", ".binary.hdf5:open_hdf5", ("dataset", "follow_external", *GENES), True, _HDF5, _HDF5_BEGIN),
    "zarr": Reader("Zarr", ".binary.zarr:open_zarr", ("dataset", *STORED), True, suffixes=(".zarr",)),
    "store": Reader("a sketch store", ".sketch_store:StoreSource"),
    "npy": Reader(".npy", ".binary.numpy_files:open_npy", ("dtype",), suffixes=(".npy",), signature=b"\x93NUMPY"),
    "npz": Reader(".npz", ".binary.numpy_files:open_npz", ("key",), suffixes=(".npz",)),
    "csv": Reader("CSV", ".tables.open:open_csv", _CSV, suffixes=(".csv", ".tsv", ".tab")),
    "parquet": Reader(
        "Parquet", ".tables.open:open_parquet", COLUMNS, True, suffixes=(".parquet", ".pq"), signature=b"PAR1"
    ),
    "arrow": Reader("Arrow IPC", ".tables.open:open_arrow", COLUMNS, True, (".arrow", ".feather", ".ipc"), b"ARROW1"),
    "mtx": Reader("Matrix Market", ".matrix_market:MatrixMarketSource", (), False, (".mtx",), b"%%MatrixMarket"),
}
"""By name, as ``format=`` takes it and `registry.file_format` tells it; "compressed" is told only."""
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


def signed(head: bytes) -> str | None:
    """What a file says of itself in its first bytes; None if nothing that is known."""
    for name, reader in FORMATS.items():
        if reader.signature and head.startswith(reader.signature):
            return name
    if FORMATS["hdf5"].signature in (head[at : at + 8] for at in (512, 1024, 2048)):  # behind a block of the user's
        return "hdf5"
    return next((kind for signature, kind in _OTHERS.items() if head.startswith(signature)), None)


def data_name(signature: str) -> str:
    """What `signed` told, for messages."""
    if signature in FORMATS:
        return f"{FORMATS[signature].what} data"
    return {"zip": "a .zip file", "utf-16": "UTF-16 text"}.get(signature, f"{signature} data")
