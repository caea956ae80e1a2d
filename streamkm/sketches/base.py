"""The contract of sketches: maps R^d -> R^m that are applied row by row.

A sketch is a small immutable value: what it does to feature j depends on (seed, j) alone. Row i of the result depends
on row i of the input alone, so chunks can be sketched in any order, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix


class SketchAnswers(Protocol):
    """What others ask of a sketch, so that nobody asks for its class; sketches inherit it and say what differs.

    Class attributes and class methods answer for a sketch that is not made yet, too: see `registry.sketch_class`.

    Attributes
    ----------
    is_identity : bool
        Whether a sketched row is the row itself.
    is_projection : bool
        Whether rows are projected on orthonormal directions, which `basis` gives.
    takes_sparse : bool
        Whether CSR rows can be sketched.
    sparsifies : bool
        Whether sketched rows are CSR even where the rows are dense; each then stores `n_kept` entries.
    sparse_as_single : bool
        Whether CSR rows are sketched in float32 for certain, whatever their precision.
    usual_entries : int
        Entries of a sketched CSR row for each that the row stores, where the user does not say how many; more than 1
        if a theorem knows the number.
    inflates_lengths : bool
        Whether squared lengths of sketched rows are too large on average, so that objectives do not compare.
    needs_polishing : bool
        Whether centers found among sketched rows of a sample improve by steps on the original rows of the sample.
    found_on_few : bool
        Whether a part of a large sample is enough to find it.
    scales_with_rows : bool
        Whether the clusters stay the same if rows are multiplied by a number before they are sketched.
    moves_with_rows : bool
        Whether sketched rows all move alike if the rows do, and the sketch that is found stays the same.
    is_nystroem : bool
        Whether it is made of kernel values against landmarks, so that its features, as fits find them, underestimate
        the kernel: ``K - B B'`` is positive semidefinite for kernel values K and features B.
    """

    __slots__ = ()

    is_identity: ClassVar[bool] = False
    is_projection: ClassVar[bool] = False
    takes_sparse: ClassVar[bool] = True
    sparsifies: ClassVar[bool] = False
    sparse_as_single: ClassVar[bool] = False
    usual_entries: ClassVar[int] = 1
    inflates_lengths: ClassVar[bool] = False
    needs_polishing: ClassVar[bool] = True
    found_on_few: ClassVar[bool] = False
    scales_with_rows: ClassVar[bool] = True
    moves_with_rows: ClassVar[bool] = True
    is_nystroem: ClassVar[bool] = False

    @classmethod
    def leaves_zeros(cls, n_components: int) -> bool:  # noqa: ARG003
        """Whether CSR rows stay CSR in so many components."""
        return False

    def fits_features(self, n_features: int) -> bool:  # noqa: ARG002
        """Whether it can be given rows of so many features, as far as it was made for a certain number of them."""
        return True

    def is_one_copy(self, *, sparse: bool) -> bool:  # noqa: ARG002
        """Whether dense or CSR rows are sketched in about the time of a copy: not worth to share among threads."""
        return False

    @property
    def entries_per_stored(self) -> int:
        """Entries of a sketched CSR row for each that the row stores; see `leaves_zeros`."""
        return 1

    @property
    def n_kept(self) -> int:
        """Entries that a sketched row stores, if it `sparsifies`; else 0."""
        return 0

    @property
    def basis(self) -> NDArray[Any] | None:
        """Orthonormal columns (d, m) that rows are projected on; None if it is no such projection."""
        return None

    @property
    def center(self) -> NDArray[np.float64] | None:
        """The point (d,) of rows that a projection takes to 0; None if that is the origin, or it is no projection."""
        return None

    def with_center(self, center: NDArray[np.float64]) -> Self:  # noqa: ARG002
        """Give the same projection with another center; the same sketch if it has none."""
        return self

    @property
    def is_made(self) -> bool:
        """Whether it can be applied; a sketch without a seed is made by the estimator that it is given to."""
        return True

    def made(self, seed: int, n_features: int | None) -> Self:  # noqa: ARG002
        """Give the sketch with the seed and the number of features that it lacks; the same sketch if it is made."""
        return self

    def writable(self) -> Self:
        """Give the sketch as files can hold it: the same unless it calls a Python function."""
        return self

    def with_function(self, function: Callable[..., Any]) -> Self:  # noqa: ARG002
        """Give the sketch that `writable` was called of, if it called this function."""
        return self


@runtime_checkable
class Sketch(SketchAnswers, Protocol):
    """A map of rows.

    Attributes
    ----------
    kind : str
        The name in saved models.
    n_components : int
        m.
    passes_to_fit : int
        Passes over the data before it can be applied: 0 for data-oblivious sketches.
    """

    kind: ClassVar[str]
    passes_to_fit: ClassVar[int]

    @property
    def n_components(self) -> int: ...

    def apply(self, X: Matrix) -> Matrix:
        """Map rows.

        Parameters
        ----------
        X : ndarray (n, d) of any real dtype, or csr_array (n, d)

        Returns
        -------
        ndarray (n, m) or csr_array (n, m)
            CSR entries may repeat an index; their sum is meant.
        """

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON values that a saved model needs to make the sketch again, `kind` among them."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the arrays that it needs besides, by the names of the constructor's arguments."""


@dataclass(frozen=True, slots=True)
class SketchFitBytes:
    """Memory of a round of finding a sketch, about, in bytes.

    Attributes
    ----------
    state : int
        Of the sums.
    call : int
        Of a call that adds rows to sums, beside these.
    end : int
        While sums are made a sketch of, with these.
    """

    state: int
    call: int
    end: int


class SketchFit(Protocol):
    """One round of finding a sketch that depends on the data: sums over all rows, gathered in one pass.

    A small picklable value. Rounds follow each other until `finish` gives a sketch.
    """

    def step(self, state: Any, X: Matrix, weights: NDArray[np.float64]) -> Any:
        """Add rows to the sums, in float64.

        Parameters
        ----------
        state : sums, or None to start
            May be changed in place.
        X : ndarray (v, d) or csr_array (v, d)
            Chunks of sparse text may differ in d.
        weights : float64 (v,) or (0,)
        """

    def join(self, states: Sequence[Any]) -> Any:
        """Add up the sums of several runs of rows, in order."""

    def finish(self, state: Any) -> Sketch | SketchFit:
        """Make the sketch of the sums, or the next round."""
