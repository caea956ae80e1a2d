"""Zarr stores, format 2 and 3: dense arrays (sharded ones too) and CSR groups, in directories, .zip files and stores.

Responsible for finding the matrix in a store and reading rows of its arrays.

A storage chunk that is missing from a Zarr store is not an error: by the format, it holds the fill value (mostly 0).
So a chunk file that got lost before the store was opened cannot be told from rows that are zero. From then on, in every
process, the files of storage chunks that are read and those of the array's metadata are compared with what was there
(see `local_files`); a .zip file as any file is. Stores that lie neither on disk nor behind a URL are not.
"""

from __future__ import annotations

import itertools
import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.sync import collect_aiterator
from zarr.errors import BaseZarrError
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ZipStore

from streamkm.core.exceptions import InvalidParameterError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.sources.base import ChunkedSource
from streamkm.sources.binary.column_names import name_columns
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.binary.layouts import MatrixLocation, Node, find_matrix, join
from streamkm.sources.binary.local_files import WatchedFiles
from streamkm.sources.binary.zarr_codecs import Listed, guarded
from streamkm.sources.dense import DenseSource
from streamkm.sources.local import unchanged
from streamkm.sources.remote.objects import Address, is_remote
from streamkm.sources.remote.zarr import RemoteStore
from streamkm.sources.stored import StoredArray, chunks_text, decoded_dtype, opened_path

_METADATA = ("zarr.json", ".zarray")
_BESIDES = (*_METADATA, ".zattrs")
# whatever codecs raise on bytes that are not theirs
_DAMAGE = (
    OSError, RuntimeError, ValueError, TypeError, LookupError, EOFError, AttributeError, ImportError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


class _Local(Listed, LocalStore):
    """A directory."""


class _Zip(Listed, ZipStore):
    """A .zip file."""


class _Remote(Listed, RemoteStore):
    """Objects behind a URL."""


def open_zarr(
    path: str, *, dataset: str | None = None, var_column: str | None = None, genes: str | None = None
) -> ChunkedSource:
    """Open the matrix of a Zarr store.

    Parameters
    ----------
    path : str
        A directory, a .zip file, or an address such as ``s3://bucket/x.zarr`` that fsspec knows.
    dataset : str or None
        An array of shape (n, d), a CSR group, an AnnData object (its X), or a group with one of these in it. None
        searches the store, which must hold one matrix.
    var_column : str or None
        Column of `var` of AnnData that names the columns of the matrix; None is its index.
    genes : str or None
        Column of true and false there: the columns of the matrix to take; None takes all.

    Raises
    ------
    SourceError
        No such store, or one that cannot be read; no such array in it.
    InvalidInputError
        No matrix, several matrices, or one that is not of numbers; a column without a name.
    InvalidParameterError
        No such `var_column` or `genes`.
    """
    root = open_root(path)
    if isinstance(root, zarr.Array):
        if dataset is not None and dataset.strip("/"):
            raise SourceNotFoundError(f"{path} is one array and has no {dataset}; leave dataset out")
        _refuse_names(var_column, genes, f"{path}, which is one array")
        return DenseSource(ZarrArray(root, path))
    return _open_in(_ZarrTree(path, root), dataset, var_column, genes)


def open_root(path: str) -> zarr.Array[Any] | zarr.Group:
    """Open what a store's path or address names, to read.

    Raises SourceError: no such store, or one that cannot be read.
    """
    try:
        if is_remote(path):
            store: Any = _Remote(path if isinstance(path, Address) else Address(path))
        else:
            local = opened_path(path)
            is_file = local.version is not None
            store = _Zip(Path(local), mode="r") if is_file else _Local(Path(local), read_only=True)
        # consolidated metadata is not used: one member of a type unknown to zarr would make all of it unreadable
        return zarr.open(store, mode="r", use_consolidated=False)
    except StreamkmError:
        raise
    except (BaseZarrError, *_DAMAGE) as error:
        raise SourceError(f"{path} is no Zarr store that can be read: {error}") from error


def open_zarr_object(
    node: zarr.Array[Any] | zarr.Group, *, var_column: str | None = None, genes: str | None = None
) -> ChunkedSource:
    """Open the matrix that an open array or group is or holds. Raises SourceError, InvalidInputError as `open_zarr`."""
    store = _store_name(node.store)
    inner = f"/{node.path}" if node.path else ""
    if isinstance(node, zarr.Array):
        _refuse_names(var_column, genes, "an array; pass the group of X")
        return DenseSource(ZarrArray(node, f"{store}:{inner}" if inner else store))
    return _open_in(_ZarrTree(f"{store}:{inner}" if inner else store, node), None, var_column, genes)


def _refuse_names(var_column: str | None, genes: str | None, what: str) -> None:
    """Refuse options of matrices with a table of their columns."""
    for option, value in (("var_column", var_column), ("genes", genes)):
        if value is not None:
            raise InvalidParameterError(f"{option}={value!r} does not apply to {what}")


class ZarrArray(StoredArray):
    """An array of one or two dimensions. `array`: pickles as its store's address and its metadata."""

    def __init__(self, array: Any, name: str) -> None:
        try:
            self._array, self._guarded = array, guarded(array)
        except ValueError as error:
            raise SourceError(f"{name} cannot be read: {error}") from error
        self.name = name
        self.shape = tuple(array.shape)
        self.dtype = np.dtype(array.dtype)
        self.format = f"Zarr v{array.metadata.zarr_format}"
        self.in_process = not _is_shared(array.store)
        self.files = (_store_name(array.store),) if isinstance(array.store, LocalStore | ZipStore) else ()
        self.decodes = bool(array.filters or array.compressors) or isinstance(array.store, RemoteStore)
        self.libraries = ("zarr", *(("fsspec",) if isinstance(array.store, RemoteStore) else ()))
        if any(length < 1 for length in array.chunks):
            raise SourceError(f"{name} is damaged: its metadata say chunks of {array.chunks}; lengths must be positive")
        self.unit_rows = int((array.shards or array.chunks)[0]) if self.shape else 1
        self._files: WatchedFiles | None = None
        self._zip = ""
        if isinstance(array.store, LocalStore):
            self._files = WatchedFiles(str(Path(array.store.root, array.path)))
            self.n_bytes: int | None = self._files.n_bytes
        elif isinstance(array.store, RemoteStore):
            self.n_bytes = array.store.watch(array.path)
            # where nothing is listed, what was stored is estimated by samples of the rows
            self.files = () if self.n_bytes is None else (array.store.address(array.path),)
        else:
            self._zip = opened_path(str(array.store.path)) if isinstance(array.store, ZipStore) else ""
            self.n_bytes = _stored_bytes(array)

    def details(self) -> dict[str, str]:
        """Say how the values are stored, and how many storage chunks are not; see `StoredArray.details`."""
        array = self._array
        details = {"chunks": chunks_text(array.chunks, self.shape)}
        if array.shards:
            details["shards"] = chunks_text(array.shards, self.shape)
        elif self._files is not None and (missing := array.nchunks - self._files.count(besides=_BESIDES)) > 0:
            details["not stored"] = (
                f"{missing:,} of {array.nchunks:,} chunks, which hold the fill value {array.fill_value}"
            )
        codecs = [_codec_name(codec) for codec in (*array.filters, *array.compressors)]
        return {**details, "compression": " + ".join(codecs) or "none"}

    def read_into(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill `out`; see `StoredArray.read_into`."""
        out[...] = self._get(start, stop)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Give rows; see `StoredArray.read`. What zarr decoded is given itself, where its type is right."""
        return np.ascontiguousarray(self._get(start, stop), decoded_dtype(self.dtype, self.name))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_guarded": None}

    def _get(self, start: int, stop: int) -> NDArray[Any]:
        self._guarded = self._guarded or guarded(self._array)
        try:
            with unchanged(self._zip):
                values = np.asarray(self._guarded[start:stop])
        except SourceError:
            raise
        except (BaseZarrError, *_DAMAGE) as error:
            self._check_files(start, stop)
            raise SourceError(
                f"{self.name}, rows {start:,}-{stop - 1:,}, cannot be read or decoded "
                f"({type(error).__name__}: {error}); a storage chunk of these rows is damaged"
            ) from error
        self._check_files(start, stop)
        return values

    def _check_files(self, start: int, stop: int) -> None:
        """See to it that the files of rows are those that were there when the array was opened."""
        if self._files is None:
            return
        array = self._array
        units = array.shards or array.chunks
        grid = [range(start // units[0], -(-stop // units[0]))]
        grid += [range(-(-length // unit)) for length, unit in zip(self.shape[1:], units[1:], strict=True)]
        keys = map(array.metadata.encode_chunk_key, itertools.product(*grid))
        self._files.check(itertools.chain(_METADATA, keys))


def _open_in(tree: _ZarrTree, dataset: str | None, var_column: str | None, genes: str | None) -> ChunkedSource:
    found = find_matrix(tree, dataset)
    source = _open_matrix(tree, found)
    return name_columns(source, tree, found, var_column, genes)


def _open_matrix(tree: _ZarrTree, found: MatrixLocation) -> ChunkedSource:
    if found.kind == "dense":
        return DenseSource(tree.array(found.path))
    data, indices, indptr = (tree.array(join(found.path, name)) for name in ("data", "indices", "indptr"))
    shape = (found.shape[0], found.shape[1])
    return CsrSource(data, indices, indptr, shape=shape, name=f"{tree.name}:{found.path}", layout=found.layout)


class _ZarrTree:
    """A group as `layouts.Tree`. Members are read one by one: one that zarr cannot read must not hide the others."""

    def __init__(self, name: str, root: Any) -> None:
        self.name = name
        self._root = root
        self._nodes: dict[str, Node | None] = {}

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

    def node(self, path: str) -> Node | None:
        if path not in self._nodes:
            self._nodes[path] = self._look(path)
        return self._nodes[path]

    def attribute(self, path: str, name: str) -> str:
        return str(getattr(self._item(path), "attrs", {}).get(name, ""))

    def values(self, path: str) -> NDArray[Any]:
        try:
            return np.asarray(guarded(self._array(path))[...])
        except (BaseZarrError, *_DAMAGE) as error:
            raise SourceError(f"{self.name}:{path} cannot be read or decoded: {error}") from error

    def array(self, path: str) -> ZarrArray:
        return ZarrArray(self._array(path), f"{self.name}:{path}")

    def _array(self, path: str) -> zarr.Array[Any]:
        item = self._item(path)
        if not isinstance(item, zarr.Array):
            why = item if isinstance(item, Exception) else "it is a group"
            raise SourceError(f"{self.name}:{path} is no array of a type that zarr can read: {why}")
        return item

    def _item(self, path: str) -> Any:
        """Give the member at `path`, an error if it cannot be read, or None if it is not there."""
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
            members=frozenset(self._members(item)),
        )

    def _members(self, group: Any) -> list[str]:
        names = collect_aiterator(group.store.list_dir(group.path))
        return [name.strip("/") for name in names if not name.startswith((".z", "zarr.json"))]


def _stored_bytes(array: Any) -> int | None:
    """Give the size of all that is stored of an array; None where asking would list a remote store."""
    store = array.store
    if isinstance(store, ZipStore):
        # zarr itself would read all of it
        try:
            with zipfile.ZipFile(store.path) as archive:
                prefix = f"{array.path}/" if array.path else ""
                return sum(info.compress_size for info in archive.infolist() if info.filename.startswith(prefix))
        except _DAMAGE as error:
            raise SourceError(f"{store.path} is a damaged .zip file: {error}") from error
    return int(array.nbytes_stored()) if isinstance(store, MemoryStore) else None


def _is_shared(store: Any) -> bool:
    """Whether other processes see what a store holds; for kinds that are not known, no."""
    if isinstance(store, RemoteStore):
        return not store.root.in_process
    if isinstance(store, FsspecStore):
        return "memory" not in getattr(store.fs, "protocol", ())
    return isinstance(store, LocalStore | ZipStore)


def _codec_name(codec: Any) -> str:
    """Name of a codec of Zarr, or of numcodecs in stores of format 2."""
    name = str(getattr(codec, "codec_id", "") or codec.to_dict().get("name", type(codec).__name__))
    inner = getattr(codec, "cname", None)
    return name if inner is None else f"{name} {getattr(inner, 'value', inner)}"


def _store_name(store: Any) -> str:
    return str(getattr(store, "root", None) or getattr(store, "path", None) or store)
