"""Passes that compute values for each row: predictions, and distances to centers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model
from streamkm.cluster.profile import euclidean_distances
from streamkm.cluster.rows import batch_rows, row_d2
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage
from streamkm.engine.pass_memory import PassMemory
from streamkm.engine.passes import Map, outputs
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import Invalid, RowReader, ValidRows
from streamkm.sources.chunks import LARGEST_CHUNK_BYTES
from streamkm.sources.prepared import pieces
from streamkm.sources.row_source import Rows


def lazy_map(
    source: Any,
    model: Model,
    function: Callable[[Matrix, NearestCenters], NDArray[Any]],
    *,
    invalid: Invalid,
    n_columns: int | None = None,
) -> Any:
    """Map the rows of a Dask array to values, as `predict.map_rows` does, but lazily.

    `function`: `nearest_labels`, `nearest_d2` or `distances`; returns one value or `n_columns` values for each row.
    `invalid`: "raise": computing a block with NaN or infinity raises; "skip": such rows get -1 or NaN. The blocks of
    the result have as many rows as those of the source, which may be unknown. Raises InvalidInputError: another number
    of features than the model's.
    """
    if source.n_features != model.n_features:
        raise InvalidInputError(
            f"{source.name} has {source.n_features:,} features; the model was fitted on {model.n_features:,}"
        )
    reader = RowReader(source.remote_view(), 0, model.metric, invalid)
    prepare = partial(_prepared, reader, model, function)
    shape = (0, source.n_features)
    no_rows = sp.csr_array(shape, dtype=source.dtype) if source.is_sparse else np.empty(shape, source.dtype)
    meta = _mapped(Rows(no_rows, np.empty(0, np.int64)), prepare())
    return source.lazily(_mapped, prepare, meta=meta, n_columns=n_columns)


def _prepared(reader: RowReader, model: Model, function: Callable[..., NDArray[Any]]) -> tuple[RowReader, Values]:
    """Arguments of all blocks; the table, as large as the centers, is made where blocks are computed."""
    return reader, Values(model, model.table(), function)


def _mapped(rows: Rows, prepared: tuple[RowReader, Values]) -> NDArray[Any]:
    """Values of the function for a block; rows that are made dense are processed in pieces."""
    reader, values = prepared
    steps = values.model.preparation
    parts = [rows] if steps is None else pieces(rows, steps, LARGEST_CHUNK_BYTES)
    found = ((part.X if steps is None else steps.apply(part.X), part.row_ids) for part in parts)
    return np.concatenate([values.output(reader.checked(*each)) for each in found])


FEWEST_AT_ONCE = 64  # dense rows whose distances to all centers are taken together
LABELLED_BYTES = 32  # of a row that gets a label: its number, norm, distance and label
CENTER_COPIES = 3  # of a model that labels: its centers, the estimator's, those laid out for kernels


@dataclass(frozen=True, slots=True)
class Values(Map[NDArray[Any]]):
    """Values of a function for rows in the model's space; -1 or NaN for invalid rows."""

    model: Model
    table: NearestCenters  # the model's
    # takes a matrix (v, m) and a NearestCenters; returns one value, or one row of values, for each row
    function: Callable[..., Any]

    @staticmethod
    def memory(n_rows: int, chunk_rows: int, centers_bytes: int, n_columns: int, itemsize: int) -> PassMemory:
        """Memory of centers, of a label and `n_columns` values of `itemsize` bytes of each row."""
        kept, call = CENTER_COPIES * centers_bytes + (4 + itemsize * n_columns) * n_rows, labelled_bytes(n_columns)
        return PassMemory(kept=kept, call=chunk_rows * call, output=chunk_rows * (4 + 8 * n_columns))

    def output(self, rows: ValidRows) -> NDArray[Any]:
        """The values of a chunk."""
        values = np.asarray(self.function(self.model.place(rows.X), self.table))
        if values.dtype.kind == "i":
            values = self.model.names(values)
        return rows.spread(values, -1 if values.dtype.kind == "i" else np.nan)


def map_rows(
    context: PassContext, model: Model, function: Callable[..., Any], stage: Stage, *, wide: bool = False
) -> Iterator[NDArray[Any]]:
    """Read all rows once; yield the values of a function, see `Values`, for each chunk; `wide`: many for each row."""
    values = Values(model, model.table(), function)
    for part in outputs(values, context.rows(), context.executor, stage, large=wide):
        stage.rows += len(part)
        yield part


def labelled_bytes(n_columns: int) -> int:
    """Bytes of a row while its label and `n_columns` values are computed."""
    return LABELLED_BYTES + 8 * n_columns


def nearest_labels(X: Any, table: NearestCenters) -> NDArray[np.int32]:
    """Labels of rows (v,), for `map_rows`."""
    return table.labels(X)


def nearest_d2(X: Any, table: NearestCenters) -> NDArray[np.float64]:
    """Squared distances of rows to their nearest centers (v,), for `map_rows`."""
    return row_d2(X, table.labels(X), table)


def distances(X: Any, table: NearestCenters) -> NDArray[Any]:
    """Distances of rows to all centers (v, k), for `map_rows`."""
    dtype = np.float64 if X.dtype == np.float64 else np.float32
    if not X.shape[0]:
        return np.empty((0, table.n_clusters), dtype)
    centers = table.centers.astype(dtype, copy=False)  # as `cluster_centers_` has them
    found = np.empty((X.shape[0], len(centers)), dtype)
    given = centers.astype(np.float64, copy=False)
    step = max(FEWEST_AT_ONCE, batch_rows(X.shape[1])) if isinstance(X, np.ndarray) else X.shape[0]
    for start in range(0, len(found), step):  # few dense rows are copied to float64 at a time
        found[start : start + step] = euclidean_distances(rows_between(X, start, start + step), given)
    # from differences, as products cancel if a row is (almost) a center
    nearest = found.argmin(axis=1)
    d2 = row_d2(X, nearest.astype(np.int32), NearestCenters.build(given, dtype))
    found[np.arange(len(found)), nearest] = np.sqrt(d2)
    return found
