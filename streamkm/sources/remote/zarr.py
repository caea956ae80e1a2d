"""A Zarr store behind a URL: zarr's own by fsspec, with our requests, and names of members where servers list nothing.

Where the file system lists, the objects of an array are listed when it is opened and at the end of each pass. Web
servers list nothing: there, each object is compared with what this process saw of it first, and members of groups are
known from consolidated metadata, or tried by the names that readers need.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.sources.remote.objects import Address, entries, fetch, look

_KNOWN_MEMBERS = ("data", "indices", "indptr", "shape", "X", "obs", "var", "matrix", "barcodes", "features", "genes")
_METADATA = ("zarr.json", ".zarray", ".zgroup")


class RemoteStore(FsspecStore):
    """A store to read from; `refuses_missing`: whether a missing object is an error where nothing is listed."""

    def __init__(self, root: Address, refuses_missing: bool = False) -> None:
        self.root = Address(root.url.rstrip("/"), root.options)
        self.refuses_missing = refuses_missing
        fs, path = self.root.file_system(asynchronous=True)
        if not fs.async_impl:
            from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

            fs = AsyncFileSystemWrapper(fs, asynchronous=True)
        super().__init__(fs, read_only=True, path=path)
        self._seen: dict[tuple[str, ByteRequest | None], int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self.refuses_missing)

    def __str__(self) -> str:
        return str(self.root)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """See `zarr.abc.store.Store.get`; refuses what a web server sent before in other bytes."""
        address, start, stop = self.root.at(key), 0, None
        if isinstance(byte_range, RangeByteRequest):
            start, stop = byte_range.start, byte_range.end
        elif isinstance(byte_range, OffsetByteRequest):
            start = byte_range.offset
        elif isinstance(byte_range, SuffixByteRequest):
            start = -byte_range.suffix
        is_chunk = address.is_http and key.rpartition("/")[2] not in _METADATA
        try:
            data = await asyncio.to_thread(fetch, address, start, stop)
        except SourceNotFoundError:
            if is_chunk and self.refuses_missing:
                raise
            data = None
        seen = -1 if data is None else zlib.crc32(data)
        if is_chunk and self._seen.setdefault((key, byte_range), seen) != seen:
            raise SourceError(f"{address} was changed while it was in use; open the source again once it is complete")
        return None if data is None else prototype.buffer.from_bytes(data)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.to_thread(self._members, prefix.strip("/")):
            yield name

    def _members(self, group: str) -> Sequence[str]:
        """Names in a group."""
        address = self.root.at(group)
        if not address.is_http:
            return entries(address)
        inside = f"{group}/" if group else ""
        names = {key.removeprefix(inside) for key in self._consolidated() if key.startswith(inside)}
        if names:
            return sorted({name.partition("/")[0] for name in names if name})
        return [name for name in _KNOWN_MEMBERS if any(self._there(f"{inside}{name}/{mark}") for mark in _METADATA)]

    def _there(self, key: str) -> bool:
        try:
            return look(self.root.at(key)) is not None
        except SourceNotFoundError:
            return False

    def _consolidated(self) -> Iterable[str]:
        """Paths of all arrays and groups, where the store has them in one place."""
        for key in (".zmetadata", "zarr.json"):
            try:
                metadata = json.loads(fetch(self.root.at(key)))
            except (SourceNotFoundError, ValueError):
                continue
            inner = metadata if key == ".zmetadata" else metadata.get("consolidated_metadata") or {}
            return [name.removesuffix("/.zarray").removesuffix("/.zgroup") for name in inner.get("metadata", ())]
        return ()
