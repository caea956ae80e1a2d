"""The contract of sketches: maps R^d -> R^m that are applied row by row.

A sketch is a small immutable value: its effect on feature j depends on (seed, j) alone, and row i of the result on row
i of the input alone, so chunks can be sketched in any order, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix, as_working


class SketchAnswers(Protocol):
    """Properties of sketches for callers that do not know the class; sketches inherit it and override differences.

    Class attributes and class methods also answer before a sketch is made: see `sketch_class`.
    """

    __slots__ = ()

    is_identity: ClassVar[bool] = False  # whether a sketched row is the row itself
    is_projection: ClassVar[bool] = False  # whether rows are projected on orthonormal directions, the `basis`
    takes_sparse: ClassVar[bool] = True  # whether CSR rows can be sketched
    # whether sketched rows are CSR even where the rows are dense; each then stores `n_kept` entries
    sparsifies: ClassVar[bool] = False
    sparse_as_single: ClassVar[bool] = False  # whether CSR rows are sketched in float32, whatever their precision
    # whether squared lengths of sketched rows are too large on average, so that objectives do not compare
    inflates_lengths: ClassVar[bool] = False
    # whether centers found among sketched rows of a sample improve by steps on the original rows of the sample
    needs_polishing: ClassVar[bool] = True
    found_on_few: ClassVar[bool] = False  # whether a part of a large sample is enough to find it
    # whether the clusters stay the same if rows are multiplied by a number before they are sketched
    scales_with_rows: ClassVar[bool] = True
    # whether sketched rows all move alike if the rows do, and the sketch that is found stays the same
    moves_with_rows: ClassVar[bool] = True
    # whether it is made of kernel values against landmarks, so that its features, as fits find them, underestimate the
    # kernel: ``K - B B'`` is positive semidefinite for kernel values K and features B
    is_nystroem: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """The name in saved models; a class attribute of most sketches."""
        raise NotImplementedError

    @classmethod
    def leaves_zeros(cls, n_components: int) -> bool:  # noqa: ARG003
        """Whether CSR rows stay CSR in `n_components` components."""
        return False

    def fits_features(self, n_features: int) -> bool:  # noqa: ARG002
        """Whether it can sketch rows of `n_features` features, if it was made for a certain number."""
        return True

    def is_one_copy(self, *, sparse: bool) -> bool:  # noqa: ARG002
        """Whether a sketch of dense or CSR rows takes about as long as a copy: not worth sharing among threads."""
        return False

    @property
    def entries_per_stored(self) -> int:
        """Entries of a sketched CSR row for each stored one; see `leaves_zeros`."""
        return 1

    @property
    def n_kept(self) -> int:
        """Entries stored of a sketched row if it `sparsifies`; else 0."""
        return 0

    @property
    def basis(self) -> NDArray[Any] | None:
        """Orthonormal columns (d, m) of the projection; None if it is no such projection."""
        return None

    @property
    def center(self) -> NDArray[np.float64] | None:
        """The point (d,) that a projection maps to 0; None for the origin, or if it is no projection."""
        return None

    def with_center(self, center: NDArray[np.float64]) -> Self:  # noqa: ARG002
        """Give the same projection with another center; the same sketch if it has none."""
        return self

    @property
    def is_made(self) -> bool:
        """Whether it can be applied; an estimator makes a sketch without a seed."""
        return True

    def made(self, seed: int, n_features: int | None) -> Self:  # noqa: ARG002
        """Add the missing seed and number of features; the same sketch if it is made."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON values that remake the sketch from a saved model, with `kind`."""
        return {"kind": self.kind, **self._fields(arrays=False)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the arrays it needs as well, by names of the constructor's arguments."""
        return self._fields(arrays=True)

    def _fields(self, *, arrays: bool) -> dict[str, Any]:
        """The dataclass's fields that are arrays, or the others."""
        made: Any = self
        values = {field.name: getattr(self, field.name) for field in fields(made)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray) == arrays}


@runtime_checkable
class Sketch(SketchAnswers, Protocol):
    """A map of rows."""

    @property
    def n_components(self) -> int: ...

    def apply(self, X: Matrix) -> Matrix:
        """Map rows (n, d), dense of any real dtype or CSR, to (n, m); CSR entries may repeat an index, and add up."""


@dataclass(frozen=True, slots=True)
class IdentitySketch(SketchAnswers):
    """``apply(X) == X``, as floats: for rows whose features are few enough already, and for sketch stores."""

    n_components: int  # m = d
    kind: ClassVar[str] = "identity"
    is_identity: ClassVar[bool] = True
    needs_polishing: ClassVar[bool] = False

    def apply(self, X: Matrix) -> Matrix:
        check_width(X, self.n_components)
        if isinstance(X, np.ndarray):
            return as_working(X)
        return sp.csr_array((as_working(X.data), X.indices, X.indptr), shape=(X.shape[0], self.n_components))

    @classmethod
    def leaves_zeros(cls, n_components: int) -> bool:  # noqa: ARG003
        return True

    def fits_features(self, n_features: int) -> bool:
        return self.n_components == n_features

    def is_one_copy(self, *, sparse: bool) -> bool:
        return not sparse


class SeededSketch(SketchAnswers):
    """A sketch made of a size, a seed, and for some the number of features; an estimator sets missing ones."""

    __slots__ = ()

    seed: int | None

    @property
    def is_made(self) -> bool:
        return all(getattr(self, name, 0) is not None for name in ("seed", "n_features"))

    def made(self, seed: int, n_features: int | None) -> Self:
        given = {"seed": seed, "n_features": n_features}
        missing = {name: value for name, value in given.items() if getattr(self, name, 0) is None}
        return replace(self, **missing) if missing else self  # type: ignore[type-var]

    def _known(self, name: str) -> int:
        """A number that is set; raises InvalidParameterError if it was left to the estimator."""
        value: int | None = getattr(self, name)
        if value is None:
            raise InvalidParameterError(
                f"{self!r} has no {name}; pass {name}=..., or give it to StreamKMeans(sketch=...), which sets {name}"
            )
        return value


def check_numbers(n_components: int, limit: int, seed: int | None) -> None:
    """Refuse a number of components outside 1..limit, and a seed outside 0..2^64-1."""
    if not 1 <= n_components <= limit:
        raise InvalidParameterError(f"n_components={n_components}; needed: 1 to {limit:,}")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise InvalidParameterError(f"seed={seed}; needed: 0 to 2^64 - 1")


def check_width(X: Matrix, n_features: int) -> None:
    """Refuse rows wider than a sketch was made for; narrower ones lack their last features."""
    if X.shape[1] > n_features:
        raise InvalidInputError(f"rows with {X.shape[1]} features; needed: at most {n_features}")


def check_fits(sketch: SketchAnswers, fits: bool, needed: str) -> None:
    """Refuse arrays that a sketch cannot be made of."""
    if not fits:
        given = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in sketch.arrays().items())
        raise InvalidParameterError(f"{given}; needed: {needed}")


@dataclass(frozen=True, slots=True)
class SketchFitBytes:
    """Approximate memory of a pass that finds a sketch, in bytes."""

    state: int  # of the sums
    call: int  # of a call that adds rows to sums, beside these
    end: int  # while sums are made a sketch of, with these


class SketchFit(Protocol):
    """Sums over all rows, gathered in one pass, from which a sketch is made; a small picklable value."""

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> Any:
        """Add rows (v, d) to the sums, or start for None, in float64; `state` may change in place.

        `weights`: float64 (v,) or (0,). Chunks of sparse text may differ in d.
        """

    def join(self, states: Sequence[Any]) -> Any:
        """Add up the sums of several runs of rows, in order."""

    def finish(self, state: Any) -> Sketch:
        """Make the sketch from the sums."""
