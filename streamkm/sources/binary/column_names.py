"""Matrices with named columns: genes in AnnData's `var`, features of 10x Genomics. anndata is not imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, SourceError
from streamkm.sources.binary.layouts import MatrixLocation, Tree, find_matrix, join
from streamkm.sources.chosen_columns import ChosenColumns, choosable
from streamkm.sources.dense import DenseSource
from streamkm.sources.row_source import RowSource

_Source = TypeVar("_Source", bound=RowSource)
_Values = tuple[list[str | None], str]  # of a column as text, None for each that is missing; and where they stand


def open_matrix(tree: Tree, dataset: str | None, var_column: str | None = None, genes: str | None = None) -> RowSource:
    """Open the matrix at `dataset` with the names of its columns; see `find_matrix` and `_with_names`."""
    found = find_matrix(tree, dataset)
    if found.layout == "dense":
        source: RowSource = DenseSource(tree.array(found.path))
    else:
        from streamkm.sources.binary.csr_groups import CsrSource  # which imports SciPy

        data, indices, indptr = (tree.array(join(found.path, name)) for name in ("data", "indices", "indptr"))
        shape, name = (found.shape[0], found.shape[1]), f"{tree.name}:{found.path}"
        source = CsrSource(data, indices, indptr, shape=shape, name=name, layout=found.layout)
    return _with_names(source, partial(_stored_values, tree, found), var_column, genes)


def name_genes(source: RowSource, adata: Any, column: str | None, genes: str | None) -> RowSource:
    """Name the columns of an AnnData object's rows after its genes; see `_with_names`."""
    return _with_names(source, partial(_object_values, adata), column, genes)


def _with_names(
    source: _Source, values: Callable[[str | None, str], _Values | None], column: str | None, genes: str | None
) -> _Source | ChosenColumns:
    """Name the columns of a source by `column` of their table, by default its index; keep those that `genes` marks.

    `values` reads a column of the table. Repeated names are made unique; an index of "0", "1", ... gives no names.
    Raises InvalidParameterError: no such table or column; InvalidInputError: a column without a name, a mark other than
    true and false; SourceError: not one value for each column.
    """
    if (found := values(column, "var_column")) is not None:
        names, where = found
        if None in names:
            raise InvalidInputError(
                f"{where} has no name for column {names.index(None):,}; choose another column as var_column="
            )
        are_numbers = column is None and all(name == str(number) for number, name in enumerate(names))
        source.feature_names = None if are_numbers else unique_names(map(str, names))
    if column is not None:
        source.origin = replace(source.origin, made_with={"var_column": column})
    if genes is None:
        return source
    chosen_from = choosable(source)
    marks, where = values(genes, "genes") or ([], "")
    for number, mark in enumerate(marks):
        if mark not in ("True", "False"):
            value = "no value" if mark is None else repr(mark)
            raise InvalidInputError(f"{where} has {value} in row {number:,}; genes= names a column of true and false")
    if "True" not in marks:
        raise InvalidInputError(f"{where} is true for none of {len(marks):,} genes; needed: at least 1")
    return ChosenColumns(chosen_from, [number for number, mark in enumerate(marks) if mark == "True"])


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of which repeated ones get ``-1``, ``-2``, as in AnnData's ``var_names_make_unique``. O(names)."""
    given = list(names)
    taken, times, unique = set(given), Counter[str](), []
    for name in given:
        made = name
        while times[name] and made in taken:
            made = f"{name}-{times[name]}"
            times[name] += 1
        times[name] = times[name] or 1
        taken.add(made)
        unique.append(made)
    return tuple(unique)


def _object_values(adata: Any, column: str | None, option: str) -> _Values | None:
    """Values of a column of `var` of an AnnData object, or its index."""
    if column is not None and column not in adata.var:
        raise InvalidParameterError(
            f"var of the AnnData object has no column {column!r}, which {option}= names; it has "
            f"{', '.join(map(str, adata.var)) or 'none'}"
        )
    values = getattr(adata, "var_names", None) if column is None else adata.var[column]
    if values is None:  # of what looks like AnnData
        return None
    texts = [None if missing else str(value) for value, missing in zip(values, values.isna(), strict=True)]
    return texts, f"{'var_names' if column is None else f'var[{column!r}]'} of the AnnData object"


def _stored_values(tree: Tree, found: MatrixLocation, column: str | None, option: str) -> _Values | None:
    """Values of a column, or of the index, of the table of a matrix's columns."""
    place = _table(tree, found)
    if place is None and column is None:
        return None
    if place is None:
        raise InvalidParameterError(
            f"{option}={column!r} does not apply to {tree.name}:{found.path}, which has no table of its columns "
            f"(var of AnnData, features of 10x Genomics); leave it out"
        )
    table, name = place[0], column or place[1]
    values = None if "/" in name else _texts(tree, join(table, name))
    if values is None:
        if column is None:
            return None
        raise InvalidParameterError(f"{tree.name}:{table} has no column {column!r}, which {option}= names")
    if len(values) != found.shape[1]:
        raise SourceError(
            f"{tree.name}:{table}/{name} has {len(values):,} {'names' if option == 'var_column' else 'values'} for the "
            f"{found.shape[1]:,} columns of {found.path}; write the file again"
        )
    return values, f"{tree.name}:{table}/{name}"


def _table(tree: Tree, found: MatrixLocation) -> tuple[str, str] | None:
    """Path of the table of a matrix's columns, and the column with their names; None without a table."""
    if found.layout.startswith("10x"):
        features = join(found.path, "features")  # since version 3
        return (found.path, "gene_names") if tree.node(features) is None else (features, "name")
    parent, _, name = found.path.rpartition("/")
    if name != "X":  # else that of the object, or of its raw values
        parent, _, name = parent.rpartition("/")
        if name != "layers":
            return None
    table = join(parent, "var")
    node = tree.node(table)
    return None if node is None or not node.is_group else (table, tree.attribute(table, "_index") or "_index")


def _texts(tree: Tree, path: str) -> list[str | None] | None:
    """Values of a column as text, None for missing ones; None if there is no such column."""
    node = tree.node(path)
    if node is None or (not node.is_group and len(node.shape or ()) != 1):
        return None
    if not node.is_group:
        values = tree.values(path)
        return [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]
    if {"categories", "codes"} <= node.members:
        words, codes = _texts(tree, join(path, "categories")) or [], tree.values(join(path, "codes"))
        return [words[code] if 0 <= code < len(words) else None for code in codes.astype(int)]
    if {"values", "mask"} <= node.members:
        texts, mask = _texts(tree, join(path, "values")) or [], tree.values(join(path, "mask"))
        return [None if hidden else text for text, hidden in zip(texts, mask, strict=False)]
    return None
