"""Data frames in memory, recognized by the Arrow protocols: their values and column names. Imports only pyarrow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.arrow import pyarrow

# how types of columns begin that NumPy would take wrongly, or not at all
_NO_NUMBERS = ("decimal", "null", "date", "time", "duration", "list", "array", "fixed_size_list", "large_list")
_INDEX = re.compile(r"__index_level_\d+__")  # names that pandas gives to levels of an index without names


def is_frame(X: Any) -> bool:
    """Whether a value is a table of named columns that lies in memory."""
    speaks_arrow = hasattr(X, "__arrow_c_stream__") or hasattr(X, "__dataframe__")
    return speaks_arrow and len(getattr(X, "shape", ())) == 2


def is_stream(X: Any) -> bool:
    """Whether a value gives record batches and need not be in memory; imports nothing."""
    lazy = hasattr(X, "collect_schema") and not hasattr(X, "shape")
    dataset = hasattr(X, "get_fragments") and hasattr(X, "to_batches")
    reader = hasattr(X, "__arrow_c_stream__") and len(getattr(X, "shape", ())) != 1 and not hasattr(X, "__array__")
    # a relation of a database knows its shape, by asking
    return lazy or dataset or (reader and (hasattr(X, "fetchall") or not hasattr(X, "shape")))


def column_names(X: Any) -> tuple[str, ...] | None:
    """Column names of a frame in memory, lazy, or of Dask; None if they are not text, and for other values.

    Lazy frames of polars give them only in this way without a warning.
    """
    found: Any = ()
    if hasattr(X, "collect_schema"):
        found = X.collect_schema().names()
    elif is_frame(X) or is_stream(X) or hasattr(type(X), "__dask_graph__"):
        found = getattr(getattr(X, "schema", None), "names", None) or getattr(X, "columns", ())
    names = tuple(found)
    return names if names and all(isinstance(name, str) for name in names) else None


def index_of(names: Sequence[Any], schema: Any = None) -> tuple[Any, ...]:
    """Columns that hold the index of a pandas frame, by their names and by the metadata of an Arrow schema.

    CSV files begin with unnamed index levels, "", which pandas reads as "Unnamed: 0", and polars as "_duplicated_0".
    """
    found: list[str] = []
    with suppress(AttributeError, LookupError, TypeError, ValueError):  # no metadata, or damaged ones
        found = [name for name in schema.pandas_metadata["index_columns"] if name in names]
    n = next((i for i, each in enumerate(names) if each not in ("", f"Unnamed: {i}", f"_duplicated_{i - 1}")), 0)
    levels = [name for name in names if isinstance(name, str) and _INDEX.fullmatch(name)]
    return tuple(dict.fromkeys([*names[:n], *levels, *found]))


def without_index(X: Any, known: Any = None) -> Any:
    """A frame in memory or of Dask without index columns, unless its columns are `known`; other values unchanged."""
    if is_stream(X):
        return X
    names = list(X.column_names if hasattr(X, "column_names") else getattr(X, "columns", ()))
    index = index_of(names, getattr(X, "schema", None))
    kept = [name for name in names if name not in index]
    if not index or not kept or (known is not None and names == list(known)):
        return X
    return X.select(kept) if hasattr(X, "select") else X[kept]


def frame_table(X: Any, name: str) -> Any:
    """A frame as a pyarrow.Table. Raises InvalidInputError, MissingDependencyError."""
    pa = pyarrow(type(X).__name__)
    try:
        return pa.Table.from_pandas(X, preserve_index=False) if hasattr(X, "iloc") else pa.table(X)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidInputError(f"{name} cannot be made an Arrow table: {error}") from error


def check_names_once(names: Iterable[Any], name: str) -> None:
    """Refuse two columns of one name. Raises InvalidInputError."""
    repeated = next((column for column, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        raise InvalidInputError(f"{name}: column {repeated!r} is there twice; rename one, or name others by columns=")


def order_of(
    names: tuple[str, ...] | None, wanted: tuple[str, ...] | None, what: str, before: str
) -> NDArray[np.int64] | None:
    """Positions of the wanted columns among the names; None if already in order, or without names.

    Raises InvalidInputError as `check_same_columns`, for other columns.
    """
    if names and wanted and names != wanted and {*names} == {*wanted} and len({*names}) == len(names) == len(wanted):
        return np.array([names.index(name) for name in wanted])
    check_same_columns(names, wanted, what, before)
    return None


def check_same_columns(names: tuple[str, ...] | None, wanted: tuple[str, ...] | None, what: str, before: str) -> None:
    """Refuse columns other than before, or in another order, if both have names. Raises InvalidInputError.

    `what`, `before`: owners of the columns, for the message: ``"chunk 3", "chunk 0"``.
    """
    if names is None or wanted is None or names == wanted:
        return
    here, needed = Counter(names), Counter(wanted)
    differing = (("without", [*(needed - here)]), ("with", [*(here - needed)]))
    parts = [f"{word} {', '.join(map(repr, few[:5]))}" for word, few in differing if few]
    found = f"not those of {before}: {' and '.join(parts)}"
    if not parts:
        at = next(i for i, (name, other) in enumerate(zip(names, wanted, strict=True)) if name != other)
        found = f"in another order than those of {before}: column {at} is {names[at]!r}, needed {wanted[at]!r}"
    raise InvalidInputError(
        f"the feature names of {what} are {found}; needed: {len(wanted):,} columns, the same in the same order"
    )


def has_sparse_columns(X: Any) -> bool:
    """Whether a value is a pandas frame with sparse columns."""
    return hasattr(X, "iloc") and any(map(_is_sparse, X.dtypes))


def sparse_matrix(X: Any) -> Any:
    """A frame with sparse columns, and perhaps others, as a sparse matrix of SciPy."""
    import scipy.sparse as sp

    if all(_is_sparse(kind) and kind.fill_value == 0 for kind in X.dtypes):
        return X.sparse.to_coo()
    return sp.hstack([sp.csc_array(np.asarray(X[[column]])) for column in X.columns], format="csr")


def is_read_by_column(X: Any) -> bool:
    """Whether a frame has sparse columns, or columns that NumPy cannot convert to numbers."""
    kinds: Any = getattr(X, "dtypes" if hasattr(X, "iloc") else "schema", None)
    found = kinds.values() if callable(getattr(kinds, "values", None)) else getattr(kinds, "types", kinds)
    shown = [] if found is None else map(str.lower, map(str, found))
    words = _NO_NUMBERS[: 2 if hasattr(X, "iloc") else None]  # scikit-learn refuses those of pandas with its own words
    return has_sparse_columns(X) or any(kind.startswith(words) for kind in shown)


def _is_sparse(kind: Any) -> bool:
    return hasattr(kind, "subtype") and hasattr(kind, "fill_value")
