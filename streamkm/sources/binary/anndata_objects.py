"""AnnData objects: the names of their genes, and those that are marked.

Only what such objects offer is used, so that anndata is not imported.
"""

from __future__ import annotations

from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.binary.column_names import are_numbers, true_numbers, unique_names


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
    given = [str(name) for name in names]
    return None if column is None and are_numbers(given) else unique_names(given)


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
