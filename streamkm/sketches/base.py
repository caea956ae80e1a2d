"""The contract of sketches: maps R^d -> R^m that are applied row by row.

A sketch is a small immutable value: what it does to feature j depends on (seed, j) alone. Row i of the result depends
on row i of the input alone, so chunks can be sketched in any order, on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix


@runtime_checkable
class Sketch(Protocol):
    """A linear map of rows.

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
