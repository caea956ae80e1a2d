"""Choice of the reader for a value; refuses unknown options. Reads no rows. `formats.FORMATS` lists kinds of files."""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import is_sparse
from streamkm.sources.binary.column_names import name_genes
from streamkm.sources.chosen_columns import by_names, named
from streamkm.sources.formats import COLUMNS, GENES, STORED, Reader
from streamkm.sources.frames import is_frame, is_stream
from streamkm.sources.paths import join, open_paths
from streamkm.sources.row_source import RowSource, WrappedSource

if TYPE_CHECKING:
    from streamkm.sources.sketch_store import StoreSource


def open_source(X: Any, **options: Any) -> RowSource:
    """Open whatever has rows.

    Parameters
    ----------
    X : path, object or mapping
        - a path, a glob (its files in natural order, part-2 before part-10), or a list of paths (in that order): CSV
          and svmlight text, plain or compressed; Parquet and Arrow files, and folders of these and of CSV; HDF5; Zarr;
          sketch stores; .npy; .npz; Matrix Market. ``file.h5:/path/in/file`` names a dataset. The format is detected
          from the first bytes of the file, else from its suffix.
        - a URL that fsspec knows, such as ``s3://bucket/rows-*.svm``: tables, svmlight text, HDF5, Zarr, .npy
        - an h5py dataset or group, a Zarr array or group, an AnnData object (its X), also one in a file, and the sparse
          datasets of those; a Dask array or data frame
        - an array, a frame (pandas, polars, pyarrow tables and others of named columns), a memory map, a SciPy sparse
          matrix, a list of rows, or a list of these, whose rows are concatenated
        - a lazy frame of polars, a dataset or reader of pyarrow, a relation of DuckDB, and other objects with the Arrow
          stream protocol: read batch by batch
        - an iterable of chunks, or a callable that returns an iterator of chunks; a chunk may be a tuple or list whose
          first member is the rows, as PyTorch's data loaders give them
        - a mapping with the key ``path`` and options, as in a configuration file
        - a RowSource, which is returned as it is
    **options
        Options that are None count as not given.

        - ``format`` : "auto", "svmlight", "hdf5", "zarr", "store", "npy", "npz", "csv", "parquet", "arrow" or "mtx".
          The format of paths. "zarr" reads the arrays of a sketch store without checking their checksums.
        - ``storage_options`` : dict. Options of fsspec's file system for URLs, such as ``{"anon": True}`` or
          ``{"endpoint_url": ...}``. The file system takes credentials from its environment variables and files. The
          options are pickled along to workers, and written nowhere.
        - ``dataset`` : str. Path of an array or group inside HDF5 and Zarr.
        - ``follow_external`` : bool, default False. HDF5: follow links to other files.
        - ``missing_chunks`` : "warn" or "raise", default "warn". Zarr: chunks (shards) that are not in the store have
          the fill value. A fit warns of them, or they are an error.
        - ``var_column`` : str. AnnData and 10x Genomics: the column of `var` (of `features`) that names genes. The
          default is the index of `var`, and `name` of `features`. Repeated names get ``-1``, ``-2``, as in AnnData.
        - ``genes`` : str or list of str, default all. Cells: the genes to use. str: a column of true and false in `var`
          (of `features`), such as scanpy's ``highly_variable``. A list: names. A model keeps the names, and reads these
          genes from later files.
        - ``feature_names`` : list of str, or path of a file with one name a line. Names of features, for data without
          names: svmlight, arrays, HDF5, Zarr, .npy, .npz, Matrix Market, tables without a header.
        - ``key`` : str. Name of an array in .npz.
        - ``n_features`` : int. svmlight and iterables of sparse chunks: number of features. Tables with hashed
          categories: number of features to which they are hashed, by default 1,024.
        - ``zero_based`` : bool or "auto". svmlight: whether indices start at 0; see `SvmlightSource`.
        - ``dtype`` : float32 or float64, for svmlight and tables. The default of tables is float32 if it holds the
          types of all columns, and float64 for CSV; a single column of vectors keeps its type.
        - ``columns`` : str or list of str, default all. Tables: the columns to use as features, in this order; a column
          of lists is one of vectors. The index of a pandas frame in a file or table is left out unless it is named
          here. Keys of folders, as ``zone=01``, are columns of text. Files are read by the names of columns.
        - ``exclude`` : str or list of str. Tables: columns to leave out.
        - ``id_column`` : str. Tables: the column that identifies rows; it is not a feature.
        - ``categories`` : "onehot", "hash" or dict. Tables: how text columns become features. "onehot": a feature for
          each value; one more pass finds the values. "hash": sparse features by a hash of column and value. A dict
          maps each column of text to the list of its values, "onehot" or "hash". By default, text is an error. Nulls
          belong to no category; in columns of numbers they are NaN. CSV: a column of which any value is no number is
          text, by one pass over the file, unless a dict names the columns of text.
        - ``categories_unseen`` : "raise" or "ignore", default "raise". Tables: an unknown value of a one-hot column is
          an error, or belongs to no category. A model keeps the option.
        - ``dates`` : "days". Tables: dates and moments become days since 1970-01-01 as float64, with the time of day as
          a fraction; times of day and durations become days, too. Moments with a time zone count in UTC. Such columns
          are refused by default. A model keeps it.
        - ``delimiter`` : str, default a comma, for .tsv a tab. CSV: the separator, one character.
        - ``header`` : bool. CSV: whether the first record of a file names its columns; by default it does unless it
          holds only numbers.
        - ``newlines_in_values`` : bool, default False. CSV: whether quoted fields may contain line feeds. Such
          files are read in order, by one thread.
        - ``null_values`` : str or list of str. CSV: words for a missing number or category; an empty field is always
          missing. The default is NA, N/A, NaN, NULL, None (also in lower case), ? and - in columns of numbers, and no
          word for categories. Ids keep their text.

    Returns
    -------
    RowSource

    Raises
    ------
    SourceError
        A file or store cannot be read; SourceNotFoundError where it does not exist.
    InvalidInputError
        No matrix of real numbers with at least one row and one feature.
    InvalidParameterError
        An option is unknown, or does not apply to X.
    MissingDependencyError
        An optional package is needed.

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm import open_source
    >>> source = open_source(np.eye(4, dtype=np.float32))
    >>> [rows.X.shape for rows in source.stream(target_bytes=32)]
    [(2, 4), (2, 4)]
    """
    if isinstance(X, Mapping) and not is_package(X, "h5py", "zarr"):
        if "path" not in X:
            raise InvalidParameterError(f"a mapping needs the key path; it has {', '.join(map(str, X)) or 'none'}")
        rest = {str(key): value for key, value in X.items() if key != "path"}
        return open_source(X["path"], **{**rest, **options})
    options = {name: value for name, value in options.items() if value is not None}
    if "feature_names" in options:
        names = options.pop("feature_names")
        return named(open_source(X, **options), names)
    if not isinstance(options.get("genes", ""), str):
        names = options.pop("genes")
        return by_names(open_source(X, **options), names)
    if isinstance(X, str | os.PathLike):
        return open_paths([X], options)
    if isinstance(X, list | tuple):
        return _open_list(X, options)
    return _open_object(X, options)


def _open_object(X: Any, options: dict[str, Any]) -> RowSource:
    if isinstance(X, RowSource):
        return X
    described = not is_package(X, "h5py", "zarr") and not is_collection(X)
    if described and all(hasattr(X, name) for name in ("X", "obs", "var")):
        source = _open_object(X.X, {name: value for name, value in options.items() if name not in GENES})
        return name_genes(source, X, options.get("var_column"), options.get("genes"))  # of an AnnData object
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


def is_package(value: Any, *packages: str) -> bool:
    """Whether a class of a value comes from one of `packages`; imports nothing."""
    return any(each.__module__.split(".", 1)[0] in packages for each in type(value).__mro__)


def is_collection(value: Any) -> bool:
    """Whether a value is a Dask collection, of any class; imports nothing."""
    return hasattr(type(value), "__dask_graph__")


def _is_iterable(value: Any) -> bool:
    return not isinstance(value, bytes | bytearray) and (callable(value) or isinstance(value, Iterable))


# the first that fits opens the object
_OBJECTS: tuple[tuple[Callable[[Any], bool], Reader], ...] = (
    (
        lambda X: is_package(X, "h5py"),
        Reader("an h5py object", ".binary.hdf5:open_hdf5_object", ("follow_external", *GENES)),
    ),
    (lambda X: is_package(X, "zarr"), Reader("a Zarr object", ".binary.zarr:open_zarr_object", STORED)),
    (is_collection, Reader("a Dask collection", ".dask.labelled:open_collection", COLUMNS)),
    (is_sparse, Reader("a sparse matrix", ".memory.arrays:SparseSource")),
    (is_stream, Reader("a stream of record batches", ".memory.tables:open_stream", COLUMNS)),
    (is_frame, Reader("a frame", ".memory.arrays:open_frame", COLUMNS)),
    (
        lambda X: hasattr(X, "__array__") or isinstance(X, memoryview),
        Reader("an array", ".memory.arrays:open_array"),
    ),
    (_is_iterable, Reader("an iterable", ".memory.iterables:IterableSource", ("n_features",))),
)


def _open_list(X: list[Any] | tuple[Any, ...], options: dict[str, Any]) -> RowSource:
    """Open a list of paths, of matrices, or of rows."""
    if not X:
        raise InvalidInputError("an empty list has no rows; at least 1 is needed")
    paths = [isinstance(item, str | os.PathLike) for item in X]
    if all(paths):
        return open_paths(list(X), options)
    if any(paths):
        at = paths.index(not paths[0])
        raise InvalidInputError(f"item {at} of the list is no path while others are; pass paths only, or matrices only")
    if _is_row(X[0]):
        return Reader("a list of rows", ".memory.arrays:open_array").open(X, options)
    parts = [_open_object(np.asarray(item) if isinstance(item, list | tuple) else item, options) for item in X]
    return join(parts)


def _is_row(item: Any) -> bool:
    """Whether a list that starts with `item` is a list of rows and not of matrices."""
    if isinstance(item, list | tuple):
        return not item or not isinstance(item[0], list | tuple | np.ndarray)
    return item.ndim < 2 if isinstance(item, np.ndarray) else isinstance(item, numbers.Number)


def store_of(source: RowSource) -> StoreSource | None:
    """The source, if it is a sketch store, whose reader is imported only then; else None."""
    if not source.origin.is_sketched:
        return None
    from streamkm.sources.sketch_store import StoreSource

    return cast(StoreSource, source.source if isinstance(source, WrappedSource) else source)
