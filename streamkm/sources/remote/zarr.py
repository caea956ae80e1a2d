"""A Zarr store behind a URL: zarr's own by fsspec, with our retries, and names of members where servers list nothing.

Where the file system lists, the objects of an array are listed when it is opened and at the end of each pass: the same
ones, of the same versions, must be there. Web servers list nothing: there, each object is compared with what this
process saw of it first, and members of groups are known from consolidated metadata, or tried by the names that readers
need.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import count
from typing import Any

from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.sources.remote.objects import Address, entries, fetch, look, pause_after

_KNOWN_MEMBERS = ("data", "indices", "indptr", "shape", "X", "obs", "var", "matrix", "barcodes", "features", "genes")
_METADATA = ("zarr.json", ".zarray", ".zgroup")


class RemoteStore(FsspecStore):
    """A store to read from.

    `root`: of the directory. `refuses_missing`: whether an object that is missing is an error where nothing is listed.
    """

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
        address = self.root.at(key)
        for attempt in count(1):
            try:
                data = await super().get(key, prototype, byte_range)
                break
            except Exception as error:  # noqa: BLE001 - raised again, with a cause that may be shown
                pause = pause_after(address, self.fs, error, attempt)
            await asyncio.sleep(pause)
        if address.is_http and key.rpartition("/")[2] not in _METADATA:
            self._compare(address, key, byte_range, data)
        return data

    def _compare(self, address: Address, key: str, byte_range: ByteRequest | None, data: Buffer | None) -> None:
        """Refuse what a web server sent in place of what was asked for, or of what this process saw before."""
        wanted = None
        if isinstance(byte_range, RangeByteRequest):
            wanted = byte_range.end - byte_range.start
        elif isinstance(byte_range, SuffixByteRequest):
            wanted = byte_range.suffix
        if data is None and self.refuses_missing:
            raise SourceNotFoundError(f"{address} does not exist")
        if data is not None and wanted is not None and len(data) != wanted:
            pause_after(address, self.fs, ValueError("range requests"), 1)
        seen = -1 if data is None else zlib.crc32(data.as_numpy_array().data)
        if self._seen.setdefault((key, byte_range), seen) != seen:
            raise SourceError(f"{address} was changed while it was in use; open the source again once it is complete")

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
