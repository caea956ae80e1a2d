"""First bytes of files, and what they say: the one table of them. Opens nothing."""

from __future__ import annotations

SIGNATURES = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"\x93NUMPY": "npy",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # an empty archive
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"%%MatrixMarket": "mtx",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
COMPRESSED = frozenset({"gzip", "bzip2", "xz", "zstd"})
NAMES = {
    **{kind: f"{kind} data" for kind in COMPRESSED},
    "hdf5": "an HDF5 file",
    "npy": "a .npy file",
    "zip": "a .zip file",
    "parquet": "a Parquet file",
    "arrow": "an Arrow IPC file",
    "mtx": "a Matrix Market file",
    "utf-16": "UTF-16 text",
}
"""For messages."""


def signed(head: bytes) -> str | None:
    """What a file says of itself in its first bytes; None if nothing that is known."""
    return next((kind for signature, kind in SIGNATURES.items() if head.startswith(signature)), None)
