"""What is said of values in memory that scikit-learn refuses: one line, with what is wrong, where, and what to do.

Looks at values only after they were refused. The words that scikit-learn's own tests look for are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.memory.frames import is_frame

_LONGEST = 40  # characters of a value that are shown


@contextmanager
def clear_refusals(X: Any, name: str) -> Iterator[None]:
    """Say in one line what is wrong with X, where what is done within refuses it.

    `name`: what messages call it. Raises InvalidInputError, in place of a ValueError, or TypeError.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        reason = _reason(X, name)
        if reason is None:
            raise
        kind = TypeError if isinstance(error, TypeError) else InvalidInputError
        raise kind(reason) from None  # which is all that the error says, and more


def _reason(X: Any, name: str) -> str | None:
    """What is wrong with X; None where it is something else than what its values are and how they lie."""
    if is_frame(X):
        return _of_columns(X, name)
    try:
        values = X if sp.issparse(X) else np.asarray(X)
    except ValueError:
        return _ragged(X)
    if values.dtype.kind == "c":
        return _complex(values.dtype, name)
    if values.dtype.names:
        made = "numpy.lib.recfunctions.structured_to_unstructured(X)"
        return f"{name} holds records ({values.dtype}); needed: rows of features. Pass {made}"
    if values.ndim != 2:
        return _not_rows(values, name)
    return _of_values(values, name)


def _of_values(values: Any, name: str) -> str | None:
    """The first value of a matrix that is no number."""
    found = _first_no_number(values.ravel()) if values.dtype.kind in "OUS" else None
    if found is None:
        return None
    at, value, problem = found
    row, column = divmod(at, values.shape[1])
    return (
        f"row {row:,}, column {column:,} of the {name} contains {value}; features must be numbers ({problem}). Drop or "
        "encode that column"
    )


def _of_columns(X: Any, name: str) -> str | None:
    """The first column of a frame that is not of numbers, with its first value that is none."""
    for column in X.columns:
        values = np.asarray(X[column])
        if values.ndim != 1:  # of several columns with one name
            continue
        what = f"column {column!r} of the {name}"
        if values.dtype.kind in "Mm":
            return (
                f"{what} has type {values.dtype}; features must be numbers. Drop or convert that column, or read days: "
                'open_source(X, dates="days")'
            )
        if values.dtype.kind == "c":
            return _complex(values.dtype, what)
        found = _first_no_number(values) if values.dtype.kind in "OUS" else None
        if found is not None:
            row, value, problem = found
            return (
                f"{what} contains {value} in row {row:,}; features must be numbers ({problem}). Drop that column, or "
                'encode it: open_source(X, categories="onehot")'
            )
    return None


def _first_no_number(values: NDArray[Any]) -> tuple[int, str, str] | None:
    """Place, text and trouble of the first value that is no number, as Python reads numbers."""
    for at, value in enumerate(values.tolist()):
        try:
            float(np.nan if value is None else value)  # as NumPy has it
        except (TypeError, ValueError) as error:
            text = repr(value)
            shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
            return at, f"the text {shown}" if isinstance(value, str) else shown, str(error).split(":")[0]
    return None


def _complex(dtype: Any, name: str) -> str:
    return f"Complex data not supported: {name} holds {dtype}; pass real and imaginary parts as features of their own"


def _not_rows(values: NDArray[Any], name: str) -> str:
    shape = values.shape
    if values.ndim == 0:
        return f"{name} is one value; needed: rows of features, of shape (n, d)"
    if values.ndim == 1:
        remedy = "X.reshape(1, -1) if it is one row, X.reshape(-1, 1) if its values are rows of one feature"
    else:
        remedy = "X.reshape(len(X), -1) makes each sample one row"
    return f"{name} has shape {shape}; needed: rows of features, (n, d). Reshape your data: {remedy}"


def _ragged(X: Any) -> str | None:
    """Which of some rows has another length than the first."""
    try:
        lengths = [len(row) for row in X]
    except TypeError:
        return "a list holds rows and single values; needed: rows of one length"
    row = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
    if row is None:
        return None
    return f"row {row:,} has {lengths[row]:,} values, and row 0 has {lengths[0]:,}; needed: rows of one length"
