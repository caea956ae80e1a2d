"""Steps of chosen columns: what `preprocess` says as a mapping, which columns it means, and what a file keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.core.matrix import Matrix

WEIGHT = "weight"
"""The step that multiplies columns by the square roots of weights, which distances then count them with."""

_SHOWN = 12  # columns that a message names


@dataclass(frozen=True, slots=True)
class StepColumns:
    """The columns of a step, by number, and their weights for the step "weight"."""

    numbers: tuple[int, ...]
    weights: tuple[float, ...] = ()

    def factor(self) -> NDArray[np.float64]:
        """The square roots of the weights, and 1 for all columns in front of the last that has one."""
        factor = np.ones(max(self.numbers) + 1)
        factor[list(self.numbers)] = np.sqrt(self.weights)
        return factor

    def member(self, width: int) -> NDArray[np.bool_]:
        """Which of so many columns are chosen."""
        chosen = np.zeros(width, bool)
        chosen[[number for number in self.numbers if number < width]] = True
        return chosen

    def apply(self, X: Matrix, out: NDArray[Any], step: Callable[..., None]) -> None:
        """Write stored values of rows, after a step that sees the chosen columns alone."""
        chosen = self.member(X.shape[1])
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

    def described(self, step: str) -> dict[str, Any]:
        """As JSON values, for a file."""
        weights = {"weights": list(self.weights)} if self.weights else {}
        return {"step": step, "columns": list(self.numbers), **weights}


def check_column_steps(steps: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Refuse a mapping of steps to columns that is none. Raises InvalidParameterError."""
    if not steps:
        raise InvalidParameterError("preprocess={} names no step; needed: a mapping of steps to columns, or None")
    for step, columns in steps.items():
        if step not in (*known, WEIGHT):
            shown = ", ".join(map(repr, (*known, WEIGHT)))
            raise InvalidParameterError(f"there is no step {step!r}{near_hint(step, known)}; needed: names of {shown}")
        if step == WEIGHT:
            _check_weights(columns)
        elif columns is not None and not _are_columns(columns):
            raise InvalidParameterError(
                f"preprocess: the step {step!r} has {columns!r}; needed: a list of columns, or None for all"
            )


def chosen_columns(steps: Mapping[str, Any], names: Sequence[str] | None, n_features: int | None, name: str) -> Any:
    """The columns of each step of a checked mapping, None for all.

    `names`: of features. `name`: of the rows, for messages. Raises InvalidInputError: a column that is not there.
    """
    found: list[StepColumns | None] = []
    for step, columns in steps.items():
        if columns is None:
            found.append(None)
            continue
        weights: dict[int, float] = {}
        for column in columns:
            for number in _numbers(column, names, n_features, f"{name}: the step {step!r}"):
                if number in weights:
                    raise InvalidInputError(f"{name}: the step {step!r} has column {column!r} twice; leave one out")
                weights[number] = float(columns[column]) if step == WEIGHT else 1.0
        found.append(StepColumns(tuple(weights), tuple(weights.values()) if step == WEIGHT else ()))
    return tuple(found)


def restored_columns(described: Any, n_features: int) -> tuple[str, StepColumns | None]:
    """A step of a file and its columns; any value may stand there. Raises ModelFileError."""
    if not isinstance(described, dict):
        return described, None
    numbers, weights, step = described.get("columns"), described.get("weights", []), described.get("step")
    known = isinstance(numbers, list) and all(type(each) is int and 0 <= each < n_features for each in numbers)
    if not isinstance(step, str) or not known or not numbers or len(set(numbers)) < len(numbers):
        raise ModelFileError(f"a step is {described!r}; needed: its name and columns of {n_features:,}")
    fits = isinstance(weights, list) and len(weights) == (len(numbers) if step == WEIGHT else 0)
    if not fits or not all(_is_weight(weight) for weight in weights):
        raise ModelFileError(f"the step {step!r} has the weights {weights!r}; needed: a positive number a column")
    return step, StepColumns(tuple(numbers), tuple(map(float, weights)))


def _check_weights(weights: Any) -> None:
    if not isinstance(weights, Mapping) or not _are_columns(list(weights)):
        raise InvalidParameterError(
            f"preprocess: the step {WEIGHT!r} has {weights!r}; needed: a mapping of columns to positive numbers"
        )
    for column, weight in weights.items():
        if not _is_weight(weight):
            raise InvalidParameterError(
                f"preprocess: column {column!r} has the weight {weight!r}; needed: a positive number. "
                "Leave columns that do not count out of the data"
            )


def _are_columns(columns: Any) -> bool:
    """Whether this is a list of names and numbers of columns."""
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        return False
    return all(isinstance(each, str | Integral) and not isinstance(each, bool) for each in columns)


def _is_weight(weight: Any) -> bool:
    return not isinstance(weight, bool) and isinstance(weight, Real) and 0 < float(weight) < math.inf


def _numbers(column: Any, names: Sequence[str] | None, n_features: int | None, what: str) -> list[int]:
    """The features of a column: one, or those of a category or a vector. JSON has numbers as text, too."""
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
