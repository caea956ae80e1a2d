"""A Zarr store behind a URL: its objects by `remote`, with its retries and its look at whether they are still the same.

Responsible for naming objects and for knowing which there were when an array was opened.

Where the file system lists, the objects of an array are listed when it is opened: one that is missing then holds the
fill value, one that is missing later is an error. The list stays in the process; a copy in another process lists again
and compares a hash. Web servers list nothing: there, each object is compared with what this process saw of it first,
and members of groups are known from consolidated metadata, or tried by the names that readers need.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.sources.remote.objects import (
    Address,
    Version,
    check_same,
    entries,
    fetch,
    fetch_version,
    listed,
    look,
    summary,
)

REQUESTS_AT_ONCE = 16

_KNOWN_MEMBERS = ("data", "indices", "indptr", "shape", "X", "obs", "var", "matrix", "barcodes", "features", "genes")
_METADATA = ("zarr.json", ".zarray", ".zgroup")


class RemoteStore(Store):
    """A store to read from.

    `root`: of the directory. `refuses_missing`: whether an object that is missing is an error where nothing is listed.
    """

    refuses_missing = False

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, root: Address) -> None:
        super().__init__(read_only=True)
        self.root = Address(root.url.rstrip("/"), root.options)
        self._summaries: dict[str, dict[str, Any] | None] = {}
        self._start()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and other.root == self.root and other.root.options == self.root.options

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self.root)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_lists", "_first")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._lists: dict[str, dict[str, Version]] = {}
        self._first: dict[str, Version] = {}

    def address(self, path: str) -> Address:
        """Give the address of an array or group."""
        return self.root.at(path) if path else self.root

    def watch(self, path: str) -> dict[str, int] | None:
        """Note what objects an array has now; gives bytes by their keys, None where the file system cannot list.

        Raises SourceError.
        """
        with self._lock:
            objects = listed(self.address(path))
            self._summaries[path] = None if objects is None else summary(objects)
            if objects is None:
                return None
            self._lists[path] = objects
        return {key: version.n_bytes for key, version in objects.items()}

    def _list(self, path: str, before: dict[str, Any]) -> dict[str, Version]:
        with self._lock:
            if path not in self._lists:
                objects = listed(address := self.address(path)) or {}
                if (now := summary(objects)) != before:
                    was, there = (f"{each['objects']:,} objects of {each['bytes']:,} bytes" for each in (before, now))
                    raise SourceError(
                        f"{address} was changed while it was in use: it was {was} when it was opened (hash of their "
                        f"etags {before['version']}) and is {there} ({now['version']}) now; open the source again once "
                        f"it is complete"
                    )
                self._lists[path] = objects
            return self._lists[path]

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        version = None
        watched = [path for path in self._summaries if not path or key.startswith(f"{path}/")]
        if watched and (before := self._summaries[watched[0]]) is not None:
            version = self._list(watched[0], before).get(key.removeprefix(f"{watched[0]}/"))
            if version is None:
                return None
        elif watched:
            version = self._first.get(key)
        address = self.root.at(key, version)
        size = None if version is None else version.n_bytes
        start, stop = 0, size
        if isinstance(byte_range, RangeByteRequest):
            start, stop = byte_range.start, byte_range.end
        elif isinstance(byte_range, OffsetByteRequest):
            start = byte_range.offset
        elif isinstance(byte_range, SuffixByteRequest):
            size = self._size(address) if size is None else size
            start, stop = max(0, size - byte_range.suffix), size
        try:
            data, seen = fetch_version(address, start, stop)
        except SourceNotFoundError:
            if version is not None or (watched and self.refuses_missing):
                raise
            return None
        if watched and version is None and seen is not None and seen.n_bytes >= 0:
            with self._lock:
                first = self._first.setdefault(key, seen)
            check_same(self.root.at(key, first), seen)
        return data

    @staticmethod
    def _size(address: Address) -> int:
        version = look(address)
        if version is None or version.n_bytes < 0:
            raise SourceError(f"{address}: the server does not say how many bytes it has, which sharded arrays need")
        return version.n_bytes

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        data = await asyncio.get_running_loop().run_in_executor(_threads(), self._read, key, byte_range)
        return None if data is None else prototype.buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return list(await asyncio.gather(*(self.get(key, prototype, piece) for key, piece in key_ranges)))

    async def exists(self, key: str) -> bool:
        return await asyncio.get_running_loop().run_in_executor(_threads(), self._there, key)

    async def set(self, key: str, value: Buffer) -> None:  # noqa: ARG002
        raise TypeError(f"{self} is read only; {key} cannot be written")

    async def delete(self, key: str) -> None:
        raise TypeError(f"{self} is read only; {key} cannot be removed")

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await asyncio.get_running_loop().run_in_executor(_threads(), self._members, prefix.strip("/")):
            yield name

    def _members(self, group: str) -> Sequence[str]:
        """Names in a group."""
        address = self.address(group)
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

    def list(self) -> AsyncIterator[str]:
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        objects = await asyncio.get_running_loop().run_in_executor(_threads(), listed, self.root)
        for key in objects or ():
            if key.startswith(prefix):
                yield key


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="streamkm-requests")
