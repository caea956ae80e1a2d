"""Data frames in memory: their values as an array, and the names of their columns.

What a frame is, the Arrow protocols tell (`__arrow_c_stream__`, or `__dataframe__` before it), not its class: pandas,
polars, pyarrow tables and others. Imports none of these packages but pyarrow: for frames that speak Arrow only, and for
columns that NumPy has no type for. What a sparse column of pandas is, its type tells.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, MissingDependencyError
from streamkm.sources.arrow import number_values, one_chunk, value_dtype
from streamkm.sources.base import ChunkedSource, Rows, row_places
from streamkm.sources.chunks import Chunk
from streamkm.sources.dense import cut_rows
from streamkm.sources.stored import check_matrix, decoded_dtype

_NUMBERS = "buif"  # kinds of NumPy types
_INDEX = re.compile(r"__index_level_\d+__")  # names that pandas gives to levels of an index without names


def is_frame(X: Any) -> bool:
    """Whether a value is a table of named columns that lies in memory."""
    speaks_arrow = hasattr(X, "__arrow_c_stream__") or hasattr(X, "__dataframe__")
    return speaks_arrow and len(getattr(X, "shape", ())) == 2


def is_stream(X: Any) -> bool:
    """Whether a value gives record batches and need not be in memory; imports nothing."""
    lazy = hasattr(X, "collect_schema") and not hasattr(X, "shape") and hasattr(X, "collect")
    dataset = hasattr(X, "get_fragments") and hasattr(X, "to_batches")
    reader = hasattr(X, "__arrow_c_stream__") and len(getattr(X, "shape", ())) != 1 and not hasattr(X, "__array__")
    relation = reader and hasattr(X, "fetchall")  # knows its shape, by asking the database
    return lazy or dataset or relation or (reader and not hasattr(X, "shape"))


def column_names(X: Any) -> tuple[str, ...] | None:
    """Names of a frame's columns; None for other values, and for columns whose names are no text."""
    if not is_frame(X):
        return None
    found = X.column_names if hasattr(X, "column_names") else getattr(X, "columns", None)
    if found is None:  # a DataArray of xarray, which speaks Arrow too
        return None
    names = tuple(found)
    return names if all(isinstance(name, str) for name in names) else None


def index_of(names: Sequence[Any], schema: Any = None) -> tuple[Any, ...]:
    """Columns that hold the index of a frame of pandas, by their names and by the metadata of an Arrow schema.

    A CSV file names the levels of an index without names "" at its beginning. pandas reads these as "Unnamed: 0",
    polars reads the second as "_duplicated_0".
    """
    told: Any = None
    with suppress(ValueError):  # damaged metadata
        told = getattr(schema, "pandas_metadata", None)
    columns = told.get("index_columns") if isinstance(told, dict) else None
    found = [name for name in columns if isinstance(name, str)] if isinstance(columns, list) else []
    n_leading = next(
        (i for i, name in enumerate(names) if name not in ("", f"Unnamed: {i}", f"_duplicated_{i - 1}")), 0
    )
    levels = [name for name in names if isinstance(name, str) and _INDEX.fullmatch(name)]
    return tuple(dict.fromkeys([*names[:n_leading], *levels, *(name for name in found if name in names)]))


def without_index(X: Any, known: Any = None) -> Any:
    """A frame in memory or of Dask without the columns of an index, unless it has those that are known.

    Any other value is given as it is.
    """
    if is_stream(X):
        return X
    names = list(X.column_names if hasattr(X, "column_names") else getattr(X, "columns", ()))
    index = index_of(names, getattr(X, "schema", None))
    kept = [name for name in names if name not in index]
    if not index or not kept or (known is not None and names == list(known)):
        return X
    return X.select(kept) if hasattr(X, "select") else X[kept]


def frame_values(X: Any, name: str) -> NDArray[Any]:
    """Values of a frame (n, d), in a dtype that holds those of all columns; NaN where a value is missing.

    Raises InvalidInputError: a column is not of numbers; names it. Raises MissingDependencyError: the frame cannot be
    read without pyarrow.
    """
    if not hasattr(X, "__array__"):
        X = _as_table(X)
    check_names_once(X, name)
    # numbers to Arrow that are objects to NumPy; dates, which polars makes numbers of, each in a unit of its own
    if not has_columns_of(X, "decimal", "null", "date", "time", "duration"):
        values = np.asarray(X)
        if values.dtype.kind in _NUMBERS:
            return values
    names = list(X.column_names if hasattr(X, "column_names") else X.columns)
    return np.column_stack([_column_values(X[column], f"column {column!r} of {name}") for column in names])


def check_names_once(X: Any, name: str) -> None:
    """Refuse a frame that has two columns of one name. Raises InvalidInputError."""
    times = Counter(X.column_names if hasattr(X, "column_names") else X.columns)
    repeated = next((column for column, count in times.items() if count > 1), None)
    if repeated is not None:
        raise InvalidInputError(f"{name}: column {repeated!r} is there twice; rename one")


def has_columns_of(X: Any, *words: str) -> bool:
    """Whether the type of one of a frame's columns begins with one of the words, as far as its package tells."""
    kinds: Any = getattr(X, "dtypes" if hasattr(X, "iloc") else "schema", None)
    found = kinds.values() if callable(getattr(kinds, "values", None)) else getattr(kinds, "types", kinds)
    return found is not None and any(str(kind).lower().startswith(words) for kind in found)


def _column_values(values: Any, what: str) -> NDArray[Any]:
    """Numbers of a column; what NumPy has no type for is read as Arrow's columns in files are, if pyarrow is there."""
    held = None
    if not str(getattr(values, "dtype", getattr(values, "type", ""))).lower().startswith(("decimal", "null")):
        held = np.asarray(values)
        if held.dtype.kind in _NUMBERS:
            return held
    with suppress(ImportError, TypeError, ValueError, NotImplementedError):  # the last three are pyarrow's
        import pyarrow as pa

        if hasattr(values, "to_arrow"):
            values = values.to_arrow()
        elif not isinstance(values, pa.ChunkedArray):
            values = pa.array(values, from_pandas=True)
        dtype, is_vector = value_dtype(values.type)
        if dtype is not None and not is_vector:
            return number_values(one_chunk(values))
    raise InvalidInputError(f"{what} contains {_told(np.asarray(values) if held is None else held)}")


def _told(held: NDArray[Any]) -> str:
    """The contents of a column without numbers, and the remedy."""
    row = next((row for row, value in enumerate(held.tolist()) if isinstance(value, str)), None)
    if row is not None:
        return (
            f"text ({str(held[row])!r} in row {row:,}); features must be numbers. Drop that column, or encode it: "
            'open_source(X, categories="onehot")'
        )
    if held.dtype.kind in "Mm":
        return f'{held.dtype}; features must be numbers. Drop that column, or read days: open_source(X, dates="days")'
    what = "Python objects" if held.dtype.kind == "O" else held.dtype
    return f"{what}; features must be numbers. Drop that column"


def order_of(
    names: tuple[str, ...] | None, wanted: tuple[str, ...] | None, what: str, before: str
) -> NDArray[np.int64] | None:
    """Where the wanted columns are among the names; None where they stand in that order, or have no names.

    Raises InvalidInputError as `check_same_columns`, for other columns.
    """
    if names and wanted and names != wanted and {*names} == {*wanted} and len({*names}) == len(names) == len(wanted):
        return np.array([names.index(name) for name in wanted])
    check_same_columns(names, wanted, what, before)
    return None


def check_same_columns(names: tuple[str, ...] | None, wanted: tuple[str, ...] | None, what: str, before: str) -> None:
    """Refuse columns that are not those of before, in their order; where either has no names there is nothing to say.

    `what`, `before`: whose columns these are, for the message: ``"chunk 3", "chunk 0"``. Raises InvalidInputError
    naming the first column that differs.
    """
    if names is None or wanted is None or names == wanted:
        return
    if sorted(names) == sorted(wanted):
        at = next(i for i, (name, other) in enumerate(zip(names, wanted, strict=True)) if name != other)
        raise InvalidInputError(
            f"the feature names of {what} are in another order than those of {before}: column {at} is {names[at]!r}, "
            f"needed {wanted[at]!r}; select the columns in that order"
        )
    here, there = set(names), set(wanted)
    missing = [name for name in wanted if name not in here]
    unknown = [name for name in names if name not in there]
    parts = [
        f"{text} {', '.join(map(repr, few[:5]))}" for text, few in (("without", missing), ("with", unknown)) if few
    ]
    raise InvalidInputError(
        f"the feature names of {what} are not those of {before}: {' and '.join(parts) or 'some stand there twice'}; "
        f"needed: {len(wanted):,} columns, the same in the same order"
    )


def _as_table(X: Any) -> Any:
    """A pyarrow table of a frame that only speaks the protocols."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError(
            f"{type(X).__name__} is read by pyarrow: pip install 'streamkm[tables]'"
        ) from error
    if hasattr(X, "__arrow_c_stream__"):
        return pa.table(X)
    from pyarrow import interchange

    return interchange.from_dataframe(X)


class SparseFrame(ChunkedSource):
    """Rows of a frame with sparse and other columns; each chunk is made dense when it is read. Pickles with all values.

    `name`, `form`: what messages call it, and what it is, for people. Raises InvalidInputError: no rows, no columns, or
    not of numbers.
    """

    is_sparse = False
    in_process = True
    read_factor = 2.0  # what pandas makes of a chunk, and the rows

    def __init__(self, X: Any, *, name: str, form: str) -> None:
        dtype = frame_values(X.iloc[:1], name).dtype
        if not all(isinstance(kind, np.dtype) or _is_sparse(kind) for kind in X.dtypes):
            dtype = np.result_type(dtype, np.float64)  # later rows may hold nulls
        check_matrix(X.shape, dtype, name)
        self._X, self._form, self.name = X, form, name
        self.feature_names = column_names(X)
        self.n_rows, self.n_features = X.shape
        self.dtype = decoded_dtype(dtype, name)
        self.n_bytes = self.resident_bytes = max(1, int(X.memory_usage(index=False).sum()))

    def details(self) -> dict[str, str]:
        """Say what the frame is; see `RowSource.details`."""
        n_sparse = sum(_is_sparse(kind) for kind in self._X.dtypes)
        return {"format": self._form, "sparse columns": f"{n_sparse:,} of {self.n_features:,}, made dense by chunks"}

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut at rows; see `ChunkedSource.chunks`. O(1)."""
        return cut_rows(self._X.shape[0], self._X.shape[1] * self.dtype.itemsize, 1, target_bytes)

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk; see `ChunkedSource.read`."""
        values = frame_values(self._X.iloc[chunk.start : chunk.stop], self.name)
        return Rows(np.ascontiguousarray(values, self.dtype), row_places(chunk.start, chunk.stop))


def has_sparse_columns(X: Any) -> bool:
    """Whether a frame is one of pandas and has sparse columns."""
    return hasattr(X, "iloc") and any(_is_sparse(kind) for kind in X.dtypes)


def is_sparse_matrix(X: Any) -> bool:
    """Whether all columns of a frame of pandas are sparse, and what they leave out is zero."""
    return hasattr(X, "iloc") and all(_is_sparse(kind) and kind.fill_value == 0 for kind in X.dtypes)


def is_read_by_column(X: Any) -> bool:
    """Whether a frame has columns that scikit-learn would take wrongly: dates, but for pandas, which refuses these.

    Of pandas: columns that become objects, or dense as a whole.
    """
    if not hasattr(X, "iloc"):
        return has_columns_of(X, "date", "time", "duration")
    return has_columns_of(X, "decimal", "null") or (has_sparse_columns(X) and not is_sparse_matrix(X))


def _is_sparse(kind: Any) -> bool:
    return hasattr(kind, "subtype") and hasattr(kind, "fill_value")
