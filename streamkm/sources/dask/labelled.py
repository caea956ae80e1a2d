"""Dask data frames and xarray's arrays as Dask arrays, with the names of their columns. Nothing is loaded.

Only what such objects offer is used, so that neither pandas nor xarray is imported.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.base import RowSource
from streamkm.sources.dask.arrays import DaskSource, array_of_parts
from streamkm.sources.dask.tables import DaskTable, partitions
from streamkm.sources.memory.arrays import open_array
from streamkm.sources.memory.frames import without_index
from streamkm.sources.tables.columns import read_options


def open_collection(X: Any, **options: Any) -> RowSource:
    """Open a Dask array or data frame, with options of tables; its class does not matter.

    Raises InvalidInputError: another kind of Dask collection, a column that holds no numbers; otherwise as
    `DaskSource`. Raises InvalidParameterError: options for what is no data frame.
    """
    n_axes = getattr(X, "ndim", None)  # of anything delayed, something delayed
    if isinstance(n_axes, int) and n_axes == 2 and hasattr(X, "columns"):
        return DaskTable(X, read_options(options)) if options else _open_frame(without_index(X))
    if options:
        raise InvalidParameterError(f"{next(iter(options))}= is for Dask data frames; X is {type(X).__name__}")
    if not (isinstance(n_axes, int) and hasattr(X, "chunks") and hasattr(X, "dtype")):
        raise InvalidInputError(f"{type(X).__name__} is no Dask array or data frame; make it one")
    return DaskSource(X)


def open_xarray(X: Any) -> RowSource:
    """Open a DataArray: over Dask by its blocks, over a file by the file's chunks, else as the array that it holds.

    Raises InvalidInputError: a Dataset; otherwise as `DaskSource`.
    """
    if not hasattr(X, "dims") or not hasattr(X, "variable"):
        raise InvalidInputError(f"{type(X).__name__} is no DataArray; choose one variable, such as dataset['X']")
    if X.chunks is None and not X.variable._in_memory:
        stored = X.encoding.get("preferred_chunks", {})
        X = X.chunk({dim: stored.get(dim, "auto") for dim in X.dims})
    source: RowSource = (
        open_array(X.to_numpy()) if X.chunks is None else DaskSource(X.data, name=X.name or "data array")
    )
    if X.ndim == 2 and X.dims[1] in X.indexes:
        names = list(X.indexes[X.dims[1]])
        if all(isinstance(name, str) for name in names):
            source.feature_names = tuple(names)
    return source


def _open_frame(frame: Any) -> DaskSource:
    """Open a data frame as the array of its values: a block for each partition."""
    kinds = list(map(_value_kind, frame.dtypes))
    for (name, dtype), kind in zip(frame.dtypes.items(), kinds, strict=True):
        if kind is None:
            raise InvalidInputError(
                f"column {name!r} of the Dask data frame holds {dtype}; rows must be real numbers: bool, int or float; "
                f'convert it, leave it out, or encode text: open_source(X, categories="onehot")'
            )
    whole = np.result_type(*kinds) if kinds else np.dtype(float)
    values = frame.map_partitions(_values, meta=np.empty((0, len(kinds)), whole))
    if values.numblocks[0] != frame.npartitions:  # small files would be read together: labels would not fit the frame
        values = array_of_parts([part.pipe(_values) for part in partitions(frame)], (math.nan, len(kinds)), whole)
    source = DaskSource(values, name="dask data frame")
    names = tuple(frame.columns)
    if all(isinstance(name, str) for name in names):
        source.feature_names = names
    return source


def _value_kind(dtype: Any) -> np.dtype[Any] | None:
    """Dtype in which a column's values are given, None where they are no numbers."""
    nullable = not isinstance(dtype, np.dtype)
    kind = getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", None)) if nullable else dtype
    if not isinstance(kind, np.dtype) or kind.kind not in "biuf":
        return None
    # what is missing becomes NaN
    return np.dtype(np.float64) if nullable and kind.kind in "biu" else kind


def _values(frame: Any) -> NDArray[Any]:
    """The values of a partition (rows, columns), in the type that holds them, whatever the data frame says."""
    kinds = [kind for kind in map(_value_kind, frame.dtypes) if kind is not None]
    if len(kinds) < len(frame.dtypes):
        return np.asarray(frame.to_numpy())  # refused with its number
    nullable = not all(isinstance(dtype, np.dtype) for dtype in frame.dtypes)
    return np.asarray(frame.to_numpy(dtype=np.result_type(*kinds), **({"na_value": np.nan} if nullable else {})))
