"""Codecs of Zarr arrays: which may decode, and how much at most.

Codecs are those of a list, whatever else is installed, and are compared with it before zarr builds them: some run what
a file says. No storage chunk is decoded to more bytes than its metadata say.
"""

from __future__ import annotations

import asyncio
import bz2
import json
import lzma
import math
import zlib
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import ShardingCodec

_TEXT_BYTES = 1 << 10  # of a text, on average, at most
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


def check_codecs(metadata: Mapping[str, Any]) -> None:
    """Refuse an array's metadata that name a codec which is not on the list. Raises ValueError."""
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
        todo += [*(inner.get("codecs") or ()), *(inner.get("index_codecs") or ())]


class Listed:
    """What a store does besides: metadata that come from it name no codec that is not on the list."""

    async def get(self, key: str, *given: Any, **named: Any) -> Any:
        """See `zarr.abc.store.Store.get`."""
        data = await super().get(key, *given, **named)  # type: ignore[misc]
        if data is not None and key.rpartition("/")[2] in ("zarr.json", ".zarray"):
            check_codecs(json.loads(data.to_bytes()))
        return data


def guarded(array: Any) -> Any:
    """The same `zarr.Array`, of codecs on the list, that decodes no more than its metadata say. Raises ValueError."""
    metadata, inner = array.metadata, copy(array.async_array)
    check_codecs(metadata.to_dict())
    pipeline = inner.codec_pipeline
    if metadata.zarr_format == 2:
        width = _TEXT_BYTES if array.dtype.kind in "OT" else max(_WIDEST, array.dtype.itemsize)
        most, packed = math.prod(array.chunks) * width + _BESIDES, metadata.compressor
        filters = tuple(_Bounded(codec, most) for codec in metadata.filters or ())
        codecs: Any = [
            replace(pipeline.array_bytes_codec, filters=filters, compressor=packed and _Bounded(packed, most))
        ]
    else:
        codecs = _bounded(metadata.codecs)
    object.__setattr__(inner, "codec_pipeline", type(pipeline).from_codecs(codecs))
    return zarr.Array(inner)


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
        most = math.prod(chunk_spec.shape) * width + _BESIDES
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
            except ImportError as error:
                raise ValueError("its Zstandard frames do not tell their size; pip install 'streamkm[zstd]'") from error
            size = len(zstandard.ZstdDecompressor().stream_reader(view).read(most + 1))
    _refuse_more(data, size, most)


def _plain(name: Any) -> str:
    return str(name).removeprefix("numcodecs.")
