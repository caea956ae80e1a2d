"""Dask data frames as Dask arrays with named columns; does not import pandas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp
from dask.base import compute

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix
from streamkm.sources.arrow import encoded, one_chunk, pyarrow
from streamkm.sources.dask.dask_arrays import DaskSource, array_of_parts
from streamkm.sources.fitted_tables import read_options
from streamkm.sources.row_source import RowSource
from streamkm.sources.tables.columns import (
    TableSchema,
    choose,
    lay_out,
    one_hot,
    unknown_categories,
)
from streamkm.sources.tables.row_groups import take_layout

NAME = "dask data frame"


def open_collection(X: Any, **options: Any) -> RowSource:
    """Open a Dask array or data frame of any class, with options of tables. Raises as `DaskSource`.

    Raises InvalidInputError also for other Dask collections and columns without numbers, and InvalidParameterError for
    options of tables without a data frame.
    """
    n_axes = getattr(X, "ndim", None)  # of anything delayed, something delayed
    if isinstance(n_axes, int) and n_axes == 2 and hasattr(X, "columns"):
        return DaskTable(X, options)
    if options:
        raise InvalidParameterError(f"{next(iter(options))}= is for Dask data frames; X is {type(X).__name__}")
    if not (isinstance(n_axes, int) and hasattr(X, "chunks") and hasattr(X, "_meta")):
        raise InvalidInputError(f"{type(X).__name__} is no Dask array or data frame; make it one (of xarray: X.data)")
    return DaskSource(X)


class DaskTable(DaskSource):
    """Rows of a Dask data frame, never computed as a whole; a row-block is a partition."""

    def __init__(self, frame: Any, given: Mapping[str, Any]) -> None:
        pa, options = pyarrow(NAME), read_options(given)
        is_named = all(isinstance(name, str) for name in frame.columns)
        frame = frame if is_named else frame.rename(columns=str)
        asked = {options.id_column, *(options.columns or ())} - {None, *frame.columns}
        frame = frame.reset_index() if frame.index.name in asked else frame
        known = list(frame.columns)
        chosen = choose(known, options, NAME)
        sparse = {name: kind.subtype for name, kind in frame.dtypes.items() if hasattr(kind, "subtype")}
        frame = frame.astype(sparse) if sparse else frame
        try:
            schema = pa.Schema.from_pandas(frame[chosen]._meta_nonempty, preserve_index=False)
        except pa.ArrowException as error:
            kinds = ", ".join(sorted(set(map(str, frame[chosen].dtypes))))
            raise InvalidInputError(f"{NAME} of {kinds}: {error}; rows must be real numbers") from error
        # partitions may number the same categories otherwise
        plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
        fields = dict(zip(schema.names, plain, strict=True))
        layout = lay_out(known, fields, options, NAME, lambda names: _table(fields, frame[names].head()), is_named)
        if names := unknown_categories(layout, options):
            found = compute(*[part.pipe(partial(_texts, fields)) for part in _partitions(frame[names])])
            layout = one_hot(layout, {name: {*chain(*(part[name] for part in found))} for name in names})
        kind = sp.csr_array if layout.n_hashed else np.empty
        rows = partial(_rows, fields, layout)
        parts = [part.pipe(rows, number) for number, part in enumerate(_partitions(frame[layout.names]))]
        width, dtype = layout.n_features, layout.dtype
        super().__init__(array_of_parts(parts, (math.nan, width), dtype, kind((0, width), dtype=dtype)), name=NAME)
        take_layout(self, layout)
        made_with = self.origin.made_with if given else {}
        self.origin = replace(self.origin, id_column=options.id_column, made_with=made_with)
        self._id_values = None if options.id_column is None else frame[options.id_column]

    def ids(self) -> Iterator[Any]:
        if self._id_values is None:
            yield from super().ids()
        for part in _partitions(self._id_values):
            yield pyarrow(NAME).chunked_array([pyarrow(NAME).array(part.compute(), from_pandas=True)])

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_id_values": None}  # ids are read where the table was opened


def _table(fields: Mapping[str, Any], frame: Any, place: str = "a partition") -> Any:
    """A partition as an Arrow table; refused if it has rows and other types than the data frame."""
    pa = pyarrow(NAME)
    schema = pa.schema([(name, fields[name]) for name in frame.columns])
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


def _rows(fields: Mapping[str, Any], layout: TableSchema, frame: Any, number: int) -> Matrix:
    """Rows of a partition, made on any worker."""
    place = f"partition {number:,}"
    table = _table(fields, frame, place)
    return layout.matrix([table], table.num_rows, lambda row: f"row {row:,} of {place} of the {NAME}")


def _texts(fields: Mapping[str, Any], frame: Any) -> dict[str, list[str]]:
    """The values of the text columns of a partition."""
    table = _table(fields, frame)
    return {name: encoded(one_chunk(table.column(name)))[1] for name in table.schema.names}


def _partitions(frame: Any) -> list[Any]:
    """Partitions as delayed values; not simplified, as small files would be read together, and labels would not fit."""
    return list(frame.simplify().to_delayed(optimize_graph=False))
