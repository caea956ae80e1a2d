"""Zarr stores, format 2 and 3: dense arrays (sharded ones too) and CSR groups, in directories, .zip files and stores.

A missing storage chunk holds the fill value by the format, so a chunk lost before the store was opened looks like rows
of zeros: missing ones are counted and reported. From then on reads check that files are unchanged (`local_files`).
"""

from __future__ import annotations

import itertools
import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.sync import collect_aiterator
from zarr.errors import BaseZarrError
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ZipStore

from streamkm.core.exceptions import InvalidParameterError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.sources.binary.column_names import open_matrix
from streamkm.sources.binary.layouts import Node, join
from streamkm.sources.binary.local_files import WatchedFiles
from streamkm.sources.binary.zarr_stores import METADATA, Grid, RemoteStore, check_codecs
from streamkm.sources.chunks import Access, Origin
from streamkm.sources.dense import DenseSource
from streamkm.sources.local import unchanged
from streamkm.sources.remote import Address, Version, is_remote, listed
from streamkm.sources.row_source import RowSource
from streamkm.sources.stored import StoredArray, as_decoded, chunks_text, decoded_dtype, opened_path

_MOST_NAMES = 1 << 24  # all are read when a store is opened
# members that readers look for, where a server lists nothing
_KNOWN_MEMBERS = ("data", "indices", "indptr", "shape", "X", "obs", "var", "matrix", "barcodes", "features", "genes")
# whatever codecs raise on bytes that are not theirs
_DAMAGE = (
    OSError, RuntimeError, ValueError, TypeError, LookupError, EOFError, AttributeError, ImportError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


def open_zarr(path: str, *, missing_chunks: str = "warn", **options: str) -> RowSource:
    """Open the matrix of a Zarr store; `find_matrix` explains the option `dataset`, `open_source` the others.

    `path`: a directory, .zip file, or address that fsspec knows. Raises SourceError, InvalidInputError,
    InvalidParameterError.
    """
    root = open_root(path)
    if isinstance(root.store, RemoteStore):  # servers that list nothing
        root.store.refuses_missing = missing_chunks == "raise"
    return _open(root, path, missing_chunks, **options)


def open_zarr_object(node: Any, *, missing_chunks: str = "warn", **names: str) -> RowSource:
    """Open the matrix that an open array or group is or holds. Raises SourceError, InvalidInputError as `open_zarr`."""
    name = _store_name(node.store) + (f":/{node.path}" if node.path else "")
    return _open(node, name, missing_chunks, **names)


def _open(node: Any, name: str, missing_chunks: str, dataset: str | None = None, **names: str) -> RowSource:
    if missing_chunks not in ("warn", "raise"):
        raise InvalidParameterError(f'missing_chunks={missing_chunks!r} is unknown; known are "warn" and "raise"')
    if not isinstance(node, zarr.Array):
        source = open_matrix(_ZarrTree(name, node), dataset, **names)
    elif (dataset or "").strip("/"):
        raise SourceNotFoundError(f"{name} is one array and has no {dataset}; leave dataset out")
    elif names:
        option, value = next(iter(names.items()))
        raise InvalidParameterError(
            f"{option}={value!r} does not apply to {name}, which is one array; pass the group of X"
        )
    else:
        source = DenseSource(ZarrArray(node, name))
    if missing_chunks == "raise" and source.origin.missing_chunks:
        raise SourceError(f'{source.origin.missing_chunks}; restore them, or leave missing_chunks="raise" out')
    return source


def open_root(path: str) -> zarr.Array[Any] | zarr.Group:
    """Open the store at a path or address, to read. Raises SourceError if it is missing or unreadable."""
    with _readable(f"{path} is no Zarr store that can be read"):
        if is_remote(path):
            store: Any = RemoteStore.at(path if isinstance(path, Address) else Address(path))
        else:
            local = opened_path(path)
            is_file = local.version is not None
            store = ZipStore(Path(local), mode="r") if is_file else LocalStore(Path(local), read_only=True)
        # consolidated metadata is not used: one member of a type unknown to zarr would make all of it unreadable
        return zarr.open(store, mode="r", use_consolidated=False)


@contextmanager
def _readable(said: str) -> Iterator[None]:
    """Context that turns reading errors into a SourceError."""
    try:
        yield
    except StreamkmError:
        raise
    except (BaseZarrError, *_DAMAGE) as error:
        raise SourceError(f"{said}: {type(error).__name__}: {error}") from error


class ZarrArray(StoredArray):
    """An array of one or two dimensions, pickled as its store's address and its metadata."""

    def __init__(self, array: Any, name: str) -> None:
        check_codecs(array, name)
        self._array, self.name = array, name
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self.format = f"Zarr v{array.metadata.zarr_format}"
        is_remote = isinstance(array.store, RemoteStore)
        self.access = Access(
            decodes=bool(array.filters or array.compressors) or is_remote,
            in_process=not _is_shared(array.store),
            libraries=("zarr", "fsspec") if is_remote else ("zarr",),
        )
        files: tuple[str, ...] = (_store_name(array.store),) if isinstance(array.store, LocalStore | ZipStore) else ()
        self._grid = grid = Grid(array, name)
        self.unit_rows = grid.lengths[0] if self.shape else 1
        self.unit_bytes = math.prod(grid.lengths) * self.dtype.itemsize
        self._files, self._zip, stored, lacking = None, "", None, ""
        self.n_bytes = int(array.nbytes_stored()) if isinstance(array.store, MemoryStore) else None
        if isinstance(array.store, LocalStore):
            self._files = WatchedFiles(str(Path(array.store.root, array.path)), grid.holds)
            self.n_bytes = self._files.n_bytes
            lacking = grid.lacking(name, self._files.n_counted, self._files)
        elif isinstance(array.store, RemoteStore):
            address = array.store.root.at(array.path)
            if (objects := listed(address)) is not None:  # else what was stored is estimated by samples of the rows
                stored = {key: version.n_bytes for key, version in objects.items()}
                files = (Address(address, address.options, Version.of_all(objects)),)
        else:
            self._zip = opened_path(str(array.store.path)) if isinstance(array.store, ZipStore) else ""
            stored = _stored(array)
        if stored is not None:
            if None not in stored.values():
                self.n_bytes = sum(stored.values())
            lacking = grid.lacking(name, sum(map(grid.holds, stored)), stored)
        self.origin = Origin(files, self.dtype.newbyteorder("="), missing_chunks=lacking)

    def details(self) -> dict[str, str]:
        array = self._array
        codecs = [_codec_name(codec) for codec in (*array.filters, *array.compressors)]
        return {
            "chunks": chunks_text(array.chunks, self.shape),
            **({"shards": str(self._grid)} if array.shards else {}),
            "compression": " + ".join(codecs) or "none",
        }

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        out[...] = self._get(start, stop)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Give rows, without a copy if zarr decodes them to the right type; see `StoredArray.read`."""
        return as_decoded(self._get(start, stop), decoded_dtype(self.dtype, self.name))

    def _get(self, start: int, stop: int) -> NDArray[Any]:
        place = f"{self.name}, rows {start:,}-{stop - 1:,}"
        with _readable(f"{place}, cannot be read or decoded (a storage chunk of these rows is damaged)"):
            try:
                with unchanged(self._zip):
                    return np.asarray(self._array[start:stop])
            finally:  # are its files those that were there when the array was opened?
                if self._files is not None:
                    self._files.check(itertools.chain(METADATA, self._grid.keys(start, stop)))


class _ZarrTree:
    """A group as a `layouts.Tree`. Members are read one by one, so that an unreadable one does not hide the others."""

    def __init__(self, name: str, root: Any) -> None:
        self.name = name
        self._root = root
        self.node = cache(self._look)

    def paths(self) -> list[str]:
        found: list[str] = []
        todo = ["/"]
        while todo:
            path = todo.pop()
            node = self.node(path)
            if path != "/":
                found.append(path)
            if node is not None and node.is_group:
                todo += [join(path, member) for member in node.members if self.node(join(path, member)) is not None]
        return found

    def attribute(self, path: str, name: str) -> str:
        return str(getattr(self._item(path), "attrs", {}).get(name, ""))

    def values(self, path: str) -> NDArray[Any]:
        array = self._array(path)
        if max(math.prod(array.shape), math.prod(Grid(array, self.name).lengths)) > _MOST_NAMES:
            raise SourceError(f"{self.name}:{path} has more than {_MOST_NAMES:,} values, or chunks of more")
        with _readable(f"{self.name}:{path} cannot be read or decoded"):
            check_codecs(array, f"{self.name}:{path}")
            return np.asarray(array[...])

    def array(self, path: str) -> ZarrArray:
        return ZarrArray(self._array(path), f"{self.name}:{path}")

    def _array(self, path: str) -> zarr.Array[Any]:
        item = self._item(path)
        if not isinstance(item, zarr.Array):
            why = item if isinstance(item, Exception) else "it is a group"
            raise SourceError(f"{self.name}:{path} is no array of a type that zarr can read: {why}")
        return item

    def _item(self, path: str) -> Any:
        """Give the member at `path`, an error if it cannot be read, or None if it does not exist."""
        inner = path.strip("/")
        try:
            return self._root[inner] if inner else self._root
        except KeyError:
            return None
        except SourceError:
            raise
        except (BaseZarrError, *_DAMAGE) as error:
            return error

    def _look(self, path: str) -> Node | None:
        item = self._item(path)
        if item is None:
            return None
        if isinstance(item, Exception):
            return Node(path, shape=())
        if isinstance(item, zarr.Array):
            return Node(path, shape=tuple(item.shape), dtype=np.dtype(item.dtype))
        attributes = dict(item.attrs)
        shape = attributes.get("shape")
        return Node(
            path,
            encoding=str(attributes.get("encoding-type", "")),
            matrix_shape=None if shape is None else tuple(int(length) for length in shape),
            members=frozenset(self._members(path, item)),
        )

    def _members(self, path: str, group: Any) -> list[str]:
        if isinstance(group.store, RemoteStore) and group.store.root.is_http:
            return [name for name in _KNOWN_MEMBERS if self._item(join(path, name)) is not None]
        names = collect_aiterator(group.store.list_dir(group.path))
        return [name.strip("/") for name in names if not name.startswith((".z", "zarr.json"))]


def _stored(array: Any) -> dict[str, Any] | None:
    """Keys of all stored chunks of an array, with sizes if known; None if a store cannot list them."""
    store, prefix = array.store, f"{array.path}/" if array.path else ""
    try:
        if isinstance(store, ZipStore):  # zarr itself would read all of it
            with zipfile.ZipFile(store.path) as archive:
                found: dict[str, Any] = {info.filename: info.compress_size for info in archive.infolist()}
        else:
            found = dict.fromkeys(collect_aiterator(store.list_prefix(prefix)))
    except _DAMAGE as error:
        if isinstance(store, ZipStore):
            raise SourceError(f"{store.path} is a damaged .zip file: {error}") from error
        return None
    return {key.removeprefix(prefix): size for key, size in found.items() if key.startswith(prefix)}


def _is_shared(store: Any) -> bool:
    """Whether other processes see the contents of a store; False for unknown kinds."""
    own = isinstance(store, FsspecStore) and "memory" in getattr(store.fs, "protocol", ())
    return isinstance(store, LocalStore | ZipStore | FsspecStore) and not own


def _codec_name(codec: Any) -> str:
    """Name of a codec of Zarr, or of numcodecs in stores of format 2."""
    name = str(getattr(codec, "codec_id", "") or codec.to_dict().get("name", type(codec).__name__))
    inner = getattr(codec, "cname", None)
    return name if inner is None else f"{name} {getattr(inner, 'value', inner)}"


def _store_name(store: Any) -> str:
    return str(getattr(store, "root", None) or getattr(store, "path", None) or store)
