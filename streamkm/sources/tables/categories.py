"""Columns, and how those of text become features: one of each value's own, or hashed.

Knows no file; which columns these are, `columns` says.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.arrow import stored_numbers, validity

MOST_VALUES = 1024
"""Of one-hot columns, together."""


UNSEEN: Counter[str] = Counter()
"""Values by column that this process has met and a fit had not, of the pass that cleared it."""
_COUNTING = Lock()

Unseen = Literal["raise", "ignore"]
"""What becomes of a value of a one-hot column that is not known."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is read."""

    name: str
    kind: Literal["number", "date", "vector", "category"]
    dtype: np.dtype[Any]  # of its values, or of a vector's; object for categories
    width: int = 1  # features that it becomes: more than one for vectors and for one-hot categories; 0 for hashed ones
    values: tuple[str, ...] | None = None  # of a one-hot column: each is a feature, and a null has none of them


def fill_one_hot(
    out: NDArray[Any], column: Column, values: Any, describe: Callable[[int], str], first: int, unseen: Unseen
) -> None:
    """Write the features of an Arrow array of text; see `TableSchema.fill`."""
    codes, distinct = encoded(values)
    known = {value: number for number, value in enumerate(column.values or ())}
    places = np.array([known.get(value, -1) for value in distinct] + [-2])  # the last is that of nulls
    found = places[codes]
    if unseen == "raise" and (found == -1).any():
        row = int(np.argmax(found == -1))
        raise InvalidInputError(
            f"column {column.name!r} has the value {distinct[codes[row]]!r} in {describe(first + row)}, which is none "
            f'of its {len(known):,} categories; pass categories_unseen="ignore" to give it none of them, or fit with a '
            f"mapping of all values of the column"
        )
    with _COUNTING:
        UNSEEN[column.name] += int(np.count_nonzero(found == -1))
    out[...] = 0
    rows = np.flatnonzero(found >= 0)
    out[rows, found[rows]] = 1


def encoded(values: Any) -> tuple[NDArray[np.int64], list[str]]:
    """Codes of an Arrow array of values, -1 for null, and the distinct values as texts."""
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    codes = np.where(validity(values.indices), stored_numbers(values.indices), -1).astype(np.int64)
    return codes, [str(value) for value in values.dictionary.to_pylist()]


def hash_entries(column: str, values: Any, n_features: int) -> NDArray[np.int32]:
    """Row and feature of each value of an Arrow array of text but nulls, by the BLAKE2b of ``column=value``."""
    codes, distinct = encoded(values)
    hashes = [hashlib.blake2b(f"{column}={value}".encode(), digest_size=8).digest() for value in distinct]
    features = np.array([int.from_bytes(each, "little") % n_features for each in hashes], np.int32)
    rows = np.flatnonzero(codes >= 0)
    return np.stack([rows.astype(np.int32), features[codes[rows]]])
