"""Steps that rows go through before they are clustered, by name, and what those of them know that look at all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.core.matrix import Matrix, as_working
from streamkm.kernels.preparation import rows as kernels
from streamkm.preparation.fill import Fill

TOTAL = 10_000.0
"""What the values of a row add up to after the step "total"."""

FILL = "fill"
"""The first step, where on_missing="mean" asks for it: column means in place of NaN."""

FOUND = (FILL, "standardize", "robust")
"""Steps that must know all rows, in a pass of their own."""

_BY_ROW: dict[str, Callable[[NDArray[Any], NDArray[np.int64], NDArray[Any]], None]] = {
    "log1p": lambda values, starts, out: kernels.log1p(values, out),  # noqa: ARG005 - one value at a time
    "total": lambda values, starts, out: kernels.common_total(values, starts, TOTAL, out),
    "unit": kernels.unit_length,
}

STEPS = ("standardize", "robust", *_BY_ROW)
"""Names of the steps of `preprocess`."""


def check_steps(steps: Any) -> tuple[str, ...]:
    """The names of steps; none for None.

    Raises
    ------
    InvalidParameterError
        For what is no list of names of steps.
    """
    if steps is None:
        return ()
    known = ", ".join(map(repr, STEPS))
    if isinstance(steps, str) or not isinstance(steps, Sequence):
        raise InvalidParameterError(f"preprocess={steps!r}; needed: a list of names, of {known}, or None")
    for step in steps:
        if step not in STEPS:
            raise InvalidParameterError(f"there is no step {step!r}; needed: names of {known}")
    return tuple(steps)


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """What a step has found: features are shifted and then scaled.

    Attributes
    ----------
    shift : float64 (d,), or (0,)
        Taken off; empty where it was found on sparse rows, whose zeros stay.
    factor : float64 (d,)
    """

    shift: NDArray[np.float64]
    factor: NDArray[np.float64]

    def check_width(self, X: Matrix, step: str) -> None:
        """Refuse rows with more features than a shift has, and dense rows with fewer: kernels trust widths.

        Raises
        ------
        InvalidInputError
        """
        found, given, dense = len(self.factor), X.shape[1], isinstance(X, np.ndarray)
        if (dense and given < found) or (len(self.shift) and given > found):
            raise InvalidInputError(
                f"{'dense' if dense else 'sparse'} rows have {given:,} features; the step {step!r} was found on "
                f"{found:,}: pass rows with the same features"
            )

    def apply(self, X: Matrix, out: NDArray[Any]) -> None:
        """Write shifted and scaled values of rows that `check_width` has passed; sparse ones take no shift."""
        if not isinstance(X, np.ndarray):
            kernels.scale_entries(X.indices, X.data, self.factor, out)
            return
        width = X.shape[1]
        shift = self.shift if len(self.shift) else np.zeros(width)
        kernels.scale_dense(X, shift, _lengthened(self.factor, width, 1.0), out)


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """Steps in their order, and what was found for some of them. Cheap to pickle: two numbers a feature and such step.

    Attributes
    ----------
    steps : tuple of str
        Of `STEPS`, after `FILL` or not.
    found : tuple of Scaling or Fill
        Of the first so many steps that must know all rows.
    """

    steps: tuple[str, ...]
    found: tuple[Scaling | Fill, ...] = ()

    @property
    def finding(self) -> tuple[str, ...]:
        """The steps that must know all rows: each takes a pass."""
        return tuple(step for step in self.steps if step in FOUND)

    @property
    def is_complete(self) -> bool:
        """Whether rows can be prepared."""
        return len(self.found) == len(self.finding)

    @property
    def dense_width(self) -> int | None:
        """The number of features of prepared rows where a step takes a shift off, which makes sparse rows dense."""
        return next((len(scaling.shift) for scaling in self.scalings if len(scaling.shift)), None)

    @property
    def fill(self) -> Fill | None:
        """The values that stand for NaN, where they were found."""
        return next((found for found in self.found if isinstance(found, Fill)), None)

    @property
    def scalings(self) -> tuple[Scaling, ...]:
        """The shifts and factors that were found."""
        return tuple(found for found in self.found if isinstance(found, Scaling))

    def before(self, number: int) -> Preparation:
        """The steps in front of one, which is given by its number."""
        steps = self.steps[:number]
        return Preparation(steps, self.found[: len(Preparation(steps).finding)])

    def apply(self, X: Matrix) -> Matrix:
        """Prepare rows, in float64, rounded to their `working_dtype` after each step. O(nnz); X is not changed.

        Parameters
        ----------
        X : ndarray (n, d) of any real dtype, C-contiguous, or csr_array (n, d)
            Rows wider than those that the steps were found on keep the further features as they are, if these steps
            take nothing off and fill nothing.

        Returns
        -------
        ndarray or csr_array (n, d)
            Dense where a step takes a shift off. NaN stays NaN, unless the first step fills it. Values become NaN that
            a step has no use for: up to -1 before "log1p", negative ones before "total".

        Raises
        ------
        InvalidInputError
            Rows of another width than a step allows.
        """
        if not self.is_complete:
            raise ValueError(f"{self.steps} were not found yet")
        given = _values(X)
        values = as_working(given)
        rows, out = _with_values(X, values), np.empty_like(values) if values is given else values
        scalings = iter(self.scalings)
        for step in self.steps:
            if step == FILL and self.fill is not None:
                self.fill.check_width(rows)
                self.fill.apply(rows, out)
            elif step not in FOUND:
                _BY_ROW[step](_values(rows).reshape(-1), _starts(rows), out.reshape(-1))
            else:
                scaling = next(scalings)
                scaling.check_width(rows, step)
                if len(scaling.shift) and not isinstance(rows, np.ndarray):
                    rows = out = _dense(rows, len(scaling.shift))
                scaling.apply(rows, out)
            rows = _with_values(rows, out)
        return rows

    @property
    def is_linear(self) -> bool:
        """Whether steps only fill, shift and scale: what was prepared can then be given back in original units."""
        return self.is_complete and len(self.finding) == len(self.steps)

    def undone(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Give prepared rows, or means of such, in original units; of steps that are linear.

        Parameters
        ----------
        X : ndarray (n, d)
        """
        X = X.astype(np.float64)
        for scaling in reversed(self.scalings):
            X = X / scaling.factor + (scaling.shift if len(scaling.shift) else 0.0)
        return X

    def widened(self, n_features: int) -> Preparation:
        """The same for rows of more features, which stay as they are."""
        found: list[Scaling | Fill] = []
        for scaling in self.found:
            if isinstance(scaling, Fill):
                parts = (_lengthened(values, n_features, 0.0) for values in (scaling.means, scaling.missing))
                found.append(Fill(*parts))
                continue
            shift = _lengthened(scaling.shift, n_features, 0.0) if len(scaling.shift) else scaling.shift
            found.append(Scaling(shift, _lengthened(scaling.factor, n_features, 1.0)))
        return Preparation(self.steps, tuple(found))

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """What was found as named arrays, for a file; `restored` makes it again, with the names of the steps."""
        named: dict[str, NDArray[np.float64]] = {}
        for number, scaling in enumerate(self.found):
            if isinstance(scaling, Fill):
                named |= {f"means{number}": scaling.means, f"missing{number}": scaling.missing}
                continue
            named |= {f"shift{number}": scaling.shift, f"factor{number}": scaling.factor}
        return named

    @classmethod
    def restored(cls, steps: Any, arrays: Mapping[str, NDArray[Any]], n_features: int) -> Preparation:
        """Make what `arrays` wrote; any values may stand there.

        Raises
        ------
        ModelFileError
            For anything else.
        """
        try:
            filled = isinstance(steps, list) and steps[:1] == [FILL]
            bare = cls((*steps[:1], *check_steps(steps[1:])) if filled else check_steps(steps))
            found = tuple(_restored(arrays, step, number) for number, step in enumerate(bare.finding))
        except (KeyError, InvalidParameterError) as error:
            raise ModelFileError(f"steps are {steps!r}, and {error} is wrong with what they have found") from error
        for scaling in found:
            lengths: tuple[int, ...] = (n_features,)
            if isinstance(scaling, Fill):
                parts = [(scaling.means, lengths), (scaling.missing, lengths)]
            else:
                parts = [(scaling.shift, (0, *lengths)), (scaling.factor, lengths)]
            for values, fitting in parts:
                fits = values.dtype == np.float64 and values.ndim == 1 and len(values) in fitting
                if not fits or not np.isfinite(values).all():
                    raise ModelFileError(f"a step holds {values.dtype} {values.shape}; needed: finite float64 (d,)")
        return cls(bare.steps, found)


def _restored(arrays: Mapping[str, NDArray[Any]], step: str, number: int) -> Scaling | Fill:
    """What one step has found, of a file's arrays."""
    if step == FILL:
        return Fill(arrays[f"means{number}"], arrays[f"missing{number}"])
    return Scaling(arrays[f"shift{number}"], arrays[f"factor{number}"])


def _lengthened(values: NDArray[np.float64], length: int, fill: float) -> NDArray[np.float64]:
    """Values with others behind them, where there are fewer than `length`."""
    return np.append(values, np.full(max(0, length - len(values)), fill))


def _values(X: Matrix) -> NDArray[Any]:
    """The values that rows store."""
    return X if isinstance(X, np.ndarray) else X.data


def _starts(X: Matrix) -> NDArray[np.int64]:
    """Where the values of each row begin, and where those of the last end."""
    starts = np.arange(len(X) + 1) * X.shape[1] if isinstance(X, np.ndarray) else X.indptr
    return starts.astype(np.int64, copy=False)


def _with_values(X: Matrix, values: NDArray[Any]) -> Matrix:
    """Rows that store other values in the same places."""
    if isinstance(X, np.ndarray):
        return values
    rows = sp.csr_array(X.shape, dtype=values.dtype)
    rows.data, rows.indices, rows.indptr = values, X.indices, X.indptr
    return rows


def _dense(X: sp.csr_array, width: int) -> NDArray[Any]:
    """Sparse rows as dense ones with zeros for the features that they lack."""
    return sp.csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], width)).toarray()
