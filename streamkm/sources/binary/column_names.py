"""Names of a matrix's columns in hierarchical files: genes in `var` of AnnData, features of 10x Genomics.

Responsible for finding the names beside the matrix, and for making them unique. Reads no rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources.binary.layouts import MatrixLocation, Node, Tree, join


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table, which is a group or a structured array."""

    table: str
    name: str


def column_names(tree: Tree, found: MatrixLocation, column: str | None) -> tuple[str, ...] | None:
    """Names of a matrix's columns, from `column` of the table of its columns, by default its index.

    None where nothing but their numbers names the columns. Raises InvalidParameterError: there is no such table or
    column. Raises InvalidInputError: a column without a name. Raises SourceError: not a name for each column.
    """
    place = _names_column(tree, found, column)
    if place is None:
        if column is not None:
            raise InvalidParameterError(
                f"var_column={column!r} does not apply to {tree.name}:{found.path}, which has no table of its columns "
                f"(var of AnnData, features of 10x Genomics); leave it out"
            )
        return None
    if column is not None and "/" in column:
        raise InvalidParameterError(f"var_column={column!r} is no name of a column; it has a slash")
    names = _values(tree, place)
    if names is None:
        if column is None:
            return None
        raise InvalidParameterError(f"{tree.name}:{place.table} has no column {column!r}, which var_column= names")
    where = f"{tree.name}:{place.table}/{place.name}"
    if len(names) != found.shape[1]:
        raise SourceError(
            f"{where} has {len(names):,} names for the {found.shape[1]:,} columns of {found.path}; write the file again"
        )
    if None in names:
        raise InvalidInputError(
            f"{where} has no name for column {names.index(None):,}; choose another column as var_column="
        )
    given = [str(name) for name in names]
    return None if column is None and are_numbers(given) else unique_names(given)


def are_numbers(names: Sequence[str]) -> bool:
    """Whether names are "0", "1", ... in order: what an index has that nobody has named."""
    return all(name == str(number) for number, name in enumerate(names))


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of which later ones get ``-1``, ``-2``, as AnnData's ``var_names_make_unique`` does. O(names)."""
    given = list(names)
    taken = set(given)
    if len(taken) == len(given):
        return tuple(given)
    seen: set[str] = set()
    repeats: Counter[str] = Counter()
    for number, name in enumerate(given):
        if name not in seen:
            seen.add(name)
            continue
        made = name
        while made in taken:
            repeats[name] += 1
            made = f"{name}-{repeats[name]}"
        taken.add(made)
        given[number] = made
    return tuple(given)


def _names_column(tree: Tree, found: MatrixLocation, column: str | None) -> _Column | None:
    """Where the names are in the file; None where the matrix has no table of its columns."""
    if found.layout.startswith("10x"):
        features = join(found.path, "features")
        if tree.node(features) is not None:  # since version 3
            return _Column(features, column or "name")
        return _Column(found.path, column or "gene_names")
    parent, _, name = found.path.rpartition("/")
    if name != "X":  # else that of the object, or of its raw values
        parent, _, name = parent.rpartition("/")
        if name != "layers":
            return None
    table = join(parent, "var")
    node = tree.node(table)
    if node is None:
        return None
    if node.is_group:
        return _Column(table, column or tree.attribute(table, "_index") or "_index")
    return _Column(table, column or "index") if _fields(node) else None


def _values(tree: Tree, place: _Column) -> list[str | None] | None:
    """Values of a column as text, None for each that is missing; None where there is no such column."""
    table = tree.node(place.table)
    if table is None or table.is_group:
        return _texts(tree, join(place.table, place.name))
    if place.name not in _fields(table):
        return None
    return [_text(value) for value in tree.values(place.table)[place.name]]


def _fields(table: Node) -> tuple[str, ...]:
    """Columns of a structured array, as which AnnData wrote tables before version 0.7."""
    return (table.dtype.names if table.dtype is not None else None) or ()


def _texts(tree: Tree, path: str) -> list[str | None] | None:
    node = tree.node(path)
    if node is None:
        return None
    if not node.is_group:
        return [_text(value) for value in tree.values(path)] if len(node.shape or ()) == 1 else None
    if {"categories", "codes"} <= node.members:
        words = _texts(tree, join(path, "categories")) or []
        codes = tree.values(join(path, "codes"))
        if codes.dtype.kind not in "iu" or (codes >= len(words)).any():
            raise SourceError(f"{tree.name}:{path} is damaged: codes of categories that it does not have")
        return [words[code] if code >= 0 else None for code in codes]
    if {"values", "mask"} <= node.members:
        values, mask = _texts(tree, join(path, "values")) or [], tree.values(join(path, "mask"))
        if len(values) != len(mask):
            raise SourceError(f"{tree.name}:{path} is damaged: {len(values):,} values and {len(mask):,} marks")
        return [None if hidden else value for value, hidden in zip(values, mask, strict=True)]
    return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
