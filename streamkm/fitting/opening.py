"""`open_source` as users call it: whatever has rows, and the pass that finds the most variable genes of cells."""

from __future__ import annotations

from typing import Any

from streamkm.sources import open_source as open_unread
from streamkm.sources.base import RowSource
from streamkm.sources.genes import GenesToFind


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
          datasets of those; a Dask array or data frame, a DataArray of xarray over Dask, a file or an array
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
        - ``genes`` : str, int or list of str, default all. Cells: the genes to use. str: a column of true and false in
          `var` (of `features`), such as scanpy's ``highly_variable``. int: the number of most variable genes, by the
          normalized dispersion of Seurat's first version (R. Satija et al., Nature Biotechnology 33, 2015; scanpy's
          flavor "seurat"); one more pass finds them on raw counts. A list: names. A model keeps the names, and reads
          these genes from later files.
        - ``feature_names`` : list of str, or path of a file with one name a line. Names of features, for data without
          names: svmlight, arrays, HDF5, Zarr, .npy, .npz, Matrix Market, tables without a header.
        - ``key`` : str. Name of an array in .npz.
        - ``n_features`` : int. svmlight and iterables of sparse chunks: number of features. Tables with hashed
          categories: number of features to which they are hashed, by default 1,024.
        - ``zero_based`` : bool or "auto". svmlight: whether indices start at 0; see `SvmlightSource`.
        - ``dtype`` : float32 or float64, for svmlight and tables. The default of tables is float32 if it holds the
          types of all columns, and float64 for CSV; a single column of vectors keeps its type. "bfloat16" reads 16-bit
          words in arrays, .npy, HDF5, Zarr, Parquet and Arrow as such values.
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
        - ``newlines_in_values`` : bool, default False. CSV: whether quoted fields may contain line feeds. The whole
          text is then searched beforehand.
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
        No matrix of real numbers with at least one row and one feature. For the most variable genes: a negative value,
        NaN, or infinity, with its row.
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
    source = open_unread(X, **options)
    if isinstance(source, GenesToFind):
        from streamkm.fitting.genes import find_genes  # which imports what passes need

        return find_genes(source)
    return source
