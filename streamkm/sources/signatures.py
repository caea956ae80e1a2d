"""First bytes of files, and what they say: those of `formats.FORMATS`, of compressions, archives and encodings."""

from __future__ import annotations

from streamkm.sources.formats import FORMATS

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
