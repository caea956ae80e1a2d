"""Which reader a value needs.

Responsible for telling what a value is, and for refusing options that are unknown. A new kind of file is one reader
module and one line in `formats.FORMATS`. Reads no rows.
"""

from __future__ import annotations

import difflib
import glob
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceNotFoundError
from streamkm.core.matrix import is_sparse
from streamkm.sources.base import ChunkedSource, RowSource
from streamkm.sources.binary.anndata_objects import gene_names, marked_genes
from streamkm.sources.cached import CachedRows
from streamkm.sources.chosen_columns import ChosenColumns, choosable, named
from streamkm.sources.formats import COLUMNS, FORMATS, GENES, STORED, Reader
from streamkm.sources.genes import choose_genes
from streamkm.sources.local import natural
from streamkm.sources.memory.frames import is_frame, is_stream
from streamkm.sources.registry import TABLES, file_format, folder_files, folder_keys, is_folder
from streamkm.sources.remote import objects as remote
from streamkm.sources.remote.objects import Address, is_remote
from streamkm.sources.stored import opened_path

if TYPE_CHECKING:
    from streamkm.sources.sketch_store import StoreSource

# the first part may be an address: s3://bucket/x.zarr
_INNER = re.compile(r"(?P<file>(?:.*://)?.+?):(?P<inner>/(?!/)[^:]*)")


def open_source(X: Any, **options: Any) -> RowSource:
    """Open whatever has rows; parameters and errors are those of `streamkm.open_source`, which users call.

    Of a number of genes, which ones is not found here: see `GenesToFind`.
    """
    if isinstance(X, Mapping) and not is_package(X, "h5py", "zarr", "xarray"):
        if "path" not in X:
            raise InvalidParameterError(f"a mapping needs the key path; it has {', '.join(map(str, X)) or 'none'}")
        rest = {str(key): value for key, value in X.items() if key != "path"}
        return open_source(X["path"], **{**rest, **options})
    options = {name: value for name, value in options.items() if value is not None}
    if "feature_names" in options:
        names = options.pop("feature_names")
        return named(open_source(X, **options), names)
    known = (
        "feature_names",
        "format",
        "storage_options",
        *sorted({name for reader in FORMATS.values() for name in reader.options}),
    )
    for name in options:
        if name not in known:
            raise InvalidParameterError(f"unknown option {name}{_near(name, known)}; known are {', '.join(known)}")
    if not isinstance(options.get("genes", ""), str):
        genes = options.pop("genes")
        return choose_genes(open_source(X, **options), genes)
    if isinstance(X, str | os.PathLike):
        return _open_paths([X], options)
    if isinstance(X, list | tuple):
        return _open_list(X, options)
    for name in ("format", "storage_options"):
        if name in options:
            raise InvalidParameterError(
                f"{name}= is for paths; X is {type(X).__name__}, whose kind is told by its type"
            )
    return _open_object(X, options)


def _open_object(X: Any, options: dict[str, Any]) -> RowSource:
    if isinstance(X, RowSource):
        return X
    described = not is_package(X, "h5py", "zarr", "xarray") and not is_collection(X)
    if described and all(hasattr(X, name) for name in ("X", "obs", "var")):
        return _open_anndata(X, options)
    if is_package(X, "narwhals") and is_stream(X):
        return _open_object(X.to_native(), options)  # a lazy frame, of any kind
    group = getattr(X, "group", None)
    if described and is_package(group, "h5py", "zarr"):
        return _open_object(group, options)  # a sparse matrix of AnnData that is in a file
    for fits, reader in _OBJECTS:
        if fits(X):
            return reader.open(X, options)
    raise InvalidInputError(
        f"{type(X).__name__} is not a supported type of rows; pass a path, an array, a sparse matrix, an h5py, Zarr or "
        f"Dask object, or an iterable of chunks"
    )


def _open_anndata(X: Any, options: dict[str, Any]) -> RowSource:
    """Open an AnnData object: its X, with the names of its genes."""
    source = _open_object(X.X, {name: value for name, value in options.items() if name not in GENES})
    column, genes = options.get("var_column"), options.get("genes")
    source.feature_names = gene_names(X, column)
    if column is not None:
        source.made_with = {"var_column": column}
    return source if genes is None else ChosenColumns(choosable(source), marked_genes(X, genes))


def is_package(value: Any, *packages: str) -> bool:
    """Whether a class of one of `packages` is among the classes of a value; imports nothing."""
    return any(each.__module__.split(".", 1)[0] in packages for each in type(value).__mro__)


def is_collection(value: Any) -> bool:
    """Whether a value is a Dask collection, of whatever class; imports nothing."""
    return hasattr(type(value), "__dask_graph__")


def _is_iterable(value: Any) -> bool:
    return not isinstance(value, bytes | bytearray) and (callable(value) or isinstance(value, Iterable))


# the first that fits opens the object
_OBJECTS: tuple[tuple[Callable[[Any], bool], Reader], ...] = (
    (
        lambda X: is_package(X, "h5py"),
        Reader("an h5py object", ".binary.hdf5:open_hdf5_object", ("follow_external", *GENES), True),
    ),
    (lambda X: is_package(X, "zarr"), Reader("a Zarr object", ".binary.zarr:open_zarr_object", STORED, True)),
    (lambda X: is_package(X, "xarray"), Reader("an xarray object", ".dask.labelled:open_xarray")),
    (is_collection, Reader("a Dask collection", ".dask.labelled:open_collection", COLUMNS)),
    (is_sparse, Reader("a sparse matrix", ".memory.arrays:SparseSource")),
    (is_stream, Reader("a stream of record batches", ".tables.streams:open_stream", COLUMNS)),
    (is_frame, Reader("a frame", ".tables.streams:open_frame", COLUMNS)),
    (
        lambda X: hasattr(X, "__array__") or isinstance(X, memoryview),
        Reader("an array", ".memory.arrays:open_array", ("dtype",)),
    ),
    (_is_iterable, Reader("an iterable", ".memory.iterables:IterableSource", ("n_features",))),
)


def _open_list(X: list[Any] | tuple[Any, ...], options: dict[str, Any]) -> RowSource:
    """Open a list of paths, of matrices, or of rows."""
    if not X:
        raise InvalidInputError("an empty list has no rows; at least 1 is needed")
    paths = [isinstance(item, str | os.PathLike) for item in X]
    if all(paths):
        return _open_paths(list(X), options)
    if any(paths):
        at = paths.index(not paths[0])
        raise InvalidInputError(f"item {at} of the list is no path while others are; pass paths only, or matrices only")
    if _is_row(X[0]):
        return Reader("a list of rows", ".memory.arrays:open_array").open(X, options)
    parts = [_open_object(np.asarray(item) if isinstance(item, list | tuple) else item, options) for item in X]
    return _join(parts)


def _is_row(item: Any) -> bool:
    """Whether a list that starts with `item` is a list of rows and not of matrices."""
    if isinstance(item, list | tuple):
        return not item or not isinstance(item[0], list | tuple | np.ndarray)
    return item.ndim < 2 if isinstance(item, np.ndarray) else isinstance(item, numbers.Number)


def _join(parts: list[RowSource]) -> RowSource:
    if len(parts) == 1:
        return parts[0]
    for number, part in enumerate(parts):
        if not isinstance(part, ChunkedSource):
            raise InvalidInputError(f"item {number} of the list ({part.name}) is no matrix and no path; open it alone")
    from streamkm.sources.concat import PartsSource

    return PartsSource(cast("list[ChunkedSource]", parts))


def _open_paths(paths: list[Any], options: dict[str, Any]) -> RowSource:
    """Files of one source: svmlight text together, anything else one part a file."""
    forced, known = options.pop("format", "auto"), ("auto", *(name for name in FORMATS if name != "compressed"))
    if forced not in known:
        raise InvalidParameterError(f"format={forced!r} is unknown{_near(forced, known)}; known are {', '.join(known)}")
    reached = options.pop("storage_options", None)
    if reached is not None and not isinstance(reached, Mapping):
        raise InvalidParameterError(f"storage_options must be a mapping of options, got {type(reached).__name__}")
    found = [entry for path in paths for entry in _files(os.path.expanduser(os.fspath(path)), reached or {})]
    if reached and not any(is_remote(path) for path, _ in found):
        raise InvalidParameterError(f"storage_options= does not apply to {found[0][0]}, which is no URL; leave it out")
    found = [(_looked_at(path, forced), inner) for path, inner in found]
    formats = [file_format(path) if forced in ("auto", "svmlight") else forced for path, _ in found]
    if forced == "svmlight":
        formats = ["compressed" if form == "compressed" else "svmlight" for form in formats]
    if any(form in TABLES for form in formats):
        given = [os.path.expanduser(os.fspath(path)) for path in paths]
        return _open_tables(found, formats, options, folder_keys(given, [path for path, _ in found]))
    text = [form in ("svmlight", "compressed") for form in formats]
    if not any(text):
        return _join([_open_file(*entry, form, options) for entry, form in zip(found, formats, strict=True)])
    if not all(text):
        at = text.index(False)
        raise InvalidInputError(
            f"{found[text.index(True)][0]} is text and {found[at][0]} is {formats[at]}; a source is made of svmlight "
            f"text or of binary files, not of both"
        )
    for path, inner in found:
        if inner is not None:
            raise InvalidParameterError(f"{path} is svmlight text and has nothing inside; leave :{inner} out")
    reader = FORMATS["compressed" if "compressed" in formats else "svmlight"]
    return reader.open([path for path, _ in found], options)


def _files(path: str, storage_options: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """As `locate`, and of a folder the tables in it."""
    return [
        each
        for entry in locate(path, storage_options)
        for each in ([(file, None) for file in folder_files(entry[0])] if is_folder(entry[0]) else [entry])
    ]


def _open_tables(
    found: list[tuple[str, str | None]], formats: list[str], options: Mapping[str, Any], keys: Sequence[Any]
) -> RowSource:
    """Open files of one table; `keys` are those of each file's folders."""
    other = next((number for number, form in enumerate(formats) if form != formats[0]), None)
    if other is not None:
        raise InvalidInputError(
            f"{found[0][0]} is {formats[0]} and {found[other][0]} is {formats[other]}; a table is made of files of one "
            f"format"
        )
    for path, inner in found:
        if inner is not None:
            raise InvalidParameterError(f"{path} is {formats[0]} and has nothing inside; leave :{inner} out")
    return FORMATS[formats[0]].open([path for path, _ in found], options, keys=keys)


def _looked_at(path: str, forced: str) -> str:
    """Note the version of a file or object, once for all that will ask for it."""
    if isinstance(path, Address) and (forced == "zarr" or path.endswith((".zarr", "/"))):
        return path
    try:
        return opened_path(path)
    except SourceNotFoundError:
        if not isinstance(path, Address):
            raise
        return path  # a web server's Zarr store; what else is missing is found when it is opened


def _open_file(path: str, inner: str | None, form: str, options: Mapping[str, Any]) -> RowSource:
    if inner is None:
        return FORMATS[form].open(path, options)
    name, value = ("key", inner.strip("/")) if form == "npz" else ("dataset", inner)
    if name in options:
        raise InvalidParameterError(f"{path}:{inner} names a dataset already; leave {name}={options[name]!r} out")
    return FORMATS[form].open(path, {**options, name: value})


def locate(path: str, storage_options: Mapping[str, Any] | None = None) -> list[tuple[str, str | None]]:
    """Files that a path or glob names, each with the path inside of it, if one is given; URLs become addresses."""
    match = _INNER.fullmatch(path)
    if is_remote(path):
        address = Address(match["file"] if match else path, storage_options)
        found = remote.glob(address) if remote.has_magic(address) else [address]
        return [(each, match["inner"] if match else None) for each in found]
    if os.path.exists(path):
        return [(path, None)]
    file, inner = (match["file"], match["inner"]) if match else (path, None)
    if os.path.exists(file):
        return [(file, inner)]
    if glob.has_magic(file):
        files = sorted(glob.glob(file, recursive=True), key=natural)
        if not files:
            raise SourceNotFoundError(f"no file matches {file}")
        return [(each, inner) for each in files]
    if os.path.islink(file):
        raise SourceNotFoundError(f"{file} is a link to {os.readlink(file)}, which does not exist")
    folder = Path(file).parent
    here = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    raise SourceNotFoundError(f"{file} does not exist{_near(Path(file).name, here)}")


def _near(name: Any, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), sorted(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def store_of(source: RowSource) -> StoreSource | None:
    """The source, if it is a sketch store; what reads those is imported for them alone."""
    if not source.is_sketched:
        return None
    if isinstance(source, CachedRows):
        source = source.source
    from streamkm.sources.sketch_store import StoreSource

    return cast(StoreSource, source)
