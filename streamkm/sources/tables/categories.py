"""Columns, and how those of text become features: one of each value's own, or hashed.

Knows no file; which columns these are, `columns` says.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.arrow_values import stored_numbers, validity

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


@dataclass(frozen=True, slots=True)
class CategoryEncoder:
    """A one-hot column."""

    column: str
    values: tuple[str, ...]  # each is a feature: 1 where the column has it. A null has none of them

    def fill(
        self, out: NDArray[Any], values: Any, describe: Callable[[int], str], first: int, unseen: Unseen = "raise"
    ) -> None:
        """Write the features of an Arrow array of text.

        `unseen`: "ignore": a value that is not known has no feature, as a null has none. Raises InvalidInputError: a
        value that is none of those that are known; names the row.
        """
        codes, distinct = encoded(values)
        known = {value: number for number, value in enumerate(self.values)}
        places = np.array([known.get(value, -1) for value in distinct] + [-2])  # the last is that of nulls
        found = places[codes]
        if unseen == "raise" and (found == -1).any():
            row = int(np.argmax(found == -1))
            raise InvalidInputError(
                f"column {self.column!r} has the value {distinct[codes[row]]!r} in {describe(first + row)}, which is "
                f"none of its {len(self.values):,} categories; pass "
                f'categories_unseen="ignore" to give it none of them, or fit with a mapping of all values of the column'
            )
        with _COUNTING:
            UNSEEN[self.column] += int(np.count_nonzero(found == -1))
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


def one_hot_columns(
    columns: Sequence[Column], encoders: Sequence[CategoryEncoder], values: Mapping[str, Iterable[str]]
) -> tuple[tuple[Column, ...], tuple[CategoryEncoder, ...]]:
    """Give columns of text as many features as they have values.

    Raises InvalidInputError: more than `MOST_VALUES` in all.
    """
    known = {encoder.column: encoder for encoder in encoders}
    known |= {name: CategoryEncoder(name, tuple(sorted(found))) for name, found in values.items()}
    total = sum(len(encoder.values) for encoder in known.values())
    if total > MOST_VALUES:
        widest = max(known.values(), key=lambda encoder: len(encoder.values))
        raise InvalidInputError(
            f"column {widest.column!r} has {len(widest.values):,} values or more, and one-hot columns may have "
            f'{MOST_VALUES:,} in all; pass id_column="{widest.column}" if it identifies rows, leave it out with '
            f'exclude="{widest.column}", or pass categories="hash"'
        )
    made = tuple(
        replace(column, width=len(known[column.name].values)) if column.name in known else column for column in columns
    )
    return made, tuple(known[column.name] for column in columns if column.name in known)


def hash_entries(column: str, values: Any, n_features: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Feature of each value of an Arrow array of text, by a hash of column and value; and whether it has one (no null).

    The hash is BLAKE2b of ``column=value``, the same everywhere.
    """
    codes, distinct = encoded(values)
    features = np.array([_bucket(f"{column}={value}", n_features) for value in distinct] + [0], np.int64)
    return features[codes], codes >= 0


def _bucket(text: str, n_features: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") % n_features
