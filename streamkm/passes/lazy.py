"""Lazy predictions for Dask collections, as Dask arrays: no row is read until they are computed.

Knows nothing of executors: the caller chooses where the array is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix
from streamkm.passes.reader import Invalid, RowReader
from streamkm.sources.base import Rows
from streamkm.sources.chunking import LARGEST_CHUNK_BYTES
from streamkm.sources.dask.arrays import DaskSource
from streamkm.sources.prepared import pieces


def lazy_map(
    source: DaskSource,
    model: Model,
    function: Callable[[Matrix, NearestCenters], NDArray[Any]],
    *,
    invalid: Invalid,
    n_columns: int | None = None,
) -> Any:
    """Map the rows of a Dask array to values, as `predict.map_rows` does, but lazily.

    Parameters
    ----------
    source : DaskSource
    function : callable
        `predict.nearest_labels`, `predict.nearest_d2` or `predict.distances`. Takes a matrix (v, m) in the model's
        space and a NearestCenters, and returns one value or `n_columns` values for each row.
    invalid : "raise" or "skip"
        "raise": computing a block with NaN or infinity raises; "skip": such rows get -1 or NaN.

    Returns
    -------
    dask.array.Array
        (n,) or (n, n_columns), in blocks with as many rows as those of the source, which may be unknown.

    Raises
    ------
    InvalidInputError
        Another number of features than the model's.
    """
    if source.n_features != model.n_features:
        raise InvalidInputError(
            f"{source.name} has {source.n_features:,} features; the model was fitted on {model.n_features:,}"
        )
    reader = RowReader(source.stand_in(), 0, model.metric, invalid)
    prepare = partial(_prepared, reader, model, function)
    row = Rows(_zero_row(source.n_features, source.dtype, sparse=source.is_sparse), np.zeros(1, np.int64))
    meta = _mapped(row, prepare())[:0]
    return source.lazily(_mapped, prepare, meta=meta, n_columns=n_columns)


def _prepared(
    reader: RowReader, model: Model, function: Callable[..., NDArray[Any]]
) -> tuple[RowReader, Model, Callable[..., NDArray[Any]], NearestCenters]:
    """Arguments of all blocks; the table, as large as the centers, is made where blocks are computed."""
    return reader, model, function, model.table()


def _mapped(rows: Rows, prepared: tuple[RowReader, Model, Callable[..., NDArray[Any]], NearestCenters]) -> NDArray[Any]:
    """Values of the function for a block; rows that are made dense are processed in pieces."""
    reader, model, function, table = prepared
    parts = [rows] if model.preparation is None else pieces(rows, model.preparation, LARGEST_CHUNK_BYTES)
    return np.concatenate([_mapped_part(part, reader, model, function, table) for part in parts])


def _mapped_part(
    rows: Rows, reader: RowReader, model: Model, function: Callable[..., NDArray[Any]], table: NearestCenters
) -> NDArray[Any]:
    X = rows.X if model.preparation is None else model.preparation.apply(rows.X)
    valid = reader.checked(X, rows.places)
    X = valid.X if len(valid.places) else _zero_row(X.shape[1], X.dtype, sparse=sp.issparse(X))
    values = function(model.place(X), table)
    if values.dtype.kind == "i":
        values = model.names(values)
    if valid.kept is None:
        return values
    out = np.full((valid.n_read, *values.shape[1:]), -1 if values.dtype.kind == "i" else np.nan, values.dtype)
    out[valid.kept] = values[: len(valid.kept)]
    return out


def _zero_row(n_features: int, dtype: np.dtype[Any], *, sparse: bool) -> Matrix:
    return sp.csr_array((1, n_features), dtype=dtype) if sparse else np.zeros((1, n_features), dtype)
