"""Decides which columns of a table are features, and what their values become. Knows Arrow's types, but no files."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix
from streamkm.sources.arrow import (
    MOST_VALUES,
    Column,
    Describe,
    Unseen,
    hash_entries,
    kind_of_column,
    number_values,
    one_chunk,
    one_hot_rows,
    vector_rows,
)
from streamkm.sources.fitted_tables import HeadRead, TableOptions
from streamkm.sources.frames import check_names_once, check_same_columns, index_of
from streamkm.sources.tables.csv_format import is_number

_SHOWN_COLUMNS = 12
_COMMA, _DELIMITED = re.compile(r"[-+]?\d+,\d+$"), re.compile(r"[-.\d]+([;|\t ])[-.\d]")  # numbers in text


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The layout by which record batches become rows; a small picklable value."""

    columns: tuple[Column, ...]  # in the order of their features
    dtype: np.dtype[Any]  # of the rows
    n_hashed: int  # features that hashed categories share, behind all others; 0 where none are hashed
    is_named: bool = False  # whether columns have names of their own
    unseen: Unseen = "raise"
    left_out: str = ""  # columns that are no features, and why, for people

    @property
    def names(self) -> list[str]:
        """Columns to read."""
        return [column.name for column in self.columns]

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of features; None for a single column of vectors, and for columns without names."""
        if not self.is_named or (len(self.columns) == 1 and self.columns[0].kind == "vector"):
            return None
        names: list[str] = []
        for column in self.columns:
            ends = [f"[{i}]" for i in range(column.width)] if column.kind == "vector" else [""]
            ends = [f"={value}" for value in column.values or ()] if column.kind == "category" else ends
            names += [column.name + end for end in ends]
        return tuple(names + [f"hash {i}" for i in range(self.n_hashed)])

    @property
    def n_features(self) -> int:
        """Features of a row."""
        return sum(column.width for column in self.columns) + self.n_hashed

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of a row."""
        entries = sum(column.width or 1 for column in self.columns)
        return entries * self.dtype.itemsize + (4 * entries + 12 if self.n_hashed else 0)

    def matrix(self, batches: Iterable[Any], n_rows: int, describe: Describe) -> Matrix:
        """The `n_rows` rows of record batches or tables; `describe` names a row for messages.

        Raises InvalidInputError, naming the row: a vector of another length, an unknown category.
        """
        dense, first = np.empty((n_rows, self.n_features - self.n_hashed), self.dtype), 0
        hashed = [np.empty((2, 0), np.int32)]  # row and feature of each hashed category
        for batch in batches:
            out, at = dense[first : first + batch.num_rows], 0
            for column in self.columns:
                values = one_chunk(batch.column(column.name))
                if column.kind == "vector":
                    out[:, at : at + column.width] = vector_rows(values, column, self.dtype, describe, first)
                elif column.kind != "category":
                    out[:, at] = number_values(values)
                elif column.values is None:
                    hashed.append(hash_entries(column.name, values, self.n_hashed, first))
                else:
                    out[:, at : at + column.width] = one_hot_rows(values, column, self.unseen, describe, first)
                at += column.width
            first += batch.num_rows
        if not self.n_hashed:
            return dense
        entries = np.concatenate(hashed, axis=1)
        ones = sp.coo_array((np.ones(entries.shape[1], self.dtype), entries), shape=(n_rows, self.n_hashed))
        X = sp.hstack([sp.csr_array(dense), ones.tocsr()], format="csr")
        X.sort_indices()
        return X


def choose(known: Sequence[str], options: TableOptions, name: str) -> list[str]:
    """Names of the columns that are features, in order. Raises InvalidInputError: missing, repeated, or none left."""
    wanted = without(known, _index(known, options)) if options.columns is None else options.columns
    left_out = {*options.exclude, *([] if options.id_column is None else [options.id_column])}
    given = [*wanted, *left_out, *(options.categories if isinstance(options.categories, Mapping) else ())]
    for column in given:
        if column not in known:
            shown = ", ".join(known[:_SHOWN_COLUMNS]) + (", ..." if len(known) > _SHOWN_COLUMNS else "")
            hint = near_hint(column, known)
            raise InvalidInputError(f"{name}: column {column!r} is missing{hint}; it has {shown or 'none'}")
    chosen = [column for column in wanted if column not in left_out]
    check_names_once(chosen, name)
    read = {*chosen, options.id_column}
    check_names_once([column for column in known if column in read], name)
    if not chosen:
        raise InvalidInputError(
            f"{name}: no column is left to be a feature; it has {_reasons(known, options, ()) or 'none'}"
        )
    return chosen


def check_file(known: Sequence[str], first: Sequence[str], options: TableOptions, name: str, first_name: str) -> None:
    """Refuse a file that lacks columns of the first one, in any order. Raises InvalidInputError."""
    index = {*_index(known, options), *_index(first, options)}
    if options.columns is None and {*known} - index != {*first} - index:
        check_same_columns(tuple(without(known, index)), tuple(without(first, index)), name, first_name)
    choose(known, options, name)


def without(names: Iterable[str], others: Container[str]) -> list[str]:
    """The names that are not among the others."""
    return [name for name in names if name not in others]


def with_keys(table: Any, names: Sequence[str], keys: Mapping[str, str | None]) -> Any:
    """A table with a column of text for each name that is a key of its folders."""
    import pyarrow as pa

    for name in (name for name in names if name in keys):
        table = table.append_column(name, pa.repeat(pa.scalar(keys[name], pa.string()), table.num_rows))
    return table


def _index(known: Sequence[str], options: TableOptions) -> tuple[str, ...]:
    return (*index_of(known), *options.index)


def _reasons(known: Sequence[str], options: TableOptions, chosen: Container[str]) -> str:
    """Columns that cannot be features, and why."""
    why = dict.fromkeys(known, "not among columns=") if options.columns is not None else {}
    why |= dict.fromkeys(_index(known, options), "index") | dict.fromkeys(options.exclude, "exclude=")
    why |= {} if options.id_column is None else {options.id_column: "id_column="}
    told = [f"{column!r} ({why[column]})" for column in dict.fromkeys(known) if column in why and column not in chosen]
    more = f" and {len(told) - _SHOWN_COLUMNS:,} more" if told[_SHOWN_COLUMNS:] else ""
    return ", ".join(told[:_SHOWN_COLUMNS]) + more


def lay_out(
    known: Sequence[str],
    fields: Mapping[str, Any],
    options: TableOptions,
    name: str,
    head: Callable[[list[str]], Any],
    named: bool = True,
) -> TableSchema:
    """Decide what the chosen columns become; one-hot columns without given values have no features yet.

    `known`: all columns. `fields`: types of the chosen ones, in order. `head`: gives the first rows of some columns as
    a pyarrow.Table, for lengths of lists and for messages. `named`: whether columns have real names. Raises
    InvalidInputError: a column that is neither numbers nor, if that was asked for, categories.
    """
    if options.categories is HeadRead:
        raise HeadRead(known, head(list(fields)))
    columns: list[Column] = []
    for column, stored in fields.items():
        kind, dtype = kind_of_column(stored)
        how = options.encoding_of(column)
        if how and (kind == "category" or isinstance(options.categories, Mapping)):
            values = how if isinstance(how, tuple) else None
            columns.append(Column(column, "category", np.dtype(object), len(values or ()), values))
        elif kind in ("number", "vector", options.dates and "date"):
            columns.append(Column(column, kind, dtype, _width(column, stored, name, head) if kind == "vector" else 1))
        else:
            raise InvalidInputError(_refusal(column, stored, name, head))
    vectors = [column for column in columns if column.kind == "vector"]
    if vectors and options.columns is None and len(columns) > 1:
        other = next(column.name for column in columns if column is not vectors[0])
        raise InvalidInputError(
            f"{name}: column {vectors[0].name!r} holds vectors, and {other!r} is there too; say which are "
            f'features, as in columns="{vectors[0].name}"'
        )
    hashes = any(column.kind == "category" and options.encoding_of(column.name) == "hash" for column in columns)
    numbers = [column.dtype for column in columns if column.kind != "category"]
    # a single column of vectors keeps its type; others have float32 where it holds the values of all
    found = numbers[0] if vectors and len(columns) == 1 else np.dtype(np.float64)
    if found.kind == "f" and all(np.can_cast(dtype, np.float32) for dtype in numbers):
        found = np.dtype(np.float32)
    n_hashed, left_out = options.n_features if hashes else 0, _reasons(known, options, fields)
    return TableSchema(tuple(columns), options.dtype or found, n_hashed, named, options.categories_unseen, left_out)


def one_hot(layout: TableSchema, values: Mapping[str, Iterable[str]]) -> TableSchema:
    """The layout with one-hot columns for the values found. Raises InvalidInputError: too many values."""
    found = {name: tuple(sorted(texts)) for name, texts in values.items()}
    columns = tuple(
        replace(column, values=found[column.name], width=len(found[column.name])) if column.name in found else column
        for column in layout.columns
    )
    widest = max(columns, key=lambda column: len(column.values or ()))
    if sum(len(column.values or ()) for column in columns) > MOST_VALUES:
        raise InvalidInputError(
            f"column {widest.name!r} has {widest.width:,} values or more, and one-hot columns may have "
            f'{MOST_VALUES:,} in all; pass id_column="{widest.name}" if it identifies rows, leave it out with '
            f'exclude="{widest.name}", or pass categories="hash"'
        )
    return replace(layout, columns=columns)


def unknown_categories(layout: TableSchema, options: TableOptions) -> list[str]:
    """One-hot columns whose values must be looked for."""
    return [c.name for c in layout.columns if c.kind == "category" and options.encoding_of(c.name) == "onehot"]


def _refusal(column: str, kind: Any, name: str, head: Callable[[list[str]], Any]) -> str:
    values = [value.as_py() for value in one_chunk(head([column]).column(column))]
    held, found = [row for row, value in enumerate(values) if value is not None], kind_of_column(kind)[0]
    is_text = found == "category"
    row = next((row for row in held if not is_text or not is_number(values[row])), held[0] if held else None)
    shown = "" if row is None else f" ({reprlib.repr(values[row])} in row {row:,})"
    remedy = f'Leave it out with exclude="{column}"'
    if is_text:
        if 1 < len(held) == len({values[row] for row in held}):
            remedy = f'If it identifies rows, pass id_column="{column}". {remedy}'
        remedy += ', or pass categories="onehot" or categories="hash"'
        text = "" if row is None else values[row].strip()
        remedy += '. Decimal commas? Pass pandas.read_csv(path, decimal=",")' if _COMMA.match(text) else ""
        other = _DELIMITED.match(text)
        remedy += f". It seems to be another delimiter; pass delimiter={json.dumps(other[1])}" if other else ""
    elif found == "date":
        remedy += ', or pass dates="days" to read days since 1970'
    what = "contains text" if is_text else f"has type {kind}"
    return f"{name}: column {column!r} {what}{shown}; features must be numbers. {remedy}"


def _width(column: str, kind: Any, name: str, head: Callable[[list[str]], Any]) -> int:
    if hasattr(kind, "list_size"):
        return int(kind.list_size)
    width = next((len(value) for value in head([column]).column(column) if value.is_valid), 0)
    if width == 0:
        raise InvalidInputError(f"{name}: column {column!r} has no list with values in its first rows; needed: vectors")
    return width
