"""What metadata of Zarr arrays say and how much of it is believed: codecs and how much they decode, storage chunks.

Codecs are those of a list, whatever else is installed, and are compared with it before zarr builds them: some run what
a file says. No storage chunk is decoded to more bytes than its metadata say.
"""

from __future__ import annotations

import asyncio
import bz2
import itertools
import json
import lzma
import math
import operator
import re
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import ShardingCodec

_TEXT_BYTES = 1 << 10  # of a text, on average, at most
_TEXTS_BYTES = 1 << 28  # of the texts of a storage chunk
_MOST_VALUES = 1 << 40  # of a storage chunk
_MOST_EDGES = 1 << 20  # chunks of several lengths in a dimension
_WIDEST = 16  # bytes of a number that a filter may have widened
_BESIDES = 1 << 12  # bytes of checksums and lengths
_CODECS = frozenset({
    "blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma", "vlen-utf8", "bytes", "transpose", "sharding_indexed",
    "delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype", "shuffle",
    "crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3",
})  # fmt: skip
_UNTOLD: dict[str, Callable[[], Any]] = {  # decoders of what does not tell its size
    "gzip": lambda: zlib.decompressobj(31), "zlib": zlib.decompressobj, "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}  # fmt: skip


class DamagedError(ValueError):
    """Metadata that no array can have."""


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse an array's metadata that name a codec which is not on the list, or chunks without or beyond measure.

    Raises ValueError; DamagedError for chunks.
    """
    grid = (metadata.get("chunk_grid") or {}).get("configuration") or {}
    _check_lengths(metadata.get("chunks") or grid.get("chunk_shape") or grid.get("chunk_shapes") or ())
    todo = [metadata.get("compressor"), *(metadata.get("filters") or ()), *(metadata.get("codecs") or ())]
    while todo:
        if (codec := todo.pop()) is None:
            continue
        told = codec if isinstance(codec, Mapping) else {"name": codec}
        for name in {_plain(told[key]) for key in ("id", "name") if key in told} or {""}:
            if name not in _CODECS:
                raise ValueError(
                    f"its codec {name!r} is none of {', '.join(sorted(_CODECS))}; store it with one of these"
                )
        inner = told.get("configuration") or {}
        _check_lengths(inner.get("chunk_shape") or ())
        todo += [*(inner.get("codecs") or ()), *(inner.get("index_codecs") or ())]


def _check_lengths(shape: Any) -> None:
    """Refuse lengths of chunks by dimension: a number, or a list of numbers and pairs of number and repetitions."""
    sides = [[(each if isinstance(each, list) else [each, 1]) for each in _listed(side)] for side in shape]
    if any(sum(count for _, count in side) > _MOST_EDGES for side in sides):
        raise DamagedError(f"its metadata say more than {_MOST_EDGES:,} chunks of several lengths in a dimension")
    if any(length < 1 for side in sides for length, _ in side):
        raise DamagedError(f"its metadata say chunks of {tuple(shape)}; lengths must be positive")
    if math.prod(max(length for length, _ in side) for side in sides) > _MOST_VALUES:
        raise DamagedError(f"its metadata say chunks of {tuple(shape)}; {_MOST_VALUES:,} values are the most")


def _listed(side: Any) -> Any:
    return side if isinstance(side, list | tuple) else [side]


class Grid:
    """The storage chunks of an array, shards where there are shards.

    `lengths`, `counts`: by dimension, the length of the largest, and how many there are. `inner`: lengths of the chunks
    of a shard; None where there are no shards.
    """

    def __init__(self, metadata: Any) -> None:
        grid, self._metadata = metadata.chunk_grid if metadata.zarr_format == 3 else None, metadata
        shape = getattr(grid, "chunk_shapes", None) or getattr(grid, "chunk_shape", None) or metadata.chunks
        self._ends = [None if isinstance(side, int) else np.cumsum(side) for side in shape]  # of several lengths
        self.lengths = tuple(max(_listed(side)) for side in shape)
        self.counts = tuple(
            -(-size // length) if ends is None else int(np.searchsorted(ends, size)) + 1
            for size, length, ends in zip(metadata.shape, self.lengths, self._ends, strict=True)
        )
        codecs = getattr(metadata, "codecs", ())
        self.inner = next((codec.chunk_shape for codec in codecs if isinstance(codec, ShardingCodec)), None)
        key = re.escape(metadata.encode_chunk_key((7,) * len(self.counts)))
        self._key = re.compile(key.replace("7", "(0|[1-9][0-9]{0,18})"))

    def __str__(self) -> str:
        varying = "up to " if any(ends is not None for ends in self._ends) else ""
        return f"{math.prod(self.counts):,} of {varying}{' x '.join(f'{length:,}' for length in self.lengths)}"

    def holds(self, key: str) -> bool:
        """Whether a key is that of a storage chunk."""
        found = self._key.fullmatch(key)
        return found is not None and all(map(operator.lt, map(int, found.groups()), self.counts))

    def keys(self, start: int, stop: int) -> Iterator[str]:
        """Keys of the storage chunks that rows lie in."""
        ends, rows = self._ends[0], (start, stop - 1)
        first, last = (row // self.lengths[0] for row in rows) if ends is None else np.searchsorted(ends, rows, "right")
        numbers = itertools.product(range(first, last + 1), *map(range, self.counts[1:]))
        return map(self._metadata.encode_chunk_key, numbers)

    def lacking(self, name: str, n_stored: int, stored: Container[str]) -> str:
        """Say how many storage chunks are missing from those that are stored, and the first; "" for none."""
        total, what = math.prod(self.counts), "chunks" if self.inner is None else "shards"
        if n_stored >= total:
            return ""
        # so many contain one that is missing, and the first of all
        numbers = itertools.product(*(range(min(count, n_stored + 1)) for count in self.counts))
        first = next(key for key in map(self._metadata.encode_chunk_key, numbers) if key not in stored)
        held = f"which hold the fill value {self._metadata.fill_value}"
        return f"{name} lacks {first}, the first of those missing: {total - n_stored:,} of {total:,} {what}, {held}"


class Listed:
    """What a store does besides: metadata that come from it name no codec that is not on the list."""

    async def get(self, key: str, *given: Any, **named: Any) -> Any:
        """See `zarr.abc.store.Store.get`."""
        data = await super().get(key, *given, **named)  # type: ignore[misc]
        if data is not None and key.rpartition("/")[2] in ("zarr.json", ".zarray"):
            check_metadata(json.loads(data.to_bytes()))
        return data


def guarded(array: Any) -> Any:
    """The same `zarr.Array`, of codecs on the list, that decodes no more than its metadata say. Raises ValueError."""
    metadata, inner = array.metadata, copy(array.async_array)
    check_metadata(metadata.to_dict())
    pipeline = inner.codec_pipeline
    if metadata.zarr_format == 2:
        width = _TEXT_BYTES if array.dtype.kind in "OT" else max(_WIDEST, array.dtype.itemsize)
        most, packed = _most(metadata.chunks, width), metadata.compressor
        filters = tuple(_Bounded(codec, most) for codec in metadata.filters or ())
        codecs: Any = [
            replace(pipeline.array_bytes_codec, filters=filters, compressor=packed and _Bounded(packed, most))
        ]
    else:
        codecs = _bounded(metadata.codecs)
    object.__setattr__(inner, "codec_pipeline", type(pipeline).from_codecs(codecs))
    return zarr.Array(inner)


def _most(shape: Any, width: int) -> int:
    """Bytes of a storage chunk, decoded, at most."""
    n_bytes = math.prod(shape) * width
    return (min(n_bytes, _TEXTS_BYTES) if width == _TEXT_BYTES else n_bytes) + _BESIDES


def _bounded(codecs: Any) -> tuple[Any, ...]:
    """Codecs of format 3: each compression has a bound behind it, or one within where it does not tell its size."""
    bounded: list[Any] = []
    for codec in codecs:
        name = _plain(codec.to_dict()["name"])
        if name not in _UNTOLD:
            bounded.append(replace(codec, codecs=_bounded(codec.codecs)) if isinstance(codec, ShardingCodec) else codec)
        if isinstance(codec, BytesBytesCodec):
            bounded.append(_Bound(name))
    return tuple(bounded)


@dataclass(frozen=True)
class _Bound(BytesBytesCodec):
    """A look, before a codec of format 3 decodes, at how many bytes it will make; decodes what does not tell that."""

    name: str
    is_fixed_size = True

    def compute_encoded_size(self, input_byte_length: int, _: Any) -> int:
        return input_byte_length

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        data, width = chunk_bytes.to_bytes(), getattr(chunk_spec.dtype, "item_size", _TEXT_BYTES)
        most = _most(chunk_spec.shape, width)
        if self.name in _UNTOLD:
            decoded = await asyncio.to_thread(_decoded, self.name, data, most)
            return chunk_spec.prototype.buffer.from_bytes(decoded)
        _check_size(self.name, data, most)
        return chunk_bytes


@dataclass(frozen=True)
class _Bounded:
    """A codec of format 2 that makes so many bytes at most."""

    codec: Any
    most: int

    def decode(self, data: Any) -> Any:
        if self.codec.codec_id in _UNTOLD:
            return _decoded(self.codec.codec_id, data, self.most)
        _check_size(self.codec.codec_id, data, self.most)
        return self.codec.decode(data)


def _decoded(name: str, data: Any, most: int) -> bytes:
    """What a codec makes of bytes that do not tell its size. Raises ValueError where that is more than there can be."""
    view, parts, size = memoryview(data).cast("B"), [], 0
    while len(view):
        decoder = _UNTOLD[name]()
        parts.append(decoder.decompress(view, most + 1 - size))
        size += len(parts[-1])
        _refuse_more(data, size, most)
        if not decoder.eof:
            raise ValueError(f"its {len(data):,} bytes end early")
        view = memoryview(decoder.unused_data)
    return b"".join(parts)


def _refuse_more(data: Any, size: int, most: int) -> None:
    if size > most:
        raise ValueError(
            f"its {len(data):,} bytes would be decoded to {size:,} or more; its metadata say {most:,} at most"
        )


def _check_size(name: str, data: Any, most: int) -> None:
    """Refuse bytes that a codec would make more of than there can be. Raises ValueError."""
    view = memoryview(data).cast("B") if name in ("blosc", "lz4", "zstd") else memoryview(b"")
    head, size = bytes(view[:18]), 0
    if name == "blosc":
        size = int.from_bytes(head[4:8], "little")
        if len(view) < 16 or int.from_bytes(head[12:16], "little") != len(view):  # which the decoder believes
            raise ValueError(f"its {len(view):,} bytes are not those that Blosc makes of {size:,}")
    elif name == "lz4":
        size = int.from_bytes(head[:4], "little")
    elif name == "zstd" and len(head) > 4:
        flags = head[4]  # RFC 8878, section 3.1.1.1
        width, start = (flags >> 5 & 1, 2, 4, 8)[flags >> 6], 6 - (flags >> 5 & 1) + (0, 1, 2, 4)[flags & 3]
        size = int.from_bytes(head[start : start + width], "little") + 256 * (width == 2)
        if not width:
            try:
                import zstandard

                size = len(zstandard.ZstdDecompressor().stream_reader(view).read(most + 1))
            except ImportError as error:
                raise ValueError("its Zstandard frames do not tell their size; pip install 'streamkm[zstd]'") from error
            except zstandard.ZstdError as error:
                raise ValueError(f"its {len(view):,} bytes are no Zstandard frame: {error}") from error
    _refuse_more(data, size, most)


def _plain(name: Any) -> str:
    return str(name).removeprefix("numcodecs.")
