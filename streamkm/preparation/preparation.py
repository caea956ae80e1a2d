"""Steps that prepare rows before they are clustered, by name, and the statistics of the steps that need all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.display import near_hint
from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.core.matrix import Matrix, as_working
from streamkm.kernels.preparation import row_steps as kernels
from streamkm.preparation.column_steps import (
    StepColumns,
    apply_to,
    check_column_steps,
    chosen_columns,
    member,
    restored_columns,
)
from streamkm.preparation.moments import SUM_BYTES
from streamkm.preparation.scaling import Fill, Scaling, Table, check_width, lengthened

TOTAL = 10_000.0
"""Sum of the values of a row after the step "total"."""

FILL = "fill"
"""The first step if invalid="mean": column means in place of NaN."""

FOUND = (FILL, "standardize", "robust", "table")
"""Steps that need a pass over all rows."""

_BY_ROW: dict[str, Callable[[NDArray[Any], NDArray[np.int64], NDArray[Any]], None]] = {
    "log1p": lambda values, starts, out: kernels.log1p(values, out),  # noqa: ARG005 - one value at a time
    "total": lambda values, starts, out: kernels.common_total(values, starts, TOTAL, out),
    "unit": kernels.unit_length,
}

DOMAINS = {"log1p": "log1p takes values above -1", "total": "total takes values of 0 and more"}
"""Values that a step takes; others become infinite."""

STEPS = ("standardize", "robust", "table", *_BY_ROW)
"""Names of the steps of `preprocess`."""


def check_steps(steps: Any) -> tuple[str, ...]:
    """The names of steps; none for None. Raises InvalidParameterError for anything but a list of such names."""
    if steps is None:
        return ()
    known = ", ".join(map(repr, STEPS))
    steps = ["table"] if steps == "table" else steps
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise InvalidParameterError(f'preprocess={steps!r}; needed: a list of names, of {known}, "table", or None')
    for step in steps:
        if step not in STEPS:
            raise InvalidParameterError(f"there is no step {step!r}{near_hint(step, STEPS)}; needed: names of {known}")
    return tuple(steps)


def check_preprocess(steps: Any) -> None:
    """Refuse anything but a list of steps or a mapping of steps to columns. Raises InvalidParameterError."""
    if isinstance(steps, Mapping):
        check_column_steps(steps, [step for step in STEPS if step != "table"])
    else:
        check_steps(steps)


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """Steps in their order, and the statistics found for them. Cheap to pickle: two numbers a feature and such step."""

    steps: tuple[str, ...]  # names of `STEPS`, which may follow `FILL`
    found: tuple[Scaling | Fill, ...] = ()  # of steps that need all rows, in order; later ones may lack theirs
    columns: tuple[StepColumns | None, ...] = ()  # of each step, None for all; empty if all steps take all

    @classmethod
    def of(cls, steps: Any, names: Sequence[str] | None, n_features: int | None, name: str) -> Preparation:
        """The steps of `preprocess`, a list or mapping, for such features. Raises InvalidInputError: no such column."""
        if not isinstance(steps, Mapping):
            return cls(check_steps(steps))
        return cls(tuple(steps), columns=chosen_columns(steps, names, n_features, name))

    def after_fill(self) -> Preparation:
        """These steps after one that fills missing values."""
        return Preparation((FILL, *self.steps), columns=(None, *self.columns) if self.columns else ())

    def columns_of(self, number: int) -> StepColumns | None:
        """The columns of a step; None for all."""
        return self.columns[number] if self.columns else None

    def described(self) -> list[Any]:
        """JSON values: names, and the columns of steps that have chosen ones."""
        chosen = [self.columns_of(number) for number in range(len(self.steps))]
        return [
            step if each is None else {"step": step, "columns": list(each)}
            for step, each in zip(self.steps, chosen, strict=True)
        ]

    @property
    def finding(self) -> tuple[str, ...]:
        """The steps that need a pass over all rows."""
        return tuple(step for step in self.steps if step in FOUND)

    def sums_bytes(self, n_features: int | None) -> int:
        """Bytes of the sums that each call of the preparation's pass holds."""
        return SUM_BYTES * (1 + (n_features or 0)) if {FILL, "standardize"} & set(self.steps) else 0

    @property
    def is_complete(self) -> bool:
        """Whether all statistics are found, so that rows can be prepared."""
        return len(self.found) == len(self.finding)

    @property
    def dense_width(self) -> int | None:
        """The number of features of prepared rows if a step subtracts a shift, which makes sparse rows dense."""
        return next((len(scaling.shift) for scaling in self.scalings if len(scaling.shift)), None)

    @property
    def fill(self) -> Fill | None:
        """The values that replace NaN, if they were found."""
        return next((found for found in self.found if isinstance(found, Fill)), None)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """The shifts and factors that were found."""
        return tuple(found for found in self.found if isinstance(found, Scaling))

    @property
    def table(self) -> Table | None:
        """The statistics of the step "table", if there are any."""
        return next((found for found in self.found if isinstance(found, Table)), None)

    def before(self, number: int) -> Preparation:
        """The steps in front of the given number."""
        steps = self.steps[:number]
        return Preparation(steps, self.found[: len(Preparation(steps).finding)], self.columns[:number])

    def apply(self, X: Matrix) -> Matrix:
        """Prepare rows (n, d), in float64, rounded to their `working_dtype` after each step. O(nnz); X is not changed.

        Dense X is C-contiguous. Rows become dense if a step subtracts a shift. Features beyond those that the steps
        were found on stay as they are; steps that shift or fill refuse them with InvalidInputError. NaN stays NaN
        unless the first step fills it, and the other values of its row are scaled alone. Values become infinite outside
        a step's `DOMAINS`: up to -1 before "log1p", negative ones before "total".
        """
        if not self.is_complete:
            raise ValueError(f"{self.steps} were not found yet")
        given = _values(X)
        values = as_working(given)
        rows, out = _with_values(X, values), np.empty_like(values) if values is given else values
        scalings = iter(self.scalings)
        for number, step in enumerate(self.steps):
            columns = self.columns_of(number)
            if step == FILL and self.fill is not None:
                check_width(rows, len(self.fill.means), 'invalid="mean"')
                self.fill.apply(rows, out)
            elif step in FOUND:
                scaling = next(scalings)
                check_width(rows, len(scaling.factor), f"the step {step!r}", may_be_wider=not len(scaling.shift))
                if len(scaling.shift) and not isinstance(rows, np.ndarray):
                    shape = rows.shape[0], len(scaling.shift)  # with zeros for features that the rows lack
                    rows = out = sp.csr_array((rows.data, rows.indices, rows.indptr), shape=shape).toarray()
                scaling.apply(rows, out)
            elif columns is None:
                _BY_ROW[step](_values(rows).reshape(-1), _starts(rows), out.reshape(-1))
            else:
                apply_to(columns, rows, out, _BY_ROW[step])
            rows = _with_values(rows, out)
        return rows

    @property
    def is_invertible(self) -> bool:
        """Whether prepared values determine the original ones: "total" and "unit" lose the length of a row."""
        return self.is_complete and not set(self.steps) & {"total", "unit"}

    def undone(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Prepared rows (n, d), or means of such, in original units, by invertible steps.

        The mean of log(1 + x) becomes the geometric mean of 1 + x, less 1.
        """
        X, scalings = X.astype(np.float64), iter(reversed(self.scalings))
        for number, step in reversed(list(enumerate(self.steps))):
            columns = self.columns_of(number)
            if step == "log1p":
                chosen = slice(None) if columns is None else member(columns, X.shape[1])
                X[:, chosen] = np.expm1(X[:, chosen])
            elif step != FILL:
                X = next(scalings).undone(X)
        return X

    def widened(self, n_features: int) -> Preparation:
        """A copy for rows of more features, which stay as they are."""
        found = [
            type(each)(
                *(lengthened(v, n_features, float(name == "factor")) if len(v) else v for name, v in _parts(each))
            )
            for each in self.found
        ]
        return replace(self, found=tuple(found))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """The statistics as named arrays, for a file; `restored` needs them and the names of the steps."""
        return {f"{name}{at}": values for at, each in enumerate(self.found) for name, values in _parts(each)}

    @classmethod
    def restored(cls, steps: Any, arrays: Mapping[str, NDArray[Any]], n_features: int) -> Preparation:
        """Restore a preparation from steps and `arrays` of any content. Raises ModelFileError."""
        try:
            read = [restored_columns(step, n_features) for step in steps]
            names, columns = [step for step, _ in read], tuple(each for _, each in read)
            filled = names[:1] == [FILL]
            bare = cls((*names[:filled], *check_steps(names[filled:])))
            kinds = [kind_of(step) for step in bare.finding]
            found = tuple(kind(*(arrays[f"{f.name}{at}"] for f in fields(kind))) for at, kind in enumerate(kinds))
        except (KeyError, TypeError, InvalidParameterError) as error:
            raise ModelFileError(f"steps are {steps!r}, and {error} is wrong with what they have found") from error
        for each in found:
            for name, values in _parts(each):
                fitting = (0, n_features) if name == "shift" else (n_features,)
                fits = values.dtype == np.float64 and values.ndim == 1 and len(values) in fitting
                if not fits or not np.isfinite(values).all():
                    raise ModelFileError(f"a step holds {values.dtype} {values.shape}; needed: finite float64 (d,)")
        return cls(bare.steps, found, columns if any(columns) else ())


def kind_of(step: str) -> type[Fill | Scaling]:
    """The class of a step's statistics."""
    return Fill if step == FILL else Table if step == "table" else Scaling


def _parts(found: Scaling | Fill) -> list[tuple[str, NDArray[np.float64]]]:
    """The arrays of a step's statistics, by name."""
    return [(field.name, getattr(found, field.name)) for field in fields(found)]


def _values(X: Matrix) -> NDArray[Any]:
    """The stored values of rows."""
    return X if isinstance(X, np.ndarray) else X.data


def _starts(X: Matrix) -> NDArray[np.int64]:
    """Positions (n + 1,) of the first value of each row, and of the end."""
    starts = np.arange(len(X) + 1) * X.shape[1] if isinstance(X, np.ndarray) else X.indptr
    return starts.astype(np.int64, copy=False)


def _with_values(X: Matrix, values: NDArray[Any]) -> Matrix:
    """Rows with other stored values in the same places."""
    if isinstance(X, np.ndarray):
        return values
    rows = sp.csr_array(X.shape, dtype=values.dtype)
    rows.data, rows.indices, rows.indptr = values, X.indices, X.indptr
    return rows
