"""The matrix of a hierarchical file, with names of its columns: genes in `var` of AnnData, features of 10x Genomics.

The names beside the matrix are found and made unique, and columns chosen by a mark there. Of AnnData objects only what
they offer is used, so that anndata is not imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources.base import ChunkedSource
from streamkm.sources.binary.layouts import MatrixLocation, Node, Tree, find_matrix, join
from streamkm.sources.chosen_columns import ChosenColumns, choosable
from streamkm.sources.dense import DenseSource


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table, which is a group or a structured array."""

    table: str
    name: str


def open_matrix(tree: Tree, dataset: str | None, column: str | None, genes: str | None) -> ChunkedSource:
    """The matrix that `dataset` means, with the names of its columns, and with those alone that `genes` marks.

    `dataset`: see `find_matrix`. `column`: see `column_names`. `genes`: see `marked_columns`; None for all columns.
    Raises as these.
    """
    found = find_matrix(tree, dataset)
    if found.kind == "dense":
        source: ChunkedSource = DenseSource(tree.array(found.path))
    else:
        from streamkm.sources.binary.csr_groups import CsrSource  # which imports SciPy

        data, indices, indptr = (tree.array(join(found.path, name)) for name in ("data", "indices", "indptr"))
        shape, name = (found.shape[0], found.shape[1]), f"{tree.name}:{found.path}"
        source = CsrSource(data, indices, indptr, shape=shape, name=name, layout=found.layout)
    source.feature_names = column_names(tree, found, column)
    if column is not None:
        source.made_with = {"var_column": column}
    return source if genes is None else ChosenColumns(choosable(source), marked_columns(tree, found, genes))


def column_names(tree: Tree, found: MatrixLocation, column: str | None) -> tuple[str, ...] | None:
    """Names of a matrix's columns, from `column` of the table of its columns, by default its index.

    None where nothing but their numbers names the columns. Raises InvalidParameterError: there is no such table or
    column. Raises InvalidInputError: a column without a name. Raises SourceError: not a name for each column.
    """
    place = _names_column(tree, found, column)
    if place is None and column is None:
        return None
    names = _checked_values(tree, found, place, column, "var_column")
    if names is None or place is None:
        return None
    if None in names:
        raise InvalidInputError(
            f"{_where(tree, place)} has no name for column {names.index(None):,}; choose another column as var_column="
        )
    return _named(names, column)


def marked_columns(tree: Tree, found: MatrixLocation, column: str) -> tuple[int, ...]:
    """Numbers of the columns of a matrix for which `column` of the table of its columns is true.

    Raises as `column_names`, and as `true_numbers`.
    """
    place = _names_column(tree, found, column)
    marks = _checked_values(tree, found, place, column, "genes") or []
    return true_numbers(marks, column if place is None else _where(tree, place))


def true_numbers(marks: Sequence[str | None], where: str) -> tuple[int, ...]:
    """Numbers of the marks that are "True". Raises InvalidInputError: other marks than "True" and "False"; none true.

    `where`: where the marks stand, for messages.
    """
    for number, mark in enumerate(marks):
        if mark not in ("True", "False"):
            value = "no value" if mark is None else repr(mark)
            raise InvalidInputError(f"{where} has {value} in row {number:,}; genes= names a column of true and false")
    chosen = tuple(number for number, mark in enumerate(marks) if mark == "True")
    if not chosen:
        raise InvalidInputError(f"{where} is true for none of {len(marks):,} genes; needed: at least 1")
    return chosen


def _named(names: Iterable[Any], column: str | None) -> tuple[str, ...] | None:
    """Unique names; None for "0", "1", ... in order, which an index has that nobody has named."""
    given = [str(name) for name in names]
    are_numbers = all(name == str(number) for number, name in enumerate(given))
    return None if column is None and are_numbers else unique_names(given)


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


def _where(tree: Tree, place: _Column) -> str:
    return f"{tree.name}:{place.table}/{place.name}"


def _checked_values(
    tree: Tree, found: MatrixLocation, place: _Column | None, column: str | None, option: str
) -> list[str | None] | None:
    """A value for each column of a matrix, of a column that `option` names; None where it names none."""
    if place is None:
        raise InvalidParameterError(
            f"{option}={column!r} does not apply to {tree.name}:{found.path}, which has no table of its columns "
            f"(var of AnnData, features of 10x Genomics); leave it out"
        )
    if column is not None and "/" in column:
        raise InvalidParameterError(f"{option}={column!r} is no name of a column; it has a slash")
    values = _values(tree, place)
    if values is None:
        if column is None:
            return None
        raise InvalidParameterError(f"{tree.name}:{place.table} has no column {column!r}, which {option}= names")
    if len(values) != found.shape[1]:
        raise SourceError(
            f"{_where(tree, place)} has {len(values):,} {'names' if option == 'var_column' else 'values'} for the "
            f"{found.shape[1]:,} columns of {found.path}; write the file again"
        )
    return values


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


def gene_names(adata: Any, column: str | None) -> tuple[str, ...] | None:
    """Names of the columns of X: `column` of `var`, by default its index if it names them; repeated ones made unique.

    Raises InvalidParameterError: `var` has no such column. Raises InvalidInputError: a gene without a name.
    """
    if column is not None:
        _check_column(adata, column, "var_column")
    names = getattr(adata, "var_names", None) if column is None else adata.var[column]
    if names is None:  # of what looks like AnnData
        return None
    place = "var_names" if column is None else f"var[{column!r}]"
    missing = names.isna()
    if missing.any():
        raise InvalidInputError(
            f"{place} of the AnnData object has no name for column {missing.argmax():,}; choose another column as "
            f"var_column="
        )
    return _named(names, column)


def marked_genes(adata: Any, column: str) -> tuple[int, ...]:
    """Numbers of the genes for which `column` of `var` is true.

    Raises InvalidParameterError: `var` has no such column. Raises InvalidInputError as `true_numbers`.
    """
    _check_column(adata, column, "genes")
    values = adata.var[column]
    marks = [None if missing else str(value) for value, missing in zip(values, values.isna(), strict=True)]
    return true_numbers(marks, f"var[{column!r}] of the AnnData object")


def _check_column(adata: Any, column: str, option: str) -> None:
    """Refuse a column that `var` lacks."""
    if column not in adata.var:
        raise InvalidParameterError(
            f"var of the AnnData object has no column {column!r}, which {option}= names; it has "
            f"{', '.join(map(str, adata.var)) or 'none'}"
        )
