"""Dask data frames and xarray's arrays as Dask arrays, with the names of their columns. Nothing is loaded.

Only what such objects offer is used, so that neither pandas nor xarray is imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.sources.arrow import pyarrow
from streamkm.sources.base import RowSource
from streamkm.sources.dask.arrays import DaskSource, array_of_parts
from streamkm.sources.memory.arrays import open_array
from streamkm.sources.memory.frames import without_index
from streamkm.sources.tables.columns import (
    TableOptions,
    TableSchema,
    choose,
    lay_out,
    one_hot,
    read_options,
    unknown_categories,
)
from streamkm.sources.tables.row_groups import described_table, found_values

NAME = "dask data frame"


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
        values = array_of_parts([part.pipe(_values) for part in _partitions(frame)], (math.nan, len(kinds)), whole)
    source = DaskSource(values, name=NAME)
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


class DaskTable(DaskSource):
    """Rows of a Dask data frame, a row-block for each partition; never computed as a whole."""

    def __init__(self, frame: Any, options: TableOptions) -> None:
        pa = pyarrow(NAME)
        asked = {options.id_column, *options.exclude, *(options.columns or ())} - {*frame.columns}
        levels = (frame.index.name,) if frame.index.name else ("__index_level_0__", "__null_dask_index__")
        if level := next((name for name in levels if name in asked), None):  # as Parquet calls the index
            frame = frame.rename_axis(index=level).reset_index()
        known = [str(name) for name in frame.columns]
        chosen = choose(known, options, NAME)
        schema = pa.Schema.from_pandas(frame[chosen]._meta_nonempty, preserve_index=False)
        # partitions may number the same categories otherwise
        plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
        fields = dict(zip(schema.names, plain, strict=True))
        layout = lay_out(
            known, fields, options, NAME, lambda names: _Partition(names, fields).table(frame[names].head())
        )
        if names := unknown_categories(layout, options):
            layout = one_hot(layout, _found_values(frame, names, fields))
        kind = sp.csr_array if layout.is_sparse else np.empty
        rows = _Rows(_Partition(layout.names, fields), layout)
        values = array_of_parts(
            [part.pipe(rows, number) for number, part in enumerate(_partitions(frame[layout.names]))],
            (math.nan, layout.n_features),
            layout.dtype,
            kind((0, layout.n_features), dtype=layout.dtype),
        )
        super().__init__(values, name=NAME)
        self.feature_names, self.made_with = layout.feature_names, described_table(layout)
        self.id_column, self.has_long_integers = options.id_column, layout.has_long_integers
        self._id_values = None if self.id_column is None else frame[self.id_column]

    def ids(self) -> Iterator[Any]:
        """Yield what names rows, partition by partition; see `RowSource.ids`."""
        if self._id_values is None:
            yield from super().ids()
            return
        pa = pyarrow(NAME)
        for part in _partitions(self._id_values):
            yield pa.chunked_array([pa.array(part.compute(), from_pandas=True)])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_id_values": None}  # ids are read where the table was opened


@dataclass(frozen=True, slots=True)
class _Partition:
    """Columns of a partition, and the types that all partitions have."""

    names: list[str]
    fields: dict[str, Any]

    def table(self, frame: Any, place: str = "a partition") -> Any:
        """The partition as an Arrow table; one of other types than the data frame says is refused, if it has rows."""
        pa, frame = pyarrow(NAME), frame[self.names]
        schema = pa.schema([(name, self.fields[name]) for name in self.names])
        for field, dtype in zip(schema, frame.dtypes, strict=True):
            found = getattr(dtype, "numpy_dtype", dtype)  # Arrow casts numbers without a word
            if len(frame) and found.kind in "biuf" and not np.can_cast(found, field.type.to_pandas_dtype()):
                raise InvalidInputError(
                    f"column {field.name!r} holds {dtype} in {place} of the {NAME}, which says {field.type}: "
                    f"pass X.astype({{{field.name!r}: {dtype.name!r}}})"
                )
        try:
            return pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        except pa.ArrowException as error:
            raise InvalidInputError(f"{place} of the {NAME} is not of the types that it says: {error}") from error


@dataclass(frozen=True, slots=True)
class _Rows:
    """Makes rows of a partition, on whatever worker."""

    partition: _Partition
    layout: TableSchema

    def __call__(self, frame: Any, number: int) -> Matrix:
        table = self.partition.table(frame, f"partition {number:,}")
        out = self.layout.empty(table.num_rows)
        if table.num_rows:
            self.layout.fill(out, table, lambda row: f"row {row:,} of partition {number:,} of the {NAME}")
        return self.layout.finish(out, [table])


def _partitions(frame: Any) -> list[Any]:
    """Partitions as delayed values: without `simplify` small files are read together, and labels do not fit."""
    return list(frame.simplify().to_delayed(optimize_graph=False))


def _found_values(frame: Any, names: list[str], fields: dict[str, Any]) -> dict[str, list[str]]:
    """The values of text columns, in a pass of their own."""
    parts = compute(*(delayed(_distinct)(_Partition(names, fields), part) for part in _partitions(frame[names])))
    return {name: sorted({value for part in parts for value in part[name]}) for name in names}


def _distinct(partition: _Partition, frame: Any) -> dict[str, list[str]]:
    """The values of text columns of a partition, as far as they may be one-hot."""
    return {name: list(values) for name, values in found_values(partition.names, [partition.table(frame)])[0].items()}
