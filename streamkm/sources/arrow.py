"""pyarrow, imported on demand, its errors and values; its own conversion to NumPy, which imports pandas, is avoided."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, MissingDependencyError, SourceError, StreamkmError
from streamkm.sources.local import unchanged
from streamkm.sources.remote import Address, RemoteFile

Describe = Callable[[int], str]  # says where a row is: ``row 17 of x.parquet``
Unseen = Literal["raise", "ignore"]  # what becomes of a value of a one-hot column that is not known
MOST_VALUES = 1024  # of one-hot columns, together
# that pyarrow takes while it reads, beside what it holds once it is loaded: its threads' pools
WORKING_BYTES = 28 << 20

UNSEEN: Counter[str] = Counter()  # values by column that a fit had not, met in this process since it was cleared
_COUNTING = Lock()


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is read."""

    name: str
    kind: str  # "number", "date", "vector" or "category"
    dtype: np.dtype[Any]  # of its values, or of a vector's; object for categories
    width: int = 1  # features that it becomes: more than one for vectors and for one-hot categories; 0 for hashed ones
    values: tuple[str, ...] | None = None  # of a one-hot column: each is a feature, and a null has none of them


def pyarrow(what: str) -> ModuleType:
    """Import pyarrow, to read the path `what`. Raises MissingDependencyError."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError(f"{what} is read by pyarrow: pip install 'streamkm[tables]'") from error
    return pa


@contextmanager
def guarded(path: str, form: str, where: str = "") -> Iterator[None]:
    """Turn pyarrow's errors on a file of format `form` into SourceError, also raised if a local file has changed."""
    pa = pyarrow(path)
    try:
        with unchanged(path):
            yield
    except StreamkmError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SourceError(f"{path}{where} cannot be read as {form}; truncated or damaged: {first}") from error


def readable(path: str) -> AbstractContextManager[Any]:
    """Give the form of a path or URL that pyarrow opens, until the context ends."""
    if not isinstance(path, Address):
        return nullcontext(str(path))
    return pyarrow(path).PythonFile(RemoteFile(path), mode="r")


def kind_of_column(kind: Any) -> tuple[str, np.dtype[Any]]:
    """The kind of an Arrow type, "number", "date", "vector", "category" or "" (others), and NumPy's type for it."""
    from pyarrow import types

    kind = kind.value_type if hasattr(kind, "index_type") else kind  # of a dictionary
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        held, dtype = kind_of_column(kind.value_type)
        return "vector" if held == "number" else "", dtype
    if str(kind) in ("string", "large_string", "string_view"):
        return "category", np.dtype(object)
    if _per_day(kind) or types.is_null(kind) or types.is_decimal(kind):
        return "date" if _per_day(kind) else "number", np.dtype(np.float64)
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return "", np.dtype(object)
    found: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    smaller: dict[str, np.dtype[Any]] = {"bool": np.dtype(np.uint8), "float16": np.dtype(np.float32)}
    return "number", smaller.get(found.name, found)


def _per_day(kind: Any) -> int:
    """Units of a temporal type in a day; 0 for intervals of months, which have no length, and for other types."""
    unit: Any = {"date32[day]": "D", "date64[ms]": "ms"}.get(str(kind)) or getattr(kind, "unit", None)
    return 0 if unit is None else int(np.timedelta64(1, "D") / np.timedelta64(1, unit))


def vector_rows(values: Any, column: Column, dtype: np.dtype[Any], describe: Describe, first: int) -> NDArray[Any]:
    """Lists of an Arrow array as rows of type `dtype`, NaN for null; see `TableSchema.matrix`."""
    from pyarrow import compute

    valid, width, name = validity(values), column.width, column.name
    lengths = stored_numbers(compute.list_value_length(values))
    if len(wrong := np.flatnonzero(valid & (lengths != width))):
        raise InvalidInputError(
            f"column {name!r} has a list of {lengths[wrong[0]]:,} values in {describe(first + int(wrong[0]))}, and its "
            f"first has {width:,}; needed: vectors of one length"
        )
    rows = number_values(values.flatten()).reshape(-1, width)
    if not valid.all():
        given, rows = rows, np.full((len(values), width), np.nan)
        rows[valid] = given
    if dtype.kind != "f" and rows.dtype.kind == "f":
        row = int(np.isnan(rows).any(axis=1).argmax())
        raise InvalidInputError(
            f'column {name!r} has a null in {describe(first + row)}, and {dtype} holds no NaN; pass dtype="float32"'
        )
    return rows


def one_hot_rows(values: Any, column: Column, unseen: Unseen, describe: Describe, first: int) -> NDArray[np.uint8]:
    """One-hot features of an Arrow array of text, none for null; see `TableSchema.matrix`."""
    codes, distinct = encoded(values)
    width, known = column.width, {value: number for number, value in enumerate(column.values or ())}
    features = np.array([known.get(value, width) for value in distinct] + [width + 1])[codes]
    is_new = features == width
    if unseen == "raise" and is_new.any():
        row = int(np.argmax(is_new))
        raise InvalidInputError(
            f"column {column.name!r} has the value {distinct[codes[row]]!r} in {describe(first + row)}, which is none "
            f'of its {len(known):,} categories; pass categories_unseen="ignore" to give it none of them, or fit with a '
            f"mapping of all values of the column"
        )
    with _COUNTING:
        UNSEEN[column.name] += int(np.count_nonzero(is_new))
    return np.eye(width + 2, width, dtype=np.uint8)[features]


def encoded(values: Any) -> tuple[NDArray[np.int64], list[str]]:
    """Codes of an Arrow array of values, -1 for null, and the distinct values as texts."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    codes = np.where(validity(values.indices), stored_numbers(values.indices), -1).astype(np.int64)
    return codes, [str(value) for value in values.dictionary.to_pylist()]


def hash_entries(column: str, values: Any, n_features: int, first: int) -> NDArray[np.int32]:
    """Row, from `first`, and feature of each value of an Arrow array except nulls, by BLAKE2b of ``column=value``."""
    codes, distinct = encoded(values)
    hashes = [hashlib.blake2b(f"{column}={value}".encode(), digest_size=8).digest() for value in distinct]
    features = np.array([int.from_bytes(each, "little") % n_features for each in hashes], np.int32)
    rows = np.flatnonzero(codes >= 0)
    return np.stack([(rows + first).astype(np.int32), features[codes[rows]]])


def number_values(values: Any) -> NDArray[Any]:
    """Values of an Arrow array as NumPy's, NaN for null; dates and moments are days since 1970-01-01, noon is 0.5.

    Moments count in UTC if they have a zone; times and durations are days, too.
    """
    from pyarrow import types

    values = values.dictionary_decode() if hasattr(values, "dictionary") else values
    per_day = _per_day(values.type)
    if types.is_decimal(values.type):
        values = values.cast("string").cast("float64")  # the nearest, of which Arrow's own cast is an ulp off
    elif plain := {"bool": "uint8", "null": "float64"}.get(str(values.type)):
        values = values.cast(plain)
    numbers = stored_numbers(values.view(f"int{values.type.bit_width}") if per_day else values)
    if per_day:
        days, rest = np.divmod(numbers, per_day)
        numbers = days + rest / per_day
    if values.null_count:
        numbers = numbers.astype(numbers.dtype if numbers.dtype.kind == "f" else np.float64)
        numbers[~validity(values)] = np.nan
    return numbers


def stored_numbers(values: Any) -> NDArray[Any]:
    """The numbers of an Arrow array, read-only; undefined where a value is null."""
    dtype = np.dtype(values.type.to_pandas_dtype())
    buffer = values.buffers()[1]
    if buffer is None:
        return np.zeros(len(values), dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def validity(values: Any) -> NDArray[np.bool_]:
    """A mask of the values that are not null."""
    return stored_numbers(values.is_valid().cast("uint8")).view(np.bool_)


def one_chunk(values: Any) -> Any:
    """An Arrow array in one piece, from an array that may be in several."""
    return values.combine_chunks() if hasattr(values, "chunks") else values
