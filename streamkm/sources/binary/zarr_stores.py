"""Parts of Zarr stores: objects behind URLs, storage chunks, and trusted codecs (others may run code of a file)."""

from __future__ import annotations

import asyncio
import itertools
import math
import operator
import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

from zarr.storage import FsspecStore

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.sources.remote import Address, ask, fetch
from streamkm.sources.stored import chunks_text

METADATA = ("zarr.json", ".zarray")
"""Keys of an array's metadata."""

_CODECS = frozenset({
    "blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma", "vlen-utf8", "bytes", "transpose", "sharding_indexed",
    "delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype", "shuffle",
    "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3",
})  # fmt: skip


class RemoteStore(FsspecStore):
    """Objects behind a URL, read by our own requests, which are retried and whose errors tell no secret."""

    root: Address
    refuses_missing = False  # where nothing is listed: a missing storage chunk is an error

    @classmethod
    def at(cls, root: Address) -> RemoteStore:
        """Store of the objects below an address."""
        ask(root, lambda *_: None)  # names a package that is missing
        store: Any = cls.from_url(root.url.rstrip("/"), root.options, read_only=True)
        store.root = root
        return store

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        start = getattr(byte_range, "start", getattr(byte_range, "offset", -getattr(byte_range, "suffix", 0)))
        try:
            data = await asyncio.to_thread(fetch, self.root.at(key), start, getattr(byte_range, "end", None))
        except SourceNotFoundError:
            if self.refuses_missing and key.rpartition("/")[2] not in (*METADATA, ".zgroup"):
                raise
            return None
        return prototype.buffer.from_bytes(data)


def check_codecs(array: Any, name: str) -> None:
    """Refuse an array with a codec that is not listed. Raises SourceError."""
    metadata = array.metadata.to_dict()
    todo = [metadata.get("compressor"), *(metadata.get("filters") or ()), *(metadata.get("codecs") or ())]
    for codec in filter(None, todo):
        told = codec if isinstance(codec, Mapping) else codec.to_dict()
        codec_name = str(told.get("id") or told.get("name")).removeprefix("numcodecs.")
        if codec_name not in _CODECS:
            raise SourceError(
                f"{name} cannot be read: its codec {codec_name!r} is none of {', '.join(sorted(_CODECS))}; store it "
                f"with one of these"
            )
        inner = told.get("configuration") or {}
        todo += [*(inner.get("codecs") or ()), *(inner.get("index_codecs") or ())]


class Grid:
    """Storage chunks of an array, or its shards: `lengths` and `counts` by dimension. Raises SourceError: length 0."""

    def __init__(self, array: Any, name: str) -> None:
        self._shape, self._what, self._fill = array.shape, "shards" if array.shards else "chunks", array.fill_value
        self._encoded = array.metadata.encode_chunk_key
        # releases from 3.4 on read lengths of 0 as 1, and keep what was stored
        mended: Any = getattr(array.metadata, "_stored_document", None) or {}
        stored = mended.get("chunks") or mended.get("chunk_grid", {}).get("configuration", {}).get("chunk_shape")
        self.lengths = tuple(stored or array.shards or array.chunks)
        if min(self.lengths, default=1) < 1:
            raise SourceError(f"{name} is damaged: its metadata say chunks of {self.lengths}; lengths must be positive")
        self.counts = tuple(-(-size // length) for size, length in zip(array.shape, self.lengths, strict=True))
        self._key = re.compile(re.escape(self._encoded((7,) * len(self.counts))).replace("7", "(0|[1-9][0-9]{0,18})"))

    def __str__(self) -> str:
        return chunks_text(self.lengths, self._shape)

    def holds(self, key: str) -> bool:
        """Whether a key is that of a storage chunk."""
        found = self._key.fullmatch(key)
        return found is not None and all(map(operator.lt, map(int, found.groups()), self.counts))

    def keys(self, start: int, stop: int) -> Iterator[str]:
        """Keys of the storage chunks that hold rows."""
        rows = range(start // self.lengths[0], (stop - 1) // self.lengths[0] + 1)
        return map(self._encoded, itertools.product(rows, *map(range, self.counts[1:])))

    def lacking(self, name: str, n_stored: int, stored: Container[str]) -> str:
        """Say how many storage chunks are missing from the stored ones, and the first; "" for none."""
        total = math.prod(self.counts)
        if n_stored >= total:
            return ""
        # so many contain one that is missing, and the first of all
        numbers = itertools.product(*(range(min(count, n_stored + 1)) for count in self.counts))
        first = next(key for key in map(self._encoded, numbers) if key not in stored)
        told = f"{total - n_stored:,} of {total:,} {self._what}, which hold the fill value {self._fill}"
        return f"{name} lacks {first}, the first of those missing: {told}"
