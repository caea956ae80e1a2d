"""Steps of chosen columns: `preprocess` as a mapping, the columns that it names, and their form in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.core.matrix import Matrix

StepColumns: TypeAlias = tuple[int, ...]  # of a step, by number

_SHOWN = 12  # columns that a message names


def member(numbers: StepColumns, width: int) -> NDArray[np.bool_]:
    """A mask (width,) of the chosen columns."""
    chosen = np.zeros(width, bool)
    chosen[[number for number in numbers if number < width]] = True
    return chosen


def apply_to(numbers: StepColumns, X: Matrix, out: NDArray[Any], step: Callable[..., None]) -> None:
    """Write stored values of rows after a step that gets only the chosen columns."""
    chosen = member(numbers, X.shape[1])
    if isinstance(X, np.ndarray):
        values = np.ascontiguousarray(X[:, chosen]).reshape(-1)
        starts, there = np.arange(len(X) + 1) * int(chosen.sum()), (slice(None), chosen)
    else:
        there = chosen[X.indices]
        values, starts = X.data[there], np.concatenate([[0], np.cumsum(there)])[X.indptr]
    made = np.empty_like(values)
    step(values, starts.astype(np.int64), made)
    out[...] = X if isinstance(X, np.ndarray) else X.data
    out[there] = made.reshape(len(X), -1) if isinstance(X, np.ndarray) else made


def check_column_steps(steps: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Refuse anything but a mapping of steps to columns. Raises InvalidParameterError."""
    if not steps:
        raise InvalidParameterError("preprocess={} names no step; needed: a mapping of steps to columns, or None")
    for step, columns in steps.items():
        if step not in known:
            shown = ", ".join(map(repr, known))
            raise InvalidParameterError(f"there is no step {step!r}{near_hint(step, known)}; needed: names of {shown}")
        listed = isinstance(columns, Sequence) and not isinstance(columns, str) and len(columns) > 0
        if columns is not None and not (
            listed and all(isinstance(each, str | Integral) and not isinstance(each, bool) for each in columns)
        ):
            raise InvalidParameterError(
                f"preprocess: the step {step!r} has {columns!r}; needed: a list of columns, or None for all"
            )


def chosen_columns(steps: Mapping[str, Any], names: Sequence[str] | None, n_features: int | None, name: str) -> Any:
    """The columns of each step of a checked mapping, None for all. Raises InvalidInputError: a column is missing.

    `names` are those of the features, `name` that of the rows, for messages.
    """
    found: list[StepColumns | None] = []
    for step, columns in steps.items():
        if columns is None:
            found.append(None)
            continue
        chosen: list[int] = []
        for column in columns:
            for number in _numbers(column, names, n_features, f"{name}: the step {step!r}"):
                if number in chosen:
                    raise InvalidInputError(f"{name}: the step {step!r} has column {column!r} twice; leave one out")
                chosen.append(number)
        found.append(tuple(chosen))
    return tuple(found)


def restored_columns(described: Any, n_features: int) -> tuple[str, StepColumns | None]:
    """A step of a file, of any content, and its columns. Raises ModelFileError."""
    if not isinstance(described, dict):
        return described, None
    numbers, step = described.get("columns"), described.get("step")
    known = isinstance(numbers, list) and all(type(each) is int and 0 <= each < n_features for each in numbers)
    if not isinstance(step, str) or not known or not numbers or len(set(numbers)) < len(numbers):
        raise ModelFileError(f"a step is {described!r}; needed: its name and columns of {n_features:,}")
    return step, tuple(numbers)


def _numbers(column: Any, names: Sequence[str] | None, n_features: int | None, what: str) -> list[int]:
    """The features of a column: one, or those of a category or a vector. Files of JSON may store numbers as text."""
    if isinstance(column, str) and names is not None:
        cells = (f"{column}=", f"{column}[")
        found = [at for at, known in enumerate(names) if known == column]
        found = found or [at for at, known in enumerate(names) if known.startswith(cells)]
        if found:
            return found
    if isinstance(column, Integral) or column.isdecimal():
        number = int(column)
        if number >= 0 and (n_features is None or number < n_features):
            return [number]
        raise InvalidInputError(f"{what} names column {number:,}; there are columns 0 to {(n_features or 1) - 1:,}")
    if names is None:
        raise InvalidInputError(f"{what} names column {column!r}, and the columns have no names; give their numbers")
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    raise InvalidInputError(
        f"{what} names column {column!r}, which is missing{near_hint(column, names)}; there are {shown}"
    )
